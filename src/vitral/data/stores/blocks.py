"""Blocks of files that lie elsewhere, kept on disk in a folder that never grows above its bound.

`blocks.bin` has a slot for each block, and can have no more slots than the bound allows. `blocks.table` has a row for
each slot: whose block it is, when it was last used, and a checksum for every 64 KiB of it. Threads and processes write
in turns, under a lock that goes with its process; they read without one, and what does not fit its checksums, because
it is damaged or was just being overwritten, is not there. A row is cleared before its slot is written, and filled
afterwards: of a process that was killed in between, nothing is left. All of it may be deleted at any time.
"""

import os
import shutil
import threading
import time
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

BLOCK = 2**20  # bytes that are fetched, and forgotten, together
PIECE = 2**16  # bytes that have a checksum together: so much is read for a small picture
KEY = 16  # bytes that name a block
RESERVE = 2**30  # bytes that are left free on a disk
IN_MEMORY = 64  # blocks, where there is no disk for them
MAGIC, HEAD = b"vitral blocks 1\n", 64  # the bytes before the first row: MAGIC, bytes of a block, number of slots
POLL = 0.002  # seconds between two looks whether another process is done writing
DATA, TABLE, LOCK = "blocks.bin", "blocks.table", "blocks.lock"


class Blocks(Protocol):
    """Where blocks are kept for a while."""

    room: int  # how many

    def read(self, key: bytes, start: int, stop: int) -> bytes | None:
        """Bytes of a block from start to stop; None where it is not there, or damaged."""

    def has(self, key: bytes) -> bool:
        """Whether it is there; it counts as used."""

    def write(self, key: bytes, content: bytes) -> None:
        """Keep a block; an OSError where that cannot be."""

    def discard(self, key: bytes) -> None:
        """What is there is wrong."""


class MemoryBlocks:
    """A few blocks in memory: those used last."""

    def __init__(self, room: int = IN_MEMORY) -> None:
        self.room = room
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, key: bytes, start: int, stop: int) -> bytes | None:
        with self._lock:
            if key not in self._blocks:
                return None
            self._blocks.move_to_end(key)
            return self._blocks[key][start:stop]

    def has(self, key: bytes) -> bool:
        return self.read(key, 0, 0) is not None

    def write(self, key: bytes, content: bytes) -> None:
        with self._lock:
            self._blocks[key] = content
            self._blocks.move_to_end(key)
            while len(self._blocks) > self.room:
                self._blocks.popitem(last=False)

    def discard(self, key: bytes) -> None:
        with self._lock:
            self._blocks.pop(key, None)


class DiskBlocks:
    """As many blocks as fit into so many bytes of a folder, for any number of threads and processes."""

    def __init__(self, folder: Path, most: int, *, block: int = BLOCK, reserve: int = RESERVE) -> None:
        self.block, self.reserve = block, reserve
        self._row = np.dtype(
            [
                ("key", f"V{KEY}"),
                ("size", "<u4"),
                ("sums", "<u4", -(-block // PIECE)),
                ("sum", "<u4"),  # of the columns before it
                ("used", "<u8"),  # nanoseconds; written without a lock, so in no checksum
            ]
        )
        self.room = max(0, most - HEAD) // (block + self._row.itemsize)
        folder.mkdir(parents=True, exist_ok=True)
        self._where: dict[bytes, int] = {}  # slots by key, as they were seen last
        self._mutex, self._lock = threading.Lock(), FileLock(folder / LOCK)
        self._table, self._data = _open(folder / TABLE), _open(folder / DATA)
        self._folder = folder
        # Closed with the last thread that uses them, and not before: a number may be another file's by then.
        weakref.finalize(self, _close, self._table, self._data)
        with self._alone():
            self._lay_out()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._mutex, self._lock.acquire(poll_interval=POLL):
            yield

    def _lay_out(self) -> None:
        """Give both files the bound of this process: it was asked last. Blocks beyond it are gone."""
        head = os.pread(self._table, HEAD, 0)
        wanted = MAGIC + self.block.to_bytes(8, "little") + self.room.to_bytes(8, "little")
        if head[: len(MAGIC) + 8] != wanted[: len(MAGIC) + 8]:
            os.ftruncate(self._table, 0)
            os.ftruncate(self._data, 0)
        if os.fstat(self._data).st_size > self.room * self.block:
            os.ftruncate(self._data, self.room * self.block)
        os.pwrite(self._table, wanted.ljust(HEAD, b"\0"), 0)
        os.ftruncate(self._table, HEAD + self.room * self._row.itemsize)

    def _rows(self) -> NDArray[Any]:
        """All rows, as they are on disk now: another process may have given the folder another bound."""
        slots = int.from_bytes(os.pread(self._table, 8, len(MAGIC) + 8), "little")
        content = os.pread(self._table, slots * self._row.itemsize, HEAD)
        return np.frombuffer(content, self._row, count=len(content) // self._row.itemsize)

    def _find(self, key: bytes) -> tuple[int, NDArray[Any]] | None:
        """The slot and the row of a block."""
        slot = self._where.get(key)
        row = None if slot is None else self._row_at(slot, key)
        if row is None:
            slots = np.flatnonzero(self._rows()["key"] == np.void(key))
            slot = int(slots[0]) if len(slots) else None
            row = None if slot is None else self._row_at(slot, key)
        if slot is None or row is None:
            self._where.pop(key, None)
            return None
        self._where[key] = slot
        return slot, row

    def _row_at(self, slot: int, key: bytes) -> NDArray[Any] | None:
        content = os.pread(self._table, self._row.itemsize, self._offset(slot))
        if len(content) < self._row.itemsize or content[:KEY] != key:
            return None
        row = np.frombuffer(content, self._row)[0]
        return row if row["sum"] == self._sum_of(content) else None

    def _sum_of(self, row: bytes) -> int:
        return zlib.crc32(row[: self._row.fields["sum"][1]])  # type: ignore[index]

    def _offset(self, slot: int) -> int:
        return HEAD + slot * self._row.itemsize

    def read(self, key: bytes, start: int, stop: int) -> bytes | None:
        if (there := self._find(key)) is None:
            return None
        slot, row = there
        stop = min(stop, int(row["size"]))
        first, last = start // PIECE, -(-stop // PIECE)
        end = min(last * PIECE, int(row["size"]))
        content = os.pread(self._data, end - first * PIECE, slot * self.block + first * PIECE)
        pieces = memoryview(content)
        for number in range(first, last):
            piece = pieces[(number - first) * PIECE : (number - first + 1) * PIECE]
            if zlib.crc32(piece) != row["sums"][number]:
                self.discard(key)
                return None
        self._use(slot)
        return content[start - first * PIECE : stop - first * PIECE]

    def has(self, key: bytes) -> bool:
        if (there := self._find(key)) is None:
            return False
        self._use(there[0])
        return True

    def _use(self, slot: int) -> None:
        """It was used now. Without a lock: at worst another block of this slot seems younger than it is."""
        used = time.time_ns().to_bytes(8, "little")
        os.pwrite(self._table, used, self._offset(slot) + self._row.itemsize - len(used))

    def discard(self, key: bytes) -> None:
        with self._alone():
            if there := self._find(key):
                self._clear(there[0])
            self._where.pop(key, None)

    def _clear(self, slot: int) -> None:
        os.pwrite(self._table, bytes(self._row.itemsize), self._offset(slot))

    def write(self, key: bytes, content: bytes) -> None:
        row = np.zeros((), self._row)
        row["key"], row["size"] = np.void(key), len(content)
        sums = [zlib.crc32(content[start : start + PIECE]) for start in range(0, len(content), PIECE)]
        row["sums"][: len(sums)] = sums
        row["sum"] = self._sum_of(row.tobytes())
        with self._alone():
            if (slot := self._free(key)) is None:
                return
            self._clear(slot)
            _write_all(self._data, content, slot * self.block)
            row["used"] = time.time_ns()
            os.pwrite(self._table, row.tobytes(), self._offset(slot))
            self._where[key] = slot

    def _free(self, key: bytes) -> int | None:
        """The slot for a new block: one that is free, or that of the block that was used longest ago. None where there
        is no slot at all, or the block is there already."""
        rows = self._rows()
        if not len(rows):
            return None
        if len(same := np.flatnonzero(rows["key"] == np.void(key))):
            slot = int(same[0])
            return slot if self._row_at(slot, key) is None else None  # a damaged row is written anew
        free = np.flatnonzero(rows["key"] == np.void(bytes(KEY)))
        slots = -(-os.fstat(self._data).st_size // self.block)  # which the disk has room for already
        if len(free) and (free[0] < slots or shutil.disk_usage(self._folder).free > self.reserve + self.block):
            return int(free[0])
        there = rows["used"][:slots]
        return int(there.argmin()) if len(there) else None


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _write_all(file: int, content: bytes, offset: int) -> None:
    """All of it: a disk that becomes full may take a part."""
    rest = memoryview(content)
    while rest:
        count = os.pwrite(file, rest, offset)
        rest, offset = rest[count:], offset + count
