"""Files that lie elsewhere, read in blocks that are kept; asked for again when an answer breaks off."""

import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

from vitral.data.stores.cache import Block, Cache, Expectation
from vitral.data.stores.patience import Broken, Retries
from vitral.data.stores.store import Found, Range, Shard, check_crc, check_name, check_place
from vitral.errors import DataError


class OneTry(Protocol):
    """A file of a store, asked once: `Broken` where it is worth another try."""

    address: str  # for people
    version: str  # of the newest answer

    def size(self) -> int:
        """Bytes."""

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from start to stop, as they come; they may end early."""


class Place(Protocol):
    """What is different about a web server and about a bucket."""

    address: str

    def open(self, name: str, size: int | None) -> OneTry:
        """A file by its name; one of another size than this is refused."""

    def names(self) -> list[str]:
        """The files that lie there."""

    def close(self) -> None:
        """Close connections."""


class Far:
    """A store that is reached through a network."""

    is_near = False

    def __init__(self, place: Place, cache: Cache, retries: Retries) -> None:
        self.address = place.address
        self._place, self._cache, self._retries = place, cache, retries
        self._files: dict[str, _File] = {}  # by sha256: what is known of where it lies, and its version
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        return self._cache.blocks.room * self._cache.block

    def look(self, name: str) -> Found:
        file = self._open(name)
        return Found(file.size, file.version)

    def read(self, shard: Shard, start: int, size: int, crc: int | None = None) -> bytes:
        check_place(self.address, shard, start, size)
        file = self._file(shard)
        content = self._read(file, start, size)
        try:
            check_crc(file.address, content, start, crc)
        except DataError:
            for block in self._blocks(file, start, size):
                self._cache.discard(block)
            content = self._read(file, start, size)
            check_crc(file.address, content, start, crc)
        return content

    def whole(self, name: str, most: int) -> bytes:
        file = self._open(name)
        if file.size > most:
            raise DataError(f"{file.address} has {file.size:,} bytes, more than {most:,}: it is not read.")
        return file.read(0, file.size)

    def chunks(self, name: str) -> Iterator[bytes]:
        file = self._open(name)
        try:
            yield from file.pieces(0, file.size)
        except _Changed:
            raise file.changes() from None

    def names(self) -> list[str]:
        return sorted(self._place.names())

    def expect(self, ranges: Iterable[Range]) -> Expectation:
        return self._cache.expect(self._distinct(ranges))

    def close(self) -> None:
        self._retries.close()
        self._place.close()
        self._cache.close()

    def _distinct(self, ranges: Iterable[Range]) -> Iterator[Block]:
        """The blocks of these ranges, each once."""
        passed = set()
        for shard, start, size in ranges:
            first, last = start // self._cache.block, (start + size - 1) // self._cache.block
            for number in range(first, last + 1):
                if (shard.sha256, number) not in passed:
                    passed.add((shard.sha256, number))
                    yield Block(self._file(shard), number, self._cache.block)

    def _read(self, file: "_File", start: int, size: int) -> bytes:
        parts = []
        for block in self._blocks(file, start, size):
            before = block.number * block.length
            parts.append(self._cache.read(block, max(0, start - before), min(block.length, start + size - before)))
        return b"".join(parts)

    def _blocks(self, file: "_File", start: int, size: int) -> list[Block]:
        block = self._cache.block
        return [Block(file, number, block) for number in range(start // block, -(-(start + size) // block))]

    def _file(self, shard: Shard) -> "_File":
        with self._lock:
            if shard.sha256 not in self._files:
                self._files[shard.sha256] = self._open(shard.name, shard.size, shard.sha256)
            return self._files[shard.sha256]

    def _open(self, name: str, size: int | None = None, sha256: str = "") -> "_File":
        check_name(self.address, name)
        return _File(self._place.open(name, size), self._retries, size, sha256)


class _Changed(Exception):
    """What comes now is of another version than what came before."""


class _File:
    """A far file, asked for again when an answer breaks off: from where it broke off."""

    def __init__(self, once: OneTry, retries: Retries, size: int | None, identity: str) -> None:
        self.address, self.identity = once.address, identity
        self._once, self._retries, self._size = once, retries, size

    @property
    def size(self) -> int:
        if self._size is None:
            tries = self._retries.of(self.address, 0)
            while self._size is None:
                try:
                    self._size = self._once.size()
                except Broken as broken:
                    tries.fail(broken)
        return self._size

    @property
    def version(self) -> str:
        return self._once.version

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """All bytes from start to stop, as they come, of one version."""
        tries, here, version = self._retries.of(self.address, start), start, None
        while here < stop:
            try:
                for piece in self._once.pieces(here, stop):
                    if version not in (None, self._once.version):
                        raise _Changed
                    version = self._once.version
                    here += len(piece)
                    tries.succeed()
                    yield piece
                if here < stop:
                    raise Broken(f"The answer ended after {here - start:,} of {stop - start:,} bytes.")
            except Broken as broken:
                tries.fail(broken)

    def read(self, start: int, stop: int) -> bytes:
        """All bytes from start to stop, of one version: begun anew where the file was replaced meanwhile."""
        for _ in range(3):
            try:
                return b"".join(self.pieces(start, stop))
            except _Changed:
                continue
        raise self.changes()

    def changes(self) -> DataError:
        return DataError(f"{self.address} changes while it is read. Wait until it is whole there, and begin anew.")
