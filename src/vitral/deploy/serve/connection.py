"""A connection that gives up on clients that are slow, silent, too many, or have too long headers."""

import asyncio
import json
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from vitral.deploy.serve.settings import MOST_CONNECTIONS, MOST_HEAD, MOST_PIPELINED, ServeSettings

GRACE_SECONDS = 1.0  # in which a client that keeps its connection may still ask, when the server ends


class Connection(HttpToolsProtocol):
    """uvicorn's, with limits. Each timer is one call of the loop, whatever the number of bytes."""

    def __init__(self, settings: ServeSettings, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = settings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Whatever a client does not take, a small answer too, begins the silence: also where the connection is closed
        # already, and would wait for that client for ever.
        transport.set_write_buffer_limits(high=0)
        self._timer: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._reads_head, self._ends, self._gives_up = True, False, False
        if len(self.connections) > MOST_CONNECTIONS:
            return self._refuse(503, "Too many connections are open here.", retry_after=1)
        self._give(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._silence:
            self._silence.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._gives_up:
            return
        if self._reads_head:
            self._head_bytes += len(data)
        if self._head_bytes > 2 * MOST_HEAD + 2**18:  # one read of the socket may be the head and much of the body
            return self._refuse(431, "The headers are too long.")
        super().data_received(data)
        if self._timer is None and self.timeout_keep_alive_task is None and self._is_idle:
            self._give(self._limits.head_seconds)  # empty lines, which begin no request

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has ended its side. If it said that this is its last request, it waits for the answer; else it
        has gone, and nobody need work on it."""
        complete = self.cycle is not None and not self.cycle.more_body
        return complete and not self.cycle.keep_alive and not self._is_idle

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reads_head, self._said = True, 0
        # The handler asks this whether the client is still there.
        self.scope["state"]["connection"] = self
        self._give(self._limits.head_seconds)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._reads_head, self._head_bytes = False, 0
        self._give(self._limits.body_seconds)
        super().on_headers_complete()
        if self._ends:
            self.cycle.keep_alive = False
        if len(self.pipeline) > MOST_PIPELINED:
            self.transport.abort()

    def on_response_complete(self) -> None:
        if self._gives_up and len(self.pipeline) <= (not self._reads_head):
            self.transport.close()  # what is left is the request that did not come
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is None or not self.cycle.more_body:
            self._reads_head = True  # what comes behind a request is another one, whatever it is
        self._refuse(400, "This is not a request of HTTP as it should be.")

    def on_message_complete(self) -> None:
        self._stop()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._silence = self.loop.call_later(self._limits.silent_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._silence:
            self._silence.cancel()

    def shutdown(self) -> None:
        """The server ends: what is asked is answered, and so is what was on its way."""
        self._ends = True
        if self._is_idle:
            self.loop.call_later(GRACE_SECONDS, super().shutdown)
        else:
            self.cycle.keep_alive = False

    @property
    def is_gone(self) -> bool:
        """Whether nobody would read an answer."""
        return self.transport.is_closing()

    def _count(self, length: int) -> None:
        self._said += length
        if self._said > MOST_HEAD:
            raise ValueError("The headers are too long.")  # the parser stops, and answers with 400

    def _give(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _late(self) -> None:
        self._refuse(408, "The request did not come in time.")

    def _refuse(self, status: int, sentence: str, retry_after: int = 0) -> None:
        """Say it, where a request has begun and its answer has not, and close. Where an earlier request has no answer
        yet, say nothing, for it would be taken for that answer; close behind it."""
        self._stop()
        if not self._is_idle if self._reads_head else self.pipeline:
            self._gives_up = True
            return
        if (self._reads_head or not self.cycle.response_started) and not self.transport.is_closing():
            again = f"retry-after: {retry_after}\r\n" if retry_after else ""
            content = json.dumps({"error": sentence}).encode()
            head = (
                f"content-type: application/json\r\nx-content-type-options: nosniff\r\n{again}"
                f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[status] + head.encode() + content)
        self.transport.close()
        self.loop.call_later(GRACE_SECONDS, self.transport.abort)


def connection_of(settings: ServeSettings) -> Any:
    """What uvicorn calls for each connection."""
    return partial(Connection, settings)
