"""Pictures of a batch mixed with each other, and their labels with them: mixup and cutmix."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from vitral.data.augment.draws import Draws, Numbers
from vitral.data.config import Augment


def mix(
    images: Tensor,
    labels: Tensor,
    classes: int,
    how: Augment,
    *,
    seed: int,
    epoch: int,
    samples: NDArray[np.int64],
    copies: NDArray[np.int64] | int = 0,
) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) and labels (B,) → images of the same shape, and targets (B, classes) that sum to 1. Of labels
    (B, outputs) each output is mixed: shares of labels, numbers in between.

    The first picture of a batch is mixed with the last, the second with the last but one, and so on; each has its own
    share. With both mixup and cutmix each picture gets one of them, as likely.
    """
    from scipy.special import betaincinv  # a tenth of a second that a training without mixing does without

    targets = one_hot(labels, classes).to(images.dtype) if labels.ndim == 1 else labels
    if not (how.mixup or how.cutmix):
        return images, targets
    which, level, down, across = Draws(seed, epoch, samples, np.broadcast_to(copies, len(samples)))("mix", 4)
    cut = which < 0.5 if how.mixup and how.cutmix else np.full(len(which), how.cutmix > 0)
    alpha = np.where(cut, how.cutmix, how.mixup)
    share = betaincinv(alpha, alpha, level)  # (B,) of the picture itself, spread as Beta(alpha, alpha)
    weights = torch.from_numpy(share).to(images).view(-1, 1, 1, 1).expand(-1, 1, *images.shape[2:])
    if cut.any():
        keep = _keep_mask(share, down, across, images.shape[2], images.shape[3])  # (B, H, W)
        share = np.where(cut, keep.mean((1, 2)), share)
        is_cut = torch.from_numpy(cut).to(images.device).view(-1, 1, 1, 1)
        weights = torch.where(is_cut, torch.from_numpy(keep).to(images)[:, None], weights)
    own = torch.from_numpy(share).to(targets)[:, None]
    return _mixed(images, weights), _mixed(targets, own)


def _keep_mask(share: Numbers, down: Numbers, across: Numbers, height: int, width: int) -> NDArray[np.bool_]:
    """(B, H, W): all but a rectangle that has the shape of the picture, its centre anywhere, cut off at the edges."""
    side = np.sqrt(1 - share)
    rows = _inside(down, side, height)  # (B, H)
    columns = _inside(across, side, width)  # (B, W)
    return ~(rows[:, :, None] & columns[:, None, :])


def _inside(centre: Numbers, side: Numbers, length: int) -> NDArray[np.bool_]:
    start = np.round((centre - side / 2) * length)[:, None]
    pixel = np.arange(length)
    return (pixel >= start) & (pixel < start + np.round(side * length)[:, None])


def _mixed(ours: Tensor, share: Tensor) -> Tensor:
    """Each row with its mirror image in the batch."""
    return (ours * share).add_(ours.flip(0).mul_(1 - share))
