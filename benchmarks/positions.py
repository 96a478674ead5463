"""What positions are worth: the paper's appendix D.4, made small, on CIFAR-10, MNIST or digits.

    python benchmarks/positions.py --out positions.tsv [--set cifar10] [--steps 450] [--seeds 0,1,2] [--threads 1]
    python benchmarks/positions.py --out positions.tsv --set digits --kinds none,learned,sincos-2d --seeds 0,1,2,3,4

One small ViT for each set, kinds of positions, all else equal, the same number of steps. It is trained on all training
pictures; what is told is the share of the test pictures that the last weights have right. Nothing is chosen by it.
Steps with relative positions take longer, and `seconds` says how much. (The paper's table 8 has none, learned,
learned-2d and relative: 61.4, 64.2, 64.0 and 64.0 %, ViT-B/16, 5-shot ImageNet. `sincos-2d` is not in it.)

Measured on CIFAR-10 (450 steps, 1.15 epochs; mean ± sd of seeds 0 to 2; torch 2.13.0, one thread each, x86 with
AVX-512):

    none          41.5 ± 0.7 %
    learned       42.0 ± 0.7
    learned-2d    41.8 ± 0.7
    relative      41.7 ± 0.9
    sincos-2d     48.5 ± 0.9

So early, positions that must be learnt have hardly begun to be there: the paper's tables start with a spread of 0.02,
and tokens with about 0.5. Waves are there from the first step. For digits a table that starts larger was worth a point
(docs/decisions/0003). On digits, where 450 steps are 56 epochs, the difference shows: docs/limits.md.

Each result is added to the file when it is there, and what is there is not run again: a benchmark that was stopped
goes on. So two processes can share the work and the file, `--threads 1 --seeds 0,1` and `--threads 1 --seeds 2`.
`--draw FILE.png` draws what the file has. Sets are looked for in VITRAL_DATA or the user's cache (`vitral fetch`).
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
from vitral.data.pack import pack
from vitral.data.sources import open_source
from vitral.data.sources.named import data_directory
from vitral.inference import outputs_of_pack
from vitral.look.figures import figure, theme
from vitral.model.config import Positions, ViTConfig
from vitral.recipe import Recipe
from vitral.training.config import AdamW, Schedule, Train

KINDS = ("none", "learned", "learned-2d", "relative", "sincos-2d")
STEPS = 450
COLUMNS = ("set", "positions", "seed", "steps", "accuracy", "loss", "seconds", "threads")

# The stem is the paper's, a patch times a matrix: one of convolutions would see a little of where things are.
MODELS = {
    "cifar10": ViTConfig(image_size=32, patch_size=4, width=96, depth=4, heads=3, classes=10),
    "mnist": ViTConfig(image_size=28, patch_size=4, channels=1, width=48, depth=3, heads=3, classes=10),
    "digits": ViTConfig(image_size=8, patch_size=2, channels=1, width=48, depth=3, heads=3, classes=10),
}
AUGMENT = {"cifar10": Augment(pad=4, flip="random"), "mnist": Augment(), "digits": Augment()}


def recipe(name: str, kind: str, seed: int, steps: int) -> Recipe:
    return Recipe(
        model=MODELS[name].model_copy(update={"positions": Positions.model_validate({"kind": kind})}),
        data=Data(source=name, augment=AUGMENT[name]),
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


def trained_and_tested(name: str, kind: str, seed: int, steps: int) -> dict[str, object]:
    """A row of the file. The run folder is not kept."""
    with tempfile.TemporaryDirectory() as place:
        run = vitral.train(
            recipe(name, kind, seed, steps), out=Path(place) / "run", listeners=[Telling(f"{kind}, seed {seed}", steps)]
        )
        weights = run.weights()
        packed = pack(open_source(run.recipe.data), weights.preprocess, data_directory("auto"))
        test = packed.of("test")
        outputs = outputs_of_pack(weights.model, packed, test, weights.preprocess)
        labels = torch.from_numpy(packed.index.labels[test])
        return {
            "set": name,
            "positions": kind,
            "seed": seed,
            "steps": steps,
            "accuracy": f"{outputs.accuracy(labels):.4f}",
            "loss": f"{outputs.loss(labels):.4f}",
            "seconds": f"{run.record.seconds or 0:.1f}",  # of training
            "threads": torch.get_num_threads(),
        }


def read(out: Path, name: str, steps: int) -> list[dict[str, str]]:
    """The rows that are there already, of trainings as long as these."""
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [row for row in rows if (row["set"], row["steps"]) == (name, str(steps))]


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


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """A point for each training, and the mean of its kind as a line."""
    colours, kinds = theme(dark=False), [kind for kind in KINDS if any(row["positions"] == kind for row in rows)]
    with figure(path, 6.4, 0.9 + 0.55 * len(kinds), "", "") as canvas:
        axes = canvas.subplots()
        for place, kind in enumerate(kinds):
            accuracies = [100 * float(row["accuracy"]) for row in rows if row["positions"] == kind]
            colour = colours.red if kind == "none" else colours.blue
            axes.vlines(mean(accuracies), place - 0.28, place + 0.28, color=colour, linewidth=2)
            axes.plot(accuracies, [place] * len(accuracies), "o", color=colour, markersize=6, alpha=0.75)
            words = {"color": colours.ink, "va": "center", "fontsize": 9, "textcoords": "offset points"}
            axes.annotate(f"{mean(accuracies):.1f} %", (max(accuracies), place), xytext=(10, 0), **words)
        axes.set_yticks(range(len(kinds)), kinds)
        axes.set(ylim=(len(kinds) - 0.5, -0.5), xlabel="test pictures that are right, %")
        axes.margins(x=0.16)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a TSV file; what is in it is not run again")
    parser.add_argument("--set", choices=MODELS, default="cifar10")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=numbers, default="0,1,2")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--draw", type=Path, help="a figure of the rows, as PNG; nothing is trained")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    begin(asked.out)
    kinds = asked.kinds.split(",")
    wanted = [(kind, seed) for seed in asked.seeds for kind in kinds]  # if it is stopped, all kinds have as many
    for number, (kind, seed) in enumerate(wanted if asked.draw is None else [], start=1):
        print(f"{number} of {len(wanted)}: {asked.set}, positions {kind}, seed {seed}", file=sys.stderr)
        there = [(row["positions"], row["seed"]) for row in read(asked.out, asked.set, asked.steps)]
        if (kind, str(seed)) not in there:
            append(asked.out, trained_and_tested(asked.set, kind, seed, asked.steps))
    rows = read(asked.out, asked.set, asked.steps)
    table(rows, asked.steps)
    if asked.draw is not None:
        draw(rows, asked.draw)


if __name__ == "__main__":
    try:
        main()
    except vitral.VitralError as error:
        sys.exit(str(error))
