"""A real `vitral serve` in a process of its own, and somebody who asks it."""

import asyncio
import http.client
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from PIL import Image

from test_glass import Reply
from vitral.data.config import Data
from vitral.data.sources import open_source

PATIENCE = 120  # seconds: machines are shared


class Serving:
    """The server. What it logs stands in `lines`."""

    def __init__(self, *arguments: object, port: int = 0) -> None:
        command = [sys.executable, "-m", "vitral", "serve", *map(str, arguments), "--port", str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            found = re.search(r"http://\S+:(\d+)/", self.wait_for(r" at http://"))
            assert found
        except BaseException:
            self.process.kill()
            self.ended()
            raise
        self.port = int(found[1])

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str, seconds: float = PATIENCE) -> str:
        """The first line that has this."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := next((line for line in self.lines if re.search(pattern, line)), ""):
                return found
            assert self.process.poll() is None or self._reader.is_alive(), self.lines
            time.sleep(0.02)
        raise AssertionError(f"{pattern} did not come: {self.lines}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.ended()

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            assert self.process.stderr
            self.process.stderr.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def predict(self, picture: bytes, query: str = "", **headers: str) -> Reply:
        return self.ask("POST", f"/predict{query}", picture, Content_Type="image/png", **headers)

    def workers(self) -> list[int]:
        """The processes behind it."""
        pid = self.process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def memory(self) -> int:
        """Bytes that the front has in memory."""
        return resident(self.process.pid)

    def metric(self, name: str) -> float:
        """What /metrics says; of all paths, statuses and models together."""
        lines = self.ask("GET", "/metrics").content.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it does."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, self.lines
            time.sleep(0.05)


def resident(pid: int) -> int:
    """Bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allow_files(count: int) -> int:
    """How many files this process may open from now on: so many, or as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def png(pixels: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


def digits(count: int) -> list[bytes]:
    """Real handwritten digits, as files."""
    index = open_source(Data(source="digits"))
    return [png(index.storage.read(number)) for number in range(count)]


class Client:
    """Several who ask one thing after the other, each over a connection that it keeps."""

    def __init__(self, port: int, pictures: Sequence[bytes], pause: float = 0.0) -> None:
        self.port, self.pictures = port, pictures
        self.pause = pause  # seconds that one waits who was refused
        self.statuses: Counter[int] = Counter()
        self.answers: list[tuple[int, list[Any]]] = []  # the number of the picture, and what was said
        self.seconds: list[float] = []  # of what was answered
        self.refusals: list[dict[str, str]] = []  # their headers
        self.refused_in: list[float] = []  # seconds
        self.probes: list[float] = []  # seconds
        self.broken: list[str] = []  # no answer at all
        self.closed = 0  # connections that ended between two requests

    async def run(self, clients: int, goes_on: Callable[[], bool]) -> None:
        await asyncio.gather(*(self._client(number, goes_on) for number in range(clients)))

    async def _client(self, number: int, goes_on: Callable[[], bool]) -> None:
        reader = writer = None
        while goes_on():
            number = (number + 1) % len(self.pictures)
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                self.closed += 1
                await asyncio.sleep(0.05)
                continue
            assert reader is not None
            try:
                async with asyncio.timeout(PATIENCE):
                    keep = await self._ask(number, reader, writer)
            except (EOFError, OSError, TimeoutError) as error:
                self.broken.append(repr(error))
                keep = False
            if not keep:
                writer.close()
                writer = None
        if writer:
            writer.close()

    async def offer(self, rate: float, goes_on: Callable[[], bool]) -> None:
        """So many requests a second, whatever becomes of them, each over a connection that nobody uses."""
        free: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []  # since when nobody uses it
        asking, offered, started_at = set[asyncio.Task[None]](), 0, time.monotonic()

        async def take() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            while free:
                since, reader, writer = free.pop()
                if time.monotonic() - since < 15:  # the server closes it soon
                    return reader, writer
                writer.close()
            return await asyncio.open_connection("127.0.0.1", self.port)

        async def one(number: int) -> None:
            try:
                async with asyncio.timeout(PATIENCE):
                    reader, writer = await take()
                    if await self._ask(number, reader, writer):
                        free.append((time.monotonic(), reader, writer))
                    else:
                        writer.close()
            except (EOFError, OSError, TimeoutError) as error:
                self.broken.append(repr(error))

        while goes_on():
            while offered < rate * (time.monotonic() - started_at):
                task = asyncio.create_task(one(offered % len(self.pictures)))
                asking.add(task)
                task.add_done_callback(asking.discard)
                offered += 1
            await asyncio.sleep(0.01)
        await asyncio.gather(*asking)
        for _, _, writer in free:
            writer.close()

    async def probe(self, goes_on: Callable[[], bool]) -> None:
        """Ask again and again whether it lives, which no worker is needed for: how long that takes is what the front,
        this process and the machine add to an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while goes_on():
            started_at = time.monotonic()
            writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await read_reply(reader)
            self.probes.append(time.monotonic() - started_at)
            await asyncio.sleep(0.02)
        writer.close()

    async def _ask(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        started_at, picture = time.monotonic(), self.pictures[number]
        writer.write(request(picture))
        status, headers, content = await read_reply(reader)
        self.statuses[status] += 1
        if status == 200:
            self.seconds.append(time.monotonic() - started_at)
            self.answers.append((number, json.loads(content)))
        else:
            self.refusals.append(headers)
            self.refused_in.append(time.monotonic() - started_at)
            if self.pause:
                await asyncio.sleep(self.pause)
        return headers.get("connection") != "close"

    def wrong(self, expected: Sequence[dict[str, Any]], most: float = 1e-5) -> int:
        """How many answers are not those of `Classifier`."""
        return sum(not same(said, expected[number], most) for number, [said] in self.answers)


def request(picture: bytes, *headers: str) -> bytes:
    """As it goes over the wire."""
    lines = ("POST /predict?top=100 HTTP/1.1", "Host: 127.0.0.1", "Content-Type: image/png", *headers)
    return "\r\n".join([*lines, f"Content-Length: {len(picture)}", "", ""]).encode() + picture


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A request of which something is lost, doubled or changed."""
    start, end = sorted(chance.randrange(len(content)) for _ in range(2))
    middle = (b"", 2 * content[start:end], chance.randbytes(end - start), content[start:end][::-1])[chance.randrange(4)]
    return content[:start] + middle + content[end:]


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


def same(said: dict[str, Any], expected: dict[str, Any], most: float = 1e-5) -> bool:
    """Whether two answers are, as far as floats can be. Of `expected` all classes are there, of the other 100."""
    ours, theirs = (
        {one["label"]: one["probability"] for one in answer["probabilities"]} for answer in (said, expected)
    )
    return len(ours) == min(len(theirs), 100) and all(abs(ours[name] - theirs[name]) <= most for name in ours)


def last(seconds: Sequence[float], share: float = 0.99) -> float:
    """What this share of them does not exceed."""
    return sorted(seconds)[max(0, math.ceil(share * len(seconds)) - 1)]
