"""A web server of files on this machine, as bad as one likes: for tests, and for benchmarks of far data.

    with FaultyServer({"a.bin": content}, break_every=10, latency=0.05, bits_per_second=20e6) as server:
        ...  # server.url + "/a.bin"

It stops with the block, at once.
"""

import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

PORTION = 1 << 14  # bytes that are sent at once


@dataclass
class FaultyServer:
    """What it serves and how it behaves, which may change at any time; and what it was asked for."""

    files: Mapping[str, bytes] | Path
    break_every: int = 0  # every so many answers: the connection ends in the middle of what was promised
    stall_every: int = 0  # …: it says nothing for `stall` seconds in the middle
    stall: float = 5.0
    truncate_every: int = 0  # …: fewer bytes than were asked for, which it says
    busy_every: int = 0  # …: 429 or 503, in turns
    retry_after: str = ""  # with these
    swap_every: int = 0  # …: other bytes, as many
    answers: list[int] = field(default_factory=list)  # status codes of the next answers; 0: it closes without a word
    redirects: dict[str, str] = field(default_factory=dict)  # path → Location
    headers: dict[str, str] = field(default_factory=dict)  # with every answer
    version: str = '"one"'  # its ETag
    permission: str = ""  # a Proxy-Authorization, without which nobody gets anything
    knows_ranges: bool = True
    latency: float = 0.0  # seconds before every answer
    bits_per_second: float = 0.0  # of all answers together; 0: as fast as it can

    requests: list[tuple[str, str]] = field(default_factory=list)  # (path, Range)
    served: int = 0  # bytes
    connections: int = 0

    def __enter__(self) -> Self:
        self._lock, self._line_is_free_at, self._count = threading.Lock(), 0.0, 0
        self._stopped, self._sockets = threading.Event(), set[socket.socket]()
        self._http = _Http(("127.0.0.1", 0), type("Bound", (_Handler,), {"faulty": self}))
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._http.shutdown()
        for connection in list(self._sockets):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()  # waits for the threads of all connections
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def content(self, path: str) -> bytes | None:
        if isinstance(self.files, Path):
            file = self.files / path
            return file.read_bytes() if file.is_file() else None
        return self.files.get(path)

    def part(self, path: str, start: int, stop: int) -> bytes:
        if isinstance(self.files, Path):
            with (self.files / path).open("rb") as file:
                file.seek(start)
                return file.read(stop - start)
        return self.files[path][start:stop]

    def size(self, path: str) -> int | None:
        if isinstance(self.files, Path):
            return (self.files / path).stat().st_size if (self.files / path).is_file() else None
        return len(self.files[path]) if path in self.files else None

    def numbered(self, path: str, wanted: str) -> int:
        """The number of an answer, from 1 on."""
        with self._lock:
            self.requests.append((path, wanted))
            self._count += 1
            return self._count

    def wait(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def wait_for_line(self, count: int) -> None:
        """Until the line, which all answers share, has taken so many bytes."""
        with self._lock:
            self.served += count
            if not self.bits_per_second:
                return
            now = time.monotonic()
            self._line_is_free_at = max(self._line_is_free_at, now) + 8 * count / self.bits_per_second
            seconds = self._line_is_free_at - now
        self.wait(seconds)


class _Http(ThreadingHTTPServer):
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # whoever asked is gone


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    faulty: FaultyServer

    def setup(self) -> None:
        super().setup()
        self.faulty.connections += 1
        self.faulty._sockets.add(self.connection)

    def finish(self) -> None:
        self.faulty._sockets.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        faulty, wanted = self.faulty, self.headers.get("Range") or ""
        path = unquote(urlsplit(self.path).path).lstrip("/")
        number = faulty.numbered(path, wanted)
        if faulty.latency:
            faulty.wait(faulty.latency)
        every = {
            name: bool(turn) and number % turn == 0
            for name, turn in vars(faulty).items()
            if name.endswith("_every") and isinstance(turn, int)
        }
        answer = faulty.answers.pop(0) if faulty.answers else 200
        if every["busy_every"]:
            answer = (429, 503)[number // faulty.busy_every % 2]
        if faulty.permission and self.headers.get("Proxy-Authorization") != faulty.permission:
            answer = 407
        if answer == 0:
            self.close_connection = True
        elif path in faulty.redirects:
            self.say(302, 0, Location=faulty.redirects[path])
        elif answer != 200:
            self.say(answer, 0, **({"Retry-After": faulty.retry_after} if faulty.retry_after else {}))
        elif (size := faulty.size(path)) is None:
            self.say(404, 0)
        else:
            self.give(path, wanted, size, every)

    def say(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Length": str(length), **named, **self.faulty.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def date_time_string(self, timestamp: Any = None) -> str:
        return self.faulty.headers.get("Date") or super().date_time_string()

    def give(self, path: str, wanted: str, size: int, every: dict[str, bool]) -> None:
        faulty, place = self.faulty, re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
        start, stop = 0, size
        if place and faulty.knows_ranges:
            start, stop = int(place[1]), min(size, int(place[2] or size) + 1)
            if start >= size:
                self.say(416, 0, Content_Range=f"bytes */{size}")
                return
            if every["truncate_every"]:
                stop = start + max(1, (stop - start) // 3)
            self.say(206, stop - start, Content_Range=f"bytes {start}-{stop - 1}/{size}", ETag=faulty.version)
        else:
            self.say(200, size, ETag=faulty.version)
        content = faulty.part(path, start, stop)
        if every["swap_every"]:
            content = bytes(255 - byte for byte in content)
        middle = len(content) // 2
        if every["break_every"]:
            content, self.close_connection = content[:middle], True
        for begin in range(0, len(content), PORTION):
            if every["stall_every"] and begin <= middle < begin + PORTION:
                faulty.wait(faulty.stall)
            portion = content[begin : begin + PORTION]
            faulty.wait_for_line(len(portion))
            if faulty._stopped.is_set():
                self.close_connection = True
                return
            self.wfile.write(portion)
