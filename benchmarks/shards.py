"""Pictures in shards, near and far, beside the pack.     python benchmarks/shards.py [epoch|blocks] [rounds]

Photographs of 400 × 300 pixels in eight tars are decoded, resized, cropped at random and normalised, in batches of 64:
one epoch, as a training sees it. Far ones come from a server on this machine (tests/faulty_server.py, in a process of
its own), on whose line 50 ms of latency and 20 Mbit/s can be put. All cases take turns in every round, each time with
an empty cache, and the median of their ratios to the pack is told, because these machines are shared.

`blocks`: how long the store alone takes for all pictures in that order, with blocks of several sizes.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from faulty_server import FaultyServer
from vitral import Preprocess
from vitral.data.batches import Batches
from vitral.data.config import Augment, Data
from vitral.data.pack import pack
from vitral.data.sources import Index, open_source
from vitral.data.sources.shards import Shards
from vitral.data.stores.cache import Cache
from vitral.data.stores.far import Far
from vitral.data.stores.http import Web
from vitral.data.stores.patience import Retries
from vitral.data.stream import Stream
from vitral.data.write_shards import plan_shards, writing_shards
from vitral.progress import drain

PICTURES, BATCH, SHARDS = 512, 64, 8
SEEN = Preprocess(image_size=(160, 160), channels=3, jpeg="scaled", mean=(0.5,) * 3, std=(0.25,) * 3)
LINES = {
    "http": (0.0, 0.0),
    "http, 50 ms": (0.05, 0.0),
    "http, 20 Mbit/s": (0.0, 20e6),
    "http, 50 ms, 20 Mbit/s": (0.05, 20e6),
}


def photographs(folder: Path) -> None:
    """Parts of scikit-learn's two photographs, each another one."""
    random = np.random.default_rng(0)
    whole = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    for number in range(PICTURES + 8):  # the last few are for validation and test: all others are learnt from
        left, top = int(random.integers(0, 240)), int(random.integers(0, 120))
        split = "train" if number < PICTURES else ("val", "test")[number // 2 % 2]
        path = folder / split / ("china", "flower")[number % 2] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole[number % 2].crop((left, top, left + 400, top + 300)).save(path, quality=90)


def serve(folder: Path, latency: float, bits_per_second: float) -> None:
    """In a process of its own, so that it takes no time from the one that reads; it ends when its input does."""
    with FaultyServer(folder, latency=latency, bits_per_second=bits_per_second) as server:
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def server_of(folder: Path, latency: float, bits_per_second: float) -> Iterator[str]:
    command = [sys.executable, __file__, "serve", str(folder), str(latency), str(bits_per_second)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def opened(source: str, directory: Path) -> Index:
    return open_source(Data(source=source, directory=str(directory)))


def batches_of(index: Index, directory: Path) -> Batches:
    given = Augment(crop=0.5, flip="random")
    return Batches(pack(index, SEEN, directory), SEEN, given, batch_size=BATCH, seed=0, workers=1)


def seconds_of(batches: Batches) -> tuple[float, float]:
    """Until the first batch is there, and until all are."""
    began, first, count = time.perf_counter(), 0.0, 0
    stream = batches.starting_at(1)
    for _, batch in islice(stream, batches.steps_per_epoch):
        first, count = first or time.perf_counter() - began, count + len(batch.samples)
    seconds = time.perf_counter() - began
    stream.close()
    assert count == PICTURES
    return first, seconds


def epoch(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, out, directory = Path(place, "photos"), Path(place, "shards"), Path(place, "data")
        photographs(folder)
        index = opened(str(folder), directory)
        drain(writing_shards(index, out, plan_shards(index, None, "file", None, SHARDS)))
        size = sum(path.stat().st_size for path in out.glob("*.tar"))
        print(f"{PICTURES:,} photographs, {size / 1e6:.0f} MB in {SHARDS} shards, {size / PICTURES / 1e3:.0f} kB each")
        packed = batches_of(index, directory)
        seconds: dict[str, list[tuple[float, float]]] = {}

        def measure(name: str, batches: Batches) -> None:
            seconds.setdefault(name, []).append(seconds_of(batches))

        for turn in range(rounds):
            measure("pack", packed)
            measure("shards here", batches_of(opened(f"shards:{out}", directory), directory))
            for name, line in LINES.items():
                with server_of(out, *line) as url:
                    for kind in ("", ", nothing fetched ahead")[: 1 if line[1] else 2]:
                        cache = directory / f"{turn} {name}{kind}"
                        far = batches_of(opened(f"shards:{url}", cache), cache)
                        if kind:
                            far.pack.images.expect = lambda samples: nullcontext()  # type: ignore[union-attr]
                        measure(name + kind, far)
                        if line == (0.0, 20e6):  # the first batch needs fewer places
                            shutil.rmtree(cache / "blocks")
                            few = replace(batches_of(opened(f"shards:{url}", cache), cache), window=1)
                            measure(f"{name}, data.window=1", few)
                        if name == "http" and not kind:
                            measure("http, second epoch", batches_of(opened(f"shards:{url}", cache), cache))
                        shutil.rmtree(cache / "blocks", ignore_errors=True)
            tell(seconds, size)  # after each round: it can be stopped at any time


def tell(seconds: dict[str, list[tuple[float, float]]], size: int) -> None:
    rounds = len(seconds["pack"])
    print(f"\n{rounds} rounds; median of pictures/s (least, most); beside the pack; s to the first batch; Mbit/s")
    for name, times in seconds.items():
        rates = sorted(PICTURES / whole for _, whole in times)
        ratio = statistics.median(pack / one for (_, pack), (_, one) in zip(seconds["pack"], times, strict=True))
        first = statistics.median(first for first, _ in times)
        speed = statistics.median(rates)
        mbits = f"{speed * size / PICTURES * 8 / 1e6:6.1f}" if name.startswith("http") else ""
        print(
            f"{name:36} {speed:7.0f} ({rates[0]:.0f}, {rates[-1]:.0f})  {ratio:5.2f} {first:6.1f}  {mbits}", flush=True
        )


def blocks(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place, "photos"), Path(place, "shards")
        photographs(folder)
        index = opened(str(folder), Path(place))
        drain(writing_shards(index, out, plan_shards(index, None, "file", None, SHARDS)))
        near = opened(f"shards:{out}", Path(place))
        storage, order = near.storage, batches_of(near, Path(place))._order(0)[0]
        assert isinstance(storage, Shards) and isinstance(pack(near, SEEN, Path(place)).images, Stream)
        ranges = list(storage._ranges(order))
        cases = [(256, True), (1024, True), (4096, True), (1024, False)]
        for name, line in LINES.items():
            seconds: dict[tuple[int, bool], list[float]] = {case: [] for case in cases}
            with server_of(out, *line) as url:
                for turn, (kib, is_ahead) in product(range(rounds), cases):
                    retries = Retries()
                    cache = Cache(Path(place, f"{name} {kib} {turn}"), 2**30, block=kib * 1024)
                    store = Far(Web(url, retries), cache, retries)
                    began = time.perf_counter()
                    with store.expect(ranges if is_ahead else ()):
                        for shard, start, size in ranges:
                            store.read(shard, start, size)
                    seconds[kib, is_ahead].append(time.perf_counter() - began)
                    store.close()
                    shutil.rmtree(cache.folder)
            for (kib, is_ahead), times in seconds.items():
                told = f"{statistics.median(times):6.2f} s ({min(times):.2f} to {max(times):.2f})"
                print(f"{name:24} {told}, blocks of {kib} KiB{'' if is_ahead else ', nothing ahead'}", flush=True)


if __name__ == "__main__":
    os.environ["no_proxy"] = "*"
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
    else:
        what, rounds = (sys.argv[1:] + ["epoch", "3"])[:2] if len(sys.argv) > 1 else ("epoch", "3")
        {"epoch": epoch, "blocks": blocks}[what](int(rounds) if rounds.isdigit() else 3)
