"""Colours changed in place, one function per operation: (B, C, H, W) of 0 to 255. None of them knows of chance.

A strength is one number for all, or one per picture, (B,). Three channels are red, green and blue; what is about colour
leaves any other number of channels alone. A test holds each function against Pillow.

A picture's result must not depend on its neighbours in the batch, not in the last bit. So sums go along one dimension,
always in the same order, and the rest is one plain operation after the other: a fused one may round differently at the
end of a row.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vitral.data.augment.draws import Numbers

Strength = Numbers | float


def brightness(images: Tensor, factor: Strength) -> Tensor:
    """0 is black, 1 the picture."""
    return images.mul_(_each(factor, images)).clamp_(0, 255)


def contrast(images: Tensor, factor: Strength) -> Tensor:
    """0 is the mean grey of the picture everywhere, 1 the picture."""
    means = images.mean(3).mean(2, dtype=torch.float64)  # (B, C)
    mean = (means * means.new_tensor(_weights(images))).sum(1).add_(0.5).floor_()  # (B,), a whole number as in Pillow
    return _blend(mean.to(images).view(-1, 1, 1, 1), images, factor)


def saturation(images: Tensor, factor: Strength) -> Tensor:
    """0 is the picture in grey, 1 the picture."""
    return _blend(grey(images), images, factor) if images.shape[1] == 3 else images


def sharpness(images: Tensor, factor: Strength) -> Tensor:
    """0 is a smooth picture, 1 the picture, more is sharper. The outermost pixels stay, as Pillow has it."""
    if min(images.shape[-2:]) < 3:
        return images
    middle = images[:, :, 1:-1, 1:-1]
    three = (images[:, :, :-2] + images[:, :, 1:-1]).add_(images[:, :, 2:])  # (B, C, H - 2, W)
    nine = (three[..., :-2] + three[..., 1:-1]).add_(three[..., 2:])  # (B, C, H - 2, W - 2)
    # Smooth is every neighbour once and the pixel itself five times, over 13: nine and four more of it.
    share = _each(factor, images)
    smooth = (1 - share) / 13
    middle.mul_(share + 4 * smooth).add_(nine.mul_(smooth)).clamp_(0, 255)
    return images


def hue(images: Tensor, turn: Strength) -> Tensor:
    """Colours move by this share of the colour circle: 1/3 makes red green. Value and saturation (HSV) stay."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images.split(1, dim=1)  # each (B, 1, H, W)
    high = images.amax(1, keepdim=True)
    span = high - images.amin(1, keepdim=True)
    some = span.clamp(min=1e-6)  # grey has no hue: any will do
    place = torch.where(high == green, (blue - red).div_(some).add_(2), (red - green).div_(some).add_(4))
    place = torch.where(high == red, (green - blue).div_(some), place)  # in sixths of the circle, red is 0
    place.add_(_each(turn, images) * 6)
    for channel, start in ((red, 5), (green, 3), (blue, 1)):
        along = place + start
        along -= (along / 6).floor_().mul_(6)  # 0 to 6; not torch.remainder, which may round differently in a tail
        fall = torch.minimum(along, 4 - along).clamp_(0, 1)
        torch.sub(high, fall.mul_(span), out=channel)
    return images.clamp_(0, 255)


def grayscale(images: Tensor) -> Tensor:
    """Red, green and blue all become what the eye sees of them."""
    return images.copy_(grey(images)) if images.shape[1] == 3 else images


def solarize(images: Tensor, threshold: Strength) -> Tensor:
    """Levels from the threshold up are inverted: 0 inverts the picture, 256 leaves it."""
    # Half a level lower: a flat 128 that was resampled may be 127.99999.
    lowest = _each(np.ceil(threshold) - 0.5, images)
    inverted = torch.ge(images, lowest, out=torch.empty_like(images))  # 1 or 0; a mask and a choice by it take longer
    return images.sub_(inverted.mul_(255)).abs_()


def posterize(images: Tensor, bits: Strength) -> Tensor:
    """Of the eight bits of a level, the first so many stay."""
    step = _each(2.0 ** (8 - np.asarray(bits)), images)
    # Rounded first: a flat 128 that was resampled may be 127.99999, and would fall by a whole step.
    return images.round_().div_(step).floor_().mul_(step)


def autocontrast(images: Tensor) -> Tensor:
    """The darkest level of each channel becomes 0, the brightest 255; a channel of one level stays."""
    low, high = images.flatten(2).amin(2), images.flatten(2).amax(2)  # each (B, C)
    flat = high - low < 1e-3  # a flat channel that was resampled is not quite flat
    low = low.masked_fill(flat, 0)[..., None, None]
    scale = (255 / (high - low[..., 0, 0])).masked_fill(flat, 1)[..., None, None]
    return images.sub_(low).mul_(scale).clamp_(0, 255)


def equalize(images: Tensor) -> Tensor:
    """Each channel gets all its levels about equally often; the arithmetic is Pillow's, in whole numbers."""
    planes = images.shape[0] * images.shape[1]
    # int32: moving the indices is what takes time here, and int64 has twice the bytes.
    levels = images.round().int().view(planes, -1)  # (B · C, H · W)
    levels += torch.arange(0, 256 * planes, 256, dtype=torch.int32, device=images.device)[:, None]
    counts = levels.flatten().bincount(minlength=256 * planes).view(planes, 256)
    upto = counts.cumsum(1)
    below = upto - counts
    # All pixels but those of the brightest level, in 255 steps
    step = torch.where(counts > 0, below, 0).amax(1, keepdim=True).div(255, rounding_mode="floor")
    spread = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp_(0, 255)
    table = torch.where(step > 0, spread, torch.arange(256, device=images.device)).to(images.dtype)
    return images.copy_(table.flatten().index_select(0, levels.flatten()).view(images.shape))


def blur(images: Tensor, sigma: Strength) -> Tensor:
    """As a Gaussian of so many pixels does. Outside, the edge pixels go on."""
    halves = [_half_kernel(float(one)) for one in np.broadcast_to(sigma, len(images))]
    weights = np.zeros((len(halves), max(map(len, halves))))  # what is nought changes no bit of the others
    for row, half in zip(weights, halves, strict=True):
        row[: len(half)] = half
    _smooth(images, weights, across=True)
    _smooth(images, weights, across=False)
    return images


def grey(images: Tensor) -> Tensor:
    """(B, 1, H, W): red, green and blue as the eye weighs them (ITU-R 601); of other channels the mean."""
    first, *others = images.split(1, dim=1)
    weight, *weights = _weights(images)
    total = first * weight
    for channel, weight in zip(others, weights, strict=True):
        total += channel * weight
    return total


def _weights(images: Tensor) -> tuple[float, ...]:
    channels = images.shape[1]
    return (0.299, 0.587, 0.114) if channels == 3 else (1 / channels,) * channels


def _blend(plain: Tensor, images: Tensor, factor: Strength) -> Tensor:
    """`plain` at 0, `images` at 1 (to the bit), and on in the same direction beyond it."""
    share = _each(factor, images)
    return images.mul_(share).add_(plain.mul_(1 - share)).clamp_(0, 255)


def _each(strength: Strength, images: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(strength, np.float64).reshape(-1, 1, 1, 1)).to(images)


def _half_kernel(sigma: float) -> Numbers:
    """The middle weight and those to one side of it.

    Three boxes one after the other, each with a third of the variance, as Pillow has it (Gwosdek et al. 2011). A box is
    2 · reach + 1 ones and a part of one at either end, so that the variance is right for a fraction of a pixel too,
    where a Gaussian that is read off at whole pixels is much too narrow.
    """
    variance = sigma**2 / 3
    reach = int((np.sqrt(12 * variance + 1) - 1) / 2)
    ones = 2 * reach + 1
    end = (variance * ones - reach * (reach + 1) * ones / 3) / (2 * ((reach + 1) ** 2 - variance))
    box = np.array([end, *[1.0] * ones, end]) / (ones + 2 * end)
    return np.convolve(np.convolve(box, box), box)[3 * (reach + 1) :]


def _smooth(images: Tensor, weights: Numbers, *, across: bool) -> None:
    far, dim = weights.shape[1] - 1, 3 if across else 2
    wide = pad(images, (far, far, 0, 0) if across else (0, 0, far, far), mode="replicate")
    images.mul_(_each(weights[:, 0], images))
    pair = torch.empty_like(images)  # one memory for all of them
    for k in range(1, far + 1):
        left, right = (wide.narrow(dim, start, images.shape[dim]) for start in (far - k, far + k))
        torch.add(left, right, out=pair)
        images += pair.mul_(_each(weights[:, k], images))
