"""What positions are worth: the paper's appendix D.4, made small, on CIFAR-10.

    python benchmarks/positions.py --out positions.tsv [--seeds 0,1,2] [--steps 450] [--threads 1]

One small ViT, five kinds of positions, all else equal, the same number of steps. It is trained on all training
pictures; what is told is the share of the test pictures that the last weights have right. Nothing is chosen by it.
Steps with relative positions take longer, and `seconds` says how much. (The paper's table 8 has none, learned,
learned-2d and relative: 61.4, 64.2, 64.0 and 64.0 %, ViT-B/16, 5-shot ImageNet. `sincos-2d` is not in it.)

Measured (450 steps, 1.15 epochs; mean ± sd of seeds 0 to 2; torch 2.13.0, one thread each, x86 with AVX-512):

    none          41.5 ± 0.7 %
    learned       42.0 ± 0.7
    learned-2d    41.8 ± 0.7
    relative      41.7 ± 0.9
    sincos-2d     48.5 ± 0.9

So early, positions that must be learnt have hardly begun to be there: the paper's tables start with a spread of 0.02,
and tokens with about 0.5. Waves are there from the first step. Whether the difference stays in longer trainings was not
measured. For digits a table that starts larger was worth a point (docs/decisions/0003).

Each result is added to the file when it is there, and what is there is not run again: a benchmark that was stopped
goes on. So two processes can share the work and the file, `--threads 1 --seeds 0,1` and `--threads 1 --seeds 2`.
CIFAR-10 is looked for in VITRAL_DATA or the user's cache (`vitral fetch cifar10`).
"""

import argparse
import csv
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev

import torch

import vitral
from vitral.data.config import Augment, Data
from vitral.model.config import Positions, ViTConfig
from vitral.recipe import Recipe
from vitral.training.config import AdamW, Schedule, Train

KINDS = ("none", "learned", "learned-2d", "relative", "sincos-2d")
STEPS = 450
COLUMNS = ("positions", "seed", "steps", "accuracy", "loss", "seconds", "threads")


def recipe(kind: str, seed: int, steps: int) -> Recipe:
    return Recipe(
        model=ViTConfig(
            image_size=32,
            patch_size=4,
            width=96,
            depth=4,
            heads=3,
            classes=10,
            positions=Positions.model_validate({"kind": kind}),
        ),
        data=Data(source="cifar10", validation=0.0, augment=Augment(pad=4, flip="random")),
        train=Train(
            seed=seed,
            budget=f"{steps}steps",
            precision="float32",
            compile="no",
            batch_size=128,
            optimizer=AdamW(learning_rate=1e-3),
            schedule=Schedule(kind="cosine"),
        ),
    )


class Telling:
    """A line on stderr for every tenth of the steps."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.began = name, steps, time.perf_counter()

    def __call__(self, event: object) -> None:
        if isinstance(event, vitral.Step) and event.step % max(1, self.steps // 10) == 0:
            seconds = time.perf_counter() - self.began
            print(
                f"{self.name}: step {event.step} of {self.steps}, loss {float(event.loss):.3f}, {seconds:.0f} s",
                file=sys.stderr,
            )


def trained_and_tested(kind: str, seed: int, steps: int) -> dict[str, object]:
    """A row of the file. The run folder is not kept."""
    with tempfile.TemporaryDirectory() as place:
        run = vitral.train(
            recipe(kind, seed, steps), out=Path(place) / "run", listeners=[Telling(f"{kind}, seed {seed}", steps)]
        )
        tested = vitral.evaluate(run)
        return {
            "positions": kind,
            "seed": seed,
            "steps": steps,
            "accuracy": f"{tested.accuracy:.4f}",
            "loss": f"{tested.loss:.4f}",
            "seconds": f"{run.record.seconds or 0:.1f}",  # of training
            "threads": torch.get_num_threads(),
        }


def read(out: Path, steps: int) -> list[dict[str, str]]:
    """The rows that are there already, of trainings as long as these."""
    with out.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["steps"] == str(steps)]


def begin(out: Path) -> None:
    """The file with its first line, now: a wrong place is noticed before minutes of training, not after."""
    try:
        with out.open("x", encoding="utf-8") as file:  # of two processes, only one makes it
            file.write("\t".join(COLUMNS) + "\n")
    except FileExistsError:
        pass


def append(out: Path, row: dict[str, object]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write("\t".join(str(row[column]) for column in COLUMNS) + "\n")


def table(rows: list[dict[str, str]], steps: int) -> None:
    print(f"{steps} steps, accuracy on the test pictures in %, mean ± standard deviation over seeds")
    for kind in KINDS:
        some = [row for row in rows if row["positions"] == kind]
        if not some:
            continue
        accuracies = [100 * float(row["accuracy"]) for row in some]
        spread = f"± {stdev(accuracies):.2f}" if len(some) > 1 else ""
        seconds = median(float(row["seconds"]) for row in some)
        print(f"{kind:12} {mean(accuracies):6.2f} {spread:7}   {len(some)} seeds   {seconds:4.0f} s of training")


def seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a TSV file; what is in it is not run again")
    parser.add_argument("--seeds", type=seeds, default="0,1,2")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    begin(asked.out)
    wanted = [(kind, seed) for seed in asked.seeds for kind in KINDS]  # if it is stopped, all kinds have as many
    for number, (kind, seed) in enumerate(wanted, start=1):
        print(f"{number} of {len(wanted)}: positions {kind}, seed {seed}", file=sys.stderr)
        if (kind, str(seed)) not in [(row["positions"], row["seed"]) for row in read(asked.out, asked.steps)]:
            append(asked.out, trained_and_tested(kind, seed, asked.steps))
    table(read(asked.out, asked.steps), asked.steps)


if __name__ == "__main__":
    try:
        main()
    except vitral.VitralError as error:
        sys.exit(str(error))
