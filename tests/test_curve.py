"""A test curve is measured after every epoch and changes nothing; what others report is drawn beside it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from conftest import FIXTURES, FORMAT_1, quick_digits, slowly, stopped
from vitral import Epoch, RecipeError, Run, RunError, events, train
from vitral.cli import vitral
from vitral.evaluation import figures
from vitral.evaluation.compare import compare
from vitral.evaluation.evaluate import evaluate
from vitral.inference import outputs_of_pack
from vitral.recipe import Recipe, Reported, parse_setting
from vitral.training.budget import Pace, with_test_curve
from vitral.training.feature_cache import CachedFeatures
from vitral.training.preparation import prepared

CURVE = {"train.test_curve": True}
NOTEBOOK = {
    "who": "Ann's notebook",
    "train_loss": [[1, 2.1], [2, 1.9], [3, 1.8]],
    "test_loss": [[1, 2.0], [3, 1.85]],
    "test_accuracy": [[1, 0.3], [3, 0.599]],
}

# Everything that a measurement could disturb: random numbers, averages, what is chosen by validation.
DISTURBED = {
    "data.augment.mixup": 0.8,
    "train.regularise.dropout": 0.1,
    "train.regularise.stochastic_depth": 0.2,
    "train.patches": "rising",
    "train.ema": 0.9,
    "train.choose": "loss",
    "train.patience": 2,
    "model.depth": 2,
}


def weights(run: Run) -> bytes:
    return (run.folder / "model.safetensors").read_bytes()


def epochs(run: Run) -> list[dict[str, Any]]:
    """The lines of the epochs, but for times."""
    lines = [line for line in run.metrics if line["event"] == "epoch"]
    return [{name: value for name, value in line.items() if name not in ("seconds", "waited")} for line in lines]


def without_test(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if not name.startswith("test_")} for line in lines]


@pytest.mark.parametrize("settings", [{}, *slowly(DISTURBED, {"model.stem": "whitened", "train.ema": 0.9})])
def test_the_curve_changes_no_bit_of_the_training_nor_does_a_stop(tmp_path: Path, settings: dict[str, Any]) -> None:
    recipe = quick_digits().changed(settings)
    plain = train(recipe, out=tmp_path / "plain")
    told = train(recipe.changed(CURVE), out=tmp_path / "told")
    for after in (16, 21):  # just where an epoch ends, and within one
        folder = stopped(recipe.changed(CURVE), tmp_path / f"stopped-{after}", after)
        resumed = train(out=folder, resume=True)
        assert weights(resumed) == weights(told) and epochs(resumed) == epochs(told)
    assert weights(told) == weights(plain)
    assert without_test(epochs(told)) == epochs(plain) != epochs(told)
    calibrations = [(run.folder / "calibration.safetensors").read_bytes() for run in (plain, told)]
    assert calibrations[0] == calibrations[1]


def test_its_last_line_is_what_an_evaluation_measures(tmp_path: Path) -> None:
    """The same figures as of the other splits, on the averaged weights; the events have them, too."""
    heard: list[Epoch] = []
    recipe = quick_digits().changed({**CURVE, "train.ema": 0.9})
    for event in events(recipe, out=tmp_path / "run"):
        if isinstance(event, Epoch):
            heard.append(event)
    run = Run.load(tmp_path / "run")
    names = [name for name in epochs(run)[-1] if name not in ("event", "epoch", "step")]
    assert names == [f"{split}_{name}" for split in ("train", "validation", "test") for name in ("loss", "accuracy")]
    assert heard[-1].test_accuracy == heard[-1].of("test")["accuracy"] == epochs(run)[-1]["test_accuracy"]
    own, pack = run.weights(), prepared(recipe).pack
    outputs = outputs_of_pack(own.model, pack, pack.of("test"), own.preprocess)
    labels = torch.from_numpy(pack.index.labels[pack.of("test")])
    loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
    assert heard[-1].test_loss == pytest.approx(float(loss), rel=1e-5)


def test_without_it_nothing_is_said_of_test_pictures(trained: Run) -> None:
    assert not any(name.startswith("test") for line in trained.metrics for name in line)
    assert "test_curve" not in trained.recipe.to_toml() and "reported" not in trained.recipe.to_toml()


SQUARE = np.zeros((8, 8), np.uint8)


def test_without_test_pictures_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A class of one picture has none to spare; of others each may turn out to be unreadable."""
    recipe = quick_digits().changed({**CURVE, "data.directory": str(tmp_path / "cache"), "data.validation": 0})
    sentence = r"there are none: add some, or set train\.test_curve=false"
    with pytest.raises(RecipeError, match=sentence):
        train(recipe, out=tmp_path / "run", source=[(SQUARE, 0), (SQUARE + 9, 1)])
    assert not (tmp_path / "cache").exists()
    for name in ("train/a", "train/b", "test/a"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.fromarray(SQUARE).save(tmp_path / "pictures" / name / "1.png")
    (tmp_path / "pictures/test/a/1.png").write_bytes(b"no picture")
    with pytest.raises(RecipeError, match=sentence):
        train(recipe.changed({"data.source": str(tmp_path / "pictures")}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_step_takes_its_share_of_the_curve_into_account() -> None:
    """360 test pictures beside 359 to validate: a third of the time of a step for each batch of them."""
    plan = prepared(quick_digits().changed(CURVE))
    each = 1 / 3 / 64 / plan.batches.steps_per_epoch
    pace = with_test_curve(Pace(plan.learner, 1 + 359 * each, 1 + 359 * each), plan)
    assert pace.first == pace.full == pytest.approx(1 + (359 + 360) * each)
    assert with_test_curve(pace, replace(plan, test_curve=False)) == pace


OBJECTIVE = """
import torch
from vitral.training.objectives import Objective

class Brightness(Objective):
    figures = ("gap",)
    needs_labels = False

    def __init__(self, model):
        super().__init__()
        self.teacher = torch.nn.Dropout(0.5).eval()  # stays so: `train` would change what it teaches
        self.register_buffer("centre", torch.zeros(()))

    def loss(self, model, batch, step, progress):
        level = model.pool(model.features(batch.images)).mean(dim=1)
        gap = level - self.teacher(batch.images.mean(dim=(1, 2, 3))) - self.centre
        self.centre.add_(0.01)  # whoever asks
        loss = gap.square().mean()
        return loss, {"gap": gap.detach().abs().mean()}
"""

OF_ITS_OWN = {
    "train.label_smoothing": 0,
    "train.batch_size": 8,
    "train.regularise.dropout": 0.2,  # which a model that was left in `eval` would do without
    "train.ema": 0,  # so that the model itself is measured, and no copy
    "data.validation": 0,
}


def test_an_objective_without_labels_has_a_curve_and_is_left_as_it_was(tmp_path: Path) -> None:
    """Even one that remembers each question, and without validation pictures."""
    (tmp_path / "mine.py").write_text(OBJECTIVE)
    pictures = {split: [(SQUARE + 3 * n, 0) for n in range(24)] for split in ("train", "test")}
    recipe = quick_digits().changed(
        {
            **OF_ITS_OWN,
            "train.objective": f"{tmp_path}/mine.py:Brightness",
            "data.directory": str(tmp_path / "cache"),
        }
    )
    plain = train(recipe, out=tmp_path / "plain", source=pictures)
    told = train(recipe.changed(CURVE), out=tmp_path / "told", source=pictures)
    assert weights(plain) == weights(told) and without_test(epochs(told)) == epochs(plain)
    assert {name for name in epochs(told)[0] if name.startswith("test")} == {"test_loss", "test_gap"}


def test_what_is_no_number_is_left_out_and_stops_nothing(tmp_path: Path) -> None:
    """A test loss that runs away is told as a dash; without the curve nobody would have seen it."""
    (tmp_path / "mine.py").write_text(OBJECTIVE.replace("gap.square().mean()", "gap.square().mean() / batch.labels[0]"))
    pictures = {"train": [(SQUARE, 1), (SQUARE + 9, 1)] * 8, "test": [(SQUARE, 0)] * 4}
    given = {"train.objective": f"{tmp_path}/mine.py:Brightness", "data.directory": str(tmp_path / "cache")}
    run = train(quick_digits().changed({**CURVE, **OF_ITS_OWN, **given}), out=tmp_path / "run", source=pictures)
    assert "test_gap" in epochs(run)[0] and "test_loss" not in epochs(run)[0]


def test_frozen_layers_look_at_test_pictures_once_where_they_fit(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the curve is the same where they do not; then the training itself is still from what is cached."""
    from vitral.recipes.choose import choose

    given = {"init.weights": str(FIXTURES / "timm_vit"), "train.epochs": 2, "train.batch_size": 8}
    recipe = choose(str(pictures), {**given, "train.baseline": False, "train.budget": "none"}).recipe
    plain, plan = train(recipe, out=tmp_path / "plain"), prepared(recipe.changed(CURVE))
    assert isinstance(plan.batches, CachedFeatures) and [*plan.batches.held_out] == ["validation", "test"]
    told = train(recipe.changed(CURVE), out=tmp_path / "told")
    each = plan.batches.train[0][0].numel() * 4
    most = each * (len(plan.batches.samples) * len(plan.batches.train) + len(plan.pack.of("validation")))
    monkeypatch.setattr("vitral.training.feature_cache.MOST", most)
    tight = prepared(recipe.changed(CURVE))
    assert isinstance(tight.batches, CachedFeatures) and [*tight.batches.held_out] == ["validation"]
    large = train(recipe.changed(CURVE), out=tmp_path / "large")
    assert weights(plain) == weights(told) == weights(large)
    for one, other in zip(epochs(told), epochs(large), strict=True):
        assert one["test_loss"] == pytest.approx(other["test_loss"], rel=1e-5)


@pytest.mark.slow
def test_the_table_has_its_columns_and_says_once_that_it_chooses_nothing(tmp_path: Path) -> None:
    words = ["model.width=16", "model.depth=1", "model.heads=2", "train.epochs=2", "train.test_curve=true"]
    result = CliRunner().invoke(vitral, ["train", "digits", *words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert result.output.count("The 360 test pictures are measured after every epoch") == 1
    lines = result.output.splitlines()
    header = next(n for n, line in enumerate(lines) if line.startswith("epoch"))
    assert lines[header].split() == ["epoch", *["loss", "accuracy"] * 3, "seconds", "waited"]
    assert lines[header - 1].replace("─", "").split() == ["train", "validation", "test"]
    assert {len(line) for line in lines[header : header + 3]} == {78} and len(lines[header + 1].split()) == 9
    assert "The test curve chose nothing" in (tmp_path / "run" / "report.html").read_text()


@pytest.fixture(scope="module")
def reported() -> Recipe:
    return quick_digits().changed({**CURVE, "reported": NOTEBOOK})


def test_what_others_report_is_data_of_the_recipe(reported: Recipe) -> None:
    assert reported.reported.test_accuracy == ((1, 0.3), (3, 0.599))
    assert Recipe.from_toml(reported.to_toml()) == reported
    assert json.loads(json.dumps(reported.write()))["reported"]["who"] == "Ann's notebook"
    typed = parse_setting("reported.test_accuracy=[[1, 0.3], [3, 0.6]]")
    assert reported.changed(dict([typed])).reported.test_accuracy[-1] == (3, 0.6)
    assert reported.changed({"reported": {}}).reported == Reported()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"test_accuracy": [[1, 59.9]]}, "test_accuracy is 59.9 at epoch 1, and should be a share from 0 to 1"),
        ({"test_accuracy": [[1, -0.1]]}, "should be a share"),
        ({"test_loss": [[2, 1.0], [1, 0.9]]}, r"test_loss has the epochs \[2, 1\]: each should come after"),
        ({"train_loss": [[1, 1.0], [1, 0.9]]}, "each should come after"),
        ({"train_loss": [[0, 1.0]]}, "reported.train_loss is 0, and should be at least 1"),
        ({"train_loss": [[1.5, 1.0]]}, "reported.train_loss is 1.5, and should be a whole number"),
        ({"train_loss": [[1]]}, "reported.train_loss"),
        ({"train_loss": [[1, 2, 3]]}, "reported.train_loss"),
        ({"train_loss": [[1, float("nan")]]}, "reported.train_loss"),
        ({"train_loss": 3}, "reported.train_loss is 3, and should be a list"),
        ({"who": " ", "test_loss": [[1, 1.0]]}, "reported.who is not: say whose numbers these are"),
        ({"accuracy": [[1, 0.5]]}, "There is no setting reported.accuracy"),
    ],
)
def test_what_cannot_have_been_reported_is_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        quick_digits().changed({"reported": {"who": "somebody", **settings}})


def test_what_others_report_changes_no_bit_and_hinders_no_resume(tmp_path: Path, reported: Recipe) -> None:
    """What is learnt of it later is kept; another setting is refused as ever."""
    plain = reported.changed({"reported": {}})
    whole = train(reported, out=tmp_path / "whole")
    run = stopped(plain, tmp_path / "run", after=20)
    resumed = train(reported, out=run, resume=True)
    assert weights(resumed) == weights(whole) and resumed.recipe == reported
    longer = train(plain.changed({"train.epochs": 3}), out=run, resume=True)
    assert longer.recipe.reported == Reported() and longer.record.steps == 48
    with pytest.raises(RunError, match=r"train\.test_curve was True and is not set"):
        train(plain.changed({"train.test_curve": False}), out=tmp_path / "whole", resume=True)


def test_runs_that_differ_only_in_what_is_told_are_compared_as_one(tmp_path: Path, trained: Run) -> None:
    seeded = quick_digits().changed({**CURVE, "reported": NOTEBOOK, "train.seed": 1})
    groups = compare([trained.folder, train(seeded, out=tmp_path / "run").folder]).groups
    assert len(groups) == 1 and len(groups[0].members) == 2


def labels_in(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_figure_has_all_that_was_measured_and_reported(
    tmp_path: Path, reported: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = evaluate(train(reported, out=tmp_path / "run"))
    drawn: list[Any] = []
    legend = figures._legend

    def keep(axes: Any, rows: int) -> None:
        legend(axes, rows)
        drawn.append(axes)

    monkeypatch.setattr(figures, "_legend", keep)
    figures.curves(evaluation)
    loss, accuracy = drawn
    last = epochs(evaluation.run)[-1]
    assert f"test, at the end {last['test_loss']:.3f}" in labels_in(loss)
    assert f"test, at the end {last['test_accuracy']:.1%}" in labels_in(accuracy)
    assert [label for label in labels_in(loss) if "notebook" in label] == [
        "Ann's notebook, train 1.800 at epoch 3",
        "Ann's notebook, test 1.850 at epoch 3",
    ]
    assert "Ann's notebook, test 59.9% at epoch 3" in labels_in(accuracy)
    assert loss.get_xlim()[1] >= 3  # two epochs of ours: theirs are seen to their end
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The test curve chose nothing" in page and "what Ann&#39;s notebook reports" in page


def test_stored_runs_know_neither() -> None:
    recipe = Run.load(FORMAT_1).recipe
    assert not recipe.train.test_curve and recipe.reported == Reported()
    assert figures.how_to_read_curves(Run.load(FORMAT_1)).find("test curve") == -1
