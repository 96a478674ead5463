"""A set of pictures in parts, each of which is held out in turn."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.data.pack import Pack
from vitral.data.sources import Index
from vitral.data.sources.splits import held_out, strata
from vitral.errors import DataError


@dataclass(frozen=True)
class OutOfFold:
    """Probabilities of each picture, by a model that has not learnt from it."""

    pack: Pack
    numbers: NDArray[np.int64]  # (n,) of the pictures that can be read
    probabilities: NDArray[np.float64]  # (n, classes); of other targets what each output says, (n, outputs)

    @property
    def labels(self) -> NDArray[Any]:
        """(n,), or (n, outputs): the labels of the source."""
        return self.pack.index.labels[self.numbers]

    @property
    def accuracy(self) -> float:
        """The share of pictures whose most probable class is their label."""
        return float(np.mean(self.probabilities.argmax(axis=1) == self.labels))


def parts(pack: Pack, folds: int) -> NDArray[np.int64]:
    """(samples,) the part that each picture is in, from 0, about the same share of every class, label and size of
    number; −1: it cannot be read.

    Pictures of one group are in one part. Small sets have fewer parts.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    index = pack.index
    readable = np.array([n for n in range(len(index.samples)) if n not in pack.left_out], dtype=np.int64)
    if index.other_targets:
        return _parts_of_targets(index, readable, folds)
    labels = index.labels[readable]
    counts = np.bincount(labels, minlength=len(index.class_names))
    if counts.min() < 2:
        name = index.class_names[int(counts.argmin())]
        raise DataError(f"{name} has {counts.min()} pictures: to hold one out, a class needs two at least.")
    groups = None if index.groups is None else np.array(index.groups)[readable]
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    units = int(counts.max()) if groups is None else len(np.unique(groups))
    if units < 2:
        raise DataError(f"All pictures of {index.source} are in one group: none can be left out.")
    part_of = np.full(len(index.samples), -1)
    with warnings.catch_warnings(action="ignore"):  # that a class has fewer pictures than there are parts
        split = kind(min(folds, units), shuffle=True, random_state=0).split(readable, labels, groups)
        for part, (_, held_out) in enumerate(split):
            part_of[readable[held_out]] = part
    return part_of


def _parts_of_targets(index: Index, readable: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """One part after the other is held out of the rest, as the splits are."""
    units = len(readable) if index.groups is None else len({index.groups[int(row)] for row in readable})
    if units < 2:
        raise DataError(f"The pictures of {index.source} are one, or in one group: none can be left out.")
    folds = min(folds, units)
    all_strata, _ = strata(index.targets, index.labels)
    part_of, rest = np.full(len(index.samples), -1), readable
    for part in range(folds - 1):
        share = 1 / (folds - part)
        held = held_out(rest, share, all_strata[rest], index.samples, index.groups, f"part {part}", 0)
        part_of[held] = part
        rest = np.setdiff1d(rest, held)
    part_of[rest] = folds - 1
    return part_of
