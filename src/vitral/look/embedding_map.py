"""Figures of embeddings: a map of all pictures, and the nearest ones to a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitral.look.figures import BLUE, GREEN, INK, LIGHT, MAP, ORANGE, RED, caption, figure
from vitral.look.sheets import Section, Tile, as_picture, write_sheet
from vitral.targets import Target

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
    target: Target,
    outputs: NDArray[Any],  # (n, outputs of the target): 0 or 1, or the number
    images: Callable[[Ints], Images],  # rows → (rows, C, H, W)
    count: int,
) -> None:
    """Draw the pictures where their vectors lie on a plane, each in the nearest free cell, in a frame that says what
    is known of it; `count`: how many there are in all, of which these may be a part."""
    rows = np.sort(np.random.default_rng(0).permutation(len(places))[:MOST_PICTURES])
    places, outputs = _stretch(places[rows]), outputs[rows]
    key = Scale(target.name, outputs[:, 0]) if target.kind == "number" else Names(target, outputs > 0)
    mosaic, middles = _mosaic(places, key, images(rows))
    title, what = "What it sees as alike", f"{_what(len(rows), count)}{key.what}"
    with figure(path, WIDTH / 150 + 2.2, HEIGHT / 150 + 0.9, title, what) as canvas:
        axes = canvas.subplots()
        axes.imshow(mosaic, interpolation="antialiased")
        axes.axis("off")
        key.explain(axes, middles)


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


def _mosaic(places: NDArray[np.float64], key: "Names | Scale", pictures: Images) -> tuple[Image.Image, NDArray[Any]]:
    """One image of all pictures on white, and the middle of each in it, (n, 2)."""
    side = int(np.clip(np.sqrt(WIDTH * HEIGHT / (ROOM * len(places))), SMALLEST, LARGEST))
    across, down = WIDTH // side, HEIGHT // side
    cells = _free_cells(places * (across - 1, down - 1), across, down)
    mosaic = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(mosaic)
    wide = max(3, side // key.thin)  # of a frame
    left_over = (WIDTH - across * side) // 2, (HEIGHT - down * side) // 2
    corners = cells * side + left_over
    for row, ((left, top), pixels) in enumerate(zip(corners.tolist(), pictures, strict=True)):
        inner = side - 2 * wide - 2
        key.frame(pen, left, top, side - 2, row)
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


class Names:
    """Frames in the colours of classes, or of labels: with several, a frame has a stripe of each."""

    def __init__(self, target: Target, has: NDArray[np.bool_]) -> None:  # (n, names)
        self.names, self.has = target.names, has
        counts, self.several = has.sum(axis=0), target.kind == "labels"
        self.thin = 7 if self.several else 14  # how much narrower a frame is than its picture: stripes need room
        most = len(COLOURS) if self.several else MOST_COLOURS  # a frame that is cut has no room for stripes
        top = np.argsort(-counts, kind="stable")[:most]
        self.top = np.sort(top[counts[top] > 0])
        self.what = " Each frame has the colours of the picture's labels." if self.several else ""

    def frame(self, pen: ImageDraw.ImageDraw, left: int, top: int, side: int, row: int) -> None:
        """Draw the ground of a picture, of which its frame stays in sight."""
        ranks = np.flatnonzero(self.has[row, self.top]).tolist()
        right, bottom = left + side - 1, top + side - 1
        pen.rectangle((left, top, right, bottom), fill=REST)
        for place, rank in enumerate(ranks):
            begin, end = (side * edge // len(ranks) for edge in (place, place + 1))
            pen.rectangle((left + begin, top, left + end - 1, bottom), fill=COLOURS[rank % len(COLOURS)])
            if rank >= len(COLOURS):  # cut in the middle of each side
                third = side // 3
                pen.rectangle((left + third, top, right - third, bottom), fill="white")
                pen.rectangle((left, top + third, right, bottom - third), fill="white")

    def explain(self, axes: Any, middles: NDArray[Any]) -> None:
        """Write the names beside the pictures, whose middles are (n, 2); of classes also among them."""
        if not self.several:  # labels lie one over the other
            self._write(axes, middles)
        self._legend(axes)

    def _write(self, axes: Any, middles: NDArray[Any]) -> None:
        """Write each name in the middle of its pictures; where two would overlap, only the legend has the second."""
        from matplotlib.patheffects import withStroke

        halo = [withStroke(linewidth=4, foreground=LIGHT.ground)]
        boxes: list[tuple[float, float, float]] = []  # across, down, half the width
        for label in self.top:
            # The picture that is nearest to all others of its class: a mean could lie between two groups, in a third.
            own = middles[self.has[:, label]]
            across, down = own[np.abs(own[:, None] - own[None]).sum(axis=(1, 2)).argmin()]
            name = caption(self.names[label], 24)
            half = 9.0 * len(name)  # pixels, of letters in 11 points
            if any(abs(down - below) < 30 and abs(across - beside) < half + wide for beside, below, wide in boxes):
                continue
            boxes.append((across, down, half))
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 11, "fontweight": "bold"}
            axes.text(across, down, name, color=LIGHT.ink, path_effects=halo, **style)

    def _legend(self, axes: Any) -> None:
        from matplotlib.patches import Patch

        marks = []
        for rank, label in enumerate(self.top):
            colour, cut = COLOURS[rank % len(COLOURS)], rank >= len(COLOURS)
            name = f"{caption(self.names[label], 24)}  {int(self.has[:, label].sum()):,}"
            style: dict[str, Any] = {"linestyle": (0, (2, 1.5)) if cut else "-", "linewidth": 2.5}
            marks.append(Patch(facecolor="white", edgecolor=colour, label=name, **style))
        if rest := int((~self.has[:, self.top].any(axis=1)).sum()):
            classes = int(self.has.any(axis=0).sum()) - len(self.top)
            words = (
                f"{classes:,} other classes" if not self.several else "other labels or none" if classes else "no label"
            )
            marks.append(Patch(facecolor="white", edgecolor=REST, linewidth=2.5, label=f"{words}  {rest:,}"))
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


class Scale:
    """Frames in a colour for each number, with a bar that says which."""

    thin = 7  # a shade needs more room than a hue

    def __init__(self, name: str, numbers: NDArray[np.float64]) -> None:  # (n,)
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        self.name, self.numbers = name, numbers
        low, high = np.quantile(numbers, [0.01, 0.99])  # a stray number leaves the others their colours
        self.colours = ScalarMappable(Normalize(low, high, clip=True), MAP)
        self.beyond = bool(low > numbers.min()), bool(high < numbers.max())
        self.what = f" The colour of a frame is its {caption(name, 24)}."

    def frame(self, pen: ImageDraw.ImageDraw, left: int, top: int, side: int, row: int) -> None:
        """Draw the ground of a picture, of which its frame stays in sight."""
        colour = tuple(self.colours.to_rgba(self.numbers[row], bytes=True)[:3])
        pen.rectangle((left, top, left + side - 1, top + side - 1), fill=colour)

    def explain(self, axes: Any, middles: NDArray[Any]) -> None:
        """Draw the bar."""
        ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
        bar = axes.figure.colorbar(self.colours, ax=axes, shrink=0.6, aspect=30, pad=0.01, extend=ends[self.beyond])
        bar.set_label(caption(self.name, 40))
        bar.outline.set_visible(False)
