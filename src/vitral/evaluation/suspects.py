"""Pictures whose label is doubtful: a model that has not learnt from them says something else, and is sure of it.

Each of several labels is a question of its own: is it there? A number is doubtful where it is far from what is said.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.data.folds import OutOfFold
from vitral.data.pack import Pack
from vitral.files import as_csv, write_whole
from vitral.predictions import number_words
from vitral.targets import Target, columns, is_one_class

MOST_TILES = 64  # on the sheet
TOO_FAR = 2.0  # times as far off as 9 of 10 numbers are: of normal errors 1 in 1,000 is


@dataclass(frozen=True)
class Suspect:
    """A picture, and what speaks against its label."""

    number: int  # in the pack
    sample: str
    split: str
    label: str
    suggested: str
    label_probability: float
    suggested_probability: float
    target: str = ""  # its name, where a picture has not one class
    far: float = 0.0  # of a number, which has no probabilities: how many times as far off as 9 of 10 are

    @property
    def doubt(self) -> float:
        """How much more probable the other class is; of a number how far it is."""
        return self.far or self.suggested_probability - self.label_probability

    @property
    def probabilities(self) -> tuple[str, str]:
        """The probabilities of the label and of the other class, as suspects.csv has them."""
        return ("", "") if self.far else (f"{self.label_probability:.4f}", f"{self.suggested_probability:.4f}")

    @property
    def words(self) -> str:
        """What is said instead, and how sure it is."""
        return self.suggested if self.far else f"{self.suggested} {self.suggested_probability:.0%}"

    @property
    def title(self) -> str:
        """The label and what is said instead; of a label that is there or not, the latter alone."""
        is_there_or_not = self.suggested == f"not {self.label}" or self.label == f"not {self.suggested}"
        return self.words if is_there_or_not else f"{self.label} → {self.words}"


def suspects(outputs: OutOfFold) -> list[Suspect]:
    """The pictures with a doubtful label, the most doubtful first; of several targets one after the other.

    A picture is suspect where another class is at least as probable as that class is for its own pictures, on average
    (confident learning: Northcutt et al. 2021): so a model that is unsure of a class does not accuse in its name. The
    same holds for a label that is there or not. A number is suspect where it is far off beside most others.
    """
    targets, labels, values = outputs.pack.index.targets, outputs.labels, outputs.probabilities
    if is_one_class(targets):
        return _sorted(_of_class(outputs, labels, values, outputs.pack.index.class_names))
    each = zip(targets, columns(targets), strict=True)
    return [one for target, mine in each for one in _of_target(outputs, target, labels[:, mine], values[:, mine])]


def _sorted(doubtful: list[Suspect]) -> list[Suspect]:
    return sorted(doubtful, key=lambda suspect: -suspect.doubt)


def _of_target(
    outputs: OutOfFold, target: Target, truth: NDArray[Any], said: NDArray[np.float64]
) -> list[Suspect]:  # truth, said: (n, outputs of the target)
    if target.kind == "number":
        return _sorted(list(_of_number(outputs, target, truth[:, 0], said[:, 0])))
    if target.kind == "class":
        return _sorted(_of_class(outputs, truth.argmax(axis=1), said, target.names, target.name))
    doubtful = []
    for place, name in enumerate(target.names):
        there, both = truth[:, place].astype(np.int64), np.stack([1 - said[:, place], said[:, place]], axis=1)
        doubtful += _of_class(outputs, there, both, (f"not {name}", name), target.name)
    return _sorted(doubtful)


def _of_number(
    outputs: OutOfFold, target: Target, truth: NDArray[np.float64], said: NDArray[np.float64]
) -> Iterator[Suspect]:
    off = np.abs(said - truth)
    usual = float(np.quantile(off, 0.9))
    for row in np.flatnonzero(off > TOO_FAR * usual):
        number, is_said = int(outputs.numbers[row]), number_words(float(said[row]))
        sample, split = outputs.pack.index.samples[number], str(outputs.pack.index.splits[number])
        far = float(off[row]) / usual if usual else np.inf
        yield Suspect(number, sample, split, number_words(float(truth[row])), is_said, 0.0, 0.0, target.name, far)


def _of_class(
    outputs: OutOfFold,
    labels: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    names: tuple[str, ...],
    target: str = "",
) -> list[Suspect]:
    pack, numbers = outputs.pack, outputs.numbers
    pictures = [probabilities[labels == label, label] for label in range(len(names))]
    own = np.array([of_class.mean() if len(of_class) else np.inf for of_class in pictures])
    rows = np.arange(len(labels))
    above = np.where(probabilities >= own, probabilities, 0.0)  # (n, classes)
    above[rows, labels] = 0.0
    other = above.argmax(axis=1)
    suspect_rows = np.flatnonzero((above[rows, other] > 0) & (probabilities[rows, other] > probabilities[rows, labels]))
    return [
        Suspect(
            int(numbers[row]),
            pack.index.samples[numbers[row]],
            str(pack.index.splits[numbers[row]]),
            names[labels[row]],
            names[other[row]],
            float(probabilities[row, labels[row]]),
            float(probabilities[row, other[row]]),
            target,
        )
        for row in suspect_rows
    ]


def write_suspects(doubtful: list[Suspect], pack: Pack, folder: Path) -> None:
    """Write suspects.csv with all of them, and suspects.png with the first."""
    from vitral.look.sheets import Section, Tile, as_picture, write_sheet

    several = not is_one_class(pack.index.targets)
    names = ("sample", "split", "label", "suggested", "label_probability", "suggested_probability")
    header = (*names, "target") if several else names
    of_target = [(one.target,) if several else () for one in doubtful]
    both = zip(doubtful, of_target, strict=True)
    rows = ((one.sample, one.split, one.label, one.suggested, *one.probabilities, *target) for one, target in both)
    write_whole(folder / "suspects.csv", as_csv(header, rows))
    tiles = [
        [
            Tile(
                as_picture(np.asarray(pack.images[one.number])),
                one.title,
                one.sample,
            )
        ]
        for one in doubtful[:MOST_TILES]
    ]
    count = len(doubtful)
    subtitle = f"The first {MOST_TILES} of {count:,}." if count > MOST_TILES else f"{count:,} pictures."
    text_below = (
        "Label → what a model says that has not learnt from the picture, and how sure it is. Look before you change."
    )
    write_sheet(
        folder / "suspects.png", "Doubtful labels", subtitle, [Section("The most doubtful first", text_below, tiles)]
    )
