"""Is this backbone good for these pictures? Its weights stay as they are; two simple methods learn from what it sees.

kNN asks the nearest training pictures (cosine), and has nothing to learn: the plainest reading of the features. The
linear probe is a logistic regression on standardised features. How many neighbours, how strong the regularisation and
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
from vitral.evaluation.evaluate import learnt_before
from vitral.evaluation.metrics import Figure, share
from vitral.evaluation.paired import Paired, paired
from vitral.files import write_whole
from vitral.plugin import Code
from vitral.progress import Progress, Tell, silent
from vitral.run import Run, name_of
from vitral.settings import FORMAT
from vitral.version import __version__
from vitral.weights.pretrained import Pretrained

FOLDS = 5
NEIGHBOURS = (1, 3, 5, 10, 20, 50)
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)  # scikit-learn's C: small is strong
CHOOSING = 5_000  # training pictures that choose, at most; all of them teach

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Method:
    """How good one of the two methods is."""

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
class Probed:
    """What a backbone is worth on a source of pictures."""

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
    guessing: float = 0.0  # the share that is right who always says the most frequent class
    format: int = FORMAT
    version: str = __version__

    def write(self) -> dict[str, Any]:
        """As its file has it."""
        return asdict(self)

    def save(self, folder: Path) -> Path:
        """Into `folder`, under the name of the weights; if others of that name are there, it is told apart."""
        path = folder / f"{self.weights}.json"
        if (kept := _if_read(path)) and kept.weights_sha256 != self.weights_sha256:
            path = folder / f"{self._told_apart}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(self.write(), indent=1) + "\n")
        except OSError as error:
            raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another place with --out.") from None
        return path

    @classmethod
    def load(cls, path: Path) -> "Probed":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            methods = {name: Method.read(values[name]) for name in ("knn", "linear")}
            return cls(**{**values, **methods, "notes": tuple(values["notes"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a probe that can be read ({error}).") from None

    def others(self, folder: Path) -> list["Probed"]:
        """The probes of other weights on the same pictures that are in `folder`, the best first."""
        found = [one for path in sorted(folder.glob("*.json")) if (one := _if_read(path))]
        beside = [
            replace(one, weights=one._told_apart) if one.weights == self.weights else one
            for one in found
            if one.pictures_sha256 == self.pictures_sha256 and one.weights_sha256 != self.weights_sha256
        ]
        return sorted(beside, key=lambda one: -one.linear.right)

    @property
    def _told_apart(self) -> str:
        """Two runs in different folders may have one name."""
        return f"{self.weights}-{self.weights_sha256[:8]}"

    def against(self, other: "Probed") -> Paired:
        """This linear probe beside another one, picture by picture."""
        wrong = sorted({*self.linear.wrong, *other.linear.wrong})
        ours, theirs = (np.ones(self.tested) for _ in range(2))
        for place, sample in enumerate(wrong):
            ours[place], theirs[place] = sample not in self.linear.wrong, sample not in other.linear.wrong
        return paired(other.weights, self.weights, theirs, ours)


def _if_read(path: Path) -> Probed | None:
    """None: some other file."""
    try:
        return Probed.load(path)
    except RunError:
        return None


def probe(weights: str | Path, source: str | Path | Data, *, tell: Tell = silent, code: Code = ()) -> Probed:
    """Measure how far kNN and a linear probe come on what a frozen backbone sees.

    `weights` is what `load_pretrained` takes, `source` what `vitral check` takes. Train and validation pictures are
    learnt from, test pictures are measured on. `tell` hears how far it is.

    >>> probed = probe("weights/vit_tiny_patch16_224", "food")  # doctest: +SKIP
    >>> f"{probed.linear.right} of {probed.tested}"  # doctest: +SKIP
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
    again = learnt_before(Run.load(weights), packed, test) if Run.is_run(weights) else []
    return Probed(
        weights=name_of(weights),
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


def out_of_fold(weights: str | Path, source: str | Path | Data, sha256: str = "", *, tell: Tell = silent) -> OutOfFold:
    """What linear probes say of pictures that they have not learnt from, for all pictures of a source, which must be
    those of `sha256`, where it is given."""
    pretrained, packed = load_and_pack(weights, source, tell)
    packed.check(sha256)
    part_of = parts(packed, FOLDS)
    numbers = np.flatnonzero(part_of >= 0)
    seen = next(iter(_features(pretrained, packed, numbers, tell).values()))
    labels, held_in = packed.index.labels[numbers], part_of[numbers]
    probabilities = np.zeros((len(numbers), len(packed.index.class_names)))
    folds = int(held_in.max()) + 1
    tell(Progress(0, folds, "learning"))
    for fold in range(folds):
        learn, held = held_in != fold, held_in == fold
        classes, found = _regression(seen[learn], labels[learn], seen[held], 1.0)
        probabilities[np.ix_(held, classes)] = found
        tell(Progress(fold + 1, folds, "learning"))
    return OutOfFold(packed, numbers, probabilities)


def _features(pretrained: Pretrained, packed: Pack, numbers: Ints, tell: Tell) -> dict[str, Floats]:
    """Those to choose from: what the head sees, (n, F); and beside it the mean of the patches, if it has not that."""
    model = pretrained.model

    @torch.inference_mode()
    def look(images: Tensor) -> Tensor:
        tokens = model.features(images)
        seen = [model.pool(tokens)] if model.config.pools_patches else [model.pool(tokens), mean_of_patches(tokens)]
        return torch.cat(seen, dim=1)

    def mean_of_patches(tokens: Tensor) -> Tensor:  # (B, T, D) → (B, D)
        return model.patch_tokens(tokens).mean(dim=1)

    rows: list[Floats] = []
    done = 0
    tell(Progress(done, len(numbers), LOOKING))
    for batch in map_pictures(look, packed, numbers, pretrained.preprocess):
        rows.append(batch)
        done += len(batch)
        tell(Progress(done, len(numbers), LOOKING))
    seen = np.concatenate(rows)
    if model.config.pools_patches:
        return {"what its head sees": seen}
    return {"class token": seen[:, : seen.shape[1] // 2], "class token and mean of the patches": seen}


@dataclass(frozen=True)
class Task:
    """What both methods are given."""

    features: dict[str, Floats]  # each (learnt + tested, F)
    learnt: int
    labels: Ints  # (learnt,)
    test_labels: Ints
    folds: Ints  # (learnt,) of 0 to FOLDS - 1; -1: teaches, and chooses nothing
    tell: Tell


Ask = Callable[[Floats, Ints, Floats, float], tuple[Ints, NDArray[np.float64]]]  # classes, (n, classes) probabilities


def _method(task: Task, name: str, settings: tuple[float, ...], ask: Ask, samples: NDArray[np.str_]) -> Method:
    """The best features and setting by cross-validation, measured on the test pictures."""
    tries = [(features, setting) for features in task.features for setting in settings]
    best: tuple[float, float, str, float] | None = None
    for number, (features, setting) in enumerate(tries):
        task.tell(Progress(number, len(tries), f"choosing {name}"))
        accuracy, loss = _validated(task, task.features[features], setting, ask)
        # By the loss, which tells apart what has the same pictures right; the votes of few neighbours have none.
        score = accuracy if name == "k" else -loss
        if best is None or score > best[0]:
            best = (score, accuracy, features, setting)
    task.tell(Progress(len(tries), len(tries), f"choosing {name}"))
    assert best is not None
    _, accuracy, features, setting = best
    seen = task.features[features]
    classes, probabilities = ask(seen[: task.learnt], task.labels, seen[task.learnt :], setting)
    right = classes[probabilities.argmax(axis=1)] == task.test_labels
    count = int(right.sum())
    wrong = tuple(map(str, samples[~right]))
    return Method(features, f"{name} = {setting:g}", accuracy, count, share(count, len(right)), wrong)


def _validated(task: Task, seen: Floats, setting: float, ask: Ask) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of answers by methods that have not seen the picture."""
    chances, rights = [], []
    for fold in np.unique(task.folds[task.folds >= 0]):
        learn, held = (np.flatnonzero(some) for some in ((task.folds >= 0) & (task.folds != fold), task.folds == fold))
        classes, probabilities = ask(seen[learn], task.labels[learn], seen[held], setting)
        is_label = task.labels[held][:, None] == classes  # (held, classes); a class with one picture is in no column
        rights.append(is_label[np.arange(len(held)), probabilities.argmax(axis=1)])
        chances.append((probabilities * is_label).sum(axis=1))
    chance = np.maximum(np.concatenate(chances), 1e-6)
    return float(np.concatenate(rights).mean()), float(-np.log(chance).mean())


def _folds(index: Index, learn: Ints) -> Ints:
    """Each class shared out evenly; where pictures belong together, whole groups."""
    chosen = np.random.default_rng(0).permutation(len(learn))[:CHOOSING]
    folds = np.full(len(learn), -1)
    groups = None if index.groups is None else np.array(index.groups)[learn[chosen]]
    if groups is not None and len(np.unique(groups)) > 1:
        folds[chosen] = np.unique(groups, return_inverse=True)[1] % FOLDS
    else:
        by_class = chosen[np.argsort(index.labels[learn[chosen]], kind="stable")]
        folds[by_class] = np.arange(len(chosen)) % FOLDS
    return folds


def _neighbours(seen: Floats, labels: Ints, asked: Floats, count: float) -> tuple[Ints, NDArray[np.float64]]:
    from sklearn.neighbors import KNeighborsClassifier

    method = KNeighborsClassifier(min(int(count), len(seen)), metric="cosine", weights="distance")
    method.fit(seen, labels)
    return method.classes_, method.predict_proba(asked)


def _regression(seen: Floats, labels: Ints, asked: Floats, strength: float) -> tuple[Ints, NDArray[np.float64]]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) == 1:  # what a fold of very few pictures may leave
        return labels[:1], np.ones((len(asked), 1))
    method = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300))
    with warnings.catch_warnings(action="ignore"):  # not converged: good enough to choose, and to answer
        method.fit(seen, labels)
    return method.classes_, method.predict_proba(asked)
