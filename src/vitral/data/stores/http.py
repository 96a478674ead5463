"""Parts of files from web servers: Range requests over connections that are kept open, one try at a time."""

import http.client
import re
import ssl
import threading
import time
import weakref
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NoReturn
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from vitral.data.stores.patience import Broken, Retries
from vitral.errors import DataError
from vitral.version import __version__

CHUNK = 1 << 16  # bytes
MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
GONE = (401, 403, 404, 410)  # also what an address says to which another led us, and which was good for an hour only
BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers of a server that may be another one a moment later
HEADERS = {"User-Agent": f"vitral/{__version__}", "Accept-Encoding": "identity"}
RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
OUT_OF_RANGE = re.compile(r"bytes \*/([0-9]{1,18})")
LENGTH = re.compile(r"[0-9]{1,18}")


class Connections:
    """Connections that are kept open from one request to the next, shared by threads: as many as read at once."""

    def __init__(self, retries: Retries) -> None:
        self.retries = retries
        self._idle: defaultdict[tuple[str, str], list[http.client.HTTPConnection]] = defaultdict(list)
        self._not_before: dict[str, float] = {}  # host → when it wants to be asked again
        self._lock, self._is_closed = threading.Lock(), False
        weakref.finalize(self, _close_all, self._idle)  # a source is opened, and nobody says that it is done with

    def close(self) -> None:
        """Close what is idle now, and the others when they are."""
        with self._lock:
            self._is_closed = True
            _close_all(self._idle)

    def hold(self, host: str, seconds: float) -> None:
        """This server wants no questions for so long, from any thread."""
        seconds = min(seconds, self.retries.patience.most_after)
        with self._lock:
            self._not_before[host] = max(self._not_before.get(host, 0.0), time.monotonic() + seconds)

    @contextmanager
    def ask(self, url: str, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET. What goes wrong on the way is `Broken`."""
        parts = urlsplit(url)
        if (pause := self._not_before.get(parts.netloc, 0.0) - time.monotonic()) > 0:
            self.retries.wait(pause)
        try:
            connection, response = self._send(parts, HEADERS | headers)
            try:
                yield response
            except BaseException:
                connection.close()
                raise
            self._give_back(parts, connection, response)
        except (http.client.InvalidURL, UnicodeError) as error:
            raise DataError(f"{shown(url)} is not an address ({error}).") from None
        except ssl.SSLCertVerificationError as error:
            raise DataError(
                f"{parts.hostname} does not prove who it is ({error.verify_message}), so nothing was read. Look at "
                "this machine's clock and certificates."
            ) from None
        except TimeoutError:
            raise Broken(f"{parts.hostname} says nothing for {self.retries.patience.silence:g} s.") from None
        except (OSError, http.client.HTTPException) as error:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Broken(f"{parts.hostname} cannot be reached, or broke the connection off ({words}).") from None

    def _send(
        self, parts: SplitResult, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        path, proxy = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", _proxy_for(parts)
        if proxy and parts.scheme == "http":
            path, headers = f"http://{parts.netloc}{path}", headers | _permission(proxy)
        while True:
            connection, is_new = self._take(parts, proxy)
            try:
                connection.request("GET", path, headers=headers)
                return connection, connection.getresponse()
            except (ConnectionError, http.client.RemoteDisconnected):
                connection.close()
                if is_new:
                    raise
                # It was idle for too long, and the server has closed it: that is no failure.
            except BaseException:
                connection.close()
                raise

    def _take(self, parts: SplitResult, proxy: SplitResult | None) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it is new."""
        with self._lock:
            if idle := self._idle[parts.scheme, parts.netloc]:
                return idle.pop(), False
        through = (proxy or parts).netloc.rpartition("@")[2]
        if parts.scheme == "http":
            return http.client.HTTPConnection(through, timeout=self.retries.patience.silence), True
        secure = http.client.HTTPSConnection(through, timeout=self.retries.patience.silence)
        if proxy:
            secure.set_tunnel(parts.netloc, headers=_permission(proxy))
        return secure, True

    def _give_back(
        self, parts: SplitResult, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        is_over = response.isclosed() or response.length == 0
        response.close()
        with self._lock:
            if is_over and not response.will_close and not self._is_closed:
                self._idle[parts.scheme, parts.netloc].append(connection)
                return
        connection.close()


def _proxy_for(parts: SplitResult) -> SplitResult | None:
    """The proxy of this machine for an address, if there is one."""
    proxy = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
    return urlsplit(proxy if "://" in proxy else f"//{proxy}") if proxy else None


def _permission(proxy: SplitResult) -> dict[str, str]:
    """The name and the password that a proxy is given with, as it wants to hear them."""
    if proxy.username is None:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(words.encode()).decode()}"}


def _close_all(idle: dict[tuple[str, str], list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        while connections:
            connections.pop().close()


class Web:
    """A folder of a web server."""

    def __init__(self, address: str, retries: Retries) -> None:
        parts = urlsplit(address)
        if parts.username or parts.password:
            raise DataError(
                f"{shown(address)} was given with a name or a password in it, which would be stored in every run "
                "folder. Give an address without."
            )
        if not parts.hostname:
            raise DataError(f"{address} is not an address: it has no server, as in https://example.org/shards.")
        self.address, self._parts = shown(address), parts
        self._connections = Connections(retries)

    def open(self, name: str, size: int | None) -> "HttpFile":
        path = quote(self._parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~") + "/" + quote(name)
        return HttpFile(self._parts._replace(path=path, fragment="").geturl(), self._connections, size)

    def names(self) -> list[str]:
        raise DataError(
            f"A web server does not say which files lie in {self.address}. Name them, as in "
            "shards:https://example.org/set-{000000..000099}.tar."
        )

    def close(self) -> None:
        self._connections.close()


class HttpFile:
    """One file on a web server."""

    def __init__(self, url: str, connections: Connections, size: int | None = None) -> None:
        self._url = url
        self._target = url  # where it led us
        self._connections = connections
        self._expected = size
        self.address = shown(url)
        self.version = ""  # what the server calls these bytes: an ETag, or a date; of the newest answer

    def size(self) -> int:
        """Bytes, as the server says; one try."""
        if self._expected is None:
            with self._ask(0, 1) as (_, size):
                if size is None:
                    raise DataError(f"{self.address} does not say how long it is: it cannot be read in parts.")
                self._expected = size
        return self._expected

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from start to stop, as they come, in one try: they may end early."""
        with self._ask(start, stop) as (response, _):
            here = start
            while here < stop and (piece := response.read1(min(CHUNK, stop - here))):
                here += len(piece)
                yield piece

    @contextmanager
    def _ask(self, start: int, stop: int) -> Iterator[tuple[http.client.HTTPResponse, int | None]]:
        """An answer that begins at start, and how long all of the file is."""
        url = self._target
        for _ in range(MOST_REDIRECTS + 1):
            with self._connections.ask(url, {"Range": f"bytes={start}-{stop - 1}"}) as response:
                if response.status in REDIRECTS:
                    url = self._follow(url, response)
                elif response.status in GONE and url != self._url:
                    url = self._target = self._url  # what it led to was good for a while only
                else:
                    self._target = url
                    yield response, self._check(response, start, stop)
                    return
        raise DataError(f"{self.address} leads from one address to another, more than {MOST_REDIRECTS} times.")

    def _follow(self, url: str, response: http.client.HTTPResponse) -> str:
        try:
            target = urlsplit(urljoin(url, response.headers.get("Location") or ""))
        except ValueError as error:
            raise DataError(f"{self.address} leads to something that is not an address ({error}).") from None
        if target.scheme not in ("http", "https") or (target.scheme == "http" and urlsplit(url).scheme == "https"):
            there = shown(target.geturl())
            raise DataError(f"{self.address} leads to {there}, which is not followed: only http and https are.")
        return target._replace(fragment="").geturl()

    def _check(self, response: http.client.HTTPResponse, start: int, stop: int) -> int | None:
        """Refuse what is not the part that was asked for. How long the whole file is, if it is said."""
        status, headers = response.status, response.headers
        if status in BUSY:
            after = retry_after(headers.get("Retry-After"), headers.get("Date"))
            self._connections.hold(urlsplit(self._target).netloc, after)
            raise Broken(f"The server is busy ({status} {response.reason}).", after)
        if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
            self._refuse(response)
        if (encoding := headers.get("Content-Encoding") or "identity") != "identity":
            raise DataError(f"{self.address} comes as {encoding}, which was not asked for: it cannot be read in parts.")
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if there := OUT_OF_RANGE.fullmatch(headers.get("Content-Range") or ""):
                self._compare_size(int(there[1]))
            raise DataError(f"{self.address} has no byte {start:,}: it is shorter than was expected.")
        if status == HTTPStatus.OK:
            length = headers.get("Content-Length") or ""
            if start or not LENGTH.fullmatch(length) or int(length) > stop:
                raise DataError(
                    f"{self.address} is not given in parts: the server answers a Range request with all of the file. "
                    "Serve it with nginx, Apache, Caddy or from S3 (python -m http.server does not know parts), or "
                    "copy it to this machine."
                )
            size: int | None = int(length)
        else:
            offered = RANGE.fullmatch(headers.get("Content-Range") or "")
            if not offered or int(offered[1]) != start or not start <= int(offered[2]) < stop:
                said = headers.get("Content-Range") or "nothing"
                raise DataError(f"{self.address}: bytes {start}-{stop - 1} were asked for, and the server gave {said}.")
            size = None if offered[3] == "*" else int(offered[3])
        self._compare_size(size)
        self.version = headers.get("ETag") or headers.get("Last-Modified") or ""
        return size

    def _compare_size(self, size: int | None) -> None:
        if None not in (size, self._expected) and size != self._expected:
            raise DataError(
                f"{self.address} has {size:,} bytes, and {self._expected:,} were expected: it has changed since its "
                "index was made, or something between here and there answers in its place."
            )

    def _refuse(self, response: http.client.HTTPResponse) -> NoReturn:
        if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            raise DataError(f"{self.address} is not there ({response.status}): it has moved, or is gone.")
        raise DataError(f"{self.address} is refused by the server ({response.status} {response.reason}).")


def retry_after(value: str | None, now: str | None) -> float:
    """Seconds that a server asks for, in either way of saying so; its own clock says what is now.

    >>> retry_after("7", None), retry_after(None, None), retry_after("soon", None)
    (7.0, 0.0, 0.0)
    >>> retry_after("Thu, 01 Jan 2026 00:01:00 GMT", "Thu, 01 Jan 2026 00:00:30 GMT")
    30.0
    """
    if value and value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value or "") - parsedate_to_datetime(now or "")).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def shown(address: str) -> str:
    """An address for people: without a password, or a query, which may be a signature.

    >>> shown("https://me:secret@example.org:8080/a.tar?signature=1")
    'https://example.org:8080/a.tar'
    """
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
