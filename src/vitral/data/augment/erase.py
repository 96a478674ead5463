"""Random erasing (Zhong et al. 2020): a rectangle of noise, so that a model does not look at one spot only."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.augment.change import Change
from vitral.data.augment.draws import Draws, Numbers
from vitral.data.augment.geometry import Size, rectangle

Whole = NDArray[np.int64]

LEAST, MOST = 0.02, 1 / 3  # share of the area


def erase(share: float, draws: Draws, size: Size) -> Change:
    """A rectangle of noise in this share of the pictures. The noise is whole levels, each as likely."""
    chance, area, shape, top, left = draws("erase", 5)
    heights, widths = rectangle(LEAST + (MOST - LEAST) * area, shape, limit=1 / 0.3)

    def fill(images: Tensor, rows: Whole, *corners: Whole) -> None:
        noise = _noise(draws.rows(rows), images[0].numel()).view(images.shape)
        for image, levels, top, bottom, left, right in zip(images, noise, *corners, strict=True):
            image[:, top:bottom, left:right] = levels[:, top:bottom, left:right]

    return Change(
        fill, chance < share, (np.arange(len(chance)), *_span(heights, top, size[0]), *_span(widths, left, size[1]))
    )


def _span(share: Numbers, place: Numbers, side: int) -> tuple[Whole, Whole]:
    """First and last + 1 of so many pixels, at least one, anywhere on the side."""
    length = np.maximum(np.round(share * side), 1)
    start = np.floor(place * (side - length + 1))
    return start.astype(np.int64), (start + length).astype(np.int64)


def _noise(draws: Draws, count: int) -> Tensor:
    """(B, count) of uint8. A draw has 53 random bits: six levels of eight come out of it."""
    bits = (draws("noise", -(-count // 6)).T * 2.0**48).astype("<u8")  # (B, count / 6)
    levels = bits[..., None].view(np.uint8)[..., :6].reshape(len(bits), -1)
    return torch.from_numpy(levels[:, :count].copy())
