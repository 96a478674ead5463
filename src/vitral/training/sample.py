"""Some pictures of a source, for what must not take as long as all of them would."""

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from vitral.data.sources import Index
from vitral.data.sources.named import data_directory
from vitral.targets import is_one_class


def some_of(index: Index, numbers: NDArray[np.int64], most: int) -> Index:
    """So many of these pictures at most, always the same, evenly of each class; one or two to train with of each class
    or label come on top, and one to test with, which make them a whole set."""
    shuffled = np.random.default_rng(0).permutation(numbers)
    train = shuffled[index.splits[shuffled] == "train"]
    needed = np.concatenate([index.first_of_each(train), index.of("test")[:1]])
    if is_one_class(index.targets):
        of_class = [shuffled[index.labels[shuffled] == label] for label in range(len(index.class_names))]
        turns = np.concatenate([np.arange(len(members)) for members in of_class])  # one of each class, then another
        shuffled = np.concatenate(of_class)[np.argsort(turns, kind="stable")]
    return index.only(np.union1d(shuffled[:most], needed))


@contextmanager
def temporary_packs() -> Iterator[str]:
    """A data directory for packs of some pictures, which goes afterwards."""
    directory = data_directory("auto")
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory, prefix="some-") as path:
        yield path
