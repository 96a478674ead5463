"""Random erasing (Zhong et al. 2020): a rectangle of noise, so that a model does not look at one spot only."""

import numpy as np
import torch
from torch import Tensor

from vitral.data.augment.draws import Draws, Numbers
from vitral.data.augment.geometry import rectangle

LEAST, MOST = 0.02, 1 / 3  # share of the area


def erase(images: Tensor, share: float, draws: Draws) -> None:
    """In this share of the pictures (B, C, H, W), in place. The noise is whole levels, each as likely."""
    chosen, area, shape, top, left = draws("erase", 5)
    rows = np.flatnonzero(chosen < share)
    if len(rows) == 0:
        return
    noise = _noise(draws.rows(rows), images[0].numel()).view(len(rows), *images.shape[1:])
    heights, widths = rectangle(LEAST + (MOST - LEAST) * area, shape, limit=1 / 0.3)
    tops, bottoms = _span(heights, top, images.shape[2])
    lefts, rights = _span(widths, left, images.shape[3])
    for row, levels in zip(rows, noise, strict=True):
        where = (slice(None), slice(tops[row], bottoms[row]), slice(lefts[row], rights[row]))
        images[row][where] = levels[where].to(images)


def _span(share: Numbers, place: Numbers, side: int) -> tuple[list[int], list[int]]:
    """First and last + 1 of so many pixels, at least one, anywhere on the side."""
    length = np.maximum(np.round(share * side), 1)
    start = np.floor(place * (side - length + 1))
    return start.astype(int).tolist(), (start + length).astype(int).tolist()


def _noise(draws: Draws, count: int) -> Tensor:
    """(B, count) of uint8. A draw has 53 random bits: six levels of eight come out of it."""
    bits = (draws("noise", -(-count // 6)).T * 2.0**48).astype("<u8")  # (B, count / 6)
    levels = bits[..., None].view(np.uint8)[..., :6].reshape(len(bits), -1)
    return torch.from_numpy(levels[:, :count].copy())
