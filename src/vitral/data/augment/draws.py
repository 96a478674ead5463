"""The random numbers of some pictures: a sample has its own, whoever stands beside it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitral.data.randomness import uniform

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Draws:
    """Called with a purpose, gives numbers in [0, 1). A change has a purpose of its own: none moves another."""

    seed: int
    epoch: int
    samples: NDArray[np.int64]  # (B,)
    copies: NDArray[np.int64]  # (B,)

    def __call__(self, purpose: str, count: int) -> Numbers:
        """(count, B), new in each epoch."""
        return self._of(purpose, count, self.epoch)

    def once(self, purpose: str) -> Numbers:
        """(B,), the same in every epoch."""
        return self._of(purpose, 1, 0)[0]

    def rows(self, rows: slice | NDArray[np.int64]) -> "Draws":
        return Draws(self.seed, self.epoch, self.samples[rows], self.copies[rows])

    def _of(self, purpose: str, count: int, epoch: int) -> Numbers:
        numbers = uniform(self.seed, purpose, epoch=epoch, samples=self.samples, copy=self.copies, draws=count)
        return np.ascontiguousarray(numbers.T)
