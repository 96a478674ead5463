"""Pictures that a file is made by and tried on: those of a run, by its splits; or of a folder, in turn."""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitral.data.decode import Picture
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_source
from vitral.data.sources.folder import picture_files
from vitral.errors import DataError, VitralError, WeightsError
from vitral.files import path_of
from vitral.graph import Pixels
from vitral.inference import Source, run_of
from vitral.run import Run
from vitral.targets import is_one_class

# Where a split is empty, the next one stands in for it.
SPLITS = {
    "test": ("test", "validation", "train"),
    "validation": ("validation", "train", "test"),
    "train": ("train", "validation", "test"),
}


@dataclass(frozen=True)
class Prepared:
    """Pictures as a graph takes them."""

    pixels: Pixels
    labels: NDArray[np.int64] | None  # (n,) classes; None: nobody knows


@dataclass(frozen=True)
class Samples:
    """Some pictures, by their names."""

    split: str
    pictures: Mapping[str, Picture]
    labels: Mapping[str, str] = field(default_factory=dict)  # the classes of all of them; or none

    def some(self, count: int) -> dict[str, Picture]:
        """So many of them, from all over.

        >>> list(Samples("test", dict.fromkeys("abcde", "picture.png")).some(3))
        ['a', 'c', 'e']
        """
        names = [*self.pictures]
        return {names[place]: self.pictures[names[place]] for place in _spread(len(names), min(count, len(names)))}

    def prepare(self, preprocess: Preprocess, class_names: tuple[str, ...]) -> Prepared:
        """Those that can be read, decoded and resized."""
        pixels: dict[str, NDArray[np.uint8]] = {}
        for name, picture in self.pictures.items():
            with contextlib.suppress(DataError):
                pixels[name] = preprocess.resized(picture)
        if not pixels:
            raise DataError(f"None of the {self.split} pictures could be read.")
        numbers = {name: number for number, name in enumerate(class_names)}
        labels = np.array([numbers[self.labels[name]] for name in pixels]) if self.labels else None
        return Prepared(np.stack([*pixels.values()]), labels)


def samples_of(
    source: Source, folder: str | Path | None, counts: Mapping[str, int], class_names: Collection[str] = ()
) -> list[Samples]:
    """For each split so many pictures. Of a folder they are taken in turn; they have labels where they lie in folders
    that bear names of classes."""
    if folder is not None:
        files = picture_files(path_of(folder, DataError))
        if len(files) < len(counts):
            raise DataError(f"{folder} has {len(files)} pictures, and {len(counts)} are the fewest that will do.")
        each = (files[turn :: len(counts)] for turn in range(len(counts)))
        return [_of_folder(some, count, class_names) for some, count in zip(each, counts.values(), strict=True)]
    run = run_of(source)
    if run is None:
        raise WeightsError(
            "A file is kept only if it was tried on real pictures, and weights have none of their own: name a folder "
            "of some with --on FOLDER."
        )
    try:
        return [of_run(run, split, count) for split, count in counts.items()]
    except (VitralError, OSError) as error:
        raise WeightsError(f"{error} Or try it on other pictures, with --on FOLDER.") from None


def of_run(run: Run, split: str, count: int) -> Samples:
    """Some pictures of a run, as they are stored: of this split, or of the next where it is empty."""
    index = open_source(run.recipe.data)
    split = next(split for split in SPLITS[split] if len(index.of(split)))
    numbers, pictures, labels = index.of(split), {}, {}
    for number in numbers[_spread(len(numbers), count)].tolist():
        with contextlib.suppress(VitralError, OSError):  # gone
            name = index.samples[number]
            pictures[name] = index.storage.read(number)
            labels[name] = index.label_of(number)
    return Samples(split, pictures, labels if is_one_class(index.targets) else {})


def _of_folder(files: list[Path], count: int, class_names: Collection[str]) -> Samples:
    some = [files[place] for place in _spread(len(files), count)]
    labels = {str(path): path.parent.name for path in some if path.parent.name in class_names}
    return Samples("given", {str(path): path for path in some}, labels if len(labels) == len(some) else {})


def _spread(length: int, count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, length - 1, count).astype(np.int64))
