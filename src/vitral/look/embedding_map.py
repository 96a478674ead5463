"""Vectors of pictures as pictures: a map of them all, and the nearest to one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitral.look.figures import BLUE, GREEN, INK, LIGHT, ORANGE, RED, caption, figure
from vitral.look.sheets import Section, Tile, as_picture, write_sheet

SHOWN = 1_000  # pictures, at most
COLOURED = 16  # classes that have a frame of their own; the largest ones
WIDTH, HEIGHT = 1_800, 1_300  # pixels
ROOM = 2.2  # cells a picture: more, and the groups stand out; less, and the pictures are larger
LARGEST, SMALLEST = 96, 24  # pixels a side

# Okabe and Ito's colours again. The second eight have the same colours in a frame that is cut, so that no two classes
# are told apart by shades; and the names on the map tell them without any colour.
COLOURS = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", INK, "#F0E442")
REST = "#C9CED6"

Images = NDArray[np.uint8]
Ints = NDArray[np.int64]


def draw_map(
    path: Path,
    places: NDArray[Any],  # (n, 2)
    labels: Ints,  # (n,)
    class_names: Sequence[str],
    images: Callable[[Ints], Images],  # rows → (rows, C, H, W)
    count: int,
) -> None:
    """The pictures where their vectors lie on a plane, each moved to the nearest free cell; `count`: how many there are
    in all."""
    shown = np.sort(np.random.default_rng(0).permutation(len(places))[:SHOWN])
    labels, places = labels[shown], _stretched(places[shown])
    ranked = np.argsort(-np.bincount(labels, minlength=len(class_names)), kind="stable")[:COLOURED]
    ranked = np.sort(ranked[np.isin(ranked, labels)])
    canvas, middles = _canvas(places, labels, ranked, images(shown))
    title, what = "What it sees as alike", _what(len(shown), count)
    with figure(path, WIDTH / 150 + 2.2, HEIGHT / 150 + 0.9, title, what) as drawn:
        axes = drawn.subplots()
        axes.imshow(canvas, interpolation="antialiased")
        axes.axis("off")
        _name(axes, middles, labels, ranked, class_names)
        _legend(axes, labels, ranked, class_names)


def draw_nearest(path: Path, picture: Tile, nearest: Sequence[Tile]) -> None:
    """A picture, and those that are most like it."""
    what = "By the angle between what the model sees in each: 1 is the same direction, 0 has nothing in common."
    write_sheet(
        path,
        "Nearest pictures",
        what,
        [Section("This picture", "", [[picture]]), Section("is most like", "", [[tile] for tile in nearest])],
    )


def tile(pixels: Images, above: str, below: str = "") -> Tile:  # (C, H, W)
    """A picture as the model sees it, with a line or two."""
    return Tile(as_picture(pixels), above, below)


def _what(shown: int, count: int) -> str:
    some = f"{shown:,} of {count:,} pictures" if shown < count else f"{count:,} pictures"
    return (
        f"{some}, near each other where the model sees them as alike (t-SNE), each moved to the nearest free place. "
        "How far apart groups lie, and how large they are, means nothing."
    )


def _stretched(places: NDArray[Any]) -> NDArray[np.float64]:
    """From 0 to 1 both ways; the farthest hundredth lie on the border, so that a stray picture makes no empty sea."""
    low, high = np.quantile(places, [0.005, 0.995], axis=0)
    return np.clip((places - low) / np.maximum(high - low, 1e-9), 0, 1)


def _canvas(
    places: NDArray[np.float64], labels: Ints, ranked: Ints, pictures: Images
) -> tuple[Image.Image, NDArray[Any]]:
    """The pictures on white, and where the middle of each is, (n, 2)."""
    side = int(np.clip(np.sqrt(WIDTH * HEIGHT / (ROOM * len(places))), SMALLEST, LARGEST))
    across, down = WIDTH // side, HEIGHT // side
    cells = _free_cells(places * (across - 1, down - 1), across, down)
    canvas = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(canvas)
    wide = max(3, side // 14)  # of a frame
    left_over = (WIDTH - across * side) // 2, (HEIGHT - down * side) // 2
    corners = cells * side + left_over
    for (left, top), label, pixels in zip(corners.tolist(), labels, pictures, strict=True):
        inner = side - 2 * wide - 2
        _frame(pen, left, top, side - 2, wide, int(label), ranked)
        small = as_picture(pixels).convert("RGB")
        resampling = Image.Resampling.NEAREST if max(small.size) < inner else Image.Resampling.BICUBIC
        canvas.paste(small.resize((inner, inner), resampling), (left + wide, top + wide))
    return canvas, corners + side / 2


def _free_cells(wanted: NDArray[np.float64], across: int, down: int) -> Ints:  # (n, 2) → (n, 2)
    """A cell for each, so that they are moved as little as possible in all."""
    from scipy.optimize import linear_sum_assignment

    cells = np.stack(np.meshgrid(np.arange(across), np.arange(down)), axis=2).reshape(-1, 2)
    moved = ((wanted[:, None] - cells[None]) ** 2).sum(axis=2)  # (n, cells)
    _, chosen = linear_sum_assignment(moved)
    return cells[chosen]


def _frame(pen: ImageDraw.ImageDraw, left: int, top: int, side: int, wide: int, label: int, ranked: Ints) -> None:
    found = np.flatnonzero(ranked == label)
    rank = int(found[0]) if len(found) else -1
    colour = COLOURS[rank % len(COLOURS)] if rank >= 0 else REST
    right, bottom = left + side - 1, top + side - 1
    pen.rectangle((left, top, right, bottom), fill=colour)
    if rank >= len(COLOURS):  # cut in the middle of each side
        third = side // 3
        pen.rectangle((left + third, top, right - third, bottom), fill="white")
        pen.rectangle((left, top + third, right, bottom - third), fill="white")


def _name(axes: Any, middles: NDArray[Any], labels: Ints, ranked: Ints, class_names: Sequence[str]) -> None:
    """The names of the classes, each in the middle of its pictures; where two would overlap, the legend has them."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=4, foreground=LIGHT.ground)]
    written: list[tuple[float, float, float]] = []  # across, down, half the width
    for label in ranked:
        # The picture that is nearest to all others of its class: a mean could lie between two groups, in a third.
        own = middles[labels == label]
        across, down = own[np.abs(own[:, None] - own[None]).sum(axis=(1, 2)).argmin()]
        name = caption(class_names[label], 24)
        half = 9.0 * len(name)  # pixels, of letters in 11 points
        if any(abs(down - below) < 30 and abs(across - beside) < half + wide for beside, below, wide in written):
            continue
        written.append((across, down, half))
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 11, "fontweight": "bold"}
        axes.text(across, down, name, color=LIGHT.ink, path_effects=halo, **style)


def _legend(axes: Any, labels: Ints, ranked: Ints, class_names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    marks = []
    for rank, label in enumerate(ranked):
        colour, cut = COLOURS[rank % len(COLOURS)], rank >= len(COLOURS)
        name = f"{caption(class_names[label], 24)}  {int((labels == label).sum()):,}"
        style: dict[str, Any] = {"linestyle": (0, (2, 1.5)) if cut else "-", "linewidth": 2.5}
        marks.append(Patch(facecolor="white", edgecolor=colour, label=name, **style))
    if other := int((~np.isin(labels, ranked)).sum()):
        classes = len(np.unique(labels)) - len(ranked)
        marks.append(
            Patch(facecolor="white", edgecolor=REST, linewidth=2.5, label=f"{classes:,} other classes  {other:,}")
        )
    axes.legend(
        handles=marks,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        handlelength=1.4,
        handleheight=1.4,
        labelspacing=0.7,
        borderaxespad=0,
    )
