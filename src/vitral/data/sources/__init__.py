"""Where pictures come from: a source becomes an Index. Its name or path decides how it is opened."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitral.data.config import Data
from vitral.data.decode import describe
from vitral.errors import DataError, RecipeError
from vitral.progress import Progress, Tell, drain, silent
from vitral.settings import unknown
from vitral.targets import Target, columns, is_one_class, one_class

if TYPE_CHECKING:
    from vitral.data.sources.layout import FolderLayout
    from vitral.data.sources.pickled import Published
    from vitral.data.sources.several import SizedStorage

SPLITS = ("train", "validation", "test")
SHARDS = "shards:"  # how the name of a folder of shards begins


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
    class_names: tuple[str, ...]  # of all outputs, where there are other targets than one class
    samples: Sequence[str]  # a name each: a path relative to the source, or a number
    labels: NDArray[Any]  # (samples,) indices into class_names; or (samples, outputs): see `is_one_class`
    splits: NDArray[np.str_]  # (samples,) of SPLITS
    channels: int
    storage: Storage = field(repr=False)
    notes: tuple[str, ...] = ()  # sentences on what the source has, and on what was decided about it
    unread: tuple[str, ...] = ()  # pictures in formats that Vitral does not read
    groups: Sequence[str] | None = None  # (samples,) what belongs together, where data.group_by says so
    other_targets: tuple[Target, ...] = ()  # what is to be learnt, where that is not one class
    runs: NDArray[np.int32] | None = None  # (samples,) pictures of shards: the stretch of a shard that each is in

    @property
    def targets(self) -> tuple[Target, ...]:
        """What is to be learnt about each picture."""
        return self.other_targets or one_class(self.class_names)

    def of(self, split: str) -> NDArray[np.int64]:
        """The numbers of the samples in a split, in order."""
        return np.flatnonzero(self.splits == split)

    def only(self, numbers: NDArray[np.int64]) -> "Index":
        """An Index of some of the pictures."""
        return replace(
            self,
            samples=[self.samples[number] for number in numbers],
            labels=self.labels[numbers],
            splits=self.splits[numbers],
            storage=Some(self.storage, numbers),
            groups=None if self.groups is None else [self.groups[number] for number in numbers],
            runs=None if self.runs is None else self.runs[numbers],
        )

    def counts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """(outputs,): how many of these samples have each class or label; of a number all of them."""
        labels = self.labels[numbers]
        if not self.other_targets:
            return np.bincount(labels, minlength=len(self.class_names))
        counts = (labels > 0).sum(axis=0)
        for target, part in zip(self.targets, columns(self.targets), strict=True):
            if target.kind == "number":
                counts[part] = len(numbers)
        return counts

    def first_of_each(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first of these samples with each class; of other targets those for which an output is least, and most: a
        picture without a label, and one with it."""
        labels = self.labels[numbers]
        if labels.ndim == 1 or not len(labels):
            return numbers[np.unique(labels, return_index=True)[1]]
        return numbers[np.concatenate([labels.argmin(axis=0), labels.argmax(axis=0)])]

    def spread(self, count: int) -> list[int]:
        """The numbers of so many test pictures (validation, training, where there are none), of as many classes as
        possible; fewer where there are fewer."""
        numbers = next((self.of(split) for split in ("test", "validation", "train") if len(self.of(split))), None)
        if numbers is None:
            return []
        _, first = np.unique(self.labels[numbers], axis=0, return_index=True)
        rest = np.setdiff1d(np.arange(len(numbers)), first)
        chosen = first[np.unique(np.linspace(0, len(first) - 1, min(count, len(first))).astype(int))]
        return [int(numbers[place]) for place in [*chosen, *rest[: count - len(chosen)]]]

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(sample, label, split), as split.csv has them."""
        for number, (sample, split) in enumerate(zip(self.samples, self.splits, strict=True)):
            yield sample, self.label_of(number), str(split)

    def label_of(self, number: int) -> str:
        """What a picture is, as split.csv has it: `cat`; of several labels `beach;dog`; of a number `12.5`; of several
        targets `digit=7|high=1`."""
        words = self.words_of(number)
        if len(words) == 1:
            return words[0]
        named = zip((target.name for target in self.targets), words, strict=True)
        return "|".join(f"{_escaped(name)}={_escaped(word)}" for name, word in named)

    def words_of(self, number: int) -> list[str]:
        """The same, target by target."""
        row = self.labels[number]
        if not self.other_targets:
            return [self.class_names[row]]
        return [_words(one, row[part]) for one, part in zip(self.targets, columns(self.targets), strict=True)]


def _words(target: Target, outputs: NDArray[np.float64]) -> str:
    if target.kind == "number":
        return repr(float(outputs[0]))
    return ";".join(target.names[number] for number in np.flatnonzero(outputs))


def _escaped(word: str) -> str:
    """A name beside others, which are parted by `|`."""
    return word.replace("\\", "\\\\").replace("|", "\\|")


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


@dataclass(frozen=True)
class Some:
    """Some pictures of a storage, numbered anew."""

    storage: Storage
    numbers: NDArray[np.int64]

    def read(self, number: int) -> bytes | NDArray[np.uint8]:
        return self.storage.read(int(self.numbers[number]))

    def stamp(self, number: int) -> str:
        return self.storage.stamp(int(self.numbers[number]))


def open_source(data: Data, unsorted: bool = False, tell: Tell = silent) -> Index:
    """The pictures behind `data.source`. Nothing is decoded yet but a few, to see whether they have colours.

    `unsorted` accepts folders and archives whose pictures have no classes, and leaves none out for its label. `tell`
    hears how far shards that others wrote are indexed, which is done once, and may take long.

    >>> open_source(Data(source="digits")).class_names[:3]
    ('0', '1', '2')
    """
    return drain(opening_source(data, unsorted), tell)


def opening_source(data: Data, unsorted: bool = False) -> Generator[Progress, None, Index]:
    """The same, which yields how far it is."""
    from vitral.data.sources.labelled import only_labelled

    if data.source.startswith(SHARDS):
        from vitral.data.sources.shards import opening_shards

        index = yield from opening_shards(data, unsorted)
    else:
        index = _open(data, unsorted)
    return index if unsorted or data.labelled == 1 else only_labelled(index, data.labelled, data.split_seed)


def _open(data: Data, unsorted: bool) -> Index:
    from vitral.data.sources import archive, python
    from vitral.data.sources.layout import TABLES
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
    if os.path.isfile(path) and path.suffix.lower() in TABLES:
        return open_table(path, data)
    if os.path.exists(path):
        kinds = f"a table ({', '.join(TABLES)}) or an archive ({', '.join(archive.ENDINGS)})"
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

    _check_target(data, f"the set {name} has", ("auto", "class"))
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
    targets, notes = one_class(dataset.class_names), (location.note,) if location.note else ()
    return index_of(
        data, Pixels(dataset.images), samples, targets, dataset.labels, dataset.splits, notes=notes, official=True
    )


def open_folder(folder: Path, data: Data, official: bool = False, unsorted: bool = False) -> Index:
    """A folder with class folders, with or without `train/ val/ test/` above them."""
    from vitral.data.sources.folder import Files, files_below
    from vitral.data.sources.layout import arrange

    files, notes = files_below(folder)
    layout = arrange(files, data.source, unsorted)
    return _of_folders(data, layout, lambda paths: Files(folder / layout.root, paths), notes, official)


def open_archive(path: Path, data: Data, unsorted: bool = False) -> Index:
    """A zip or tar of a folder as `open_folder` takes it."""
    from vitral.data.sources import archive
    from vitral.data.sources.layout import arrange
    from vitral.data.sources.named import data_directory

    files, notes = archive.open_archive(path, data_directory(data.directory))
    layout = arrange(list(files.paths), data.source, unsorted)
    return _of_folders(data, layout, lambda paths: files.only(layout.root, paths), notes)


def _of_folders(
    data: Data,
    layout: "FolderLayout",
    storage_of: Callable[[Sequence[str]], "SizedStorage"],
    notes: Sequence[str],
    official: bool = False,
) -> Index:
    """An Index from the names of folders: a class each, or a label each of the pictures that lie in several."""
    from vitral.data.sources.annotations import Column, class_of
    from vitral.data.sources.layout import UNSORTED, display_name
    from vitral.data.sources.several import labels_of_folders, note_on_several

    _check_target(data, f"the folders of {data.source} say", ("auto", "class", "labels"))
    storage, numbers = storage_of(layout.paths), list(range(len(layout.paths)))
    notes = [*notes, *layout.notes]
    if data.target == "labels":
        numbers, learnt = labels_of_folders(layout, storage)
        notes += learnt.notes
    else:
        learnt = class_of(Column("label", layout.classes, lambda row: layout.paths[row]))
        notes += note_on_several(layout, storage) if data.target == "auto" else []
    paths = [layout.paths[number] for number in numbers]
    splits = [layout.splits[number] for number in numbers]
    samples = [display_name(path) for path in paths]
    targets, labels = (learnt.target,), learnt.labels
    index = index_of(
        data,
        storage_of(paths),
        samples,
        targets,
        labels,
        splits,
        notes=notes,
        official=official,
        tests=set(layout.classes) != {UNSORTED},
    )
    return replace(index, unread=tuple(layout.unread))


def _check_target(data: Data, what: str, possible: tuple[str, ...]) -> None:
    """Refuse to learn from columns what has none."""
    if data.target not in possible:
        raise RecipeError(
            f"data.target is {data.target}, and {what} one class for each picture and nothing else. Give a table, a "
            f"CSV or JSONL file with the columns path and {data.target}, as data.source; or set data.target=auto."
        )


def open_table(path: Path, data: Data) -> Index:
    """A CSV or JSONL file; its paths are relative to its folder."""
    from vitral.data.sources.annotations import together
    from vitral.data.sources.folder import Files
    from vitral.data.sources.layout import display_name
    from vitral.data.sources.table import read_table

    table = read_table(path, data.group_by, data.target)
    targets, labels = together(table.learnt)
    samples = [display_name(path) for path in table.paths]
    notes = [note for part in table.learnt for note in part.notes]
    return index_of(data, Files(path.parent, table.paths), samples, targets, labels, table.splits, table.groups, notes)


def index_of(
    data: Data,
    storage: Storage,
    samples: Sequence[str],
    targets: tuple[Target, ...],
    labels: NDArray[Any],
    splits: Sequence[str] | NDArray[np.str_],
    groups: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    official: bool = False,
    tests: bool = True,
) -> Index:
    """An Index from numbered labels, with the splits completed where the source leaves them open. Without `tests` no
    test pictures are held out: nobody could say whether an answer to them is right."""
    from vitral.data.sources.splits import complete_splits, groups_of, strata

    if groups is None and data.group_by != "none":
        groups = groups_of(samples, data.group_by)
    parted, words = strata(targets, labels)
    complete, split_notes = complete_splits(
        splits,
        parted,
        samples,
        groups,
        validation=data.validation,
        seed=data.split_seed,
        official=official,
        tests=tests,
        same=words,
    )
    return Index(
        data.source,
        tuple(name for target in targets for name in target.names),
        samples,
        labels,
        complete,
        _channels(storage, len(samples)),
        storage,
        (*notes, *split_notes),
        groups=groups,
        other_targets=() if is_one_class(targets) else targets,
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
