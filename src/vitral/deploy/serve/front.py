"""The front: sockets, signals and workers of one server, from its start to its end.

SIGTERM and Ctrl-C let it finish what it has accepted; a second one does not wait for that. SIGHUP has it load its
models and tokens anew, and ask them from then on, if they load and answer; else the old ones stay. The same signal
comes when the terminal is closed that the server was started from: then it ends.
"""

import asyncio
import logging
import math
import os
import resource
import signal
import socket
import termios
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from vitral.deploy.serve.app import app_of
from vitral.deploy.serve.connection import connection_of
from vitral.deploy.serve.fitting import open_fitting
from vitral.deploy.serve.guard import read_tokens
from vitral.deploy.serve.pool import Pool, Tell
from vitral.deploy.serve.service import Service
from vitral.deploy.serve.settings import HANG_SECONDS, IDLE_SECONDS, MOST_CONNECTIONS, ServeSettings
from vitral.errors import RecipeError, VitralError


class _Server(uvicorn.Server):
    """uvicorn's, whose signals are ours: it would end with the signal, and not with 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: ServeSettings, tell: Tell) -> None:
    """Answer until a signal ends it. `tell` is given what happens, a sentence each."""

    def tell_if_heard(sentence: str) -> None:
        with suppress(OSError, ValueError):  # a terminal or a log that is closed keeps nothing from being done
            tell(sentence)

    tokens = read_tokens(Path(settings.token_file)) if settings.token_file else ()  # before anything is loaded
    _allow_connections()
    with _listen(settings) as listener:
        asyncio.run(_serve(settings, tokens, listener, tell_if_heard))


async def _serve(settings: ServeSettings, tokens: Sequence[str], listener: socket.socket, tell: Tell) -> None:
    signals = _Signals()
    opening = asyncio.create_task(open_fitting(settings, tell))
    signals.end = opening.cancel
    try:
        pool = await opening
    except asyncio.CancelledError:
        tell("Ended before it began.")
        return
    service = Service(settings, pool, tell, tokens)
    config = uvicorn.Config(
        app_of(service),
        http=connection_of(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        # All that a request can take one after the other, each with a limit of its own.
        timeout_graceful_shutdown=math.ceil(
            settings.body_seconds + settings.deadline + HANG_SECONDS + settings.silent_seconds
        ),
        backlog=2_048,
    )
    for library in ("uvicorn.error", "python_multipart"):  # else nonsense from the net would fill the log
        logging.getLogger(library).setLevel(logging.CRITICAL)
    server, takeover = _Server(config), _Takeover(service)

    def end() -> None:
        if service.ends:
            server.force_exit = True
            service.pool.hurry()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
        service.ends = server.should_exit = True

    signals.end, signals.renew = end, takeover.begin
    if signals.renewals:
        takeover.begin()  # SIGHUP came while it loaded
    tell(f"{', '.join(pool.models)} {_where(settings, listener)} (process {os.getpid()}; Ctrl-C ends it)")
    try:
        await server.serve([listener])
    finally:
        await takeover.end()
        await service.pool.finish()
    tell("Ended before all was answered." if server.force_exit else "Ended; all that was accepted has been answered.")


def _where(settings: ServeSettings, listener: socket.socket) -> str:
    port, host = listener.getsockname()[1], settings.host
    if host in ("0.0.0.0", "::"):
        return f"on all addresses of this machine, as at http://{socket.gethostname()}:{port}/"
    return f"at http://[{host}]:{port}/" if ":" in host else f"at http://{host}:{port}/"


class _Signals:
    """What each signal has done, from before anything is loaded."""

    def __init__(self) -> None:
        self.end: Callable[[], object] = lambda: None
        self.renew: Callable[[], object] = lambda: None
        self.renewals = 0
        self._terminal = _terminal()
        self._stays = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as nohup has it
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, lambda: self.end())
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        if self._terminal is not None and not _is_there(self._terminal):
            os.close(self._terminal)
            self._terminal = None
            if not self._stays:
                self.end()
            return
        self.renewals += 1
        self.renew()


def _terminal() -> int | None:
    """The terminal that this was started from, if there is one."""
    try:
        return os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _is_there(terminal: int) -> bool:
    """Whether it is still open."""
    try:
        termios.tcgetattr(terminal)
    except termios.error:
        return False
    return True


class _Takeover:
    """New models instead of the old ones, one takeover at a time."""

    def __init__(self, service: Service) -> None:
        self.service = service
        service.pool.when_changed = self._changed
        self._task: asyncio.Task[None] | None = None
        self._wanted = False

    def begin(self) -> None:
        """SIGHUP came. If that is in the middle of a takeover, there is another one after it."""
        self._wanted = not self.service.ends
        if self._wanted and not self._is_going:
            self._task = asyncio.create_task(self._run())

    def _changed(self) -> None:
        if not self._is_going:
            self.begin()

    @property
    def _is_going(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                self._renew_tokens()
                await self._take_over()
            except Exception:
                self.service.tell("".join(traceback.format_exc()).rstrip())

    def _renew_tokens(self) -> None:
        try:
            self.service.read_tokens()
        except RecipeError as error:
            self.service.tell(f"The tokens stay as they are: {error}")

    async def _take_over(self) -> None:
        old, service = self.service.pool, self.service
        try:
            new = await Pool.open(service.settings, old.size, old.threads, service.tell)
        except (VitralError, OSError) as error:
            service.tell(f"The new models are not taken over, and the old ones go on: {error}")
            return
        new.when_changed = self._changed
        service.use(new)
        service.metrics.takeovers.inc()
        service.tell(f"Taken over: {', '.join(new.models)}")
        try:
            await old.finish()
        finally:
            await old.end()

    async def end(self) -> None:
        """The server ends: a takeover that has not happened does not."""
        self._wanted = False
        if self._is_going and self._task:
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
