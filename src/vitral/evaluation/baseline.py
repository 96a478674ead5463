"""Compare a model with the simple methods that were tried first: is it worth its time?"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.metrics import FEW, Figure, Floats, Metric, bootstrap
from vitral.evaluation.paired import luck
from vitral.evaluation.target_metrics import METRICS_OF, outcomes_of
from vitral.run import Baseline
from vitral.targets import Target, columns


@dataclass(frozen=True)
class BaselineComparison:
    """How a model and a baseline differ on the same test pictures."""

    method: str
    pictures: int
    accuracy: float  # of the baseline
    gained: int  # pictures that the model has right and the baseline wrong
    lost: int  # the other way round
    by_luck: float  # how probable as large a difference is if both are equally good (see `luck`)

    @property
    def kind(self) -> Literal["few", "better", "worse", "equal", "unclear"]:
        """The verdict in one word; `equal`: both are good."""
        if self.pictures < FEW:
            return "few"
        if self.by_luck < 0.05:
            return "better" if self.gained > self.lost else "worse"
        return "equal" if self.accuracy > 0.95 else "unclear"

    @property
    def verdict(self) -> str:
        """The verdict in a sentence or two: whether to trust the model."""
        opening = f"{self.method[0].upper()}{self.method[1:]} has {self.accuracy:.1%}"
        differ = f"where the two differ, the model is right {_times(self.gained)} and that {_times(self.lost)}"
        needs = "It needs more pictures; more time helps only while the validation loss still falls."
        if self.kind == "few":
            few = f"{self.pictures} picture{'s' if self.pictures > 1 else ''}"
            return f"{opening}. On {few} that says little: do not trust the model before there are more."
        if self.kind == "better":
            return f"{opening}. The model is better: {differ}."
        if self.kind == "worse":
            return f"{opening}. The model is worse, and cannot be trusted: {differ}. {needs}"
        if self.kind == "equal":
            return f"{opening}. The model is about as good; these pictures are easy."
        if self.gained > self.lost:
            return (
                f"{opening}. The model may be better ({differ}), but on {self.pictures:,} pictures that can be luck: "
                "it cannot be trusted yet. More test pictures would tell."
            )
        return f"{opening}. The model is no better ({differ}), so it cannot be trusted. {needs}"

    def write(self) -> dict[str, Any]:
        """The comparison as values for evaluation.json."""
        return asdict(self)


def compare_with_baseline(
    baseline: Baseline, samples: list[str], right: NDArray[np.bool_], group_of: list[str] | None = None
) -> BaselineComparison:
    """Compare a model with a baseline. `right`: whether the model's answer was right, for each of the samples;
    `group_of`: what each of them belongs to, where they are not independent."""
    both = [
        (int(ours), int(baseline.right[sample]), group)
        for sample, ours, group in zip(samples, right, group_of or samples, strict=True)
        if sample in baseline.right
    ]
    gains = Counter[str]()
    for ours, theirs, group in both:
        gains[group] += ours - theirs
    return BaselineComparison(
        method=baseline.method,
        pictures=len(both),
        accuracy=baseline.test_accuracy or 0.0,
        gained=sum(ours > theirs for ours, theirs, _ in both),
        lost=sum(ours < theirs for ours, theirs, _ in both),
        by_luck=luck(np.array([*gains.values()], dtype=np.int64)),
    )


@dataclass(frozen=True)
class TargetComparison:
    """How a model and a baseline differ in the main figure of a target, on the same test pictures."""

    metric: Metric
    method: str
    pictures: int
    ours: float
    theirs: float
    gain: Figure  # by how much the model is better, with its interval

    @property
    def kind(self) -> Literal["few", "better", "worse", "unclear"]:
        """The verdict in one word."""
        if self.gain.low is None or self.gain.high is None:
            return "few"
        return "better" if self.gain.low > 0 else "worse" if self.gain.high < 0 else "unclear"

    @property
    def verdict(self) -> str:
        """The verdict in a sentence or two: whether to trust the model."""
        text = self.metric.text
        method = f"{self.method[0].upper()}{self.method[1:]}"
        opening = f"{method}: {self.metric.title.lower()} {text(self.theirs)}."
        if self.gain.low is None or self.gain.high is None:
            few = f"{self.pictures} picture{'s' if self.pictures > 1 else ''}"
            return f"{opening} On {few} that says little: do not trust the model before there are more."
        if self.gain.low > 0:
            return f"{opening} The model is better, by {text(self.gain.low)} to {text(self.gain.high)}."
        if self.gain.high < 0:
            return f"{opening} The model is worse, and cannot be trusted."
        return f"{opening} The model's {text(self.ours)} may be luck, so it cannot be trusted yet."

    def write(self) -> dict[str, Any]:
        """The comparison as values for evaluation.json."""
        gain = {name: value for name, value in asdict(self.gain).items() if value is not None}
        figures = {"figure": self.metric.name, "ours": self.ours, "theirs": self.theirs, "gain": gain}
        return {"method": self.method, "pictures": self.pictures, **figures}


@dataclass(frozen=True)
class _Both:
    """The outcomes of a model and of a baseline on the same pictures."""

    ours: Any
    theirs: Any
    pictures: int


def compare_targets(
    baseline: Baseline,
    targets: Sequence[Target],
    samples: Sequence[str],
    labels: NDArray[Any],
    values: Floats,
    group_of: Sequence[str] | None = None,
) -> dict[str, TargetComparison]:
    """Compare a model with the baseline of each target, by their names. `labels` and `values`, (n, outputs), are what
    is true of the samples and what the model says of them."""
    simple = {one.name: one for one in baseline.targets}
    comparisons = {}
    for target, mine in zip(targets, columns(targets), strict=True):
        if target.name not in simple:
            continue
        said = simple[target.name].said
        rows = [place for place, sample in enumerate(samples) if sample in said]
        if not rows:
            continue
        truth, theirs = labels[rows][:, mine], np.array([said[samples[row]] for row in rows])
        both = _Both(outcomes_of(target, truth, values[rows][:, mine]), outcomes_of(target, truth, theirs), len(rows))
        groups = None if group_of is None else [group_of[row] for row in rows]
        comparisons[target.name] = _compare(METRICS_OF[target.kind][0], simple[target.name].method, both, groups)
    return comparisons


def _compare(metric: Metric, method: str, both: _Both, groups: Sequence[str] | None) -> TargetComparison:
    sign = -1.0 if metric.in_unit else 1.0  # an error is the better the smaller it is

    def gain(both: _Both, times: Floats) -> float:
        return sign * (metric.value(both.ours, times) - metric.value(both.theirs, times))

    row = Metric("gain", "Gain", "", gain, most=np.inf, least=-np.inf)
    ours, theirs = (metric.value(one, np.ones(both.pictures)) for one in (both.ours, both.theirs))
    return TargetComparison(metric, method, both.pictures, ours, theirs, bootstrap(both, [row], {}, groups)["gain"])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
