"""What a model says of a picture: a class, several labels, a number, or one of these for each of several tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.targets import Target, columns


@dataclass(frozen=True)
class Prediction:
    """An answer: the label, how probable the model holds it, and the same for every class, most probable first.

    `distance` says how unlike the pictures that were learnt from this one is: above 1 it is farther from every class
    than 95 % of the validation pictures were. It is None where that was not measured (no validation pictures).

    Where a picture has not one class, it is a `LabelsPrediction`, a `NumberPrediction` or a `TasksPrediction`: `label`
    is then all of the answer in words.
    """

    label: str
    probability: float
    probabilities: tuple[tuple[str, float], ...]
    distance: float | None = None

    @property
    def unknown(self) -> bool:
        """Whether the picture is unlike all that was learnt from: then the label means little."""
        return self.distance is not None and self.distance > 1

    def unsure(self, least: float = 0.5) -> bool:
        """Whether the answer is less probable than this."""
        return self.probability < least

    def __str__(self) -> str:
        return f"{'unknown, perhaps ' if self.unknown else ''}{self.label} ({self.probability:.1%})"

    def words(self, top: int) -> tuple[str, str]:
        """The answer as a person reads it, and what comes next: of the `top` most probable ones."""
        (label, probability), *others = self.probabilities[:top]
        return f"{label} {probability:.1%}", "".join(f"   {name} {share:.1%}" for name, share in others)

    def write(self, unsure: float = 0.5, top: int | None = None) -> dict[str, Any]:
        """As JSON has it, with the `top` most probable classes; None: all. Below `unsure` it is called so."""
        return {
            "label": self.label,
            "probability": self.probability,
            "unsure": self.unsure(unsure),
            "unknown": None if self.distance is None else self.unknown,
            "distance": self.distance,
            "probabilities": [{"label": name, "probability": share} for name, share in self.probabilities[:top]],
        }

    def cells(self, name: str = "label") -> dict[str, str]:
        """As columns of a table: of a task behind its `name`."""
        return {name: self.label, f"{'' if name == 'label' else f'{name}_'}probability": f"{self.probability:.6f}"}


@dataclass(frozen=True)
class LabelsPrediction(Prediction):
    """All labels whose probability reaches their thresholds, most probable first.

    `label` is these in one word, `probability` that of the most probable label, `probabilities` each label's own.
    """

    labels: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()  # in the order of `probabilities`

    def __str__(self) -> str:
        probabilities = dict(self.probabilities)
        words = ", ".join(f"{name} ({probabilities[name]:.1%})" for name in self.labels)
        return f"{'unknown, perhaps ' if self.unknown else ''}{words or self.label}"

    def unsure(self, least: float = 0.5) -> bool:
        """Whether the most probable label is less probable than this; where none is said, that none is there."""
        return (self.probability if self.labels else 1 - self.probability) < least

    def words(self, top: int) -> tuple[str, str]:
        said = [f"{name} {share:.1%}" for name, share in self.probabilities if name in self.labels]
        others = [one for one in self.probabilities if one[0] not in self.labels][: max(0, top - len(said))]
        return "   ".join(said) or self.label, "".join(f"   {name} {share:.1%}" for name, share in others)

    def write(self, unsure: float = 0.5, top: int | None = None) -> dict[str, Any]:
        top = None if top is None else max(top, len(self.labels))
        each = list(zip(self.probabilities, self.thresholds, strict=True))[:top]
        return {
            "labels": list(self.labels),
            "unsure": self.unsure(unsure),
            "unknown": None if self.distance is None else self.unknown,
            "distance": self.distance,
            "probabilities": [
                {"label": name, "probability": share, "threshold": threshold} for (name, share), threshold in each
            ],
        }

    def cells(self, name: str = "labels") -> dict[str, str]:
        probabilities = {f"{name}_{label}": f"{share:.6f}" for label, share in sorted(self.probabilities)}
        return {name: ";".join(self.labels), **probabilities}


@dataclass(frozen=True)
class NumberPrediction(Prediction):
    """A number in the unit of the data. It lies between `low` and `high` for 9 pictures out of 10, if they are like the
    validation pictures; these are None where there were too few to tell.

    `label` is the number in words; `probability` is 1, as a number is not called unsure, and `probabilities` empty.
    """

    value: float = math.nan
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{'unknown, perhaps ' if self.unknown else ''}{''.join(self.words(1))}"

    def words(self, top: int) -> tuple[str, str]:
        if self.low is None or self.high is None:
            return self.label, ""
        return self.label, f"   {number_words(self.low)} to {number_words(self.high)}, 9 times out of 10"

    def write(self, unsure: float = 0.5, top: int | None = None) -> dict[str, Any]:
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "unknown": None if self.distance is None else self.unknown,
            "distance": self.distance,
        }

    def cells(self, name: str = "value") -> dict[str, str]:
        bounds = {"low": self.low, "high": self.high}
        prefix = "" if name == "value" else f"{name}_"
        return {
            name: f"{self.value:.6g}",
            **{f"{prefix}{end}": "" if one is None else f"{one:.6g}" for end, one in bounds.items()},
        }


@dataclass(frozen=True)
class TasksPrediction(Prediction):
    """An answer for each of several tasks, by their names.

    `label` is all of them in words, `probability` that of the least sure one, and `probabilities` empty.
    """

    tasks: dict[str, Prediction] = field(default_factory=dict)

    def unsure(self, least: float = 0.5) -> bool:
        """Whether the answer for some task is."""
        return any(one.unsure(least) for one in self.tasks.values())

    def __getitem__(self, task: str) -> Prediction:
        return self.tasks[task]

    def __str__(self) -> str:
        words = "; ".join(f"{name} {one}" for name, one in self.tasks.items())
        return f"{'unknown, perhaps ' if self.unknown else ''}{words}"

    def write(self, unsure: float = 0.5, top: int | None = None) -> dict[str, Any]:
        parts = {name: one.write(unsure, top) for name, one in self.tasks.items()}
        shared = ("unknown", "distance")  # are of the picture
        return {
            "tasks": {
                name: {key: one for key, one in part.items() if key not in shared} for name, part in parts.items()
            },
            "unsure": self.unsure(unsure),
            "unknown": None if self.distance is None else self.unknown,
            "distance": self.distance,
        }

    def cells(self, name: str = "") -> dict[str, str]:
        return {key: cell for task, one in self.tasks.items() for key, cell in one.cells(task).items()}


def prediction_of(
    values: NDArray[Any],
    targets: Sequence[Target],
    distance: float | None,
    thresholds: NDArray[np.float64],
    margins: NDArray[np.float64],
) -> Prediction:
    """The prediction for one picture from what each output says, (outputs,), from which probability on a label is said,
    and how far a number may be off."""
    parts = {
        target.name: _of_target(target, values[mine], thresholds[mine], margins[mine])
        for target, mine in zip(targets, columns(targets), strict=True)
    }
    if len(parts) == 1:
        [part] = parts.values()
        return replace(part, distance=distance)
    words = ", ".join(f"{name} {one.label}" for name, one in parts.items())
    return TasksPrediction(words, min(one.probability for one in parts.values()), (), distance, parts)


def _of_target(
    target: Target, values: NDArray[Any], thresholds: NDArray[np.float64], margins: NDArray[np.float64]
) -> Prediction:
    if target.kind == "number":
        value, margin = float(values[0]), float(margins[0])
        low, high = (value - margin, value + margin) if margin else (None, None)
        return NumberPrediction(number_words(value), 1.0, (), value=value, low=low, high=high)
    order = np.argsort(-values, kind="stable")
    ranked = tuple((target.names[place], float(values[place])) for place in order)
    if target.kind == "class":
        return Prediction(ranked[0][0], ranked[0][1], ranked)
    said = tuple(target.names[place] for place in order if values[place] >= thresholds[place])
    limits = tuple(float(thresholds[place]) for place in order)
    return LabelsPrediction(", ".join(said) or "no label", ranked[0][1], ranked, labels=said, thresholds=limits)


def number_words(value: float) -> str:
    """A number with four digits that count.

    >>> number_words(23.456), number_words(-0.123456), number_words(12345.6)
    ('23.46', '-0.1235', '12,346')
    """
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    return f"{value:,.{min(max(4 - before, 0), 8)}f}"
