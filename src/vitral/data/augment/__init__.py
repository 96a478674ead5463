"""Pictures changed a little each time, so that a model does not learn them by heart: batched tensor functions.

    crop → pad → flip → rotate, zoom, shear, shift → the policy's geometry      one resampling
    → the policy's colours → brightness → contrast → saturation → hue → grayscale → blur → solarize
    → erase → mixup or cutmix

What happens to a picture is a function of seed, epoch, sample and copy, to the last bit: not of the size of the batch,
the other pictures in it, or the number of threads. `mix` is the exception, as it must be: it looks at a neighbour.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.augment import colour
from vitral.data.augment.draws import Draws
from vitral.data.augment.erase import erase
from vitral.data.augment.geometry import Size, affine_matrices, place
from vitral.data.augment.mix import mix
from vitral.data.augment.policies import blur_sigma, change, rounds, three
from vitral.data.config import Augment

__all__ = ["affine_matrices", "augment", "mix"]

# Numbers in a piece of the batch: few enough to stay in the cache of a core from one operation to the next.
PIECE = 2**20


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

    def piece(rows: slice) -> None:
        augmented[rows] = _augmented(images[rows], how, draws.rows(rows), size, background)

    each = max(1, PIECE // max(images[:1].numel(), 1))
    pieces = [slice(start, start + each) for start in range(0, len(images), each)]
    threads = torch.get_num_threads()
    if threads == 1:
        for rows in pieces:
            piece(rows)
        return augmented
    # A piece is the work of one thread. Torch would share out every small operation and wait for both halves of it:
    # where the other core is busy that is 8 ms for what takes 0.02. The setting holds in the thread that makes it, and
    # in those that begin after it: hence the last line.
    with ThreadPoolExecutor(min(threads, len(pieces)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(piece, pieces))
    torch.set_num_threads(threads)
    return augmented


def _augmented(images: Tensor, how: Augment, draws: Draws, size: Size, background: int) -> Tensor:
    policy = rounds(how.policy, draws)
    moved = [one.matrices(size) for one in policy]
    images = place(images, how, draws, moved, size=size, background=background)
    for one in policy:
        one.colours(images)
    if how.policy.kind == "three":
        three(images, draws)
    images = _jittered(images, how, draws)
    if how.erase:
        erase(images, how.erase, draws)
    return images


def _jittered(images: Tensor, how: Augment, draws: Draws) -> Tensor:
    """The settings that are about colour, in a fixed order. The last three happen to a share of the pictures."""
    light, contrast, saturation, hue = 2 * draws("jitter", 4) - 1  # each −1 to 1
    if how.brightness:
        images = colour.brightness(images, 1 + light * how.brightness)
    if how.contrast:
        images = colour.contrast(images, 1 + contrast * how.contrast)
    if how.saturation:
        images = colour.saturation(images, 1 + saturation * how.saturation)
    if how.hue:
        images = colour.hue(images, hue * how.hue)
    if how.grayscale:
        change(images, draws("grayscale", 1)[0] < how.grayscale, colour.grayscale)
    if how.blur:
        chosen, sigma = draws("blur", 2)
        change(images, chosen < how.blur, colour.blur, blur_sigma(sigma))
    if how.solarize:
        chosen = draws("solarize", 1)[0]
        change(images, chosen < how.solarize, colour.solarize, np.full_like(chosen, 128))
    return images
