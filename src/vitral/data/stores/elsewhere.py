"""Files in the stores that fsspec knows: s3://, gs://, az://, memory:// and others. An extra: `stores`."""

from collections.abc import Iterator
from typing import Any

from vitral.data.stores.http import shown
from vitral.data.stores.patience import Broken
from vitral.errors import DataError

VERSIONS = ("ETag", "etag", "LastModified", "updated", "last_modified", "mtime", "created")  # each store has its own
NEEDS_FSSPEC = "needs the extra: pip install 'vitral[stores]'"


class Bucket:
    """A folder of a store that fsspec knows."""

    def __init__(self, address: str) -> None:
        self.address = shown(address)
        self._system, self._path = _open_system(address)

    def open(self, name: str, size: int | None) -> "BucketFile":
        return BucketFile(self._system, f"{self._path.rstrip('/')}/{name}", f"{self.address.rstrip('/')}/{name}", size)

    def names(self) -> list[str]:
        try:
            there = self._system.ls(self._path, detail=True)
        except Exception as error:  # of any kind: each store has its own
            raise DataError(f"{self.address} cannot be listed ({type(error).__name__}: {error}).") from None
        return [str(entry["name"]).rpartition("/")[2] for entry in there if entry.get("type") == "file"]

    def close(self) -> None:
        pass


class BucketFile:
    """One file in a store."""

    def __init__(self, system: Any, path: str, address: str, size: int | None = None) -> None:
        self.address, self.version = address, ""
        self._system, self._path, self._expected = system, path, size
        self._is_checked = False

    def size(self) -> int:
        """Bytes, as the store says; one try."""
        facts = self._call(self._system.info, self._path)
        size = facts.get("size")
        self.version = str(next((facts[key] for key in VERSIONS if facts.get(key)), ""))
        if not isinstance(size, int):
            raise DataError(f"{self.address} does not say how long it is: it cannot be read in parts.")
        if self._expected not in (None, size):
            raise DataError(
                f"{self.address} has {size:,} bytes, and {self._expected:,} were expected: it has changed since its "
                "index was made."
            )
        self._is_checked = True
        return size

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from start to stop, in one try: they may end early."""
        if not self._is_checked:
            self.size()
        yield bytes(self._call(self._system.cat_file, self._path, start=start, end=stop)[: stop - start])

    def _call(self, function: Any, *args: Any, **options: Any) -> Any:
        """Stores have errors of their own kinds: what says that the file is not there, or not for us, is told; the rest
        is worth another try."""
        try:
            return function(*args, **options)
        except FileNotFoundError:
            raise DataError(f"{self.address} is not there: it has moved, or is gone.") from None
        except PermissionError as error:
            raise DataError(f"{self.address} is refused by the store ({error}).") from None
        except Exception as error:
            raise Broken(f"The store fails ({type(error).__name__}: {error}).") from None


def _open_system(address: str) -> tuple[Any, str]:
    if "::" in address:  # fsspec's chains would unpack, or keep, what they read in places of their own
        raise DataError(f"{shown(address)} is a chain of stores. Give the address in one store.")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise DataError(f"{shown(address)} {NEEDS_FSSPEC}.") from None
    try:
        system, path = url_to_fs(address)
    except ImportError as error:  # of the package for this store; fsspec says which
        raise DataError(f"{shown(address)} needs a package more: {error}.") from None
    except Exception as error:
        raise DataError(f"{shown(address)} cannot be opened ({error}).") from None
    return system, str(path)
