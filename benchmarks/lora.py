"""What LoRA learns beside `gentle` and `full` in as many steps, of few photographs from ViT-Ti/16.

    python benchmarks/lora.py food ants-bees [--seeds 3] [--image-size 224] [--epochs 8]

Of three rates for each way the one with the least validation loss on the first set, at seed 0, is taken for all sets;
then each way is trained with each seed and measured on the test pictures, which choose nothing. LoRA has rank 8. A line
of JSON a run as it ends, a table at the end. About two minutes of one core a run at 224 pixels, half a minute at 112.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vitral.evaluation.evaluate import evaluate
from vitral.recipe import Recipe
from vitral.recipes import ants_bees_finetune, food_finetune
from vitral.training.loop import train

SETS = {"food": food_finetune, "ants-bees": ants_bees_finetune}
RATE = "train.optimizer.learning_rate"
WAYS = {"lora": (5e-4, 1e-3, 2e-3), "gentle": (2.5e-4, 5e-4, 1e-3), "full": (1e-4, 2e-4, 4e-4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    rows, chosen = [], dict[str, float]()
    for name in options.sets:
        base = SETS[name].changed({"train.epochs": options.epochs, "model.image_size": options.image_size})
        for way, rates in WAYS.items():
            recipe = base.changed({"init.mode": way})
            if way not in chosen:
                losses = [run(recipe.changed({RATE: rate}), test=False)["validation_loss"] for rate in rates]
                chosen[way] = rates[losses.index(min(losses))]
            recipe = recipe.changed({RATE: chosen[way]})
            scores = [run(recipe.changed({"train.seed": seed}), test=True)["accuracy"] for seed in range(options.seeds)]
            rows.append((name, way, chosen[way], scores))
    print("\n| pictures | what learns | rate | test accuracy |\n|---|---|---|---|")
    for name, way, rate, scores in rows:
        print(f"| {name} | {way} | {rate:g} | {mean(scores):.1%} ± {stdev(scores):.1%} |")


def run(recipe: Recipe, test: bool) -> dict[str, Any]:
    """The figures of a training; with `test`, those of the test pictures too."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trained = train(recipe, out=Path(folder) / "run", save_every=1e9)
        last = [line for line in trained.metrics if line["event"] == "epoch"][-1]
        facts = {
            "source": recipe.data.source,
            "mode": recipe.init.mode,
            "rank": recipe.init.rank,
            "rate": recipe.train.optimizer.learning_rate,
            "seed": recipe.train.seed,
            "steps": trained.record.steps,
            "validation_loss": last["validation_loss"],
        }
        if test:
            facts["accuracy"] = evaluate(trained, seconds=0.0).metrics.figures["accuracy"].value
    print(json.dumps(facts | {"core_seconds": round(time.process_time() - began)}), flush=True)
    return facts


if __name__ == "__main__":
    main()
