"""Several labels, a number, two tasks, on sets that are made of others.     python benchmarks/targets.py mosaics

`mosaics`: 10,000 squares of 2 × 2 pictures of CIFAR-10 each, with all classes that occur as labels: a ViT from nothing,
a head alone on ViT-Ti/16 at 96 pixels, and one-vs-rest logistic regression on the same features. `angle`: by how many
degrees, up to 45 either way, a digit of MNIST was turned, 10,000 of them. `digits`: 10,000 digits of MNIST, which one
it is and whether it is higher than five, with a token for each and with one for both. No picture of the official test
sets is learnt from. The figures are in docs/decisions/0021-targets.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitral import Classifier, Recipe, evaluate, train
from vitral.data.sources import open_source
from vitral.evaluation.evaluate import Evaluation
from vitral.evaluation.metrics import Figure
from vitral.evaluation.target_metrics import measure_labels
from vitral.recipe import AdamW, Augment, Data, Init, Scale, Train
from vitral.recipes.quick import quick_model, quick_train
from vitral.recipes.tiny16 import WEIGHTS, tiny16
from vitral.training.feature_cache import CachedFeatures
from vitral.training.loop import Event, Started
from vitral.training.preparation import Plan

LEARNT, TESTED = 8_000, 2_000
MOSAICS = ("map", "micro_f1", "macro_f1", "all_right")
Pixels = NDArray[np.uint8]
Split = list[tuple[Pixels, Any]]


def pictures_of(name: str, split: str) -> tuple[list[Pixels], list[str]]:
    """The pictures of a named set in a shuffled order, always the same, and their classes."""
    index = open_source(Data(source=name))
    numbers = np.random.default_rng(0).permutation(index.of(split))
    return [index.storage.read(int(n)) for n in numbers], [index.class_names[index.labels[n]] for n in numbers]  # type: ignore[misc]


def mosaics(split: str, count: int) -> Split:
    """Each picture is in one of them at most."""
    pictures, classes = pictures_of("cifar10", split)
    made = []
    for start in range(0, 4 * count, 4):
        a, b, c, d = pictures[start : start + 4]
        made.append((np.vstack([np.hstack([a, b]), np.hstack([c, d])]), set(classes[start : start + 4])))
    return made


def turned(split: str, count: int) -> Split:
    """Digits that were turned by an angle, drawn evenly."""
    pictures, _ = pictures_of("mnist", split)
    angles = np.random.default_rng(1).uniform(-45, 45, count)
    return [
        (np.asarray(Image.fromarray(picture).rotate(angle, Image.Resampling.BICUBIC)), float(angle))
        for picture, angle in zip(pictures, angles, strict=False)
    ]


def digits(split: str, count: int) -> Split:
    pictures, classes = pictures_of("mnist", split)
    pairs = zip(pictures[:count], classes, strict=False)
    return [(picture, {"digit": digit, "high": "yes" if int(digit) > 5 else "no"}) for picture, digit in pairs]


def say(name: str, evaluation: Evaluation, figures: Sequence[str]) -> None:
    print(f"{name}, {evaluation.run.record.steps:,} steps: {words_of(evaluation.figures, figures)}", flush=True)


def words_of(figures: Mapping[str, Figure], names: Sequence[str]) -> str:
    each = ((name, figures[name]) for name in names)
    return ", ".join(f"{name} {one.value:.4g} ({one.low:.4g} to {one.high:.4g})" for name, one in each)


def learn(
    name: str, recipe: Recipe, source: dict[str, Split], out: Path, figures: Sequence[str]
) -> tuple[Plan, Evaluation]:
    """A training and its evaluation, which is printed."""
    plans: list[Plan] = []

    def keep(event: Event) -> None:
        if isinstance(event, Started):
            plans.append(event.plan)

    run = train(recipe, source=source, out=out / name, listeners=[keep])  # type: ignore[arg-type]
    evaluation = evaluate(run, source=plans[0].pack)
    say(name, evaluation, figures)
    return plans[0], evaluation


def measure_mosaics(out: Path, steps: int) -> None:
    source = {"train": mosaics("train", LEARNT), "test": mosaics("test", TESTED)}
    nothing = Recipe(
        model=quick_model(image_size=64, patch_size=8, channels=3),
        data=Data(source="python", validation=0.1, augment=Augment(pad=4, flip="random", outside="mirror")),
        train=quick_train(budget=f"{steps}steps").model_copy(update={"label_smoothing": 0.0, "device": "cpu"}),
    )
    probe = Recipe(
        model=tiny16(96),
        data=Data(source="python", validation=0.1, mean=(0.5,) * 3, std=(0.5,) * 3, resize=Scale(kind="stretch")),
        init=Init(weights=WEIGHTS, mode="probe"),
        train=Train(epochs=40, batch_size=128, optimizer=AdamW(learning_rate=3e-3)),
    )
    compare_with_regression(*learn("ti16-probe", probe, source, out, MOSAICS))
    learn("from-nothing", nothing, source, out, MOSAICS)


def compare_with_regression(plan: Plan, probe: Evaluation) -> None:
    """One-vs-rest logistic regression on the features that the head of the probe sees; C chosen on validation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    assert isinstance(plan.batches, CachedFeatures)
    pack, features, labels = plan.pack, {"test": probe.outputs.features.numpy()}, {"test": probe.labels.astype(int)}
    for split in ("train", "validation"):
        numbers = pack.of(split)
        features[split] = plan.batches.outputs(probe.weights.model, numbers).features.numpy()
        labels[split] = pack.index.labels[numbers].astype(int)
    best, chosen = -1.0, None
    for strength in (0.001, 0.01, 0.1, 1.0):
        each = OneVsRestClassifier(LogisticRegression(C=strength, max_iter=2_000))
        model = make_pipeline(StandardScaler(), each).fit(features["train"], labels["train"])
        score = average_precision_score(labels["validation"], model.predict_proba(features["validation"]))
        print(f"  C = {strength}: mAP {score:.4f} of validation")
        if score > best:
            best, chosen = score, model
    assert chosen is not None
    probabilities = chosen.predict_proba(features["test"])
    names = pack.index.class_names
    metrics = measure_labels(labels["test"] > 0, probabilities, names, np.full(len(names), 0.5))
    print(f"logistic regression on the same features: {words_of(metrics.figures, MOSAICS)}", flush=True)


def measure_angle(out: Path, steps: int) -> None:
    source = {"train": turned("train", LEARNT), "test": turned("test", TESTED)}
    recipe = Recipe(
        model=quick_model(image_size=28, patch_size=4, channels=1),
        data=Data(source="python", validation=0.1, augment=Augment(zoom=0.1, shift=0.08)),
        train=quick_train(budget=f"{steps}steps"),
    )
    _, evaluation = learn("angle", recipe, source, out, ("mae", "mae_of_mean", "rmse", "r2", "inside"))
    picture, angle = source["test"][0]
    print(f"a digit turned by {angle:.1f}°: {Classifier.load(evaluation.run).predict(picture)}")


def measure_digits(out: Path, steps: int) -> None:
    source = {"train": digits("train", LEARNT), "test": digits("test", TESTED)}
    figures = ("digit_accuracy", "high_accuracy")
    for name, changes in {"a-token-each": {"model.tokens": "tasks"}, "one-token": {"model.tokens": "class"}}.items():
        model = quick_model(image_size=28, patch_size=4, channels=1)
        recipe = Recipe(
            model=model,
            data=Data(source="python", validation=0.1, augment=Augment(rotate=10, zoom=0.1, shear=8, shift=0.08)),
            train=quick_train(budget=f"{steps}steps"),
        ).changed({"model.pool": "class", **changes})
        learn(name, recipe, source, out, figures)


MEASURES = {"mosaics": measure_mosaics, "angle": measure_angle, "digits": measure_digits}


@click.command(help=__doc__)
@click.argument("what", type=click.Choice([*MEASURES]))
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/targets"), show_default=True)
@click.option("--steps", default=300, show_default=True, type=click.IntRange(min=1), help="From nothing.")
def main(what: str, out: Path, steps: int) -> None:
    MEASURES[what](out, steps)


if __name__ == "__main__":
    main()
