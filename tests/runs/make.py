"""How tests/runs/format-1 was made, once. It is not made again: every later version must read what is there."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from vitral import Classifier, evaluate, train
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.recipes import digits

FOLDER = Path(__file__).parent / "format-1"

if __name__ == "__main__":
    tiny = {"model.width": 12, "model.depth": 1, "model.heads": 2, "model.mlp": {"kind": "gelu", "ratio": 2.0}}
    recipe = digits.changed({**tiny, "train.epochs": 6, "train.batch_size": 128})
    run = train(recipe, out=FOLDER)
    evaluate(run)
    for figure in FOLDER.glob("*.png"):
        figure.unlink()
    index = open_source(Data(source="digits"))
    picture = index.storage.read(int(np.flatnonzero(index.labels == 7)[0]))
    assert isinstance(picture, np.ndarray)
    Image.fromarray(picture).save(FOLDER / "picture.png")
    answer = Classifier.load(run).predict(FOLDER / "picture.png")
    expected = {
        "recipe": recipe.write(),
        "steps": run.record.steps,
        "label": answer.label,
        "probabilities": dict(answer.probabilities),
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
