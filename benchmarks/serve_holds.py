"""A server under what it has to stand, at full length.     python benchmarks/serve_holds.py [TRIAL ...] [--seconds 60]

`overload`: ViT-Ti/16 at 224 pixels (from the data directory) is asked for ten times what it answers. `kill`: a worker
is ended with `kill -9` every 3 seconds, while 16 clients ask. `change`: five takeovers of a new model and then SIGTERM,
while 16 clients ask. `idle`: 1,000 connections that say nothing, half a head or half a body, twice. `nonsense`: more
than 5,000 requests, by schemathesis from /openapi.json and damaged ones over raw sockets. All but the first ask a quick
run of the digits.

Every answer is compared with that of `Classifier`. A line of JSON for each trial; `held` says whether what
docs/serve.md promises was kept; if not, the exit code is 1. All load is on this machine, and ends by itself.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from conftest import quick_digits
from serving import Client, Serving, allow_files, damaged, digits, last, read_reply, request, resident, same
from vitral import Classifier, Run, train

DATA = Path(os.environ.get("VITRAL_DATA") or Path.home() / ".cache" / "vitral")
CORES = len(os.sched_getaffinity(0))
TWO = ("--workers", 2, "--threads", 1)

Figures = dict[str, Any]
Made = Callable[[int], Run]  # a run of this seed


def expected_of(source: Path, pictures: list[bytes]) -> list[dict[str, Any]]:
    return [one.write(top=100_000) for one in Classifier.load(source).predict(pictures)]


async def asked_while(work: Coroutine[Any, Any, None], *asking: Callable[[Callable[[], bool]], Any]) -> None:
    """Do something while these ask."""
    goes_on = True
    tasks = [asyncio.create_task(one(lambda: goes_on)) for one in asking]
    try:
        await work
    finally:
        goes_on = False
        await asyncio.gather(*tasks)


def told(client: Client, expected: list[dict[str, Any]]) -> Figures:
    """What came of it."""
    return {
        "statuses": {str(status): count for status, count in sorted(client.statuses.items())},
        "wrong": client.wrong(expected),
        "broken": len(client.broken),
        "broken_by": sorted(set(client.broken)),
        "without_retry_after": sum("retry-after" not in headers for headers in client.refusals),
    }


def overload(make: Made, seconds: float) -> Figures:
    """Ten times what it answers."""
    source, deadline = DATA / "weights" / "vit_tiny_patch16_224", 2.0
    pictures = [path.read_bytes() for path in sorted((DATA / "imagenette-mini" / "val").rglob("*.JPEG"))[:50]]
    expected = expected_of(source, pictures)
    allow_files(4_096)
    with Serving(f"model={source}", "--workers", CORES, "--threads", 1, "--deadline", deadline) as server:
        first, client = Client(server.port, pictures), Client(server.port, pictures)
        asyncio.run(asked_while(asyncio.sleep(8), lambda goes_on: first.run(32, goes_on)))
        rate = len(first.answers) / 8
        processes, memory = [server.process.pid, *server.workers()], list[list[int]]()

        async def watch() -> None:
            await asyncio.sleep(min(10, seconds / 4))  # by then it has had batches of every size
            for _ in range(int(seconds - min(10, seconds / 4))):
                memory.append([resident(pid) for pid in processes])
                await asyncio.sleep(1)

        started_at = time.monotonic()
        asyncio.run(asked_while(watch(), lambda goes_on: client.offer(10 * rate, goes_on), client.probe))
        passed = time.monotonic() - started_at
        batch = server.metric("vitral_slowest_batch_seconds")
        growth = max(max(one) / one[0] - 1 for one in zip(*memory, strict=True))
        found = told(client, expected) | {
            "seconds": passed,
            "answers_a_second_before": rate,
            "asked_a_second": sum(client.statuses.values()) / passed,
            "answers_a_second": len(client.answers) / passed,
            "p50": statistics.median(client.seconds),
            "p99": last(client.seconds),
            "deadline": deadline,
            "slowest_batch": batch,
            "slowest_probe": max(client.probes),
            "refused_p50": statistics.median(client.refused_in),
            "refused_p99": last(client.refused_in),
            "growth": growth,
            "memory_mb": [[one[0] / 1e6, max(one) / 1e6] for one in zip(*memory, strict=True)],
            "workers_ended": server.metric("vitral_worker_restarts"),
        }
    held = not found["wrong"] + found["broken"] + found["without_retry_after"] + found["workers_ended"]
    only = found["statuses"].keys() <= {"200", "429", "503"}
    return found | {"held": held and only and found["p99"] <= deadline + batch and growth < 0.1}


def kill(make: Made, seconds: float) -> Figures:
    """A worker every three seconds."""
    pictures, run, chance = digits(50), make(0), random.Random(0)
    with Serving(run.folder, *TWO, "--deadline", 30) as server:
        client, killed = Client(server.port, pictures, pause=0.05), 0

        async def end_workers() -> None:
            nonlocal killed
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                await asyncio.sleep(3)
                if workers := server.workers():
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    killed += 1

        asyncio.run(asked_while(end_workers(), lambda goes_on: client.run(16, goes_on)))
        found = told(client, expected_of(run.folder, pictures)) | {"killed": killed, "slowest": max(client.seconds)}
        server.until(lambda: len(server.workers()) == 2 and server.predict(pictures[0]).status == 200)
    held = not found["wrong"] + found["broken"] + found["without_retry_after"]
    return found | {"held": held and found["statuses"].keys() <= {"200", "503"}}


def change(make: Made, seconds: float) -> Figures:
    """Takeovers, and the end."""
    pictures, runs = digits(50), [make(0), make(1)]
    expected = [expected_of(run.folder, pictures) for run in runs]
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder) / "run"
        shutil.copytree(runs[0].folder, served)
        with Serving(served, *TWO, "--deadline", 30) as server:
            client = Client(server.port, pictures)

            async def take_over() -> None:
                for number in range(1, 6):
                    await asyncio.sleep(2)
                    shutil.copytree(runs[number % 2].folder, served, dirs_exist_ok=True)
                    server.process.send_signal(signal.SIGHUP)
                    while sum("Taken over" in line for line in server.lines) < number:
                        await asyncio.sleep(0.02)
                await asyncio.sleep(2)
                server.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(server.ended)

            asyncio.run(asked_while(take_over(), lambda goes_on: client.run(16, goes_on)))
            code = server.process.returncode
    # Who is answered while one takes over from the other may have either's answer.
    wrong = sum(not any(same(said, one[number]) for one in expected) for number, [said] in client.answers)
    stale = sum(not same(said, expected[1][number]) for number, [said] in client.answers[-100:])
    found = told(client, expected[0]) | {
        "takeovers": 5,
        "wrong": wrong,
        "stale": stale,
        "exit_code": code,
    }
    held = not wrong + stale + found["broken"] + code and found["statuses"].keys() == {"200"}
    return found | {"held": held}


def idle(make: Made, seconds: float) -> Figures:
    """A thousand who say nothing, or begin and do not go on."""
    count, picture = min(1_000, allow_files(4_096) - 256), digits(1)[0]
    starts = (
        b"",
        b"POST /predict HTTP/1.1\r\nHost:",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nbegun",
    )
    with Serving(make(0).folder, "--workers", 1, "--threads", 1) as server:
        memory, took = [server.memory()], list[list[float]]()

        def ask() -> None:
            times = []
            for _ in range(100):
                started_at = time.monotonic()
                assert server.predict(picture).status == 200
                times.append(time.monotonic() - started_at)
            took.append(times)

        ask()
        for _ in range(2):
            with ExitStack() as stack:
                connections = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(count)
                ]
                for one, start in zip(connections, itertools.cycle(starts)):
                    one.sendall(start)
                ask()
                memory.append(server.memory())
                began_at = time.monotonic()
                for one in connections:
                    one.settimeout(60)
                    while one.recv(65_536):
                        pass
                dropped = time.monotonic() - began_at
        p50 = [1000 * statistics.median(times) for times in took]
    found = {"connections": count, "ms_alone": p50[0], "ms_with_them": p50[1:], "all_dropped_after": dropped}
    growth = memory[2] / memory[1] - 1
    return found | {"memory_mb": [one / 1e6 for one in memory], "growth": growth, "held": growth < 0.1}


def nonsense(make: Made, seconds: float) -> Figures:
    """What schemathesis makes of the description, and damaged requests over raw sockets."""
    chance, pictures, statuses = random.Random(0), digits(20), Counter[int]()
    program = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise SystemExit("Its requests are made by schemathesis: pip install schemathesis")

    async def send(port: int, content: bytes, reads: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(content)
            if reads:
                async with asyncio.timeout(0.3):  # what is incomplete has no answer: hang up
                    while True:
                        statuses[(await read_reply(reader))[0]] += 1
        except (EOFError, OSError, TimeoutError, ValueError, KeyError):
            pass
        finally:
            writer.close()

    async def send_all(port: int, count: int) -> None:
        for _ in range(count // 50):
            contents = [damaged(request(chance.choice(pictures)), chance) for _ in range(50)]
            await asyncio.gather(*(send(port, one, chance.random() < 0.8) for one in contents))

    with Serving(make(0).folder, *TWO, "--deadline", 60) as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(send_all(server.port, 500))
        before = server.memory()
        asyncio.run(send_all(server.port, 2_500))
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        command = [program, "run", address, "--checks", checks, "--max-examples", "300", "--seed", "1"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        made = re.search(r"([\d,]+) generated", done.stdout)
        growth = server.memory() / before - 1
        lines = server.ask("GET", "/metrics").content.decode().splitlines()
        by_status = Counter[str]()
        for line in lines:
            if match := re.match(r'vitral_requests_total\{.*status="(\d+)"\} (\S+)', line):
                by_status[match[1]] += int(float(match[2]))
        traces = sum("Traceback" in line for line in server.lines)
        goes_on = server.predict(pictures[0]).status == 200
    failed = sum(count for status, count in by_status.items() if status >= "500")
    found: Figures = {
        "raw": 3_000,
        "raw_statuses": dict(sorted(statuses.items())),
        "schemathesis": made[1] if made else done.stdout,
    }
    found |= {"statuses": dict(sorted(by_status.items())), "growth": growth, "traces": traces}
    held = not (failed - by_status["503"] + traces + done.returncode) and goes_on and growth < 0.1
    return found | {"held": held}


TRIALS = {one.__name__: one for one in (overload, kill, change, idle, nonsense)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("trials", nargs="*", metavar="TRIAL", choices=[*TRIALS, []])
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload, and of kill")
    asked, held = parser.parse_args(), True
    with tempfile.TemporaryDirectory() as folder:

        def make(seed: int) -> Run:
            out = Path(folder) / str(seed)
            recipe = quick_digits().changed({"train.seed": seed})
            return Run(out) if out.exists() else train(recipe, out=out)

        for name in asked.trials or TRIALS:
            found = TRIALS[name](make, asked.seconds)
            held = held and found["held"]
            print(json.dumps({"trial": name, "load": os.getloadavg()[0], **rounded(found)}), flush=True)
    return 0 if held else 1


def rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return round(found, 4) if isinstance(found, float) else found


if __name__ == "__main__":
    sys.exit(main())
