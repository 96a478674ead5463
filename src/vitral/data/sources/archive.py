"""A zip or a tar of a folder, read where it lies: nothing is unpacked, so nothing can be written elsewhere."""

import bz2
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar

from filelock import FileLock

from vitral.data.decode import MOST_BYTES
from vitral.data.sources.folder import stamp_of
from vitral.data.sources.layout import display_name, few, is_hidden
from vitral.errors import DataError

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MOST_GROWTH = 100  # pictures are compressed already: what grows a hundredfold is a bomb
LEAST_BOMB = 2**26  # bytes: what is smaller may grow, as a white sheet in a BMP does

_OPENERS: dict[str, Callable[[Path], IO[bytes]]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}  # type: ignore[dict-item]
_DAMAGE = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError),
    *(ValueError, struct.error),  # from headers that are none
)

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Zip:
    """Pictures in a zip."""

    archive: Path
    paths: Sequence[str]
    members: dict[str, zipfile.ZipInfo] = field(repr=False)
    _file: zipfile.ZipFile = field(repr=False)

    def read(self, number: int) -> bytes:
        name, member = display_name(self.paths[number]), self.members[self.paths[number]]
        if member.flag_bits & 1:
            raise DataError(f"{name} is encrypted in {self.archive.name}.")
        if member.file_size > MOST_GROWTH * member.compress_size + LEAST_BOMB:
            raise DataError(
                f"{name} would grow from {member.compress_size:,} to {member.file_size:,} bytes, and no picture does "
                "that: it is not expanded."
            )
        try:
            with self._file.open(member) as file:  # ZipFile lets threads take turns at its file
                return _all_of(file, name)
        except (*_DAMAGE, NotImplementedError) as error:
            raise DataError(f"{name} cannot be read from {self.archive.name} ({error}).") from None

    def only(self, root: str, paths: Sequence[str]) -> "Zip":
        """Only these files, by their paths below a root."""
        return replace(self, paths=paths, members={path: self.members[root + path] for path in paths})

    def stamp(self, number: int) -> str:
        member = self.members[self.paths[number]]
        return f"{member.file_size} {member.CRC}"

    def size(self, number: int) -> int:
        return self.members[self.paths[number]].file_size


@dataclass(frozen=True)
class Tar:
    """Pictures in a tar that is not compressed."""

    archive: Path
    paths: Sequence[str]
    places: dict[str, tuple[int, int]]  # offset and size of each
    changed: str  # the stamp of the archive

    def read(self, number: int) -> bytes:
        name, (start, size) = display_name(self.paths[number]), self.places[self.paths[number]]
        if size > MOST_BYTES:
            raise DataError(f"{name} has more than {MOST_BYTES // 2**20} MiB, which is too much for one picture.")
        try:
            with self.archive.open("rb") as file:  # anew, so that each thread has its own place in it
                file.seek(start)
                content = file.read(size)
        except OSError as error:
            raise DataError(f"{name} cannot be read from {self.archive.name} ({error.strerror}).") from None
        if len(content) < size:
            raise DataError(f"{name} is cut off: {self.archive.name} ends too early.")
        return content

    def only(self, root: str, paths: Sequence[str]) -> "Tar":
        """Only these files, by their paths below a root."""
        return replace(self, paths=paths, places={path: self.places[root + path] for path in paths})

    def stamp(self, number: int) -> str:
        return f"{self.places[self.paths[number]]} {self.changed}"

    def size(self, number: int) -> int:
        return self.places[self.paths[number]][1]


def open_archive(archive: Path, cache: Path) -> tuple[Zip | Tar, list[str]]:
    """The files of an archive, and notes. A compressed tar is expanded once, into the cache."""
    try:
        if archive.name.lower().endswith(".zip"):
            return _open_zip(archive)
        return _open_tar(archive, cache)
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            message = f"{archive} cannot be read, or not be expanded into {cache} ({error.strerror})."
            raise DataError(message) from None
        raise DataError(f"{archive} is damaged, or not the archive that its name says ({error}).") from None


def _open_zip(archive: Path) -> tuple[Zip, list[str]]:
    file = zipfile.ZipFile(archive)
    # Some Windows programs write backslashes.
    entries = ((info.filename.replace("\\", "/"), info) for info in file.infolist())
    members, notes = _inside(
        (name, info, not stat.S_ISLNK(info.external_attr >> 16)) for name, info in entries if not name.endswith("/")
    )
    return Zip(archive, sorted(members), members, file), notes


def _open_tar(archive: Path, cache: Path) -> tuple[Tar, list[str]]:
    plain = _expand(archive, cache)
    with tarfile.open(plain, "r:") as file:
        places, notes = _inside(_members(file))
    return Tar(plain, sorted(places), places, stamp_of(archive.stat())), notes


def _members(file: tarfile.TarFile) -> Iterator[tuple[str, tuple[int, int], bool]]:
    """The name and place of each, and whether it is a file: no link, no device."""
    for member in file:
        if not member.isdir():
            yield member.name, (member.offset_data, member.size), member.isfile() and not member.issparse()
        file.members = []  # type: ignore[attr-defined]  # else it keeps every header in memory
    assert file.fileobj is not None  # it is open
    file.fileobj.seek(file.offset)
    if file.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise EOFError("its end is missing")  # tarfile takes a broken header for the end: the rest would be missed


def _inside(entries: Iterable[tuple[str, Entry, bool]]) -> tuple[dict[str, Entry], list[str]]:
    """Files by their path. Hidden ones are left out; links and what claims to lie elsewhere too, with a note."""
    files: dict[str, Entry] = {}
    outside, links = [], []
    for name, entry, is_file in entries:
        parts = PurePosixPath(name).parts  # of ./a//b.png these are a and b.png
        if name.startswith("/") or ".." in parts:
            outside.append(name)
        elif parts and not any(map(is_hidden, parts)):
            if is_file:
                files["/".join(parts)] = entry
            else:
                links.append(name)
    notes = []
    if outside:
        notes.append(f"What claims to lie outside of the archive is passed over: {few(sorted(outside))}.")
    if links:
        notes.append(f"Links and devices in an archive are passed over: {few(sorted(links))}.")
    return files, notes


def _expand(archive: Path, cache: Path) -> Path:
    """The tar without its compression, because pictures are read in any order."""
    with archive.open("rb") as file:
        start = file.read(6)
    magic = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}
    kind = next((kind for sign, kind in magic.items() if start.startswith(sign)), "")
    if not kind:
        return archive
    status = archive.stat()
    key = f"{zlib.crc32(os.fsencode(archive.resolve())):08x}-{status.st_size}-{status.st_mtime_ns}"
    plain = cache / "expanded" / f"{key}.tar"
    plain.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(plain.with_suffix(".lock")):
        if not plain.exists():
            part = plain.with_suffix(".part")
            try:
                with _OPENERS[kind](archive) as compressed, part.open("wb") as file:
                    _copy(compressed, file, most=MOST_GROWTH * status.st_size + 2**20, archive=archive)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(plain)
            finally:
                part.unlink(missing_ok=True)
    return plain


def _copy(source: IO[bytes], target: IO[bytes], *, most: int, archive: Path) -> None:
    size = 0
    while block := source.read(2**20):
        size += len(block)
        if size > most:
            raise DataError(f"{archive} grows to more than {MOST_GROWTH} times its size: it is not expanded further.")
        target.write(block)


def _all_of(file: IO[bytes], name: str) -> bytes:
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DataError(f"{name} has more than {MOST_BYTES // 2**20} MiB, which is too much for one picture.")
    return content
