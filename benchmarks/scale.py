"""What a step takes on many machines: a model of it, and the tables and the figure of docs/scale.md.

    python benchmarks/scale_probe.py --out docs/scale/measured.json   # constants of this machine, and the check
    python benchmarks/scale.py --out docs/scale/memory.json           # activations, by steps without numbers
    python benchmarks/scale_page.py --page docs/scale.md              # tables and figure, from these two files

A step is what the processor computes; then what the wire carries and cannot hide behind that; and a share for
checkpoints and failures. With P parameters of 4 bytes and n processes, each process sends and receives

    replicate (DDP)    2 (n − 1)/n · 4P                   once: gradients are added up
    shard (FSDP2)      (n − 1)/n · (2 · 2P · parts + 4P)  weights there and back for each part of a batch, in bfloat16,
                                                          and gradients once, each process those of its share

All that is known of accelerators here are assumptions, and stand in `Accelerator`.
"""

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitral.model.config import ViTConfig
from vitral.model.shapes import count_parameters, on_meta, shapes
from vitral.recipe import Recipe
from vitral.training.memory import forecast_memory

NAMES, COUNTS = ("B/16", "L/16", "H/14"), (8, 64, 512)
BATCH = 4096  # pictures a step, as in the paper
MOST = 64  # pictures at once on one accelerator: more are worked through in parts
MEASURED_WITH = (8, 16)  # pictures, for the line through the memory of activations


@dataclass(frozen=True)
class Accelerator:
    """An accelerator of 80 GB, eight in a machine: assumptions. Whoever has others puts in their numbers."""

    peak: float = 989e12  # operations/s in bfloat16, by the maker of the H100 SXM
    utilisation: float = (
        0.4  # of that. 38 to 43 %: Llama 3 (arXiv:2407.21783); 55 % on TPUs: ViT-22B (arXiv:2302.05442)
    )
    memory: float = 80e9  # bytes
    memory_speed: float = 3.35e12 * 0.7  # bytes/s; by its maker, and what one gets of it
    machine: int = 8  # accelerators
    near: float = 450e9 * 0.7  # bytes/s each way inside of a machine
    far: float = 50e9 * 0.7  # bytes/s each way and accelerator between machines: 400 Gbit/s
    latency: float = 5e-6  # seconds of a message, of which a collective has 2 log₂ n one after the other
    hidden: float = 0.8  # of the way back, behind which the wire can hide
    cores: int = 16  # for one accelerator
    hours_to_failure: float = 16_384 * 54 * 24 / 419  # Llama 3: 419 unplanned stops in 54 days of 16,384 accelerators
    storage: float = 2e9  # bytes/s that one machine writes
    restart: float = 600.0  # seconds from a failure until it goes on: 300 are the timeout of `vitral`


@dataclass(frozen=True)
class Pictures:
    name: str
    count: float
    epochs: int  # in the paper's table 3
    size: float = 110e3  # bytes of a JPEG: ImageNet's; of JFT nobody has published it


SETS = (Pictures("ImageNet-21k", 14_197_122, 90), Pictures("JFT-300M", 303e6, 14))


@dataclass(frozen=True)
class Shape:
    """What counts of a model."""

    flops: float  # of a picture, there and back: three times those of the way there
    parameters: int
    blocks: int

    @classmethod
    def of(cls, config: ViTConfig) -> "Shape":
        rows = shapes(config)
        return cls(3 * sum(row.flops * row.times for row in rows), count_parameters(rows), config.depth)


# This machine: constants are measured


def small(width: int, depth: int) -> ViTConfig:
    """A model that is measured."""
    return ViTConfig(image_size=64, patch_size=8, width=width, depth=depth, heads=width // 64, classes=100)


@dataclass(frozen=True)
class Here:
    """Seconds, measured by scale_probe.py: of two processes of which one computes alone, and of their wire."""

    flop: float
    parameter: float  # of the optimizer
    block: float  # of a step, whatever the sizes
    copy: float  # of a byte in memory
    wires: dict[str, list[float]]  # of a collective: at all, and for each byte


def step_here(shape: Shape, batch: int, way: str, here: Here, world: int = 2) -> float:
    """Seconds of a step of `batch` pictures on each process. The same cores carry the bytes: nothing is hidden."""
    size, owned = 4 * shape.parameters, shape.parameters / (world if way == "shard" else 1)
    alone = shape.flops * batch * here.flop + owned * here.parameter + shape.blocks * here.block

    def wire(name: str, calls: float) -> float:
        at_all, per_byte = here.wires[name]
        return calls * at_all + size * per_byte

    if way == "alone":
        return alone
    if way == "replicate":  # DDP sends 25 MiB at a time, of the first layer 1; and all hear of the loss
        return alone + wire("all_reduce", 2 + math.ceil(size / (25 * 2**20)))
    groups = shape.blocks + 1  # FSDP2 copies weights out of what came, twice, and gradients into what goes
    return alone + 2 * wire("all_gather", groups) + wire("reduce_scatter", groups) + 3 * size * here.copy


# Accelerators: assumptions


@dataclass(frozen=True)
class Plan:
    """A model on so many accelerators."""

    name: str
    count: int
    way: str  # replicate, shard
    optimizer: str = "adamw"
    recompute: bool = False
    on: Accelerator = Accelerator()

    @property
    def config(self) -> ViTConfig:
        return ViTConfig.named(self.name)

    @property
    def shape(self) -> Shape:
        return SHAPES[self.name]

    @property
    def parts(self) -> int:
        return math.ceil(BATCH / self.count / MOST)

    @property
    def at_once(self) -> float:
        return BATCH / self.count / self.parts

    @property
    def optimizer_bytes(self) -> float:
        """AdamW remembers two numbers for each parameter, Muon one for those of matrices in blocks."""
        return 8.0 * self.shape.parameters - (4.0 * MATRICES[self.name] if self.optimizer == "muon" else 0)

    def memory(self, activations: dict[str, Any]) -> dict[str, float]:
        """Bytes on each accelerator, by part."""
        size, share = 4.0 * self.shape.parameters, self.count if self.way == "shard" else 1
        known = activations[self.name]
        kept, recomputed = (_line(known[name], self.at_once) for name in ("kept", "recomputed"))
        return {
            "weights": size / share,
            "gradients": size / share,
            "optimizer": self.optimizer_bytes / share,
            "activations": recomputed + kept / self.shape.blocks if self.recompute else kept,  # and one block's
            "blocks that are whole": 3 * size / self.shape.blocks
            if self.way == "shard"
            else 0.0,  # this, next, gradient
        }

    @property
    def products(self) -> float:
        """Seconds of a step that matrices take; with recomputation all blocks but the last go there twice."""
        again = (1 - 1 / self.shape.blocks) / 3 if self.recompute else 0.0
        return self.shape.flops * (1 + again) * BATCH / self.count / (self.on.peak * self.on.utilisation)

    @property
    def update(self) -> float:
        """Seconds of the optimizer, which reads and writes seven numbers for each parameter."""
        owned = self.shape.parameters / (self.count if self.way == "shard" else 1)
        return 28 * owned / self.on.memory_speed

    @property
    def wire(self) -> float:
        """Seconds that the wire needs in a step."""
        P, n = self.shape.parameters, self.count
        sent = 8 * P if self.way == "replicate" else 4 * P * self.parts + 4 * P
        # A byte comes to a machine once, over the links of all that are in it, and goes on inside.
        speed = self.on.near if n <= self.on.machine else min(self.on.near, self.on.machine * self.on.far)
        calls = math.ceil(4 * P / (25 * 2**20)) if self.way == "replicate" else self.shape.blocks * (2 * self.parts + 1)
        return (n - 1) / n * sent / speed + calls * 2 * math.log2(n) * self.on.latency

    @property
    def step(self) -> float:
        """The wire hides behind the way back, two thirds of the products; its last part, one block's, cannot."""
        last = self.wire / self.shape.blocks
        return self.products + self.update + max(self.wire - self.on.hidden * self.products * 2 / 3, last)

    @property
    def efficiency(self) -> float:
        """The share of a step in which matrices are multiplied, each as fast as without others."""
        return self.products / self.step

    @property
    def pictures_a_second(self) -> float:
        return BATCH / self.step

    @property
    def pause(self) -> float:
        """Seconds of a checkpoint: weights and optimizer. One machine writes, or each its share."""
        writers = max(1, self.count // self.on.machine) if self.way == "shard" else 1
        return (4 * self.shape.parameters + self.optimizer_bytes) / (self.on.storage * writers)

    @property
    def seconds_to_failure(self) -> float:
        return self.on.hours_to_failure * 3600 / self.count

    @property
    def interval(self) -> float:
        """Seconds between checkpoints that cost least in all (Young 1974)."""
        return math.sqrt(2 * self.pause * self.seconds_to_failure)

    def lost(self, interval: float) -> float:
        """The share of the time that goes into checkpoints, and by failures: half an interval each, and a restart."""
        return self.pause / interval + (interval / 2 + self.on.restart) / self.seconds_to_failure

    def days(self, pictures: Pictures) -> float:
        return pictures.epochs * pictures.count / self.pictures_a_second / (1 - self.lost(self.interval)) / 86400


SHAPES = {name: Shape.of(ViTConfig.named(name)) for name in NAMES}
MATRICES = {
    name: sum(model.get_parameter(one).numel() for one in model.matrices())
    for name in NAMES
    for model in [on_meta(ViTConfig.named(name))[0]]
}


def _line(points: list[float], at: float) -> float:
    (low, high), (first, second) = MEASURED_WITH, points
    return first + (second - first) * (at - low) / (high - low)


def activations() -> dict[str, Any]:
    """Bytes that are kept for the way back in bfloat16, with MEASURED_WITH pictures, with recomputation and without."""
    measured: dict[str, Any] = {}
    for name in NAMES:
        measured[name] = {
            what: [
                forecast_memory(
                    Recipe().changed(
                        {
                            "train.batch_size": size,
                            "train.precision": "bfloat16",
                            "train.recompute": what == "recomputed",
                        }
                    ),
                    ViTConfig.named(name),
                ).activations
                for size in MEASURED_WITH
            ]
            for what in ("kept", "recomputed")
        }
        print(name, measured[name], flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(json.dumps(activations(), indent=1) + "\n")


if __name__ == "__main__":
    main()
