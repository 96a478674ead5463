"""Figures of several labels and of numbers, each with its interval, as metrics.py has them of one class.

LABELS_METRICS and NUMBER_METRICS are the tables of them: a new metric is a function and a row. What is said here of
labels counts a label as said where its probability reaches the threshold that validation found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.errors import DataError
from vitral.evaluation.metrics import (
    METRICS,
    Bin,
    Bools,
    Figure,
    Floats,
    Metric,
    Metrics,
    Outcomes,
    bins_of,
    bootstrap,
    measure,
    share,
)
from vitral.targets import Target, columns

TINY = 1e-12  # a probability of 0 would cost infinitely much


@dataclass(frozen=True)
class LabelFigures:
    """One label. `None`: no picture has it (recall, average precision), or it was never said (precision)."""

    name: str
    pictures: int
    said: int
    right: int
    threshold: float
    average_precision: float | None
    recall: Figure | None
    precision: Figure | None
    f1: float | None
    brier: float


@dataclass(frozen=True)
class LabelsMetrics:
    """All figures of answers with several labels."""

    pictures: int
    figures: dict[str, Figure]  # those of LABELS_METRICS, by name and in that order
    labels: tuple[LabelFigures, ...]
    reliability: tuple[Bin, ...]  # of the probabilities of all labels: how often each is there


@dataclass(frozen=True)
class NumberMetrics:
    """All figures of answers that are numbers."""

    pictures: int
    figures: dict[str, Figure]  # those of NUMBER_METRICS that exist, by name and in that order


class LabelsOutcomes:
    """Truth (n, labels), probabilities (n, labels), thresholds (labels,), and what all draws of a bootstrap share."""

    def __init__(self, truth: Bools, probabilities: Floats, thresholds: Floats) -> None:
        self.truth, self.probabilities = truth, probabilities
        self.said: Bools = probabilities >= thresholds
        self.pictures = len(truth)

    @cached_property
    def losses(self) -> Floats:
        """(n,) the binary cross-entropy of each picture, on average over the labels."""
        of_truth = np.where(self.truth, self.probabilities, 1 - self.probabilities)
        losses: Floats = -np.log(np.maximum(of_truth, TINY)).mean(axis=1)
        return losses

    @cached_property
    def squares(self) -> Floats:
        """(n,) the squared distance of probability and truth, on average over the labels."""
        squares: Floats = ((self.probabilities - self.truth) ** 2).mean(axis=1)
        return squares

    @cached_property
    def ranked(self) -> tuple[NDArray[np.int64], Bools, NDArray[np.int64]]:
        """Of each label, (n, labels) each: the pictures by falling probability, whether they have it, and the last
        place with the same probability."""
        order = np.argsort(-self.probabilities, axis=0, kind="stable")
        ranked = np.take_along_axis(self.probabilities, order, axis=0)
        places = np.arange(self.pictures)[:, None]
        ends = np.where(
            np.vstack([ranked[1:] < ranked[:-1], np.ones((1, ranked.shape[1]), bool)]), places, self.pictures
        )
        last = np.minimum.accumulate(ends[::-1], axis=0)[::-1]
        return order, np.take_along_axis(self.truth, order, axis=0), last


def average_precisions(outcomes: LabelsOutcomes, times: Floats) -> Floats:
    """(labels,) the mean, over the pictures that have a label, of the precision down to where they stand when all are
    ordered by its probability; nan where none has it."""
    order, truth, last = outcomes.ranked
    drawn = times[order]
    right, all_of_them = np.cumsum(drawn * truth, axis=0), np.cumsum(drawn, axis=0)
    below = np.take_along_axis(all_of_them, last, axis=0)
    precision = np.divide(np.take_along_axis(right, last, axis=0), below, out=np.zeros_like(below), where=below > 0)
    has = right[-1]
    sums = (drawn * truth * precision).sum(axis=0)
    return np.divide(sums, has, out=np.full_like(sums, np.nan), where=has > 0)


def mean_average_precision(outcomes: LabelsOutcomes, times: Floats) -> float:
    """The mean over the labels that some picture has."""
    each = average_precisions(outcomes, times)
    return float(np.nanmean(each)) if np.isfinite(each).any() else 0.0


def micro_f1(outcomes: LabelsOutcomes, times: Floats) -> float:
    """F1 of all labels of all pictures together."""
    right, said, has = (float(counts.sum()) for counts in _counts(outcomes, times))
    return 2 * right / (said + has) if said + has else 0.0


def macro_f1(outcomes: LabelsOutcomes, times: Floats) -> float:
    """The mean F1 of the labels that some picture has, or that were said."""
    right, said, has = _counts(outcomes, times)
    there = said + has > 0
    return float((2 * right[there] / (said + has)[there]).mean()) if there.any() else 0.0


def all_right(outcomes: LabelsOutcomes, times: Floats) -> float:
    """Share of pictures whose labels are all said, and no other."""
    return float(times @ (outcomes.said == outcomes.truth).all(axis=1)) / float(times.sum())


def labels_loss(outcomes: LabelsOutcomes, times: Floats) -> float:
    """Mean binary cross-entropy."""
    return float(times @ outcomes.losses) / float(times.sum())


def brier(outcomes: LabelsOutcomes, times: Floats) -> float:
    """Mean squared distance of probability and truth."""
    return float(times @ outcomes.squares) / float(times.sum())


LABELS_METRICS = (  # in the order of report and files
    Metric(
        "map",
        "Mean average precision",
        "How far up the pictures with a label stand when all are ordered by its probability, on average over the "
        "labels. No threshold matters.",
        mean_average_precision,
        long_title="Mean average precision (mAP)",
    ),
    Metric(
        "micro_f1",
        "Micro-F1",
        "Saying all labels that are there and raising no false alarms, in one number; frequent labels count most.",
        micro_f1,
    ),
    Metric("macro_f1", "Macro-F1", "The same on average over the labels: rare ones count as much.", macro_f1),
    Metric(
        "all_right",
        "All labels right",
        "Pictures whose labels are all said, and no other.",
        all_right,
        of_pictures=True,
    ),
    Metric(
        "loss",
        "Loss",
        "How surprised it is by each label that is there or not there: 0 is never.",
        labels_loss,
        most=np.inf,
        is_share=False,
        uses_temperature=True,
    ),
    Metric(
        "brier",
        "Brier score",
        "The squared distance of its probabilities from 0 or 1, whichever was true: 0 is perfect, 0.25 is a coin.",
        brier,
        is_share=False,
        uses_temperature=True,
    ),
)


class NumberOutcomes:
    """Truth (n,), values (n,), the mean of what was learnt from, and how far a value may be off (0: nobody knows)."""

    def __init__(self, truth: Floats, values: Floats, mean: float, margin: float) -> None:
        self.truth, self.off, self.of_mean, self.margin = truth, values - truth, mean - truth, margin
        self.pictures = len(truth)


def mae(outcomes: NumberOutcomes, times: Floats) -> float:
    """Mean absolute error."""
    return float(times @ np.abs(outcomes.off)) / float(times.sum())


def rmse(outcomes: NumberOutcomes, times: Floats) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(times @ outcomes.off**2 / times.sum()))


def r2(outcomes: NumberOutcomes, times: Floats) -> float:
    """Share of the variance that is explained; nan where there is none."""
    mean = times @ outcomes.truth / times.sum()
    spread = float(times @ (outcomes.truth - mean) ** 2)
    return 1 - float(times @ outcomes.off**2) / spread if spread else float("nan")


def mae_of_mean(outcomes: NumberOutcomes, times: Floats) -> float:
    """Mean absolute error of one who always says the mean of the training pictures."""
    return float(times @ np.abs(outcomes.of_mean)) / float(times.sum())


def inside(outcomes: NumberOutcomes, times: Floats) -> float:
    """Share of the pictures whose number lies within its interval."""
    return float(times @ (np.abs(outcomes.off) <= outcomes.margin)) / float(times.sum())


NUMBER_METRICS = (
    Metric(
        "mae",
        "Mean absolute error",
        "How far off it is, on average, in the unit of the data.",
        mae,
        most=np.inf,
        is_share=False,
        in_unit=True,
    ),
    Metric(
        "mae_of_mean",
        "… of always the mean",
        "The same of one who looks at no picture and always says the mean of the training pictures: what to beat.",
        mae_of_mean,
        long_title="Mean absolute error of always saying the mean",
        most=np.inf,
        is_share=False,
        in_unit=True,
    ),
    Metric(
        "rmse",
        "Root mean squared error",
        "The same, where large errors count more.",
        rmse,
        most=np.inf,
        is_share=False,
        in_unit=True,
    ),
    Metric(
        "r2",
        "R²",
        "How much of the spread of the numbers it explains: 0 is no more than their mean does, 1 all.",
        r2,
        least=-np.inf,
        is_share=False,
    ),
    Metric(
        "inside",
        "Inside the interval",
        "How often the number lies in the interval that is said with it, which is made for 90% of pictures like those "
        "of validation.",
        inside,
        of_pictures=True,
    ),
)


METRICS_OF = {"class": METRICS, "labels": LABELS_METRICS, "number": NUMBER_METRICS}
AnyMetrics = Metrics | LabelsMetrics | NumberMetrics


def outcomes_of(target: Target, labels: NDArray[Any], values: Floats) -> Outcomes | LabelsOutcomes | NumberOutcomes:
    """The outcomes that the metrics of a target take, from labels and values, both (n, outputs)."""
    if target.kind == "number":
        return NumberOutcomes(labels[:, 0], values[:, 0], target.mean, 0.0)
    if target.kind == "labels":
        return LabelsOutcomes(labels > 0.5, values, np.full(values.shape[1], 0.5))
    return Outcomes(labels.argmax(axis=1), values)


def measure_targets(
    targets: Sequence[Target],
    labels: NDArray[Any],
    values: Floats,
    thresholds: Floats,
    margins: Floats,
    groups: Sequence[str] | None = None,
) -> dict[str, AnyMetrics]:
    """The metrics of each target by its name, from labels and what the outputs say, both (n, outputs); and, (outputs,)
    each, from which probability on a label is said, and how far a number is said to be off at most."""

    def of(target: Target, mine: slice) -> AnyMetrics:
        if target.kind == "number":
            margin = float(margins[mine.start])
            return measure_number(labels[:, mine.start], values[:, mine.start], target.mean, margin, groups)
        if target.kind == "labels":
            return measure_labels(labels[:, mine] > 0.5, values[:, mine], target.names, thresholds[mine], groups)
        return measure(labels[:, mine].argmax(axis=1), values[:, mine], target.names, groups)

    return {target.name: of(target, mine) for target, mine in zip(targets, columns(targets), strict=True)}


def measure_labels(
    truth: Bools,
    probabilities: Floats,
    names: Sequence[str],
    thresholds: Floats,
    groups: Sequence[str] | None = None,
) -> LabelsMetrics:
    """Compute all metrics of `probabilities` for `truth`, both (n, labels)."""
    _check(probabilities)
    outcomes = LabelsOutcomes(truth, probabilities, thresholds)
    once = np.ones(len(truth))
    right, said, has = (counts.astype(np.int64) for counts in _counts(outcomes, once))
    precisions = average_precisions(outcomes, once)
    squares = ((probabilities - truth) ** 2).mean(axis=0)
    labels = tuple(
        LabelFigures(
            name,
            pictures=int(has[n]),
            said=int(said[n]),
            right=int(right[n]),
            threshold=float(thresholds[n]),
            average_precision=float(precisions[n]) if has[n] else None,
            recall=share(int(right[n]), int(has[n])) if has[n] else None,
            precision=share(int(right[n]), int(said[n])) if said[n] else None,
            f1=float(2 * right[n] / (said[n] + has[n])) if said[n] + has[n] else None,
            brier=float(squares[n]),
        )
        for n, name in enumerate(names)
    )
    figures = bootstrap(outcomes, LABELS_METRICS, {}, groups)
    return LabelsMetrics(len(truth), figures, labels, bins_of(probabilities.ravel(), truth.ravel()))


def measure_number(
    truth: Floats, values: Floats, mean: float, margin: float = 0.0, groups: Sequence[str] | None = None
) -> NumberMetrics:
    """Compute all metrics of `values` for `truth`, both (n,), beside one who always says `mean`. `margin`: how far a
    value is said to be off at most, 9 times out of 10; 0: nothing is said."""
    _check(values)
    outcomes = NumberOutcomes(truth, values, mean, margin)
    rows = [row for row in NUMBER_METRICS if (row.name != "inside" or margin) and (row.name != "r2" or truth.std() > 0)]
    return NumberMetrics(len(truth), bootstrap(outcomes, rows, {}, groups))


def _check(values: Floats) -> None:
    if not len(values):
        raise DataError("There are no pictures to measure on.")
    if not np.isfinite(values).all():
        raise DataError("The model's answers are no numbers: its weights are damaged, or its training ran away.")


def _counts(outcomes: LabelsOutcomes, times: Floats) -> tuple[Floats, Floats, Floats]:
    """For each label: how often it was said rightly, how often it was said, and its pictures; (labels,) each."""
    return times @ (outcomes.said & outcomes.truth), times @ outcomes.said, times @ outcomes.truth
