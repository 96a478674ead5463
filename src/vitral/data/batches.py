"""Pictures, resized once, become batches: the iterator that training and evaluation see. It starts at any step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.augment import augment
from vitral.data.config import Augment
from vitral.data.preprocess import Preprocess
from vitral.data.randomness import permutation
from vitral.data.sources import Index


@dataclass(frozen=True)
class Batch:
    """What a step sees."""

    images: Tensor  # (B, C, H, W), float: the model's input
    labels: Tensor  # (B,)
    samples: NDArray[np.int64]  # (B,) the numbers of the samples in their Index


@dataclass(frozen=True)
class Pack:
    """One split, decoded and resized: the output of the first stage of the preprocessing."""

    samples: NDArray[np.int64]  # (n,)
    images: Tensor  # (n, C, H, W), uint8
    labels: Tensor  # (n,)

    def in_order(self, preprocess: Preprocess, batch_size: int = 256) -> Iterator[Batch]:
        """Every picture once, as it is: for evaluation."""
        for start in range(0, len(self.samples), batch_size):
            part = slice(start, start + batch_size)
            yield Batch(preprocess.normalise(self.images[part]), self.labels[part], self.samples[part])


def pack(index: Index, split: str, preprocess: Preprocess) -> Pack:
    """Decode and resize the pictures of a split."""
    samples = index.of(split)
    shape = (len(samples), preprocess.channels, *preprocess.image_size)
    images = np.empty(shape, dtype=np.uint8)
    for row, sample in enumerate(samples):
        images[row] = preprocess.resized(index.read(sample))
    return Pack(samples, torch.from_numpy(images), torch.from_numpy(index.labels[samples]))


def mean_and_std(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:  # (n, C, H, W) uint8
    """Of pixel / 255, one number a channel; a channel that never changes gets a standard deviation of 1."""
    # Exact whole-number sums over a histogram: no rounding, whatever the order or the number of pictures.
    means, stds = [], []
    level = np.arange(256) / 255
    for channel in range(images.shape[1]):
        share = np.bincount(images[:, channel].flatten().numpy(), minlength=256) / images[:, channel].numel()
        mean = float(share @ level)
        means.append(mean)
        stds.append(float(np.sqrt(share @ (level - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)


@dataclass(frozen=True)
class Batches:
    """Training batches: shuffled anew each epoch, augmented, the same for the same seed whoever asks."""

    pack: Pack
    preprocess: Preprocess
    augment: Augment
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Pictures that do not fill a batch are left out of the epoch; a set smaller than a batch is one batch."""
        return max(1, len(self.pack.samples) // self.batch_size)

    def starting_at(self, first_step: int) -> Iterator[tuple[int, Batch]]:
        """(step, batch) without end, counting from `first_step`; step 1 is the first of all."""
        step = first_step
        while True:
            epoch, place = divmod(step - 1, self.steps_per_epoch)
            order = permutation(self.seed, "order", epoch=epoch, count=len(self.pack.samples))
            for start in range(place * self.batch_size, self.steps_per_epoch * self.batch_size, self.batch_size):
                yield step, self._batch(order[start : start + self.batch_size], epoch)
                step += 1

    def _batch(self, rows: NDArray[np.int64], epoch: int) -> Batch:
        samples = self.pack.samples[rows]
        images = augment(
            self.pack.images[rows],
            self.augment,
            seed=self.seed,
            epoch=epoch,
            samples=samples,
            background=self.preprocess.background,
        )
        return Batch(self.preprocess.normalise(images), self.pack.labels[rows], samples)
