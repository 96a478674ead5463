"""Doubt that is honest: probabilities that mean what they say, and a sense for pictures of another kind."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from conftest import quick_digits
from vitral import Classifier, Run, WeightsError, evaluate, train
from vitral.evaluation.metrics import measure
from vitral.training.calibration import class_statistics, fit_temperature
from vitral.training.preparation import prepared
from vitral.weights.calibration import Calibration


def test_the_temperature_is_where_the_loss_is_least() -> None:
    """Reference: a fine grid over all temperatures."""
    torch.manual_seed(0)
    labels = torch.randint(5, (400,))
    logits = 6 * (torch.randn(400, 5) + torch.eye(5)[labels])  # far too sure
    found = fit_temperature(logits, labels)
    grid = np.exp(np.linspace(-3, 3, 2_000))
    losses = [float(cross_entropy(logits / temperature, labels)) for temperature in grid]
    assert found == pytest.approx(grid[int(np.argmin(losses))], rel=0.01) and found > 2


def test_a_temperature_makes_probabilities_mean_what_they_say() -> None:
    torch.manual_seed(1)
    labels = torch.randint(5, (4_000,))
    logits = 6 * (torch.randn(4_000, 5) + torch.eye(5)[labels])
    temperature = fit_temperature(logits[:2_000], labels[:2_000])

    def error(logits: torch.Tensor) -> float:
        probabilities = logits[2_000:].double().softmax(dim=1).numpy()
        return measure(labels[2_000:].numpy(), probabilities, tuple("abcde")).figures["calibration_error"].value

    assert error(logits) > 0.2 and error(logits / temperature) < 0.04


@pytest.mark.parametrize("n", [4, 6, 40])
def test_a_few_right_answers_do_not_make_it_certain(n: int) -> None:
    """All right, or all wrong: as sure as one may be after so many, (n + 1/2) / (n + 1) for two classes."""
    logits, labels = torch.tensor([[2.0, 0.0]]).repeat(n, 1), torch.zeros(n, dtype=torch.int64)
    sure = (logits / fit_temperature(logits, labels)).softmax(dim=1)[0, 0]
    assert float(sure) == pytest.approx((n + 0.5) / (n + 1), abs=1e-3)
    doubtful = (logits / fit_temperature(logits, 1 - labels)).softmax(dim=1)[0, 0]
    assert 0.5 <= float(doubtful) < 0.55


def test_within_the_classes_every_direction_spreads_equally() -> None:
    """Property: in the metric, the covariance within the classes is the identity."""
    torch.manual_seed(0)
    labels = torch.arange(900) % 3
    features = torch.randn(900, 6) @ (torch.randn(6, 6) + 3 * torch.eye(6)) + 5 * torch.randn(3, 6)[labels]
    means, metric = class_statistics(features, labels, 3)
    within = (features - means[labels]) @ metric
    torch.testing.assert_close(within.T @ within / 900, torch.eye(6), rtol=0, atol=0.1)


def test_features_that_never_change_do_no_harm() -> None:
    means, metric = class_statistics(torch.ones(10, 4), torch.arange(10) % 2, 2)
    assert means.isfinite().all() and metric.isfinite().all()


@pytest.mark.slow
def test_nineteen_in_twenty_validation_pictures_are_near(trained: Run) -> None:
    plan, weights = prepared(trained.recipe), trained.weights()
    found = plan.calibrate(weights.model)
    assert found is not None
    classifier = Classifier(weights, found)
    unknown = {}
    for split in ("validation", "test"):  # the distance was set by the first, and holds for the other
        pictures = [plan.pack.images[number][0] for number in plan.pack.of(split)]
        unknown[split] = np.mean([prediction.unknown for prediction in classifier.predict(pictures)])
    assert unknown["validation"] == pytest.approx(0.05, abs=0.01) and 0.01 < unknown["test"] < 0.12
    told = evaluate(trained).unknown
    assert told is not None and told.value == pytest.approx(unknown["test"])


def test_a_training_leaves_its_doubt_in_the_run_folder(trained: Run) -> None:
    found = Calibration.load(trained.folder, trained.weights().model)
    assert found is not None and found.means.shape == (10, 16) and found.metric.shape == (16, 16)
    classifier = Classifier.load(trained)
    plain = Classifier(trained.weights())
    picture = np.zeros((8, 8), np.uint8)
    ours, theirs = classifier.predict(picture), plain.predict(picture)
    assert ours.label == theirs.label and theirs.distance is None and not theirs.unknown
    assert ours.distance is not None and ours.distance > 0
    assert sum(share for _, share in ours.probabilities) == pytest.approx(1)


def test_noise_is_unknown(trained: Run) -> None:
    random = np.random.default_rng(0)
    noise = [random.integers(0, 256, (8, 8), np.uint8) for _ in range(50)]
    unknown = [prediction.unknown for prediction in Classifier.load(trained).predict(noise)]
    assert np.mean(unknown) > 0.5
    prediction = next(one for one in Classifier.load(trained).predict(noise) if one.unknown)
    assert str(prediction).startswith("unknown, perhaps ")


def test_without_validation_pictures_there_is_no_temperature_and_it_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from vitral.cli.evaluate import print_evaluation

    for label in ("dark", "bright"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(8):
            level = number + (200 if label == "bright" else 0)
            Image.new("L", (8, 8), level).save(tmp_path / "pictures" / label / f"{number}.png")
    source = {"data.source": str(tmp_path / "pictures"), "data.validation": 0.0, "train.batch_size": 4}
    run = train(quick_digits().changed(source), out=tmp_path / "run")
    assert (
        Calibration.load(run.folder, run.weights().model) is None
        and not (run.folder / "calibration.safetensors").exists()
    )
    print_evaluation(evaluate(run))
    assert "without validation pictures no temperature could be found" in " ".join(capfd.readouterr().out.split())
    assert "temperature" not in json.loads((run.folder / "evaluation.json").read_text())


@pytest.mark.slow
def test_an_evaluation_tells_both(trained: Run) -> None:
    evaluation = evaluate(trained)
    written = json.loads((trained.folder / "evaluation.json").read_text())
    assert written["temperature"] == pytest.approx(float(evaluation.calibration.temperature))  # type: ignore[union-attr]
    plain = evaluation.outputs.logits.double().softmax(dim=1).numpy()
    figures = measure(evaluation.labels, plain, evaluation.weights.class_names)
    assert written["uncalibrated"]["loss"]["value"] == pytest.approx(figures.loss.value)
    assert written["loss"] == pytest.approx(figures.loss.value)  # as in training
    assert written["figures"]["loss"]["value"] == pytest.approx(evaluation.metrics.loss.value)


def test_it_comes_back_as_it_was_written(tmp_path: Path, trained: Run) -> None:
    found = Calibration.load(trained.folder, trained.weights().model)
    assert found is not None
    found.write(tmp_path)
    again = Calibration.load(tmp_path, trained.weights().model)
    assert again is not None and again.head == found.head
    for name in ("temperature", "means", "metric", "far"):
        assert torch.equal(getattr(found, name), getattr(again, name))


@pytest.mark.parametrize("harm", ["cut", "nan", "other", "format", "json", "below", "another"])
def test_a_damaged_file_is_refused_with_a_sentence(run_copy: Path, harm: str) -> None:
    path = run_copy / "calibration.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    if harm == "below":
        save_file(tensors | {"temperature": torch.tensor(-1.0)}, path, metadata)
    elif harm == "another":  # other weights of the same shape
        save_file(tensors, path, {"vitral": json.dumps({"format": 1, "head": "0" * 16})})
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:50])
    elif harm == "nan":
        save_file(tensors | {"far": torch.tensor(float("nan"))}, path, {"vitral": '{"format": 1}'})
    elif harm == "other":
        save_file(tensors | {"means": torch.zeros(3, 16)}, path, {"vitral": '{"format": 1}'})
    elif harm == "format":
        save_file(tensors, path, {"vitral": '{"format": 99}'})
    else:
        save_file(tensors, path, {"vitral": "{"})
    with pytest.raises(WeightsError, match=r"calibration\.safetensors"):
        Classifier.load(run_copy)
