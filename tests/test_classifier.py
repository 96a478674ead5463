"""Asking a trained model: any way of giving a picture gives the same answer."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral import Classifier, DataError, Run
from vitral.classifier import write_csv


@pytest.fixture(scope="module")
def classifier(trained: Run) -> Classifier:
    return Classifier.load(trained.folder)


def test_paths_arrays_and_pillow_pictures_give_the_same_answer(
    classifier: Classifier, seven: NDArray[np.uint8], tmp_path: Path
) -> None:
    path = tmp_path / "seven.png"
    Image.fromarray(seven).save(path)
    answer = classifier.predict(seven)
    assert classifier.predict(path) == classifier.predict(str(path)) == answer
    assert classifier.predict(Image.fromarray(seven)) == answer
    assert classifier.predict(np.stack([seven] * 3, axis=2)) == answer


def test_probabilities_are_ranked_and_sum_to_one(classifier: Classifier, seven: NDArray[np.uint8]) -> None:
    answer = classifier.predict(seven)
    values = [probability for _, probability in answer.probabilities]
    assert sum(values) == pytest.approx(1, abs=1e-5)
    assert values == sorted(values, reverse=True)
    assert (answer.label, answer.probability) == answer.probabilities[0]
    assert sorted(name for name, _ in answer.probabilities) == [str(digit) for digit in range(10)]
    assert str(answer) == f"{answer.label} ({answer.probability:.1%})"


def test_files_are_written_as_json_and_csv(classifier: Classifier, seven: NDArray[np.uint8], tmp_path: Path) -> None:
    path, missing = tmp_path / "seven.png", tmp_path / "missing.png"
    Image.fromarray(seven).save(path)
    first, second = classifier.files([path, missing])
    assert first.prediction is not None and second.prediction is None and "missing.png" in second.error
    assert first.write(top=2) == {"path": str(path), **first.prediction.write(top=2)}
    assert [one["label"] for one in first.prediction.write()["probabilities"]] == [
        name for name, _ in first.prediction.probabilities
    ]
    assert (
        first.prediction.write(unsure=0.0)["unsure"] is False and first.prediction.write(unsure=1.1)["unsure"] is True
    )
    assert second.write() == {"path": str(missing), "error": second.error}
    write_csv(tmp_path / "table.csv", [first, second], unsure=0.5, top=12)  # more than there are classes
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [str(path), str(missing)]
    assert rows[0]["label"] == first.prediction.label and rows[0]["label_12"] == rows[1]["label"] == ""
    assert rows[1]["error"] == second.error


def test_a_list_gives_a_list_in_its_order(classifier: Classifier, seven: NDArray[np.uint8]) -> None:
    pictures = [seven, 255 - seven, seven.T.copy()] * 30
    together = classifier.predict(pictures)
    assert [a.label for a in together] == [classifier.predict(picture).label for picture in pictures]
    assert classifier.predict([]) == []
    batch = np.stack([seven] * 5)[..., None]  # (B, H, W, 1)
    assert len(classifier.predict(batch)) == 5  # type: ignore[arg-type]


def test_each_names_what_it_cannot_read_and_goes_on(classifier: Classifier, seven: NDArray[np.uint8]) -> None:
    answers = list(classifier.each([seven, "missing.png", seven], batch_size=2))
    assert answers[0] == answers[2] and isinstance(answers[1], DataError)


def test_the_answer_does_not_depend_on_torchs_default_dtype(classifier: Classifier, seven: NDArray[np.uint8]) -> None:
    expected = classifier.predict(seven)
    torch.set_default_dtype(torch.float64)
    try:
        again = classifier.predict(seven)
    finally:
        torch.set_default_dtype(torch.float32)
    assert dict(again.probabilities) == pytest.approx(dict(expected.probabilities), abs=1e-5)


def test_weights_alone_are_enough(trained: Run, classifier: Classifier, seven: NDArray[np.uint8]) -> None:
    alone = Classifier.load(trained.folder / "model.safetensors")
    assert alone.predict(seven) == classifier.predict(seven)


def test_what_is_no_picture_is_refused(classifier: Classifier, tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "missing.png", np.zeros((8, 8)), 3):
        with pytest.raises(DataError):
            classifier.predict(wrong)  # type: ignore[arg-type]
