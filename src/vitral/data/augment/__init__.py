"""Pictures changed a little each time, so that a model does not learn them by heart: batched tensor functions.

    crop → pad → flip → rotate, zoom, shear, shift → the policy's geometry      one resampling
    → the policy's colours → brightness → contrast → saturation → hue → grayscale → blur → solarize
    → erase → mixup or cutmix

What happens to a picture is a function of seed, epoch, sample and copy, to the last bit: not of the size of the batch,
the other pictures in it, or the number of threads. `mix` is the exception, as it must be: it looks at a neighbour.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.augment import colour
from vitral.data.augment.draws import Draws, Numbers
from vitral.data.augment.erase import erase
from vitral.data.augment.geometry import Size, affine_matrices, place
from vitral.data.augment.mix import mix
from vitral.data.augment.policies import blur_sigma, change, rounds, three
from vitral.data.config import Augment

__all__ = ["affine_matrices", "augment", "mix"]

# Numbers in a piece of the batch: enough that drawing for it costs little, few enough that its memory is used again.
PIECE = 2**21


def augment(
    images: Tensor,
    how: Augment,
    *,
    size: Size,
    seed: int,
    epoch: int,
    samples: NDArray[np.int64],
    copies: NDArray[np.int64] | int = 0,
    background: int = 0,
) -> Tensor:
    """(B, C, H', W') of uint8 → (B, C, H, W) of 0 to 255, as float.

    Stored pictures may be larger than the output, `size`: then `crop` takes a part of all of it, and without it the
    centre is what is changed. What comes in from outside the stored picture is of the grey level `background`.
    """
    draws = Draws(seed, epoch, samples, np.broadcast_to(copies, len(samples)))
    augmented = torch.empty(*images.shape[:2], *size)
    each = max(1, PIECE // max(images[:1].numel(), 1))
    for start in range(0, len(images), each):
        rows = slice(start, start + each)
        augmented[rows] = _augmented(images[rows], how, draws.rows(rows), size, background)
    return augmented


def _augmented(images: Tensor, how: Augment, draws: Draws, size: Size, background: int) -> Tensor:
    policy = rounds(how.policy, draws)
    moved = [one.matrices(size) for one in policy]
    images = place(images, how, draws, moved, size=size, background=background)
    for one in policy:
        one.colours(images)
    if how.policy.kind == "three":
        three(images, draws)
    _jitter(images, how, draws)
    if how.erase:
        erase(images, how.erase, draws)
    return images


def _jitter(images: Tensor, how: Augment, draws: Draws) -> None:
    """The settings that are about colour, in this order, in place. The last three happen to a share of the pictures."""
    reach = np.array([how.brightness, how.contrast, how.saturation, how.hue])[:, None]
    if reach.any():
        change(images, np.ones(len(images), bool), _jittered, *((2 * draws("jitter", 4) - 1) * reach))
    if how.grayscale:
        change(images, draws("grayscale", 1)[0] < how.grayscale, colour.grayscale)
    if how.blur:
        chosen, sigma = draws("blur", 2)
        change(images, chosen < how.blur, colour.blur, blur_sigma(sigma))
    if how.solarize:
        chosen = draws("solarize", 1)[0]
        change(images, chosen < how.solarize, colour.solarize, np.full_like(chosen, 128))


def _jittered(images: Tensor, *by: Numbers) -> Tensor:
    """Four changes, 0 for none. One after the other for a picture: it stays in the cache meanwhile."""
    operations = (colour.brightness, colour.contrast, colour.saturation, colour.hue)
    for operation, amount, none in zip(operations, by, (1, 1, 1, 0), strict=True):
        if np.any(amount):
            images = operation(images, none + amount)
    return images
