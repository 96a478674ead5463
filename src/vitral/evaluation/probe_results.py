"""The results of probes, which are kept as JSON beside those of other weights on the same pictures."""

import json
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from vitral.errors import RunError
from vitral.evaluation.metrics import Figure
from vitral.evaluation.paired import PairedComparison, compare_paired
from vitral.files import write_whole
from vitral.settings import FORMAT
from vitral.targets import TargetKind
from vitral.version import __version__


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
class TargetProbe:
    """How well a regression on frozen features finds one of several targets, labels or a number."""

    name: str
    kind: TargetKind
    features: str
    setting: str  # what was chosen: "C = 0.1", "penalty = 0.01"
    validation: float  # the first of the figures, in cross-validation
    # The same of one who says the same of each test picture: the most frequent class of these; how often each label is
    # among the training pictures, or the mean of their numbers.
    guess: float
    figures: dict[str, Figure]  # accuracy of a class; map of labels; mae, mae_of_mean and r2 of a number

    @classmethod
    def read(cls, values: dict[str, Any]) -> "TargetProbe":
        return cls(**{**values, "figures": {name: Figure(**one) for name, one in values["figures"].items()}})


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is kept of any probe."""

    weights: str  # a name
    weights_sha256: str
    source: str
    pictures_sha256: str  # names, labels, splits and contents
    learnt: int  # pictures of train and validation
    tested: int
    seconds: float
    notes: tuple[str, ...] = ()
    format: int = FORMAT
    version: str = __version__

    @classmethod
    @abstractmethod
    def read(cls, values: dict[str, Any]) -> Self:
        """The result from values of JSON."""

    @property
    @abstractmethod
    def score(self) -> float:
        """What it is sorted by: more is better."""

    def write(self) -> dict[str, Any]:
        """The result as values for JSON."""
        return asdict(self)

    def save(self, folder: Path) -> Path:
        """Write the result into `folder` under the name of the weights, or under `_unique_name` where other
        weights have that name; returns the path."""
        path = folder / f"{self.weights}.json"
        if (existing := self._load_or_none(path)) and existing.weights_sha256 != self.weights_sha256:
            path = folder / f"{self._unique_name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(self.write(), indent=1) + "\n")
        except OSError as error:
            raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another place with --out.") from None
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            return cls.read(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a probe that can be read ({error}).") from None

    def others(self, folder: Path) -> list[Self]:
        """The probes of other weights on the same pictures that are in `folder`, the best first."""
        results = [one for path in sorted(folder.glob("*.json")) if (one := self._load_or_none(path))]
        beside = [
            replace(one, weights=one._unique_name) if one.weights == self.weights else one
            for one in results
            if one.pictures_sha256 == self.pictures_sha256 and one.weights_sha256 != self.weights_sha256
        ]
        return sorted(beside, key=lambda one: -one.score)

    @property
    def _unique_name(self) -> str:
        """The name of the weights with a part of their sha256: two runs in different folders may have one name."""
        return f"{self.weights}-{self.weights_sha256[:8]}"

    @classmethod
    def _load_or_none(cls, path: Path) -> Self | None:
        """The result in a file; None: it is some other file."""
        try:
            return cls.load(path)
        except RunError:
            return None


@dataclass(frozen=True, kw_only=True)
class ProbeResult(Result):
    """The results of both methods for a backbone on a source of pictures that have one class each."""

    classes: int
    knn: Method
    linear: Method
    guessing: float = 0.0  # accuracy of always answering the most frequent class
    patches: Method | None = None  # on the tokens of patches, where it was asked for

    @classmethod
    def read(cls, values: dict[str, Any]) -> "ProbeResult":
        methods = {name: Method.read(values[name]) for name in ("knn", "linear", "patches") if values.get(name)}
        return cls(**{**values, **methods, "notes": tuple(values["notes"])})

    @property
    def score(self) -> float:
        return self.linear.right

    def against(self, other: "ProbeResult") -> PairedComparison:
        """Compare this linear probe with another one, picture by picture."""
        wrong = sorted({*self.linear.wrong, *other.linear.wrong})
        ours, theirs = (np.ones((1, self.tested)) for _ in range(2))
        for place, sample in enumerate(wrong):
            ours[0, place], theirs[0, place] = sample not in self.linear.wrong, sample not in other.linear.wrong
        return compare_paired(other.weights, self.weights, theirs, ours, over_seeds=False)


@dataclass(frozen=True, kw_only=True)
class TargetsProbeResult(Result):
    """The results for a backbone on a source whose pictures have several labels, a number or several tasks."""

    targets: tuple[TargetProbe, ...]

    @classmethod
    def read(cls, values: dict[str, Any]) -> "TargetsProbeResult":
        targets = tuple(TargetProbe.read(one) for one in values["targets"])
        return cls(**{**values, "targets": targets, "notes": tuple(values["notes"])})

    @property
    def score(self) -> float:
        """The main figure of the first target."""
        first = self.targets[0]
        value = next(iter(first.figures.values())).value
        return -value if first.kind == "number" else value
