"""Fetching the files of a named set, or of named weights: what is missing, checked, and there whole or not at all.

A download grows as NAME.part beside its final name. If it breaks off, however it breaks off, the next try goes on from
there; NAME.part.version remembers which version the server said it was, so that two versions are never joined.
"""

import errno
import http.client
import os
import shutil
import ssl
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path
from time import sleep
from typing import IO, NoReturn
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from vitral.data.sources.named import NamedSet, RemoteFile, locate, missing_files, not_here
from vitral.errors import DataError
from vitral.files import sha256_of
from vitral.version import __version__

CHUNK = 1 << 18  # bytes
SILENCE = 30.0  # seconds without a byte after which a connection counts as broken
WAITS = (1.0, 2.0, 4.0)  # seconds before another try; a try that got further starts the list anew
BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers of a server that may be another one a moment later

Progress = Callable[[RemoteFile, int], None]  # the file, and how many of its bytes are here
Tell = Callable[[str], None]  # a sentence about what goes on


@dataclass(frozen=True)
class Fetched:
    """A file that was downloaded, with the digest of its bytes."""

    file: RemoteFile
    sha256: str


class _Broken(Exception):
    """The connection, not the file: worth another try."""


def _ignore(*_: object) -> None:
    pass


def fetch(
    dataset: NamedSet, directory: Path, *, progress: Progress = _ignore, tell: Tell = _ignore
) -> tuple[Fetched, ...]:
    """Download a set into the data directory. Returns the files that were fetched: none if it is there already."""
    if locate(dataset, directory):
        return ()
    if not dataset.files:
        raise not_here(dataset, directory)
    with fetching(dataset.name, directory, tell):
        missing = missing_files(dataset, directory)  # looked up here, because we may have waited for another
        return tuple(fetch_file(dataset.name, file, directory, progress, tell) for file in missing)


@contextmanager
def fetching(name: str, directory: Path, tell: Tell) -> Iterator[None]:
    """While the files of a name come into the data directory: of two processes that ask for the same, one fetches and
    the other waits."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory / f".{name}.lock", tell):
            yield
    except OSError as error:
        raise _disk_error(name, directory, error) from None


@contextmanager
def _alone(path: Path, tell: Tell) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tell("Another process is fetching it; waiting for that.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def fetch_file(name: str, file: RemoteFile, directory: Path, progress: Progress, tell: Tell) -> Fetched:
    """Download one file of a name; for use while `fetching` it."""
    target = directory / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.members and target.is_file():  # put there by hand, or we were stopped while its files were taken out
        sha256 = check_sha256(file, target, "Delete it, so that it can be fetched.")
    else:
        part = target.with_name(f"{target.name}.part")
        sha256 = _whole(name, file, part, progress, tell)
        _settle(part, target)
        _version_path(part).unlink(missing_ok=True)
    if file.members:
        _take_out(file, target, directory)
        target.unlink()
    return Fetched(file, sha256)


def _whole(name: str, file: RemoteFile, part: Path, progress: Progress, tell: Tell) -> str:
    """Download all bytes into the part and return their digest; if it is not the published one, delete the part."""
    _download(name, file, part, progress, tell)
    try:
        return check_sha256(
            file, part, "It was thrown away. Try once more; if it stays so, the file there has changed."
        )
    except DataError:
        _discard(part)
        raise


def _download(name: str, file: RemoteFile, part: Path, progress: Progress, tell: Tell) -> None:
    """Download until all bytes are here; patient as long as it gets further."""
    furthest, tries = _size(part), 0
    while not file.size or _size(part) != file.size:
        try:
            if file.size:
                _continue(file, part, progress)
            else:
                file = replace(file, size=_offered_size(file))
        except _Broken as broken:
            if _size(part) > furthest:
                furthest, tries = _size(part), 0
            if tries == len(WAITS):
                raise _gave_up(name, file, part, broken) from None
            here = f" {_size(part):,} of {file.size:,} bytes are here;" if file.size else ""
            tell(f"{broken}{here} next try in {WAITS[tries]:g} s.")
            sleep(WAITS[tries])
            tries += 1


def _offered_size(file: RemoteFile) -> int:
    """How long the server says that a file is, where nobody has published it."""
    with _open_url(file, {}) as response:
        offered = response.headers.get("Content-Length") or ""
    if not offered.isdigit() or int(offered) == 0:
        raise DataError(f"{file.url} does not say how long it is, and nobody has published it: it was not fetched.")
    return int(offered)


def _continue(file: RemoteFile, part: Path, progress: Progress) -> None:
    """One connection: from where the part ends, or from the start if that cannot be joined."""
    start = _joinable(file, part)
    with _open_url(file, _range_headers(part, start)) as response:
        if response.status == http.client.PARTIAL_CONTENT and not _goes_on(response, part, start):
            _discard(part)  # so that the next try asks for all of it
            raise _Broken(f"{_host(file)} has another version than the part that was here; it starts anew.")
        if response.status != http.client.PARTIAL_CONTENT:
            _check_offer(file, response)
            _discard(part)
            _version_path(part).write_text(_version(response.headers))
            start = 0
        here = _store(file, part, start, response, progress)
    if here < file.size:
        raise _Broken(f"{_host(file)} broke the connection off.")


def _store(file: RemoteFile, part: Path, here: int, response: http.client.HTTPResponse, progress: Progress) -> int:
    """Append the response to the part, and return how many bytes the part has then."""
    with part.open("ab") as out:
        progress(file, here)
        while here < file.size and (chunk := _read_some(response, min(CHUNK, file.size - here))):
            out.write(chunk)
            here += len(chunk)
            progress(file, here)
    return here


def _joinable(file: RemoteFile, part: Path) -> int:
    """How many bytes can be kept. Not any, if nothing would tell a file that has changed meanwhile."""
    size = _size(part)
    if size > file.size or not (file.sha256 or _part_version(part)):
        return 0
    return size


def _range_headers(part: Path, start: int) -> dict[str, str]:
    if not start:
        return {}
    version = _part_version(part)
    return {"Range": f"bytes={start}-"} | ({"If-Range": version} if version else {})


def _goes_on(response: http.client.HTTPResponse, part: Path, start: int) -> bool:
    """Whether this part is the rest, and of the same version: some servers know Range but not If-Range."""
    same = _part_version(part) in ("", _version(response.headers))
    return same and (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")


def _check_offer(file: RemoteFile, response: http.client.HTTPResponse) -> None:
    """Before a byte is stored: a login page of the network, or a new edition, has another length."""
    offered = response.headers.get("Content-Length")
    if offered and offered.isdigit() and int(offered) != file.size:
        raise DataError(
            f"{file.url} offers {int(offered):,} bytes, and the published file has {file.size:,}: it has changed, or "
            "something between here and there answers in its place. Open the address in a browser to see."
        )


def _open_url(file: RemoteFile, headers: dict[str, str]) -> http.client.HTTPResponse:
    if urlsplit(file.url).scheme not in ("https", "http"):
        raise DataError(f"{file.url} cannot be fetched: an address starts with https:// or http://.")
    agent = {"User-Agent": f"vitral/{__version__}", "Accept-Encoding": "identity"}
    try:
        return _opener().open(request.Request(file.url, headers=agent | headers), timeout=SILENCE)
    except HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and headers:
            return _open_url(file, {})  # the file there is shorter than the part: all of it, then
        if error.code in BUSY:
            raise _Broken(f"{_host(file)} is busy ({error.code} {error.reason}).") from None
        raise DataError(_refusal(file, error)) from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise DataError(
                f"{_host(file)} does not prove who it is ({error.reason.verify_message}), so nothing was fetched. "
                "Look at this machine's clock and certificates."
            ) from None
        raise _Broken(f"{_host(file)} cannot be reached ({_reason(error.reason)}). Is there a network?") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"{_host(file)} broke the connection off ({_reason(error)}).") from None


def _opener() -> request.OpenerDirector:
    """Knows http and https alone, so that no answer can lead us to file: or ftp:."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPRedirectHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _read_some(response: http.client.HTTPResponse, most: int) -> bytes:
    """Up to `most` bytes of the response. An error in here is the network's; any other OSError is the disk's."""
    try:
        return response.read1(most)  # what is there, without waiting for more: none of it is lost if it breaks off
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"The connection broke off ({_reason(error)}).") from None


def _reason(error: object) -> str:
    """An error in words: `Connection refused`, not `[Errno 111] Connection refused`."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _version(headers: Message) -> str:
    """What the server calls this version: a strong ETag, else the date. A weak ETag does not promise equal bytes."""
    tag = headers.get("ETag") or ""
    return tag if tag.startswith('"') else headers.get("Last-Modified") or ""


def _version_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _part_version(part: Path) -> str:
    path = _version_path(part)
    return path.read_text() if path.exists() else ""


def _discard(part: Path) -> None:
    """The part goes first: a version without a part does no harm, a part with another's version would."""
    part.unlink(missing_ok=True)
    _version_path(part).unlink(missing_ok=True)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def check_sha256(file: RemoteFile, path: Path, otherwise: str) -> str:
    """The sha256 of a file; if one is published and it is another, a `DataError` that ends with `otherwise`."""
    sha256 = sha256_of(path)
    if file.sha256 and sha256 != file.sha256:
        raise DataError(
            f"{path}, from {file.url}, has the sha256 {sha256}, and {file.sha256} is published: "
            f"these are not the bytes that were meant. {otherwise}"
        )
    return sha256


def _settle(part: Path, target: Path) -> None:
    """Give it its name once it is on the disk: a power cut leaves the part or the whole."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)


def _take_out(file: RemoteFile, archive: Path, directory: Path) -> None:
    """The members we know by name, and only where they are plain files; whatever else is in the tar stays there."""
    lacking = {member for member in file.members if not (directory / member).is_file()}
    try:
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isreg() and entry.name in lacking else None
                if content:
                    _write(content, directory / entry.name)
                    lacking.remove(entry.name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        _throw_away(archive, f"cannot be unpacked ({error})")
    if lacking:
        _throw_away(archive, f"does not contain {', '.join(sorted(lacking))}")


def _write(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as out:
            shutil.copyfileobj(content, out, CHUNK)
        _settle(part, target)
    except BaseException:
        part.unlink(missing_ok=True)  # the tar has it still, and the room may be needed
        raise


def _throw_away(archive: Path, why: str) -> NoReturn:
    archive.unlink()
    raise DataError(f"{archive} {why}; it was removed. Fetch it once more.")


def _host(file: RemoteFile) -> str:
    return urlsplit(file.url).netloc


def _refusal(file: RemoteFile, error: HTTPError) -> str:
    if error.code in (http.client.NOT_FOUND, http.client.GONE):
        return f"{file.url} is not there ({error.code}): it has moved, or is gone. Place it by hand as {file.path}."
    return f"{_host(file)} refuses {file.url} ({error.code} {error.reason}). Try later."


def _gave_up(name: str, file: RemoteFile, part: Path, broken: _Broken) -> DataError:
    of_all = f" of {file.size:,}" if file.size else ""
    progress = f" {_size(part):,}{of_all} bytes are kept." if _size(part) else ""
    return DataError(f"{name} could not be fetched. {broken}{progress} Run `vitral fetch {name}` again to go on.")


def _disk_error(name: str, directory: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"The disk is full: {name} did not fit into {directory}. Make room, and "
            f"`vitral fetch {name}` goes on where it stopped; or choose another place with VITRAL_DATA."
        )
    return DataError(
        f"{error.filename or directory} cannot be written ({error.strerror or error}). "
        "Choose another data directory with VITRAL_DATA."
    )
