"""Figures of embeddings: a map of all pictures, and the nearest ones to a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitral.look.figures import BLUE, GREEN, INK, LIGHT, ORANGE, RED, caption, figure
from vitral.look.sheets import Section, Tile, as_picture, write_sheet

MOST_PICTURES = 1_000  # on the map
MOST_COLOURS = 16  # classes that have a frame of their own; the largest ones
WIDTH, HEIGHT = 1_800, 1_300  # pixels
ROOM = 2.2  # cells per picture: more, and the groups stand out; less, and the pictures are larger
LARGEST, SMALLEST = 96, 24  # pixels per side

# Okabe and Ito's colours again. The second eight have the same colours in a frame that is cut, so that no two classes
# differ in shade alone; and the names on the map do without any colour.
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
    """Draw the pictures where their vectors lie on a plane, each in the nearest free cell; `count`: how many there are
    in all, of which these may be a part."""
    rows = np.sort(np.random.default_rng(0).permutation(len(places))[:MOST_PICTURES])
    labels, places = labels[rows], _stretch(places[rows])
    top_classes = np.argsort(-np.bincount(labels, minlength=len(class_names)), kind="stable")[:MOST_COLOURS]
    top_classes = np.sort(top_classes[np.isin(top_classes, labels)])
    mosaic, middles = _mosaic(places, labels, top_classes, images(rows))
    title, what = "What it sees as alike", _what(len(rows), count)
    with figure(path, WIDTH / 150 + 2.2, HEIGHT / 150 + 0.9, title, what) as canvas:
        axes = canvas.subplots()
        axes.imshow(mosaic, interpolation="antialiased")
        axes.axis("off")
        _name(axes, middles, labels, top_classes, class_names)
        _legend(axes, labels, top_classes, class_names)


def draw_nearest(path: Path, picture: Tile, nearest: Sequence[Tile]) -> None:
    """Write the sheet of a picture and of those that are most like it, the nearest first."""
    what = "By the angle between what the model sees in each: 1 is the same direction, 0 has nothing in common."
    write_sheet(
        path,
        "Nearest pictures",
        what,
        [Section("This picture", "", [[picture]]), Section("is most like", "", [[tile] for tile in nearest])],
    )


def tile(pixels: Images, above: str, below: str = "") -> Tile:  # (C, H, W)
    """A tile of a picture as the model sees it, with a line or two of text."""
    return Tile(as_picture(pixels), above, below)


def _what(part: int, count: int) -> str:
    some = f"{part:,} of {count:,} pictures" if part < count else f"{count:,} pictures"
    return (
        f"{some}, near each other where the model sees them as alike (t-SNE), each moved to the nearest free place. "
        "How far apart groups lie, and how large they are, means nothing."
    )


def _stretch(places: NDArray[Any]) -> NDArray[np.float64]:
    """The places scaled to 0 … 1 both ways. The farthest hundredth lie on the border, so that a stray picture leaves no
    large empty space."""
    low, high = np.quantile(places, [0.005, 0.995], axis=0)
    return np.clip((places - low) / np.maximum(high - low, 1e-9), 0, 1)


def _mosaic(
    places: NDArray[np.float64], labels: Ints, top_classes: Ints, pictures: Images
) -> tuple[Image.Image, NDArray[Any]]:
    """One image of all pictures on white, and the middle of each in it, (n, 2)."""
    side = int(np.clip(np.sqrt(WIDTH * HEIGHT / (ROOM * len(places))), SMALLEST, LARGEST))
    across, down = WIDTH // side, HEIGHT // side
    cells = _free_cells(places * (across - 1, down - 1), across, down)
    mosaic = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(mosaic)
    wide = max(3, side // 14)  # of a frame
    left_over = (WIDTH - across * side) // 2, (HEIGHT - down * side) // 2
    corners = cells * side + left_over
    for (left, top), label, pixels in zip(corners.tolist(), labels, pictures, strict=True):
        inner = side - 2 * wide - 2
        _frame(pen, left, top, side - 2, wide, int(label), top_classes)
        small = as_picture(pixels).convert("RGB")
        resampling = Image.Resampling.NEAREST if max(small.size) < inner else Image.Resampling.BICUBIC
        mosaic.paste(small.resize((inner, inner), resampling), (left + wide, top + wide))
    return mosaic, corners + side / 2


def _free_cells(places: NDArray[np.float64], across: int, down: int) -> Ints:  # (n, 2) → (n, 2)
    """A cell of its own for each place, so that the sum of squared distances to the places is least."""
    from scipy.optimize import linear_sum_assignment

    cells = np.stack(np.meshgrid(np.arange(across), np.arange(down)), axis=2).reshape(-1, 2)
    distances = ((places[:, None] - cells[None]) ** 2).sum(axis=2)  # (n, cells)
    _, numbers = linear_sum_assignment(distances)
    return cells[numbers]


def _frame(pen: ImageDraw.ImageDraw, left: int, top: int, side: int, wide: int, label: int, top_classes: Ints) -> None:
    ranks = np.flatnonzero(top_classes == label)
    rank = int(ranks[0]) if len(ranks) else -1
    colour = COLOURS[rank % len(COLOURS)] if rank >= 0 else REST
    right, bottom = left + side - 1, top + side - 1
    pen.rectangle((left, top, right, bottom), fill=colour)
    if rank >= len(COLOURS):  # cut in the middle of each side
        third = side // 3
        pen.rectangle((left + third, top, right - third, bottom), fill="white")
        pen.rectangle((left, top + third, right, bottom - third), fill="white")


def _name(axes: Any, middles: NDArray[Any], labels: Ints, top_classes: Ints, class_names: Sequence[str]) -> None:
    """Write the names of the classes, each in the middle of its pictures; where two would overlap, only the legend has
    the second."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=4, foreground=LIGHT.ground)]
    boxes: list[tuple[float, float, float]] = []  # across, down, half the width
    for label in top_classes:
        # The picture that is nearest to all others of its class: a mean could lie between two groups, in a third.
        own = middles[labels == label]
        across, down = own[np.abs(own[:, None] - own[None]).sum(axis=(1, 2)).argmin()]
        name = caption(class_names[label], 24)
        half = 9.0 * len(name)  # pixels, of letters in 11 points
        if any(abs(down - below) < 30 and abs(across - beside) < half + wide for beside, below, wide in boxes):
            continue
        boxes.append((across, down, half))
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 11, "fontweight": "bold"}
        axes.text(across, down, name, color=LIGHT.ink, path_effects=halo, **style)


def _legend(axes: Any, labels: Ints, top_classes: Ints, class_names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    marks = []
    for rank, label in enumerate(top_classes):
        colour, cut = COLOURS[rank % len(COLOURS)], rank >= len(COLOURS)
        name = f"{caption(class_names[label], 24)}  {int((labels == label).sum()):,}"
        style: dict[str, Any] = {"linestyle": (0, (2, 1.5)) if cut else "-", "linewidth": 2.5}
        marks.append(Patch(facecolor="white", edgecolor=colour, label=name, **style))
    if other := int((~np.isin(labels, top_classes)).sum()):
        classes = len(np.unique(labels)) - len(top_classes)
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
