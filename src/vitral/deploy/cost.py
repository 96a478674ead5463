"""What it costs when a file has other answers than the model that it is from, picture by picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.paired import compare_paired
from vitral.targets import Target, columns

LOSS = 0.5  # points of accuracy that a reduced file may cost, unless it is said otherwise
OF_NUMBER = 0.01  # of its standard deviation: a number that is farther off is another answer


@dataclass(frozen=True)
class Cost:
    """The answers of a file beside those of the model. Where nobody knows what is right, the model is."""

    pictures: int
    right: int  # of the model's answers
    worse: int  # pictures that the model alone has right
    better: int  # pictures that the file alone has right
    other: int  # answers that are others than the model's
    has_labels: bool

    @classmethod
    def of(cls, ours: NDArray[np.bool_], theirs: NDArray[np.bool_], other: int, has_labels: bool) -> "Cost":
        """From which answers are right, (n,), of the model and of the file."""
        worse, better = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
        return cls(len(ours), int(ours.sum()), worse, better, other, has_labels)

    @property
    def points(self) -> float:
        """By how many points of accuracy the file is worse.

        >>> Cost(200, 190, 3, 1, 5, True).points
        1.0
        """
        return 100 * (self.worse - self.better) / self.pictures

    def within(self, loss: float) -> bool:
        """Whether it costs no more points than that on these pictures."""
        return self.points <= loss + 1e-9

    def surely_within(self, loss: float) -> bool:
        """The same by its standard error, and not by luck: so it is chosen, as other pictures will be others.

        >>> Cost(1000, 900, 9, 6, 20, True).within(0.5), Cost(1000, 900, 9, 6, 20, True).surely_within(0.5)
        (True, False)
        """
        return max(self.points, 0.0) + 100 * math.sqrt(self.worse + self.better) / self.pictures <= loss + 1e-9

    @property
    def interval(self) -> tuple[float, float]:
        """Of the points, 95 %, picture by picture."""
        counts = [self.pictures - self.worse - self.better, self.better, self.worse]
        ours, theirs = np.repeat([1.0, 0.0, 1.0], counts)[None], np.repeat([1.0, 1.0, 0.0], counts)[None]
        paired = compare_paired("", "", theirs, ours, over_seeds=False)
        return 100 * paired.low, 100 * paired.high

    def __str__(self) -> str:
        low, high = self.interval
        points = f"{self.points:.2g} points (95 % interval {low:.1f} to {high:.1f})"
        if not self.has_labels:
            return f"nobody knows which answers are right, so {self.other} others count as wrong: {points}"
        return f"{self.right - self.worse + self.better} are right, {self.right} of the model's: it costs {points}"


def differ(
    targets: Sequence[Target], thresholds: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]
) -> NDArray[np.bool_]:  # (n, outputs) twice → (n,)
    """Whether two answers are not the same: another class, other labels, another number."""
    other = np.zeros(len(ours), bool)
    for target, mine in zip(targets, columns(targets), strict=True):
        one, two = ours[:, mine], theirs[:, mine]
        if target.kind == "class":
            other |= one.argmax(axis=1) != two.argmax(axis=1)
        elif target.kind == "labels":
            other |= ((one >= thresholds[mine]) != (two >= thresholds[mine])).any(axis=1)
        else:
            other |= ~(np.abs(one - two) <= OF_NUMBER * target.std).all(axis=1)
    return other


def cost_of(
    targets: Sequence[Target],
    thresholds: NDArray[Any],
    ours: NDArray[Any],
    theirs: NDArray[Any],
    labels: NDArray[np.int64] | None,
) -> Cost:
    """What the values of a file, (n, outputs), cost beside those of the model. `labels`: (n,) classes."""
    other = differ(targets, thresholds, ours, theirs)
    if labels is None:
        return Cost.of(np.ones(len(ours), bool), ~other, int(other.sum()), False)
    return Cost.of(ours.argmax(axis=1) == labels, theirs.argmax(axis=1) == labels, int(other.sum()), True)
