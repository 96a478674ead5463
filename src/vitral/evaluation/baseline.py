"""How far simple methods come with the same pictures: what a model has to beat to be worth its time."""

import warnings
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from vitral.data.pack import Pack
from vitral.settings import FORMAT

SIDE = 32  # pixels
MOST = 5_000  # pictures that are learnt from
FEW = 30  # test pictures, below which nothing can be said


@dataclass(frozen=True)
class Baseline:
    """The better of two simple methods, by validation."""

    method: str
    validation_accuracy: float | None  # None: there are no validation pictures; then it is logistic regression
    test_accuracy: float
    right: dict[str, bool]  # test picture → whether its answer was right

    def write(self) -> dict[str, Any]:
        """As baseline.json has it."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Baseline":
        """What `write` wrote."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def baseline(pack: Pack) -> Baseline:
    """Logistic regression and nearest neighbours, on at most 5,000 pictures of 32 pixels a side."""
    labels, validation, test = pack.index.labels, pack.of("validation"), pack.of("test")
    learnt = np.sort(np.random.default_rng(0).permutation(pack.of("train"))[:MOST])
    seen = _pixels(pack, learnt)
    mean = seen.mean(axis=0)
    seen -= mean
    best: tuple[float, str, Any] = (-1.0, "", None)
    for name, method in _methods(len(learnt)).items():
        with warnings.catch_warnings(action="ignore"):  # not converged: good enough for a baseline
            method.fit(seen, labels[learnt])
        score = float(_right(method, pack, validation, mean).mean()) if len(validation) else 0.0
        best = max(best, (score, name, method), key=lambda one: one[0])
    score, name, method = best
    right = _right(method, pack, test, mean)
    return Baseline(
        method=f"{name} on {SIDE}-pixel copies",
        validation_accuracy=score if len(validation) else None,
        test_accuracy=float(right.mean()),
        right={pack.index.samples[number]: bool(one) for number, one in zip(test, right, strict=True)},
    )


@dataclass(frozen=True)
class Beside:
    """A model beside a baseline, on the same test pictures."""

    method: str
    pictures: int
    accuracy: float  # of the baseline
    gained: int  # pictures that the model has right and the baseline wrong
    lost: int  # the other way round

    @property
    def by_luck(self) -> float:
        """How probable as large a difference is if both are equally good (McNemar's exact test)."""
        from scipy.stats import binomtest

        return float(binomtest(self.gained, self.gained + self.lost).pvalue) if self.gained + self.lost else 1.0

    @property
    def verdict(self) -> str:
        """In a sentence or two, for somebody who wants to know whether to trust the model."""
        beside = f"{self.method[0].upper()}{self.method[1:]} has {self.accuracy:.1%} of them"
        compared = f"right on {self.gained:,} where that is wrong, wrong on {self.lost:,} where that is right"
        if self.pictures < FEW:
            return (
                f"{beside}. On {self.pictures} pictures that says little: do not trust the model before more are there."
            )
        if self.by_luck < 0.05 and self.gained > self.lost:
            return f"{beside}. The model is better: {compared}."
        return (
            f"{beside}. The model is not clearly better ({compared}), so it cannot be trusted: "
            "it needs more pictures, or more time."
        )


def beside(baseline: Baseline, samples: list[str], right: NDArray[np.bool_]) -> Beside:
    """`right`: whether the model's answer was right, for each of the test pictures."""
    theirs = np.array([baseline.right[sample] for sample in samples])
    return Beside(
        method=baseline.method,
        pictures=len(samples),
        accuracy=baseline.test_accuracy,
        gained=int((right & ~theirs).sum()),
        lost=int((~right & theirs).sum()),
    )


def _methods(pictures: int) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression  # here, since it takes a second to load
    from sklearn.neighbors import KNeighborsClassifier

    return {
        "logistic regression": LogisticRegression(C=0.01, max_iter=200),
        "nearest neighbours": KNeighborsClassifier(n_neighbors=min(5, pictures), weights="distance"),
    }


def _right(method: Any, pack: Pack, numbers: NDArray[np.int64], mean: NDArray[np.float32]) -> NDArray[np.bool_]:
    predicted = [method.predict(_pixels(pack, some) - mean) for some in _blocks(numbers)]
    return np.concatenate(predicted) == pack.index.labels[numbers]


def _blocks(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Few enough at a time for any memory."""
    return [numbers[start : start + 1_000] for start in range(0, len(numbers), 1_000)]


def _pixels(pack: Pack, numbers: NDArray[np.int64]) -> NDArray[np.float32]:  # → (n, C·32·32)
    """−1 to 1; larger pictures made smaller, smaller ones as they are."""
    blocks = []
    for some in _blocks(numbers):
        images = torch.from_numpy(pack.images[some]).float() / 127.5 - 1  # (n, C, H, W)
        if max(images.shape[2:]) > SIDE:
            images = interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
        blocks.append(images.flatten(1).numpy())
    return np.concatenate(blocks)
