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
from vitral.regressions import logistic, ridge
from vitral.run import Baseline, TargetBaseline
from vitral.targets import Target, columns

SIDE = 32  # pixels
TRAIN, VALIDATION, TEST = 5_000, 1_000, 2_000  # pictures, at most: it must not eat the budget
VALUES = 2**26  # in memory, at most
ROUNDS, ITERATIONS = 10, 20  # of logistic regression: after each round the clock is looked at
LIMITS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
C = 0.01  # of logistic regression: the inverse of its penalty
PENALTIES = (0.1, 1.0, 10.0)  # of ridge regression, times the mean variance of a pixel
RIDGE = "ridge regression"
Arrays = dict[str, NDArray[Any]]  # of train, validation and test
DOING = "simple methods, to compare with"


def baseline(pack: Pack, most: float = math.inf) -> Generator[Progress, None, Baseline]:
    """Logistic regression and nearest neighbours on small copies: the better one, by validation.

    After `most` seconds the regression is taken as it is. For other targets than one class a regression each.
    """
    if pack.index.other_targets:
        return (yield from _of_targets(pack, most))
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
    regression = LogisticRegression(C=C, max_iter=ITERATIONS, warm_start=True)
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


def _of_targets(pack: Pack, most: float) -> Generator[Progress, None, Baseline]:
    """A regression for each target; of a number always its mean or median, if that is better in validation."""
    ends_at = time.perf_counter() + most
    index = pack.index
    yield Progress(0, 1 + len(index.targets), DOING)
    numbers = {split: _some(pack, split, limit) for split, limit in LIMITS.items()}
    pixels = {split: _pixels(pack, some) for split, some in numbers.items()}
    mean = pixels["train"].mean(axis=0)
    for some in pixels.values():
        some -= mean
    samples = [index.samples[number] for number in numbers["test"]]
    rows = []
    for place, (target, part) in enumerate(zip(index.targets, columns(index.targets), strict=True), start=1):
        yield Progress(place, 1 + len(index.targets), DOING)
        labels = {split: index.labels[some, part] for split, some in numbers.items()}
        with _one_thread():
            name, said = _ridge(pixels, labels) if target.kind == "number" else _logistic(pixels, labels, ends_at)
        same = np.broadcast_to(labels["train"].mean(axis=0), labels["test"].shape)
        digits = 6 if target.kind == "number" else 4
        rows.append(
            TargetBaseline(
                name=target.name,
                kind=target.kind,
                method=f"{name} on {' × '.join(map(str, _size(pack)))} pixels" if "regression" in name else name,
                validation=_figure(target, labels["validation"], said["validation"]),
                test=_figure(target, labels["test"], said["test"]),
                guess=_figure(target, labels["test"], same),
                said={
                    sample: [float(f"{number:.{digits}g}") for number in row]
                    for sample, row in zip(samples, said["test"], strict=True)
                },
            )
        )
    methods = ", ".join(dict.fromkeys(row.method for row in rows))
    return Baseline(method=methods, validation_accuracy=None, test_accuracy=None, right={}, targets=rows)


def _logistic(pixels: Arrays, labels: Arrays, ends_at: float) -> tuple[str, Arrays]:
    """Logistic regression, one against the rest for each output: its name, and probabilities for each split."""
    says = logistic(
        pixels["train"], labels["train"], C, ROUNDS * ITERATIONS, go_on=lambda: time.perf_counter() <= ends_at
    )
    return "one-vs-rest logistic regression", {split: says(some) for split, some in pixels.items()}


def _ridge(pixels: Arrays, labels: Arrays) -> tuple[str, Arrays]:
    """Ridge regression, or always the mean or the median, whichever is best in validation: its name, and numbers for
    each split."""
    y = labels["train"]
    said = {
        f"always the {word}": {split: np.full((len(some), 1), number) for split, some in pixels.items()}
        for word, number in (("mean", y.mean()), ("median", np.median(y)))  # with outliers the median is nearer
    }
    for penalty, says in zip(PENALTIES, ridge(pixels["train"], y, PENALTIES), strict=True):
        said[f"{RIDGE} {penalty}"] = {split: says(some) for split, some in pixels.items()}
    truth, best = labels["validation"], f"{RIDGE} {PENALTIES[1]}"
    if len(truth):
        best = min(said, key=lambda name: np.abs(said[name]["validation"] - truth).mean())
    return RIDGE if best.startswith(RIDGE) else best, said[best]


def _figure(target: Target, labels: NDArray[np.float64], said: NDArray[np.float64]) -> float | None:
    """Accuracy, mean average precision of the labels that occur, or mean absolute error; None of no pictures."""
    from sklearn.metrics import average_precision_score

    if not len(labels):
        return None
    if target.kind == "class":
        return float(np.mean(labels.argmax(axis=1) == said.argmax(axis=1)))
    if target.kind == "number":
        return float(np.abs(labels - said).mean())
    occur = labels.any(axis=0)
    return float(average_precision_score(labels[:, occur], said[:, occur])) if occur.any() else None


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
    return np.union1d(numbers[:most], pack.index.first_of_each(numbers))


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
    return (
        np.concatenate(blocks) if blocks else np.zeros((0, pack.images.shape[1] * math.prod(_size(pack))), np.float32)
    )
