"""Where pictures come from: a source becomes an Index. Its name or path decides how it is opened."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from vitral.data.config import Data
from vitral.data.decode import describe
from vitral.errors import DataError, RecipeError
from vitral.settings import unknown

if TYPE_CHECKING:
    from vitral.data.sources.pickled import Published

SPLITS = ("train", "validation", "test")


class Storage(Protocol):
    """Where the pictures of a source lie. Threads may read at once."""

    def read(self, number: int) -> bytes | NDArray[np.uint8]:
        """A picture as it is stored: the bytes of its file, or its pixels (H, W) or (H, W, channels)."""

    def stamp(self, number: int) -> str:
        """Changes when the picture may have changed; known without reading it. No more than a key for caches."""


@dataclass(frozen=True)
class Index:
    """The pictures of a source: their names, labels and splits, and where to read them."""

    source: str
    class_names: tuple[str, ...]
    samples: Sequence[str]  # a name each: a path relative to the source, or a number
    labels: NDArray[np.int64]  # (samples,) indices into class_names
    splits: NDArray[np.str_]  # (samples,) of SPLITS
    channels: int
    storage: Storage = field(repr=False)
    notes: tuple[str, ...] = ()  # sentences on what the source has, and on what was decided about it
    unread: tuple[str, ...] = ()  # pictures in formats that Vitral does not read
    groups: Sequence[str] | None = None  # (samples,) what belongs together, where data.group_by says so

    def of(self, split: str) -> NDArray[np.int64]:
        """The numbers of the samples in a split, in order."""
        return np.flatnonzero(self.splits == split)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(sample, label, split), as split.csv has them."""
        for sample, label, split in zip(self.samples, self.labels, self.splits, strict=True):
            yield sample, self.class_names[label], str(split)


def digest_of(content: bytes | NDArray[np.uint8]) -> bytes:
    """The sha256 of a picture as it is stored."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.tobytes()).digest()


@dataclass(frozen=True)
class Pixels:
    """Pictures that are stored as pixels, all of one size."""

    images: NDArray[np.uint8]  # (n, H, W) or (n, H, W, channels)

    def read(self, number: int) -> NDArray[np.uint8]:
        return self.images[number]

    def stamp(self, number: int) -> str:
        return digest_of(self.images[number]).hex()


def open_source(data: Data, unsorted: bool = False) -> Index:
    """The pictures behind `data.source`. Nothing is decoded yet but a few, to see whether they have colours.

    `unsorted` accepts folders and archives whose pictures have no classes.

    >>> open_source(Data(source="digits")).class_names[:3]
    ('0', '1', '2')
    """
    from vitral.data.sources import archive, python, table
    from vitral.data.sources.named import NAMED

    source, path = data.source, Path(os.path.expanduser(data.source))
    if source == "ask":
        raise RecipeError(f"data.source is not given. Set it to a folder of pictures, or to one of {', '.join(NAMED)}.")
    if source.startswith(python.PYTHON):
        raise RecipeError(
            f"The pictures of {source} were handed over by a Python program: hand them over again, with source=…"
        )
    if source in NAMED:  # a folder of that name is written ./name
        return open_named(source, data)
    # Not path.is_dir() and the like: they raise an error where the user may not look.
    if os.path.isdir(path):
        return open_folder(path, data, unsorted=unsorted)
    if os.path.isfile(path) and path.name.lower().endswith(archive.ENDINGS):
        return open_archive(path, data, unsorted)
    if os.path.isfile(path) and path.suffix.lower() in table.ENDINGS:
        return open_table(path, data)
    if os.path.exists(path):
        kinds = f"a table ({', '.join(table.ENDINGS)}) or an archive ({', '.join(archive.ENDINGS)})"
        raise DataError(f"{source} is not a source of pictures: give a folder, {kinds}.")
    here = [entry.name for entry in Path().iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    hint = unknown(source, [*NAMED, *sorted(here)], "folder, file or named set")
    raise RecipeError(hint if "/" not in source else f"There is no folder or file {source}.")


def open_named(name: str, data: Data, published: "Published | None" = None) -> Index:
    """A set that has a name: embedded, or in the data directory as its official files, a folder or an archive; or as
    torchvision keeps it, where it keeps it. `published`: the md5 of its pickles, if not those of the real ones."""
    from vitral.data.sources import official, pickled
    from vitral.data.sources.digits import digits
    from vitral.data.sources.named import NAMED, data_directory, find, not_here

    location = find(NAMED[name], data.directory)
    if location is None:
        also = f" (The folder {name} that is here is written ./{name}.)" if os.path.isdir(name) else ""
        raise DataError(f"{not_here(NAMED[name], data_directory(data.directory))}{also}")
    if location.kind == "folder":
        return open_folder(location.path, data, official=NAMED[name].kind == "official")
    if location.kind == "archive":
        return open_archive(location.path, data)
    if location.kind == "pickled":
        dataset = pickled.read_pickled(name, location.path, published or pickled.PUBLISHED)
    else:
        dataset = digits() if location.kind == "embedded" else official.READERS[name](location.path)
    count = len(dataset.labels)
    samples = [f"{number:0{len(str(count))}}" for number in range(count)]
    classes, notes = dataset.class_names, (location.note,) if location.note else ()
    return index_of(
        data, Pixels(dataset.images), samples, classes, dataset.labels, dataset.splits, notes=notes, official=True
    )


def open_folder(folder: Path, data: Data, official: bool = False, unsorted: bool = False) -> Index:
    """A folder with class folders, with or without `train/ val/ test/` above them."""
    from vitral.data.sources.folder import Files, files_below
    from vitral.data.sources.layout import arrange

    files, notes = files_below(folder)
    layout = arrange(files, data.source, unsorted)
    storage = Files(folder / layout.root, layout.paths)
    notes = notes + layout.notes
    index = _index(data, storage, layout.paths, layout.classes, layout.splits, notes=notes, official=official)
    return replace(index, unread=tuple(layout.unread))


def open_archive(path: Path, data: Data, unsorted: bool = False) -> Index:
    """A zip or tar of a folder as `open_folder` takes it."""
    from vitral.data.sources import archive
    from vitral.data.sources.layout import arrange
    from vitral.data.sources.named import data_directory

    files, notes = archive.open_archive(path, data_directory(data.directory))
    layout = arrange(list(files.paths), data.source, unsorted)
    storage = files.only(layout.root, layout.paths)
    index = _index(data, storage, layout.paths, layout.classes, layout.splits, notes=notes + layout.notes)
    return replace(index, unread=tuple(layout.unread))


def open_table(path: Path, data: Data) -> Index:
    """A CSV or JSONL file; its paths are relative to its folder."""
    from vitral.data.sources.folder import Files
    from vitral.data.sources.table import read_table

    table = read_table(path, data.group_by)
    return _index(data, Files(path.parent, table.paths), table.paths, table.classes, table.splits, table.groups)


def _index(
    data: Data,
    storage: Storage,
    paths: Sequence[str],
    classes: Sequence[str],
    splits: Sequence[str],
    groups: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    official: bool = False,
) -> Index:
    """An Index from names of classes, which are numbered in the order of the alphabet."""
    from vitral.data.sources.layout import display_name

    names = sorted(set(classes))
    number = {name: i for i, name in enumerate(names)}
    labels = np.fromiter((number[name] for name in classes), np.int64, len(classes))
    samples = [display_name(path) for path in paths]
    class_names = [display_name(name) for name in names]
    return index_of(data, storage, samples, class_names, labels, splits, groups, notes, official)


def index_of(
    data: Data,
    storage: Storage,
    samples: Sequence[str],
    class_names: Sequence[str],
    labels: NDArray[np.int64],
    splits: Sequence[str] | NDArray[np.str_],
    groups: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    official: bool = False,
) -> Index:
    """An Index from numbered labels, with the splits completed where the source leaves them open."""
    from vitral.data.sources.splits import complete_splits, groups_of

    if groups is None and data.group_by != "none":
        groups = groups_of(samples, data.group_by)
    complete, split_notes = complete_splits(
        splits, labels, samples, groups, validation=data.validation, seed=data.split_seed, official=official
    )
    channels = _channels(storage, len(samples))
    all_notes = (*notes, *split_notes)
    return Index(
        data.source, tuple(class_names), samples, labels, complete, channels, storage, all_notes, groups=groups
    )


def _channels(storage: Storage, count: int) -> int:
    """As many channels as most pictures have, and 3 where only some are in colour; judged by 64 of them."""
    counts: Counter[int] = Counter()
    for number in np.unique(np.linspace(0, count - 1, num=64).astype(int)):
        try:
            counts[describe(storage.read(int(number))).channels] += 1
        except DataError:
            continue  # it is named when the pictures are packed
    most = 3 if counts[3] else 1
    counts[most] = counts.pop(1, 0) + counts.pop(3, 0)  # grey is a colour too
    return counts.most_common(1)[0][0]
