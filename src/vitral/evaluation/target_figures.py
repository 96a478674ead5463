"""Figures of several labels and of numbers, as figures.py has them of one class."""

from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.target_metrics import LabelFigures, LabelsMetrics
from vitral.inference import margins_of, thresholds_of
from vitral.look.figures import Theme, caption, figure, theme
from vitral.predictions import number_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitral.evaluation.evaluate import Evaluation

ROWS = 200  # labels, up to which all are drawn, one below the other
MANY = 40  # labels, above which rows are lower
CURVES = 12  # labels with a curve of precision and recall, at most
ACROSS = (4, 5, 3)  # of these side by side: the first that leaves no row open
WIDEST = 10.8  # inches: the report has room for it
PARTS = 8  # of the range of a number: how far off it is in each
MOST_OPAQUE = 200  # pictures, above which points are pale, so that it is seen where there are many


def label_rows(metrics: LabelsMetrics, most: int, sort: bool) -> list[LabelFigures]:
    """The labels that some picture has; with `sort`, or where there are more than `most`, those found least."""
    known = [one for one in metrics.labels if one.average_precision is not None]
    if sort or len(known) > most:
        known.sort(key=lambda one: one.average_precision or 0.0)
    return known[:most]


def labels(evaluation: "Evaluation") -> None:
    """Draw how well each label is found, and what its threshold makes of that."""
    from vitral.evaluation.figures import of_what, titled

    metrics, colours, words = evaluation.measured, theme(dark=False), of_what(evaluation)
    assert isinstance(metrics, LabelsMetrics)
    rows = label_rows(metrics, ROWS, sort=False)
    mean = metrics.figures["map"].value
    what = (
        f"Bars: average precision, how far up the {words} with a label stand when all are ordered by its probability; "
        f"dotted: its mean, {mean:.1%}. At the threshold: how many of the {words} with the label are said to have it "
        "(recall), and how many of those that are said to have it do (precision), with 95 % intervals."
    )
    if len(rows) < len(metrics.labels):
        what += f" {len(rows)} of {len(metrics.labels):,} labels."
    size, row = (10, 0.38) if len(rows) <= MANY else (8, 0.24)
    path, height = evaluation.file("labels.png"), 1.8 + row * max(len(rows), 2)
    with figure(path, 7.6, height, titled(evaluation, "Label by label"), what) as canvas:
        axes = canvas.subplots()
        for at, one in enumerate(rows):
            axes.barh(at, one.average_precision or 0.0, color=colours.bar, height=0.7)
            for share, shift, colour in ((one.recall, -0.16, colours.ink), (one.precision, 0.16, colours.red)):
                if share is None:
                    continue
                ends = [[max(0.0, share.value - (share.low or 0))], [max(0.0, (share.high or 0) - share.value)]]
                style: Any = {"color": colour, "markersize": 4, "elinewidth": 1.1, "zorder": 3, "clip_on": False}
                axes.errorbar(share.value, at + shift, xerr=ends, fmt="o" if shift < 0 else "D", **style)
        for colour, marker, word in ((colours.ink, "o", "recall"), (colours.red, "D", "precision")):
            axes.plot([], [], marker, color=colour, markersize=4, label=word)
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.35 / (row * max(len(rows), 2))),
            ncols=2,
            frameon=False,
            fontsize=9,
        )
        counts = [f"{one.pictures:,}" for one in rows]
        axes.set_yticks(range(len(rows)), [caption(one.name, 28) for one in rows], fontsize=size)
        for at, count in enumerate(counts):  # in a column of their own, between the names and the bars
            axes.annotate(
                count, (0, at), (-6, 0), textcoords="offset points", ha="right", va="center_baseline", fontsize=size
            )
        axes.tick_params(axis="y", length=0, pad=16 + 0.6 * size * max(map(len, counts), default=0))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 1.005)
        axes.xaxis.set_major_formatter(lambda part, _: f"{part:.0%}")
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.axvline(mean, color=colours.grey, linewidth=1, linestyle=":")


def precision_recall(evaluation: "Evaluation", to: IO[bytes] | None = None, dark: bool = False) -> None:
    """Draw the precision against the recall at every threshold, a panel for each of the labels that are found least."""
    from vitral.evaluation.figures import titled

    metrics, colours = evaluation.measured, theme(dark)
    assert isinstance(metrics, LabelsMetrics)
    rows = label_rows(metrics, CURVES, sort=True)
    if not rows:
        return
    title = "" if to else titled(evaluation, "Precision and recall")
    what = "" if to else how_to_read_precision_recall(metrics)
    across = next((count for count in ACROSS if len(rows) % count == 0), min(ACROSS[0], len(rows)))
    down = -(-len(rows) // across)
    place = {name: number for number, name in enumerate(evaluation.weights.class_names)}
    thresholds = thresholds_of(evaluation.targets, evaluation.calibration)
    where = to or evaluation.file("precision-recall.png")
    with figure(where, min(0.5 + 2.3 * max(across, 2), WIDEST), 0.5 + 2.1 * down, title, what, dark=dark) as canvas:
        grid = canvas.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(rows) :]:
            axes.axis("off")
        for axes, one in zip(grid.flat, rows, strict=False):
            column = place[one.name]
            truth, probabilities = evaluation.labels[:, column] > 0.5, evaluation.values[:, column]
            _trade(axes, truth, probabilities, float(thresholds[column]), colours)
            axes.set_title(f"{caption(one.name, 16)}  {one.average_precision:.1%}", fontsize=9.5)
        for axes in grid[:, 0]:
            axes.set_ylabel("precision")
        for number, axes in enumerate(grid.flat):
            if number + across >= len(rows):
                axes.set_xlabel("recall")
                axes.tick_params(labelbottom=True)


def how_to_read_precision_recall(metrics: LabelsMetrics) -> str:
    """How to read the curves, in words."""
    known = sum(one.average_precision is not None for one in metrics.labels)
    text = (
        "The lower a threshold, the more of a label's pictures are found (recall) and the more false alarms there are "
        "(precision falls). Dot: the threshold in use; dotted: what chance gives; the number is the average precision."
    )
    return f"{text} The {CURVES} labels of {known:,} that are found least." if known > CURVES else text


def _trade(
    axes: "Axes", truth: NDArray[np.bool_], probabilities: NDArray[np.float64], threshold: float, colours: Theme
) -> None:
    order = np.argsort(-probabilities, kind="stable")
    right, said = np.cumsum(truth[order]), np.arange(1, len(truth) + 1)
    last = np.append(probabilities[order][1:] < probabilities[order][:-1], True)  # of equal probabilities
    recall, precision = right[last] / truth.sum(), right[last] / said[last]
    axes.axhline(float(truth.mean()), color=colours.grey, linewidth=1, linestyle=":")
    axes.step(np.append(0, recall), np.append(precision[0], precision), where="pre", color=colours.blue, linewidth=1.6)
    if answered := int((probabilities >= threshold).sum()):
        hits = int((truth & (probabilities >= threshold)).sum())
        axes.plot(hits / truth.sum(), hits / answered, "o", color=colours.red, markersize=6, clip_on=False, zorder=4)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.grid()


def said_and_true(evaluation: "Evaluation", to: IO[bytes] | None = None, dark: bool = False) -> None:
    """Draw what was said of each picture against what is true."""
    from vitral.evaluation.figures import titled

    colours = theme(dark)
    truth, said, margin = of_number(evaluation)
    title = "" if to else titled(evaluation, "Said and true")
    what = "" if to else how_to_read_said_and_true(margin)
    low, high = (float(end) for end in (min(truth.min(), said.min()), max(truth.max(), said.max())))
    room = 0.04 * (high - low) or 1.0
    ends = np.array([low - room, high + room])
    with figure(to or evaluation.file("said.png"), 5, 5.2, title, what, dark=dark) as canvas:
        axes = canvas.subplots()
        if margin:
            axes.fill_between(ends, ends - margin, ends + margin, color=colours.bar, alpha=0.25, linewidth=0)
        axes.plot(ends, ends, ":", color=colours.grey, linewidth=1.5)
        pale = 0.7 if len(truth) <= MOST_OPAQUE else max(0.15, 0.7 * (MOST_OPAQUE / len(truth)) ** 0.5)
        axes.plot(truth, said, "o", color=colours.blue, markersize=4.5, alpha=pale, markeredgewidth=0)
        axes.set(xlim=ends, ylim=ends, aspect="equal")
        name = caption(evaluation.weights.class_names[0], 30)
        axes.set(xlabel=f"{name}: what is true", ylabel=f"{name}: what it said")
        axes.grid()
        axes.set_axisbelow(True)


def how_to_read_said_and_true(margin: float) -> str:
    """How to read the points, in words."""
    text = "A dot is a picture; on the dotted line what was said is true."
    return f"{text} In the band it is off by no more than {number_words(margin)}, the interval." if margin else text


def errors(evaluation: "Evaluation", to: IO[bytes] | None = None, dark: bool = False) -> None:
    """Draw how far off it is, and how that goes with the number itself."""
    from vitral.evaluation.figures import titled

    colours = theme(dark)
    truth, said, margin = of_number(evaluation)
    off = said - truth
    title, what = ("", "") if to else (titled(evaluation, "How far off"), HOW_TO_READ_ERRORS)
    with figure(to or evaluation.file("errors.png"), 5, 5.6, title, what, dark=dark) as canvas:
        above, below = canvas.subplots(2, 1, height_ratios=[1, 1])
        furthest = float(np.abs(off).max()) or 1.0
        above.hist(off, bins=np.linspace(-furthest, furthest, 32), color=colours.bar)
        above.axvline(0, color=colours.grey, linestyle=":", linewidth=1.5)
        for end in (-margin, margin) if margin else ():
            above.axvline(end, color=colours.ink, linestyle="--", linewidth=1)
        above.set(xlabel="said − true", ylabel="pictures")
        above.locator_params(axis="y", integer=True, nbins=4)
        _off_by_size(below, truth, off, colours)
        below.set(xlabel="what is true", ylabel="said − true")


HOW_TO_READ_ERRORS = (
    "Above: how many pictures are how far off; dashed: the interval. Below: the same for small and large numbers, the "
    "middle half of the pictures as a bar, their median as a line. A slope means that it stays near the mean."
)


def _off_by_size(
    axes: "Axes", truth: NDArray[np.float64], off: NDArray[np.float64], colours: Theme, most: int = PARTS
) -> None:
    """Bars from the first to the third quartile of the errors, in equal parts of the range of what is true."""
    edges = np.linspace(truth.min(), truth.max(), most + 1)
    inside = np.clip(np.digitize(truth, edges[1:-1]), 0, most - 1)
    wide = float(edges[1] - edges[0]) or 1.0
    axes.axhline(0, color=colours.grey, linestyle=":", linewidth=1.5)
    for part in np.unique(inside):
        low, middle, high = np.quantile(off[inside == part], [0.25, 0.5, 0.75])
        left = float(edges[part]) + 0.08 * wide
        axes.bar(left, high - low, width=0.84 * wide, bottom=low, align="edge", color=colours.bar)
        axes.plot([left, left + 0.84 * wide], [middle, middle], color=colours.ink, solid_capstyle="butt")
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def of_number(evaluation: "Evaluation") -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """What is true and what was said, (n,) each, and how far off a number is said to be at most; 0: nothing is."""
    margin = float(margins_of(evaluation.targets, evaluation.calibration)[0])
    return evaluation.labels[:, 0].astype(np.float64), evaluation.values[:, 0], margin
