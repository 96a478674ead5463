"""What becomes of pictures that are not square: cut, squeezed, padded, or a grid of their shape.

    python benchmarks/oblong.py train FOLDER [FOLDER …] --steps 300 --seeds 3
    python benchmarks/oblong.py features FOLDER crop stretch pad grid
    python benchmarks/oblong.py panoramas FOLDER TO

`train` is what `vitral train FOLDER` chooses, from nothing; `features` a linear probe on ViT-Ti/16. The training
pictures are in parts, each held out in turn, for several seeds: that chooses. The test pictures are asked beside it.
`pad-grey` pads with grey, `grid` has about as many patches in the shape of the median picture, and `wide` keeps the
shorter side, with as many steps as take the same time. `panoramas` makes pictures of 2 : 1 whose object is anywhere.
"""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image, ImageFilter

from vitral.data.folds import parts
from vitral.data.pack import pack
from vitral.data.sources import open_source
from vitral.data.sources.named import data_directory
from vitral.evaluation.probe import STRENGTHS, _features, _regression
from vitral.inference import outputs_of_pack
from vitral.progress import silent
from vitral.recipe import Recipe
from vitral.recipes.choose import RecipeChoice, choose, median_shape
from vitral.training.folds import train_steps
from vitral.training.preparation import prepared
from vitral.weights.pretrained import adapt, load_pretrained

FOLDS = 2
WAYS = ("crop", "stretch", "shortest", "pad", "pad-grey", "grid", "wide")


def grid(height: int, width: int, size: int, patch: int, keep_short: bool = False) -> tuple[int, int]:
    """Height and width in whole patches, with the shape of a picture: about as many patches as a square has, or with
    the shorter side of the square."""
    side, shape = size / patch, math.sqrt(width / height)
    if keep_short:
        side *= max(shape, 1 / shape)
    return patch * max(1, round(side / shape)), patch * max(1, round(side * shape))


def settings(way: str, shape: tuple[int, int], size: int, patch: int) -> dict[str, Any]:
    oblong = {"grid": grid(*shape, size, patch), "wide": grid(*shape, size, patch, keep_short=True)}
    return {
        "model.image_size": list(oblong.get(way, (size, size))),
        "model.patch_size": patch,
        "data.resize": "stretch" if way in oblong else way.removesuffix("-grey"),
        "data.background": 124 if way == "pad-grey" else 0,
    }


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@click.argument("sources", nargs=-1, required=True)
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=("crop", "stretch", "pad", "grid"))
@click.option("--steps", default=300)
@click.option("--seeds", default=3)
def train(sources: tuple[str, ...], ways: tuple[str, ...], steps: int, seeds: int) -> None:
    """Seed by seed all ways of all sources, a line of JSON for each as it ends; in the end a table."""
    choices = {source: choose(source) for source in sources}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {(source, way): [] for source in sources for way in ways}
    for seed in range(seeds):
        for source, way in rows:
            rows[source, way].append(trained(choices[source], way, steps, seed))
            click.echo(json.dumps({"source": source, "way": way, "seed": seed} | rows[source, way][-1]))
    click.echo("\n| pictures | way | image | steps | core seconds | held out | log-loss | test |\n|" + "---|" * 8)
    for (source, way), results in rows.items():
        held, loss, test = ([result[name] for result in results] for name in ("held_out", "loss", "test"))
        seconds = np.mean([result["core_seconds"] for result in results])
        click.echo(
            f"| {source} | `{way}` | {results[0]['image']} | {results[0]['steps']} | {seconds:.0f} "
            f"| {np.mean(held):.1%} ({', '.join(f'{share:.1%}' for share in held)}) "
            f"| {np.mean(loss):.3f} ({', '.join(f'{value:.3f}' for value in loss)}) | {np.mean(test):.1%} |"
        )


def trained(choice: RecipeChoice, way: str, steps: int, seed: int) -> dict[str, Any]:
    """What was said of the pictures that were held out, each once, and of the test pictures by both of the models."""
    index, sides = choice.index, np.array(choice.index.splits)
    asked = settings(way, median_shape(index), 64, 8)
    height, width = asked["model.image_size"]
    steps = steps * 64 * 64 // (height * width) if way == "wide" else steps
    recipe = choose(choice.recipe.data.source, asked | {"train.baseline": False}).recipe
    recipe = recipe.changed({"train.budget": "none", "train.seed": seed})
    pictures = prepared(recipe, index=index, to_train=False).pack
    part_of = np.where(np.isin(sides, ["train", "validation"]), parts(pictures, FOLDS), -1)
    right, losses, seconds = {"validation": [], "test": []}, [], 0.0
    for fold in range(FOLDS):
        splits = np.where(part_of < 0, "test", np.where(part_of == fold, "validation", "train"))
        plan = prepared(recipe, splits, index=index)
        began = time.process_time()
        for _ in train_steps(plan, steps):
            pass
        seconds += time.process_time() - began
        for split, answers in right.items():
            numbers = plan.pack.of(split)
            logits = outputs_of_pack(plan.learner.average.model, plan.pack, numbers, plan.preprocess).logits
            chances = logits.double().softmax(dim=1).numpy()
            labels = plan.pack.index.labels[numbers]
            answers.append(chances.argmax(axis=1) == labels)
            if split == "validation":
                losses.append(-np.log(chances[np.arange(len(labels)), labels]))
    return {
        "image": f"{height} × {width}",
        "steps": steps,
        "held_out": float(np.concatenate(right["validation"]).mean()),
        "pictures": int((part_of >= 0).sum()),
        "loss": float(np.concatenate(losses).mean()),
        "test": float(np.concatenate(right["test"]).mean()),
        "core_seconds": round(seconds, 1),
    }


@main.command()
@click.argument("source")
@click.argument("ways", nargs=-1, type=click.Choice(WAYS))
def features(source: str, ways: tuple[str, ...]) -> None:
    index = open_source(Recipe().changed({"data.source": source}).data)
    shape = median_shape(index)
    for way in ways:
        asked = settings(way, shape, 224, 16)
        start = load_pretrained("vit_tiny_patch16_224")
        weights = adapt(start, image_size=tuple(asked["model.image_size"]))
        changes = {"resize": asked["data.resize"], "background": asked["data.background"]}
        preprocess = type(weights.preprocess).read({**weights.preprocess.write(), **changes})
        weights = replace(weights, preprocess=preprocess)
        pictures = pack(index, preprocess, data_directory("auto"))
        learn = np.sort(np.concatenate([pictures.of("train"), pictures.of("validation")]))
        test = pictures.of("test")
        vectors = _features(weights, pictures, np.concatenate([learn, test]), silent)["class token"]
        known, labels = vectors[: len(learn)], index.labels[learn]
        part_of = parts(pictures, 10)[learn]
        results = []
        for strength in STRENGTHS:
            chance = np.zeros((len(learn), len(index.class_names)))
            for fold in np.unique(part_of):
                rest, held = part_of != fold, part_of == fold
                classes, said = _regression(known[rest], labels[rest], known[held], strength)
                chance[np.ix_(held, classes)] = said
            right = int((chance.argmax(axis=1) == labels).sum())
            loss = float(-np.log(np.maximum(chance[np.arange(len(learn)), labels], 1e-6)).mean())
            results.append((loss, right, strength))
        loss, right, strength = min(results)
        classes, said = _regression(known, labels, vectors[len(learn) :], strength)
        tested = int((classes[said.argmax(axis=1)] == index.labels[test]).sum())
        height, width = asked["model.image_size"]
        click.echo(
            f"{source} {way} {height}x{width}: held out {right} of {len(learn)} right ({right / len(learn):.1%}), "
            f"loss {loss:.3f}; test {tested} of {len(test)}"
        )


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("to", type=click.Path(path_type=Path))
def panoramas(folder: Path, to: Path) -> None:
    """Each square picture somewhere in one of twice its width, in front of another picture, blurred."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    chance = np.random.default_rng(0)
    for path in paths:
        front = Image.open(path).convert("RGB").resize((224, 224))
        behind = Image.open(paths[chance.integers(len(paths))]).convert("RGB").resize((448, 224))
        whole = behind.filter(ImageFilter.GaussianBlur(12))
        whole.paste(front, (int(chance.integers(225)), 0))
        place = to / path.relative_to(folder).with_suffix(".jpg")
        place.parent.mkdir(parents=True, exist_ok=True)
        whole.save(place, quality=92)


if __name__ == "__main__":
    main()
