"""Is this backbone good for these pictures? Its weights stay as they are; two simple methods learn from its features.

kNN takes the votes of the nearest training pictures (cosine), and has nothing to learn. The linear
probe is a logistic regression on standardised features. How many neighbours, how strong the regularisation and
which features are chosen by cross-validation on the training pictures; the test pictures choose nothing.

Tried and left out, since it made no difference on food, ants-bees and imagenette-mini with ViT-Ti/16 (at most one test
picture of 75, 153 and 200, either way) and takes twice the time: mirror images as further training rows; class tokens
of the last four blocks.
"""

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
from vitral.errors import DataError, RunError
from vitral.evaluation.embed import LOOKING, identity, load_and_pack, map_pictures
from vitral.evaluation.evaluate import training_overlap
from vitral.evaluation.metrics import Figure, share
from vitral.evaluation.paired import PairedComparison, compare_paired
from vitral.files import write_whole
from vitral.inference import Source, name_of_source, run_of
from vitral.plugin import Code
from vitral.progress import Progress, Tell, silent
from vitral.settings import FORMAT
from vitral.version import __version__
from vitral.weights.own import Weights

FOLDS = 5
NEIGHBOURS = (1, 3, 5, 10, 20, 50)
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)  # scikit-learn's C: small is strong
MOST_TO_CHOOSE = 5_000  # training pictures that choose the setting; all are learnt from

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Method:
    """The result of one of the two methods."""

    features: str
    setting: str  # what was chosen: "k = 10", "C = 0.1"
    validation_accuracy: float  # in cross-validation
    right: int  # of the test pictures
    accuracy: Figure
    wrong: tuple[str, ...]  # the test pictures that it has wrong

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Method":
        return cls(**{**values, "accuracy": Figure(**values["accuracy"]), "wrong": tuple(values["wrong"])})


@dataclass(frozen=True)
class ProbeResult:
    """The results of both methods for a backbone on a source of pictures."""

    weights: str  # a name
    weights_sha256: str
    source: str
    pictures_sha256: str  # names, labels, splits and contents
    classes: int
    learnt: int  # pictures of train and validation
    tested: int
    knn: Method
    linear: Method
    seconds: float
    notes: tuple[str, ...] = ()
    guessing: float = 0.0  # accuracy of always answering the most frequent class
    format: int = FORMAT
    version: str = __version__

    def write(self) -> dict[str, Any]:
        """The result as values for JSON."""
        return asdict(self)

    def save(self, folder: Path) -> Path:
        """Write the result into `folder` under the name of the weights, or under `_unique_name` where other
        weights have that name; returns the path."""
        path = folder / f"{self.weights}.json"
        if (existing := _load_or_none(path)) and existing.weights_sha256 != self.weights_sha256:
            path = folder / f"{self._unique_name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(self.write(), indent=1) + "\n")
        except OSError as error:
            raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another place with --out.") from None
        return path

    @classmethod
    def load(cls, path: Path) -> "ProbeResult":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            methods = {name: Method.read(values[name]) for name in ("knn", "linear")}
            return cls(**{**values, **methods, "notes": tuple(values["notes"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a probe that can be read ({error}).") from None

    def others(self, folder: Path) -> list["ProbeResult"]:
        """The probes of other weights on the same pictures that are in `folder`, the best first."""
        results = [one for path in sorted(folder.glob("*.json")) if (one := _load_or_none(path))]
        beside = [
            replace(one, weights=one._unique_name) if one.weights == self.weights else one
            for one in results
            if one.pictures_sha256 == self.pictures_sha256 and one.weights_sha256 != self.weights_sha256
        ]
        return sorted(beside, key=lambda one: -one.linear.right)

    @property
    def _unique_name(self) -> str:
        """The name of the weights with a part of their sha256: two runs in different folders may have one name."""
        return f"{self.weights}-{self.weights_sha256[:8]}"

    def against(self, other: "ProbeResult") -> PairedComparison:
        """Compare this linear probe with another one, picture by picture."""
        wrong = sorted({*self.linear.wrong, *other.linear.wrong})
        ours, theirs = (np.ones((1, self.tested)) for _ in range(2))
        for place, sample in enumerate(wrong):
            ours[0, place], theirs[0, place] = sample not in self.linear.wrong, sample not in other.linear.wrong
        return compare_paired(other.weights, self.weights, theirs, ours, over_seeds=False)


def _load_or_none(path: Path) -> ProbeResult | None:
    """The result in a file; None: it is some other file."""
    try:
        return ProbeResult.load(path)
    except RunError:
        return None


def probe(weights: Source, source: str | Path | Data, *, tell: Tell = silent, code: Code = ()) -> ProbeResult:
    """Measure the accuracy of kNN and of a linear probe on the features of a frozen backbone.

    `weights` is a run, what `load_pretrained` takes, or Weights; `source` what `vitral check` takes. Train and
    validation pictures are learnt from, test pictures are measured on. `tell` hears how far it is.

    >>> result = probe("weights/vit_tiny_patch16_224", "food")  # doctest: +SKIP
    >>> f"{result.linear.right} of {result.tested}"  # doctest: +SKIP
    '72 of 75'
    """
    started_at = time.perf_counter()
    pretrained, packed = load_and_pack(weights, source, tell, code)
    index = packed.index
    learn, test = np.sort(np.concatenate([packed.of("train"), packed.of("validation")])), packed.of("test")
    if not len(test):
        raise DataError(f"{index.source} has no test pictures, so nothing could be measured.")
    packed.check_classes(learn)
    features = _features(pretrained, packed, np.concatenate([learn, test]), tell)
    task = Task(features, len(learn), index.labels[learn], index.labels[test], _folds(index, learn), tell)
    names = np.array(index.samples)[test]
    run = run_of(weights)
    again = training_overlap(run, packed, test) if run else []
    return ProbeResult(
        weights=name_of_source(weights),
        weights_sha256=identity(pretrained),
        source=index.source,
        pictures_sha256=packed.sha256,
        classes=len(index.class_names),
        learnt=len(learn),
        tested=len(test),
        knn=_method(task, "k", NEIGHBOURS, _neighbours, names),
        linear=_method(task, "C", STRENGTHS, _regression, names),
        seconds=time.perf_counter() - started_at,
        notes=(*pretrained.notes, *index.notes, *packed.notes, *again),
        guessing=float(np.bincount(index.labels[test]).max() / len(test)),
    )


def out_of_fold(
    weights: Source, source: str | Path | Data, sha256: str = "", *, tell: Tell = silent, code: Code = ()
) -> OutOfFold:
    """The answers of linear probes to pictures that they have not learnt from, for all pictures of a source; where
    `sha256` is not empty, they must have that hash."""
    pretrained, packed = load_and_pack(weights, source, tell, code)
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
        by_class = rows[np.argsort(index.labels[learn[rows]], kind="stable")]
        folds[by_class] = np.arange(len(rows)) % FOLDS
    return folds


def _neighbours(vectors: Floats, labels: Ints, test: Floats, count: float) -> tuple[Ints, NDArray[np.float64]]:
    from sklearn.neighbors import KNeighborsClassifier

    method = KNeighborsClassifier(min(int(count), len(vectors)), metric="cosine", weights="distance")
    method.fit(vectors, labels)
    return method.classes_, method.predict_proba(test)


def _regression(vectors: Floats, labels: Ints, test: Floats, strength: float) -> tuple[Ints, NDArray[np.float64]]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:  # what a fold of very few pictures may leave
        return labels[:1], np.ones((len(test), 1))
    method = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300))
    with warnings.catch_warnings(action="ignore"):  # not converged: good enough to choose, and to answer
        method.fit(vectors, labels)
    return method.classes_, method.predict_proba(test)
