"""A set of pictures in parts, each of which is held out in turn."""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitral.data.pack import Pack
from vitral.errors import DataError


@dataclass(frozen=True)
class OutOfFold:
    """Probabilities of each picture, by a model that has not learnt from it."""

    pack: Pack
    numbers: NDArray[np.int64]  # (n,) of the pictures that can be read
    probabilities: NDArray[np.float64]  # (n, classes)

    @property
    def labels(self) -> NDArray[np.int64]:
        """(n,): the labels of the source."""
        return self.pack.index.labels[self.numbers]

    @property
    def accuracy(self) -> float:
        """The share of pictures whose most probable class is their label."""
        return float(np.mean(self.probabilities.argmax(axis=1) == self.labels))


def parts(pack: Pack, folds: int) -> NDArray[np.int64]:
    """(samples,) the part that each picture is in, from 0, about the same share of every class; −1: it cannot be read.

    Pictures of one group are in one part. Small sets have fewer parts.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    index = pack.index
    readable = np.array([n for n in range(len(index.samples)) if n not in pack.left_out], dtype=np.int64)
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
