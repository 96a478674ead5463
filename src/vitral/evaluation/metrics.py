"""Figures from labels and probabilities, each with the interval in which it would lie for other pictures like these.

Shares (accuracy, recall, …) have Wilson's interval. What is no plain share (loss, balanced accuracy, macro-F1,
calibration error) has that of a bootstrap: as many pictures are drawn 1,000 times, with repeats, and the interval is
the middle 95 % of the figures that come out, moved by as much as these are off on average. (A calibration error is
larger in a draw, for chance alone pulls confidence and accuracy apart.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.errors import DataError

DRAWS = 1_000
FEW = 30  # pictures, below which a bootstrap says nothing
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
    """Answers of about the same confidence: where they are calibrated, that share of them is right."""

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
    classes: tuple[ClassFigures, ...]
    reliability: tuple[Bin, ...]  # the bins that are not empty
    confusion: Ints  # (classes, classes): rows are labels, columns are answers


def measure(labels: Ints, probabilities: Floats, class_names: tuple[str, ...]) -> Metrics:
    """`labels` (n,) beside `probabilities` (n, classes)."""
    n, classes = probabilities.shape
    if not n:
        raise DataError("There are no pictures to measure on.")
    answered = probabilities.argmax(axis=1)
    confidence, right = probabilities.max(axis=1), answered == labels
    losses = -np.log(np.maximum(probabilities[np.arange(n), labels], np.finfo(np.float64).tiny))
    in_bin = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)

    def figures(times: Floats) -> tuple[float, float, float, float]:
        """Those that need a bootstrap, with each picture counted so many times."""
        there = np.bincount(labels, times, classes)
        given, found = np.bincount(answered, times, classes), np.bincount(labels, times * right, classes)
        recall, f1 = _ratio(found, there), _ratio(2 * found, there + given)
        apart = np.bincount(in_bin, times * (confidence - right), BINS)
        return (
            float(times @ losses) / n,
            float(recall.sum() / (there > 0).sum()),
            float(f1.sum() / (there + given > 0).sum()),
            float(np.abs(apart).sum()) / n,
        )

    loss, balanced_accuracy, macro_f1, calibration_error = _bootstrapped(figures, n, most=(np.inf, 1.0, 1.0, 1.0))
    confusion = np.bincount(labels * classes + answered, minlength=classes**2).reshape(classes, classes)
    top = np.argpartition(-probabilities, 5, axis=1)[:, :5] if classes > 5 else None
    return Metrics(
        pictures=n,
        loss=loss,
        accuracy=share(int(right.sum()), n),
        top_5=None if top is None else share(int((top == labels[:, None]).any(axis=1).sum()), n),
        balanced_accuracy=balanced_accuracy,
        macro_f1=macro_f1,
        calibration_error=calibration_error,
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


def _bootstrapped(figures: Callable[[Floats], tuple[float, ...]], n: int, most: tuple[float, ...]) -> list[Figure]:
    """`most`: what each figure can be at most."""
    all_once = figures(np.ones(n))
    if n < FEW:
        return [Figure(value) for value in all_once]
    random = np.random.default_rng(0)  # the same intervals each time
    drawn = [figures(np.bincount(random.integers(0, n, n), minlength=n).astype(np.float64)) for _ in range(DRAWS)]
    values = np.array(drawn)
    values -= values.mean(axis=0) - np.array(all_once)
    low, high = np.clip(np.quantile(values, [0.025, 0.975], axis=0), 0.0, most)
    return [Figure(*map(float, each)) for each in zip(all_once, low, high, strict=True)]


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    """0 where there is nothing to share."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
