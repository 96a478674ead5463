"""`shards:FOLDER`, or a URL: pictures in tars with an index beside them, read where they lie, each by its number."""

import hashlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from vitral.data.config import Data
from vitral.data.sources import SHARDS, SPLITS, Index, Some, Storage
from vitral.data.sources.layout import UNSORTED
from vitral.data.sources.named import data_directory
from vitral.data.sources.shard_index import (
    ABOUT,
    INDEX,
    MOST_ABOUT,
    MOST_HEADER,
    About,
    Columns,
    read_about,
    read_columns,
)
from vitral.data.stores import Expected, Range, Store, is_far, open_store
from vitral.errors import DataError, RecipeError
from vitral.files import sha256_of
from vitral.progress import Progress
from vitral.targets import is_one_class

FOLDER = "shards"  # of the data directory: indices of shards that have none here
MOST_ROW = 2**16  # bytes of an index for one picture: its name, and its labels
RUN = 4 * 2**20  # bytes of a shard whose pictures are neighbours: see shard_order.py


class Shards:
    """Pictures in tars, near or far."""

    def __init__(self, about: About, columns: Columns, store: Store) -> None:
        self.about, self.columns, self.store = about, columns, store
        self.streams = True  # whether pictures are decoded as they are asked for; else they are packed, as others are
        self._ends = np.cumsum([shard.pictures for shard in about.shards])  # the first picture behind each shard

    def read(self, number: int) -> bytes:
        columns = self.columns
        shard = self.about.shards[int(self.shard_of(number))]
        return self.store.read(shard, int(columns.offset[number]), int(columns.size[number]), int(columns.crc[number]))

    def stamp(self, number: int) -> str:
        return f"{self.about.shards[int(self.shard_of(number))].sha256} {self.columns.offset[number]}"

    def size(self, number: int) -> int:
        return int(self.columns.size[number])

    def shard_of(self, numbers: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the shard that each of these pictures is in."""
        return np.searchsorted(self._ends, numbers, side="right")

    def runs(self) -> NDArray[np.int32]:
        """(n,): the run of neighbours that each picture is in, which are read together: so many bytes of a shard."""
        shards, blocks = self.shard_of(np.arange(len(self.columns))), (self.columns.offset // RUN).astype(np.int64)
        return np.cumsum((np.diff(shards, prepend=0) != 0) | (np.diff(blocks, prepend=0) != 0), dtype=np.int32)

    def expect(self, numbers: NDArray[np.int64]) -> Expected:
        """These pictures will be read soon, in this order: what is far is fetched meanwhile, until this is closed."""
        return self.store.expect(self._ranges(numbers))

    def _ranges(self, numbers: NDArray[np.int64]) -> Iterator[Range]:
        for number, shard in zip(numbers.tolist(), self.shard_of(numbers).tolist(), strict=True):
            yield self.about.shards[shard], int(self.columns.offset[number]), int(self.columns.size[number])


def shards_of(index: Index) -> Shards | None:
    """The shards that the pictures are read from, if they are in any."""
    storage = index.storage
    while isinstance(storage, Some):
        storage = storage.storage
    return storage if isinstance(storage, Shards) else None


def is_streamed(index: Index) -> bool:
    """Whether the pictures are decoded as they are asked for, and not packed."""
    shards = shards_of(index)
    return shards is not None and shards.streams


def identity_of(storage: Storage) -> str:
    """A digest of all that a storage of shards has; of a selection another one."""
    if isinstance(storage, Some):
        inner = identity_of(storage.storage)
        return hashlib.sha256(inner.encode() + np.asarray(storage.numbers, np.int64).tobytes()).hexdigest()
    assert isinstance(storage, Shards)
    return storage.about.digest


def expect(storage: Storage, numbers: NDArray[np.int64]) -> Expected:
    """The same for a storage of shards, or some of it."""
    if isinstance(storage, Some):
        return expect(storage.storage, np.asarray(storage.numbers)[numbers])
    assert isinstance(storage, Shards)
    return storage.expect(numbers)


def opening_shards(data: Data, unsorted: bool = False) -> Generator[Progress, None, Index]:
    """The pictures of `shards:…`: with the index that lies beside them, or one that is made of them once, which yields
    how far it is."""
    from vitral.data.sources.foreign_tars import TAR, indexing, names_of

    address, directory = data.source.removeprefix(SHARDS), data_directory(data.directory)
    place, _, last = address.rpartition("/") if address.endswith(TAR) else (address, "", "")
    if not is_far(place) and not os.path.isdir(folder := os.path.expanduser(place or ".")):
        raise RecipeError(
            f"There is no folder {folder} of shards. `vitral pack SOURCE {folder} --shards 256MB` writes one."
        )
    store = open_store(place or ".", directory, data.cache)
    if last:
        return index_of_shards(data, (yield from indexing(store, names_of(last), directory)), unsorted, foreign=True)
    if store.is_near and ABOUT not in (names := store.names()):
        tars = [name for name in names if name.endswith(TAR)]
        if not tars:
            raise DataError(f"{place} has no shards: neither {ABOUT} nor a {TAR} is in it.")
        return index_of_shards(data, (yield from indexing(store, tars, directory)), unsorted, foreign=True)
    about = read_about(store.whole(ABOUT, MOST_ABOUT), store.address)
    path = Path(place).expanduser() / INDEX if store.is_near else _index_here(store, about, directory)
    columns = read_columns(path, about, store.address)
    if store.is_near:
        for shard in about.shards:
            if (size := store.look(shard.name).size) != shard.size:
                raise DataError(
                    f"The shard {shard.name} of {place} has {size:,} bytes, and {ABOUT} says {shard.size:,}: it is cut "
                    "off or another one."
                )
    return index_of_shards(data, Shards(about, columns, store), unsorted)


def _index_here(store: Store, about: About, directory: Path) -> Path:
    """An index that is far, brought here once: it is known by its sha256."""
    path = directory / FOLDER / f"{about.index}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists() or sha256_of(path) != about.index:  # what is here and wrong is fetched again
            part, most = path.with_suffix(".part"), MOST_HEADER + MOST_ROW * sum(one.pictures for one in about.shards)
            with part.open("wb") as file:
                for chunk in store.chunks(INDEX):
                    file.write(chunk)
                    if file.tell() > most:
                        part.unlink()
                        raise DataError(f"{INDEX} of {store.address} is larger than an index of its pictures can be.")
            if sha256_of(part) != about.index:
                part.unlink()
                raise DataError(f"{INDEX} of {store.address} is not the one that {ABOUT} was written with.")
            part.replace(path)
    return path


def index_of_shards(data: Data, storage: Shards, unsorted: bool = False, foreign: bool = False) -> Index:
    """An Index of all pictures. The splits are those that the shards were written with; those of `foreign` ones are
    completed as the splits of a folder are."""
    from vitral.data.sources.splits import complete_splits, groups_of, strata

    about, columns = storage.about, storage.columns
    storage.streams = data.shards == "stream"
    if data.target != "auto":
        raise RecipeError(
            f"data.target is {data.target}, and shards have what they were written with: set data.target=auto, or "
            "write them again with another data.target."
        )
    targets, names, notes = about.targets, columns.names, [*about.notes]
    labels = columns.label.astype(np.int64) if is_one_class(targets) else np.asarray(columns.label)
    splits = np.array([*SPLITS, ""])[columns.split]
    if [target.names for target in targets] == [(UNSORTED,)] and not unsorted:
        raise DataError(f"{data.source} says of no picture what it is: neither KEY.cls, KEY.json nor a folder in KEY.")
    groups = groups_of(names, data.group_by) if data.group_by != "none" else None
    if foreign or data.validation != "auto":
        parted, words = strata(targets, labels)
        splits, said = complete_splits(
            splits,
            parted,
            names,
            groups,
            validation=data.validation,
            seed=data.split_seed,
            official=not foreign,
            tests=not unsorted,
            same=words,
        )
        notes += said
    if about.left_out:
        pictures = "1 picture" if len(about.left_out) == 1 else f"{len(about.left_out):,} pictures"
        notes.append(f"{pictures} could not be read when the shards were written: {about.left_out[0][1]}")
    return Index(
        data.source,
        tuple(name for target in targets for name in target.names),
        names,
        labels,
        splits,
        about.channels,
        storage,
        tuple(notes),
        groups=groups,
        other_targets=() if is_one_class(targets) else targets,
        runs=storage.runs(),
    )
