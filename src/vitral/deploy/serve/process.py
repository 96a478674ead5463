"""A worker as the front sees it: a process, and a socket to it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.messages import Message, Part, packed, read_message
from vitral.deploy.serve.settings import HANG_SECONDS, LOAD_SECONDS, ServeSettings
from vitral.errors import VitralError


class WorkerLost(Exception):
    """The process has ended, or was ended as it hung."""


class Worker:
    """A process that answers one message at a time."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.models: tuple[ModelFacts, ...] = ()
        self.when_lost: Callable[[], None] = lambda: None  # is called when it ends while nothing is asked of it
        self.ready_at = asyncio.get_running_loop().time()
        self._reader, self._writer = reader, writer
        self._coming: asyncio.Future[Message] | None = None
        self._ends = False
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, settings: ServeSettings, threads: int) -> "Worker":
        """A process that has loaded its models and tried them; what it cannot load is a VitralError. Whatever else
        happens, nothing of it is left."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _process(theirs, threads)
        except BaseException:
            ours.close()
            raise
        try:
            worker = cls(process, *await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            ours.close()
            process.kill()
            process.wait()
            raise
        try:
            hello = {"settings": settings.write(), "threads": threads}
            head, _ = await worker.ask(hello, patience=LOAD_SECONDS)
            worker.models = tuple(ModelFacts.read(one) for one in head["models"])
        except WorkerLost:
            raise VitralError("A worker ended while it loaded the model.") from None
        except BaseException:
            await worker.end()
            raise
        worker.ready_at = asyncio.get_running_loop().time()
        return worker

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come from it."""
        return self._ends or self._listening.done()

    async def ask(self, head: dict[str, Any], parts: Sequence[Part] = (), patience: float = HANG_SECONDS) -> Message:
        """What it answers; WorkerLost where it ends instead, or takes longer than `patience` seconds."""
        self._coming = asyncio.get_running_loop().create_future()
        try:
            if self.has_ended:
                raise WorkerLost
            self._writer.writelines(packed(head, parts))
            async with asyncio.timeout(patience):
                await self._writer.drain()
                answer = await self._coming
        except (WorkerLost, OSError, TimeoutError):
            await self.end()
            raise WorkerLost from None
        except BaseException:
            self._kill()  # its answer would be taken for the next one
            raise
        finally:
            self._coming = None
        if "error" in answer.head:
            raise VitralError(answer.head["error"])
        return answer

    async def _listen(self) -> None:
        """Hand over what it says; and when it ends, be the first to know."""
        with suppress(EOFError, OSError, ValueError, KeyError):  # the last two: what it says makes no sense
            while True:
                message = await read_message(self._reader)
                if self._coming and not self._coming.done():
                    self._coming.set_result(message)
        if self._coming and not self._coming.done():
            self._coming.set_exception(WorkerLost())
        elif not self._ends:
            self.when_lost()

    async def end(self) -> None:
        """End it, whatever it does."""
        self._ends = True
        self._kill()
        await asyncio.to_thread(self.process.wait)
        await asyncio.wait([self._listening])  # whatever became of it
        with suppress(OSError):
            await self._writer.wait_closed()

    def _kill(self) -> None:
        self._writer.close()
        self.process.kill()


def _process(channel: socket.socket, threads: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: what lies in this folder is not imported.
        [sys.executable, "-P", "-m", "vitral.deploy.serve.start_worker", str(channel.fileno())],
        pass_fds=[channel.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=2,
        # Before torch is loaded: what it starts later would take all cores.
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        start_new_session=True,  # Ctrl-C in a terminal, and its end, are for the front
    )
