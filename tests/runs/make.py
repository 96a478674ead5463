"""How the runs in this folder were made, once each. They are not made again: every later version must read them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitral import Classifier, Recipe, Run, evaluate, train
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.recipes import digits

FOLDER = Path(__file__).parent
TINY = {"model.width": 12, "model.depth": 1, "model.heads": 2, "model.mlp": {"kind": "gelu", "ratio": 2.0}}
LEARNT, TESTED = 160, 40  # pictures of the runs with other targets than one class


def targets_of(digit: int) -> dict[str, Any]:
    """What is known about a picture of a digit, for each of these runs."""
    labels = {"even": digit % 2 == 0, "high": digit > 5, "round": digit in (0, 6, 8, 9)}
    return {
        "labels": [name for name, has in labels.items() if has],
        "number": digit * 1.5,
        "tasks": {"digit": str(digit), "high": digit > 5, "size": digit * 1.5},
    }


def make_one_class(folder: Path) -> None:
    recipe = digits.changed({**TINY, "train.epochs": 6, "train.batch_size": 128})
    run = train(recipe, out=folder)
    evaluate(run)
    index = open_source(Data(source="digits"))
    finish(run, recipe, index.storage.read(int(np.flatnonzero(index.labels == 7)[0])))


def make_other_targets(folder: Path, kind: str) -> None:
    index = open_source(Data(source="digits"))
    known = [(index.storage.read(n), targets_of(int(index.labels[n]))[kind]) for n in range(LEARNT + TESTED)]
    source: Any = {"train": known[:LEARNT], "test": known[LEARNT:]}
    tokens = {"model.tokens": "tasks", "train.task_weights": [1, 1, 0.5]} if kind == "tasks" else {}
    recipe = digits.changed({**TINY, **tokens, "train.epochs": 4, "train.batch_size": 32, "train.baseline": True})
    run = train(recipe, source=source, out=folder)
    evaluate(run, source=source)
    finish(run, run.recipe, known[-1][0])


def finish(run: Run, recipe: Recipe, picture: Any) -> None:
    """Keep a picture and what is expected of the run, and nothing that is only looked at."""
    for figure in (
        *run.folder.glob("*.png"),
        run.folder / "report.html",
        run.folder / "check.json",
        run.folder / ".lock",
    ):
        figure.unlink(missing_ok=True)
    for checkpoint in (run.folder / "checkpoints").iterdir():
        checkpoint.unlink()
    (run.folder / "checkpoints").rmdir()
    Image.fromarray(picture).save(run.folder / "picture.png")
    answer = Classifier.load(run).predict(run.folder / "picture.png")
    expected = {
        "recipe": recipe.write(),
        "steps": run.record.steps,
        "label": answer.label,
        "probabilities": dict(answer.probabilities),
        "answer": answer.write(),  # the run format-1 was made before there were others
    }
    (run.folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    if not (FOLDER / "format-1").exists():
        make_one_class(FOLDER / "format-1")
    for kind in ("labels", "number", "tasks"):
        if not (FOLDER / f"format-1-{kind}").exists():
            make_other_targets(FOLDER / f"format-1-{kind}", kind)
