"""Where each pixel of a training picture comes from: all geometry is one matrix per picture, and one resampling.

A matrix (3, 3) leads from a place in the output back to one in the picture, both with sides from −1 to 1; so the change
that happens first stands first in a product. Where there are only flips and whole pixels, pixels are picked by their
index instead, and stay what they are.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from vitral.data.augment.draws import Draws, Numbers
from vitral.data.config import Augment

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Place:
    """Where the pixels of each picture come from: cropped, shifted, flipped, turned; drawn for all at once."""

    size: Size
    outside: str
    mirrored: NDArray[np.bool_]  # (B,) left to right
    shift: NDArray[np.int64]  # (2, B) whole pixels down and across
    matrices: Numbers | None  # (B, 3, 3) of all of it; none where whole pixels are all there is

    @classmethod
    def draw(
        cls, how: Augment, draws: Draws, more: list[Numbers], *, stored_size: Size, size: Size, whole: bool = True
    ) -> "Place":
        """`more` are matrices of what comes last. Without `whole` there are matrices also for whole pixels."""
        count = len(draws.samples)
        mirrored = flips(how, draws) if how.flip != "none" else np.zeros(count, bool)
        shift = _whole_pixels(how, draws) if how.pad else np.zeros((2, count), np.int64)
        affine = bool(how.rotate or how.zoom or how.shear or how.shift)
        if whole and not (how.crop or affine or more):
            return cls(size, how.outside, mirrored, shift, None)
        matrices = _crop(how, draws) if how.crop else np.stack([centre(stored_size, size)] * count)
        if how.pad:
            matrices = matrices @ moves(shift[1] / size[1], shift[0] / size[0])
        if how.flip != "none":
            matrices = matrices @ _mirrors(mirrored)
        if affine:
            matrices = matrices @ _affine(how, draws, aspect=size[1] / size[0])
        for one in more:
            matrices = matrices @ one
        return cls(size, how.outside, mirrored, shift, matrices)

    def __call__(self, images: Tensor, rows: slice, background: int) -> Tensor:
        """(B, C, H', W') of whole numbers, these rows of the batch → (B, C, H, W), float where it was resampled."""
        if self.matrices is not None:
            return resample(images, self.matrices[rows], self.size, self.outside, background)
        return self._pick(images, rows, background)

    def _pick(self, images: Tensor, rows: slice, background: int) -> Tensor:
        """Whole pixels only: the middle of each picture, shifted and flipped."""
        mirrored, shift = self.mirrored[rows], self.shift[:, rows]
        top, left = ((large - small) // 2 for large, small in zip(images.shape[2:], self.size, strict=True))
        if shift.any():
            centre_rows, centre_columns = np.arange(top, top + self.size[0]), np.arange(left, left + self.size[1])
            pixels = _shifted(images, shift, centre_rows, centre_columns, self.outside, background)
        else:
            pixels = images[:, :, top : top + self.size[0], left : left + self.size[1]]
        if not mirrored.any():
            return pixels
        return torch.where(torch.from_numpy(mirrored)[:, None, None, None], pixels.flip(3), pixels)


def resample(images: Tensor, matrices: Numbers, size: Size, outside: str = "background", background: int = 0) -> Tensor:
    """(B, C, H', W') of whole numbers → (B, C, H, W) as float: bilinear, at the places the matrices (B, 3, 3) say."""
    levels = images.to(torch.get_default_dtype(), copy=True)  # ours: it may be changed in place
    if outside == "mirror":
        # Torch mirrors at the centres of the edge pixels (so that none is seen twice) if −1 to 1 means from centre to
        # centre: a little less than from edge to edge, which is what our matrices mean.
        height, width = images.shape[-2:]
        matrices = matrices * np.array([[width / max(width - 1, 1)], [height / max(height - 1, 1)], [1]])
        grid = _grid(matrices, size)
        return grid_sample(levels, grid, mode="bilinear", padding_mode="reflection", align_corners=True)
    grid = _grid(matrices, size)
    if background == 0:
        return grid_sample(levels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    moved = grid_sample(levels.sub_(background), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved.add_(background)


def rectangle(area: Numbers, shape: Numbers, limit: float) -> tuple[Numbers, Numbers]:
    """(height, width) as shares of the sides, of an area as a share and a shape from 0 (tall) to 1 (wide).

    Width over height goes from 1/limit to limit, evenly in the logarithm, and no further than fits: area · aspect is
    the width squared, so the aspect is between area and 1/area. Nothing is clipped or drawn again, and the area is what
    was drawn. (torchvision draws both again until they fit, which makes large areas rare.)
    """
    aspect = np.exp((2 * shape - 1) * np.minimum(np.log(limit), -np.log(area)))
    return np.sqrt(area / aspect), np.sqrt(area * aspect)


def flips(how: Augment, draws: Draws) -> NDArray[np.bool_]:
    """(B,): which pictures are mirrored left to right. `alternating` draws once for all epochs, then takes turns."""
    if how.flip == "alternating":
        return (draws.once("flip") < 0.5) ^ (draws.epoch % 2 == 1)
    return draws("flip", 1)[0] < 0.5


def moves(across: Numbers, down: Numbers) -> Numbers:
    """(B, 3, 3): pictures moved to the right and down by a share of the side."""
    matrices = np.tile(np.eye(3), (len(across), 1, 1))
    matrices[:, 0, 2] = -2 * across  # a share of the side is twice that in −1 … 1
    matrices[:, 1, 2] = -2 * down
    return matrices


def affine_matrices(
    *,
    angle: Numbers,  # (B,) radians, clockwise as one sees it
    zoom: Numbers,  # (B,) 1.1 enlarges by a tenth
    slant: Numbers,  # (B,) how far a row moves across for one step down
    shift: Numbers,  # (2, B) across, down; as a share of the side
    aspect: float,  # width over height
) -> Numbers:
    """(B, 2, 3): where each output pixel comes from, as `affine_grid` reads it (both sides from −1 to 1)."""
    cos, sin = np.cos(angle), np.sin(angle)
    # From output to input: the inverse of (turn · slant · zoom).
    inverse = np.array([[cos + slant * sin, sin - slant * cos], [-sin, cos]]) / zoom  # (2, 2, B)
    # In units of half a side a step across and a step down differ unless the picture is square.
    inverse[0, 1] /= aspect
    inverse[1, 0] *= aspect
    moved = -2 * np.einsum("ijb,jb->ib", inverse, shift)  # a share of the side is twice that in −1 … 1
    return np.concatenate([inverse, moved[:, None]], axis=1).transpose(2, 0, 1)


def _grid(matrices: Numbers, size: Size) -> Tensor:
    """(B, H, W, 2): where each output pixel comes from; to the bit what `affine_grid` gives, and faster.

    It makes the places of the pixels anew, and copies them for each picture before it multiplies them.
    """
    pixels = _pixels(size, torch.get_default_dtype())
    rows = torch.from_numpy(matrices[:, :2]).to(pixels)  # (B, 2, 3)
    return pixels.expand(len(rows), -1, -1).bmm(rows.transpose(1, 2)).view(-1, *size, 2)


@lru_cache(maxsize=4)
def _pixels(size: Size, dtype: torch.dtype) -> Tensor:
    """(H · W, 3): across, down and 1. Shared, never changed."""
    pixels = torch.ones(*size, 3, dtype=dtype)
    pixels[:, :, 1] = _centres(size[0])[:, None]
    pixels[:, :, 0] = _centres(size[1])
    return pixels.view(-1, 3)


def _centres(side: int) -> Tensor:
    """(side,): where the centres of the pixels are, if the edges are −1 and 1."""
    return torch.linspace(-1, 1, side) * (side - 1) / side if side > 1 else torch.zeros(1)


def _affine(how: Augment, draws: Draws, *, aspect: float) -> Numbers:
    turn, zoom, shear, down, across = 2 * draws("affine", 5) - 1  # each −1 to 1
    matrices = np.tile(np.eye(3), (len(turn), 1, 1))
    matrices[:, :2] = affine_matrices(
        angle=np.radians(turn * how.rotate),
        zoom=1 + zoom * how.zoom,
        slant=np.tan(np.radians(shear * how.shear)),
        shift=np.stack([across, down]) * how.shift,
        aspect=aspect,
    )
    return matrices


def _crop(how: Augment, draws: Draws) -> Numbers:
    """(B, 3, 3): a random part of the picture."""
    area, shape, top, left = draws("crop", 4)
    height, width = rectangle(how.crop + area * (how.crop_most - how.crop), shape, limit=4 / 3)
    matrices = np.tile(np.eye(3), (len(area), 1, 1))
    matrices[:, 0, 0], matrices[:, 1, 1] = width, height
    matrices[:, 0, 2] = (2 * left - 1) * (1 - width)  # its centre
    matrices[:, 1, 2] = (2 * top - 1) * (1 - height)
    return matrices


def centre(stored_size: Size, size: Size) -> Numbers:
    """(3, 3): the middle of a picture that is larger than the output; the same pixels as `_pick`."""
    matrix = np.eye(3)
    for row, (large, small) in enumerate(zip(stored_size[::-1], size[::-1], strict=True)):
        matrix[row, row] = small / large
        matrix[row, 2] = (2 * ((large - small) // 2) + small) / large - 1
    return matrix


def _mirrors(mirrored: NDArray[np.bool_]) -> Numbers:
    matrices = np.tile(np.eye(3), (len(mirrored), 1, 1))
    matrices[mirrored, 0, 0] = -1
    return matrices


def _whole_pixels(how: Augment, draws: Draws) -> NDArray[np.int64]:
    """(2, B): how many pixels each picture moves down and across, −pad to pad."""
    return np.floor(draws("pad", 2) * (2 * how.pad + 1)).astype(np.int64) - how.pad


def _shifted(
    images: Tensor,
    shift: NDArray[np.int64],  # (2, B) down and across
    rows: NDArray[np.int64],  # (H,) and
    columns: NDArray[np.int64],  # (W,): the pixels without a shift
    outside: str,
    background: int,
) -> Tensor:
    height, width = images.shape[2:]
    down, across = shift[:, :, None]  # each (B, 1)
    rows, columns = rows - down, columns - across  # (B, H) and (B, W)
    pixels = images[
        torch.arange(len(images))[:, None, None, None],
        torch.arange(images.shape[1])[:, None, None],
        torch.from_numpy(_mirrored(rows, height))[:, None, :, None],
        torch.from_numpy(_mirrored(columns, width))[:, None, None, :],
    ]  # (B, C, H, W)
    if outside == "mirror":
        return pixels
    empty = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None]  # (B, H, W)
    return pixels.masked_fill_(torch.from_numpy(empty)[:, None], background)


def _mirrored(index: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """Into 0 … side − 1, back and forth, without seeing an edge pixel twice."""
    if side == 1:
        return np.zeros_like(index)
    index = index % (2 * side - 2)
    return np.minimum(index, 2 * side - 2 - index)
