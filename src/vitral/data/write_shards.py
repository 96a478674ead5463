"""A source becomes shards: tars as WebDataset has them, and an index beside them.

Of a picture KEY.jpg (or what it is) is its file, KEY.cls the number of its class, KEY.json its name, split and label.
Pictures are shuffled here, once, so that neighbours in a shard are any pictures: training mixes no more than some runs
of neighbours at a time (`shard_order.py`). Train, validation and test have shards of their own.

Everything is written into `.OUT.part` beside OUT, which becomes OUT when all is there. A shard that is done stays done:
the same command goes on after an interruption, and writes the same bytes.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from PIL import Image

from vitral.data.config import Scale
from vitral.data.decode import decode_with_facts, describe
from vitral.data.preprocess import Preprocess
from vitral.data.randomness import permutation
from vitral.data.sources import SPLITS, Index
from vitral.data.sources.shard_index import ABOUT, INDEX, About, Columns, write_index
from vitral.data.threads import one_core_each
from vitral.errors import DataError, RecipeError
from vitral.files import sha256_of, write_whole
from vitral.progress import Progress
from vitral.settings import FORMAT
from vitral.targets import columns, is_one_class

Stored = Literal["file", "png", "jpeg"]  # a picture as it was; or after the first stage of the preprocessing

QUALITY = 95  # of a JPEG that is written anew
SAMPLE = 64  # pictures whose sizes tell how many fit into a shard
BLOCK = tarfile.BLOCKSIZE
OVERHEAD = 5 * BLOCK  # bytes of a tar for a picture, beside its own: three headers, a label, a name
LEAST_SHARD = 2**16  # bytes: smaller ones are a slip of the keyboard
ENDINGS = {"JPEG": "jpg", "TIFF": "tif", "HEIF": "heic", "PNG": "png"}
PLAN = "plan.json"
DOING = "writing shards"


@dataclass(frozen=True)
class Plan:
    """Which pictures go into which shard."""

    names: list[str]  # of the tars
    members: list[NDArray[np.int64]]  # the numbers of the samples in each
    bytes: int  # of all of them, about


def plan_shards(
    index: Index, preprocess: Preprocess | None, stored: Stored, size: int | None, count: int | None
) -> Plan:
    """Shards of about `size` bytes; or `count` of them, of which each split has its share."""
    if stored != "file" and preprocess and isinstance(preprocess.resize, Scale) and preprocess.resize.share != 1:
        raise RecipeError(
            f"data.resize has a share of {preprocess.resize.share:g}: what is stored in the size of the model would be "
            "scaled and cut once more when it is read. Write the files as they are, without --as, or set the share to "
            "1."
        )
    each = _mean_size(index, preprocess, stored) + OVERHEAD
    total = len(index.samples)
    if count is None:
        assert size is not None
        count = max(1, round(each * total / size))
    names, members = [], []
    for split in SPLITS:
        numbers = index.of(split)
        if not len(numbers):
            continue
        shards = min(len(numbers), max(1, round(count * len(numbers) / total)))
        numbers = numbers[permutation(0, f"shards of {split}", count=len(numbers))]
        names += [f"{split}-{number:06}.tar" for number in range(shards)]
        members += np.array_split(numbers, shards)
    return Plan(names, members, int(each * total))


def writing_shards(
    index: Index, folder: Path, plan: Plan, preprocess: Preprocess | None = None, stored: Stored = "file"
) -> Generator[Progress, None, About]:
    """Write the shards of a plan; yields progress, returns what was written."""
    if folder.exists():
        raise DataError(f"{folder} is there already. Choose another place for the shards, or remove it.")
    part = folder.with_name(f".{folder.name}.part")
    try:
        part.mkdir(parents=True, exist_ok=True)
        lock = FileLock(part.with_suffix(".lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise DataError(f"Another process writes {folder} just now.") from None
        try:
            return (yield from _write(index, folder, part, plan, preprocess, stored))
        finally:
            lock.release()
            Path(lock.lock_file).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"The shards cannot be written into {folder.parent} ({error.strerror or error}).") from None


def _write(
    index: Index, folder: Path, part: Path, plan: Plan, preprocess: Preprocess | None, stored: Stored
) -> Generator[Progress, None, About]:
    done = _begin(part, index, plan, preprocess, stored)
    free = shutil.disk_usage(part).free + sum(path.stat().st_size for path in part.glob("*.tar"))
    if plan.bytes > free:
        raise DataError(
            f"The shards take about {plan.bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free for {folder.parent}."
        )
    total, ready = len(index.samples), sum(len(plan.members[number]) for number in done)
    yield Progress(ready, total, DOING)
    pool = one_core_each()
    try:
        missing = [number for number in range(len(plan.names)) if number not in done]
        work = [pool.submit(_write_shard, index, part, plan, number, preprocess, stored) for number in missing]
        for future in as_completed(work):
            ready += future.result()
            yield Progress(ready, total, DOING)
    finally:
        pool.shutdown(cancel_futures=True)
    about = _finish(index, part, plan, stored)
    part.rename(folder)
    _flush(folder.parent)
    return about


def _begin(part: Path, index: Index, plan: Plan, preprocess: Preprocess | None, stored: Stored) -> set[int]:
    """The shards that an interruption of the same work has left whole; what is of other work goes."""
    from vitral.data.pack import key_of

    told = [key_of(index), _targets_of(index), stored, preprocess.stage if preprocess else None, plan.names]
    told.append(hashlib.sha256(np.concatenate(plan.members).tobytes() + index.labels.tobytes()).hexdigest())
    words = json.dumps(told)
    plan_file = part / PLAN
    if not plan_file.exists() or plan_file.read_text(encoding="utf-8") != words:
        for path in part.iterdir():
            path.unlink()
        write_whole(plan_file, words)
    return {number for number, name in enumerate(plan.names) if (part / f"{name}.npz").exists()}


def _write_shard(
    index: Index, part: Path, plan: Plan, number: int, preprocess: Preprocess | None, stored: Stored
) -> int:
    """Write one tar and what the index will say of it; how many pictures were to go into it."""
    name, rows, left_out = plan.names[number], _Rows(index), []
    first = sum(map(len, plan.members[:number]))  # the keys go on from shard to shard
    tar, temporary = part / name, part / f"{name}.part"
    with temporary.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for place, row in enumerate(plan.members[number].tolist()):
                try:
                    content, ending = _picture(index, row, preprocess, stored)
                except DataError as error:
                    left_out.append([index.samples[row], str(error)])
                    continue
                rows.add(row, archive.offset + BLOCK, content)
                for suffix, text in ((ending, content), *_words(index, row)):
                    member = tarfile.TarInfo(f"{first + place:09}.{suffix}")
                    member.size = len(text)
                    archive.addfile(member, io.BytesIO(text))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(tar)
    facts = {"size": tar.stat().st_size, "sha256": sha256_of(tar), "left_out": left_out}
    write_whole(part / f"{name}.npz", rows.packed(facts))
    return len(plan.members[number])


def _picture(index: Index, row: int, preprocess: Preprocess | None, stored: Stored) -> tuple[bytes, str]:
    """What goes into the tar, and how its name ends. A picture that cannot be decoded is refused here, and not in the
    middle of a training."""
    content, name = index.storage.read(row), index.samples[row]
    if stored != "file":
        assert preprocess is not None
        pixels = preprocess.stored(content, name).transpose(1, 2, 0)  # (H, W, C)
        return _encoded(pixels, stored), "jpg" if stored == "jpeg" else _ending_of_pixels(pixels)
    if not isinstance(content, bytes):
        return _encoded(content, "png"), _ending_of_pixels(content)
    _, facts = decode_with_facts(content, name=name, at_least=(1, 1))  # all of a JPEG is read, little of it computed
    return content, ENDINGS.get(facts.format, facts.format.lower())


def _ending_of_pixels(pixels: NDArray[np.uint8]) -> str:
    return "png" if pixels.ndim == 2 or pixels.shape[2] in (1, 3) else "npy"


def _encoded(pixels: NDArray[np.uint8], how: Stored) -> bytes:
    """Pixels as the bytes of a file: PNG holds grey and colours, NPY any number of channels."""
    file = io.BytesIO()
    if _ending_of_pixels(pixels) == "npy":
        np.save(file, np.ascontiguousarray(pixels), allow_pickle=False)
        return file.getvalue()
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels))
    if how == "jpeg":
        image.save(file, "JPEG", quality=QUALITY, subsampling=0)
    else:
        image.save(file, "PNG")
    return file.getvalue()


def _words(index: Index, row: int) -> Iterator[tuple[str, bytes]]:
    """What stands beside a picture in the tar, for readers that know nothing of the index."""
    if not index.other_targets:
        yield "cls", str(int(index.labels[row])).encode()
    values: dict[str, Any] = {"name": index.samples[row], "split": str(index.splits[row])}
    for target, part in zip(index.targets, columns(index.targets), strict=True):
        if not index.other_targets:
            value: Any = index.class_names[index.labels[row]]
        elif target.kind == "number":
            value = float(index.labels[row, part][0])
        else:
            names = [target.names[place] for place in np.flatnonzero(index.labels[row, part])]
            value = names[0] if target.kind == "class" else names
        values[target.name] = value
    yield "json", json.dumps(values).encode("utf-8")


class _Rows:
    """The rows of the index for one shard, while it is written."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.numbers: list[int] = []
        self.places: list[tuple[int, int, int]] = []  # offset, size, crc

    def add(self, row: int, offset: int, content: bytes) -> None:
        self.numbers.append(row)
        self.places.append((offset, len(content), zlib.crc32(content)))

    def packed(self, facts: dict[str, Any]) -> bytes:
        file = io.BytesIO()
        arrays = {"numbers": np.array(self.numbers, np.int64), "places": np.array(self.places, np.int64).reshape(-1, 3)}
        np.savez(file, allow_pickle=False, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)
        return file.getvalue()


def _finish(index: Index, part: Path, plan: Plan, stored: Stored) -> About:
    """Write the index of all shards, and remove what was needed to go on."""
    rows, shards, left_out = [], [], []
    for name in plan.names:
        with np.load(part / f"{name}.npz", allow_pickle=False) as arrays:
            numbers, places, facts = arrays["numbers"], arrays["places"], json.loads(arrays["facts"].tobytes())
        offset, size, crc = places.T
        rows.append(
            Columns(
                offset.astype(np.uint64),
                size.astype(np.uint32),
                crc.astype(np.uint32),
                index.labels[numbers].astype(np.int32 if is_one_class(index.targets) else np.float64),
                np.array([SPLITS.index(split) for split in index.splits[numbers]], np.uint8),
                [index.samples[number] for number in numbers],
            )
        )
        shards.append({"name": name, "size": facts["size"], "sha256": facts["sha256"], "pictures": len(numbers)})
        left_out += facts["left_out"]
    if not any(map(len, rows)):
        raise DataError(f"None of the pictures of {index.source} can be read: {left_out[0][1]}")
    about = write_index(
        part,
        rows,
        {
            "format": FORMAT,
            "shards": shards,
            "targets": _targets_of(index),
            "channels": index.channels,
            "left_out": left_out,
            "notes": [] if stored == "file" else [f"The pictures are stored resized, as {stored.upper()}."],
        },
    )
    for path in part.iterdir():  # what was needed to go on; what a kill has left of a file that was being written
        if path.name not in (*plan.names, INDEX, ABOUT):
            path.unlink()
    return about


def _targets_of(index: Index) -> list[dict[str, Any]]:
    return [target.write() for target in index.targets]


def _mean_size(index: Index, preprocess: Preprocess | None, stored: Stored) -> float:
    """Bytes of a picture in the tar, on average, by some of them."""
    sizes = []
    for number in np.unique(np.linspace(0, len(index.samples) - 1, SAMPLE).astype(int)):
        try:
            content = index.storage.read(int(number))
            if stored != "file" or not isinstance(content, bytes):
                content = _picture(index, int(number), preprocess, stored)[0]
            else:
                describe(content, index.samples[int(number)])
        except DataError:
            continue
        sizes.append(-(-len(content) // BLOCK) * BLOCK)
    return float(np.mean(sizes)) if sizes else 0.0


def _flush(folder: Path) -> None:
    """A rename is only on the disk once the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
