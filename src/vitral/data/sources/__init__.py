"""Where pictures come from: a source becomes an Index. Chosen by what is given."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitral.data.decode import Picture
from vitral.errors import RecipeError
from vitral.settings import unknown

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Index:
    """What a source holds: who is there, what it shows, and on which side of the split it stands."""

    source: str
    class_names: tuple[str, ...]
    samples: tuple[str, ...]  # a name each: a path relative to the source, or a number
    labels: NDArray[np.int64]  # (samples,) indices into class_names
    splits: NDArray[np.str_]  # (samples,) of SPLITS
    channels: int
    read: Callable[[int], Picture] = field(repr=False)  # sample number → its picture
    sha256_of: Callable[[int], str] = field(repr=False)  # sample number → identity of its bytes

    def of(self, split: str) -> NDArray[np.int64]:
        """The numbers of the samples in a split, in order."""
        return np.flatnonzero(self.splits == split)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(sample, label, split), as split.csv has them."""
        for sample, label, split in zip(self.samples, self.labels, self.splits, strict=True):
            yield sample, self.class_names[label], str(split)

    def sha256(self) -> str:
        """The identity of the set: names, labels, splits and the bytes of every picture."""
        lines = ("\t".join([*row, self.sha256_of(i)]) + "\n" for i, row in enumerate(self.rows()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def open_source(source: str) -> Index:
    """The pictures behind `data.source`.

    >>> open_source("digits").class_names[:3]
    ('0', '1', '2')
    """
    from vitral.data.sources.digits import digits

    named = {"digits": digits}
    if source == "ask":
        raise RecipeError("data.source is not given. Set data.source=digits.")
    if source not in named:
        raise RecipeError(f"{unknown(source, list(named), 'data source')} Folders of pictures cannot be read yet.")
    return named[source]()
