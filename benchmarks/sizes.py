"""From nothing, by the number of photographs: what `vitral train FOLDER` chooses, beside other settings.

    python benchmarks/sizes.py [--counts 5000,45000,20000] [--seconds 180] [--way "as chosen"]

CIFAR-10 enlarged to 96 pixels. Each training has as many steps as take so many seconds of one core, by what ten steps
of its setting take, and is measured on 5,000 other pictures of the official training set. A line of JSON each.
"""

import json
import time
from typing import Any

import click
import numpy as np
from PIL import Image

from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.data.sources.python import open_python
from vitral.inference import outputs_of_pack
from vitral.recipe import Recipe
from vitral.recipes.choose import augment_for, batch_size_for, sizes_for
from vitral.recipes.quick import quick_model, quick_train
from vitral.training.folds import train_steps
from vitral.training.preparation import prepared

SIDE, HELD_OUT = 96, 5_000
WAYS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "weaker crops, colours as they are": {"data.augment": {"crop": 0.6, "flip": "random"}},
    "width 192": {"model.width": 192, "model.heads": 6},
}


class Enlarged:
    """The official training set in an order of its own, each picture enlarged when it is read."""

    def __init__(self) -> None:
        self.index = open_source(Data(source="cifar10"))
        learnt = np.concatenate([self.index.of("train"), self.index.of("validation")])
        self.numbers = np.random.default_rng(0).permutation(learnt)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int, /) -> tuple[Image.Image, str]:
        number = self.numbers[place]
        picture = Image.fromarray(self.index.storage.read(number))  # type: ignore[arg-type]
        return picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC), self.index.class_names[self.index.labels[number]]


@click.command(help=__doc__)
@click.option("--counts", default="5000,45000,20000")
@click.option("--seconds", default=180.0)
@click.option("--way", "ways", multiple=True, type=click.Choice([*WAYS]), default=[*WAYS])
def main(counts: str, seconds: float, ways: tuple[str, ...]) -> None:
    index = open_python(Enlarged(), Data())
    size, patch = sizes_for(SIDE, SIDE)
    augment, _ = augment_for(3, SIDE)
    for count in map(int, counts.split(",")):
        splits = np.full(len(index.samples), "test", dtype="<U10")
        splits[:count], splits[-HELD_OUT:] = "train", "validation"
        train = quick_train("none", batch_size_for(count, 600.0))
        for way in ways:
            recipe = Recipe(model=quick_model(size, patch), train=train)
            recipe = recipe.changed({"data.source": "python:Enlarged", "data.augment": augment.write(), **WAYS[way]})
            steps = max(10, int(seconds / second_a_step(recipe, splits, index)))
            plan = prepared(recipe, splits, index=index)
            began = time.process_time()
            for _ in train_steps(plan, steps):
                pass
            spent = time.process_time() - began
            numbers = plan.pack.of("validation")
            logits = outputs_of_pack(plan.learner.average.model, plan.pack, numbers, plan.preprocess).logits
            right = logits.argmax(dim=1).numpy() == plan.pack.index.labels[numbers]
            facts = {"pictures": count, "way": way, "steps": steps, "batch": train.batch_size}
            facts |= {
                "passes": steps * train.batch_size / count,
                "core_seconds": spent,
                "accuracy": float(right.mean()),
            }
            print(json.dumps(facts), flush=True)


def second_a_step(recipe: Recipe, splits: Any, index: Any) -> float:
    """Of ten steps across the whole schedule, since the first have half of the patches."""
    plan = prepared(recipe, splits, index=index)
    began = time.process_time()
    for _ in train_steps(plan, 10):
        pass
    return (time.process_time() - began) / 10


if __name__ == "__main__":
    main()
