"""Pictures whose label is doubtful: a model that has not learnt from them says something else, and is sure of it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitral.data.folds import OutOfFold
from vitral.data.pack import Pack
from vitral.files import as_csv, write_whole

MOST_TILES = 64  # on the sheet


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

    @property
    def probabilities(self) -> tuple[str, str]:
        """The probabilities of the label and of the other class, as suspects.csv has them."""
        return f"{self.label_probability:.4f}", f"{self.suggested_probability:.4f}"


def suspects(outputs: OutOfFold) -> list[Suspect]:
    """The pictures with a doubtful label, the most doubtful first.

    A picture is suspect where another class is at least as probable as that class is for its own pictures, on average
    (confident learning: Northcutt et al. 2021): so a model that is unsure of a class does not accuse in its name.
    """
    pack, numbers, probabilities = outputs.pack, outputs.numbers, outputs.probabilities
    labels, names = outputs.labels, pack.index.class_names
    own = np.array([probabilities[labels == label, label].mean() for label in range(len(names))])
    rows = np.arange(len(labels))
    above = np.where(probabilities >= own, probabilities, 0.0)  # (n, classes)
    above[rows, labels] = 0.0
    other = above.argmax(axis=1)
    suspect_rows = np.flatnonzero((above[rows, other] > 0) & (probabilities[rows, other] > probabilities[rows, labels]))
    doubtful = [
        Suspect(
            int(numbers[row]),
            pack.index.samples[numbers[row]],
            str(pack.index.splits[numbers[row]]),
            names[labels[row]],
            names[other[row]],
            float(probabilities[row, labels[row]]),
            float(probabilities[row, other[row]]),
        )
        for row in suspect_rows
    ]
    return sorted(doubtful, key=lambda suspect: -suspect.doubt)


def write_suspects(doubtful: list[Suspect], pack: Pack, folder: Path) -> None:
    """Write suspects.csv with all of them, and suspects.png with the first."""
    from vitral.look.sheets import Section, Tile, as_picture, write_sheet

    header = ("sample", "split", "label", "suggested", "label_probability", "suggested_probability")
    rows = ((one.sample, one.split, one.label, one.suggested, *one.probabilities) for one in doubtful)
    write_whole(folder / "suspects.csv", as_csv(header, rows))
    tiles = [
        [
            Tile(
                as_picture(np.asarray(pack.images[one.number])),
                f"{one.label} → {one.suggested} {one.suggested_probability:.0%}",
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
