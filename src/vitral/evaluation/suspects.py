"""Pictures whose label is doubtful: a model that has not learnt from them says something else, and is sure of it."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitral.data.folds import OutOfFold
from vitral.data.pack import Pack
from vitral.files import write_whole

SHOWN = 64  # on the sheet


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

    @property
    def doubt(self) -> float:
        """How much more probable the other class is."""
        return self.suggested_probability - self.label_probability


def suspects(asked: OutOfFold) -> list[Suspect]:
    """The most doubtful first.

    A picture is suspect where another class is at least as probable as that class is for its own pictures, on average
    (confident learning: Northcutt et al. 2021): so a model that is unsure of a class does not accuse in its name.
    """
    pack, numbers, probabilities = asked.pack, asked.numbers, asked.probabilities
    labels, names = asked.labels, pack.index.class_names
    own = np.array([probabilities[labels == label, label].mean() for label in range(len(names))])
    rows = np.arange(len(labels))
    above = np.where(probabilities >= own, probabilities, 0.0)  # (n, classes)
    above[rows, labels] = 0.0
    said = above.argmax(axis=1)
    accused = np.flatnonzero((above[rows, said] > 0) & (probabilities[rows, said] > probabilities[rows, labels]))
    found = [
        Suspect(
            int(numbers[row]),
            pack.index.samples[numbers[row]],
            str(pack.index.splits[numbers[row]]),
            names[labels[row]],
            names[said[row]],
            float(probabilities[row, labels[row]]),
            float(probabilities[row, said[row]]),
        )
        for row in accused
    ]
    return sorted(found, key=lambda suspect: -suspect.doubt)


def write_suspects(found: list[Suspect], pack: Pack, folder: Path) -> None:
    """suspects.csv with all of them, and suspects.png with the first."""
    from vitral.look.sheets import Section, Tile, as_picture, write_sheet

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["sample", "split", "label", "suggested", "label_probability", "suggested_probability"])
    for one in found:
        shares = (f"{one.label_probability:.4f}", f"{one.suggested_probability:.4f}")
        writer.writerow([one.sample, one.split, one.label, one.suggested, *shares])
    write_whole(folder / "suspects.csv", text.getvalue())
    tiles = [
        [
            Tile(
                as_picture(np.asarray(pack.images[one.number])),
                f"{one.label} → {one.suggested} {one.suggested_probability:.0%}",
                one.sample,
            )
        ]
        for one in found[:SHOWN]
    ]
    shown = f"The first {SHOWN} of {len(found):,}." if len(found) > SHOWN else f"{len(found):,} pictures."
    text_below = (
        "Label → what a model says that has not learnt from the picture, and how sure it is. Look before you change."
    )
    write_sheet(
        folder / "suspects.png", "Doubtful labels", shown, [Section("The most doubtful first", text_below, tiles)]
    )
