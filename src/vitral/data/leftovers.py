"""What the data directory holds that can be made again: packs, expanded archives, indices and blocks of shards."""

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

from filelock import FileLock, Timeout

from vitral.data.pack import DONE
from vitral.data.sources.shards import FOLDER as SHARDS
from vitral.data.stores import FOLDER as BLOCKS
from vitral.errors import DataError
from vitral.rounds import UNFINISHED

DAY = 24 * 3600.0  # seconds


@dataclass(frozen=True)
class Leftover:
    """Something that is made again when it is needed."""

    path: Path
    kind: str
    of: str  # the source of its pictures, where that is known
    bytes: int
    used_at: float  # when it was last written or opened

    @property
    def days(self) -> float:
        """Since it was last used."""
        return max(0.0, time.time() - self.used_at) / DAY


def leftovers(directory: Path) -> list[Leftover]:
    """All of them, largest first."""
    kinds = (
        ("packs/*", "pack"),
        ("expanded/*.tar", "expanded archive"),
        (f"{SHARDS}/*", "index of shards"),
        (BLOCKS, "blocks of far shards"),
        (f"{UNFINISHED}/*", "unfinished work"),
    )
    paths = ((path, kind) for pattern, kind in kinds for path in directory.glob(pattern) if path.suffix != ".lock")
    return sorted((_leftover(path, kind) for path, kind in paths), key=lambda one: -one.bytes)


def _leftover(path: Path, kind: str) -> Leftover:
    status = [one for file in (path, *path.rglob("*")) if (one := _status(file))]
    used_at = max((max(one.st_atime, one.st_mtime) for one in status if not S_ISDIR(one.st_mode)), default=time.time())
    return Leftover(path, kind, _source_of(path), sum(one.st_blocks * 512 for one in status), used_at)


def _status(path: Path) -> os.stat_result | None:
    """Of a file that is there: somebody may be removing it just now."""
    try:
        return path.stat()
    except OSError:
        return None


def _source_of(path: Path) -> str:
    try:
        source = json.loads((path / DONE).read_text(encoding="utf-8")).get("source", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return source if isinstance(source, str) else ""


def remove(one: Leftover) -> bool:
    """Remove it, unless somebody is writing it just now. Who reads it keeps what is open."""
    lock = FileLock(one.path.with_suffix(".lock"), timeout=0)
    try:
        with lock:
            if one.path.is_dir():
                shutil.rmtree(one.path)
            else:
                one.path.unlink(missing_ok=True)
    except Timeout:
        return False
    except OSError as error:
        raise DataError(f"{one.path} cannot be removed ({error.strerror}).") from None
    Path(lock.lock_file).unlink(missing_ok=True)
    return True
