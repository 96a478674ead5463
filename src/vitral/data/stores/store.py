"""What a store is: a place where shards lie, near or far."""

import zlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from vitral.errors import DataError

CHUNK = 1 << 20  # bytes


class Shard(Protocol):
    """A file of a store, as an index knows it."""

    @property
    def name(self) -> str:
        """Relative to the store, its parts parted by `/`."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def sha256(self) -> str:
        """Of all its bytes: what its blocks are known by in the cache, wherever it lies."""


Range = tuple[Shard, int, int]  # a shard, the first byte, how many


class Found(NamedTuple):
    """What a store says of a file."""

    size: int  # bytes
    version: str  # an ETag, or a date: another one when its bytes may have changed; "" where it does not say


class Expected(Protocol):
    """What will be read, and is being fetched. To be used in a `with`, or closed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def close(self) -> None:
        """Fetch no more."""

    def wait(self) -> None:
        """Until all is there."""


class Store(Protocol):
    """A place where shards lie. Threads may read at once. Whatever goes wrong is a DataError."""

    address: str  # for people: without a password or a signature
    is_near: bool  # on this machine: nothing is kept elsewhere, nothing is fetched ahead

    @property
    def room(self) -> int:
        """Bytes of shards that can be kept here; 0 where they are near."""

    def look(self, name: str) -> Found:
        """Ask about a file."""

    def read(self, shard: Shard, start: int, size: int, crc: int | None = None) -> bytes:
        """Exactly these bytes. With a crc (`zlib.crc32`) they are those that were meant: what is kept and wrong is
        thrown away and fetched once more."""

    def whole(self, name: str, most: int) -> bytes:
        """All of a file that has not more than so many bytes. It is not kept."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """All of a file, from its start to its end. It is not kept."""

    def names(self) -> list[str]:
        """The files that lie there, sorted."""

    def expect(self, ranges: Iterable[Range]) -> Expected:
        """This will be read, in this order: fetch it meanwhile. They are walked over as room comes free."""

    def close(self) -> None:
        """End what is fetched, close what is open."""


def check_name(address: str, name: str) -> None:
    """Refuse a name that leads out of its store: names come from an index, which may be anybody's.

    >>> check_name("https://example.org/set", "../secret")
    Traceback (most recent call last):
    vitral.errors.DataError: '../secret' is no name of a file in https://example.org/set: it lies somewhere else.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable():
        raise DataError(f"{name!r} is no name of a file in {address}: it lies somewhere else.")


def check_place(address: str, shard: Shard, start: int, size: int) -> None:
    """Refuse a part that its shard does not have."""
    if start < 0 or size < 0 or start + size > shard.size:
        raise DataError(
            f"{shard.name} of {address} has {shard.size:,} bytes, and not {size:,} from byte {start:,} on: its index "
            "is wrong."
        )


def check_crc(address: str, content: bytes, start: int, crc: int | None) -> None:
    """Refuse bytes that are not those that the index was made of."""
    if crc is not None and zlib.crc32(content) != crc:
        raise DataError(
            f"{address} has other bytes than its index was made of, {len(content):,} from byte {start:,} on: it was "
            "damaged or replaced. Bring it back, or make the index anew."
        )
