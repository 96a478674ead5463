"""Is A really better than B? Two sets of answers for the same pictures, picture by picture."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2_000


@dataclass(frozen=True)
class Paired:
    """How much better the second is than the first, and where that lies with 95 % confidence.

    By a bootstrap over pictures. Pictures that both have right, or both wrong, tell nothing: the interval is narrower
    than those of the two accuracies. What other seeds would give is in it only as far as several runs are compared.
    """

    first: str
    second: str
    pictures: int
    difference: float  # of the share of right answers
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """In a sentence."""
        better, worse, low, high = self.second, self.first, self.low, self.high
        if self.difference < 0:
            better, worse, low, high = worse, better, -high, -low
        apart = f"{better} has {abs(self.difference):.1%} more of {self.pictures:,} test pictures right than {worse}"
        interval = f"95 % interval {low:.1%} to {high:.1%}"
        if low > 0:
            return f"{apart} ({interval}): it is better."
        return f"{apart}, which can be luck ({interval}): they are not told apart."


def paired(first: str, second: str, right: NDArray[np.float64], other: NDArray[np.float64]) -> Paired:
    """`right` and `other`, (n,): the share of the runs that had each picture right; of one run 0 or 1."""
    apart = other - right
    random = np.random.default_rng(0)  # the same interval each time
    means = [float(apart[random.integers(0, len(apart), len(apart))].mean()) for _ in range(DRAWS)]
    low, high = np.quantile(means, [0.025, 0.975])
    return Paired(first, second, len(apart), float(apart.mean()), float(low), float(high))
