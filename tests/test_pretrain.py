"""`vitral pretrain`: pictures without labels become weights that every other command takes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

from conftest import FIXTURES, slowly, stopped, vit
from vitral import Classifier, DataError, RecipeError, Run, RunError, WeightsError, evaluate, load_pretrained, train
from vitral.cli import vitral
from vitral.data.batches import Batches
from vitral.recipe import Recipe
from vitral.recipes.pretraining import choose_pretraining
from vitral.training.objectives.mae import patches_kept
from vitral.training.preparation import prepared

KINDS = ("mae", "lejepa", "dino")
SMALL = {
    **{"model.width": 16, "model.depth": 1, "model.heads": 2, "train.epochs": 1, "train.batch_size": 64},
    **{"train.optimizer.learning_rate": 0.003},
}
OBJECTIVES = {
    "mae": {"kind": "mae", "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2},
    "lejepa": {"kind": "lejepa", "projector": [16, 8], "directions": 16},
    "dino": {"kind": "dino", "prototypes": 64, "hidden": 64, "bottleneck": 16, "momentum": 0.9},
}


def small(kind: str, **settings: object) -> Recipe:
    """Without labels on digits, in a second or two."""
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return choose_pretraining("digits", {"train.objective": OBJECTIVES[kind], **SMALL, **given}).recipe


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(small("mae", train__epochs=2), out=tmp_path_factory.mktemp("pretrained") / "run")


def test_the_weights_have_no_head_and_the_run_is_like_others(pretrained: Run) -> None:
    weights = pretrained.weights()
    assert weights.class_names == () and weights.model.config.classes == 0
    assert not [name for name in weights.model.state_dict() if "head" in name or "decoder" in name]
    assert pretrained.record.state == "finished" and "no head" in repr(weights.model)
    first, last = (line for line in pretrained.metrics if line["event"] == "epoch")
    assert last["train_loss"] < first["train_loss"]
    figures = ("loss", "rank", "spread", "knn_accuracy", "linear_accuracy")
    assert {f"validation_{name}" for name in figures} <= last.keys()
    for door in (lambda: Classifier.load(pretrained), lambda: evaluate(pretrained)):
        with pytest.raises(
            WeightsError, match="learnt without labels.* Give it one: vitral train FOLDER init.weights="
        ):
            door()


@pytest.mark.slow
def test_a_training_with_labels_begins_from_it(pretrained: Run, tmp_path: Path) -> None:
    """With a new head, on the same trunk."""
    given = {**SMALL, "init.weights": str(pretrained.folder), "model.classes": 0, "model.head": "linear"}
    recipe = pretrained.recipe.changed({**given, "train.objective": "classification"})
    start = prepared(recipe).learner.model.state_dict()
    for name, tensor in pretrained.weights().model.state_dict().items():
        assert torch.equal(start[name], tensor)
    assert evaluate(train(recipe, out=tmp_path / "after")).pictures == 360


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_to_the_bit_after_a_stop(kind: str, tmp_path: Path) -> None:
    """With all that the objective remembers: decoder, projector and its BatchNorms, teacher, heads and centre."""
    recipe = small(kind)
    whole = train(recipe, out=tmp_path / "whole")
    half = stopped(recipe, tmp_path / "half", after=7)
    again = train(out=half, resume=True)
    assert again.record.weights == whole.record.weights
    assert again.metrics[-1]["validation_loss"] == whole.metrics[-1]["validation_loss"]


KILL = """
import os, signal, sys
from vitral import Recipe, Step, train

def kill(event):
    if isinstance(event, Step) and event.step == 11:
        os.kill(os.getpid(), signal.SIGKILL)

train(Recipe.from_file("mine.toml"), out="run", listeners=[kill], save_every=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_to_the_bit_after_a_kill(kind: str, tmp_path: Path) -> None:
    recipe = small(kind)
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    done = subprocess.run([sys.executable, "-c", KILL], cwd=tmp_path, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    again = train(out=tmp_path / "run", resume=True)
    assert again.record.weights == train(recipe, out=tmp_path / "whole").record.weights


def test_a_recipe_without_labels_is_written_and_read() -> None:
    for kind in KINDS:
        recipe = small(kind)
        assert Recipe.from_toml(recipe.to_toml()) == recipe and recipe.train.objective.kind == kind


def views(recipe: Recipe, **changes: object) -> Batches:
    from dataclasses import replace

    return replace(prepared(recipe).batches, **changes)  # type: ignore[arg-type]


def test_views_follow_from_seed_epoch_picture_and_view() -> None:
    """Not from the size of the batch, nor from who prepares it. Views differ, and small ones are of small parts."""
    batches = views(small("lejepa"))
    _, batch = next(batches.starting_at(20))
    again = next(batch for _, batch in views(small("lejepa"), workers=0).starting_at(20))
    everything = [batch.images, *batch.more_views]
    assert [view.shape[2] for view in everything] == [8, 8, 4, 4, 4, 4]
    for one, other in zip(everything, [again.images, *again.more_views], strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(everything[0], everything[1]) and not torch.equal(everything[2], everything[3])
    other_seed = next(views(small("lejepa"), seed=5).starting_at(20))[1]
    assert not torch.equal(other_seed.images, batch.images)
    picked = np.array([3, 40])
    alone = next(iter(views(small("lejepa")).views_of(picked[1:])))
    beside = next(iter(views(small("lejepa")).views_of(picked)))
    for one, other in zip(alone.more_views, beside.more_views, strict=True):
        assert torch.equal(one[0], other[1])


def test_a_small_view_is_of_a_small_part(tmp_path: Path) -> None:
    """A ramp from left to right: what a view sees of it is as wide as its values differ."""
    ramp = np.broadcast_to(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], (64, 64, 3))
    for number in range(40):
        Image.fromarray(ramp).save(tmp_path / f"{number}.png")
    settings = {**SMALL, "train.objective": OBJECTIVES["lejepa"], "data.augment": {"crop": 0.5}, "model.patch_size": 8}
    batches = prepared(choose_pretraining(str(tmp_path), {**settings, "model.image_size": 64}).recipe).batches
    _, batch = next(batches.starting_at(1))

    def seen(view: torch.Tensor) -> NDArray[np.float64]:  # as a share of the width
        levels = view * batches.preprocess.std[0]
        return np.asarray((levels[:, 0, 0, -1] - levels[:, 0, 0, 0]).abs(), np.float64)

    large, small_ones = seen(batch.images), np.concatenate([seen(view) for view in batch.more_views[1:]])
    assert large.min() > 0.55 and small_ones.max() < 0.87 and small_ones.mean() < 0.6 < large.mean()


def flat(folder: Path, count: int, size: int = 24) -> Path:
    """Pictures of noise in a folder, without classes."""
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (size, size, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.mark.slow
def test_a_flat_folder_will_do_and_no_picture_is_held_out_to_test(tmp_path: Path) -> None:
    """From the command line; what it tells of labels it does not tell."""
    folder = flat(tmp_path / "box", 40)
    words = [f"{name}={value}" for name, value in SMALL.items()]
    result = CliRunner().invoke(vitral, ["pretrain", str(folder), *words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    run = Run.load(tmp_path / "run")
    assert run.record.data.pictures == {"train": 36, "validation": 4, "test": 0}
    assert "validation_knn_accuracy" not in run.metrics[-1] and "validation_spread" in run.metrics[-1]
    assert f"vitral train LABELLED init.weights={tmp_path}/run" in result.output.replace("\n", "")
    moments = run.moments
    assert [*moments] == [0, run.record.steps]  # one epoch: before, and after
    with Image.open(moments[0]) as first, Image.open(moments[run.record.steps]) as last:
        assert first.info["rows"] == "picture hidden said colours attention" and first.size == (4 * 24, 5 * 24)
        before, after = np.asarray(first), np.asarray(last)
    assert np.array_equal(before[:48], after[:48]) and not np.array_equal(before[48:72], after[48:72])
    shown, hidden = before[:24].astype(int), before[24:48].astype(int)
    assert 0.2 < (np.abs(shown - hidden).max(axis=2) <= 1).mean() < 0.35  # a quarter of it is seen
    report = (run.folder / "report.html").read_text()
    assert "What it says is hidden" in report and "no label is looked at" in result.output
    embedded = CliRunner().invoke(
        vitral, ["embed", str(run.folder), str(folder), "--json", "--out", str(tmp_path / "e")]
    )
    assert json.loads(embedded.output.strip().splitlines()[-1])["shape"] == [40, 16], embedded.output


def test_weights_of_others_go_on_learning(tmp_path: Path) -> None:
    """Without the head that they had, and with pictures as they saw them before."""
    folder = flat(tmp_path / "box", 40)
    choice = choose_pretraining(str(folder), {"init.weights": str(FIXTURES / "timm_vit"), "train.epochs": 1})
    theirs = load_pretrained(FIXTURES / "timm_vit").model
    plan = prepared(choice.recipe, start=choice.start)
    ours = vit(plan.learner.model)
    assert ours.config.head.kind == "none" and theirs.config.classes and ours.config.classes == 0
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())
    run = train(choice.recipe, out=tmp_path / "run")
    assert run.weights().about["origin"] == "timm_vit"


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"model.kind": "swin"}, "which a model of kind swin cannot: set model.kind=vit, or train.objective=lejepa"),
        ({"model.positions": "relative"}, "no patch can be left out"),
        ({"train.patches": "rising"}, "leaves patches out by itself"),
        ({"train.objective.mask_ratio": 1}, "mask_ratio is 1, and should be between 0 and 1: some must be seen"),
        ({"train.objective.mask_ratio": 0.99}, "none of 16 patches is left to look at: set it to at most 0.937,"),
        ({"train.objective.decoder_width": 30}, "should be a multiple of 4 and of decoder_heads"),
        ({"train.label_smoothing": 0.1}, "asks for no labels: set train.label_smoothing=0"),
        ({"data.augment.mixup": 0.2}, "mix labels too"),
        (
            {"data.validation": 0},
            "data.validation is 0, and the source has a validation set|watched on some validation",
        ),
        (
            {"train.objective": "classification"},
            "without labels: mae, lejepa or dino. `vitral train` learns from labels",
        ),
        ({"train.objective": "lejepa", "data.augment.crop": 0}, "set data.augment.crop=0.4"),
        ({"train.objective": "dino", "model.patch_size": 4}, "are smaller than the parts .* Set model.patch_size=2"),
        ({"train.objective": "simclr"}, "should be|without labels: mae, lejepa or dino"),
    ],
)
def test_what_cannot_be_is_a_sentence(settings: dict[str, object], answer: str) -> None:
    with pytest.raises(RecipeError, match=answer):
        prepared(choose_pretraining("digits", settings).recipe)


def test_the_share_to_hide_that_is_proposed_leaves_a_patch() -> None:
    assert (patches_kept(16, 0.938), patches_kept(16, 0.937), patches_kept(10, 0.9)) == (0, 1, 1)


def test_a_resume_needs_the_run_and_takes_no_other_recipe(pretrained: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(small("mae", train__epochs=2, train__seed=1).to_toml())
    ask = CliRunner().invoke
    nameless = ask(vitral, ["pretrain", "digits", "--resume"])
    other = ask(vitral, ["pretrain", str(tmp_path / "mine.toml"), "--out", str(pretrained.folder), "--resume"])
    assert "--out RUN --resume" in str(nameless.exception)
    assert "train.seed" in str(other.exception)


def test_a_resume_of_what_is_done_says_so(pretrained: Run) -> None:
    done = CliRunner().invoke(vitral, ["pretrain", "--out", str(pretrained.folder), "--resume"])
    assert done.exit_code == 0 and "It learnt without labels" in done.output and "report.html" in done.output


def test_one_picture_and_a_table_without_labels_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leaves 1 picture to learn from, .* give at least 20"):
        choose_pretraining(str(flat(tmp_path / "one", 1)))
    flat(tmp_path / "some", 30)
    (tmp_path / "table.csv").write_text("path\n" + "".join(f"some/{n}.png\n" for n in range(30)))
    with pytest.raises(DataError, match="label"):
        choose_pretraining(str(tmp_path / "table.csv"))


@pytest.mark.parametrize(
    "given",
    [
        {"train__objective__centre_momentum": 1.0},  # no centring
        *slowly({"train__objective__teacher_temperature": 1.0}),  # no sharpening
    ],
)
def test_a_collapse_ends_it_in_a_sentence_and_what_was_learnt_stays(given: dict[str, object], tmp_path: Path) -> None:
    """One force alone does not keep pictures apart: see `test_it_goes_on_to_the_bit_after_a_stop` for both."""
    with pytest.raises(RunError, match="Stopped after epoch .*: it says the same of all pictures: .* has collapsed"):
        train(small("dino", train__batch_size=16, train__epochs=3, **given), out=tmp_path / "run")
    run = Run.load(tmp_path / "run")
    last = [line for line in run.metrics if line["event"] == "epoch"][-1]
    assert run.record.state == "stopped" and last["validation_output_spread"] < 0.01
    assert run.weights().model.config.classes == 0


@pytest.mark.slow
def test_two_processes_learn_with_mae_what_one_does(tmp_path: Path) -> None:
    """The losses of each step."""
    (tmp_path / "mine.toml").write_text(small("mae").to_toml())
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["-m", "vitral", "pretrain", "mine.toml", "--out"]
    subprocess.run([*two, *command, "two"], cwd=tmp_path, check=True, capture_output=True, timeout=200)
    subprocess.run([sys.executable, *command, "one"], cwd=tmp_path, check=True, capture_output=True, timeout=200)
    losses = [
        [line["loss"] for line in Run.load(tmp_path / name).metrics if line["event"] == "step"]
        for name in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
