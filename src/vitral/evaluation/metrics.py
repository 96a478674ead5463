"""Figures from labels and probabilities, each with the interval in which it would lie for other pictures like these.

METRICS is the table of them, a row each: evaluation.json, the report, the command line and the model card walk over it,
so a new metric is a function and a row. Those of several labels and of numbers are in target_metrics.py.

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
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.errors import DataError
from vitral.predictions import number_words

DRAWS = 1_000
CHANCES = 100  # times that right and wrong are drawn by the probabilities themselves
FEW = 30  # pictures, below which a bootstrap says nothing
FEW_GROUPS = 5  # likewise
BINS = 15  # of confidence, from 0 to 1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Figure:
    """A number, and its 95 % confidence interval; no interval where there are too few pictures for one."""

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
    figures: dict[str, Figure]  # those of METRICS that exist for so many classes, by name and in that order
    by_chance: dict[str, float]  # what some of them would be on average, were the model perfect in that
    classes: tuple[ClassFigures, ...]
    reliability: tuple[Bin, ...]  # the bins that are not empty
    confusion: Ints  # (classes, classes): rows are labels, columns are answers

    @property
    def accuracy(self) -> Figure:
        """Share of right answers."""
        return self.figures["accuracy"]

    @property
    def loss(self) -> Figure:
        """Mean cross-entropy."""
        return self.figures["loss"]


class Outcomes:
    """Labels (n,), probabilities (n, classes), and the arrays from them that all draws of a bootstrap share."""

    def __init__(self, labels: Ints, probabilities: Floats) -> None:
        self.labels, self.probabilities = labels, probabilities
        self.pictures, self.classes = probabilities.shape
        self.predicted, self.confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
        self.correct: Bools = self.predicted == labels
        self.bins = bin_numbers(self.confidence)

    @cached_property
    def losses(self) -> Floats:
        """(n,) the cross-entropy of each picture."""
        of_label: Floats = self.probabilities[np.arange(self.pictures), self.labels]
        return -np.log(np.maximum(of_label, np.finfo(np.float64).tiny))

    @cached_property
    def in_top_5(self) -> Bools:
        """(n,) whether the label is among the five most probable classes."""
        top: Ints = np.argpartition(-self.probabilities, 5, axis=1)[:, :5]
        return (top == self.labels[:, None]).any(axis=1)


# The value of a metric where each picture counts so many times, (n,): once, or as often as the bootstrap draws it. Of
# Outcomes, or of those that the other kinds of targets have.
Value = Callable[[Any, Floats], float]


def accuracy(outcomes: Outcomes, times: Floats) -> float:
    """Share of right answers."""
    return float(times @ outcomes.correct) / float(times.sum())


def top_5(outcomes: Outcomes, times: Floats) -> float:
    """Share of labels among the five most probable classes."""
    return float(times @ outcomes.in_top_5) / float(times.sum())


def balanced_accuracy(outcomes: Outcomes, times: Floats) -> float:
    """The mean recall of the classes that have pictures."""
    labelled, _, correct = _counts(outcomes, times)
    return float(_ratio(correct, labelled).sum() / (labelled > 0).sum())


def macro_f1(outcomes: Outcomes, times: Floats) -> float:
    """The mean F1 of the classes that have pictures or were answered."""
    labelled, predicted, correct = _counts(outcomes, times)
    return float(_ratio(2 * correct, labelled + predicted).sum() / (labelled + predicted > 0).sum())


def loss(outcomes: Outcomes, times: Floats) -> float:
    """Mean cross-entropy."""
    return float(times @ outcomes.losses) / float(times.sum())


def calibration_error(outcomes: Outcomes, times: Floats) -> float:
    """How far confidence and accuracy are apart, on average over 15 bins of confidence (ECE)."""
    return _apart(outcomes, times, outcomes.correct)


def calibration_error_by_chance(outcomes: Outcomes) -> float:
    """The mean calibration error of a perfectly calibrated model: right as often as it says."""
    random, once = np.random.default_rng(0), np.ones(outcomes.pictures)
    draws = (random.random(outcomes.pictures) < outcomes.confidence for _ in range(CHANCES))
    return float(np.mean([_apart(outcomes, once, correct) for correct in draws]))


@dataclass(frozen=True)
class Metric:
    """A row of METRICS: how the metric is computed, its range, and the words for it."""

    name: str  # as evaluation.json has it
    title: str
    meaning: str  # in the report; {by_chance} is what it would be by chance
    value: Value
    long_title: str = ""  # where no meaning stands beside it, as on the model card; "": the title
    most: float = 1.0  # what it can be at most
    least: float = 0.0
    is_share: bool = True  # shown in percent
    in_unit: bool = False  # shown as a number in the unit of the data
    of_pictures: bool = False  # a share of the pictures, which has Wilson's interval
    more_classes_than: int = 0  # it says something
    uses_temperature: bool = False  # and is also reported as it would be without
    # How far above 0 chance alone lifts it: the low end of the interval.
    by_chance: Callable[[Outcomes], float] | None = None

    def text(self, value: float) -> str:
        """A value of the metric as text."""
        if self.in_unit:
            return number_words(value)
        return f"{value:.1%}" if self.is_share else f"{value:.3f}"


METRICS = (  # in the order of report and files
    Metric("accuracy", "Accuracy", "How many of the pictures it gets right.", accuracy, of_pictures=True),
    Metric(
        "top_5",
        "Top 5",
        "How often the right class is among its five best guesses.",
        top_5,
        long_title="Top-5 accuracy",
        of_pictures=True,
        more_classes_than=5,
    ),
    Metric(
        "balanced_accuracy",
        "Balanced accuracy",
        "The same, if every class had equally many pictures: small classes count as much as large ones.",
        balanced_accuracy,
    ),
    Metric(
        "macro_f1",
        "Macro-F1",
        "Finding all pictures of a class and raising no false alarms, in one number, on average over the classes.",
        macro_f1,
    ),
    Metric(
        "loss",
        "Loss",
        "How surprised it is by the right answers: 0 is never. It is useful to compare runs on the same pictures.",
        loss,
        most=np.inf,
        is_share=False,
        uses_temperature=True,
    ),
    Metric(
        "calibration_error",
        "Calibration error",
        "How far its probabilities are from how often it is right: at 0%, of answers given with 80%, 80% are right. "
        "With so many pictures chance alone gives {by_chance:.1%}.",
        calibration_error,
        uses_temperature=True,
        by_chance=calibration_error_by_chance,
    ),
)


def measure(
    labels: Ints, probabilities: Floats, class_names: tuple[str, ...], groups: Sequence[str] | None = None
) -> Metrics:
    """Compute all metrics of `probabilities` (n, classes) for `labels` (n,). `groups` (n,) says which pictures belong
    together."""
    n, classes = probabilities.shape
    if not n:
        raise DataError("There are no pictures to measure on.")
    if not np.isfinite(probabilities).all():
        raise DataError("The model's answers are no numbers: its weights are damaged, or its training ran away.")
    outcomes = Outcomes(labels, probabilities)
    rows = [metric for metric in METRICS if classes > metric.more_classes_than]
    by_chance = {metric.name: metric.by_chance(outcomes) for metric in rows if metric.by_chance}
    figures = bootstrap(outcomes, rows, by_chance, groups)
    confusion = np.bincount(labels * classes + outcomes.predicted, minlength=classes**2).reshape(classes, classes)
    return Metrics(
        pictures=n,
        figures=figures,
        by_chance=by_chance,
        classes=tuple(_class(name, label, confusion) for label, name in enumerate(class_names)),
        reliability=bins_of(outcomes.confidence, outcomes.correct),
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


def _wider(bootstrap: Figure, wilson: Figure) -> Figure:
    bounds = [bound for bound in (bootstrap.low, bootstrap.high, wilson.low, wilson.high) if bound is not None]
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


def bin_numbers(confidence: Floats) -> Ints:
    """The bin of each confidence."""
    return np.minimum((confidence * BINS).astype(np.int64), BINS - 1)


def bins_of(confidence: Floats, correct: Bools) -> tuple[Bin, ...]:
    """The bins that are not empty, of outputs with their confidence and whether they are right; (n,) each."""
    numbers = bin_numbers(confidence)
    inside = [numbers == number for number in np.unique(numbers)]
    return tuple(
        Bin(int(one.sum()), float(confidence[one].mean()), share(int(correct[one].sum()), int(one.sum())))
        for one in inside
    )


def bootstrap(
    outcomes: Any, metrics: Sequence[Metric], by_chance: dict[str, float], groups: Sequence[str] | None
) -> dict[str, Figure]:
    """The metrics of outcomes by name, each with its interval. `groups` (n,) says which pictures belong together."""
    figures = _draw(outcomes, metrics, by_chance, groups)
    for metric in metrics:
        if metric.of_pictures:
            wilson = share(round(figures[metric.name].value * outcomes.pictures), outcomes.pictures)
            figures[metric.name] = wilson if groups is None else _wider(figures[metric.name], wilson)
    return figures


def _draw(
    outcomes: Any, metrics: Sequence[Metric], by_chance: dict[str, float], groups: Sequence[str] | None
) -> dict[str, Figure]:
    """The metrics by name; without intervals where there are too few pictures or groups to draw from."""
    n, names = outcomes.pictures, [metric.name for metric in metrics]

    def values(times: Floats) -> list[float]:
        return [metric.value(outcomes, times) for metric in metrics]

    all_once = np.array(values(np.ones(n)))
    unit_of = np.arange(n) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(unit_of.max()) + 1
    if n < FEW or (groups is not None and units < FEW_GROUPS):
        return {name: Figure(float(value)) for name, value in zip(names, all_once, strict=True)}
    random = np.random.default_rng(0)  # the same intervals each time
    draws = (np.bincount(random.integers(0, units, units), minlength=units) for _ in range(DRAWS))
    table = np.array([values(times[unit_of].astype(np.float64)) for times in draws])  # (draws, metrics)
    varies = table.std(axis=0) > 0  # where not one mistake was seen, draws say nothing of those to come
    table -= table.mean(axis=0) - all_once
    down = [by_chance.get(name, 0.0) for name in names]
    least, most = ([getattr(metric, end) for metric in metrics] for end in ("least", "most"))
    low, high = np.clip(np.quantile(table, [0.025, 0.975], axis=0) - [down, np.zeros(len(down))], least, most)
    low, high = np.minimum(low, all_once), np.maximum(high, all_once)
    each = zip(names, all_once, low, high, varies, strict=True)
    return {name: Figure(float(v), float(a), float(b)) if known else Figure(float(v)) for name, v, a, b, known in each}


def _apart(outcomes: Outcomes, times: Floats, correct: Bools) -> float:
    sums = np.bincount(outcomes.bins, times * (outcomes.confidence - correct), BINS)
    return float(np.abs(sums).sum()) / float(times.sum())


def _counts(outcomes: Outcomes, times: Floats) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """For each class: its pictures, how often it was the answer, and how often rightly; (classes,) each."""
    labels, classes = outcomes.labels, outcomes.classes
    labelled, predicted = np.bincount(labels, times, classes), np.bincount(outcomes.predicted, times, classes)
    return labelled, predicted, np.bincount(labels, times * outcomes.correct, classes)


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[Any]:
    """The quotient; 0 where `below` is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
