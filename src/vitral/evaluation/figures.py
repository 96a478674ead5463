"""Pictures of how a run went and how good it is, written into its folder as PNG."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.look.figures import BLUE, GREEN, GREY, ORANGE, RED, figure, show_image, where_it_looked
from vitral.look.maps import attention_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vitral.evaluation.evaluate import Evaluation


def draw(evaluation: "Evaluation") -> None:
    """All of them."""
    curves(evaluation)
    classes(evaluation)
    confusion(evaluation)
    predictions(evaluation)
    attention(evaluation)


def curves(evaluation: "Evaluation") -> None:
    """Loss and accuracy, epoch by epoch."""
    epochs = [line for line in evaluation.run.metrics if line["event"] == "epoch"]
    if not epochs:
        return
    what = "Training pictures are augmented and their targets smoothed, so their figures can be the worse ones."
    with figure(evaluation.run.folder / "curves.png", 9, 4, "Learning curves", what) as drawn:
        for axes, name in zip(drawn.subplots(1, 2), ("loss", "accuracy"), strict=True):
            for split, colour, dashes in (("train", ORANGE, "--"), ("validation", BLUE, "-")):
                if f"{split}_{name}" in epochs[0]:
                    _curve(axes, epochs, f"{split}_{name}", colour, dashes)
            axes.set(title=name.capitalize(), xlabel="epoch")
            axes.grid(axis="y")
            axes.margins(x=0.01)
            if name == "accuracy":
                axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
                axes.set_ylim(top=1.0)
            axes.legend(frameon=False, loc="best")


def _curve(axes: "Axes", epochs: list[dict[str, Any]], name: str, colour: str, dashes: str) -> None:
    x, y = [line["epoch"] for line in epochs], [line[name] for line in epochs]
    last = f"{y[-1]:.1%}" if name.endswith("accuracy") else f"{y[-1]:.3f}"
    marker = "o" if len(x) == 1 else ""
    axes.plot(x, y, dashes, color=colour, marker=marker, label=f"{name.split('_')[0]}, at the end {last}")


def classes(evaluation: "Evaluation") -> None:
    """How many pictures of each class were recognised."""
    from scipy.stats import binomtest

    names, matrix = evaluation.weights.class_names, evaluation.confusion
    right, count = np.diag(matrix), matrix.sum(axis=1)
    shown = [i for i in range(len(names)) if count[i]]
    low_high = np.array(
        [binomtest(int(right[i]), int(count[i])).proportion_ci(method="wilson") for i in shown], dtype=float
    )
    share = right[shown] / count[shown]
    what = (
        f"Share of each class's test pictures recognised, with 95 % intervals; dotted: all, {evaluation.accuracy:.1%}."
    )
    with figure(evaluation.run.folder / "classes.png", 7, 1.3 + 0.34 * len(shown), "Class by class", what) as drawn:
        axes = drawn.subplots()
        rows = np.arange(len(shown))
        # From the bar's end to the ends of the interval; rounding must not make a length negative.
        whiskers = np.abs(np.stack([share - low_high[:, 0], low_high[:, 1] - share]))
        axes.barh(rows, share, color="#80B8D8", height=0.66)
        axes.errorbar(share, rows, xerr=whiskers, fmt="none", ecolor="#22262B", elinewidth=1.2, capsize=3)
        axes.set_yticks(rows, [f"{names[i]}   {right[i]} of {count[i]}" for i in shown])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.005)
        axes.xaxis.set_major_formatter(lambda part, _: f"{part:.0%}")
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.axvline(evaluation.accuracy, color=GREY, linewidth=1, linestyle=":")


def confusion(evaluation: "Evaluation") -> None:
    """What was taken for what."""
    names, matrix = evaluation.weights.class_names, evaluation.confusion
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = 1.8 + 0.45 * len(names)
    with figure(
        evaluation.run.folder / "confusion.png",
        side + 0.6,
        side + 0.5,
        "Confusion matrix",
        "Test pictures; each row is one class.",
    ) as drawn:
        axes = drawn.subplots()
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for row, column in zip(*np.nonzero(matrix), strict=True):
            axes.text(
                column,
                row,
                str(matrix[row, column]),
                ha="center",
                va="center",
                color="white" if share[row, column] > 0.5 else RED,
                fontweight="normal" if row == column else "bold",
            )
        axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="what it said", ylabel="what it was")
        axes.tick_params(length=0)


def predictions(evaluation: "Evaluation") -> None:
    """Pictures that it got wrong, the most confident mistakes first, and some that it got right."""
    columns = 8
    confident, is_right = evaluation.probabilities.max(axis=1), evaluation.right
    wrong = np.flatnonzero(~is_right)[np.argsort(-confident[~is_right], kind="stable")][: 2 * columns]
    # Evenly from the least to the most confident, so that the doubtful ones are seen too.
    by_doubt = np.flatnonzero(is_right)[np.argsort(confident[is_right], kind="stable")]
    right = by_doubt[np.linspace(0, len(by_doubt) - 1, min(2 * columns, len(by_doubt))).astype(int)]
    rows = -(-len(wrong) // columns) + -(-len(right) // columns)
    what = (
        f"{(~is_right).sum()} of {evaluation.pictures} test pictures are wrong (true → said), the surest first; "
        "below, right ones, the least sure first."
    )
    with figure(
        evaluation.run.folder / "predictions.png", 1.15 * columns, 0.9 + 1.55 * max(rows, 1), "Predictions", what
    ) as drawn:
        grid = drawn.subplots(max(rows, 1), columns, squeeze=False)
        for axes in grid.flat:
            axes.axis("off")
        _gallery(evaluation, grid.flat[: len(wrong)], wrong, RED)
        _gallery(evaluation, grid.flat[-(-len(wrong) // columns) * columns :], right, GREEN)


def _gallery(evaluation: "Evaluation", places: Any, chosen: NDArray[np.int64], colour: str) -> None:
    names, answers = evaluation.weights.class_names, evaluation.answers
    for axes, i in zip(places, chosen, strict=False):
        axes.axis("on")
        show_image(axes, evaluation.images([i])[0])
        said, was = names[answers.predicted[i]], names[int(answers.labels[i])]
        sure = f"{evaluation.probabilities[i].max():.0%}"
        text = f"{_short(said, 12)} ✓\n{sure}" if said == was else f"{_short(was, 7)} → {_short(said, 7)}\n{sure}"
        axes.set_title(text, fontsize=9, color=colour, loc="center")


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def attention(evaluation: "Evaluation", most: int = 10) -> None:
    """Where it looked: one test picture of each class, as far as there is room."""
    labels = evaluation.answers.labels.numpy()
    chosen = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)[:most]]
    model, preprocess = evaluation.weights.model, evaluation.weights.preprocess
    pictures = evaluation.images(chosen)
    extra = model.config.extra
    maps = attention_map(model, preprocess.normalise(torch.from_numpy(pictures)))[..., extra:]  # (n, heads, T, patches)
    # What the token that is read out took from each patch; where that is the mean of the patches, the mean of theirs.
    maps = maps[:, :, extra:].mean(dim=2) if model.config.pool.kind == "mean" else maps[:, :, 0]
    names, predicted = evaluation.weights.class_names, evaluation.answers.predicted
    captions = [f"is {names[labels[i]]},\nsays {names[predicted[i]]}" for i in chosen]
    grid = maps.unflatten(2, model.config.grid).numpy()
    where_it_looked(evaluation.run.folder / "attention.png", pictures, grid, captions)
