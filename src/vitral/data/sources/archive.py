"""A zip or a tar of a folder, read where it lies: nothing is unpacked, so nothing can be written elsewhere."""

import bz2
import gzip
import lzma
import os
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO

from filelock import FileLock

from vitral.data.decode import MOST_BYTES
from vitral.data.sources.layout import is_hidden
from vitral.errors import DataError

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MOST_GROWTH = 100  # pictures are compressed already: a tar that grows a hundredfold is a bomb

_OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}  # type: ignore[dict-item]
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)


@dataclass(frozen=True)
class Zip:
    """Pictures in a zip."""

    archive: Path
    paths: Sequence[str]
    members: dict[str, zipfile.ZipInfo] = field(repr=False)
    _file: zipfile.ZipFile = field(repr=False)

    def read(self, number: int) -> bytes:
        name = self.paths[number]
        try:
            with self._file.open(self.members[name]) as file:  # ZipFile lets threads take turns at its file
                return _all_of(file, name)
        except (*_DAMAGE, NotImplementedError) as error:
            raise DataError(f"{name} cannot be read from {self.archive.name} ({error}).") from None

    def only(self, paths: Sequence[str]) -> "Zip":
        """The same with some of its files."""
        return replace(self, paths=paths)

    def stamp(self, number: int) -> str:
        found = self.members[self.paths[number]]
        return f"{found.file_size} {found.CRC}"


@dataclass(frozen=True)
class Tar:
    """Pictures in a tar that is not compressed."""

    archive: Path
    paths: Sequence[str]
    places: dict[str, tuple[int, int]]  # offset and size of each
    changed: int  # when the archive was
    _local: threading.local = field(default_factory=threading.local, repr=False)  # a file a thread: each has its place

    def read(self, number: int) -> bytes:
        start, size = self.places[self.paths[number]]
        if size > MOST_BYTES:
            raise DataError(f"{self.paths[number]} has more than {MOST_BYTES // 2**20} MiB: too much for one picture.")
        if not hasattr(self._local, "file"):
            self._local.file = self.archive.open("rb")
        self._local.file.seek(start)
        content: bytes = self._local.file.read(size)
        if len(content) < size:
            raise DataError(f"{self.paths[number]} is cut off: {self.archive.name} ends too early.")
        return content

    def only(self, paths: Sequence[str]) -> "Tar":
        """The same with some of its files."""
        return replace(self, paths=paths)

    def stamp(self, number: int) -> str:
        return f"{self.places[self.paths[number]]} {self.changed}"


def open_archive(archive: Path, cache: Path) -> tuple[list[str], Zip | Tar]:
    """Its files, and where they are. A compressed tar is expanded once, into the cache."""
    try:
        if archive.name.lower().endswith(".zip"):
            return _open_zip(archive)
        return _open_tar(archive, cache)
    except _DAMAGE as error:
        raise DataError(f"{archive} is damaged, or not the archive that its name says ({error}).") from None


def _open_zip(archive: Path) -> tuple[list[str], Zip]:
    file = zipfile.ZipFile(archive)
    # Some Windows programs write backslashes.
    members = {info.filename.replace("\\", "/"): info for info in file.infolist() if not info.is_dir()}
    found = sorted(path for path in members if _is_inside(path))
    return found, Zip(archive, found, members, file)


def _open_tar(archive: Path, cache: Path) -> tuple[list[str], Tar]:
    plain = _expanded(archive, cache)
    places: dict[str, tuple[int, int]] = {}
    with tarfile.open(plain, "r:") as file:
        for member in file:
            if member.isfile() and _is_inside(member.name):  # no links, no devices
                places[member.name.removeprefix("./")] = (member.offset_data, member.size)
            file.members = []  # type: ignore[attr-defined]  # else it keeps every header in memory
    found = sorted(places)
    return found, Tar(plain, found, places, archive.stat().st_mtime_ns)


def _is_inside(name: str) -> bool:
    """Hidden files are left out, and so is what pretends to lie elsewhere: `/etc/x.png`, `../x.png`."""
    parts = PurePosixPath(name).parts
    return not name.startswith("/") and not any(part == ".." or is_hidden(part) for part in parts)


def _expanded(archive: Path, cache: Path) -> Path:
    """The tar without its compression, because pictures are asked for in any order."""
    with archive.open("rb") as file:
        start = file.read(6)
    magic = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}
    kind = next((kind for sign, kind in magic.items() if start.startswith(sign)), "")
    if not kind:
        return archive
    found = archive.stat()
    key = f"{zlib.crc32(str(archive.resolve()).encode()):08x}-{found.st_size}-{found.st_mtime_ns}"
    plain = cache / "expanded" / f"{key}.tar"
    plain.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(plain.with_suffix(".lock")):
        if not plain.exists():
            part = plain.with_suffix(".part")
            try:
                with _OPENERS[kind](archive) as compressed, part.open("wb") as file:
                    _copy(compressed, file, most=MOST_GROWTH * found.st_size + 2**20, archive=archive)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(plain)
            finally:
                part.unlink(missing_ok=True)
    return plain


def _copy(source: IO[bytes], target: IO[bytes], *, most: int, archive: Path) -> None:
    written = 0
    while block := source.read(2**20):
        written += len(block)
        if written > most:
            raise DataError(f"{archive} grows to more than {MOST_GROWTH} times its size: it is not expanded further.")
        target.write(block)


def _all_of(file: IO[bytes], name: str) -> bytes:
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DataError(f"{name} has more than {MOST_BYTES // 2**20} MiB, which is too much for one picture.")
    return content
