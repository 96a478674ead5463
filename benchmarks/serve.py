"""A server under load, beside LitServe and beside a plain loop.     python benchmarks/serve.py [MODEL ...] [--rounds 3]

MODEL is `tiny` (ViT-Ti/16 at 224 pixels, from the data directory, on its pictures), `tiny-onnx`, the same as an ONNX
file, or `cifar` (60 steps of the recipe cifar10, at 32 pixels, on pictures of that set). `plain` decodes, prepares and
asks in batches of 32, from the same JPEG bytes: a process of one thread on each core, or one process with them all,
whichever is faster. The two servers answer the same bodies (a JPEG as base64 in JSON) with as many workers of a thread
each. LitServe has the best of batches of 8 and 32 and three timeouts, found first. Clients are a process of their own,
each with a connection that it keeps, and ask again as soon as they are answered.

All take turns in every round; who has no turn is stopped (SIGSTOP). Told is the median of the rounds, with the least
and most; machines are shared, so ratios are those of a round, and `core_ms` tells what a picture takes of a core in all
processes of a server, whatever else the machine does. Results go to docs/serve/load.json, with a figure.
LitServe (0.2.19) is not a dependency: pip install --target FOLDER litserve, and PYTHONPATH=FOLDER.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("VITRAL_DATA") or Path.home() / ".cache" / "vitral")
OUT = ROOT / "docs" / "serve"
BATCH, CLIENTS, PICTURES = 32, (1, 8, 64), 200
CORES = len(os.sched_getaffinity(0))


def ask_in_batches(source: str, pictures: list[bytes], seconds: float, threads: int) -> tuple[float, float]:
    """Pictures a second, and milliseconds of a core for each, without a server."""
    import numpy as np
    import torch

    from vitral import Classifier
    from vitral.graph import GRAPHS, GraphModel

    torch.set_num_threads(threads)
    graph = Path(source).suffix in GRAPHS
    classifier = Classifier(GraphModel.read(Path(source), threads=threads)) if graph else Classifier.load(source)
    batches = [pictures[start : start + BATCH] for start in range(0, len(pictures) - BATCH + 1, BATCH)]

    def ask(batch: list[bytes]) -> None:
        classifier.inference.answers(np.stack([classifier.preprocess.resized(one) for one in batch]))

    ask(batches[0])
    print("ready", flush=True)
    sys.stdin.readline()  # all processes begin together
    done, started_at, busy_at = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started_at < seconds:
        ask(batches[done % len(batches)])
        done += 1
    rate = done * BATCH / (time.perf_counter() - started_at)
    return rate, 1000 * (time.process_time() - busy_at) / (done * BATCH)


async def load(port: int, clients: int, seconds: float, pictures: list[bytes]) -> dict[str, Any]:
    """What so many clients were answered, and how soon."""
    bodies = [json.dumps({"image": base64.b64encode(one).decode()}).encode() for one in pictures]
    head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    requests = [head.format(len(body)).encode() + body for body in bodies]
    took, failed, until = list[float](), 0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            number, started_at = (number + 1) % len(requests), time.perf_counter()
            writer.write(requests[number])
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(line for line in answer.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            if answer.split()[1] == b"200":
                took.append(time.perf_counter() - started_at)
            else:
                failed += 1
        writer.close()

    started_at = time.perf_counter()
    await asyncio.gather(*(client(7 * number) for number in range(clients)))
    passed, took = time.perf_counter() - started_at, sorted(took)
    p50, p95, p99 = (1000 * took[min(int(share * len(took)), len(took) - 1)] for share in (0.5, 0.95, 0.99))
    return {"answers": len(took), "rate": len(took) / passed, "p50": p50, "p95": p95, "p99": p99, "failed": failed}


def this(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    """This file, as a process."""
    return subprocess.Popen([sys.executable, __file__, *map(str, arguments)], text=True, **more)


class Server:
    """A server in a group of processes, which is stopped while others have their turn."""

    def __init__(self, command: list[object], port: int) -> None:
        self.port = port
        self.process = subprocess.Popen(
            [*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def load(self, clients: int, seconds: float, folder: str) -> dict[str, Any]:
        """What a process of its own makes of it."""
        busy = self._busy()
        # In a session of its own, as each server is and as all plain loops together are: a busy Linux gives each
        # session the same share of the machine, however many processes it has.
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "start_new_session": True}
        done = this("load", self.port, clients, seconds, folder, **pipes)
        found: dict[str, Any] = json.loads(done.communicate(timeout=seconds + 120)[0])
        return found | {"core_ms": 1000 * (self._busy() - busy) / found["answers"], "memory": self._memory()}

    def signal(self, sign: signal.Signals) -> None:
        os.killpg(self.process.pid, sign)

    def _processes(self) -> list[Path]:
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [Path(f"/proc/{pid}") for pid in pids if _group(pid) == self.process.pid]

    def _busy(self) -> float:
        """Seconds of a core that its processes have had."""
        ticks = [(path / "stat").read_text().rpartition(")")[2].split()[11:13] for path in self._processes()]
        return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")

    def _memory(self) -> float:
        """MB of its processes, what they share counted once."""
        lines = [line for path in self._processes() for line in (path / "smaps_rollup").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0  # it has ended


@contextmanager
def serving(command: list[object], port: int, folder: str) -> Iterator[Server]:
    server = Server(command, port)
    try:
        for _ in range(240):
            time.sleep(0.5)
            try:
                server.load(1, 1.0, folder)
                break
            except (ValueError, OSError):
                assert server.process.poll() is None, f"{command} has ended"
        yield server
    finally:
        server.signal(signal.SIGCONT)
        server.signal(signal.SIGKILL)
        server.process.wait()


def plain(source: str, folder: str, seconds: float) -> dict[str, float]:
    """Pictures a second of the faster plain loop, and milliseconds of a core for each."""

    def measured(processes: int, threads: int) -> dict[str, float]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started = [this("plain", source, folder, seconds, threads, **pipes) for _ in range(processes)]
        for one in started:
            assert one.stdout and one.stdout.readline()
        for one in started:
            assert one.stdin
            one.stdin.write("go\n")
            one.stdin.flush()
        rates, busy = zip(*(map(float, one.communicate()[0].split()) for one in started), strict=True)
        return {"rate": sum(rates), "core_ms": statistics.mean(busy)}

    return max(measured(CORES, 1), measured(1, CORES), key=lambda one: one["rate"])


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def vitral_command(source: str, port: int) -> list[object]:
    command = [sys.executable, "-m", "vitral", "serve", f"model={source}", "--port", port]
    return [*command, "--deadline", 60, "--workers", CORES, "--threads", 1]


def litserve_command(source: str, port: int, batch: int, timeout: float) -> list[object]:
    return [sys.executable, Path(__file__).with_name("serve_litserve.py"), source, port, batch, timeout, CORES]


def best_of_litserve(source: str, folder: str, seconds: float) -> tuple[int, float]:
    """Batch and timeout with which it answers most for 64 clients."""
    rates = {}
    for batch, timeout in product((8, 32), (0.001, 0.01, 0.05)):
        port = free_port()
        with serving(litserve_command(source, port, batch, timeout), port, folder) as server:
            rates[batch, timeout] = server.load(CLIENTS[-1], seconds, folder)["rate"]
        print(f"LitServe, batches of {batch}, {1000 * timeout:g} ms: {rates[batch, timeout]:.1f} a second")
    return max(rates, key=rates.__getitem__)


def compare(source: str, folder: str, rounds: int, seconds: float, best: list[float] | None) -> dict[str, Any]:
    """All of them, in turns."""
    batch, timeout = (int(best[0]), best[1]) if best else best_of_litserve(source, folder, seconds)
    ports = free_port(), free_port()
    rows: list[dict[str, Any]] = []
    with (
        serving(vitral_command(source, ports[0]), ports[0], folder) as ours,
        serving(litserve_command(source, ports[1], batch, timeout), ports[1], folder) as theirs,
    ):
        servers = {"vitral": ours, "litserve": theirs}
        for one in servers.values():
            one.signal(signal.SIGSTOP)
        turns = [("plain", 0), *product(servers, CLIENTS)]
        for number in range(rounds):
            random.shuffle(turns)
            for name, clients in turns:
                if name == "plain":
                    found: dict[str, Any] = plain(source, folder, seconds)
                else:
                    servers[name].signal(signal.SIGCONT)
                    found = servers[name].load(clients, seconds, folder)
                    servers[name].signal(signal.SIGSTOP)
                rows.append({"round": number, "name": name, "clients": clients, "load": os.getloadavg()[0], **found})
                print(json.dumps(rows[-1]), flush=True)
    return {"cores": CORES, "litserve": {"batch": batch, "timeout": timeout}, "seconds": seconds, "rows": rows}


def ratio(rows: list[dict[str, Any]], one: tuple[str, int], other: tuple[str, int]) -> str:
    """How many times as many, the median of the rounds (least to most)."""
    rates = {(row["round"], row["name"], row["clients"]): row["rate"] for row in rows}
    found = [rates[number, *one] / rates[number, *other] for number in sorted({row["round"] for row in rows})]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def tell(name: str, found: dict[str, Any]) -> None:
    rows = found["rows"]
    print(f"\n{name}: × plain loop {ratio(rows, ('vitral', 64), ('plain', 0))}, × LitServe", end=" ")
    print(", ".join(f"{ratio(rows, ('vitral', n), ('litserve', n))} with {n}" for n in CLIENTS), "clients")
    for way, clients in [("plain", 0), *product(("vitral", "litserve"), CLIENTS)]:
        mine = [row for row in rows if (row["name"], row["clients"]) == (way, clients)]
        keys = [key for key in ("rate", "core_ms", "p50", "p95", "p99", "memory") if key in mine[0]]
        cells = [f"{key} {statistics.median(row[key] for row in mine):.1f}" for key in keys]
        print(f"  {way} {clients or ''}: {', '.join(cells)}")


TITLES = {"tiny": "ViT-Ti/16, 224 px", "tiny-onnx": "the same as ONNX", "cifar": "recipe cifar10, 32 px"}


def draw(results: dict[str, Any]) -> None:
    """Pictures a second, for each model: the median of the rounds, with the least and most."""
    import matplotlib.pyplot as plt

    results = {name: results[name] for name in TITLES if name in results}
    figure, axes = plt.subplots(1, len(results), figsize=(3.4 * len(results), 3.4), squeeze=False, layout="constrained")
    for axis, (name, found) in zip(axes[0], results.items(), strict=True):
        for place, (way, label, colour) in enumerate((("vitral", "Vitral", "C0"), ("litserve", "LitServe", "C1"))):
            rates = [
                sorted(row["rate"] for row in found["rows"] if (row["name"], row["clients"]) == (way, n))
                for n in CLIENTS
            ]
            middle = [statistics.median(one) for one in rates]
            spread = [
                [one - each[0] for one, each in zip(middle, rates, strict=True)],
                [each[-1] - one for one, each in zip(middle, rates, strict=True)],
            ]
            places = [n + 0.4 * (place - 0.5) for n in range(len(CLIENTS))]
            axis.bar(places, middle, 0.38, yerr=spread, label=label, color=colour, ecolor="0.25", capsize=3)
        plain = statistics.median(row["rate"] for row in found["rows"] if row["name"] == "plain")
        axis.axhline(plain, color="0.35", linestyle="--", linewidth=1.2, label="a plain loop, without a server")
        axis.set(xticks=range(len(CLIENTS)), xticklabels=CLIENTS, xlabel="clients")
        axis.set_title(TITLES.get(name, name), fontsize="medium")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("pictures a second")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(OUT / "load.png", dpi=150)
    plt.close(figure)


def prepare(name: str, folder: Path) -> tuple[str, str]:
    """The model, and a folder with its pictures."""
    if name.startswith("tiny"):
        source, pictures = DATA / "weights" / "vit_tiny_patch16_224", DATA / "imagenette-mini" / "val"
        if name == "tiny-onnx":
            from vitral.deploy.export import export

            export(source, folder / "tiny.onnx", folder=pictures)
            source = folder / "tiny.onnx"
        return str(source), str(pictures)
    from PIL import Image

    from vitral.data.config import Data
    from vitral.data.sources import open_source

    run = ROOT / "build" / "cifar10-60steps"  # is kept for the next time
    if not run.exists():
        command = [sys.executable, "-m", "vitral", "train", "cifar10", "train.budget=60steps", "--out", str(run)]
        subprocess.run(command, check=True)
    (folder / "pictures").mkdir()
    index = open_source(Data(source="cifar10"))
    for number in range(PICTURES):
        Image.fromarray(index.storage.read(number)).save(folder / "pictures" / f"{number:03}.JPEG", quality=90)
    return str(run), str(folder / "pictures")


def read(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(Path(folder).rglob("*.JPEG"))[:PICTURES]]


def main() -> None:
    kind, *given = [*sys.argv[1:], ""]
    if kind == "plain":
        print(*ask_in_batches(given[0], read(given[1]), float(given[2]), int(given[3])))
    elif kind == "load":
        print(json.dumps(asyncio.run(load(int(given[0]), int(given[1]), float(given[2]), read(given[3])))))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("models", nargs="*", default=["tiny", "tiny-onnx", "cifar"])
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--seconds", type=float, default=5.0)
        parser.add_argument(
            "--litserve", nargs=2, type=float, metavar=("BATCH", "SECONDS"), help="known to be its best"
        )
        asked = parser.parse_args()
        path = OUT / "load.json"
        results = json.loads(path.read_text()) if path.exists() else {}
        for name in asked.models:
            with tempfile.TemporaryDirectory() as folder:
                results[name] = compare(*prepare(name, Path(folder)), asked.rounds, asked.seconds, asked.litserve)
            path.write_text(json.dumps(results, indent=1) + "\n")
            tell(name, results[name])
        draw(results)


if __name__ == "__main__":
    main()
