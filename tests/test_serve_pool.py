"""Workers that end at bad moments: no question stays open, no process is left. The other side of each worker's socket
is in the test's hands; the process behind it only has to be there."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.messages import Message, packed, read_message
from vitral.deploy.serve.pool import Pool
from vitral.deploy.serve.process import Worker
from vitral.deploy.serve.questions import Question, Refusal
from vitral.deploy.serve.settings import ServeSettings
from vitral.targets import Target

SETTINGS = ServeSettings(models={"a": "nowhere"}, deadline=30)
FACTS = ModelFacts(
    name="a",
    runtime="test",
    identity="1",
    channels=1,
    image_size=(2, 2),
    targets=(Target(names=("cat", "dog")),),
    thresholds=(0.5, 0.5),
    margins=(0, 0),
    has_distance=False,
)
Behaviour = Callable[[Message], Awaitable[Message]]


async def worker_that(behaves: Behaviour) -> Worker:
    """Its answers are those of `behaves`; when that raises EOFError, it has ended."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(["sleep", "1000"])
    worker = Worker(process, *await asyncio.open_unix_connection(sock=ours))
    worker.models = (FACTS,)
    reader, writer = await asyncio.open_unix_connection(sock=theirs)

    async def answer() -> None:
        try:
            while True:
                writer.writelines(packed(*await behaves(await read_message(reader))))
        except (EOFError, OSError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    worker.peer = asyncio.create_task(answer())  # type: ignore[attr-defined]
    await asyncio.sleep(0)  # it has begun: one that is cancelled before that would close nothing
    return worker


async def answers(message: Message) -> Message:
    count = len(message.parts)
    values, distances = np.full((count, 2), 0.5, np.float32), np.zeros(count, np.float32)
    return Message({"errors": [""] * count}, [values.tobytes(), distances.tobytes()])


async def ends(message: Message) -> Message:
    raise EOFError


def ends_with(picture: bytes) -> Behaviour:
    async def behave(message: Message) -> Message:
        return await (ends if picture in message.parts else answers)(message)

    return behave


async def pool_of(*behaviours: Behaviour) -> tuple[Pool, list[str]]:
    told: list[str] = []
    return Pool(SETTINGS, 1, [await worker_that(one) for one in behaviours], told.append), told


async def ask(pool: Pool, *pictures: bytes, seconds: float = 30.0) -> int:
    """The status; whatever is not answered in a minute fails the test."""
    question = Question([("f", one) for one in pictures], asyncio.get_running_loop().time() + seconds)
    try:
        async with asyncio.timeout(60):
            await pool.ask("a", question)
    except Refusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize("steps", range(6))
def test_a_worker_that_ends_as_it_is_chosen_leaves_no_question_open(steps: int) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        worker = Worker(subprocess.Popen(["sleep", "1000"]), *await asyncio.open_unix_connection(sock=ours))
        worker.models = (FACTS,)
        pool = Pool(SETTINGS, 1, [worker], lambda sentence: None)
        await asyncio.sleep(0.01)
        theirs.close()
        for _ in range(steps):
            await asyncio.sleep(0)
        assert await ask(pool, b"x", seconds=0.1) == 503
        assert not pool.workers and not pool._idle
        await pool.end()

    asyncio.run(run())


def test_a_worker_that_talks_nonsense_is_ended_and_its_question_refused() -> None:
    async def nonsense(message: Message) -> Message:
        return Message({"errors": [""]}, [b"abc", b"d"])

    async def run() -> None:
        pool, told = await pool_of(nonsense)
        assert await ask(pool, b"x") == 500
        async with asyncio.timeout(60):
            while pool.workers:
                await asyncio.sleep(0.01)
        assert "Traceback" in "".join(told)
        await pool.end()

    asyncio.run(run())


def test_what_a_worker_has_when_the_pool_ends_is_refused() -> None:
    async def forever(message: Message) -> Message:
        await asyncio.sleep(1000)
        raise EOFError

    async def run() -> None:
        pool, _ = await pool_of(forever)
        asking = asyncio.create_task(ask(pool, b"x"))
        while not pool._running:
            await asyncio.sleep(0)
        await pool.end()
        assert await asking == 503

    asyncio.run(run())


def test_a_picture_that_ends_workers_after_its_deadline_is_named_all_the_same() -> None:
    """A worker that hangs is waited for longer than any deadline."""

    async def hangs(message: Message) -> Message:
        if b"x" in message.parts:
            await asyncio.sleep(0.2)
            raise EOFError
        return await answers(message)

    async def run() -> None:
        pool, told = await pool_of(hangs, hangs, hangs)
        assert [await ask(pool, b"x", seconds=0.1) for _ in range(3)] == [503, 422, 422]
        assert len(pool.workers) == 1 and sum("its sha256 is" in line for line in told) == 1
        assert await ask(pool, b"y") == 200
        await pool.end()

    asyncio.run(run())


def test_who_was_with_the_picture_that_ends_workers_is_cleared_by_an_answer() -> None:
    async def run() -> None:
        deadly = ends_with(b"x")
        pool, _ = await pool_of(deadly, deadly, deadly, deadly)
        together = asyncio.gather(*(ask(pool, b"x", b"y") for _ in range(1)), ask(pool, b"y", b"z"))
        assert await together == [422, 200] and await ask(pool, b"y") == 200
        assert [count for count in pool._deaths.values()] == [2]
        await pool.end()

    asyncio.run(run())


def test_a_log_that_is_broken_loses_no_question() -> None:
    def broken(sentence: str) -> None:
        raise BrokenPipeError

    async def run() -> None:
        deadly = ends_with(b"y")
        pool = Pool(SETTINGS, 1, [await worker_that(one) for one in (deadly, deadly)], broken)
        assert [await ask(pool, one) for one in (b"x", b"y", b"y")] == [200, 422, 503]
        await pool.end()

    asyncio.run(run())


def test_after_workers_that_lived_shortly_the_next_one_waits_ever_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pool, _ = await pool_of(*[answers] * 4)
        waits: list[float] = []

        async def replace(wait: float) -> None:
            waits.append(wait)

        monkeypatch.setattr(pool, "_replace", replace)
        for number, worker in enumerate(list(pool.workers)):
            worker.ready_at -= 3600 * (number == 0)
            worker.process.kill()
            worker.peer.cancel()  # type: ignore[attr-defined]
            async with asyncio.timeout(60):
                while len(waits) <= number:
                    await asyncio.sleep(0.01)
        assert waits == [0.0, 0.5, 1.0, 2.0]
        await pool.end()

    asyncio.run(run())


async def with_maps(pool: Pool, behaves: Behaviour) -> Worker:
    worker = await worker_that(behaves)

    async def ready() -> Worker:
        return worker

    pool._looking = asyncio.create_task(ready())
    await pool._looking
    return worker


def test_maps_that_are_being_drawn_are_finished_before_a_pool_ends() -> None:
    drawn = 0

    async def draws(message: Message) -> Message:
        nonlocal drawn
        await asyncio.sleep(0.1)
        drawn += 1
        return Message({"drawn": drawn})

    async def run() -> None:
        pool, _ = await pool_of(answers)
        await with_maps(pool, draws)
        expires = asyncio.get_running_loop().time() + 60
        looks = [asyncio.create_task(pool.look({}, b"", expires)) for _ in range(3)]
        await asyncio.sleep(0)
        await pool.finish()
        assert [(await look).head["drawn"] for look in looks] == [1, 2, 3]
        with pytest.raises(Refusal, match="The server ends"):
            await pool.look({}, b"", expires)

    asyncio.run(run())


def test_a_worker_for_maps_that_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        pool, _ = await pool_of(answers)
        expires, files = asyncio.get_running_loop().time() + 60, len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(sys, "executable", "/nowhere")
        for _ in range(2):
            with pytest.raises(Refusal, match="could not be started") as caught:
                await pool.look({}, b"", expires)
            assert caught.value.status == 503
        assert len(os.listdir("/proc/self/fd")) == files
        await with_maps(pool, answers)
        assert await pool.look({}, b"", expires)
        await pool.end()

    asyncio.run(run())


def test_a_worker_for_maps_that_ended_while_it_rested_is_not_asked() -> None:
    async def run() -> None:
        pool, _ = await pool_of(answers)
        worker = await with_maps(pool, answers)
        worker.process.kill()
        worker.peer.cancel()  # type: ignore[attr-defined]
        pool._start_looking = lambda: worker_that(answers)  # type: ignore[method-assign]
        assert await pool.look({}, b"", asyncio.get_running_loop().time() + 60)
        await pool.end()

    asyncio.run(run())


@pytest.fixture
def torch_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """In the processes that are started from now on."""
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'came')!r}, 'w')\nimport time\ntime.sleep(1000)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    return {"came": str(tmp_path / "came")}


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_worker_whose_start_is_cancelled_leaves_nothing(torch_never_comes: dict[str, str]) -> None:
    async def run() -> None:
        before, files = children(os.getpid()), len(os.listdir("/proc/self/fd"))
        starting = asyncio.create_task(Pool.open(SETTINGS, 2, 1, print))
        async with asyncio.timeout(60):
            while not Path(torch_never_comes["came"]).exists():
                await asyncio.sleep(0.02)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.sleep(0)
        assert children(os.getpid()) == before and len(os.listdir("/proc/self/fd")) == files

    asyncio.run(run())


def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vitral", "serve", "nowhere", "--port", "0", "--workers", "1", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **more)


def wait_until(holds: Callable[[], object]) -> None:
    import time

    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_while_it_loads_sighup_does_nothing_and_sigterm_ends_it(torch_never_comes: dict[str, str]) -> None:
    with start() as server:
        wait_until(Path(torch_never_comes["came"]).exists)
        [worker] = children(server.pid)
        assert os.getsid(int(worker)) != os.getsid(server.pid)  # no Ctrl-C comes to it
        server.send_signal(signal.SIGHUP)
        server.send_signal(signal.SIGTERM)
        assert server.stderr and server.stderr.read() == "Ended before it began.\n"
        assert server.wait(60) == 0 and not Path(f"/proc/{worker}").exists()


def test_a_worker_ends_with_its_front_even_while_it_imports(torch_never_comes: dict[str, str]) -> None:
    with start() as server:
        wait_until(Path(torch_never_comes["came"]).exists)
        [worker] = children(server.pid)
        server.kill()
    wait_until(lambda: state_of(worker) in ("", "Z"))


def state_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
