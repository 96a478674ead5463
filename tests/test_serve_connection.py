"""Connections with limits, in a server of this process: seconds are as short as a test wants them."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from vitral.deploy.serve.connection import connection_of
from vitral.deploy.serve.front import _Server
from vitral.deploy.serve.settings import ServeSettings


def answering(size: int = 2, waits: float = 0.0) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await asyncio.sleep(waits)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": b"x" * size})

    return app


def with_server(app: Any, ask: Callable[[int, uvicorn.Server], Awaitable[None]], **seconds: float) -> None:
    """Run both, and end the server, within a minute."""
    settings = ServeSettings(models={}, **seconds)  # type: ignore[arg-type]

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = _Server(uvicorn.Config(app, http=connection_of(settings), ws="none", lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            await ask(listener.getsockname()[1], server)
            server.should_exit = True
            await serving

    asyncio.run(run())


async def told(port: int, content: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    try:
        return await reader.read()
    finally:
        writer.close()


def test_who_takes_nothing_of_a_small_answer_does_not_keep_the_server_from_ending() -> None:
    async def ask(port: int, server: uvicorn.Server) -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            left = sent = 0
            while not left:  # until the two sockets hold no more
                if server.server_state.total_requests == sent:
                    client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    sent += 1
                await asyncio.sleep(0)
                left = sum(one.transport.get_write_buffer_size() for one in server.server_state.connections)
            server.should_exit = True
            while server.server_state.connections:
                await asyncio.sleep(0.01)

    with_server(answering(20_000), ask, silent_seconds=0.5)


def request(path: str, length: int, body: bytes) -> bytes:
    return f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + body


def test_a_second_request_that_does_not_come_takes_the_answer_of_the_first_from_nobody() -> None:
    async def ask(port: int, server: uvicorn.Server) -> None:
        for second in (request("2", 10, b"abc"), b"POST /2 HTTP/1.1\r\nHo", b"what is this\r\n\r\n"):
            said = await told(port, request("1", 1, b"a") + second)
            assert said.startswith(b"HTTP/1.1 200") and said.endswith(b"\r\n\r\nxx"), said
        said = await told(port, request("1", 1, b"a") + request("2", 1, b"b") + request("3", 9, b"c"))
        assert said.count(b"HTTP/1.1 200") == 2 and b"408" not in said

    with_server(answering(waits=0.5), ask, head_seconds=0.2, body_seconds=0.2)


def test_what_a_connection_says_itself_is_json_too() -> None:
    async def ask(port: int, server: uvicorn.Server) -> None:
        for content, status in ((b"nonsense\r\n\r\n", b"400"), (request("1", 9, b"a"), b"408"), (b"GET /", b"408")):
            said = await told(port, content)
            head, _, body = said.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status) and b"application/json" in head
            assert json.loads(body)["error"].endswith(".")

    with_server(answering(), ask, head_seconds=0.2, body_seconds=0.2)
