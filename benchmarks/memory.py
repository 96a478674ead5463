"""What a step of training takes in memory, by what learns.

    python benchmarks/memory.py [--name B/16] [--batch 32] [--accumulate 8] [--precision float32]

Nothing is trained: `vitral.training.memory` runs a step with tensors that have shapes and no numbers. AdamW, float32
weights, three classes. `weights`, `optimizer` and `gradients` are there whatever the batch; what is kept for the way
back is for one part of the batch. `most` is the most at once: gradients come while what was kept goes.
"""

import argparse
from typing import Any

from vitral.model.config import ViTConfig
from vitral.recipe import Recipe
from vitral.training.memory import MemoryForecast, forecast_memory

WAYS: dict[str, dict[str, Any]] = {
    "full": {"init.mode": "full"},
    "gentle": {"init.mode": "gentle"},
    "full, half frozen": {"init.mode": "full", "init.freeze": 6},
    "lora": {"init.mode": "lora"},
    "lora, half frozen": {"init.mode": "lora", "init.freeze": 6},
    "probe": {"init.mode": "probe"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="B/16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--precision", default="float32")
    options = parser.parse_args()
    config = ViTConfig.named(options.name).model_copy(update={"classes": 3})
    print(f"{options.name} at {config.height_width[0]} px, {options.batch} pictures a step, {options.precision}; GiB\n")
    print("| what learns | parts | weights | optimizer | gradients | kept for the way back | most |")
    print("|---|---|---|---|---|---|---|")
    for accumulate in (1, options.accumulate):
        for words, settings in WAYS.items():
            train = {"batch_size": options.batch, "accumulate": accumulate, "precision": options.precision}
            named = {f"train.{name}": value for name, value in train.items()}
            start = {"model": config.write(), "init.weights": "any", "train.optimizer.kind": "adamw"}
            print(row(words, accumulate, forecast_memory(Recipe().changed({**start, **named, **settings}), config)))


def row(words: str, parts: int, forecast: MemoryForecast) -> str:
    sizes = (forecast.weights, forecast.optimizer, forecast.gradients, forecast.activations, forecast.most)
    return f"| {words} | {parts} | " + " | ".join(f"{size / 2**30:.2f}" for size in sizes) + " |"


if __name__ == "__main__":
    main()
