"""The style that all figures share, and the figure of attention."""

import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitral.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which differ to people with any kind of colour vision.
BLUE, ORANGE, GREEN, RED, GREY, INK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8F98", "#22262B"
BRIGHTEST = 0.03  # of the patches of a map, which all have the brightest colour
MAP = "cividis"  # perceptually even, and the same to all kinds of colour vision


@dataclass(frozen=True)
class Theme:
    """The colours of a figure. Both themes have the same hues, light enough or dark enough for their ground."""

    ground: str
    ink: str
    soft: str  # text that may stand back
    grey: str
    grid: str
    blue: str
    orange: str
    green: str
    red: str
    purple: str
    bar: str
    shares: tuple[str, ...]  # from none to all, evenly lighter or darker, so that it prints


LIGHT = Theme(
    ground="#FFFFFF",
    ink=INK,
    soft="#555B63",
    grey=GREY,
    grid="#E3E6EA",
    blue=BLUE,
    orange=ORANGE,
    green=GREEN,
    red=RED,
    purple="#A34A86",
    bar="#80B8D8",
    shares=("#F7FAFD", "#C3DAEE", "#7DB3D9", "#3381BA", "#08427F"),
)
DARK = Theme(
    ground="#15181C",
    ink="#E8EAED",
    soft="#AEB5BE",
    grey="#808893",
    grid="#2D333A",
    blue="#56B4E9",
    orange="#F0B429",
    green="#2FC79B",
    red="#F58B4C",
    purple="#E59CC9",
    bar="#2F7CAB",
    shares=("#1C2127", "#1B4161", "#22699C", "#4C9FD6", "#B5DFFA"),
)


def theme(dark: bool) -> Theme:
    return DARK if dark else LIGHT


def _style(colours: Theme) -> Any:  # matplotlib types the keys one by one
    return {
        "figure.dpi": 150,
        "savefig.dpi": 150,
        "figure.facecolor": colours.ground,
        "axes.facecolor": colours.ground,
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": colours.ink,
        "axes.labelcolor": colours.ink,
        "axes.edgecolor": colours.grey,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        "xtick.color": colours.ink,
        "ytick.color": colours.ink,
        "grid.color": colours.grid,
        "grid.linewidth": 0.8,
        "lines.linewidth": 2,
    }


@contextmanager
def figure(
    to: Path | IO[bytes], width: float, height: float, title: str, subtitle: str, *, dark: bool = False
) -> Iterator["Figure"]:
    """An empty figure in the common style, which is written `to` a file on leaving; sizes in inches. No global state
    is changed.

    The subtitle is broken into lines that fit; for each after the first the figure grows.
    """
    import matplotlib
    from matplotlib.figure import Figure

    lines = textwrap.wrap(subtitle, int(14 * width))
    height += 0.18 * max(0, len(lines) - 1)
    with matplotlib.rc_context(_style(theme(dark))):
        canvas = Figure(figsize=(width, height), layout="constrained")
        if title:
            # Empty lines below the title keep the room for the subtitle: one of 14 points for 1.3 of 9.5.
            room = "\n" * -(-3 * len(lines) // 4)
            canvas.suptitle(title + room, x=0.01, ha="left", fontsize=14, fontweight="bold")
            style: Any = {"ha": "left", "va": "top", "fontsize": 9.5, "linespacing": 1.3}
            canvas.text(0.01, 1 - 0.34 / height, "\n".join(lines), color=theme(dark).soft, **style)
        yield canvas
        png = BytesIO()
        with warnings.catch_warnings():
            # A name in letters that the font does not have is canvas as boxes; in the report it is text.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            canvas.savefig(png, format="png")
    if isinstance(to, Path):
        write_whole(to, png.getvalue())
    else:
        to.write(png.getvalue())


def caption(name: str, most: int = 10_000) -> str:
    """A name as a figure can show it: at most `most` letters, on one line; $ is a dollar, and starts no formula."""
    name = "".join(sign if sign.isprintable() else "·" for sign in name)
    return (name if len(name) <= most else f"{name[: most - 1]}…").replace("$", r"\$")


def show_image(axes: "Axes", image: NDArray[np.uint8]) -> None:  # (C, H, W)
    """Show a picture with square, unblurred pixels and no axes around it; of bands, the first."""
    pixels = image.transpose(1, 2, 0)
    axes.imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray", vmin=0, vmax=255)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def brightest(attention: NDArray[Any]) -> float:  # (down, across)
    """The upper end of the colour scale of a map: only `BRIGHTEST` of the patches lie above.

    In many models a few patches of the background get so much that all others would be dark beside them
    (arXiv:2309.16588).
    """
    return max(float(np.quantile(attention, 1 - BRIGHTEST)), 1e-12)


def show_map(axes: "Axes", image: NDArray[np.uint8], attention: NDArray[Any]) -> None:  # (C, H, W), (down, across)
    """Show a map of attention, one square per patch, over the picture, whose light and dark shows through."""
    show_image(axes, image)
    height, width = image.shape[1:]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(attention, cmap=MAP, alpha=0.75, extent=extent, vmin=0, vmax=brightest(attention))


def draw_attention(
    path: Path,
    images: NDArray[np.uint8],  # (n, C, H, W)
    answers: NDArray[Any],  # (n, down, across): maps for the answer
    maps: NDArray[Any],  # (n, heads, down, across): of the last block
    captions: list[str],
    title: str = "Where it looked",
) -> None:
    """Draw a row per picture: the picture, its map for the answer, the mean of the heads of the last block, then each
    head."""
    heads = maps.shape[1]
    columns = ["picture", "for the answer", "last block", *(f"head {head}" for head in range(heads))]
    with figure(
        path,
        1.1 + 1.05 * len(columns),
        0.95 + 1.12 * len(images),
        title,
        "Bright is much, and each map has a scale of its own. For the answer: what spoke for it, through all blocks "
        "(class attention). Then what it took from each patch in the last block: all heads, and one by one.",
    ) as canvas:
        grid = canvas.subplots(len(images), len(columns), squeeze=False)
        for row, (image, answer, by_head, caption) in enumerate(zip(images, answers, maps, captions, strict=True)):
            show_image(grid[row][0], image)
            grid[row][0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=9, labelpad=8)
            for axes, attention in zip(grid[row][1:], [answer, by_head.mean(axis=0), *by_head], strict=True):
                show_map(axes, image, attention)
        for axes, name in zip(grid[0], columns, strict=True):
            axes.set_title(name, fontsize=9, fontweight="normal", loc="center")
