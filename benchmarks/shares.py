"""Accuracy against the number of training pictures: 1, 3, 10, 30 and 100 % of CIFAR-10.

    python benchmarks/shares.py --out FOLDER [--models quick,resnet,…] [--shares 0.01,…] [--threads 1]
    python benchmarks/shares.py --draw docs/limits/shares.tsv

Models, each as its recipe trains it: our quick ViT (`cifar10`), the same with the paper's stem in place of one of
convolutions (`model.stem=linear`), a tutorial's ViT (`tutorial-cifar10-b`), and the teacher's architecture from nothing
(benchmarks/resnet.py, as ResNet-20). Every training sees equally many pictures,
each time one counts: of all 50,000 each is seen about once, of 500 about a hundred times. So between two points of a
line only the number of different pictures differs. Shares are taken class by class in an order that is drawn once, so
that the smaller ones are part of the larger. The 10,000 test pictures are asked about once, by the last weights; they
choose nothing. `learnt` is the share of its own pictures that a model had right in its last full epoch, augmented as
they were.

Each training leaves its run and a line of results.tsv in FOLDER: what is there is not run again, and what was stopped
goes on where it was. `--draw` makes the figure and a table of such a file, and trains nothing. CIFAR-10 is looked for
in VITRAL_DATA or the user's cache (`vitral fetch cifar10`).
"""

import argparse
import csv
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import vitral
from vitral.data.pack import pack
from vitral.data.sources import Index, Pixels, open_source
from vitral.data.sources.named import data_directory
from vitral.evaluation.metrics import share as share_of
from vitral.inference import load_calibrated, outputs_of_pack
from vitral.look.figures import figure, theme
from vitral.recipe import Recipe
from vitral.recipes import find_recipe

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
RESNET = Path(__file__).with_name("resnet.py")
PASSES = 51_200
WORDS = {
    "quick": "quick ViT",
    "linear": "quick ViT without convolutions",
    "resnet": "ResNet-20",
    "tutorial": "tutorial's ViT",
}
COLUMNS = ("model", "share", "pictures", "seed", "passes", "steps", "right", "of", "learnt", "seconds", "threads")

# He et al.'s optimizer, in our quick recipe's training: the same augmentation, schedule and smoothed labels.
AS_A_RESNET = {
    "model.kind": f"{RESNET}:CifarResNet",
    "train.optimizer.kind": "sgd",
    "train.optimizer.learning_rate": 0.1,
    "train.optimizer.momentum": 0.9,
    "train.optimizer.weight_decay": 5e-4,
    "train.patches": "fixed",
}
PLAIN = {"train.precision": "float32", "train.compile": "no"}
MODELS: dict[str, Recipe] = {
    "quick": find_recipe("cifar10").changed(PLAIN),
    "linear": find_recipe("cifar10").changed(PLAIN | {"model.stem": "linear"}),
    "tutorial": find_recipe("tutorial-cifar10-b").changed(PLAIN),
    "resnet": find_recipe("cifar10").changed(PLAIN | AS_A_RESNET),
}


def some_of(index: Index, share: float) -> Index:
    """The set with a share of its training pictures, of each class equally many, and all of its test pictures."""
    order = np.random.default_rng(0).permutation(index.of("train"))  # the first ones of it are in all larger shares
    labels = index.labels[order]
    chosen = [order[labels == label][: round(share * np.sum(labels == label))] for label in np.unique(labels)]
    numbers = np.sort(np.concatenate([*chosen, index.of("test")]))
    assert isinstance(index.storage, Pixels)
    return replace(
        index,
        samples=[index.samples[number] for number in numbers],
        labels=index.labels[numbers],
        splits=index.splits[numbers],
        storage=Pixels(index.storage.images[numbers]),
    )


class Telling:
    """A line on stderr for every tenth of the steps."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.began = name, steps, time.perf_counter()

    def __call__(self, event: object) -> None:
        if isinstance(event, vitral.Step) and event.step % max(1, self.steps // 10) == 0:
            took = f"loss {float(event.loss):.3f}, {time.perf_counter() - self.began:.0f} s"
            print(f"{self.name}: step {event.step} of {self.steps}, {took}", file=sys.stderr, flush=True)


def trained_and_tested(model: str, index: Index, share: float, seed: int, passes: int, out: Path) -> dict[str, object]:
    """A row of the file."""
    steps = passes // MODELS[model].train.batch_size
    recipe = MODELS[model].changed({"train.budget": f"{steps}steps", "train.seed": seed})
    name = f"{model}-{100 * share:g}-{passes}-{seed}"
    some = some_of(index, share)
    run = vitral.train(recipe, out=out / name, resume=True, source=some, listeners=[Telling(name, steps)], code=RESNET)
    weights, _ = load_calibrated(run, RESNET if model == "resnet" else ())
    packed = pack(some, weights.preprocess, data_directory(recipe.data.directory))
    test = packed.of("test")
    answers = outputs_of_pack(weights.model, packed, test, weights.preprocess).predicted
    learnt = [line["train_accuracy"] for line in run.metrics if line["event"] == "epoch"][-1]
    return {
        "model": model,
        "share": share,
        "pictures": len(packed.of("train")),
        "seed": seed,
        "passes": passes,
        "steps": steps,
        "right": int(np.sum(answers == some.labels[test])),
        "of": len(test),
        "learnt": f"{learnt:.4f}",
        "seconds": f"{run.record.seconds or 0:.1f}",  # of training
        "threads": torch.get_num_threads(),
    }


def read(results: Path) -> list[dict[str, str]]:
    if not results.exists():
        return []
    with results.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def append(results: Path, row: dict[str, object]) -> None:
    if not results.exists():
        results.write_text("\t".join(COLUMNS) + "\n", encoding="utf-8")
    with results.open("a", encoding="utf-8") as file:
        file.write("\t".join(str(row[column]) for column in COLUMNS) + "\n")


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """A line for each model, a point for each training, and behind them the 95 % intervals (Wilson)."""
    colours = theme(dark=False)
    looks = {
        "quick": (colours.blue, "-o"),
        "resnet": (colours.green, "-D"),
        "linear": (colours.blue, "--o"),
        "tutorial": (colours.orange, "-s"),
    }
    with figure(path, 7.4, 4.3, "", "") as canvas:
        axes = canvas.subplots()
        for model, (colour, line) in looks.items():
            some = sorted((row for row in rows if row["model"] == model), key=lambda row: int(row["pictures"]))
            pictures = [int(row["pictures"]) for row in some]
            figures = [share_of(int(row["right"]), int(row["of"])) for row in some]
            low, high = [one.low or 0 for one in figures], [one.high or 1 for one in figures]
            axes.fill_between(pictures, low, high, color=colour, alpha=0.2, linewidth=0)
            values = [one.value for one in figures]
            axes.plot(pictures, values, line, markersize=5, color=colour, label=WORDS[model])
        ticks = sorted({int(row["pictures"]) for row in rows})
        axes.set(xscale="log", xlabel="different training pictures", ylim=(0, None))
        axes.set_xticks(ticks, [f"{tick:,}\n{tick / ticks[-1]:.0%}" for tick in ticks])
        axes.minorticks_off()
        axes.axhline(0.1, color=colours.grey, linewidth=1, linestyle=":")
        axes.text(ticks[0], 0.105, "guessing", color=colours.soft, fontsize=9, va="bottom")
        axes.set_title(f"Test pictures that are right, after {int(rows[0]['passes']):,} pictures seen")
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.2))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(axis="y")


def table(rows: list[dict[str, str]]) -> None:
    """As Markdown: how many of the test pictures are right, and how many of its own it had right while it learnt."""
    for share in SHARES:
        some = {row["model"]: row for row in rows if float(row["share"]) == share}
        cells = []
        for model in MODELS:
            row = some.get(model)
            right = row and f"{100 * int(row['right']) / int(row['of']):.1f} % ({100 * float(row['learnt']):.0f} %)"
            cells.append(right or "–")
        print(f"| {int(some['quick']['pictures']):,} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder; what is in it is not run again")
    parser.add_argument("--draw", type=Path, help="a results.tsv: the figure is written beside it")
    parser.add_argument("--passes", type=int, default=PASSES, help="pictures that each training sees")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--seed", type=int, default=0, help="another one needs another folder")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    if asked.draw is not None:
        table(read(asked.draw))
        return draw(read(asked.draw), asked.draw.with_suffix(".png"))
    if asked.out is None:
        parser.error("give a folder (--out) or results (--draw)")
    torch.set_num_threads(asked.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    results, index = asked.out / "results.tsv", open_source(find_recipe("cifar10").data)
    for share in map(float, asked.shares.split(",")):
        for model in asked.models.split(","):
            key = {"model": model, "share": str(share), "seed": str(asked.seed), "passes": str(asked.passes)}
            if not any(key.items() <= row.items() for row in read(results)):
                append(results, trained_and_tested(model, index, share, asked.seed, asked.passes, asked.out))


if __name__ == "__main__":
    try:
        main()
    except vitral.VitralError as error:
        sys.exit(str(error))
