"""A folder of pictures."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitral.data.decode import ENDINGS, read_file
from vitral.data.sources.layout import display_name, few, is_hidden
from vitral.errors import DataError


@dataclass(frozen=True)
class Files:
    """Pictures in files; the paths are relative to a folder."""

    folder: Path
    paths: Sequence[str]

    def read(self, number: int) -> bytes:
        return read_file(self.folder / self.paths[number], display_name(self.paths[number]))

    def stamp(self, number: int) -> str:
        try:
            return stamp_of((self.folder / self.paths[number]).stat())
        except (OSError, ValueError):
            return "unreadable"

    def size(self, number: int) -> int:
        try:
            return os.stat(self.folder / self.paths[number]).st_size
        except (OSError, ValueError):
            return -1


def stamp_of(status: os.stat_result) -> str:
    """Changes with the file. Times can be set and sizes be equal: what the system itself keeps cannot be."""
    return " ".join(map(str, (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)))


def files_below(folder: Path) -> tuple[list[str], list[str]]:
    """Every file below, as a relative path with `/`, sorted; and notes on folders that gave nothing.

    Links are followed. A link to a folder that one is already in is a loop, and is not.
    """
    files: list[str] = []
    empty: list[str] = []
    notes: list[str] = []
    root = folder.stat()
    waiting = [(str(folder), "", frozenset({(root.st_dev, root.st_ino)}))]  # a path, its name, the folders above it
    while waiting:
        path, relative, above = waiting.pop()
        try:
            with os.scandir(path) as entries:
                inside = [entry for entry in entries if not is_hidden(entry.name)]
        except OSError as error:
            if not relative:
                raise DataError(f"The folder {folder} cannot be entered ({error.strerror}).") from None
            notes.append(f"The folder {display_name(relative)} could not be entered ({error.strerror}).")
            continue
        if not inside:
            empty.append(relative)
        for entry in inside:
            name = relative + entry.name
            identity = _folder_identity(entry)
            if identity is None:
                files.append(name)
            elif identity in above:
                notes.append(f"The link {display_name(name)} leads back to a folder above it, and was not followed.")
            else:
                waiting.append((entry.path, f"{name}/", above | {identity}))
    if empty and files:
        notes.append(f"Nothing is in {few(sorted(empty))}.")
    return sorted(files), sorted(notes)


def picture_files(path: Path) -> list[Path]:
    """The picture itself, or all pictures below a folder, sorted, hidden ones left out."""
    if not path.is_dir():
        return [path]
    below = (file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    pictures = sorted(file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts))
    if not pictures:
        raise DataError(f"There is no picture in {path}. Vitral reads {', '.join(ENDINGS)}.")
    return pictures


def _folder_identity(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    try:
        if not entry.is_dir():
            return None
        status = entry.stat()
    except OSError:  # a link that leads in circles: it is named when it is read
        return None
    return status.st_dev, status.st_ino
