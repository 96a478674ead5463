"""Is A really better than B? Two sets of answers for the same pictures, picture by picture."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.metrics import FEW

DRAWS = 2_000


@dataclass(frozen=True)
class PairedComparison:
    """How much better the second is than the first, with a 95 % confidence interval.

    By a bootstrap over pictures; one run beside one is judged by McNemar's exact test. Pictures that both have right,
    or both wrong, say nothing: the interval is narrower than those of the two accuracies. What other seeds would give
    is not in it.
    """

    first: str
    second: str
    pictures: int
    difference: float  # of the share of right answers
    low: float
    high: float
    by_luck: float | None  # how probable as large a difference is if both are equally good; of several runs, None

    @property
    def is_sure(self) -> bool:
        """Whether the difference is more than luck."""
        if self.by_luck is not None:
            return self.by_luck < 0.05
        return self.low > 0 or self.high < 0

    @property
    def verdict(self) -> str:
        """The verdict in a sentence."""
        better, worse, low, high = self.second, self.first, self.low, self.high
        if self.difference < 0:
            better, worse, low, high = worse, better, -high, -low
        pictures = f"{self.pictures:,} test picture{'s' if self.pictures > 1 else ''}"
        if self.pictures < FEW:
            few = f"{pictures} {'is' if self.pictures == 1 else 'are'} too few"
            return f"{better} and {worse}: {few} to tell which is better."
        if not self.difference:
            return f"{better} and {worse} have equally many of {pictures} right."
        apart = f"{better} has {100 * abs(self.difference):.1f} percentage points more of {pictures} right than {worse}"
        interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f}"
        if self.is_sure:
            return f"{apart} ({interval}): it is better."
        return f"{apart}, which can be luck ({interval}): they are not told apart."


def compare_paired(first: str, second: str, right: NDArray[np.float64], other: NDArray[np.float64]) -> PairedComparison:
    """Compare two sets of answers, picture by picture. `right` and `other`, (n,): the share of the
    runs that had each picture right; of one run 0 or 1."""
    apart = other - right
    random = np.random.default_rng(0)  # the same interval each time
    means = [float(apart[random.integers(0, len(apart), len(apart))].mean()) for _ in range(DRAWS)]
    low, high = np.quantile(means, [0.025, 0.975])
    one_each = bool(np.isin([right, other], [0, 1]).all())
    by_luck = luck(int((apart > 0).sum()), int((apart < 0).sum())) if one_each else None
    return PairedComparison(first, second, len(apart), float(apart.mean()), float(low), float(high), by_luck)


def luck(gained: int, lost: int) -> float:
    """The probability that two equally good models differ so much (McNemar's exact test).

    >>> luck(4, 0)
    0.125
    """
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
