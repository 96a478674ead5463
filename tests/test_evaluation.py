"""Measuring a run: numbers equal to scikit-learn's, and the figures are there."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss
from torch import Tensor

from vitral import DataError, Evaluation, Run, ViT, evaluate
from vitral.look.maps import attention_map
from vitral.run import Record

FIGURES = ("attention.png", "classes.png", "confusion.png", "curves.png", "predictions.png")


@pytest.fixture(scope="module")
def evaluation(trained: Run) -> Evaluation:
    return evaluate(trained)


def test_numbers_equal_those_of_scikit_learn(evaluation: Evaluation) -> None:
    labels, predicted = evaluation.answers.labels.numpy(), evaluation.answers.predicted
    assert evaluation.calibration is not None
    probabilities = (evaluation.answers.logits.double() / evaluation.calibration.temperature).softmax(dim=1).numpy()
    assert evaluation.accuracy == accuracy_score(labels, predicted)
    assert evaluation.loss == pytest.approx(log_loss(labels, probabilities, labels=range(10)), rel=1e-5)
    assert np.array_equal(evaluation.confusion, confusion_matrix(labels, predicted))
    low, high = evaluation.metrics.accuracy.low, evaluation.metrics.accuracy.high
    assert low is not None and high is not None and 0 <= low < evaluation.accuracy < high <= 1


def test_the_numbers_are_written_with_each_prediction(evaluation: Evaluation) -> None:
    written = json.loads((evaluation.run.folder / "evaluation.json").read_text())
    assert written["pictures"] == len(written["predictions"]) == 360
    right = sum(one["label"] == one["predicted"] for one in written["predictions"])
    assert written["accuracy"] == right / 360
    assert [sum(row) for row in written["confusion"]] == [one["pictures"] for one in written["per_class"]]
    test = {sample: label for sample, label, split in evaluation.run.split if split == "test"}
    assert {one["sample"]: one["label"] for one in written["predictions"]} == test


def test_every_figure_is_drawn(evaluation: Evaluation) -> None:
    for name in FIGURES:
        with Image.open(evaluation.run.folder / name) as figure:
            assert figure.format == "PNG" and min(figure.size) > 400


def test_pictures_that_have_changed_are_noticed(run_copy: Path) -> None:
    run = Run.load(run_copy)
    record = run.record
    changed = record.data.model_copy(update={"sha256": "0" * 64})
    run.write_record(Record.model_validate(record.model_dump() | {"data": changed.model_dump()}))
    with pytest.raises(DataError, match="are not those that"):
        evaluate(run_copy)


def test_looking_changes_nothing_and_rows_sum_to_one(evaluation: Evaluation) -> None:
    model: ViT = evaluation.weights.model
    images: Tensor = evaluation.weights.preprocess.normalise(torch.from_numpy(evaluation.images([0, 1, 2, 3])))
    before = model(images)
    seen = attention_map(model, images)
    assert seen.shape == (4, model.config.heads, 17, 17)
    assert np.allclose(seen.sum(dim=-1), 1, atol=1e-5)
    assert bool((model(images) == before).all())
