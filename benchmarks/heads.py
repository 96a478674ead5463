"""A head on frozen features of few pictures: its last epoch, or the one with the least validation loss?

    python benchmarks/heads.py [mosaics] [count] [food] [ants-bees] [digits] [--splits 12]

Features of ViT-Ti/16, and a head that learns as `init.mode=probe` has it (60 epochs), on so many splits by chance: 72 %
to learn from, 8 % to validate, 20 % to test. `mosaics`: 400 squares of 2 × 2 pictures of CIFAR-10, whose labels are the
classes that occur; `count`: how many animals are in them; `digits`: 600 of MNIST, enlarged, with noise.
"""

import math

import click
import numpy as np
import torch
from PIL import Image
from targets import mosaics, pictures_of
from torch import Tensor
from torch.nn import functional as F

from vitral.data.config import Data
from vitral.data.pack import pack
from vitral.data.sources import Index, open_source
from vitral.data.sources.named import data_directory
from vitral.data.sources.python import open_python
from vitral.inference import outputs_of_pack
from vitral.recipes.choose import MODES, batch_size_for
from vitral.recipes.tiny16 import WEIGHTS
from vitral.weights.pretrained import load_pretrained

SETS = ("mosaics", "count", "food", "ants-bees", "digits")
FIGURES = {"class": "accuracy", "labels": "mAP", "number": "MAE / sd"}
ANIMALS = {"bird", "cat", "deer", "dog", "frog", "horse"}


def set_of(name: str) -> Index:
    if name in ("food", "ants-bees"):
        return open_source(Data(source=name))
    if name == "digits":
        pixels, classes = pictures_of("mnist", "train")
        noise = np.random.default_rng(0)
        large = (np.asarray(Image.fromarray(one).resize((224, 224)), float) / 2 + 60 for one in pixels[:600])
        grey = [(one + noise.normal(0, 25, one.shape)).clip(0, 255).astype(np.uint8) for one in large]
        return open_python(list(zip(grey, classes, strict=False)), Data())
    squares = mosaics("train", 400)
    counted = [(picture, labels if name == "mosaics" else float(len(labels & ANIMALS))) for picture, labels in squares]
    return open_python(counted, Data())


def learnt(x: dict[str, Tensor], y: dict[str, Tensor], kind: str, seed: int) -> tuple[list[float], list[float]]:
    """Loss and figure of the test pictures after the last epoch, and after the best by validation."""
    loss = {"class": F.cross_entropy, "labels": F.binary_cross_entropy_with_logits, "number": F.huber_loss}[kind]
    outputs = int(max(one.max() for one in y.values())) + 1 if kind == "class" else y["train"].shape[1]
    head = torch.nn.Linear(x["train"].shape[1], outputs)
    for one in head.parameters():
        torch.nn.init.zeros_(one)
    settings, epochs = MODES["probe"]["train.optimizer"], MODES["probe"]["train.epochs"]
    rate, count = settings["learning_rate"], len(x["train"])
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=settings["weight_decay"])
    batch, generator = batch_size_for(count, 60), torch.Generator().manual_seed(seed)
    steps, step, least, best = epochs * (count // batch), 0, math.inf, torch.empty(0)
    for _ in range(epochs):
        for rows in torch.randperm(count, generator=generator).split(batch)[: count // batch]:
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
            optimizer.zero_grad()
            loss(head(x["train"][rows]), y["train"][rows]).backward()
            optimizer.step()
            step += 1
        with torch.no_grad():
            now, last = float(loss(head(x["validation"]), y["validation"])), head(x["test"])
        if now < least:
            least, best = now, last
    test = y["test"]
    return [float(loss(last, test)), figure(last, test, kind)], [float(loss(best, test)), figure(best, test, kind)]


def figure(said: Tensor, truth: Tensor, kind: str) -> float:
    """Accuracy, mean average precision, or the mean absolute error in standard deviations."""
    from sklearn.metrics import average_precision_score

    if kind == "class":
        return float((said.argmax(dim=1) == truth).double().mean())
    return float((said - truth).abs().mean()) if kind == "number" else float(average_precision_score(truth, said))


def parted(values: Tensor, seed: int) -> dict[str, Tensor]:
    count = len(values)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(count))
    parts = order.tensor_split([int(0.72 * count), int(0.8 * count)])
    return {split: values[part] for split, part in zip(("train", "validation", "test"), parts, strict=True)}


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(SETS))
@click.option("--splits", default=12)
def main(names: tuple[str, ...], splits: int) -> None:
    torch.set_num_threads(1)
    start = load_pretrained(WEIGHTS)
    print("| pictures | figure | loss: last | best epoch | figure: last | best epoch | difference |\n|" + "---|" * 7)
    for name in names or SETS:
        index = set_of(name)
        pictures = pack(index, start.preprocess, data_directory("auto"))
        kind, everything = index.targets[0].kind, np.arange(len(index.samples))
        features = outputs_of_pack(start.model, pictures, everything, start.preprocess).features
        labels = torch.from_numpy(index.labels)
        if kind != "class":
            labels = (labels - labels.mean()) / labels.std() if kind == "number" else labels
            labels = labels.float()
        results = [learnt(parted(features, seed), parted(labels, seed), kind, seed) for seed in range(splits)]
        last, best = (np.array(some) for some in zip(*results, strict=True))
        apart = best[:, 1] - last[:, 1]
        print(
            f"| {name}, {len(everything)} | {FIGURES[kind]} | {last[:, 0].mean():.3f} | {best[:, 0].mean():.3f} "
            f"| {last[:, 1].mean():.3f} | {best[:, 1].mean():.3f} "
            f"| {apart.mean():+.3f} ± {apart.std(ddof=1) / splits**0.5:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
