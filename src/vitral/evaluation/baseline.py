"""How far simple methods come with the same pictures: what a model has to beat to be worth its time."""

import warnings
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from vitral.data.pack import Pack
from vitral.evaluation.metrics import FEW
from vitral.evaluation.paired import luck
from vitral.run import Baseline

SIDE = 32  # pixels
LEARNT, VALIDATED, TESTED = 5_000, 1_000, 2_000  # pictures, at most: it must not eat the budget
VALUES = 2**26  # in memory, at most


def baseline(pack: Pack) -> Baseline:
    """Logistic regression and nearest neighbours on small copies: the better one, by validation."""
    labels, validation = pack.index.labels, _some(pack, "validation", VALIDATED)
    learnt, test = _some(pack, "train", LEARNT), _some(pack, "test", TESTED)
    height, width = _size(pack)
    seen = _pixels(pack, learnt)
    mean = seen.mean(axis=0)
    seen -= mean
    best: tuple[float, str, Any] = (-1.0, "", None)
    for name, method in _methods(len(learnt)).items():
        with warnings.catch_warnings(action="ignore"):  # not converged: good enough for a baseline
            method.fit(seen, labels[learnt])
        right = _right(method, pack, validation, mean)
        score = float(right.mean()) if len(right) else 0.0
        best = max(best, (score, name, method), key=lambda one: one[0])
    score, name, method = best
    right = _right(method, pack, test, mean)
    return Baseline(
        method=f"{name} on {height} × {width} pixels",
        validation_accuracy=score if len(validation) else None,
        test_accuracy=float(right.mean()) if len(right) else None,
        right={pack.index.samples[number]: bool(one) for number, one in zip(test, right, strict=True)},
    )


@dataclass(frozen=True)
class BaselineComparison:
    """A model beside a baseline, on the same test pictures."""

    method: str
    pictures: int
    accuracy: float  # of the baseline
    gained: int  # pictures that the model has right and the baseline wrong
    lost: int  # the other way round

    @property
    def by_luck(self) -> float:
        """How probable as large a difference is if both are equally good (McNemar's exact test)."""
        return luck(self.gained, self.lost)

    @property
    def kind(self) -> Literal["few", "better", "worse", "equal", "unclear"]:
        """What the verdict is; `equal`: both are good."""
        if self.pictures < FEW:
            return "few"
        if self.by_luck < 0.05:
            return "better" if self.gained > self.lost else "worse"
        return "equal" if self.accuracy > 0.95 else "unclear"

    @property
    def verdict(self) -> str:
        """In a sentence or two, for somebody who wants to know whether to trust the model."""
        told = f"{self.method[0].upper()}{self.method[1:]} has {self.accuracy:.1%}"
        differ = f"where the two differ, the model is right {_times(self.gained)} and that {_times(self.lost)}"
        needs = "It needs more pictures; more time helps only while the validation loss still falls."
        if self.kind == "few":
            few = f"{self.pictures} picture{'s' if self.pictures > 1 else ''}"
            return f"{told}. On {few} that says little: do not trust the model before there are more."
        if self.kind == "better":
            return f"{told}. The model is better: {differ}."
        if self.kind == "worse":
            return f"{told}. The model is worse, and cannot be trusted: {differ}. {needs}"
        if self.kind == "equal":
            return f"{told}. The model is about as good; these pictures are easy."
        if self.gained > self.lost:
            return (
                f"{told}. The model may be better ({differ}), but on {self.pictures:,} pictures that can be luck: "
                "it cannot be trusted yet. More test pictures would tell."
            )
        return f"{told}. The model is no better ({differ}), so it cannot be trusted. {needs}"

    def write(self) -> dict[str, Any]:
        """As evaluation.json has it."""
        return {**asdict(self), "by_luck": self.by_luck}


def compare_with_baseline(baseline: Baseline, samples: list[str], right: NDArray[np.bool_]) -> BaselineComparison:
    """`right`: whether the model's answer was right, for each of the test pictures."""
    ours = dict(zip(samples, map(bool, right), strict=True))
    both = [(ours[sample], theirs) for sample, theirs in baseline.right.items()]
    return BaselineComparison(
        method=baseline.method,
        pictures=len(both),
        accuracy=baseline.test_accuracy or 0.0,
        gained=both.count((True, False)),
        lost=both.count((False, True)),
    )


def _methods(pictures: int) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression  # here, since it takes a second to load
    from sklearn.neighbors import KNeighborsClassifier

    return {
        "logistic regression": LogisticRegression(C=0.01, max_iter=200),
        "nearest neighbours": KNeighborsClassifier(n_neighbors=min(5, pictures), weights="distance"),
    }


def _some(pack: Pack, split: str, most: int) -> NDArray[np.int64]:
    """At most so many pictures of a split, always the same, with at least one of every class that is there."""
    numbers = np.random.default_rng(0).permutation(pack.of(split))
    if not len(numbers):
        return numbers
    most = min(most, max(1, VALUES // (pack.images.shape[1] * SIDE * SIDE)))
    _, first = np.unique(pack.index.labels[numbers], return_index=True)
    return np.unique(np.concatenate([numbers[:most], numbers[first]]))


def _right(method: Any, pack: Pack, numbers: NDArray[np.int64], mean: NDArray[np.float32]) -> NDArray[np.bool_]:
    if not len(numbers):
        return np.zeros(0, np.bool_)
    return method.predict(_pixels(pack, numbers) - mean) == pack.index.labels[numbers]


def _size(pack: Pack) -> tuple[int, int]:
    """Larger pictures are made smaller, smaller ones stay as they are."""
    height, width = pack.images.shape[2:]
    return (SIDE, SIDE) if max(height, width) > SIDE else (height, width)


def _pixels(pack: Pack, numbers: NDArray[np.int64]) -> NDArray[np.float32]:  # → (n, C·height·width), −1 to 1
    blocks = []
    for start in range(0, len(numbers), 500):
        images = torch.from_numpy(pack.images[numbers[start : start + 500]]).float() / 127.5 - 1  # (n, C, H, W)
        small = interpolate(images, _size(pack), mode="bilinear", antialias=True)
        blocks.append(small.flatten(1).numpy())
    return np.concatenate(blocks)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
