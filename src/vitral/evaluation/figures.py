"""Figures of the training and the quality of a run, written into its folder as PNG.

With a file `to`, a figure is written there, and has no title: it is for the report, which has the title as text.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.data.config import Augment
from vitral.data.sources import SPLITS
from vitral.evaluation import target_figures
from vitral.evaluation.metrics import BINS, Metrics
from vitral.evaluation.target_figures import of_number
from vitral.evaluation.target_metrics import LabelsMetrics, LabelsOutcomes
from vitral.look.figures import GREEN, INK, RED, Theme, caption, draw_attention, figure, show_image, theme
from vitral.look.maps import as_attending
from vitral.look.readings import answer_by_head, class_attention
from vitral.predictions import number_words
from vitral.recipe import Points, Recipe, Reported
from vitral.run import Run
from vitral.targets import Target, TargetKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitral.evaluation.evaluate import Evaluation

MOST_NUMBERED = 40  # classes, up to which a confusion matrix has room for numbers
ROWS = 200  # classes, up to which all are drawn, one below the other
COLUMNS = 8  # pictures side by side
MOST_ROWS = 10  # pictures with their attention, one below the other


def draw(evaluation: "Evaluation") -> None:
    """Draw all figures of an evaluation. The curves belong to the run, and are drawn for its own evaluation only."""
    if evaluation.origin and evaluation.folder == evaluation.run.folder:
        curves(evaluation)
    for part in evaluation.parts:
        for one in FIGURES[part.targets[0].kind]:
            one(part)
    if evaluation.weights.model.attends:
        attention(evaluation)


def titled(evaluation: "Evaluation", title: str) -> str:
    """The title of a figure; of one of several tasks, with its name."""
    return f"{title}: {caption(evaluation.task, 40)}" if evaluation.task else title


def of_what(evaluation: "Evaluation") -> str:
    """The pictures of an evaluation, in words."""
    return "test pictures" if evaluation.own else "pictures"


def how_many(evaluation: "Evaluation") -> str:
    """The number of pictures in words: `360 test pictures`, `1 picture`."""
    words = of_what(evaluation)
    return f"{evaluation.pictures:,} {words if evaluation.pictures != 1 else words[:-1]}"


@dataclass(frozen=True)
class Panel:
    """A figure that is drawn epoch by epoch: its name in metrics.jsonl after the split, and whose it is."""

    name: str
    kind: TargetKind | None = None  # of the target that it measures; None: the loss
    task: str = ""

    @property
    def title(self) -> str:
        words = {None: "Loss", "class": "Accuracy", "labels": "Mean average precision", "number": "Mean absolute error"}
        return f"{words[self.kind]}: {caption(self.task, 30)}" if self.task else words[self.kind]

    @property
    def is_share(self) -> bool:
        return self.kind in ("class", "labels")

    def text(self, value: float) -> str:
        """A value as text."""
        if self.kind == "number":
            return number_words(value)
        return f"{value:.1%}" if self.is_share else f"{value:.3f}"


LOSS = Panel("loss")
CURVES: dict[TargetKind, str] = {"class": "accuracy", "labels": "map", "number": "mae"}  # what an epoch tells of each


def panels(evaluation: "Evaluation") -> list[Panel]:
    """The loss, and a figure of each target, as far as the objective told them after an epoch."""
    epochs = [line for line in evaluation.run.metrics if line["event"] == "epoch"]
    each = [
        Panel(f"{part.task}_{CURVES[kind]}" if part.task else CURVES[kind], kind, part.task)
        for part in evaluation.parts
        for kind in [part.targets[0].kind]
    ]
    return [LOSS, *(panel for panel in each if f"train_{panel.name}" in epochs[0])] if epochs else []


def curves(
    evaluation: "Evaluation", to: IO[bytes] | None = None, dark: bool = False, only: Panel | None = None
) -> None:
    """Draw the loss and the figures of the targets, epoch by epoch, and what others report; or `only` one of these."""
    epochs = [line for line in evaluation.run.metrics if line["event"] == "epoch"]
    if not epochs:
        return
    all_panels = panels(evaluation)
    shown = [only] if only else all_panels
    across = min(len(shown), 3)
    down = -(-len(shown) // across)
    title = "" if to else "Learning curves"
    where = to or evaluation.folder / "curves.png"
    subtitle = "" if to else how_to_read_curves(evaluation.run, evaluation.targets)
    # As many rows in all legends, so that the panels are as high as each other, in the report too.
    rows = max(_rows(epochs, panel, evaluation.run) for panel in all_panels)
    height = down * (4.3 + 0.2 * max(0, rows - 4))
    with figure(where, 4.6 * across, height, title, subtitle, dark=dark) as canvas:
        grid = canvas.subplots(down, across, squeeze=False).flat
        for axes, panel in zip(grid, shown, strict=False):
            _panel(axes, epochs, panel, evaluation.run, theme(dark))
            _legend(axes, rows)
        for axes in list(grid)[len(shown) :]:
            axes.axis("off")


def how_to_read_curves(run: Run, targets: Sequence[Target] = ()) -> str:
    """What to know of the learning curves, in words; "": nothing."""
    smoothable = not targets or any(target.kind != "number" for target in targets)
    has_test = any("test_loss" in line for line in run.metrics)
    reported = run.recipe.reported
    sentences = [
        _worse_in_training(run.recipe, smoothable),
        "The test curve chose nothing: neither the weights nor when to stop." if has_test else "",
        f"Hollow marks: what {caption(reported.who)} reports." if reported != Reported() else "",
    ]
    return " ".join(filter(None, sentences))


def _worse_in_training(recipe: Recipe, smoothable: bool) -> str:
    """Why the figures of the training pictures can be worse than those of the validation pictures; "": they cannot."""
    reasons = []
    if recipe.data.augment != Augment():
        reasons.append("are augmented")
    if recipe.train.label_smoothing and smoothable:
        reasons.append("have smoothed targets")
    return f"Training pictures {' and '.join(reasons)}, so their figures can be the worse ones." if reasons else ""


def _splits(epochs: list[dict[str, Any]], panel: Panel) -> list[str]:
    """The splits that were measured after some epoch."""
    return [split for split in SPLITS if any(f"{split}_{panel.name}" in line for line in epochs)]


def _reported(run: Run, panel: Panel) -> dict[str, Points]:
    """What others report of such a training, by split."""
    pairs: dict[str, Points] = {split: getattr(run.recipe.reported, f"{split}_{panel.name}", ()) for split in SPLITS}
    return {split: points for split, points in pairs.items() if points}


def _best(epochs: list[dict[str, Any]]) -> int | None:
    """The epoch of the least validation loss, where there are several."""
    if "validation_loss" not in epochs[0] or len(epochs) == 1:
        return None
    return int(min(epochs, key=lambda line: line["validation_loss"])["epoch"])


def _simple(run: Run, panel: Panel) -> tuple[str, float] | None:
    """A simple method to compare with, and its figure in validation."""
    simple = run.baseline
    if panel.kind is None or simple is None:
        return None
    each = [one for one in simple.targets if one.kind == panel.kind and panel.task in ("", one.name)]
    method, value = (each[0].method, each[0].validation) if each else (simple.method, simple.validation_accuracy)
    return None if value is None else (method.split(" on ")[0], value)


def _rows(epochs: list[dict[str, Any]], panel: Panel, run: Run) -> int:
    """Rows of a panel's legend."""
    others = (_best(epochs), _simple(run, panel))
    return len(_splits(epochs, panel)) + len(_reported(run, panel)) + sum(one is not None for one in others)


def _panel(axes: "Axes", epochs: list[dict[str, Any]], panel: Panel, run: Run, colours: Theme) -> None:
    from matplotlib.ticker import MaxNLocator

    x, reported = [line["epoch"] for line in epochs], _reported(run, panel)
    style: Any = {"train": (colours.orange, "--"), "validation": (colours.blue, "-"), "test": (colours.green, "-.")}
    for split in _splits(epochs, panel):
        points = {line["epoch"]: line[key] for line in epochs if (key := f"{split}_{panel.name}") in line}
        (colour, dashes), last = style[split], panel.text([*points.values()][-1])
        marker = "o" if len(points) == 1 else ""
        label = f"{split}, at the end {last}"
        axes.plot([*points], [*points.values()], dashes, color=colour, marker=marker, label=label, zorder=3)
    for split, pairs in reported.items():
        (epoch, value), who = pairs[-1], caption(run.recipe.reported.who, 28)
        shape: Any = {"marker": "o" if split == "test" else "s", "markersize": 4, "markerfacecolor": colours.ground}
        label = f"{who}, {split} {panel.text(value)} at epoch {epoch}"
        thin: Any = {"color": colours.purple, "linewidth": 1, "clip_on": False, "zorder": 4}
        axes.plot(*zip(*pairs, strict=True), ":", label=label, **shape, **thin)
    if best := _best(epochs):
        label = f"least validation loss: epoch {best} of {x[-1]}"
        axes.axvline(best, color=colours.grey, linewidth=1, alpha=0.7, label=label)
    if simple := _simple(run, panel):
        label = f"{simple[0]}, validation {panel.text(simple[1])}"
        axes.axhline(simple[1], color=colours.ink, linewidth=1.5, linestyle=":", label=label)
    axes.set(title=panel.title, xlabel="epoch")
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.margins(x=0.01)
    if len(x) == 1 and not reported:
        axes.set_xlim(x[0] - 0.5, x[0] + 0.5)
    if panel.is_share:
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_ylim(top=1.01)
    else:
        axes.set_ylim(0, 1.04 * axes.dataLim.ymax)


def _legend(axes: "Axes", rows: int) -> None:
    """A legend of so many rows below the axes, where no line passes."""
    from matplotlib.lines import Line2D

    handles, _ = axes.get_legend_handles_labels()
    empty = Line2D([], [], linestyle="none", label=" ")
    below: Any = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.2), "borderaxespad": 0}
    axes.legend(handles=[*handles, *[empty] * (rows - len(handles))], frameon=False, fontsize=9, **below)


def classes(evaluation: "Evaluation") -> None:
    """Draw the recall of each class."""
    rows, colours, words = list(evaluation.metrics.classes), theme(dark=False), of_what(evaluation)
    what = f"Share of each class's {words} recognised, with 95 % intervals; dotted: all, {evaluation.accuracy:.1%}."
    if len(rows) > ROWS:
        with_recall = [one for one in rows if one.recall]
        rows = sorted(with_recall, key=lambda one: one.recall.value if one.recall else 1.0)[:ROWS]
        what += f" The {ROWS} least recognised of {len(evaluation.metrics.classes):,} classes."
    size, row = (10, 0.34) if len(rows) <= MOST_NUMBERED else (8, 0.2)
    height = 1.3 + row * len(rows)
    with figure(evaluation.file("classes.png"), 7, height, titled(evaluation, "Class by class"), what) as canvas:
        axes = canvas.subplots()
        for at, one in enumerate(rows):
            if one.recall is None:
                axes.text(0.006, at, f"no {words}", va="center", fontsize=size - 1, color=colours.soft)
                continue
            share, low, high = one.recall.value, one.recall.low or 0.0, one.recall.high or 0.0
            # Rounding must not make a length negative.
            whiskers = [[max(0.0, share - low)], [max(0.0, high - share)]]
            axes.barh(at, share, color=colours.bar, height=0.66)
            axes.errorbar(share, at, xerr=whiskers, fmt="none", ecolor=colours.ink, elinewidth=1.2, capsize=2.5)
        counts = [f"{one.right:,} of {one.pictures:,}" if one.pictures else "" for one in rows]
        axes.set_yticks(range(len(rows)), [caption(one.name, 28) for one in rows], fontsize=size)
        for at, count in enumerate(counts):  # in a column of their own, between the names and the bars
            axes.annotate(
                count, (0, at), (-6, 0), textcoords="offset points", ha="right", va="center_baseline", fontsize=size
            )
        axes.tick_params(axis="y", length=0, pad=16 + 0.54 * size * max(map(len, counts)))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 1.005)
        axes.xaxis.set_major_formatter(lambda part, _: f"{part:.0%}")
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.axvline(evaluation.accuracy, color=colours.grey, linewidth=1, linestyle=":")


def confusion(evaluation: "Evaluation", to: IO[bytes] | None = None, dark: bool = False) -> None:
    """Draw the confusion matrix."""
    title = "" if to else titled(evaluation, "Confusion matrix")
    what = "" if to else how_to_read_confusion(len(evaluation.weights.class_names))
    labels = [caption(name, 22) for name in evaluation.weights.class_names]
    n = len(labels)
    cell = 0.5 if n <= 12 else 0.36 if n <= MOST_NUMBERED else max(0.14, 5.6 / n) if n <= 100 else 14 / n  # inches
    longest = 0.075 * max(map(len, labels))
    side = cell * n + 0.7 + longest
    where = to or evaluation.file("confusion.png")
    with figure(where, max(3.2, side), max(3.2, side) + 0.3 * bool(title), title, what, dark=dark) as canvas:
        _matrix(canvas.subplots(), evaluation.confusion, labels, cell, theme(dark))


def how_to_read_confusion(classes: int) -> str:
    """How to read the colours and numbers of a confusion matrix, in words."""
    colour = "Each row is one class; colour is the share of the row"
    return (
        f"{colour}, numbers are pictures; no number: none." if classes <= MOST_NUMBERED else f"{colour}: strong is all."
    )


def _matrix(axes: "Axes", matrix: NDArray[np.int64], labels: list[str], cell: float, colours: Theme) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    n = len(matrix)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    colour_map = LinearSegmentedColormap.from_list("shares", list(colours.shares))
    axes.imshow(shares, cmap=colour_map, vmin=0, vmax=1)
    size = 10 if n <= 12 else 7.5 if n <= MOST_NUMBERED else 7
    for row, column in zip(*np.nonzero(matrix), strict=True):
        if n > MOST_NUMBERED:
            break
        red, green, blue, _ = colour_map(shares[row, column])
        bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
        count = int(matrix[row, column])
        axes.text(
            column,
            row,
            f"{count}",
            ha="center",
            va="center",
            fontsize=size if count < 1_000 else 0.7 * size,
            color="#15181C" if bright else "#FFFFFF",
            fontweight="normal" if row == column else "bold",
        )
    # As many names as there is room for: a line of so many points needs a little more.
    every = int(np.ceil(size * 1.2 / 72 / cell))
    ticks = range(0, n, every)
    axes.set_xticks(ticks, labels[::every], rotation=90 if max(map(len, labels)) > 3 else 0, fontsize=size)
    axes.set_yticks(ticks, labels[::every], fontsize=size)
    axes.set_xlabel("what it said")
    axes.set_ylabel("what it was")
    axes.tick_params(length=0)
    if 12 < n <= 100:
        axes.set_xticks(np.arange(n + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(n + 1) - 0.5, minor=True)
        axes.grid(which="minor", linewidth=0.3)
        axes.tick_params(which="minor", length=0)


def reliability(evaluation: "Evaluation", to: IO[bytes] | None = None, dark: bool = False) -> None:
    """Draw the accuracy against the confidence, bin by bin."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    metrics, colours = evaluation.measured, theme(dark)
    assert isinstance(metrics, Metrics | LabelsMetrics)  # a number has no probability
    bins, has_labels = metrics.reliability, isinstance(metrics, LabelsMetrics)
    title = "" if to else titled(evaluation, "How sure, how right")
    is_right = "a label is there" if has_labels else "it is right"
    few = "pale dots are of fewer than 5" + ("." if has_labels else " pictures.")
    what = "" if to else f"On the dotted line {is_right} as often as it says; {few}"
    with figure(to or evaluation.file("reliability.png"), 5, 5.4, title, what, dark=dark) as canvas:
        above, below = canvas.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        sure, right = [one.confidence for one in bins], [one.accuracy.value for one in bins]
        low = [max(0.0, one.accuracy.value - (one.accuracy.low or 0.0)) for one in bins]
        high = [max(0.0, (one.accuracy.high or 0.0) - one.accuracy.value) for one in bins]
        above.plot([0, 1], [0, 1], ":", color=colours.grey, linewidth=1.5)
        for x, y, down, up, one in zip(sure, right, low, high, bins, strict=True):
            pale = 0.3 if one.pictures < 5 else 1.0
            above.errorbar(x, y, yerr=[[down], [up]], fmt="none", ecolor=colours.grey, elinewidth=1.2, alpha=pale)
            above.plot(x, y, "o", color=colours.blue, markersize=7, clip_on=False, zorder=3, alpha=pale)
        above.set(
            ylabel="how often the label is there" if has_labels else "how often it is right",
            xlim=(0, 1.01),
            ylim=(0, 1.02),
        )
        above.grid()
        places = [(min(int(one.confidence * BINS), BINS - 1) + 0.5) / BINS for one in bins]
        below.bar(places, [one.pictures for one in bins], width=0.9 / BINS, color=colours.bar)
        if has_labels:  # most of them are not there
            counts = [one.pictures for one in bins]
            first = math.floor(math.log10(min(counts)))
            tens = 10.0 ** np.arange(first, max(first + 1, math.ceil(math.log10(max(counts)))) + 1)
            below.set(yscale="log", ylim=(0.8 * tens[0], tens[-1]), yticks=tens)
            below.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
            below.yaxis.set_minor_formatter(NullFormatter())
        else:
            below.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        below.set(
            xlabel="the probability that it says" if has_labels else "how sure it says it is",
            ylabel="labels" if has_labels else "pictures",
        )
        for axis in (above.xaxis, above.yaxis):
            axis.set_major_formatter(lambda share, _: f"{share:.0%}")


def _certainty(evaluation: "Evaluation") -> NDArray[np.float64]:
    """(n,) how sure it was: the largest probability; of labels, how surprising they are, less so the surer it is where
    it is right, and more so the surer it is where it is wrong."""
    if evaluation.targets[0].kind == "class":
        return evaluation.probabilities.max(axis=1)
    losses = LabelsOutcomes(evaluation.labels > 0.5, evaluation.values, np.zeros(1)).losses
    return np.where(evaluation.right, -losses, losses)


def labels_of(evaluation: "Evaluation", row: int) -> dict[str, list[str]]:
    """The labels of a picture that were said rightly, those that were `missed`, and those said that are `false`."""
    truth, said = evaluation.labels[row] > 0.5, evaluation.said[row]
    names = evaluation.weights.class_names
    each = {"right": truth & said, "missed": truth & ~said, "false": said & ~truth}
    return {word: [names[place] for place in np.flatnonzero(some)] for word, some in each.items()}


def surest_mistakes(evaluation: "Evaluation", most: int) -> NDArray[np.int64]:
    """The rows of the most confident mistakes, the surest first; of a number, of those that are the farthest off."""
    if evaluation.targets[0].kind == "number":
        truth, said, _ = of_number(evaluation)
        return np.argsort(-np.abs(said - truth), kind="stable")[: min(most, len(truth) // 2)]
    confident, is_right = _certainty(evaluation), evaluation.right
    return np.flatnonzero(~is_right)[np.argsort(-confident[~is_right], kind="stable")][:most]


def some_right(evaluation: "Evaluation", most: int) -> NDArray[np.int64]:
    """The rows of right answers, evenly from the least to the most confident, so that doubtful ones are seen too; of a
    number, of the others, evenly from the nearest to the farthest off."""
    if evaluation.targets[0].kind == "number":
        truth, said, _ = of_number(evaluation)
        by_doubt = np.argsort(np.abs(said - truth), kind="stable")[
            : len(truth) - len(surest_mistakes(evaluation, most))
        ]
    else:
        confident, is_right = _certainty(evaluation), evaluation.right
        by_doubt = np.flatnonzero(is_right)[np.argsort(confident[is_right], kind="stable")]
    return by_doubt[np.linspace(0, len(by_doubt) - 1, min(most, len(by_doubt))).astype(int)]


def predictions(evaluation: "Evaluation") -> None:
    """Draw pictures with wrong answers, the most confident mistakes first, and some with right answers."""
    wrong, right = surest_mistakes(evaluation, 2 * COLUMNS), some_right(evaluation, 2 * COLUMNS)
    columns = max(5, min(COLUMNS, max(len(wrong), len(right))))
    wrong_rows, right_rows = -(-len(wrong) // columns), -(-len(right) // columns)
    rows = wrong_rows + right_rows
    height, width = evaluation.weights.preprocess.image_size
    tall = 0.55 + 1.1 * min(2.0, height / width)
    path, what = evaluation.file("predictions.png"), _predictions_text(evaluation, len(wrong), len(right))
    with figure(path, 1.15 * columns, 0.8 + tall * rows, titled(evaluation, "Predictions"), what) as canvas:
        grid = canvas.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.axis("off")
        _gallery(evaluation, grid.flat[: len(wrong)], wrong, RED)
        others = INK if evaluation.targets[0].kind == "number" else GREEN  # which has no right and wrong
        _gallery(evaluation, grid.flat[wrong_rows * columns :], right, others)


def _predictions_text(evaluation: "Evaluation", wrong: int, right: int) -> str:
    pictures = how_many(evaluation)
    if evaluation.targets[0].kind == "number":
        return (
            f"Of {pictures} the {wrong} farthest off (true → said). Below are others, from the nearest to the farthest."
        )
    arrow = " (true → said)" if evaluation.targets[0].kind == "class" else " (✓ said, − missed, + false)"
    all_wrong = int((~evaluation.right).sum())
    if not all_wrong:
        text = f"None of {pictures} is wrong."
    elif not right:
        text = f"Of {pictures} none is right{arrow}."
    else:
        text = f"{all_wrong:,} of {pictures} {'is' if all_wrong == 1 else 'are'} wrong{arrow}."
    if all_wrong > wrong:
        text += f" Here are the {wrong} of which it was surest."
    elif all_wrong > 1:
        text += " The surest come first."
    if not right:
        return text
    below = "Below are right ones" if all_wrong else "Here are some"
    return f"{text} {below}{', from the least sure to the surest' if right > 1 else ''}."


def _gallery(evaluation: "Evaluation", places: Any, rows: NDArray[np.int64], colour: str) -> None:
    words = {"class": _class_words, "labels": _labels_words, "number": _number_words}[evaluation.targets[0].kind]
    for axes, i in zip(places, rows, strict=False):
        axes.axis("on")
        show_image(axes, evaluation.images([i])[0])
        axes.set_title(words(evaluation, int(i)), fontsize=8, color=colour, loc="center")


def _class_words(evaluation: "Evaluation", i: int) -> str:
    names, predicted = evaluation.weights.class_names, evaluation.outputs.predicted
    answer, was = names[predicted[i]], names[evaluation.labels[i]]
    apart = " → " if len(was) + len(answer) <= 11 else "\n→ "
    text = f"{caption(answer, 14)} ✓" if answer == was else f"{caption(was, 14)}{apart}{caption(answer, 12)}"
    return f"{text}\n{evaluation.probabilities[i].max():.1%}"


def _labels_words(evaluation: "Evaluation", i: int) -> str:
    parts = labels_of(evaluation, i)
    words = {name: ", ".join(caption(one, 14) for one in some) for name, some in parts.items()}
    if not words["missed"] and not words["false"]:
        return "\n".join(textwrap.wrap(f"{words['right'] or 'no label'} ✓", 17)[:3])
    lines = [f"{mark} {words[name]}" for name, mark in (("right", "✓"), ("missed", "−"), ("false", "+")) if words[name]]
    return "\n".join(caption(line, 18) for line in lines)


def _number_words(evaluation: "Evaluation", i: int) -> str:
    truth, said, _ = of_number(evaluation)
    return f"{number_words(truth[i])} → {number_words(said[i])}"


def explained(evaluation: "Evaluation") -> NDArray[np.int64]:
    """(n,) the output that a map explains: the class that is answered, the most probable label, the number."""
    of_class = evaluation.targets[0].kind == "class"
    outputs: NDArray[np.int64] = evaluation.outputs.predicted if of_class else evaluation.values.argmax(axis=1)
    return outputs


def attention(evaluation: "Evaluation") -> None:
    """Draw the attention on one picture of each class or label; of a number, from small to large. At most MOST_ROWS."""
    for part in evaluation.parts:
        rows, outputs = _examples(part)
        model, preprocess = as_attending(part.weights.model), part.weights.preprocess
        pictures = part.images(rows)
        images = preprocess.normalise(torch.from_numpy(pictures)).to(next(model.parameters()))
        numbers = torch.tensor(outputs) + part.first
        is_number = part.targets[0].kind == "number"
        answer_maps = class_attention(model, images, numbers, of_number=is_number).cpu()  # (n, down, across)
        maps = answer_by_head(model, images, outputs=numbers)[:, 0].cpu()  # (n, heads, down, across)
        words = [_attention_words(part, row, output) for row, output in zip(rows, outputs, strict=True)]
        title = titled(part, "Where it looked")
        draw_attention(part.file("attention.png"), pictures, answer_maps.numpy(), maps.numpy(), words, title)


def _examples(evaluation: "Evaluation") -> tuple[list[int], list[int]]:
    """Rows of pictures to look at, and the output that is explained of each: the class that it answers, a label that
    the picture has, the number."""
    labels, kind = evaluation.labels, evaluation.targets[0].kind
    if kind == "number":
        by_size = np.argsort(labels[:, 0], kind="stable")
        rows = by_size[np.linspace(0, len(by_size) - 1, min(MOST_ROWS, len(by_size))).astype(int)].tolist()
        return rows, [0] * len(rows)
    if kind == "class":
        rows = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)[:MOST_ROWS]]
        return rows, evaluation.outputs.predicted[rows].tolist()
    outputs = np.flatnonzero((labels > 0.5).any(axis=0))[:MOST_ROWS].tolist()
    return [int(np.flatnonzero(labels[:, output] > 0.5)[0]) for output in outputs], outputs


def _attention_words(evaluation: "Evaluation", row: int, output: int) -> str:
    names, kind = evaluation.weights.class_names, evaluation.targets[0].kind
    if kind == "number":
        truth, said, _ = of_number(evaluation)
        return f"is {number_words(truth[row])},\nsays {number_words(said[row])}"
    if kind == "labels":
        return f"has {caption(names[output], 22)},\nsays {evaluation.values[row, output]:.1%}"
    return f"is {caption(names[evaluation.labels[row]], 22)},\nsays {caption(names[output], 22)}"


Draw = Callable[["Evaluation"], None]
FIGURES: dict[TargetKind, tuple[Draw, ...]] = {  # of each target
    "class": (classes, confusion, reliability, predictions),
    "labels": (target_figures.labels, target_figures.precision_recall, reliability, predictions),
    "number": (target_figures.said_and_true, target_figures.errors, predictions),
}
