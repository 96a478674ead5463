"""Overlay a map on its picture, and draw the figure that `vitral look` writes for a picture."""

import textwrap
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral.look.explain import MEANINGS, Explanation
from vitral.look.figures import LIGHT, MAP, brightest, caption, figure, show_image
from vitral.look.readings import top_mass
from vitral.predictions import LabelsPrediction, NumberPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

LEAST = 384  # pixels of the shorter side, so that a map is smooth over a picture of 8 × 8 too
HALF = 0.5  # of a map: what is outlined
COLUMNS = 8  # maps of heads side by side
WIDE = 12.4  # inches

Pixels = NDArray[np.uint8]
Map = NDArray[np.float32]  # (down, across)


def overlay_map(picture: Pixels, map: Map) -> Image.Image:  # (C, H, W)
    """The picture in grey, coloured by its map, which is smoothed between the centres of the patches; bright is much,
    on a scale of the map's own."""
    from matplotlib import colormaps

    grey = in_grey(picture)
    smooth = np.asarray(Image.fromarray(map.astype(np.float32)).resize(grey.size, Image.Resampling.BICUBIC))
    shares = np.clip(smooth / brightest(map), 0, 1)  # bicubic curves swing a little below 0
    colours = colormaps[MAP](shares)[:, :, :3]
    light = np.asarray(grey, np.float32)[:, :, None] / 255
    # What is bright in the picture stays brighter than what is dark, under every colour.
    mixed = colours * (0.6 + 0.4 * light) + 0.15 * light
    return Image.fromarray((255 * np.clip(mixed, 0, 1)).round().astype(np.uint8))


def in_grey(picture: Pixels) -> Image.Image:  # (C, H, W)
    """The picture in grey, enlarged to at least LEAST pixels; of bands, the first."""
    pixels = picture.transpose(1, 2, 0)
    grey = (
        Image.fromarray(np.ascontiguousarray(pixels)).convert("L") if len(picture) == 3 else Image.fromarray(picture[0])
    )
    times = -(-LEAST // min(grey.size))
    return grey.resize((times * grey.width, times * grey.height), Image.Resampling.NEAREST) if times > 1 else grey


def outline(map: Map, mass: float = HALF) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The edges, in patches across and down, around the fewest patches that hold this share of a map.

    >>> len(outline(np.array([[9, 0], [0, 0]], np.float32)))
    4
    """
    mask = top_mass(torch.from_numpy(map).flatten(), mass).view(map.shape).numpy()
    padded = np.pad(mask, 1)
    upright = zip(*np.nonzero(padded[1:-1, 1:] != padded[1:-1, :-1]), strict=True)  # between left and right
    level = zip(*np.nonzero(padded[1:, 1:-1] != padded[:-1, 1:-1]), strict=True)  # between above and below
    return [((x, y), (x, y + 1)) for y, x in upright] + [((x, y), (x + 1, y)) for y, x in level]


def draw_explanation(to: Path | IO[bytes], explanation: Explanation, model: str) -> None:
    """Draw the figure of an explanation: the picture in its patches, the map, the answer, the grade; below, other maps.

    `model` is the name of the model.
    """
    down, across = explanation.map.shape
    rows = _rows(explanation)
    columns = max(5, *(len(row) for row in rows))
    # Inches: as high as the pictures are when they fill their columns.
    tall = min(2.0, down / across)
    above, below = max(4.4, 4.1 * tall + 0.35), (WIDE / columns * tall + 0.22) * len(rows) + 0.5
    with figure(
        to, WIDE, 0.75 + above + below, caption(explanation.says or "Where it looked", 90), _what(explanation, model)
    ) as canvas:
        canvas.get_layout_engine().set(w_pad=0.1)  # type: ignore[union-attr, call-arg]
        top, bottom = canvas.subfigures(2, 1, squeeze=False, height_ratios=[above, below])[:, 0]
        _above(top, explanation)
        _below(bottom, explanation, rows, columns)


def _what(explanation: Explanation, model: str) -> str:
    down, across = explanation.map.shape
    name, side = caption(Path(explanation.name).name, 60), explanation.patch_size
    return (
        f"{name}, as {caption(model, 40)} sees it: {down} × {across} patches of {side} × {side} pixels. "
        f"{explanation.verdict}"
    )


def _above(top: "SubFigure", explanation: Explanation) -> None:
    left, middle, right = top.subfigures(
        1, 3, squeeze=False, width_ratios=[1, 1, 0.95 if explanation.prediction else 1], wspace=0.02
    )[0]
    picture_axes = left.subplots()
    show_image(picture_axes, explanation.picture)
    picture_axes.set_anchor("N")
    _grid(picture_axes, explanation, 0.6)
    picture_axes.set_title("What it sees, patch by patch")
    map_axes = middle.subplots()
    _show_overlay(map_axes, explanation.picture, explanation.map)
    map_axes.set_anchor("N")
    _grid(map_axes, explanation, 0.12)
    _outline(map_axes, explanation)
    map_axes.set_title(f"Where it looked: {explanation.method}")
    if not explanation.prediction:
        name, map = next((name, map) for name, map in explanation.maps.items() if name != explanation.method)
        other_axes = right.subplots()
        _show_overlay(other_axes, explanation.picture, map)
        other_axes.set_anchor("N")
        other_axes.set_title(f"The same by {name}")
        return
    if explanation.grade is None:
        _answers(right.subplots(), explanation)
        return
    bars, chart = right.subplots(2, 1, height_ratios=[1.15, 1])
    _answers(bars, explanation)
    _deletion(chart, explanation)


def _answers(axes: "Axes", explanation: Explanation) -> None:
    """Draw the answers as bars, the most probable first; names stand above their bars, so that long ones have room."""
    axes.axis("off")
    axes.set_title(f"What it says: {caption(explanation.task, 24)}" if explanation.task else "What it says")
    if isinstance(explanation.prediction, NumberPrediction):
        number, interval = explanation.prediction.words(1)
        axes.text(0, 0.6, number, va="center", fontsize=26, fontweight="bold", color=LIGHT.ink)
        axes.text(0, 1.6, interval.strip(), va="center", fontsize=9.5, color=LIGHT.soft)
        axes.set(xlim=(0, 1), ylim=(2.55, -0.4))
        return
    said, thresholds = {explanation.answers[0][0]}, dict[str, float]()
    if isinstance(explanation.prediction, LabelsPrediction):
        said = set(explanation.prediction.labels)
        names = (name for name, _ in explanation.prediction.probabilities)
        thresholds = dict(zip(names, explanation.prediction.thresholds, strict=True))
    for row, (label, share) in enumerate(explanation.answers):
        bold: Any = {"fontweight": "bold"} if label in said else {}
        axes.barh(row + 0.32, 1, height=0.18, color=LIGHT.grid)
        axes.barh(row + 0.32, share, height=0.18, color=LIGHT.blue if label in said else LIGHT.bar)
        if label in thresholds:
            axes.plot([thresholds[label]] * 2, [row + 0.2, row + 0.44], color=LIGHT.ink, linewidth=1.4)
        name = f"{caption(label, 26)} (explained)" if label == explanation.explained else caption(label, 34)
        axes.text(0, row, name, va="center", fontsize=9.5, **bold)
        axes.text(1, row, f"{share:.1%}", va="center", ha="right", fontsize=9.5, **bold)
    axes.set_xlim(0, 1)
    axes.set_ylim(max(len(explanation.answers), 3) - 0.45, -0.4)


def _deletion(axes: "Axes", explanation: Explanation) -> None:
    """Plot how the probability falls while patches are left out: in the order of the map, and in random ones."""
    assert explanation.grade is not None
    grade = explanation.grade
    left_out = (1 - grade.shares_kept).numpy()
    style: Any = {"color": LIGHT.blue if grade.better else LIGHT.red, "linewidth": 2.4, "zorder": 3}
    axes.plot(left_out, grade.curves[0].numpy(), label=f"this map: {grade.deletion:.0%} on average", **style)
    for number, row in enumerate(grade.curves[2:].numpy()):
        label = f"{len(grade.random)} random maps: {grade.random_deletion:.0%} on average" if number == 0 else None
        axes.plot(left_out, row, color=LIGHT.grey, linewidth=0.9, alpha=0.75, label=label)
    if grade.untrained is not None:
        axes.plot([], [], " ", label=f"its map with random weights: {grade.untrained:.0%}")
    axes.set_title(grade.verdict, color=LIGHT.ink if grade.better else LIGHT.red)
    axes.set(ylim=(0, 1.02), xlim=(0, 1))
    how = "painted over" if grade.painted else "left out"
    axes.set_xlabel(f"patches {how}, those it marks most first", fontsize=9)
    axes.set_ylabel("answer", fontsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_yticks([0, 0.5, 1])
    axes.tick_params(labelsize=8.5)
    axes.grid(axis="y")
    # Below the axes, where no line passes.
    below: Any = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.4), "borderaxespad": 0}
    axes.legend(frameon=False, fontsize=8.5, handlelength=1.4, labelspacing=0.3, **below)


def _rows(explanation: Explanation) -> list[list[tuple[str, Map]]]:
    """The small maps below, row by row: the other methods, then each block's heads; of one block all in one row."""
    others = []
    if explanation.prediction:
        others = [(name, map) for name, map in explanation.maps.items() if name != explanation.method]
    rows = [others] if len(explanation.heads) > 1 and others else []
    for block, heads in explanation.heads.items():
        tiles = [(f"block {block}, head {number}", map) for number, map in enumerate(heads)]
        tiles = tiles if rows else [*others, *tiles]
        rows += [tiles[start : start + COLUMNS] for start in range(0, len(tiles), COLUMNS)]
    return rows


def _below(bottom: "SubFigure", explanation: Explanation, rows: list[list[tuple[str, Map]]], columns: int) -> None:
    grid = bottom.subplots(len(rows), columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for places, row in zip(grid, rows, strict=True):
        for axes, (name, map) in zip(places, row, strict=False):
            _show_overlay(axes, explanation.picture, map)
            axes.set_title(name, fontsize=9, fontweight="normal")
    legend = (
        f"{explanation.method}: {MEANINGS[explanation.method]}. Bright is much; each map has a scale of its own and is "
        "smoothed between the centres of the patches. White outline: the fewest patches that hold half of the map. "
        "Blocks and heads are counted from 0."
    )
    style: Any = {"ha": "left", "fontsize": 9, "color": LIGHT.soft, "linespacing": 1.3}
    bottom.supxlabel("\n".join(textwrap.wrap(legend, int(14.5 * WIDE))), x=0.01, **style)


def _show_overlay(axes: "Axes", picture: Pixels, map: Map) -> None:
    """Show a map over its picture, in the coordinates of the picture."""
    height, width = picture.shape[1:]
    axes.imshow(overlay_map(picture, map), extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="antialiased")
    axes.axis("off")


def _grid(axes: "Axes", explanation: Explanation, alpha: float) -> None:
    """Draw the borders of the patches: white on dark, so that they are seen on every picture."""
    (down, across), (height, width) = explanation.map.shape, explanation.picture.shape[1:]
    for colour, wide in (("#000000", 1.4), ("#FFFFFF", 0.6)):
        style: Any = {"color": colour, "alpha": alpha, "linewidth": wide}
        for row in range(1, down):
            axes.axhline(row * height / down - 0.5, **style)
        for column in range(1, across):
            axes.axvline(column * width / across - 0.5, **style)


def _outline(axes: "Axes", explanation: Explanation) -> None:
    """Draw the outline of the patches that hold half of the map."""
    from matplotlib.collections import LineCollection

    (down, across), (height, width) = explanation.map.shape, explanation.picture.shape[1:]
    step = np.array([width / across, height / down])
    edges = [np.array(edge) * step - 0.5 for edge in outline(explanation.map)]
    axes.add_collection(LineCollection(edges, colors="#FFFFFF", linewidths=1.3, capstyle="round"))
