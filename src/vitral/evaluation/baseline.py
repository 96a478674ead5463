"""Compare a model with the simple methods that were tried first: is it worth its time?"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.metrics import FEW
from vitral.evaluation.paired import luck
from vitral.run import Baseline


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


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
