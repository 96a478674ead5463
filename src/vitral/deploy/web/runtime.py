"""ONNX Runtime Web, which runs a model in a browser: fetched once, by npm where there is one, and checked."""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from vitral.data.fetch import Fetched, Progress, Tell, fetch_file, fetching
from vitral.data.sources.named import RemoteFile, data_directory
from vitral.errors import WeightsError
from vitral.files import write_whole

NAME, VERSION = "onnxruntime-web", "1.30.0"
WHAT = "ONNX Runtime for browsers, which `vitral export RUN page.html` puts into pages"
SCRIPT, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
LICENCE = """\
MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""

_DIGESTS = {
    SCRIPT: (73_054, "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90"),
    WASM: (14_239_897, "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"),
}
# The same bytes from either side: the package as npm packs it, or its files from the network that serves npm's packages
# to web pages (the address that the package names itself).
PACKAGE = RemoteFile(
    f"npm's {NAME} {VERSION}",
    f"{NAME}-{VERSION}.tgz",
    33_106_585,
    "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
    members=tuple(f"package/dist/{name}" for name in _DIGESTS),
)
FILES = tuple(
    RemoteFile(f"https://cdn.jsdelivr.net/npm/{NAME}@{VERSION}/dist/{name}", f"package/dist/{name}", size, sha256)
    for name, (size, sha256) in _DIGESTS.items()
)
SIZE = sum(file.size for file in FILES)  # bytes


def runtime_folder(directory: Path) -> Path:
    """Where it lies in a data directory."""
    return directory / NAME


def is_here(directory: Path) -> bool:
    """Whether it is there, whole."""
    return all((runtime_folder(directory) / file.path).is_file() for file in FILES)


def runtime_files() -> tuple[bytes, bytes]:
    """The script and the WASM; a WeightsError says how to get them, where they are not here."""
    directory = data_directory()
    if not is_here(directory):
        raise WeightsError(f"A page needs {NAME}, which is not here. Get it once: vitral fetch {NAME}")
    script, wasm = ((runtime_folder(directory) / file.path).read_bytes() for file in FILES)
    return script, wasm


def fetch_runtime(directory: Path, *, progress: Progress, tell: Tell) -> tuple[Fetched, ...]:
    """Put it into the data directory, unless it is there. Returns what was fetched."""
    folder = runtime_folder(directory)
    with fetching(NAME, directory, tell):
        if is_here(directory):
            return ()
        folder.mkdir(exist_ok=True)
        if (folder / PACKAGE.path).is_file() or _packed(folder, tell):
            fetched: tuple[Fetched, ...] = (fetch_file(NAME, PACKAGE, folder, progress, tell),)
        else:
            missing = [file for file in FILES if not (folder / file.path).is_file()]
            fetched = tuple(fetch_file(NAME, file, folder, progress, tell) for file in missing)
        write_whole(folder / "LICENSE.txt", LICENCE)
        return fetched


def _packed(folder: Path, tell: Tell) -> bool:
    """Whether npm put the package there: from wherever this machine's npm gets its packages."""
    npm = shutil.which("npm")
    if npm is None:
        return False
    with TemporaryDirectory(dir=folder) as place:  # what was broken off does not stay under a name that counts
        command = [npm, "pack", f"{NAME}@{VERSION}", "--ignore-scripts", "--silent", "--pack-destination", place]
        try:
            subprocess.run(command, check=True, capture_output=True, cwd=place)
            Path(place, PACKAGE.path).replace(folder / PACKAGE.path)
        except (OSError, subprocess.CalledProcessError):
            tell(f"npm could not pack {NAME}@{VERSION}; it is fetched from the web.")
            return False
    return True
