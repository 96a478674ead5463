"""Is the doubt honest? Calibration before and after the temperature, and whether strange pictures are noticed.

    python benchmarks/doubt.py [--set digits] [--set mnist] [--steps 400] [--seeds 0,1,2]
    python benchmarks/doubt.py --temperature [--set imagenette-mini] [--steps 200]

A model learns all classes but one. Then it is asked about test pictures of those that it learnt, of the class that was
left out, and of another set. AUROC is the chance that a strange picture gets a larger score than a known one, 0.5 by
luck: for the distance in feature space, by which `predict` says "unknown", and beside it for 1 − the largest
probability. Each seed leaves out another class. Nothing is chosen by these numbers.

With --temperature all classes are learnt, photographs as `vitral train FOLDER` would but from 32 × 32 pixels, and each
run is a row: calibration error and loss of its test pictures at 1 and as it is, and why.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.metrics import roc_auc_score

from vitral import Classifier, evaluate, train
from vitral.data.config import Data
from vitral.data.sources import Index, open_source
from vitral.recipes import find_recipe
from vitral.recipes.choose import choose

MOST = 6_000  # pictures of a set
PHOTOGRAPHS = ("imagenette-mini", "food", "ants-bees")
ANOTHER = {"digits": "mnist", "mnist": "digits"}


def some(index: Index, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).permutation(len(index.samples))[:MOST])


def picture(index: Index, number: int) -> NDArray[np.uint8]:
    pixels = index.storage.read(number)
    assert isinstance(pixels, np.ndarray)  # both sets are stored so
    return pixels


def without_a_class(index: Index, left_out: int, folder: Path, seed: int) -> None:
    """The set as a folder of PNGs, without one class. Splits are made anew: a fifth to test, a tenth to validate."""
    for number in some(index, seed):
        label = int(index.labels[number])
        if label != left_out:
            place = folder / index.class_names[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(index, int(number))).save(place / f"{number}.png")


def scores(
    classifier: Classifier, pictures: list[NDArray[np.uint8]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distance, and 1 − the largest probability; (n,) each."""
    found = classifier.predict(pictures)
    return np.array([one.distance for one in found]), 1 - np.array([one.probability for one in found])


def measured(name: str, seed: int, steps: int, folder: Path) -> dict[str, float]:
    index, other = open_source(Data(source=name)), open_source(Data(source=ANOTHER[name]))
    left_out = (3 + 2 * seed) % 10
    without_a_class(index, left_out, folder / "pictures", seed)
    settings = {"data.source": str(folder / "pictures"), "data.directory": str(folder / "packs")}
    settings |= {"train.seed": seed, "train.budget": f"{steps}steps", "model.classes": 0}
    run = train(find_recipe(name).changed(settings), out=folder / "run")
    evaluation, classifier = evaluate(run), Classifier.load(run)
    known = [np.asarray(evaluation.pack.images[number])[0] for number in evaluation.numbers]
    strange = {
        "left-out class": [picture(index, int(n)) for n in some(index, seed) if index.labels[n] == left_out][:500],
        f"{ANOTHER[name]} pictures": [picture(other, int(n)) for n in some(other, seed)[:500]],
    }
    found = {
        "accuracy": evaluation.accuracy,
        "calibration error before": evaluation.uncalibrated.figures["calibration_error"].value,
        "calibration error after": evaluation.metrics.figures["calibration_error"].value,
        "temperature": float(evaluation.calibration.temperature) if evaluation.calibration else float("nan"),
    }
    near = scores(classifier, known)
    found["known ones called unknown"] = float(np.mean(near[0] > 1))
    for what, pictures in strange.items():
        far = scores(classifier, pictures)
        truth = np.repeat([0, 1], [len(known), len(pictures)])
        found[f"{what}, called unknown"] = float(np.mean(far[0] > 1))
        for score, kind in ((0, "distance"), (1, "probability")):
            found[f"{what}, AUROC by {kind}"] = float(roc_auc_score(truth, np.concatenate([near[score], far[score]])))
    return found


def tempered(name: str, seed: int, steps: int, folder: Path) -> str:
    """A row: calibration error and loss, before and after the temperature."""
    settings = {"train.seed": seed, "train.budget": f"{steps}steps"}
    if name in PHOTOGRAPHS:
        small = {"model.image_size": 32, "train.batch_size": 64, "train.baseline": False}
        recipe = choose(name, settings | small).recipe
    else:
        recipe = find_recipe(name).changed(settings)
    evaluation = evaluate(train(recipe, out=folder / "run"))
    calibration, before, after = evaluation.calibration, evaluation.uncalibrated.figures, evaluation.metrics.figures
    assert calibration and calibration.fit
    error = f"{before['calibration_error'].value:.1%} → {after['calibration_error'].value:.1%}"
    loss = f"{before['loss'].value:.3f} → {after['loss'].value:.3f}"
    kept = f"{float(calibration.temperature):.2f}, {'kept' if calibration.fit.kept else 'left'}: {calibration.fit}"
    return f"| {name} | {seed} | {evaluation.accuracy:.1%} | {error} | {loss} | {kept} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", choices=[*ANOTHER, *PHOTOGRAPHS], help="default: all that fit")
    parser.add_argument("--temperature", action="store_true", help="what the temperature does, run by run")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    if not asked.temperature and (wrong := set(asked.set or ()) - set(ANOTHER)):
        parser.error(f"{', '.join(wrong)}: with --temperature only.")
    print(f"{asked.steps} steps, torch {torch.__version__}, {torch.get_num_threads()} threads")
    if asked.temperature:
        print("| set | seed | accuracy | calibration error | loss | temperature |\n|---|---|---|---|---|---|")
        for name in asked.set or ("digits", *PHOTOGRAPHS):
            for seed in map(int, asked.seeds.split(",")):
                with tempfile.TemporaryDirectory() as folder:
                    print(tempered(name, seed, asked.steps, Path(folder)), flush=True)
        return
    for name in asked.set or ANOTHER:
        rows = []
        for seed in map(int, asked.seeds.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measured(name, seed, asked.steps, Path(folder)))
        print(f"\n{name}, mean ± sd of {len(rows)} seeds, each without another class")
        for what in rows[0]:
            values = [row[what] for row in rows]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            print(f"    {what:42} {mean(values):.3f}{spread}")


if __name__ == "__main__":
    main()
