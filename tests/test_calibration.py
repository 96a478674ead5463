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
from vitral.files import sha256_of
from vitral.training.calibration import choose_temperature, class_statistics, fit_temperature
from vitral.training.preparation import prepared
from vitral.weights.calibration import Calibration


def overconfident(n: int, classes: int = 5, times: float = 6.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that say how probable each class is, `times` too large; and labels."""
    labels = torch.randint(classes, (n,))
    return times * (torch.randn(n, classes) + torch.eye(classes)[labels]), labels


def test_the_temperature_is_where_the_loss_is_least() -> None:
    """Reference: a fine grid over all temperatures, and what is thought of them before."""
    torch.manual_seed(0)
    for n in (40, 4_000):
        logits, labels = overconfident(n)
        found, grid = fit_temperature(logits, labels), np.linspace(-3, 3, 2_000)
        losses = [float(cross_entropy(logits / np.exp(at), labels)) + (at / 0.3) ** 2 / (2 * n) for at in grid]
        assert found == pytest.approx(np.exp(grid[int(np.argmin(losses))]), rel=0.01) and found > 2


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
    """All right, or all wrong: the fewer they are, the nearer it stays to what it learnt, 88 %."""
    logits, labels = torch.tensor([[2.0, 0.0]]).repeat(n, 1), torch.zeros(n, dtype=torch.int64)
    sure = (logits / fit_temperature(logits, labels)).softmax(dim=1)[0, 0]
    assert 0.88 < float(sure) < max(0.93, (n + 0.5) / (n + 1))
    doubtful = (logits / fit_temperature(logits, 1 - labels)).softmax(dim=1)[0, 0]
    assert 0.5 <= float(doubtful) < 0.88


@pytest.mark.parametrize("pictures", [24, 60])
def test_a_temperature_that_does_not_help_is_left_at_one(pictures: int) -> None:
    """A model that is as sure as it should be, and few validation pictures: 5 of 6 times nothing is changed, and
    other pictures lose little. Where a temperature is needed it is mostly found, and others gain much."""
    torch.manual_seed(0)
    kept, changes = {1.0: 0, 3.0: 0}, {1.0: 0.0, 3.0: 0.0}
    for _ in range(100):
        for times in kept:
            logits, labels = overconfident(2_000, times=times)  # at 1 it is right as often as it says
            fit = choose_temperature(logits[:pictures], labels[:pictures])
            others, truth = logits[pictures:] / (fit.fitted if fit.kept else 1.0), labels[pictures:]
            kept[times] += fit.kept
            changes[times] += float(cross_entropy(others, truth) - cross_entropy(logits[pictures:], truth)) / 100
    assert kept[1.0] <= 25 and kept[3.0] >= 80
    assert changes[1.0] < 0.005 and changes[3.0] < -0.3


def test_pictures_of_one_group_are_held_out_together() -> None:
    """Property: ten copies of each picture, told to be groups, are no more evidence than the pictures alone."""
    torch.manual_seed(3)
    logits, labels = overconfident(30, times=1.5)
    alone = choose_temperature(logits, labels, np.array([f"{number:02}" for number in range(30)]))
    copies, names = logits.repeat_interleave(10, dim=0), np.repeat([f"{number:02}" for number in range(30)], 10)
    grouped = choose_temperature(copies, labels.repeat_interleave(10), names)
    assert grouped.before == pytest.approx(alone.before) and grouped.error == pytest.approx(alone.error, rel=0.5)
    assert choose_temperature(copies, labels.repeat_interleave(10)).error < 0.6 * grouped.error


def test_one_picture_says_nothing() -> None:
    fit = choose_temperature(torch.tensor([[2.0, 0.0]]), torch.tensor([1]))
    assert not fit.kept and fit.before == fit.after and str(fit).endswith("on 1 validation picture")


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


@pytest.mark.slow
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
    assert again.fit == found.fit and found.fit is not None and found.fit.pictures == 359
    for name in ("temperature", "means", "metric", "far"):
        assert torch.equal(getattr(found, name), getattr(again, name))


@pytest.mark.parametrize(
    "harm", ["cut", "nan", "other", "format", "json", "below", "another", "half", "narrow", "flat", "fit"]
)
def test_a_damaged_file_is_refused_with_a_sentence(run_copy: Path, harm: str) -> None:
    path = run_copy / "calibration.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    if harm == "below":
        save_file(tensors | {"temperature": torch.tensor(-1.0)}, path, metadata)
    elif harm == "another":  # other weights of the same shape
        save_file(tensors, path, {"vitral": json.dumps({"format": 1, "head": "0" * 16})})
    elif harm == "half":
        save_file({name: tensor.half() for name, tensor in tensors.items()}, path, metadata)
    elif harm == "narrow":  # of features that this model has not
        save_file(tensors | {"means": torch.zeros(10, 5), "metric": torch.eye(5)}, path, metadata)
    elif harm == "fit":
        header = json.loads(metadata["vitral"])
        save_file(tensors, path, {"vitral": json.dumps(header | {"fit": header["fit"] | {"before": "much"}})})
    elif harm == "flat":
        save_file(tensors | {"metric": torch.tensor(1.0)}, path, metadata)
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
    with pytest.raises(WeightsError, match=r"calibration\.safetensors was altered or cut"):
        Classifier.load(run_copy)
    with pytest.raises(WeightsError, match=r"calibration\.safetensors (is damaged|has|was measured for other)"):
        Classifier.load(run_copy / "model.safetensors")  # by itself, it has no record to be compared with


def test_a_run_of_before_has_a_calibration_that_nobody_signed(run_copy: Path) -> None:
    record = json.loads((run_copy / "run.json").read_text())
    assert record.pop("calibration") == sha256_of(run_copy / "calibration.safetensors")
    (run_copy / "run.json").write_text(json.dumps(record))
    assert Classifier.load(run_copy).calibration is not None
    (run_copy / "calibration.safetensors").unlink()
    assert Classifier.load(run_copy).calibration is None
