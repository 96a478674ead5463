"""Blocks of far files: from the cache, or fetched once for all who want them, or fetched before anybody does."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from vitral.data.stores.blocks import BLOCK, IN_MEMORY, KEY, Blocks, DiskBlocks, MemoryBlocks
from vitral.data.stores.patience import Tell, silent
from vitral.errors import DataError

THREADS = 8  # that fetch ahead: from 50 ms away they bring 8 MiB in the time of one answer


class FarFile(Protocol):
    """A file of which blocks are kept."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def identity(self) -> str:
        """The same for the same bytes, for ever: best their sha256."""

    def read(self, start: int, stop: int) -> bytes:
        """From far; a DataError where they cannot be had."""


class Block(NamedTuple):
    """A block of a file."""

    file: FarFile
    number: int
    length: int  # bytes of a block; the last one of a file may be shorter

    @property
    def key(self) -> bytes:
        """What it is called in the cache, wherever the file lies."""
        return blake2b(f"{self.file.identity} {self.length} {self.number}".encode(), digest_size=KEY).digest()

    def fetch(self) -> bytes:
        start = self.number * self.length
        return self.file.read(start, min(start + self.length, self.file.size))


class Cache:
    """Blocks in a folder that never grows above `most` bytes, shared by threads and processes, and the threads that
    fetch them ahead. With 0 bytes, or where nothing can be written, a few blocks stay in memory."""

    def __init__(
        self, folder: Path, most: int, *, tell: Tell = silent, threads: int = THREADS, block: int = BLOCK
    ) -> None:
        self.folder, self.block, self.threads, self.tell = folder, block, threads, tell
        self.blocks: Blocks = MemoryBlocks()
        self._is_without = most == 0
        self._flying: dict[bytes, Future[bytes]] = {}
        self._unread: set[bytes] = set()  # fetched ahead, and wanted by nobody yet
        self._changed = threading.Condition()  # of these two
        self._expectations: set[Expectation] = set()
        if most > 0:
            try:
                self.blocks = DiskBlocks(folder, most, block=block)
            except OSError as error:
                self._do_without(error)

    def close(self) -> None:
        """End what is fetched ahead. What lies on the disk stays."""
        with self._changed:
            expectations = list(self._expectations)
        for expectation in expectations:
            expectation.close()

    def read(self, block: Block, start: int, stop: int) -> bytes:
        """Bytes of a block, from start to stop."""
        key = block.key
        if self._expectations:
            with self._changed:
                for expectation in self._expectations:
                    expectation.passed.add(key)
                if key in self._unread:
                    self._unread.remove(key)
                    self._changed.notify_all()
        if (content := self._read(key, start, stop)) is not None:
            return content
        return self.fetch(block, key)[start:stop]

    def expect(self, blocks: Iterable[Block]) -> "Expectation":
        """These blocks will be wanted in this order: some threads fetch what is not there."""
        expectation = Expectation(self, iter(blocks), self.threads)
        with self._changed:
            self._expectations.add(expectation)
        expectation.begin()
        return expectation

    def discard(self, block: Block) -> None:
        """What is kept of this block is wrong."""
        try:
            self.blocks.discard(block.key)
        except OSError as error:
            self._do_without(error)

    def make_room(self, key: bytes, expectation: "Expectation") -> bool:
        """Wait until a block can be fetched ahead: half of the cache is for what nobody has read. False: it is here."""
        if self._has(key):
            return False
        with self._changed:
            self._changed.wait_for(lambda: expectation.closed or len(self._unread) < max(1, self.blocks.room // 2))
            if expectation.closed or key in expectation.passed:
                return False
            self._unread.add(key)
            expectation.fetched.add(key)
        return True

    def forget(self, expectation: "Expectation") -> None:
        """Nobody waits for its blocks any more."""
        with self._changed:
            self._unread -= expectation.fetched
            self._expectations.discard(expectation)
            self._changed.notify_all()

    def fetch(self, block: Block, key: bytes) -> bytes:
        """All of a block. Of several threads that want it, one brings it and the others wait."""
        with self._changed:
            future = self._flying.get(key)
            if is_mine := future is None:
                future = self._flying[key] = Future()
        if not is_mine:
            return future.result()
        try:
            content = block.fetch()
            self._keep(key, content)
            future.set_result(content)
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._changed:
                del self._flying[key]
        return content

    # A disk may be full, read-only, or gone: then it goes on without.

    def _read(self, key: bytes, start: int, stop: int) -> bytes | None:
        try:
            return self.blocks.read(key, start, stop)
        except OSError as error:
            self._do_without(error)
            return None

    def _has(self, key: bytes) -> bool:
        try:
            return self.blocks.has(key)
        except OSError as error:
            self._do_without(error)
            return False

    def _keep(self, key: bytes, content: bytes) -> None:
        try:
            self.blocks.write(key, content)
        except OSError as error:
            self._do_without(error)

    def _do_without(self, error: OSError) -> None:
        """Keep the next blocks in memory."""
        with self._changed:
            was_without, self._is_without = self._is_without, True
            if was_without:
                return
            self.blocks = MemoryBlocks()
        self.tell(
            f"Blocks of far pictures cannot be kept in {self.folder} ({error.strerror or error}): it goes on with "
            f"{IN_MEMORY * self.block // 2**20} MiB in memory, and fetches again what does not fit. Make room, or "
            "choose another place with data.directory=… or VITRAL_DATA."
        )


class Expectation:
    """Blocks that will be wanted, fetched by some threads, which end with the last block or when it is closed."""

    def __init__(self, cache: Cache, blocks: Iterator[Block], threads: int) -> None:
        self.closed = False
        self.fetched, self.passed = set[bytes](), set[bytes]()  # for it; by those who read, since it began
        self._cache, self._blocks, self._lock = cache, blocks, threading.Lock()
        self._threads = [threading.Thread(target=self._work, name="vitral-ahead", daemon=True) for _ in range(threads)]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fetch no more. A block that is on its way still arrives."""
        self.closed = True
        self._cache.forget(self)

    def wait(self) -> None:
        """Until all threads have ended."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self.closed:
            with suppress(DataError):  # whoever reads it is told
                with self._lock:  # one after the other: what is wanted first comes first
                    block = next(self._blocks, None)
                    if block is None:
                        return
                    key = block.key
                    is_wanted = self._cache.make_room(key, self)
                if is_wanted:
                    self._cache.fetch(block, key)
