"""A figure for each reading, in the style that all figures share. `to` is a path to write, or an open file.

Pictures are as the model sees them, uint8 (C, H, W); all else is as the functions of readings.py return it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.look.figures import Theme, figure, show_image, show_map, theme
from vitral.look.maps import TokenLayout
from vitral.look.readings import Colours, Depth, ResampledPositions, top_mass

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

To = Path | IO[bytes]
Images = NDArray[np.uint8]  # (n, C, H, W)
SIGNED = "RdBu_r"  # from −1 over 0, which is white, to 1
MOST_POSITIONS = 7  # per side: more, and each is too small to read


def draw_filters(to: To, filters: Tensor, *, dark: bool = False) -> None:  # (count, P, P, C)
    """Draw the principal components of the first layer, each on a scale of its own."""
    count, side, _, channels = filters.shape
    across = 7
    down = -(-count // across)
    what = f"Principal components of what the first layer looks for in {side}×{side} pixels, the strongest first."
    if channels not in (1, 3):
        what += f" Of {channels} bands, the first."
    with figure(to, 0.3 + 0.95 * across, 0.8 + 0.95 * down, "First-layer filters", what, dark=dark) as canvas:
        places = canvas.subplots(down, across, squeeze=False).flat
        for axes, one in zip(places, filters.numpy(), strict=False):
            bands = one if channels == 3 else one[:, :, :1]
            largest = max(float(np.abs(bands).max()), 1e-9)
            # Zero is grey, so that positive and negative weights look different.
            show_image(axes, np.round(127.5 + 127.5 * bands / largest).astype(np.uint8).transpose(2, 0, 1))
            for spine in axes.spines.values():
                spine.set(visible=True, color=theme(dark).grid)
        for axes in canvas.axes[count:]:
            axes.axis("off")


def draw_positions(to: To, similarity: Tensor, *, dark: bool = False) -> None:  # (down, across, down, across)
    """Draw the similarity of positions: for some of the patches, the cosine with the positions of all patches."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    down, across = similarity.shape[:2]
    rows, columns = _spread(down), _spread(across)
    count = len(rows) * len(columns)
    some = "" if count == down * across else f" {count} of {down * across} patches."
    what = f"A square a patch, where it stands: the cosine of its position with that of each patch.{some}"
    cell = 0.82
    size = 1.8 + cell * len(columns), 1.5 + cell * len(rows) * down / across
    with figure(to, *size, "Similarity of positions", what, dark=dark) as canvas:
        grid = canvas.subplots(len(rows), len(columns), squeeze=False)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                axes = grid[i][j]
                axes.imshow(similarity[row, column].numpy(), cmap=SIGNED, vmin=-1, vmax=1)
                _bare(axes)
                if j == 0:
                    axes.set_ylabel(f"{row}", rotation=0, ha="right", va="center", labelpad=5, fontsize=9)
                if i == len(rows) - 1:
                    axes.set_xlabel(f"{column}", fontsize=9)
        canvas.supxlabel("column of the patch", fontsize=10)
        canvas.supylabel("row of the patch", fontsize=10)
        bar = canvas.colorbar(ScalarMappable(Normalize(-1, 1), SIGNED), ax=grid, shrink=0.7, ticks=[-1, 0, 1])
        bar.outline.set_visible(False)


def draw_distances(to: To, distances: Tensor, *, dark: bool = False) -> None:  # (blocks, heads), in pixels
    """Plot the attention distance of each head over the blocks."""
    from matplotlib.ticker import MaxNLocator

    colours, (blocks, heads) = theme(dark), distances.shape
    what = "A dot a head: the mean distance from a patch to what it takes from, by how much it takes."
    with figure(to, 6.4, 4.2, "How far heads look", what, dark=dark) as canvas:
        axes = canvas.subplots()
        x = np.repeat(np.arange(blocks), heads)
        axes.plot(np.arange(blocks), distances.mean(dim=1).numpy(), color=colours.grey, linewidth=1.5, zorder=1)
        axes.scatter(x, distances.flatten().numpy(), s=34, color=colours.blue, alpha=0.8, linewidths=0, zorder=2)
        at_the_end = (blocks - 1, float(distances[-1].mean()))
        axes.annotate(
            "mean", at_the_end, (8, 0), textcoords="offset points", va="center", color=colours.soft, fontsize=9
        )
        axes.set(xlabel="block", ylabel="pixels", xlim=(-0.5, blocks - 0.5))
        axes.set_ylim(0, 1.08 * max(float(distances.max()), 1.0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(axis="y")


def draw_sine_table(to: To, table: Tensor, *, dark: bool = False) -> None:  # (positions, width)
    """Draw a table of fixed sine positions as a heat map."""
    positions, width = table.shape
    wide = 8.0
    high = 1.5 + float(np.clip((wide - 1.6) * positions / width, 1.2, 8))
    what = f"{positions:,} positions of {width:,} numbers: sine and cosine in turn, of ever longer waves."
    with figure(to, wide, high, "Fixed positions", what, dark=dark) as canvas:
        axes = canvas.subplots()
        image = axes.imshow(table.numpy(), cmap=SIGNED, vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
        axes.set(xlabel="number", ylabel="position")
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = canvas.colorbar(image, ax=axes, ticks=[-1, 0, 1], shrink=0.8, pad=0.02)
        bar.outline.set_visible(False)


def draw_resampling(to: To, cases: Sequence[ResampledPositions], *, dark: bool = False) -> None:
    """Draw a table of positions resampled to some grids, all to one scale."""
    what = (
        "Each patch in the colour of its position: the table's first three principal components as red, green and blue."
    )
    grids = [one.other.shape[:2] for one in cases]
    side = 8.4 / sum(across for _, across in grids)  # inches per patch
    tall = max(down for down, _ in grids) * side
    with figure(to, 9.6, 1.6 + tall, "Positions at another grid", what, dark=dark) as canvas:
        places = canvas.subplots(1, len(cases), squeeze=False, width_ratios=[across for _, across in grids])[0]
        canvas.get_layout_engine().set(w_pad=0.12)  # type: ignore[union-attr, call-arg]
        texts = [one.how.partition(": ") for one in cases]
        # Where a panel is narrow, its text takes two lines; the titles stand at one height.
        wide = max(across for _, across in grids)
        hows = [
            how.replace(", ", "\n", 1) if grid[1] < wide else how
            for grid, (_, _, how) in zip(grids, texts, strict=True)
        ]
        lines = "\n" * (1 + max(how.count("\n") for how in hows))
        for axes, one, (case, _, _), how in zip(places, cases, texts, hows, strict=True):
            _show_positions(axes, one.own, one.other)
            axes.set_anchor("NW")
            axes.set_title(f"{case}, {one.other.shape[0]}×{one.other.shape[1]}{lines}", fontsize=10)
            style: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 9, "va": "bottom"}
            how += "\n" * (len(lines) - 1 - how.count("\n"))
            axes.annotate(how, (0, 1), (0, 5), color=theme(dark).soft, **style)


def _show_positions(axes: "Axes", own: Tensor, table: Tensor) -> None:  # each (down, across, D)
    """Show positions as colours by the principal components of `own`, so that the same colour is the same place."""
    flat = own.flatten(0, 1)
    _, _, components = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    low_high = (flat - flat.mean(dim=0)) @ components[:3].T
    low, high = low_high.amin(dim=0), low_high.amax(dim=0)
    colours = ((table - flat.mean(dim=0)) @ components[:3].T - low) / (high - low).clamp(min=1e-9)
    axes.imshow(colours.clamp(0, 1).numpy())
    _bare(axes)


def draw_patches(to: To, image: Images, layout: TokenLayout, tokens: Tensor, *, dark: bool = False) -> None:  # (T, D)
    """Draw a picture, its patches in reading order, and the row of tokens they become: equation (1) as a figure."""
    (_, height, width), (down, across), colours = image.shape, layout.grid, theme(dark)
    count, patch = down * across, height // down
    cut = f"{count} patches of {patch}×{patch}"
    what = f"{height}×{width} pixels → {cut} → {len(tokens)} tokens of {tokens.shape[1]} numbers."
    with figure(to, 9.6, 5.6, "From a picture to tokens", what, dark=dark) as canvas:
        rooms: Any = canvas.subfigures(2, 1, height_ratios=[1.25, 1])
        above, below = rooms
        left, right = above.subplots(1, 2, width_ratios=[1, 2.2])
        for axes in (left, right):
            axes.set_anchor("N")
        show_image(left, image)
        for at in range(1, down):
            left.axhline(at * patch - 0.5, color="#FFFFFF", linewidth=0.8)
        for at in range(1, across):
            left.axvline(at * patch - 0.5, color="#FFFFFF", linewidth=0.8)
        left.set_title("the picture", fontsize=10)
        _patch_row(right, image, layout, colours)
        _token_row(below, layout, tokens)


def _patch_row(axes: "Axes", image: Images, layout: TokenLayout, colours: Theme) -> None:
    """Show the patches one by one, in lines; where they are many, the first and the last."""
    from matplotlib.patches import Rectangle

    (channels, height, _), (down, across) = image.shape, layout.grid
    patch, count, most = height // down, down * across, 48
    cut = image.reshape(channels, down, patch, across, patch).transpose(1, 3, 0, 2, 4)
    cut = cut.reshape(count, channels, patch, patch)
    numbers = list(range(count)) if count <= most else [*range(most - 13), -1, *range(count - 12, count)]
    columns = 12 if count > 16 else -(-count // 2)
    lines, gap = -(-len(numbers) // columns), 0.16
    for place, number in enumerate(numbers):
        line, column = divmod(place, columns)
        x, y = column * (1 + gap), line * (1.42 + gap)
        if number < 0:
            axes.text(x + 0.5, y + 0.5, "…", ha="center", va="center", fontsize=12, color=colours.soft)
            continue
        pixels = cut[number].transpose(1, 2, 0)
        axes.imshow(pixels if channels == 3 else pixels[:, :, 0], cmap="gray", vmin=0, vmax=255,
                    extent=(x, x + 1, y + 1, y), interpolation="nearest")  # fmt: skip
        # White patches on a white ground need an edge.
        axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=colours.grid, linewidth=0.6))
        axes.text(x + 0.5, y + 1.06, f"{number}", ha="center", va="top", fontsize=6.5, color=colours.soft)
    axes.set_xlim(-0.05, columns * (1 + gap))
    axes.set_ylim(lines * (1.42 + gap), -0.1)
    axes.set_title("its patches, in reading order", fontsize=10)
    _bare(axes)


def _token_row(room: "SubFigure", layout: TokenLayout, tokens: Tensor) -> None:  # (T, D)
    """Show tokens as columns of numbers; those of no patch apart and wider, so that their names have room."""
    values, extra = tokens.T.numpy(), len(layout.extra)
    largest = float(np.quantile(np.abs(values), 0.98)) or 1.0
    first, rest = room.subplots(1, 2, width_ratios=[max(0.06, 0.05 * extra), 1])
    if extra:
        _numbers(first, values[:, :extra], largest)
        names = [name.replace("register ", "r").replace("distillation", "distilled") for name in layout.extra]
        first.set_xticks(range(extra), names, fontsize=8)
    else:
        first.axis("off")
    _numbers(rest, values[:, extra:], largest)
    count = values.shape[1] - extra
    ticks = sorted({0, *range(10, count - 8, 10 if count <= 100 else 20), count - 1})
    rest.set_xticks(ticks, [f"{at}" for at in ticks], fontsize=8)
    rest.set_title("the row of tokens, a column each: red above zero, blue below", fontsize=10)
    rest.set_xlabel("patch")


def _numbers(axes: "Axes", values: NDArray[Any], largest: float) -> None:  # (D, tokens)
    axes.imshow(values, cmap=SIGNED, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    axes.set_yticks([])
    axes.tick_params(length=2)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_depth(to: To, depth: Depth, *, dark: bool = False) -> None:
    """Plot how tokens change, block by block."""
    from matplotlib.ticker import MaxNLocator

    colours, extra = theme(dark), len(depth.layout.extra)
    what = "From the embedding (0) through each block. Bands: nine tenths of the patches."
    with figure(to, 10.2, 3.7, "Tokens through depth", what, dark=dark) as canvas:
        length, like, alike = canvas.subplots(1, 3)
        x = np.arange(len(depth.alike))
        lines = [(name, at) for at, name in enumerate(depth.layout.extra)]
        for axes, values in ((length, depth.length), (like, depth.like_last)):
            patches = values[:, extra:].numpy()
            low, high = np.quantile(patches, [0.05, 0.95], axis=1)
            axes.fill_between(x, low, high, color=colours.blue, alpha=0.2, linewidth=0)
            axes.plot(x, np.median(patches, axis=1), color=colours.blue, label="patches")
            for name, at in lines:
                if name != "register 1" and name.startswith("register"):
                    continue  # they are alike enough for one to stand for them
                hue = {"class": colours.orange, "distillation": colours.red}.get(name, colours.green)
                axes.plot(x, values[:, at].numpy(), color=hue, label="class token" if name == "class" else name)
        length.set(title="Length", ylim=(0, None))
        like.set(title="Like what they become")
        alike.plot(x, depth.alike.numpy(), color=colours.blue)
        alike.set(title="Patches like each other")
        for axes in (length, like, alike):
            axes.set_xlabel("block")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.grid(axis="y")
        for axes in (like, alike):
            axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.03)
            axes.set_ylabel("cosine")
        length.legend(frameon=False, fontsize=9, loc="upper left")  # they grow; "best" warns where it takes long


def draw_colours(to: To, images: Images, colours: Colours, *, dark: bool = False) -> None:
    """Draw a column per picture: the picture, its subject, and its patches in colours."""
    what = "The first principal component parts subject and ground; patches that are alike have the same colour."
    _columns(to, images, "What belongs together", what, [
        ("the subject", lambda axes, at: _show_masked(axes, images[at], colours.subject[at].numpy())),
        ("its patches", lambda axes, at: _show_colours(axes, images[at], colours.rgb[at].numpy())),
    ], dark)  # fmt: skip


def draw_top_mass(
    to: To, images: Images, maps: Tensor, mass: float = 0.6, *, dark: bool = False
) -> None:  # (n, down, across)
    """Draw a column per picture: the picture, its map, and the fewest patches that hold the share `mass` of the map."""
    masks = top_mass(maps.flatten(1), mass).view(maps.shape).numpy()
    what = f"Lit: the fewest patches that hold {mass:.0%} of what was taken from all."
    _columns(to, images, "Where most of it went", what, [
        ("map", lambda axes, at: show_map(axes, images[at], maps[at].numpy())),
        (f"{mass:.0%} of it", lambda axes, at: _show_masked(axes, images[at], masks[at])),
    ], dark)  # fmt: skip


def _columns(to: To, images: Images, title: str, what: str, rows: Sequence[tuple[str, Any]], dark: bool) -> None:
    """Draw a column per picture: the picture, then what each function of `rows`, (axes, column), draws."""
    n, (height, width) = len(images), images.shape[2:]
    cell = 1.55
    with figure(
        to, max(4.6, 1.1 + cell * n), 0.8 + cell * (len(rows) + 1) * height / width, title, what, dark=dark
    ) as canvas:
        grid = canvas.subplots(len(rows) + 1, n, squeeze=False)
        for at in range(n):
            show_image(grid[0][at], images[at])
            for row, (_, show) in enumerate(rows):
                show(grid[row + 1][at], at)
        for row, name in enumerate(["picture", *(name for name, _ in rows)]):
            grid[row][0].set_ylabel(name, rotation=0, ha="right", va="center", labelpad=8)


def _show_masked(axes: "Axes", image: Images, mask: NDArray[np.bool_]) -> None:  # (C, H, W), (down, across)
    """Show a picture, with all patches outside the mask darkened."""
    height, width = image.shape[1:]
    large = np.kron(mask, np.ones((height // mask.shape[0], width // mask.shape[1]), dtype=bool))
    show_image(axes, np.where(large, image, image // 5))


def _show_colours(axes: "Axes", image: Images, rgb: NDArray[Any]) -> None:  # (C, H, W), (down, across, 3)
    show_image(axes, np.zeros_like(image))
    height, width = image.shape[1:]
    axes.imshow(rgb, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")


def _spread(count: int) -> list[int]:
    """Numbers from the first to the last, evenly, and not too many."""
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, MOST_POSITIONS))})


def _bare(axes: "Axes") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
