"""The same question where a picture has several labels, or a number: which answers are nearer to what is true?

What another seed does to these figures was not measured, as it was for accuracies: single runs get no verdict.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.metrics import FEW, FEW_GROUPS, Bools, Floats
from vitral.evaluation.paired import PairedComparison, Spread, by_group, half_width, seed_spread
from vitral.evaluation.target_metrics import LabelsOutcomes, mean_average_precision

DRAWS = 300  # they give a standard deviation, which so many know to 4 %


def compare_numbers(
    first: str,
    second: str,
    off: Floats,  # (runs, n): how far a run was off, never negative
    other: Floats,  # (runs, n), for the same pictures
    *,
    target: str = "",
    groups: Sequence[str] | None = None,
    level: float = 0.95,
) -> PairedComparison:
    """Compare mean absolute errors, picture by picture: by how much less the second is off.

    >>> off = 1 + np.arange(60)[None] / 4
    >>> compare_numbers("A", "B", off, off - 0.5).difference
    0.5
    """
    difference, pictures = float(off.mean() - other.mean()), off.shape[1]
    if groups is not None:
        off, other = by_group(off, groups), by_group(other, groups)
    apart = off.mean(axis=0) - other.mean(axis=0)
    variance = float(apart.var(ddof=1)) / len(apart) if len(apart) > 1 else 0.0
    half = half_width(
        variance, len(apart), [seed_spread(one) for one in (off, other)] if _seeds(off, other) else [], level
    )
    few = _few(pictures, None if groups is None else len(apart))
    return PairedComparison(
        first,
        second,
        pictures,
        difference,
        difference - half,
        difference + half,
        level,
        (len(off), len(other)),
        few,
        "mae",
        target,
    )


def compare_labels(
    first: str,
    second: str,
    truth: Bools,  # (n, labels)
    said: Floats,  # (runs, n, labels): probabilities
    other: Floats,  # (runs, n, labels), for the same pictures
    *,
    target: str = "",
    groups: Sequence[str] | None = None,
    level: float = 0.95,
) -> PairedComparison:
    """Compare mean average precisions: the same draws of pictures, or of groups of them, for both."""
    pictures = len(truth)
    unit_of = np.arange(pictures) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(unit_of.max()) + 1
    outcomes = [[LabelsOutcomes(truth, run, np.full(truth.shape[1], 0.5)) for run in runs] for runs in (said, other)]

    def values(times: Floats) -> list[Floats]:
        return [np.array([mean_average_precision(run, times) for run in runs]) for runs in outcomes]

    def gain(times: Floats) -> float:
        of_first, of_second = values(times)
        return float(of_second.mean() - of_first.mean())

    once = np.ones(pictures)
    random, difference = np.random.default_rng(0), gain(once)  # the same interval each time
    draws = (np.bincount(random.integers(0, units, units), minlength=units)[unit_of] for _ in range(DRAWS))
    variance = float(np.var([gain(times.astype(np.float64)) for times in draws]))
    spreads = (
        [Spread(float(one.var(ddof=1)) / len(one), len(one) - 1, 0.0) for one in values(once)]
        if _seeds(said, other)
        else []
    )
    half = half_width(variance, units, spreads, level)
    few = _few(pictures, None if groups is None else units)
    return PairedComparison(
        first,
        second,
        pictures,
        difference,
        difference - half,
        difference + half,
        level,
        (len(said), len(other)),
        few,
        "map",
        target,
    )


def _seeds(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether the spread over seeds is known of both."""
    return min(len(one), len(other)) > 1


def _few(pictures: int, groups: int | None) -> bool:
    return pictures < FEW or (groups is not None and groups < FEW_GROUPS)
