"""A folder of pictures."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitral.data.decode import read_file
from vitral.data.sources.layout import is_hidden
from vitral.errors import DataError


@dataclass(frozen=True)
class Files:
    """Pictures in files; the paths are relative to a folder."""

    folder: Path
    paths: Sequence[str]

    def read(self, number: int) -> bytes:
        path = self.folder / self.paths[number]
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise DataError(f"{self.paths[number]} is not a file.")
        return read_file(path, self.paths[number])

    def stamp(self, number: int) -> str:
        try:
            found = (self.folder / self.paths[number]).stat()
            return f"{found.st_size} {found.st_mtime_ns}"
        except (OSError, ValueError):
            return "unreadable"


def files_below(folder: Path) -> tuple[list[str], list[str]]:
    """Every file below, as a relative path with `/`, sorted; and notes on what could not be entered.

    Links are followed. A link to a folder that one is already in is a loop, and is not.
    """
    found: list[str] = []
    notes: list[str] = []

    def enter(path: str, relative: str, above: frozenset[tuple[int, int]]) -> None:
        try:
            with os.scandir(path) as entries:
                inside = sorted((entry for entry in entries if not is_hidden(entry.name)), key=lambda entry: entry.name)
        except OSError as error:
            notes.append(f"The folder {relative} could not be entered ({error.strerror}).")
            return
        for entry in inside:
            try:
                is_folder = entry.is_dir()
                identity = entry.stat() if is_folder else None
            except OSError:  # a link that leads in circles: it is named when it is read
                is_folder, identity = False, None
            if identity is None:
                found.append(relative + entry.name)
            elif (key := (identity.st_dev, identity.st_ino)) in above:
                notes.append(f"The link {relative}{entry.name} leads back to a folder above it, and was not followed.")
            else:
                enter(entry.path, f"{relative}{entry.name}/", above | {key})

    root = folder.stat()
    enter(str(folder), "", frozenset({(root.st_dev, root.st_ino)}))
    return found, notes
