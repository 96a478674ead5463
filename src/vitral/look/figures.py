"""One look for all figures, and the figures of attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitral.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
BLUE, ORANGE, GREEN, RED, GREY, INK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8F98", "#22262B"
MAP = "cividis"  # perceptually even, and the same to all kinds of colour vision

STYLE: Any = {  # matplotlib types the keys one by one
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#E3E6EA",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2,
}


@contextmanager
def figure(path: Path, width: float, height: float, title: str, subtitle: str) -> Iterator["Figure"]:
    """An empty figure in the common style, drawn on and then written; sizes in inches. No global state is changed."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        drawn.suptitle(title + "\n", x=0.01, ha="left", fontsize=14, fontweight="bold")
        under_title = 1 - 0.42 / height
        drawn.text(0.01, under_title, subtitle, ha="left", va="center", fontsize=9.5, color="#555B63")
        yield drawn
        png = BytesIO()
        drawn.savefig(png, format="png")
        write_whole(path, png.getvalue())


def show_image(axes: "Axes", image: NDArray[np.uint8]) -> None:  # (C, H, W)
    """A picture with square, unblurred pixels and no axes around it; of bands, the first."""
    pixels = image.transpose(1, 2, 0)
    axes.imshow(pixels if pixels.shape[2] == 3 else pixels[:, :, 0], cmap="gray", vmin=0, vmax=255)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def show_map(axes: "Axes", image: NDArray[np.uint8], attention: NDArray[Any]) -> None:  # (C, H, W), (down, across)
    """A map of attention, one square a patch, with the picture's own light and dark showing through."""
    show_image(axes, image)
    height, width = image.shape[1:]
    axes.imshow(attention, cmap=MAP, alpha=0.75, extent=(-0.5, width - 0.5, height - 0.5, -0.5), vmin=0)


def where_it_looked(
    path: Path,
    images: NDArray[np.uint8],  # (n, C, H, W)
    maps: NDArray[Any],  # (n, heads, down, across)
    captions: list[str],
) -> None:
    """A row a picture: the picture, the mean over heads, then each head."""
    heads = maps.shape[1]
    columns = ["picture", "all heads", *(f"head {head + 1}" for head in range(heads))]
    with figure(
        path,
        1.1 + 1.05 * len(columns),
        0.95 + 1.12 * len(images),
        "Where it looked",
        "Attention in the last block of what is read out, each map on a scale of its own: bright is most.",
    ) as drawn:
        grid = drawn.subplots(len(images), len(columns), squeeze=False)
        for row, (image, by_head, caption) in enumerate(zip(images, maps, captions, strict=True)):
            show_image(grid[row][0], image)
            grid[row][0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=9, labelpad=8)
            for axes, attention in zip(grid[row][1:], [by_head.mean(axis=0), *by_head], strict=True):
                show_map(axes, image, attention)
        for axes, name in zip(grid[0], columns, strict=True):
            axes.set_title(name, fontsize=9, fontweight="normal", loc="center")
