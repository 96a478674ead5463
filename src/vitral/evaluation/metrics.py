"""Figures from labels and probabilities, each with the interval in which it would lie for other pictures like these.

Shares (accuracy, recall, …) have Wilson's interval. What is no plain share (loss, balanced accuracy, macro-F1,
calibration error) has that of a bootstrap: as many pictures are drawn 1,000 times, with repeats, and the interval is
the middle 95 % of the figures that come out, moved by as much as these are off on average. Where pictures come in
groups, whole groups are drawn (pictures of one patient are not so many witnesses), and the interval of a share is the
wider of both.

A calibration error is above 0 by chance alone, for a perfectly calibrated model too: its interval reaches down by as
much as that. (In simulations it then holds the true one 98 times in 100 or more often.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.errors import DataError

DRAWS = 1_000
CHANCES = 100  # times that right and wrong are drawn by the probabilities themselves
FEW = 30  # pictures, below which a bootstrap says nothing
FEW_GROUPS = 5  # likewise
BINS = 15  # of confidence, from 0 to 1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Figure:
    """A number, and where it lies with 95 % confidence; no interval where there are too few pictures for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ClassFigures:
    """One class. `None`: it has no pictures (recall), or was never the answer (precision)."""

    name: str
    pictures: int
    answered: int  # how often it was the answer
    right: int
    recall: Figure | None
    precision: Figure | None
    f1: float | None


@dataclass(frozen=True)
class Bin:
    """Outputs of about the same confidence: where they are calibrated, that share of them is right."""

    pictures: int
    confidence: float  # the mean
    accuracy: Figure


@dataclass(frozen=True)
class Metrics:
    """All figures of a set of answers."""

    pictures: int
    loss: Figure
    accuracy: Figure
    top_5: Figure | None  # None: there are not more than 5 classes
    balanced_accuracy: Figure  # the mean recall of the classes that have pictures
    macro_f1: Figure  # the mean F1 of the classes that have pictures or were answered
    calibration_error: Figure  # how far confidence and accuracy are apart, on average over 15 bins of confidence (ECE)
    calibration_error_by_chance: float  # what it would be on average, were the model perfectly calibrated
    classes: tuple[ClassFigures, ...]
    reliability: tuple[Bin, ...]  # the bins that are not empty
    confusion: Ints  # (classes, classes): rows are labels, columns are answers


def measure(
    labels: Ints, probabilities: Floats, class_names: tuple[str, ...], groups: Sequence[str] | None = None
) -> Metrics:
    """`labels` (n,) beside `probabilities` (n, classes). `groups` (n,) says which pictures belong together."""
    n, classes = probabilities.shape
    if not n:
        raise DataError("There are no pictures to measure on.")
    if not np.isfinite(probabilities).all():
        raise DataError("The model's answers are no numbers: its weights are damaged, or its training ran away.")
    answered = probabilities.argmax(axis=1)
    confidence, right = probabilities.max(axis=1), answered == labels
    losses = -np.log(np.maximum(probabilities[np.arange(n), labels], np.finfo(np.float64).tiny))
    in_bin = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    top = (np.argpartition(-probabilities, 5, axis=1)[:, :5] == labels[:, None]).any(axis=1) if classes > 5 else right

    def apart(times: Floats, right: Floats | NDArray[np.bool_]) -> float:
        """The calibration error."""
        return float(np.abs(np.bincount(in_bin, times * (confidence - right), BINS)).sum()) / float(times.sum())

    def figures(times: Floats) -> tuple[float, ...]:
        """All of them, with each picture counted so many times."""
        n = float(times.sum())
        there = np.bincount(labels, times, classes)
        given, found = np.bincount(answered, times, classes), np.bincount(labels, times * right, classes)
        recall, f1 = _ratio(found, there), _ratio(2 * found, there + given)
        return (
            float(times @ losses) / n,
            float(times @ right) / n,
            float(times @ top) / n,
            float(recall.sum() / (there > 0).sum()),
            float(f1.sum() / (there + given > 0).sum()),
            apart(times, right),
        )

    chance = np.random.default_rng(0)
    by_chance = float(np.mean([apart(np.ones(n), chance.random(n) < confidence) for _ in range(CHANCES)]))
    drawn = _bootstrapped(figures, n, groups, most=(np.inf, *[1.0] * 5), lower=(*[0.0] * 5, by_chance))
    loss, accuracy, top_5, balanced_accuracy, macro_f1, calibration_error = drawn
    if groups is None:
        accuracy, top_5 = share(int(right.sum()), n), share(int(top.sum()), n)
    else:
        accuracy, top_5 = (_wider(one, share(round(one.value * n), n)) for one in (accuracy, top_5))
    confusion = np.bincount(labels * classes + answered, minlength=classes**2).reshape(classes, classes)
    return Metrics(
        pictures=n,
        loss=loss,
        accuracy=accuracy,
        top_5=top_5 if classes > 5 else None,
        balanced_accuracy=balanced_accuracy,
        macro_f1=macro_f1,
        calibration_error=calibration_error,
        calibration_error_by_chance=by_chance,
        classes=tuple(_class(name, label, confusion) for label, name in enumerate(class_names)),
        reliability=tuple(
            Bin(int(some.sum()), float(confidence[some].mean()), share(int(right[some].sum()), int(some.sum())))
            for some in (in_bin == number for number in range(BINS))
            if some.any()
        ),
        confusion=confusion,
    )


def share(right: int, of: int) -> Figure:
    """A share, with Wilson's interval.

    >>> share(9, 10)
    Figure(value=0.9, low=0.5958499732047615, high=0.9821237869049271)
    """
    from scipy.stats import binomtest

    interval = binomtest(right, of).proportion_ci(confidence_level=0.95, method="wilson")
    return Figure(right / of, float(interval.low), float(interval.high))


def _wider(drawn: Figure, wilson: Figure) -> Figure:
    bounds = [bound for bound in (drawn.low, drawn.high, wilson.low, wilson.high) if bound is not None]
    return Figure(wilson.value, min(bounds), max(bounds))


def _class(name: str, label: int, confusion: Ints) -> ClassFigures:
    pictures, answered = int(confusion[label].sum()), int(confusion[:, label].sum())
    right = int(confusion[label, label])
    return ClassFigures(
        name,
        pictures,
        answered,
        right,
        recall=share(right, pictures) if pictures else None,
        precision=share(right, answered) if answered else None,
        f1=2 * right / (pictures + answered) if pictures + answered else None,
    )


def _bootstrapped(
    figures: Callable[[Floats], tuple[float, ...]],
    n: int,
    groups: Sequence[str] | None,
    most: tuple[float, ...],
    lower: tuple[float, ...],
) -> list[Figure]:
    """`most`: what each figure can be at most; `lower`: by how much each interval reaches farther down."""
    all_once = np.array(figures(np.ones(n)))
    drawn_from = np.arange(n) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(drawn_from.max()) + 1
    if n < FEW or (groups is not None and units < FEW_GROUPS):
        return [Figure(float(value)) for value in all_once]
    random = np.random.default_rng(0)  # the same intervals each time
    draws = (np.bincount(random.integers(0, units, units), minlength=units) for _ in range(DRAWS))
    values = np.array([figures(times[drawn_from].astype(np.float64)) for times in draws])
    spread = values.std(axis=0) > 0  # where not one mistake was seen, draws say nothing of those to come
    values -= values.mean(axis=0) - all_once
    low, high = np.clip(np.quantile(values, [0.025, 0.975], axis=0) - [lower, np.zeros(len(lower))], 0.0, most)
    low, high = np.minimum(low, all_once), np.maximum(high, all_once)
    each = zip(all_once, low, high, spread, strict=True)
    return [Figure(float(v), float(a), float(b)) if known else Figure(float(v)) for v, a, b, known in each]


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    """0 where there is nothing to share."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
