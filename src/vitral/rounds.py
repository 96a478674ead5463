"""Long work on many pictures, round by round: each process has a share of every round, and what is done is kept.

A round is one stretch of rows for each process, in the order of the rows, and then all know what all of them found: the
answer is that of one process, whatever their number. What was found is kept in a folder as the work goes on, so that
the same work, begun again after an interruption, goes on from there.
"""

import hashlib
import io
import json
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.files import write_whole
from vitral.processes import Processes
from vitral.progress import Progress, Tell, silent
from vitral.version import __version__

Rows = Mapping[str, NDArray[Any]]  # arrays by name, in each of them a row for a picture

UNFINISHED = "unfinished"  # the folder in the data directory
EVERY = 10.0  # seconds of work that an interruption may cost


@dataclass(frozen=True)
class Rounds:
    """Who does the work, who hears how far it is, and where it is kept (None: nowhere).

    >>> halves = Rounds().of(4, 3, lambda rows: {"half": np.array(rows) / 2})
    >>> joined(halves)["half"].tolist()
    [0.0, 0.5, 1.0, 1.5]
    """

    processes: Processes = field(default_factory=Processes)
    tell: Tell = silent
    folder: Path | None = None

    def of(
        self,
        count: int,
        each: int,
        work: Callable[[range], Rows],
        doing: str = "",
        done: int = 0,
        always: bool = False,
    ) -> Iterator[Rows]:
        """The rows from `done` to `count`, in order: `work` gives those of at most `each` numbers. In the last round
        some processes may have none; `always`: they are called all the same, with none."""
        if before := joined(self._read()):
            done = _length(before)
        self.tell(Progress(done, count, doing))
        if before:
            yield before
        writer = _Writer(self.folder if self.processes.first else None, done)
        try:
            while done < count:
                start = min(done + each * self.processes.rank, count)
                mine = work(range(start, min(start + each, count))) if start < count or always else {}
                rows = self._of_all(mine) if self.processes.many else mine
                writer.add(rows)
                done += _length(rows)
                self.tell(Progress(done, count, doing))
                yield rows
        finally:
            writer.write()

    def forget(self) -> None:
        """Remove what was kept: the work has come to its end, and what it was for is written."""
        if self.folder and self.processes.first:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _of_all(self, mine: Rows) -> Rows:
        return joined(_unpacked(part) for part in self.processes.exchange(_packed(mine)) if part)

    def _read(self) -> Iterator[Rows]:
        """What an interruption has left, as the first process has it."""
        if self.folder is None:
            return
        left = _left(self.folder) if self.processes.first else []
        for _ in range(self.processes.tell(len(left))):
            yield _unpacked(self.processes.exchange(left.pop(0) if left else b"")[0])


ALONE = Rounds()


def place_of(directory: Path, *what: object) -> Path:
    """The folder in which this work is kept: of other versions, and of anything else that it depends on, another."""
    import torch

    words = json.dumps([__version__, torch.__version__, *map(str, what)])
    return directory / UNFINISHED / hashlib.sha256(words.encode()).hexdigest()[:16]


def joined(parts: Iterable[Rows]) -> Rows:
    """Rows one below the other."""
    every = list(parts)
    return {name: np.concatenate([part[name] for part in every]) for name in every[0]} if every else {}


class _Writer:
    """Writes rows into files named by their first row, one file every few seconds."""

    def __init__(self, folder: Path | None, start: int) -> None:
        self.folder, self.start = folder, start
        self.parts: list[Rows] = []
        self.wrote_at = time.monotonic()

    def add(self, rows: Rows) -> None:
        if self.folder is None:
            return
        self.parts.append(rows)
        if time.monotonic() - self.wrote_at > EVERY:
            self.write()

    def write(self) -> None:
        if self.folder is None or not self.parts:
            return
        rows = joined(self.parts)
        with suppress(OSError):  # a full disk: the work goes on, and an interruption costs more
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / f"{self.start:012}.npz", _packed(rows))
        self.parts, self.start, self.wrote_at = [], self.start + _length(rows), time.monotonic()


def _left(folder: Path) -> list[bytes]:
    """The files of a folder from the first row on, as far as none is missing or damaged."""
    done, left = 0, []
    while (path := folder / f"{done:012}.npz").exists():
        try:
            content = path.read_bytes()
            done += _length(_unpacked(content))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            break
        left.append(content)
    return left


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _packed(rows: Rows) -> bytes:
    if not rows:
        return b""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **dict(rows))
    return content.getvalue()


def _unpacked(content: bytes) -> Rows:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)
