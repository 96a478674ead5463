"""Pictures changed a little each time, so that a model does not learn them by heart: batched tensor functions.

    crop → pad → flip → rotate, zoom, shear, shift → the policy's geometry      one resampling
    → the policy's colours → brightness → contrast → saturation → hue → grayscale → blur → solarize
    → erase → one's own → mixup or cutmix

What happens to a picture is a function of seed, epoch, sample and copy, to the last bit: not of the size of the batch,
the other pictures in it, or the number of threads. `mix` is the exception, as it must be: it looks at a neighbour.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.augment import colour
from vitral.data.augment.change import Change
from vitral.data.augment.draws import Draws
from vitral.data.augment.erase import erase
from vitral.data.augment.geometry import Place, Size, affine_matrices, centre, resample
from vitral.data.augment.mix import mix
from vitral.data.augment.policies import blur_sigma, rounds, three
from vitral.data.config import Augment

__all__ = ["affine_matrices", "augment", "mix", "moved"]

# Numbers in a piece of the batch: few enough that its memory is used again (a page that is new costs more than what is
# written on it), enough that threads that work on a batch each do not wait for each other between two short operations.
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
    policy = rounds(how.policy, draws)
    stored_size = (images.shape[2], images.shape[3])
    place = Place.draw(how, draws, [one.matrices(size) for one in policy], stored_size=stored_size, size=size)
    changes = [change for one in policy for change in one.colours()]
    changes += _settings(how, draws, size)
    augmented = torch.empty(*images.shape[:2], *size)
    each = max(1, PIECE // max(images[:1].numel(), 1))
    for start in range(0, len(images), each):
        rows = slice(start, start + each)
        piece = augmented[rows]
        piece.copy_(place(images[rows], rows, background))
        for change in changes:
            change(piece, rows)
    return augmented


def moved(maps: Tensor, how: Augment, draws: Draws, *, stored_size: Size, size: Size) -> Tensor:
    """Maps of the centres of pictures, (B, F, h, w), with the geometry that `augment` gives those pictures."""
    more = [one.matrices(size) for one in rounds(how.policy, draws)]
    place = Place.draw(how, draws, more, stored_size=stored_size, size=size, whole=False)
    assert place.matrices is not None
    h, w = maps.shape[2:]
    return resample(maps, np.linalg.inv(centre(stored_size, size)) @ place.matrices, (h, w), how.outside)


def _settings(how: Augment, draws: Draws, size: Size) -> list[Change]:
    """The changes that follow the geometry, in this order; the last four happen to a share of the pictures."""
    everyone = np.ones(len(draws.samples), bool)
    changes = three(draws) if how.policy.kind == "three" else []
    reach = (how.brightness, how.contrast, how.saturation, how.hue)
    if any(reach):
        operations = (colour.brightness, colour.contrast, colour.saturation, colour.hue)
        for operation, most, none, number in zip(operations, reach, (1, 1, 1, 0), draws("jitter", 4), strict=True):
            if most:
                changes.append(Change(operation, everyone, (none + (2 * number - 1) * most,)))
    if how.grayscale:
        changes.append(Change(colour.grayscale, draws("grayscale", 1)[0] < how.grayscale))
    if how.blur:
        chance, sigma = draws("blur", 2)
        changes.append(Change(colour.blur, chance < how.blur, (blur_sigma(sigma),)))
    if how.solarize:
        chance = draws("solarize", 1)[0]
        changes.append(Change(colour.solarize, chance < how.solarize, (np.full_like(chance, 128),)))
    if how.erase:
        changes.append(erase(how.erase, draws, size))
    return changes
