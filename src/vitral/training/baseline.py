"""How far simple methods come with the same pictures: what a model has to beat to be worth its time."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from vitral.data.pack import Pack
from vitral.run import Baseline

SIDE = 32  # pixels
TRAIN, VALIDATION, TEST = 5_000, 1_000, 2_000  # pictures, at most: it must not eat the budget
VALUES = 2**26  # in memory, at most


def baseline(pack: Pack) -> Baseline:
    """Logistic regression and nearest neighbours on small copies: the better one, by validation."""
    labels, validation = pack.index.labels, _some(pack, "validation", VALIDATION)
    train, test = _some(pack, "train", TRAIN), _some(pack, "test", TEST)
    height, width = _size(pack)
    pixels = _pixels(pack, train)
    mean = pixels.mean(axis=0)
    pixels -= mean
    best: tuple[float, str, Any] = (-1.0, "", None)
    for name, method in _methods(len(train)).items():
        with warnings.catch_warnings(action="ignore"):  # not converged: good enough for a baseline
            method.fit(pixels, labels[train])
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
    """Height and width that pictures are compared at: 32 × 32, or as they are where they are smaller."""
    height, width = pack.images.shape[2:]
    return (SIDE, SIDE) if max(height, width) > SIDE else (height, width)


def _pixels(pack: Pack, numbers: NDArray[np.int64]) -> NDArray[np.float32]:  # → (n, C·height·width), −1 to 1
    blocks = []
    for start in range(0, len(numbers), 500):
        images = torch.from_numpy(pack.images[numbers[start : start + 500]]).float() / 127.5 - 1  # (n, C, H, W)
        small = interpolate(images, _size(pack), mode="bilinear", antialias=True)
        blocks.append(small.flatten(1).numpy())
    return np.concatenate(blocks)
