"""What `train.recompute` saves in memory, and what it costs in time.

    python benchmarks/recompute.py [--names B/16,L/16,H/14] [--batch 32] [--time Ti/16] [--steps 30]

Memory is of a whole step with AdamW, in float32: nothing is trained, `vitral.training.memory` runs a step with tensors
that have shapes and no numbers. The time is that of real steps of a small model, with and without in turn: seconds of
the processor that one thread has computed, so that others on the machine count little; what is told is their ratio.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from vitral.data.batches import Batch
from vitral.model import build
from vitral.model.config import ModelConfig
from vitral.model.kinds import config_named
from vitral.recipe import Recipe
from vitral.training.learner import Learner
from vitral.training.memory import forecast_memory


def config_of(name: str) -> ModelConfig:
    config = config_named(name)
    if config is None:
        raise SystemExit(f"{name} is no name of a size, such as B/16 or R50x1.")
    return config


def recipe(batch: int, recompute: bool) -> Recipe:
    return Recipe().changed({"train.batch_size": batch, "train.precision": "float32", "train.recompute": recompute})


def ratios(config: ModelConfig, batch: int, steps: int) -> list[float]:
    """How many times as long a step takes with recomputation, for each pair of steps."""
    learners = [Learner(build(config).train(), recipe(batch, recompute).train) for recompute in (False, True)]
    images, labels = torch.randn(batch, config.channels, *config.height_width), torch.zeros(batch, dtype=torch.int64)
    some, found = Batch(images, labels, np.arange(batch), labels), []
    for step in range(1, steps + 2):
        seconds = []
        for learner in learners:
            started_at = time.process_time()
            learner.gradients(step, some, progress=1.0)
            learner.update(step, share=1.0)
            seconds.append(time.process_time() - started_at)
        found.append(seconds[1] / seconds[0])
    return found[1:]  # the first pair makes the optimizer's memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default="B/16,L/16,H/14")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--time", default="Ti/16")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.batch} pictures a step, float32, AdamW; GiB, as it is → recomputed\n")
    print("| model | kept for the way back | most at once |\n|---|---|---|")
    for name in options.names.split(","):
        config = config_of(name)
        before, after = (forecast_memory(recipe(options.batch, recompute), config) for recompute in (False, True))
        kept, most = (
            " → ".join(f"{getattr(one, what) / 2**30:.2f}" for one in (before, after))
            for what in ("activations", "most")
        )
        print(f"| {name} | {kept} | {most} |", flush=True)
    took = ratios(config_of(options.time), 8, options.steps)
    print(
        f"\nA step of {options.time} takes {statistics.median(took):.2f} times as long "
        f"({min(took):.2f} to {max(took):.2f}, {len(took)} pairs of steps)."
    )


if __name__ == "__main__":
    main()
