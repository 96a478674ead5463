"""The constants of `scale.py` on this machine, and whether its model of a step is true here.

    python benchmarks/scale_probe.py --out docs/scale/measured.json --pictures ~/.cache/vitral/ants-bees

Two processes of one thread each, on gloo. The constants come from what one of them does alone (steps of six ViTs, a
copy in memory) and from collectives of both with nothing between them. Then both take real steps of three other ViTs,
as `vitral train` takes them (DDP) and with torch's `fully_shard` by block, and these are compared with what the model
foresees. Medians; every round goes through everything, so that a busy time of the machine falls on all alike. Two
processes wait for each other, so a machine with other work on its cores tells nothing: go before it, as by `chrt -r 1`,
or wait.
"""

import argparse
import copy
import json
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from scale import Here, Shape, small, step_here
from scipy.optimize import nnls
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from vitral.data.batches import Batch
from vitral.data.preprocess import Preprocess
from vitral.model.vit import ViT
from vitral.processes import Processes
from vitral.recipe import Recipe
from vitral.training.learner import Learner

FITTED = [(192, 4), (192, 10), (256, 8), (320, 4), (448, 8), (512, 4)]  # (width, depth): constants are from these
CHECKED = [(256, 5), (384, 6), (448, 4)]  # and these are foreseen
SIZES = [2**16, 2**20, 2**22, 2**24]  # bytes of a collective


def model_of(width: int, depth: int) -> ViT:
    torch.manual_seed(0)
    return ViT(small(width, depth)).train()


def own_step(model: ViT, batch: int, processes: Processes) -> Callable[[], None]:
    """A step of `vitral train` with AdamW: each process has `batch` pictures of it."""
    train = Recipe().changed({"train.batch_size": batch * processes.world, "train.precision": "float32"}).train
    learner = Learner(model, train, processes=processes)
    images, labels = torch.randn(batch, 3, 64, 64), torch.zeros(batch, dtype=torch.int64)
    some = Batch(images, labels, np.arange(batch), labels)

    def step() -> None:
        learner.gradients(1, some, progress=1.0)
        learner.update(1, share=1.0)

    return step


def sharded_step(model: ViT, batch: int) -> Callable[[], None]:
    """The same with FSDP2, by block."""
    shards = sharded(model)
    optimizer = torch.optim.AdamW(shards.parameters(), lr=1e-3)
    images, labels = torch.randn(batch, 3, 64, 64), torch.zeros(batch, dtype=torch.int64)

    def step() -> None:
        cross_entropy(shards(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def sharded(model: ViT) -> ViT:
    model = copy.deepcopy(model)
    for block in model.repeated_blocks():
        fully_shard(block)
    return fully_shard(model)


def collectives(world: int) -> dict[str, Callable[[torch.Tensor], Any]]:
    return {
        "all_reduce": distributed.all_reduce,
        "all_gather": lambda whole: distributed.all_gather_into_tensor(whole, whole.chunk(world)[0].clone()),
        "reduce_scatter": lambda whole: distributed.reduce_scatter_tensor(whole.chunk(world)[0].clone(), whole),
    }


def seconds(action: Callable[[], Any]) -> float:
    started_at = time.perf_counter()
    action()
    return time.perf_counter() - started_at


def work(rank: int, world: int, options: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, world), rank=rank, world_size=world)
    took: dict[str, list[float]] = defaultdict(list)
    alone = {size: own_step(model_of(*size), options.batch, Processes()) for size in FITTED}
    both = {}
    for size in CHECKED:
        both["replicate", size] = own_step(model_of(*size), options.batch, Processes(rank, world))
        both["shard", size] = sharded_step(model_of(*size), options.batch)
    block = torch.ones(2**22)  # 16 MiB
    for round_number in range(options.rounds + 1):
        keep = round_number >= 1  # the first one warms up
        if rank == 0:
            for size, step in alone.items():
                took[f"alone {size}"] += [seconds(step)] * keep
            took["copy"] += [seconds(block.clone)] * keep
        for name, collective in collectives(world).items():
            for size in SIZES:
                whole = torch.ones(size // 4)
                distributed.barrier()
                took[f"{name} {size}"] += [seconds(lambda: [collective(whole) for _ in range(4)]) / 4] * keep  # noqa: B023
        for (way, size), step in both.items():
            distributed.barrier()
            took[f"{way} {size}"] += [seconds(step)] * keep
    if rank == 0:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report(took, options), indent=1) + "\n")
    distributed.barrier()
    distributed.destroy_process_group()


def decoding(folder: Path) -> float:
    """Seconds of one core for a byte of a JPEG, from its file to what a pack holds of it."""
    preprocess = Preprocess(image_size=(224, 224), channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:200]
    started_at = time.thread_time()
    for path in paths:
        preprocess.stored(path)
    return (time.thread_time() - started_at) / sum(path.stat().st_size for path in paths)


def report(took: dict[str, list[float]], options: argparse.Namespace) -> dict[str, Any]:
    median = {name: statistics.median(times) for name, times in took.items()}
    shapes = [Shape.of(small(*size)) for size in FITTED]
    # Each row is divided by its time: what is fitted are shares, of large models as of small ones.
    times = np.array([median[f"alone {size}"] for size in FITTED])
    terms = np.array([[s.flops * options.batch, s.parameters, s.blocks] for s in shapes])
    scale = terms.max(axis=0)
    costs, _ = nnls(terms / scale / times[:, None], np.ones(len(times)))
    flop, parameter, block = (costs / scale).tolist()
    wires = {}
    for name in collectives(2):
        per_byte, at_all = np.polyfit(SIZES, [median[f"{name} {size}"] for size in SIZES], 1)
        wires[name] = [max(0.0, float(at_all)), float(per_byte)]
    here = Here(flop, parameter, block, median["copy"] / 2**24, wires)
    checks = []
    for width, depth in CHECKED:
        shape = Shape.of(small(width, depth))
        for way in ("replicate", "shard"):
            times_here = took[f"{way} {(width, depth)}"]
            checks.append({
                "way": way, "width": width, "depth": depth, "parameters": shape.parameters, "batch": options.batch,
                "foreseen": step_here(shape, options.batch, way, here),
                "measured": statistics.median(times_here), "quartiles": np.quantile(times_here, [0.25, 0.75]).tolist(),
            })  # fmt: skip
    fit = [[float(time), float(row @ (costs / scale))] for time, row in zip(times, terms, strict=True)]
    capability = torch.backends.cpu.get_cpu_capability()
    machine = f"{platform.machine()}, {capability}, torch {torch.__version__}, two processes of one thread, gloo"
    return {
        "machine": machine,
        "rounds": options.rounds,
        "here": vars(here),
        "fit": fit,
        "checks": checks,
        "decode": decoding(options.pictures),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, required=True, help="a folder of JPEGs, to decode some")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(2, options, f"{folder}/store"), nprocs=2)  # type: ignore[no-untyped-call]
    for check in json.loads(options.out.read_text())["checks"]:
        print(
            f"{check['way']:9} width {check['width']} depth {check['depth']}: {check['foreseen']:.3f} s, then "
            f"{check['measured']:.3f} s, {check['foreseen'] / check['measured'] - 1:+.0%}"
        )


if __name__ == "__main__":
    main()
