"""Files of a folder on this machine."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from vitral.data.stores.store import CHUNK, Expected, Found, Range, Shard, check_crc, check_name, check_place
from vitral.errors import DataError


class Near:
    """A folder. Files are opened for every read: a set may have more shards than a process may have open files."""

    is_near, room = True, 0

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, str(folder)

    def look(self, name: str) -> Found:
        try:
            status = os.stat(self._path(name))
        except OSError as error:
            raise self._unreadable(name, error) from None
        return Found(status.st_size, f"{status.st_size}-{status.st_mtime_ns}")

    def read(self, shard: Shard, start: int, size: int, crc: int | None = None) -> bytes:
        check_place(self.address, shard, start, size)
        try:
            with open(self._path(shard.name), "rb", buffering=0) as file:
                content = os.pread(file.fileno(), size, start)
        except OSError as error:
            raise self._unreadable(shard.name, error) from None
        if len(content) < size:
            raise DataError(
                f"{self._path(shard.name)} is cut off: it ends before byte {start + size:,}, and its index says that "
                f"it has {shard.size:,}."
            )
        check_crc(str(self._path(shard.name)), content, start, crc)
        return content

    def whole(self, name: str, most: int) -> bytes:
        try:
            with open(self._path(name), "rb") as file:
                content = file.read(most + 1)
        except OSError as error:
            raise self._unreadable(name, error) from None
        if len(content) > most:
            raise DataError(f"{self._path(name)} has more than {most:,} bytes: it is not read.")
        return content

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            with open(self._path(name), "rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise self._unreadable(name, error) from None

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())
        except OSError as error:
            raise DataError(f"The folder {self.folder} cannot be entered ({error.strerror}).") from None

    def expect(self, ranges: Iterable[Range]) -> Expected:
        return _Nothing()

    def close(self) -> None:
        pass

    def _path(self, name: str) -> Path:
        check_name(self.address, name)
        return self.folder / name

    def _unreadable(self, name: str, error: OSError) -> DataError:
        return DataError(f"{self.folder / name} cannot be read ({error.strerror or error}).")


class _Nothing:
    """What lies here is not fetched."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def close(self) -> None:
        pass

    def wait(self) -> None:
        pass
