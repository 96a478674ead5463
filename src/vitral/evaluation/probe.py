"""Is this backbone good for these pictures? Its weights stay as they are; two simple methods learn from its features.

kNN takes the votes of the nearest training pictures (cosine), and has nothing to learn. The linear
probe is a logistic regression on standardised features. How many neighbours, how strong the regularisation and
which features are chosen by cross-validation on the training pictures; the test pictures choose nothing.

Of several labels, a number or several tasks a regression learns each, chosen in the same way: target_probe.py.

Tried and left out, since it made no difference on food, ants-bees and imagenette-mini with ViT-Ti/16 (at most one test
picture of 75, 153 and 200, either way) and takes twice the time: mirror images as further training rows; class tokens
of the last four blocks.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.config import Data
from vitral.data.folds import OutOfFold, parts
from vitral.data.pack import Pack
from vitral.data.sources import Index
from vitral.errors import DataError
from vitral.evaluation.embed import LOOKING, load_and_pack, map_pictures
from vitral.evaluation.evaluate import training_overlap
from vitral.evaluation.metrics import share
from vitral.evaluation.patch_probe import Predict, probe_patches
from vitral.evaluation.probe_results import Method, ProbeResult, TargetsProbeResult
from vitral.evaluation.target_probe import STRENGTHS, TargetTask, probe_target
from vitral.inference import Source, name_of_source, run_of
from vitral.plugin import Code
from vitral.progress import Progress, Tell, silent
from vitral.targets import columns
from vitral.weights.own import Weights, identity

FOLDS = 5
NEIGHBOURS = (1, 3, 5, 10, 20, 50)
MOST_TO_CHOOSE = 5_000  # training pictures that choose the setting; all are learnt from

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def probe(
    weights: Source,
    source: str | Path | Data | Index,
    *,
    patches: bool = False,
    tell: Tell = silent,
    code: Code = (),
) -> ProbeResult | TargetsProbeResult:
    """Measure the accuracy of kNN and of a linear probe on the features of a frozen backbone; of several labels, a
    number or several tasks the figures of a regression for each.

    `weights` is a run, what `load_pretrained` takes, or Weights; `source` what `vitral check` takes, or an Index. Train
    and validation pictures are learnt from, test pictures are measured on. `tell` hears how far it is.

    >>> result = probe("weights/vit_tiny_patch16_224", "food")  # doctest: +SKIP
    >>> f"{result.linear.right} of {result.tested}"  # doctest: +SKIP
    '72 of 75'
    """
    started_at = time.perf_counter()
    pretrained, packed = load_and_pack(weights, source, tell, "vitral probe --patches" if patches else "", code)
    index = packed.index
    learn, test = np.sort(np.concatenate([packed.of("train"), packed.of("validation")])), packed.of("test")
    if not len(test):
        raise DataError(f"{index.source} has no test pictures, so nothing could be measured.")
    packed.check_classes(learn)
    features = _features(pretrained, packed, np.concatenate([learn, test]), tell)
    folds = _folds(index, learn)
    run = run_of(weights)
    again = training_overlap(run, packed, test) if run else []
    common: dict[str, Any] = {
        "weights": name_of_source(weights),
        "weights_sha256": identity(pretrained),
        "source": index.source,
        "pictures_sha256": packed.sha256,
        "learnt": len(learn),
        "tested": len(test),
        "notes": (*pretrained.notes, *index.notes, *packed.notes, *again),
    }
    if index.other_targets:
        groups = None if index.groups is None else [index.groups[number] for number in test]
        parted = [(one, index.labels[:, mine]) for one, mine in zip(index.targets, columns(index.targets), strict=True)]
        targets = tuple(
            probe_target(one, TargetTask(features, labels[learn], labels[test], folds, groups, tell))
            for one, labels in parted
        )
        return TargetsProbeResult(**common, targets=targets, seconds=time.perf_counter() - started_at)
    task = Task(features, len(learn), index.labels[learn], index.labels[test], folds, tell)
    names = np.array(index.samples)[test]
    return ProbeResult(
        **common,
        classes=len(index.class_names),
        knn=_method(task, "k", NEIGHBOURS, _neighbours, names),
        linear=_method(task, "C", STRENGTHS, _regression, names),
        patches=probe_patches(pretrained, packed, learn, test, folds, fit_regression, tell) if patches else None,
        guessing=float(np.bincount(index.labels[test]).max() / len(test)),
        seconds=time.perf_counter() - started_at,
    )


def out_of_fold(
    weights: Source, source: str | Path | Data, sha256: str = "", *, tell: Tell = silent, code: Code = ()
) -> OutOfFold:
    """The answers of linear probes to pictures that they have not learnt from, for all pictures of a source; where
    `sha256` is not empty, they must have that hash."""
    pretrained, packed = load_and_pack(weights, source, tell, "Looking for doubtful labels", code)
    packed.check(sha256)
    part_of = parts(packed, FOLDS)
    numbers = np.flatnonzero(part_of >= 0)
    vectors = next(iter(_features(pretrained, packed, numbers, tell).values()))
    labels, fold_of = packed.index.labels[numbers], part_of[numbers]
    probabilities = np.zeros((len(numbers), len(packed.index.class_names)))
    folds = int(fold_of.max()) + 1
    tell(Progress(0, folds, "learning"))
    for fold in range(folds):
        learn, held_out = fold_of != fold, fold_of == fold
        classes, answers = _regression(vectors[learn], labels[learn], vectors[held_out], 1.0)
        probabilities[np.ix_(held_out, classes)] = answers
        tell(Progress(fold + 1, folds, "learning"))
    return OutOfFold(packed, numbers, probabilities)


def _features(pretrained: Weights, packed: Pack, numbers: Ints, tell: Tell) -> dict[str, Floats]:
    """The features to choose from, by name: the input of the head, (n, F); and with the mean of the patches beside it,
    unless that is in the input."""
    model = pretrained.model

    @torch.inference_mode()
    def extract(images: Tensor) -> Tensor:
        tokens = model.features(images)
        parts = [model.pool(tokens)] if model.config.pools_patches else [model.pool(tokens), mean_of_patches(tokens)]
        return torch.cat(parts, dim=1)

    def mean_of_patches(tokens: Tensor) -> Tensor:  # (B, T, D) → (B, D)
        return model.patch_tokens(tokens).mean(dim=1)

    rows: list[Floats] = []
    done = 0
    tell(Progress(done, len(numbers), LOOKING))
    for batch in map_pictures(extract, packed, numbers, pretrained.preprocess):
        rows.append(batch)
        done += len(batch)
        tell(Progress(done, len(numbers), LOOKING))
    vectors = np.concatenate(rows)
    if model.config.pools_patches:
        return {"what its head sees": vectors}
    return {"class token": vectors[:, : vectors.shape[1] // 2], "class token and mean of the patches": vectors}


@dataclass(frozen=True)
class Task:
    """The features, labels and folds that both methods work on."""

    features: dict[str, Floats]  # each (train_count + test pictures, F)
    train_count: int
    labels: Ints  # (train_count,)
    test_labels: Ints
    folds: Ints  # (train_count,) of 0 to FOLDS - 1; -1: learnt from, and in no fold
    tell: Tell


# Fit on vectors and labels with a setting; for other vectors the classes, and (n, classes) probabilities of them.
FitPredict = Callable[[Floats, Ints, Floats, float], tuple[Ints, NDArray[np.float64]]]


def _method(
    task: Task, name: str, settings: tuple[float, ...], fit_predict: FitPredict, samples: NDArray[np.str_]
) -> Method:
    """The best features and setting by cross-validation, measured on the test pictures."""
    tries = [(features, setting) for features in task.features for setting in settings]
    best: tuple[float, float, str, float] | None = None
    for number, (features, setting) in enumerate(tries):
        task.tell(Progress(number, len(tries), f"choosing {name}"))
        accuracy, loss = _cross_validate(task, task.features[features], setting, fit_predict)
        # By the loss, which differs where accuracies are equal; the votes of few neighbours have none.
        score = accuracy if name == "k" else -loss
        if best is None or score > best[0]:
            best = (score, accuracy, features, setting)
    task.tell(Progress(len(tries), len(tries), f"choosing {name}"))
    assert best is not None
    _, accuracy, features, setting = best
    train, test = task.features[features][: task.train_count], task.features[features][task.train_count :]
    classes, probabilities = fit_predict(train, task.labels, test, setting)
    right = classes[probabilities.argmax(axis=1)] == task.test_labels
    count = int(right.sum())
    wrong = tuple(map(str, samples[~right]))
    return Method(features, f"{name} = {setting:g}", accuracy, count, share(count, len(right)), wrong)


def _cross_validate(task: Task, vectors: Floats, setting: float, fit_predict: FitPredict) -> tuple[float, float]:
    """Accuracy and mean cross-entropy in cross-validation."""
    chances, rights = [], []
    for fold in np.unique(task.folds[task.folds >= 0]):
        learn = np.flatnonzero((task.folds >= 0) & (task.folds != fold))
        held_out = np.flatnonzero(task.folds == fold)
        classes, probabilities = fit_predict(vectors[learn], task.labels[learn], vectors[held_out], setting)
        # (held out, classes); a class with one picture is in no column
        is_label = task.labels[held_out][:, None] == classes
        rights.append(is_label[np.arange(len(held_out)), probabilities.argmax(axis=1)])
        chances.append((probabilities * is_label).sum(axis=1))
    chance = np.maximum(np.concatenate(chances), 1e-6)
    return float(np.concatenate(rights).mean()), float(-np.log(chance).mean())


def _folds(index: Index, learn: Ints) -> Ints:
    """The fold of each picture, with each class shared out evenly; where pictures belong together, by whole groups."""
    rows = np.random.default_rng(0).permutation(len(learn))[:MOST_TO_CHOOSE]
    folds = np.full(len(learn), -1)
    groups = None if index.groups is None else np.array(index.groups)[learn[rows]]
    if groups is not None and len(np.unique(groups)) > 1:
        folds[rows] = np.unique(groups, return_inverse=True)[1] % FOLDS
    else:
        labels = index.labels[learn[rows]]
        by_class = rows[np.argsort(labels, kind="stable") if labels.ndim == 1 else np.lexsort(labels.T[::-1])]
        folds[by_class] = np.arange(len(rows)) % FOLDS
    return folds


def _neighbours(vectors: Floats, labels: Ints, test: Floats, count: float) -> tuple[Ints, NDArray[np.float64]]:
    from sklearn.neighbors import KNeighborsClassifier

    method = KNeighborsClassifier(min(int(count), len(vectors)), metric="cosine", weights="distance")
    method.fit(vectors, labels)
    return method.classes_, method.predict_proba(test)


def _regression(vectors: Floats, labels: Ints, test: Floats, strength: float) -> tuple[Ints, NDArray[np.float64]]:
    return fit_regression(vectors, labels, strength)(test)


def fit_regression(vectors: Floats, labels: Ints, strength: float) -> Predict:
    """A logistic regression on standardised vectors."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:  # what a fold of very few pictures may leave
        return lambda test: (labels[:1], np.ones((len(test), 1)))
    method = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300))
    with warnings.catch_warnings(action="ignore"):  # not converged: good enough to choose, and to answer
        method.fit(vectors, labels)
    return lambda test: (method.classes_, method.predict_proba(test))
