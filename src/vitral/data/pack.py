"""Decode once, memory-map for ever: the pictures of a source after the first stage of the preprocessing.

A pack is a folder in `packs/` of the data directory, named by its preprocessing (the stage) and by its pictures (names,
sizes, times). It holds `pixels.bin`, rows of uint8, and `pack.json`, which has a checksum for each chunk of rows.
While it grows, `progress.jsonl` has the chunks that are done: after an interruption packing goes on from there, and
a chunk that is not what its checksum says is made anew. Packs may be deleted at any time.
"""

import base64
import hashlib
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from vitral.data.decode import decode_with_facts
from vitral.data.preprocess import Preprocess
from vitral.data.sources import SPLITS, Index, Pixels, digest_of
from vitral.data.sources.shards import identity_of, is_streamed, shards_of
from vitral.data.stream import Images, Stream
from vitral.data.threads import cores, one_core_each
from vitral.errors import DataError
from vitral.files import write_whole
from vitral.progress import Progress, Tell, drain, silent, taking
from vitral.settings import FORMAT
from vitral.targets import columns

if TYPE_CHECKING:
    from vitral.data.check import Inspection

MOST_LEFT_OUT = 0.1  # a larger share of unreadable pictures is no accident
MOST_IN_MEMORY = 2**30  # bytes; pictures that are pixels already need no file below this
CHUNK = 4 * 2**20  # bytes of pixels that are decoded, checked and reported together, …
MOST_IN_CHUNK = 64  # … or as many pictures: so that no thread is left with the last of them

MEASURED = 4_096  # pictures of shards that mean and standard deviation are measured on
SAMPLE = 32  # pictures by which the time of all is forecast

DOING = "packing pictures, once"
PIXELS, PROGRESS, DONE = "pixels.bin", "progress.jsonl", "pack.json"


@dataclass(frozen=True)
class Pack:
    """All pictures of a source, decoded and resized."""

    index: Index
    images: Images = field(repr=False)  # (samples, C, stored height, stored width)
    left_out: Mapping[int, str]  # sample number → why it cannot be read
    sha256: str  # the identity of the set: names, labels, splits and the bytes of every picture
    # (samples, C, 2): of the pixels and of their squares; () of pictures that are decoded as they are asked for
    sums: NDArray[np.int64] = field(repr=False)
    notes: tuple[str, ...] = ()
    inspection: "Inspection | None" = field(default=None, repr=False)  # checks of the pictures that were decoded

    def of(self, split: str) -> NDArray[np.int64]:
        """The numbers of the samples in a split that can be read, in order."""
        numbers = self.index.of(split)
        return numbers[~np.isin(numbers, list(self.left_out))] if self.left_out else numbers

    def check(self, sha256: str) -> None:
        """Refuse other pictures than those that a run was trained with; "" accepts any."""
        if sha256 not in ("", self.sha256):
            raise DataError(
                f"The pictures of {self.index.source} are not those that it was trained with: they, their labels or "
                "their split have changed."
            )

    def check_classes(self, learnt: NDArray[np.int64]) -> None:
        """Refuse what cannot be learnt from the samples of these numbers: a class or label of which there is none, and
        what is the same for all of them."""
        index, source, counts = self.index, self.index.source, self.index.counts(learnt)
        for target, part in zip(index.targets, columns(index.targets), strict=True):
            if target.kind == "number":
                numbers = index.labels[learnt, part]
                if (numbers == numbers[0]).all():
                    raise DataError(
                        f"{target.name} is {numbers[0, 0]:g} for all training pictures of {source}: there is nothing "
                        "to learn. Take it out of data.target, or add pictures of which it is another."
                    )
                continue
            of_target = f" {target.name}," if len(index.targets) > 1 else ""
            if target.kind == "class" and target.outputs < 2:
                raise DataError(
                    f"{source} has one class,{of_target} {target.names[0]}: there is nothing to tell apart."
                )
            if unseen := [name for name, count in zip(target.names, counts[part], strict=True) if count == 0]:
                raise DataError(
                    f"{source} has no training picture of{of_target} {', '.join(unseen[:5])}: "
                    f"a {'class' if target.kind == 'class' else 'label'} that is only tested cannot be learnt. Move "
                    "some of its pictures to train, or take it out."
                )
            if target.kind == "labels" and (counts[part] == len(learnt)).all():
                raise DataError(
                    f"All training pictures of {source} have the label {', '.join(target.names[:5])}: there is nothing "
                    "to tell apart. Add pictures that do not have it."
                )

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(sample, label, split) of those that can be read, as split.csv has them."""
        for number, row in enumerate(self.index.rows()):
            if number not in self.left_out:
                yield row

    def left_out_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """(sample, label, split, reason) of the others, as left-out.csv has them."""
        if self.left_out:
            for number, row in enumerate(self.index.rows()):
                if number in self.left_out:
                    yield *row, self.left_out[number]


class Chunk(NamedTuple):
    """Some rows that are done, without their pixels."""

    number: int
    crc: int  # of their pixels
    digests: bytes  # 32 per picture: sha256 of its stored bytes
    sums: bytes  # two whole numbers of 64 bits per picture and channel: sum of the pixels, and of their squares
    left_out: dict[int, str]
    deeper: int  # how many had 16 bits per channel


def pack(index: Index, preprocess: Preprocess, directory: Path, tell: Tell = silent) -> Pack:
    """The pack of a source, from `directory` if it is there already. `packing` does the same and yields progress."""
    return drain(packing(index, preprocess, directory), tell)


def packing(
    index: Index, preprocess: Preprocess, directory: Path, inspection: "Inspection | None" = None
) -> Generator[Progress, None, Pack]:
    """Yields progress, returns the pack. `directory` is the data directory; decoded pictures go to `inspection` too."""
    shape = _shape(index, preprocess)
    if is_streamed(index):
        return _streamed(index, preprocess)
    if _in_memory(index, shape):
        images = np.empty(shape, np.uint8)
        chunks = yield from _make_chunks(index, preprocess, images, {}, inspection)
    else:
        images, chunks = yield from _on_disk(index, preprocess, directory, shape, inspection)
    return replace(_finished(index, images, chunks), inspection=inspection)


@dataclass(frozen=True)
class PackForecast:
    """What packing takes, before it begins; nothing where it is done."""

    bytes: int
    free: int  # bytes of that disk
    seconds: float

    @property
    def words(self) -> str:
        """A sentence for people.

        >>> PackForecast(15_052_800_000, 77 * 10**9, 750.0).words
        'Packing takes about 12 min and 15.1 GB, once; 77.0 GB are free.'
        """
        takes = f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{max(1, self.seconds):.0f} s"
        size = f" and {_size(self.bytes)}, once; {_size(self.free)} are free" if self.bytes else ""
        return f"Packing takes about {takes}{size}."


def forecast_packing(index: Index, preprocess: Preprocess, directory: Path) -> PackForecast:
    """Time some pictures, a second at most, to tell what packing all of them takes. A disk that cannot hold them is
    refused."""
    if is_streamed(index):
        return PackForecast(0, 0, 0.0)  # they are not packed
    folder, shape = _folder(index, preprocess, directory), _shape(index, preprocess)
    if (folder / DONE).exists():
        return PackForecast(0, 0, 0.0)
    needed, free = (0, 0) if _in_memory(index, shape) else _check_space(folder, shape)
    began, done = time.perf_counter(), 0
    for row in np.unique(np.linspace(0, shape[0] - 1, SAMPLE).astype(int)):
        _row(index, preprocess, int(row))
        done += 1
        if time.perf_counter() - began > 1:
            break
    each = (time.perf_counter() - began) / max(1, done)
    return PackForecast(needed, free, each * shape[0] / cores())


def check_space(index: Index, preprocess: Preprocess, directory: Path) -> None:
    """Refuse a disk that cannot hold what is still to be written of a pack."""
    if is_streamed(index):
        return
    folder, shape = _folder(index, preprocess, directory), _shape(index, preprocess)
    if not (folder / DONE).exists() and not _in_memory(index, shape):
        _check_space(folder, shape)


def _check_space(folder: Path, shape: tuple[int, ...]) -> tuple[int, int]:
    """The bytes that are still to be written for a pack, and those that are free; refused if they are too few."""
    pixels, total = folder / PIXELS, int(np.prod(shape))
    there = next(path for path in folder.absolute().parents if path.exists())
    needed, free = total - (pixels.stat().st_blocks * 512 if pixels.exists() else 0), shutil.disk_usage(there).free
    if needed > free:
        count, _, height, width = shape
        raise DataError(
            f"Packed, {count:,} pictures of {width} × {height} pixels take {_size(total)}, and "
            f"{_size(free)} are free for {folder.parent}. Set a smaller model.image_size, or a larger disk by "
            "data.directory=… or VITRAL_DATA; packs there that you no longer need may be deleted."
        )
    return max(0, needed), free


def _size(count: int) -> str:
    """Bytes in words.

    >>> _size(15_052_800_000), _size(884_736)
    ('15.1 GB', '0.9 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def too_many(left_out: int, total: int) -> bool:
    """Whether more than a tenth of the pictures is left out (of a small set, more than ten or half of them)."""
    return left_out > max(MOST_LEFT_OUT * total, min(10, total // 2))


def mean_and_std(pictures: Pack, numbers: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and std of pixel / 255, per channel; a channel that never changes gets a std of 1.

    From sums of whole numbers, kept with the pack: exact, whatever the split, and without reading a pixel. Of shards
    some pictures are measured, from everywhere among these.
    """
    if shards_of(pictures.index):
        numbers = numbers[np.unique(np.linspace(0, len(numbers) - 1, MEASURED).astype(int))]
    if isinstance(pictures.images, Stream):
        blocks = (numbers[start : start + MOST_IN_CHUNK] for start in range(0, len(numbers), MOST_IN_CHUNK))
        with pictures.images.expect(numbers):
            sums = np.concatenate([_sums(pictures.images[block]) for block in blocks])
    else:
        sums = pictures.sums[numbers]
    pixels = len(numbers) * int(np.prod(pictures.images.shape[2:]))
    levels, squares = sums.sum(axis=0).T  # (C,) each
    mean, std = [], []
    for level, square in zip(map(int, levels), map(int, squares), strict=True):
        mean.append(level / pixels / 255)
        std.append(math.sqrt(pixels * square - level**2) / pixels / 255 or 1.0)  # Python's whole numbers never run over
    return tuple(mean), tuple(std)


# In files


def _on_disk(
    index: Index, preprocess: Preprocess, directory: Path, shape: tuple[int, ...], inspection: "Inspection | None"
) -> Generator[Progress, None, tuple[NDArray[np.uint8], dict[int, Chunk]]]:
    folder = _folder(index, preprocess, directory)
    try:
        if (ready := _open_pack(index, preprocess, folder, shape)) is not None:
            return ready  # also where nothing may be written
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_suffix(".lock"))
        yield from taking(lock, Progress(0, shape[0], DOING, waiting=True))  # one packs; others find it done
        try:
            return (yield from _pack_missing(index, preprocess, folder, shape, inspection))
        finally:
            lock.release()
    except OSError as error:
        raise DataError(
            f"The pictures cannot be packed into {folder.parent} ({error.strerror or error}). "
            "Choose a place with data.directory=… or VITRAL_DATA."
        ) from None


def _open_pack(
    index: Index, preprocess: Preprocess, folder: Path, shape: tuple[int, ...]
) -> tuple[NDArray[np.uint8], dict[int, Chunk]] | None:
    """The images and chunks of a pack that is whole, or None."""
    if not (folder / DONE).exists() or not _has_size(folder / PIXELS, shape):
        return None
    images = np.memmap(folder / PIXELS, np.uint8, "r", shape=shape)
    whole = _whole(index, preprocess, folder, images)
    return (images, whole) if len(whole) == _count(shape) else None


def _pack_missing(
    index: Index, preprocess: Preprocess, folder: Path, shape: tuple[int, ...], inspection: "Inspection | None"
) -> Generator[Progress, None, tuple[NDArray[np.uint8], dict[int, Chunk]]]:
    """Make the chunks that are missing; the images and all chunks."""
    if (ready := _open_pack(index, preprocess, folder, shape)) is not None:
        return ready  # packed by the process that we waited for
    _check_space(folder, shape)
    pixels = folder / PIXELS
    with pixels.open("r+b" if pixels.exists() else "w+b") as file:
        if not _has_size(pixels, shape):
            file.truncate(int(np.prod(shape)))
    images = np.memmap(pixels, np.uint8, "r", shape=shape)
    whole = _whole(index, preprocess, folder, images)
    (folder / DONE).unlink(missing_ok=True)
    with pixels.open("r+b", buffering=0) as file, (folder / PROGRESS).open("w", encoding="utf-8") as progress:
        for chunk in whole.values():
            _append_chunk(progress, chunk)
        whole = yield from _make_chunks(index, preprocess, images, whole, inspection, file.fileno(), progress)
        os.fsync(file.fileno())
    write_whole(
        folder / DONE,
        json.dumps({"format": FORMAT, "source": index.source, "chunks": [_chunk_to_json(c) for c in whole.values()]})
        + "\n",
    )
    (folder / PROGRESS).unlink()
    return images, whole


def _has_size(pixels: Path, shape: tuple[int, ...]) -> bool:
    return pixels.exists() and pixels.stat().st_size == np.prod(shape)


def _whole(index: Index, preprocess: Preprocess, folder: Path, images: NDArray[np.uint8]) -> dict[int, Chunk]:
    """The chunks whose checksums hold, and that would come out the same today."""
    with one_core_each() as pool:
        chunks = _read_chunks(folder)
        whole = pool.map(lambda chunk: _is_whole(chunk, images) and _same_today(chunk, index, preprocess), chunks)
        return {chunk.number: chunk for chunk, is_whole in zip(chunks, whole, strict=True) if is_whole}


def _same_today(chunk: Chunk, index: Index, preprocess: Preprocess) -> bool:
    """Whether the pictures that could not be read still cannot: they may have been out of reach for a moment."""
    return all(isinstance(_row(index, preprocess, row)[1], str) for row in chunk.left_out)


def _folder(index: Index, preprocess: Preprocess, directory: Path) -> Path:
    return directory / "packs" / f"{preprocess.stage}-{key_of(index)}"


def _shape(index: Index, preprocess: Preprocess) -> tuple[int, ...]:
    return len(index.samples), preprocess.channels, *preprocess.stored_size


def place_of(index: Index, preprocess: Preprocess, directory: Path) -> Path | None:
    """The folder of a pack; None where there is none, because pictures are held in memory or come from shards."""
    if is_streamed(index) or _in_memory(index, _shape(index, preprocess)):
        return None
    return _folder(index, preprocess, directory)


def _in_memory(index: Index, shape: tuple[int, ...]) -> bool:
    return isinstance(index.storage, Pixels) and bool(np.prod(shape) <= MOST_IN_MEMORY)


def key_of(index: Index) -> str:
    """A digest of names and stamps: another one when a picture was added, removed or changed."""
    if shards_of(index):
        return identity_of(index.storage)[:16]
    digest = hashlib.sha256()
    for number, sample in enumerate(index.samples):
        digest.update(f"{_escaped(sample)}\t{index.storage.stamp(number)}\n".encode())
    return digest.hexdigest()[:16]


def _read_chunks(folder: Path) -> list[Chunk]:
    """The chunks that pack.json or progress.jsonl lists; a line that was cut off by a kill is not one."""
    try:
        if (folder / DONE).exists():
            lines = json.loads((folder / DONE).read_text(encoding="utf-8"))["chunks"]
        else:
            lines = [json.loads(line) for line in (folder / PROGRESS).read_text(encoding="utf-8").split("\n")[:-1]]
        return [_chunk_from_json(line) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _chunk_to_json(chunk: Chunk) -> dict[str, Any]:
    digests = base64.b64encode(chunk.digests).decode()
    sums = base64.b64encode(chunk.sums).decode()
    return {**chunk._asdict(), "digests": digests, "sums": sums, "left_out": list(chunk.left_out.items())}


def _chunk_from_json(line: dict[str, Any]) -> Chunk:
    digests, sums = base64.b64decode(line["digests"]), base64.b64decode(line["sums"])
    left_out = {row: why for row, why in line["left_out"]}
    return Chunk(line["number"], line["crc"], digests, sums, left_out, line["deeper"])


def _append_chunk(progress: Any, chunk: Chunk) -> None:
    progress.write(json.dumps(_chunk_to_json(chunk)) + "\n")
    progress.flush()


# In chunks


def _rows(number: int, shape: tuple[int, ...]) -> range:
    """The sample numbers of a chunk."""
    each = max(1, min(MOST_IN_CHUNK, CHUNK // int(np.prod(shape[1:]))))
    return range(number * each, min((number + 1) * each, shape[0]))


def _count(shape: tuple[int, ...]) -> int:
    return -(-shape[0] // max(1, len(_rows(0, shape))))


def _is_whole(chunk: Chunk, images: NDArray[np.uint8]) -> bool:
    rows = _rows(chunk.number, images.shape)
    complete = len(chunk.digests) == 32 * len(rows) and len(chunk.sums) == 16 * images.shape[1] * len(rows)
    return complete and chunk.crc == zlib.crc32(images[rows.start : rows.stop].data)


def _make_chunks(
    index: Index,
    preprocess: Preprocess,
    images: NDArray[np.uint8],
    whole: Mapping[int, Chunk],
    inspection: "Inspection | None",
    descriptor: int | None = None,
    progress: Any = None,
) -> Generator[Progress, None, dict[int, Chunk]]:
    """Make the chunks that are not in `whole`, on all cores: Pillow lets other threads run while it decodes."""
    shape = images.shape
    chunks = dict(whole)
    done = sum(len(_rows(number, shape)) for number in chunks)

    def make(number: int) -> Chunk:
        pixels, chunk = _chunk(index, preprocess, number, shape, inspection)
        rows = _rows(number, shape)
        if descriptor is None:
            images[rows.start : rows.stop] = pixels
        else:  # not through the memory map: on a full disk that would end the process without a word
            _write_at(descriptor, pixels, rows.start * pixels[0].nbytes)
        return chunk

    missing = [number for number in range(_count(shape)) if number not in whole]
    if missing:
        yield Progress(done, shape[0], DOING)
    pool = one_core_each()
    try:
        for future in as_completed([pool.submit(make, number) for number in missing]):
            chunk = future.result()
            chunks[chunk.number] = chunk
            done += len(_rows(chunk.number, shape))
            if progress is not None:
                _append_chunk(progress, chunk)
            yield Progress(done, shape[0], DOING)
    finally:
        pool.shutdown(cancel_futures=True)
    return dict(sorted(chunks.items()))


def _chunk(
    index: Index, preprocess: Preprocess, number: int, shape: tuple[int, ...], inspection: "Inspection | None"
) -> tuple[NDArray[np.uint8], Chunk]:
    rows = _rows(number, shape)
    digests, left_out, deeper = b"", {}, 0
    pixels = _ready(index, rows, shape)
    if pixels is not None:
        digests = b"".join(digest_of(index.storage.read(row)) for row in rows)
    else:
        pixels = np.zeros((len(rows), *shape[1:]), np.uint8)
        for place, row in enumerate(rows):
            digest, pixels_or_reason, bits = _row(index, preprocess, row, inspection)
            if isinstance(pixels_or_reason, str):
                left_out[row] = pixels_or_reason
            else:
                pixels[place] = pixels_or_reason
            digests += digest
            deeper += bits == 16
    return pixels, Chunk(number, zlib.crc32(pixels.data), digests, _sums(pixels).tobytes(), left_out, deeper)


def _row(
    index: Index, preprocess: Preprocess, row: int, inspection: "Inspection | None" = None
) -> tuple[bytes, NDArray[np.uint8] | str, int]:
    """The sha256 of a picture, its pixels or why there are none, and its bits per channel."""
    digest = bytes(32)
    try:
        content = index.storage.read(row)
        digest = digest_of(content)
        decoded, facts = decode_with_facts(
            content, name=index.samples[row], at_least=preprocess.at_least, profile=preprocess.profile
        )
        if inspection:
            inspection.add(row, digest, decoded, facts)
        return digest, preprocess.fitted(decoded, index.samples[row]), facts.bits
    except DataError as error:
        return digest, str(error), 0


def _sums(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:  # (n, C, H, W) → (n, C, 2)
    levels = pixels.reshape(*pixels.shape[:2], -1)
    squares = np.multiply(levels, levels, dtype=np.uint16)
    return np.stack([levels.sum(axis=2, dtype=np.int64), squares.sum(axis=2, dtype=np.int64)], axis=2)


def _ready(index: Index, rows: range, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """Pictures that are pixels, of the right size and with the right channels: nothing is left to do to them."""
    if not isinstance(index.storage, Pixels):
        return None
    _, channels, height, width = shape
    images = index.storage.images[rows.start : rows.stop]
    if images.shape[1:] not in ((height, width), (height, width, channels)) or (images.ndim == 3 and channels != 1):
        return None
    return np.ascontiguousarray(images.reshape(-1, height, width, channels).transpose(0, 3, 1, 2))


def _write_at(descriptor: int, pixels: NDArray[np.uint8], offset: int) -> None:
    content = pixels.data.cast("B")
    while content:
        count = os.pwrite(descriptor, content, offset)
        content, offset = content[count:], offset + count


# Together


def _streamed(index: Index, preprocess: Preprocess) -> Pack:
    """Pictures of shards: nothing is packed; those that cannot be read were left out when the shards were written."""
    return Pack(index, Stream(index, preprocess), {}, _identity_of_shards(index), np.empty(0, np.int64))


def _identity_of_shards(index: Index) -> str:
    """That of the shards, and of what is told about the pictures beside them."""
    digest = hashlib.sha256(identity_of(index.storage).encode())
    digest.update(index.labels.tobytes())
    for split in SPLITS:
        digest.update(np.packbits(index.splits == split).tobytes())
    return digest.hexdigest()


def _finished(index: Index, images: NDArray[np.uint8], chunks: Mapping[int, Chunk]) -> Pack:
    left_out = {row: why for chunk in chunks.values() for row, why in chunk.left_out.items()}
    digests = b"".join(chunk.digests for chunk in chunks.values())
    deeper = sum(chunk.deeper for chunk in chunks.values())
    notes = []
    if deeper:
        have = "1 picture has" if deeper == 1 else f"{deeper:,} pictures have"
        notes.append(f"{have} 16 bits a channel: the upper 8 are used.")
    if left_out:
        first = next(iter(left_out.values()))
        are = "is" if len(left_out) == 1 else "are"
        total = len(index.samples)
        notes.append(f"{len(left_out):,} of {total:,} pictures cannot be read and {are} left out: {first}")
    if too_many(len(left_out), len(index.samples)):
        raise DataError(f"{notes[-1]} That is too many: `vitral check {index.source}` names them all.")
    sums = np.frombuffer(b"".join(chunk.sums for chunk in chunks.values()), np.int64)
    sums = sums.reshape(len(index.samples), -1, 2)
    sha256 = _identity_of_shards(index) if shards_of(index) else _identity(index, left_out, digests)
    return Pack(index, images, left_out, sha256, sums, tuple(notes))


def _identity(index: Index, left_out: Mapping[int, str], digests: bytes) -> str:
    digest = hashlib.sha256()
    for row, words in enumerate(index.rows()):
        if row not in left_out:
            picture = digests[32 * row : 32 * row + 32].hex()
            digest.update(("\t".join([*map(_escaped, words), picture]) + "\n").encode())
    return digest.hexdigest()


def _escaped(name: str) -> str:
    """A name on one line: it may hold a tab or a newline of its own."""
    return name.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
