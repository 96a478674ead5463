"""The front: sockets, signals and workers of one server, from its start to its end.

SIGTERM and Ctrl-C let it finish what it has accepted. SIGHUP has it load its models anew, and ask them from then on, if
they load and answer; else the old ones stay.
"""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn

from vitral.deploy.serve.app import app_of
from vitral.deploy.serve.connection import Connection
from vitral.deploy.serve.fitting import open_fitting
from vitral.deploy.serve.pool import Pool, Tell
from vitral.deploy.serve.service import Service
from vitral.deploy.serve.settings import IDLE_SECONDS, MOST_CONNECTIONS, ServeSettings
from vitral.errors import RecipeError, VitralError


class _Server(uvicorn.Server):
    """uvicorn's, whose signals are ours: it would end with the signal, and not with 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: ServeSettings, tell: Tell) -> None:
    """Answer until a signal ends it. `tell` is given what happens, a sentence each."""
    _allow_connections()
    with _listen(settings) as listener:
        asyncio.run(_serve(settings, listener, tell))


async def _serve(settings: ServeSettings, listener: socket.socket, tell: Tell) -> None:
    pool = await open_fitting(settings, tell)
    service = Service(settings, pool, tell)
    config = uvicorn.Config(
        app_of(service),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        backlog=2_048,
    )
    for library in ("uvicorn.error", "python_multipart"):  # else nonsense from the net would fill the log
        logging.getLogger(library).setLevel(logging.CRITICAL)
    server = _Server(config)
    loop, takeover = asyncio.get_running_loop(), _Takeover(service)

    def end() -> None:
        service.ends = server.should_exit = True

    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, end)
    loop.add_signal_handler(signal.SIGHUP, takeover.begin)
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    tell(f"{', '.join(pool.models)} at http://{host}:{port}/ (Ctrl-C ends it)")
    try:
        await server.serve([listener])
    finally:
        await takeover.end()
        await service.pool.finish()
    tell("Ended; all that was accepted has been answered.")


class _Takeover:
    """New models instead of the old ones, one takeover at a time."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.pool.when_changed = self.begin
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """SIGHUP came."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._take_over())

    async def _take_over(self) -> None:
        old, service = self.service.pool, self.service
        try:
            new = await Pool.open(service.settings, old.size, old.threads, service.tell)
        except (VitralError, OSError) as error:
            service.tell(f"The new models are not taken over, and the old ones go on: {error}")
            return
        new.when_changed = self.begin
        service.use(new)
        service.metrics.takeovers.inc()
        service.tell(f"Taken over: {', '.join(new.models)}")
        await old.finish()

    async def end(self) -> None:
        """The server ends: a takeover that has not happened does not."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


def _listen(settings: ServeSettings) -> socket.socket:
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        listener = socket.create_server(address, family=family, backlog=2_048)
    except OSError as error:
        place, reason = f"{settings.host}:{settings.port}", str(error.strerror).partition(" (")[0]
        raise RecipeError(f"{place} cannot be had ({reason}). Choose another with --port or --host.") from None
    # Else the body of an answer waits 40 ms for the head to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _allow_connections() -> None:
    """As many open files as connections may come; systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
