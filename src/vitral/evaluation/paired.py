"""Is A really better than B? Two sets of answers for the same pictures, picture by picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.metrics import FEW, FEW_GROUPS
from vitral.predictions import number_words

# What another seed is taken to do where one run is all there is: the sd of an accuracy p over seeds is at most so many
# times √(p (1 − p)). The largest that was measured is 0.12: docs/decisions/0017-what-better-means.md
SEED_SPREAD = 0.15


@dataclass(frozen=True)
class PairedComparison:
    """How much better the second is than the first, with a confidence interval."""

    first: str
    second: str
    pictures: int
    difference: float  # of the share of right answers, or of another figure: above 0 the second is better
    low: float
    high: float
    level: float  # of the interval: 0.95
    runs: tuple[int, int] | None  # each of another seed, which the interval covers; None: these two weights alone
    few: bool = False  # too few pictures, or groups of them, to tell
    figure: Literal["accuracy", "map", "mae"] = "accuracy"
    target: str = ""  # its name, where a picture has not one class

    @property
    def is_sure(self) -> bool:
        """Whether the difference is more than luck."""
        return not self.few and not self.lacks_seeds and (self.low > 0 or self.high < 0)

    @property
    def lacks_seeds(self) -> bool:
        """Whether the interval is over pictures alone, since nobody knows what another seed does to the figure."""
        return self.figure != "accuracy" and self.runs is not None and min(self.runs) == 1

    @property
    def verdict(self) -> str:
        """The verdict in a sentence."""
        return f"{self.target}: {self._verdict}" if self.target else self._verdict

    def _text(self, value: float) -> str:
        return number_words(value) if self.figure == "mae" else f"{100 * value:.1f}"

    @property
    def _verdict(self) -> str:
        better, worse, low, high = self.second, self.first, self.low, self.high
        if self.difference < 0:
            better, worse, low, high = worse, better, -high, -low
        pictures = f"{self.pictures:,} test picture{'s' if self.pictures > 1 else ''}"
        if self.few:
            of = "" if self.pictures < FEW else f", of fewer than {FEW_GROUPS} groups,"
            few = f"{pictures}{of} {'is' if self.pictures == 1 else 'are'} too few"
            return f"{better} and {worse}: {few} to tell which is better."
        if not self.difference:
            equal = (
                f"have equally many of {pictures} right" if self.figure == "accuracy" else f"are as good on {pictures}"
            )
            return f"{better} and {worse} {equal}."
        more = self._text(abs(self.difference))
        apart = {
            "accuracy": f"{better} has {more} percentage points more of {pictures} right than {worse}",
            "map": f"{better} has {more} percentage points more mean average precision on {pictures} than {worse}",
            "mae": f"{better} is off by {more} less than {worse}, on average over {pictures}",
        }[self.figure]
        of = "" if self.runs is None else " over pictures alone" if self.lacks_seeds else " over seeds and pictures"
        interval = f"{100 * self.level:.3g} % interval{of} {self._text(low)} to {self._text(high)}"
        if self.lacks_seeds and (self.low > 0 or self.high < 0):
            return f"{apart}, which another seed may give ({interval}): cannot tell, train more seeds (--seeds 3)."
        if self.lacks_seeds or self.runs is None or min(self.runs) > 1:
            if self.is_sure:
                condition = "" if self.runs else ", with these pictures to learn from"
                return f"{apart} ({interval}): it is better{condition}."
            return f"{apart}, which can be luck ({interval}): they are not told apart."
        if self.is_sure:
            return f"{apart} ({interval}, taking another seed to change it by no more than elsewhere): it is better."
        return f"{apart}, which another seed may give ({interval}): cannot tell, train more seeds (--seeds 3)."


def compare_paired(
    first: str,
    second: str,
    right: NDArray[np.float64],  # (runs, n): 1 where a run had a picture right
    other: NDArray[np.float64],  # (runs, n), for the same pictures
    *,
    groups: Sequence[str] | None = None,  # (n,) pictures of one group are not independent
    level: float = 0.95,
    over_seeds: bool = True,
) -> PairedComparison:
    """Compare two sets of answers, picture by picture. The interval covers other pictures and, unless `over_seeds` is
    False, other seeds: `right` and `other` have a row for each.

    Pictures that both have right, or both wrong, say nothing: it is narrower than those of the two accuracies.

    >>> right, other = np.repeat([1.0, 0.0], [150, 50])[None], np.repeat([1.0, 0.0], [190, 10])[None]
    >>> compare_paired("A", "B", right, other).is_sure
    True
    """
    count, difference = right.shape[1], float(other.mean() - right.mean())
    if groups is not None:
        right, other = by_group(right, groups), by_group(other, groups)
    units = right.shape[1]
    # As if there were two pictures more, one for each: else a few that differ would seem sure (Bonett and Price 2012).
    one = math.sqrt((1 / len(right) + 1 / len(other)) / 2)
    apart = np.append(other.mean(axis=0) - right.mean(axis=0), [one, -one])
    middle, pictures = float(apart.mean()), float(apart.var()) / len(apart)
    spreads = [seed_spread(answers) for answers in (right, other)] if over_seeds else []
    half = half_width(pictures, units, spreads, level)
    few = count < FEW or (groups is not None and units < FEW_GROUPS)
    runs = (len(right), len(other)) if over_seeds else None
    return PairedComparison(first, second, count, difference, middle - half, middle + half, level, runs, few)


class Spread(NamedTuple):
    """Of the mean of some runs."""

    variance: float  # over seeds
    freedom: float  # its degrees of freedom
    noise: float  # how much of it is the chance of single answers, which is in the variance over pictures too


def half_width(pictures: float, units: int, spreads: Sequence[Spread], level: float) -> float:
    """Half of an interval, from the variance over so many pictures, or groups of them, and the spreads over seeds."""
    from scipy.stats import t

    seeds, noise = sum(spread.variance for spread in spreads), sum(spread.noise for spread in spreads)
    # Welch and Satterthwaite: between the degrees of freedom of the wider group and those of both.
    doubt = sum(spread.variance**2 / spread.freedom for spread in spreads)
    wide, narrow = t.ppf((1 + level) / 2, [seeds**2 / doubt if doubt else math.inf, max(units - 1, 1)])
    return math.sqrt(wide**2 * seeds + narrow**2 * max(pictures - noise, 0))


def by_group(right: NDArray[np.float64], groups: Sequence[str]) -> NDArray[np.float64]:  # (runs, n) → (runs, groups)
    """The sum of each group, scaled so that their mean is that of the pictures."""
    names, group = np.unique(groups, return_inverse=True)
    return np.stack([np.bincount(group, row) for row in right]) * len(names) / len(groups)


def seed_spread(right: NDArray[np.float64]) -> Spread:  # (runs, n)
    """How much the mean over the pictures changes with the seed; of one run alone, what an accuracy does elsewhere."""
    runs, pictures = right.shape
    if runs == 1:
        share = float(right.sum() + 2) / (pictures + 4)  # never 0 or 1
        return Spread(SEED_SPREAD**2 * share * (1 - share), math.inf, 0.0)
    apart = right - right.mean(axis=0)  # from what the runs answer on average
    noise = float(apart.var(axis=1, ddof=1).sum()) / ((runs - 1) * runs * pictures)
    # At least that: two seeds may happen to have equally many right.
    return Spread(max(float(right.mean(axis=1).var(ddof=1)) / runs, noise), runs - 1, noise)


def luck(gains: NDArray[np.int64]) -> float:
    """The probability that two equally good models differ so much, by the exact test that turns signs at random.

    `gains`: how many right answers more one of them has for each picture (McNemar's test), or for each group of them.

    >>> luck(np.array([1, 1, 0, 1, 1]))
    0.125
    >>> luck(np.array([4]))  # all of one group: it might as well have gone the other way
    1.0
    """
    chances = np.ones(1)  # of each sum from -n to n, n = 0
    for size in np.abs(gains[gains != 0]):
        wider = np.zeros(len(chances) + 2 * size)
        wider[: len(chances)] += chances / 2
        wider[2 * size :] += chances / 2
        chances = wider
    sums = np.arange(len(chances)) - len(chances) // 2
    return min(1.0, float(chances[np.abs(sums) >= abs(gains.sum())].sum()))
