"""Measuring a run: numbers equal to scikit-learn's, and the figures are there."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss
from torch import Tensor

from conftest import quick_digits, vit
from vitral import Classifier, DataError, Evaluation, Progress, Run, evaluate, train
from vitral.cli.evaluate import print_evaluation
from vitral.cli.terminal import console
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.deploy.convert import convert
from vitral.evaluation.metrics import METRICS, Metric
from vitral.look.maps import attention_maps
from vitral.run import CHECKED, Record

FIGURES = ("attention.png", "classes.png", "confusion.png", "curves.png", "predictions.png")


@pytest.fixture(scope="module")
def evaluation(trained: Run) -> Evaluation:
    return evaluate(trained)


@pytest.mark.slow
def test_out_of_time_what_can_wait_is_left_out_and_told(run_copy: Path) -> None:
    """Numbers and figures are there all the same; asked again, the rest is made up for."""
    (run_copy / CHECKED).unlink(missing_ok=True)
    short = evaluate(run_copy, seconds=0.0)
    report = (run_copy / "report.html").read_text()
    assert short.left_out == ["a check of all pictures", "grades of 8 maps"]
    assert short.accuracy > 0 and (run_copy / "confusion.png").is_file() and Run.load(run_copy).checked is None
    assert "there was no time to put these to the test" in report and "takes too long to be done unasked" in report
    steps: list[Progress] = []
    whole = evaluate(run_copy, tell=steps.append)
    assert whole.left_out == [] and Run.load(run_copy).checked is not None
    assert "no time" not in (run_copy / "report.html").read_text()
    assert {"asking about pictures", "drawing", "grading maps"} <= {step.doing for step in steps}


def test_numbers_equal_those_of_scikit_learn(evaluation: Evaluation) -> None:
    labels, predicted = evaluation.labels, evaluation.outputs.predicted
    assert evaluation.calibration is not None
    probabilities = (evaluation.outputs.logits.double() / evaluation.calibration.temperature).softmax(dim=1).numpy()
    assert evaluation.accuracy == accuracy_score(labels, predicted)
    assert evaluation.metrics.loss.value == pytest.approx(log_loss(labels, probabilities, labels=range(10)), rel=1e-5)
    plain = evaluation.outputs.logits.double().softmax(dim=1).numpy()
    assert evaluation.loss == pytest.approx(log_loss(labels, plain, labels=range(10)), rel=1e-5)
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


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_told_everywhere(evaluation: Evaluation, metric: Metric, tmp_path: Path) -> None:
    """A row of METRICS stands in evaluation.json, on the page, on the command line and, if a share, on the card."""
    folder, number = evaluation.run.folder, metric.text(evaluation.metrics.figures[metric.name].value)
    stored = json.loads((folder / "evaluation.json").read_text())
    assert stored["figures"][metric.name]["value"] == evaluation.metrics.figures[metric.name].value
    assert (metric.name in stored["uncalibrated"]) == metric.uses_temperature
    page = (folder / "report.html").read_text()
    assert f'id="figure-{metric.name}"' in page and f">{metric.title}</th>" in page
    with console.capture() as output:
        print_evaluation(evaluation)
    # The loss there is that of training: without the temperature.
    assert (f"{evaluation.loss:.3f}" if metric.name == "loss" else number) in output.get()
    card = (convert(evaluation.run.folder, "timm", tmp_path / "timm") / "README.md").read_text()
    assert (f"| {metric.long_title or metric.title} | {number} |" in card) == metric.is_share


def test_an_old_name_still_works_and_warns(evaluation: Evaluation) -> None:
    with pytest.warns(DeprecationWarning, match="baseline"):
        assert evaluation.beside == evaluation.baseline


def test_pictures_that_have_changed_are_noticed(run_copy: Path) -> None:
    run = Run.load(run_copy)
    record = run.record
    changed = record.data.model_copy(update={"sha256": "0" * 64})
    run.write_record(Record.model_validate(record.model_dump() | {"data": changed.model_dump()}))
    with pytest.raises(DataError, match="are not those that"):
        evaluate(run_copy)


def test_looking_changes_nothing_and_rows_sum_to_one(evaluation: Evaluation) -> None:
    model = vit(evaluation.weights.model)
    images: Tensor = evaluation.weights.preprocess.normalise(torch.from_numpy(evaluation.images([0, 1, 2, 3])))
    before = model(images)
    seen = attention_maps(model, images, queries="all").shares
    assert seen.shape == (4, 1, model.config.heads, 17, 17)
    assert np.allclose(seen.sum(dim=-1), 1, atol=1e-5)
    assert bool((model(images) == before).all())


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Real digits again, as a folder with splits of its own: threes and nines, and letters that no model here knows."""
    index = open_source(Data(source="digits"))
    for name in ("3", "9", "x"):
        for split in ("train", "test"):
            (tmp_path / "other" / split / name).mkdir(parents=True)
    for name in ("3", "9"):
        numbers = np.flatnonzero(index.labels == int(name))[:20]
        for place, number in enumerate(numbers):
            pixels = np.asarray(index.storage.read(int(number)))
            Image.fromarray(pixels).save(
                tmp_path / "other" / ("train" if place % 2 else "test") / name / f"{place}.png"
            )
    for split in ("train", "test"):
        Image.new("L", (8, 8)).save(tmp_path / "other" / split / "x" / "0.png")
    return tmp_path / "other"


@pytest.mark.slow
def test_another_folder_is_measured_by_the_names_of_its_classes(run_copy: Path, other: Path) -> None:
    before = Run.load(run_copy).evaluation
    evaluation = evaluate(run_copy, other)
    assert evaluation.pictures == 40 and evaluation.folder == run_copy / "evaluations" / "other"
    assert sorted(set(evaluation.labels)) == [3, 9]
    assert any(
        "2 pictures are left out, of classes that the model does not know: x." in note for note in evaluation.notes
    )
    assert any("has no pictures of 0, 1, 2, 4, 5 and 3 more:" in note for note in evaluation.notes)
    answers = Classifier.load(run_copy).predict([other / sample for sample in evaluation.samples])
    names = [evaluation.weights.class_names[label] for label in evaluation.labels]
    right = [answer.label == name for answer, name in zip(answers, names, strict=True)]
    assert evaluation.accuracy == pytest.approx(np.mean(right))
    written = json.loads((run_copy / "evaluations" / "other" / "evaluation.json").read_text())
    assert written["split"] == "all" and written["source"] == str(other) and len(written["notes"]) == 4
    assert "of these 40 pictures were learnt from, or watched in training" in written["notes"][-1]
    assert Run.load(run_copy).evaluation == before  # what is known of its own test pictures stays
    assert (run_copy / "evaluations" / "other" / "confusion.png").is_file()


@pytest.mark.slow
def test_two_folders_of_the_same_name_do_not_meet(run_copy: Path, other: Path) -> None:
    elsewhere = other.parent / "elsewhere" / "other"
    shutil.copytree(other, elsewhere)
    places = [evaluate(run_copy, source).folder.name for source in (other, elsewhere, other)]
    assert places == ["other", "other-2", "other"]


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_said(run_copy: Path, other: Path) -> None:
    broken = sorted((other / "train" / "3").iterdir())[0]
    broken.write_bytes(b"no picture")
    evaluation = evaluate(run_copy, other)
    assert evaluation.pictures == 39 and any("cannot be read and is left out" in note for note in evaluation.notes)


def test_a_folder_with_no_class_in_common_is_refused(run_copy: Path, other: Path) -> None:
    for split in ("train", "test"):
        for name in ("3", "9"):
            shutil.rmtree(other / split / name)
        (other / split / "y").mkdir()
        Image.new("L", (8, 8), 9).save(other / split / "y" / "0.png")
    with pytest.raises(
        DataError, match=r"has no class that .* knows: it has x, y, and the model 0, 1, 2, 3, 4 and 5 more"
    ):
        evaluate(run_copy, other)


@pytest.mark.slow
def test_mirror_images_are_asked_about_only_when_asked_for_and_named_so(run_copy: Path) -> None:
    plain, both = evaluate(run_copy), evaluate(run_copy, mirrored=True)
    assert (
        both.folder == run_copy / "evaluations" / "own-mirrored"
        and both.write()["mirrored"]
        and "mirrored" not in plain.write()
    )
    model, preprocess = plain.weights.model.eval(), plain.weights.preprocess
    images = preprocess.normalise(torch.from_numpy(plain.images([0, 1, 2])))
    with torch.no_grad():
        expected = (model(images).softmax(1) + model(images.flip(3)).softmax(1)) / 2
    torch.testing.assert_close(both.outputs.logits[:3].softmax(1), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_groups_have_figures_of_their_own(tmp_path: Path) -> None:
    """Pictures of two cameras, one of which sees nothing: its accuracy is told by itself, and first."""
    random = np.random.default_rng(0)
    for label in ("dark", "bright"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(60):
            camera = ("good", "broken")[number % 2]
            level = random.integers(0, 80) + (150 if label == "bright" and camera == "good" else 0)
            name = f"{camera}-{number // 6}-{number}.png"
            Image.new("L", (8, 8), int(level)).save(tmp_path / "pictures" / label / name)
    grouped = {"data.source": str(tmp_path / "pictures"), "data.group_by": "((?:good|broken)-[0-9]+)"}
    evaluation = evaluate(train(quick_digits().changed(grouped), out=tmp_path / "run"))
    assert set(evaluation.groups) == {sample.split("/")[1].rsplit("-", 1)[0] for sample in evaluation.samples}
    shares = [figure.value for figure in evaluation.groups.values()]
    assert shares == sorted(shares) and evaluation.write()["groups"]
