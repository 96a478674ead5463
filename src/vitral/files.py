"""Files that are there whole or not at all; tables as CSV and JSON; and Python files of the user's, which are run."""

import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from traceback import extract_tb, walk_tb
from types import FrameType, ModuleType
from typing import Any

from vitral.errors import RecipeError, VitralError

MOST_JSON = 16 * 2**20  # characters that describe a model: the names of 20,000 classes are one million
OWN = "_vitral"  # the name of the module that a file of the user's own thinks it is


def write_whole(path: Path, content: bytes | str) -> None:
    """Write under another name, flush, rename: a reader sees the old file or the new one, even after a power cut."""
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The rename itself is only on the disk once the folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def as_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as text.

    >>> as_csv(("sample", "label"), [("a.png", "cat")])
    'sample,label\\na.png,cat\\n'
    """
    text, lines = io.StringIO(), [header, *rows]
    bare = any("\r" in str(cell) for line in lines for cell in line)  # Python 3.11 would not put it into quotes
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL).writerows(lines)
    return text.getvalue()


def path_of(source: Any, error: type[VitralError]) -> Path:
    """The path that a caller names, whether something is there or not; `error` where no system has such a path."""
    try:
        path = Path(source)
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (TypeError, ValueError, OSError) as problem:  # None; surrogates or a NUL in it; too long
        raise error(f"{source!r} is not a path ({getattr(problem, 'strerror', None) or problem}).") from None
    return path


def parse_table(text: str) -> dict[str, Any]:
    """A table in JSON from somebody else's file, or a ValueError: too much of it is not even tried.

    >>> parse_table('{"heads": 3}')
    {'heads': 3}
    """
    if len(text) > MOST_JSON:
        raise ValueError(f"it has more than {MOST_JSON:,} characters")
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("tables lie too deep in each other") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a table")
    return values


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_python(path: str, sha256: str | None = None) -> tuple[dict[str, Any], str]:
    """All that a Python file of the user's defines, by name; and the sha256 of what was run, which must be `sha256`."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        raise RecipeError(f"There is no file {path}.") from None
    digest = hashlib.sha256(content).hexdigest()  # of these very bytes: the file may change meanwhile
    if sha256 is not None and digest != sha256:
        raise RecipeError(f"{path} has changed just now.")
    module, before = ModuleType(OWN), sys.modules.get(OWN)
    module.__file__ = path
    sys.modules[OWN] = module  # while it runs: dataclasses and pydantic look for names there
    try:
        exec(compile(content, path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise RecipeError(_what_went_wrong(path, error)) from error
    finally:
        sys.modules.pop(OWN) if before is None else sys.modules.update({OWN: before})
    return vars(module), digest


def where_it_failed(error: BaseException) -> str:
    """An error in the user's own code as a sentence: its last file that is neither ours nor a library's, and the line.

    Such files were run by `run_python`, and so are in no module.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_globals.get("__name__") == OWN]
    message = f"{type(error).__name__}: {str(error).strip() or 'without a word'}"
    if not frames:
        return f"{message}."
    return f"{frames[-1].f_code.co_filename}, line {_line(error, frames[-1])}: {message}."


def _line(error: BaseException, frame: FrameType) -> int:
    return next(line for one, line in walk_tb(error.__traceback__) if one is frame)


def _what_went_wrong(path: str, error: BaseException) -> str:
    """The error of a file that was run, and the line of that file which it comes from."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == path]
    line, message = lines[-1] if lines else None, f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename == path:
        line, message = error.lineno, f"{type(error).__name__}: {error.msg}"
    if isinstance(error, RecipeError):
        message = str(error)  # a sentence already
    return f"{path}, line {line}: {message}" if line else f"{path} cannot be run: {message}"
