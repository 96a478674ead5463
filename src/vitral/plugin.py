"""Python files of one's own, named as `mine.py:Mixer`: the only place where such a name becomes code that runs.

To type the name is to have the file run. What is stored (a run, a file of weights) only remembers the name and
the sha256 of the file: it runs nothing until a person names the file again, with `--code mine.py` or `code="mine.py"`.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitral.errors import RecipeError
from vitral.files import OWN, run_python, sha256_of

Code = str | Path | Iterable[str | Path]  # files that a person allows to be run


@dataclass(frozen=True)
class Plugin:
    """The value of a name in a file that was run."""

    value: Any
    names: dict[str, Any]  # all that the file defines
    sha256: str  # of the file


def is_plugin(name: str) -> bool:
    """`mine.py:Mixer`, and not a word of ours."""
    return ".py:" in name


def files_of(code: Code) -> list[str | Path]:
    """One file, or several."""
    return [code] if isinstance(code, str | Path) else list(code)


def load_plugins(names: Iterable[str]) -> dict[str, Plugin]:
    """Run the files that a person has typed, each once, and take out of them what the names say."""
    paths = {name: Path(name.rpartition(":")[0]) for name in names}
    return _load(paths)


def load_stored_plugins(sha256s: Mapping[str, str], code: Code, who: str) -> dict[str, Plugin]:
    """Run files for the names that `who` has stored, `sha256s` by name: only files that the person has named in `code`,
    and that are what they were."""
    files = [Path(file) for file in files_of(code)]
    for file in files:
        if not file.is_file():
            raise RecipeError(f"There is no file {file}.")
    digests = {sha256_of(file): file for file in files}
    for name, sha256 in sha256s.items():
        path = name.rpartition(":")[0]
        if not files:
            raise RecipeError(
                f"{who} was made with {name}, and a file of Python is not run by itself. If you trust it: "
                f"--code {shlex.quote(path)}"
            )
        if sha256 not in digests:
            names = " and ".join(map(str, files))
            raise RecipeError(
                f"{names} is not the {path} that {who} was made with: it has changed since. Bring back the file whose "
                f"sha256 begins with {sha256[:12]}, or train again."
            )
    return _load(
        {name: digests[sha256] for name, sha256 in sha256s.items()}, {path: sha for sha, path in digests.items()}
    )


def _load(paths: Mapping[str, Path], sha256s: Mapping[Path, str] | None = None) -> dict[str, Plugin]:
    defined = {path: run_python(str(path), (sha256s or {}).get(path)) for path in dict.fromkeys(paths.values())}
    plugins = {}
    for name, path in paths.items():
        inside, (values, sha256) = name.rpartition(":")[2], defined[path]
        if inside not in values:
            public = [known for known, value in values.items() if getattr(value, "__module__", "") == OWN]
            raise RecipeError(f"{path} has no {inside}. It has: {', '.join(public) or 'nothing'}.")
        plugins[name] = Plugin(values[inside], values, sha256)
    return plugins
