"""Pictures changed a little, so that a model does not learn them by heart: batched tensor functions."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from vitral.data.config import Augment
from vitral.data.randomness import uniform


def augment(
    images: Tensor,
    how: Augment,
    *,
    seed: int,
    epoch: int,
    samples: NDArray[np.int64],
    background: int = 0,
) -> Tensor:
    """(B, C, H, W) of 0 to 255 → the same, as float; what comes in from outside is of the grey level `background`."""
    images = images.to(torch.get_default_dtype())
    if how == Augment():
        return images
    # Five numbers a picture, each −1 to 1
    turn, zoom, shear, down, across = (2 * uniform(seed, "affine", epoch=epoch, samples=samples, draws=5) - 1).T
    matrices = affine_matrices(
        angle=np.radians(turn * how.rotate),
        zoom=1 + zoom * how.zoom,
        slant=np.tan(np.radians(shear * how.shear)),
        shift=np.stack([across, down]) * how.shift,
        aspect=images.shape[-1] / images.shape[-2],
    )
    grid = affine_grid(torch.from_numpy(matrices).to(images), list(images.shape), align_corners=False)
    inside = grid_sample(images - background, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return inside + background


def affine_matrices(
    *,
    angle: NDArray[np.float64],  # (B,) radians, clockwise as one sees it
    zoom: NDArray[np.float64],  # (B,) 1.1 enlarges by a tenth
    slant: NDArray[np.float64],  # (B,) how far a row moves across for one step down
    shift: NDArray[np.float64],  # (2, B) across, down; as a share of the side
    aspect: float,  # width over height
) -> NDArray[np.float64]:
    """(B, 2, 3): where each output pixel comes from, as `affine_grid` reads it (both sides from −1 to 1)."""
    cos, sin = np.cos(angle), np.sin(angle)
    # From output to input: the inverse of (turn · slant · zoom).
    inverse = np.array([[cos + slant * sin, sin - slant * cos], [-sin, cos]]) / zoom  # (2, 2, B)
    # In units of half a side a step across and a step down differ unless the picture is square.
    inverse[0, 1] /= aspect
    inverse[1, 0] *= aspect
    moved = -2 * np.einsum("ijb,jb->ib", inverse, shift)  # a share of the side is twice that in −1 … 1
    return np.concatenate([inverse, moved[:, None]], axis=1).transpose(2, 0, 1)
