"""Tars that others wrote, as WebDataset reads them: an index is made of them once, while they stream by.

Members with one name up to its first point are one sample: a picture, and KEY.cls or KEY.json with its label; without
these the folder in the key is the class. Links, devices and what is no file are passed over; nothing is unpacked. Every
picture is decoded on the way, so that one that cannot be is named now and not in the middle of a training.
"""

import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, wait
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from vitral.data.decode import ENDINGS, MOST_BYTES, decode_with_facts
from vitral.data.sources import SPLITS
from vitral.data.sources.layout import UNSORTED, display_name, is_hidden
from vitral.data.sources.shard_index import ABOUT, INDEX, Columns, read_about, read_columns, write_index
from vitral.data.sources.shards import FOLDER, Shards
from vitral.data.sources.splits import SPLIT_WORDS
from vitral.data.stores import Store
from vitral.data.threads import one_core_each
from vitral.errors import DataError, RecipeError
from vitral.files import write_whole
from vitral.progress import Progress, taking
from vitral.settings import FORMAT
from vitral.targets import one_class

TAR = ".tar"
MOST_WORDS = 2**20  # bytes of KEY.cls or KEY.json
MOST_NAMES = 1_000_000  # of shards in braces
MOST_CLASSES = 100_000
MOST_FILES = 64  # of one sample
MOST_LEFT_OUT = 0.1
LABELS = ("label", "cls", "class", "class_name")  # in KEY.json, the first that is there
DOING = "indexing shards, once (MB)"
EVERY = 0.2  # seconds between two looks at how far it is


def names_of(pattern: str) -> list[str]:
    """The names that a pattern with braces means.

    >>> names_of("train-{000..002}.tar"), names_of("{a,b}.tar")
    (['train-000.tar', 'train-001.tar', 'train-002.tar'], ['a.tar', 'b.tar'])
    """
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    if numbers := re.fullmatch(r"(\d{1,12})\.\.(\d{1,12})", braces[1]):
        first, last = int(numbers[1]), int(numbers[2])
        if not 0 <= last - first < MOST_NAMES:
            raise RecipeError(f"{braces[0]} in {pattern} should count up, to at most {MOST_NAMES:,} shards.")
        inside = [f"{number:0{len(numbers[1])}}" for number in range(first, last + 1)]
    else:
        inside = braces[1].split(",")
    names = [name for word in inside for name in names_of(pattern[: braces.start()] + word + pattern[braces.end() :])]
    if len(names) > MOST_NAMES:
        raise RecipeError(f"{pattern} means more than {MOST_NAMES:,} shards.")
    return names


def indexing(store: Store, names: Sequence[str], directory: Path) -> Generator[Progress, None, Shards]:
    """The pictures in these tars of a store; yields how far it is. Their index lies in the data directory, and is made
    anew when a tar has changed. After an interruption it goes on with the tars that are missing."""
    try:
        with one_core_each() as pool:
            looks = [*pool.map(store.look, names)]
        words = json.dumps([FORMAT, store.address, list(names), [found._asdict() for found in looks]])
        folder = directory / FOLDER / hashlib.sha256(words.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        lock, sizes = FileLock(folder.with_suffix(".lock")), [found.size for found in looks]
        yield from taking(lock, Progress(0, _megabytes(sizes), DOING, waiting=True))
        try:
            if not (folder / ABOUT).exists():
                yield from _index_missing(store, names, sizes, folder)
                _join(folder, names, store.address)
        finally:
            lock.release()
        about = read_about((folder / ABOUT).read_bytes(), str(folder))
        return Shards(about, read_columns(folder / INDEX, about, str(folder)), store)
    except OSError as error:
        raise DataError(f"The index of {store.address} cannot be kept in {directory} ({error.strerror}).") from None


def _index_missing(
    store: Store, names: Sequence[str], sizes: Sequence[int], folder: Path
) -> Generator[Progress, None, None]:
    """Index the tars of which nothing is kept yet, each on a core."""
    read = [size if _rows_of(folder, place).exists() else 0 for place, size in enumerate(sizes)]
    missing = [place for place in range(len(names)) if not _rows_of(folder, place).exists()]
    pool, ended = one_core_each(), Event()

    def passed(place: int, size: int) -> None:
        if ended.is_set():
            raise CancelledError
        read[place] += size

    def progress() -> Progress:
        return Progress(_megabytes(read), _megabytes(sizes), DOING)

    try:
        yield progress()
        work = [
            pool.submit(_index_one, store, names[place], _rows_of(folder, place), partial(passed, place))
            for place in missing
        ]
        for future in work:
            while wait([future], EVERY).not_done:
                yield progress()
            future.result()
        yield progress()
    finally:
        ended.set()  # what is just being read may be far from its end
        pool.shutdown(cancel_futures=True)


def _megabytes(sizes: Sequence[int]) -> int:
    """Together, rounded up: a bar of no megabytes would have no end."""
    return -(-sum(sizes) // 10**6)


def _rows_of(folder: Path, place: int) -> Path:
    return folder / f"{place:06}.npz"


class _Passing(io.RawIOBase):
    """What streams by, as a file that is read once."""

    def __init__(self, chunks: Iterator[bytes], passed: Callable[[int], None]) -> None:
        self.chunks, self.left, self.passed = chunks, b"", passed
        self.digest, self.length = hashlib.sha256(), 0
        self.zeros_from = 0  # behind the last byte that is not 0

    def read(self, size: int = -1) -> bytes:
        parts, wanted = [], size
        while wanted and (self.left or self._next()):
            part = self.left[:wanted] if wanted > 0 else self.left
            parts.append(part)
            self.left = self.left[len(part) :]
            wanted -= len(part) if wanted > 0 else 0
        return b"".join(parts)

    def _next(self) -> bool:
        self.left = next(self.chunks, b"")
        self.passed(len(self.left))
        self.digest.update(self.left)
        if length := len(self.left.rstrip(b"\0")):
            self.zeros_from = self.length + length
        self.length += len(self.left)
        return bool(self.left)


class _Member(Protocol):
    """A file in a tar."""

    name: str
    size: int
    offset_data: int


def _index_one(store: Store, name: str, rows: Path, passed: Callable[[int], None]) -> None:
    """Read one tar from its start to its end, and keep what the index will say of it. `passed` hears how many bytes
    more have passed, and may end it by an exception."""
    passing = _Passing(store.chunks(name), passed)
    samples: list[dict[str, Any]] = []
    left_out: list[tuple[str, str]] = []
    where = f"{store.address}/{name}"
    try:
        with tarfile.open(fileobj=passing, mode="r|", bufsize=2**20) as tar:
            key, parts = "", dict[str, tuple[_Member, bytes]]()
            for member, content in _files(tar):
                base, ending = _key(member.name)
                if base != key:
                    _add(samples, left_out, key, parts)
                    key, parts = base, {}
                if len(parts) == MOST_FILES:
                    raise DataError(
                        f"{where} has more than {MOST_FILES} files that are called {key} up to their first point, and "
                        "so would be one sample. Name them without points in between."
                    )
                is_kept = ending in _WORDS or not any(map(_is_picture, parts))  # of several pictures the first
                parts[ending] = member, content if is_kept else b""
            _add(samples, left_out, key, parts)
        while passing.read(2**20):
            pass  # to its end, for the sha256
        if passing.length < tar.offset + tarfile.BLOCKSIZE:
            raise EOFError("its end is missing")
        if passing.zeros_from > tar.offset:  # tarfile takes a broken header for the end: the rest would be missed
            raise ValueError(f"byte {tar.offset:,} begins no file")
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"{where} is damaged, or no tar ({error}). A compressed tar has to be unpacked first."
        ) from None
    if not samples and not left_out:
        raise DataError(f"{where} has no picture: of KEY.jpg and KEY.cls the first would be one.")
    facts = {
        "samples": [{word: value for word, value in one.items() if word != "place"} for one in samples],
        "left_out": left_out,
        "size": passing.length,
        "sha256": passing.digest.hexdigest(),
    }
    file = io.BytesIO()
    places = np.array([one["place"] for one in samples], np.int64).reshape(-1, 3)
    np.savez(file, allow_pickle=False, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), places=places)
    write_whole(rows, file.getvalue())


_PICTURES = {ending.removeprefix(".") for ending in ENDINGS}
_WORDS = {"cls", "json"}


def _files(tar: tarfile.TarFile) -> Iterator[tuple[_Member, bytes]]:
    """The files that may be of a sample, with what is in them."""
    for member in tar:
        tar.members = []  # type: ignore[attr-defined]  # else it keeps every header in memory
        parts = member.name.split("/")
        if not member.isfile() or member.issparse() or member.name.startswith("/") or ".." in parts:
            continue
        if any(is_hidden(part) for part in parts if part != "."):
            continue
        _, ending = _key(member.name)
        if member.size > (MOST_WORDS if ending in _WORDS else MOST_BYTES):
            raise ValueError(f"{member.name} has {member.size:,} bytes")
        if ending not in _WORDS and not _is_picture(ending):
            continue
        file = tar.extractfile(member)
        content = file.read() if file else b""
        if len(content) < member.size:
            raise EOFError(f"it ends within {member.name}")
        yield member, content


def _is_picture(ending: str) -> bool:
    return ending.rpartition(".")[2] in _PICTURES


def _key(name: str) -> tuple[str, str]:
    """What a sample is called, and the ending in small letters.

    >>> _key("./cats/a.b/one.seg.PNG")
    ('cats/a.b/one', 'seg.png')
    """
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, _, ending = base.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _add(
    samples: list[dict[str, Any]], left_out: list[tuple[str, str]], key: str, parts: dict[str, tuple[_Member, bytes]]
) -> None:
    """One sample more, if it has a picture that can be decoded."""
    picture = next(filter(_is_picture, parts), None)
    if picture is None:
        return
    member, content = parts[picture]
    words = _words(parts)
    name = display_name(words["name"] if isinstance(words.get("name"), str) else f"{key}.{picture}")
    try:
        _, facts = decode_with_facts(content, name=name, at_least=(1, 1))
    except DataError as error:
        left_out.append((name, str(error)))
        return
    samples.append(
        {
            "name": name,
            "label": _label(parts, words, key),
            "split": SPLIT_WORDS.get(str(words.get("split")).lower(), ""),
            "channels": facts.channels,
            "place": (member.offset_data, member.size, zlib.crc32(content)),
        }
    )


def _words(parts: dict[str, tuple[_Member, bytes]]) -> dict[str, Any]:
    """What KEY.json says, if it is a table. Halves of a sign, which JSON can have and no file, are spelt out."""
    try:
        values = json.loads(parts["json"][1]) if "json" in parts else {}
    except (ValueError, RecursionError):
        values = {}
    if not isinstance(values, dict):
        return {}
    return {
        word: one.encode("utf-8", "backslashreplace").decode() if isinstance(one, str) else one
        for word, one in values.items()
    }


def _label(parts: dict[str, tuple[_Member, bytes]], words: dict[str, Any], key: str) -> str | int | None:
    """A name or a number of a class: of KEY.json, of KEY.cls, or of the folder in the key."""
    said = next((words[name] for name in LABELS if isinstance(words.get(name), str | int)), None)
    if said is None and "cls" in parts:
        said = parts["cls"][1].decode("utf-8", "replace").strip()
    if said is None:
        folder = key.rpartition("/")[0].rpartition("/")[2]
        return display_name(folder) if folder and folder.lower() not in SPLIT_WORDS else None
    return int(said) if isinstance(said, int) or re.fullmatch(r"[0-9]{1,9}", said) else display_name(said)


def _join(folder: Path, names: Sequence[str], address: str) -> None:
    """Write the index of all tars from what was kept of each."""
    facts, places = [], []
    for place in range(len(names)):
        with np.load(_rows_of(folder, place), allow_pickle=False) as arrays:
            facts.append(json.loads(arrays["facts"].tobytes()))
            places.append(arrays["places"])
    left_out = [one for fact in facts for one in fact["left_out"]]
    total = sum(len(fact["samples"]) for fact in facts)
    if not total or len(left_out) > max(MOST_LEFT_OUT * (total + len(left_out)), 10):
        raise DataError(f"{len(left_out):,} pictures of {address} cannot be read, which is too many: {left_out[0][1]}")
    class_names, number_of = _classes([one["label"] for fact in facts for one in fact["samples"]], address)
    channels = np.bincount([one["channels"] for fact in facts for one in fact["samples"]])
    rows = [
        _columns(fact["samples"], place, _split_of(name), number_of)
        for fact, place, name in zip(facts, places, names, strict=True)
    ]
    about = {
        "format": FORMAT,
        "shards": [
            {"name": name, "size": fact["size"], "sha256": fact["sha256"], "pictures": len(fact["samples"])}
            for name, fact in zip(names, facts, strict=True)
        ],
        "targets": [target.write() for target in one_class(class_names)],
        "channels": 3 if len(channels) == 4 else int(channels.argmax()),
        "left_out": left_out,
    }
    write_index(folder, rows, about)
    for path in folder.glob("*.npz"):
        path.unlink()


def _classes(labels: list[str | int | None], address: str) -> tuple[tuple[str, ...], dict[str | int | None, int]]:
    """The names of all classes, and the number of each label."""
    distinct = set(labels)
    if distinct == {None}:
        return (UNSORTED,), {None: 0}
    if None in distinct:
        raise DataError(f"{address} says of {labels.count(None):,} of {len(labels):,} pictures not what they are.")
    numbers = [label for label in distinct if isinstance(label, int)]
    if len(numbers) == len(distinct):
        if min(numbers) < 0:
            raise DataError(f"{address} has a class {min(numbers)}, and classes are counted from 0: leave these out.")
        count = max(numbers) + 1
        if count > MOST_CLASSES:
            raise DataError(f"{address} has a class {count - 1:,}: more than {MOST_CLASSES:,} classes are not learnt.")
        return tuple(map(str, range(count))), {number: number for number in numbers}
    class_names = tuple(sorted({str(label) for label in distinct}))
    places = {name: place for place, name in enumerate(class_names)}
    return class_names, {label: places[str(label)] for label in distinct}


def _split_of(name: str) -> str:
    """The split that the name of a tar says: `val-0001.tar`.

    >>> _split_of("imagenet-val-000001.tar"), _split_of("000001.tar")
    ('validation', '')
    """
    return next((SPLIT_WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLIT_WORDS), "")


def _columns(
    samples: list[dict[str, Any]], places: NDArray[np.int64], split: str, number_of: dict[str | int | None, int]
) -> Columns:
    """The rows of the index for one tar."""
    offset, size, crc = places.T
    splits = [one["split"] or split for one in samples]
    return Columns(
        offset.astype(np.uint64),
        size.astype(np.uint32),
        crc.astype(np.uint32),
        np.array([number_of[one["label"]] for one in samples], np.int32),
        np.array([SPLITS.index(split) if split else len(SPLITS) for split in splits], np.uint8),
        [one["name"] for one in samples],
    )
