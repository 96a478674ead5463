"""Where the time of a training step goes: a step of the recipe `cifar10` on noise, all patches, one thread.

    python benchmarks/step_parts.py [--precision bfloat16] [--steps 10]   shares of products, attention, norms, …
    python benchmarks/step_parts.py --ways [--rounds 16]                  ways to compute some parts, in turn

Shares are of torch's profiler, by the clock: on a machine with other work they wander, and their order hardly does.
Ways are told by processor time: median over rounds, each beside the first way in the same round.
"""

import argparse
import resource
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from vitral.data.batches import Batch
from vitral.model import build
from vitral.model.norms import LayerScale
from vitral.model.vit import Attention
from vitral.recipes.cifar10 import cifar10
from vitral.training.learner import Learner

PARTS = {  # the first that fits
    "convolutions": ("convolution",),
    "products": ("aten::mm", "aten::addmm"),
    "attention (products and softmax)": ("aten::bmm", "softmax", "flash_attention"),
    "GELU": ("gelu",),
    "LayerNorm": ("layer_norm",),
    "max-pool": ("max_pool", "aten::fill_"),  # its way back begins with zeros
    "BatchNorm": ("batch_norm",),
    "copies": ("aten::copy_", "aten::cat", "aten::index", "aten::clone"),
    "LayerScale and sums": ("aten::mul", "aten::add", "aten::sum"),
}


def learner_in(precision: str) -> Learner:
    learner = Learner(build(cifar10.model).train(), cifar10.train)
    learner.set_precision(precision, compiled=False)
    return learner


def batch() -> Batch:
    count = cifar10.train.batch_size
    labels = torch.arange(count) % 10
    return Batch(torch.randn(count, 3, 32, 32), labels, np.arange(count), labels)


def step(learner: Learner, images: Batch) -> None:
    learner.gradients(1, images, progress=1.0)
    learner.update(1, share=0.1)


def shares(precision: str, steps: int) -> None:
    learner, images = learner_in(precision), batch()
    for _ in range(3):
        step(learner, images)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            step(learner, images)
    seconds: dict[str, float] = defaultdict(float)
    muon = 0.0
    for row in seen.key_averages():
        seconds[part_of(row.key)] += row.self_cpu_time_total / 1e6
        muon += row.cpu_time_total / 1e6 if "MuonOptimizer" in row.key else 0.0
    total = sum(seconds.values())
    print(f"{precision}, {steps} steps, {1000 * total / steps:.0f} ms each by the clock\n\n| part | share |\n|---|---|")
    for part, spent in sorted(seconds.items(), key=lambda one: -one[1]):
        print(f"| {part} | {spent / total:.1%} |")
    print(f"| all of Muon, which is in these | {muon / total:.1%} |")


def part_of(name: str) -> str:
    return next((part for part, words in PARTS.items() if any(word in name for word in words)), "the rest")


# Ways


def scaled_in_float32(self: LayerScale, x: Tensor) -> Tensor:
    return x * self.gamma


def split_last(self: Attention, x: Tensor, rotation: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    B, T, D = x.shape
    qkv = self.qv_bias(self.qkv(x)).view(B, T, 3, self.heads, D // self.heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return self.turn(self.q_norm(q), rotation), self.turn(self.k_norm(k), rotation), v


def ways(precision: str, rounds: int) -> None:
    scale, split = LayerScale.forward, Attention.queries_keys_values
    learner, images = learner_in(precision), batch()

    def use(forward: Any, qkv: Any, muon: str) -> Callable[[], None]:
        def change() -> None:
            LayerScale.forward, Attention.queries_keys_values = forward, qkv  # type: ignore[method-assign]
            learner.optimizers.set_precision(muon)

        return change

    in_turn = {
        "as it was": use(scaled_in_float32, split_last, "float32"),
        "LayerScale in the branch's numbers": use(scale, split_last, "float32"),
        "… queries, keys, values split before they turn": use(scale, split, "float32"),
        "… Newton-Schulz in the step's numbers (as it is)": use(scale, split, precision),
    }
    took: dict[str, list[float]] = {name: [] for name in in_turn}
    pages = dict.fromkeys(in_turn, 0)  # that were fetched from the system anew
    for number in range(-2, rounds):
        for name in list(in_turn) if number % 2 else reversed(in_turn):
            in_turn[name]()
            step(learner, images)  # memory is as this way leaves it
            began, fetched = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            step(learner, images)
            if number >= 0:
                took[name].append(1000 * (time.process_time() - began))
                pages[name] += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - fetched
    first = np.array(took["as it was"])
    print(f"{precision}, {rounds} rounds\n\n| way | ms | times as fast | quartiles | pages |\n|---|---|---|---|---|")
    for name, times in took.items():
        low, middle, high = np.percentile(first / np.array(times), [25, 50, 75])
        print(
            f"| {name} | {np.median(times):.1f} | {middle:.3f} | {low:.3f} to {high:.3f} | {pages[name] // rounds:,} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=10, help="that are profiled")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--rounds", type=int, default=16)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.ways:
        return ways(given.precision, given.rounds)
    shares(given.precision, given.steps)


if __name__ == "__main__":
    main()
