"""How far simple methods come with the same pictures: what a model has to beat to be worth its time."""

import math
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from vitral.data.pack import Pack
from vitral.progress import Progress
from vitral.run import Baseline

SIDE = 32  # pixels
TRAIN, VALIDATION, TEST = 5_000, 1_000, 2_000  # pictures, at most: it must not eat the budget
VALUES = 2**26  # in memory, at most
ROUNDS, ITERATIONS = 10, 20  # of logistic regression: after each round the clock is looked at
DOING = "simple methods, to compare with"


def baseline(pack: Pack, most: float = math.inf) -> Generator[Progress, None, Baseline]:
    """Logistic regression and nearest neighbours on small copies: the better one, by validation.

    After `most` seconds the regression is taken as it is.
    """
    from sklearn.linear_model import LogisticRegression  # here, since it takes a second to load
    from sklearn.neighbors import KNeighborsClassifier

    ends_at = time.perf_counter() + most
    yield Progress(0, 1 + ROUNDS, DOING)
    validation, train = _some(pack, "validation", VALIDATION), _some(pack, "train", TRAIN)
    labels = pack.index.labels[train]
    pixels = _pixels(pack, train)
    mean = pixels.mean(axis=0)
    pixels -= mean
    neighbours = KNeighborsClassifier(n_neighbors=min(5, len(train)), weights="distance")
    regression = LogisticRegression(C=0.01, max_iter=ITERATIONS, warm_start=True)
    with _one_thread():
        neighbours.fit(pixels, labels)
    for done in range(1, ROUNDS + 1):
        yield Progress(done, 1 + ROUNDS, DOING)
        with _one_thread():
            regression.fit(pixels, labels)
        if time.perf_counter() > ends_at or regression.n_iter_.max() < ITERATIONS:
            break
    methods = {"logistic regression": regression, "nearest neighbours": neighbours}
    scores = {name: _right(method, pack, validation, mean) for name, method in methods.items()}
    name = max(scores, key=lambda name: scores[name].sum())
    test = _some(pack, "test", TEST)
    right = _right(methods[name], pack, test, mean)
    height, width = _size(pack)
    return Baseline(
        method=f"{name} on {height} × {width} pixels",
        validation_accuracy=float(scores[name].mean()) if len(validation) else None,
        test_accuracy=float(right.mean()) if len(right) else None,
        right={pack.index.samples[number]: bool(one) for number, one in zip(test, right, strict=True)},
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """NumPy's products on one thread: where others use the machine too, two take ten times as long as one."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings(action="ignore"):  # not converged: good enough for a baseline
        yield


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
    with _one_thread():
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
