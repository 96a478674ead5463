"""A run that is killed loses nothing, not a bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conftest import quick_digits, slowly
from vitral import Finished, RecipeError, Run, RunError, Saved, Started, Step, events, train
from vitral.recipe import Recipe
from vitral.training.checkpoint import TrainingState, read_checkpoint, write_checkpoint

# Everything that draws random numbers or remembers something.
ALL = {
    "data.augment.mixup": 0.8,
    "data.augment.cutmix": 1.0,
    "data.augment.erase": 0.5,
    "train.regularise.dropout": 0.1,
    "train.regularise.attention_dropout": 0.1,
    "train.regularise.stochastic_depth": 0.2,
    "train.patches": "rising",
    "train.image_size": "rising",
    "train.ema": 0.9,
    "train.choose": "loss",
    "train.accumulate": 2,
    "train.clip": 1.0,
    "model.depth": 2,
    "train.epochs": 3,
}


def everything() -> Recipe:
    return quick_digits().changed(ALL)


def timeless(run: Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "waited")} for line in run.metrics]


def final(run: Run) -> tuple[bytes, dict[str, torch.Tensor], list[dict[str, Any]]]:
    """What must be the same: the weights' file, all tensors of the last checkpoint, the metrics but for times."""
    last = sorted((run.folder / "checkpoints").iterdir())[-1]
    shares = sorted(last.rglob("shard-*.safetensors")) or [last]  # where the model was shared out
    tensors = {f"{path.stem} {name}": one for path in shares for name, one in load_file(path).items()}
    return (run.folder / "model.safetensors").read_bytes(), tensors, timeless(run)


def assert_same(one: Run, other: Run) -> None:
    (file, tensors, metrics), (other_file, other_tensors, other_metrics) = final(one), final(other)
    assert file == other_file
    assert tensors.keys() == other_tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], other_tensors[name])] == []
    assert metrics == other_metrics
    assert one.record.steps == other.record.steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Never stopped."""
    return train(everything(), out=tmp_path_factory.mktemp("whole") / "run")


PARTS: dict[str, dict[str, Any]] = {
    # BatchNorm's running means are no parameters, and neither is what the first layer measured.
    "a stem that remembers what it saw": {"model.stem": "whitened"},
    "as DINOv3": {
        "model.positions": "rotary",
        "model.tokens.registers": 2,
        "model.attention.bias": "query-value",
        "model.mlp": "swiglu",
        "model.blocks.layer_scale": 1e-5,
    },
}


@pytest.mark.parametrize("parts", PARTS)
def test_a_model_of_other_parts_goes_on_to_the_same_bits(parts: str, tmp_path: Path) -> None:
    recipe = quick_digits().changed(PARTS[parts] | {"train.ema": 0.9})
    whole = train(recipe, out=tmp_path / "whole")
    happening = events(recipe, out=tmp_path / "run")
    for event in happening:
        if isinstance(event, Step) and event.step == 7:
            break
    happening.close()
    assert_same(train(out=tmp_path / "run", resume=True), whole)


def stopped(folder: Path, *, after: int, save_every: float = 1e9, clean: bool = True) -> Path:
    """A run that was closed after so many steps; or, if not clean, that has its last checkpoint and nothing later."""
    happening = events(everything(), out=folder, save_every=save_every)
    for event in happening:
        if isinstance(event, Step) and event.step == after:
            if not clean:
                shutil.copytree(folder, f"{folder}-killed", ignore=shutil.ignore_patterns(".lock"))
            break
    happening.close()
    return folder if clean else Path(f"{folder}-killed")


@pytest.mark.parametrize("after", [17, *slowly(1, 7, 16, 40, 47)])
def test_closed_anywhere_it_goes_on_to_the_same_bits(whole: Run, tmp_path: Path, after: int) -> None:
    folder = stopped(tmp_path / "run", after=after)
    assert Run.load(folder).record.state == "stopped"
    assert_same(train(out=folder, resume=True), whole)


def test_stopped_and_recomputing_it_ends_with_the_same_bits(whole: Run, tmp_path: Path) -> None:
    happening = events(everything().changed({"train.recompute": True}), out=tmp_path / "run")
    next(event for event in happening if isinstance(event, Step) and event.step == 17)
    happening.close()
    assert_same(train(out=tmp_path / "run", resume=True), whole)


@pytest.mark.parametrize("after", [17, *slowly(1, 7, 40)])
def test_killed_anywhere_it_goes_on_to_the_same_bits(whole: Run, tmp_path: Path, after: int) -> None:
    """As a kill leaves it: metrics and checkpoints of other moments, state `running`."""
    folder = stopped(tmp_path / "run", after=after, save_every=0, clean=False)
    assert Run.load(folder).record.state == "running"
    told = list(events(everything(), out=folder, resume=True))
    started = next(event for event in told if isinstance(event, Started))
    assert started.step in (after - 1, after)
    assert_same(Run.load(folder), whole)


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_it_begins_anew(whole: Run, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", after=20, clean=False)
    assert not (folder / "checkpoints").exists()
    assert_same(train(everything(), out=folder, resume=True), whole)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.toml").write_text("format = 1")  # killed before run.json was there
    assert train(everything(), out=tmp_path / "begun", resume=True).record.state == "finished"


@pytest.mark.slow
def test_many_stops_are_as_good_as_none(whole: Run, tmp_path: Path) -> None:
    for _ in range(100):
        happening = events(everything(), out=tmp_path / "run", resume=True)
        steps = 0
        for event in happening:
            steps += isinstance(event, Step)
            if steps == 5 or isinstance(event, Finished):
                break
        happening.close()
        if isinstance(event, Finished):
            break
    assert isinstance(event, Finished)
    assert_same(Run.load(tmp_path / "run"), whole)


@pytest.mark.parametrize("damage", ["flipped", *slowly("cut", "empty", "text")])
def test_a_damaged_checkpoint_is_passed_over(whole: Run, tmp_path: Path, damage: str) -> None:
    folder = stopped(tmp_path / "run", after=20, save_every=0)
    older, newest = sorted((folder / "checkpoints").iterdir())
    content = newest.read_bytes()
    flipped = bytearray(content)
    flipped[-100] ^= 1
    newest.write_bytes({"cut": content[:-50], "flipped": bytes(flipped), "empty": b"", "text": b"no tensors"}[damage])
    started = next(event for event in events(out=folder, resume=True) if isinstance(event, Started))
    assert any(newest.name in note and "damaged" in note for note in started.notes)
    assert f"{started.step:08}" in older.name
    assert_same(train(out=folder, resume=True), whole)


def test_a_list_that_is_damaged_does_not_end_a_training(tmp_path: Path) -> None:
    (tmp_path / "step-00000030").mkdir()
    (tmp_path / "step-00000030" / "files.json").write_text("{")
    write_checkpoint(tmp_path, TrainingState(step=20), {"one": torch.ones(3)})
    progress, _, damaged = read_checkpoint(tmp_path) or pytest.fail("there is none")
    assert progress.step == 20 and "step-00000030 is damaged" in damaged[0]


def test_where_no_checkpoint_is_whole_it_says_so(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", after=20, save_every=0)
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.write_bytes(b"")
    with pytest.raises(RunError, match="No checkpoint in .* is whole"):
        train(out=folder, resume=True)


def test_only_the_newest_two_are_kept_and_each_is_told(tmp_path: Path) -> None:
    told = list(events(everything().changed({"train.epochs": 1}), out=tmp_path / "run", save_every=0))
    saved = [event for event in told if isinstance(event, Saved)]
    assert [event.step for event in saved] == list(range(1, 17))
    left = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert [path.name for path in left] == ["step-00000015.safetensors", "step-00000016.safetensors"]
    assert left[0].stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_finished_run_is_left_alone(whole: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*")}
    assert train(everything(), out=whole.folder, resume=True).record == whole.record
    assert {path: path.stat().st_mtime_ns for path in whole.folder.rglob("*")} == before


def test_another_recipe_or_other_pictures_are_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", after=3)
    with pytest.raises(RunError, match="train.epochs was 3 and is 4. Go on without these settings"):
        train(everything().changed({"train.epochs": 4}), out=folder, resume=True)
    record = json.loads((folder / "run.json").read_text())
    record["data"]["sha256"] = "0" * 64
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="The pictures of digits are not those"):
        train(out=folder, resume=True)
    with pytest.raises(RecipeError, match="There is no run in"):
        train(out=tmp_path / "nothing", resume=True)


def test_other_conditions_are_told(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", after=3)
    record = json.loads((folder / "run.json").read_text())
    record["choices"]["threads"] = 64
    (folder / "run.json").write_text(json.dumps(record))
    started = next(event for event in events(out=folder, resume=True) if isinstance(event, Started))
    assert "Not to the bit as without the stop: the number of threads was 64 and is 1." in started.notes


def test_metrics_that_were_cut_are_told(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", after=20)
    os.truncate(folder / "metrics.jsonl", 100)
    started = next(event for event in events(out=folder, resume=True) if isinstance(event, Started))
    assert "metrics.jsonl is shorter than the checkpoint says: lines of it are lost." in started.notes


@pytest.mark.slow
def test_two_trainings_in_one_folder_are_one_too_many(tmp_path: Path) -> None:
    happening = events(everything(), out=tmp_path / "run")
    assert any(isinstance(event, Step) for event in happening)
    code = f"from vitral import train; train(out={str(tmp_path / 'run')!r}, resume=True)"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Another training is writing into" in second.stderr
    happening.close()


# Processes and signals


def command(folder: Path, *more: str) -> list[str]:
    settings = [f"{name}={value}" for name, value in ALL.items()]
    small = ["model.width=16", "model.heads=2"]
    start = [sys.executable, "-m", "vitral", "train", "digits", *small, *settings]
    return [*start, "--out", str(folder), "--resume", *more]


# The same, and it sends itself a signal: at this step, or at once where it goes on after it, and so many calls later.
SIGNALLED = """
import signal, sys
from vitral.cli import display, main

listen, calls = display.TrainingDisplay.__call__, {calls}

def count(*call):
    global calls
    calls -= 1
    if calls < 0:
        sys.setprofile(None)
        signal.raise_signal({number})

def heard(progress, event):
    if type(event).__name__ == "Step" and event.step >= {step} and calls >= 0:
        sys.setprofile(count)
    listen(progress, event)

display.TrainingDisplay.__call__ = heard
main()
"""


def signalled(folder: Path, number: signal.Signals, step: int, calls: int = 0) -> subprocess.CompletedProcess[str]:
    python, _, _, *arguments = command(folder, "--save-every", "0")
    code = SIGNALLED.format(step=step, calls=calls, number=int(number))
    return subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.slow  # test_ctrl_c_keeps_what_was_learnt, in test_cli.py, stands for them
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(whole: Run, tmp_path: Path, number: signal.Signals) -> None:
    done = signalled(tmp_path / "run", number, step=20)
    assert done.returncode == 130, done.stderr
    assert f"vitral train --out {tmp_path / 'run'} --resume" in done.stdout
    record = Run.load(tmp_path / "run").record
    assert (record.state, record.steps) == ("stopped", 20)
    assert_same(train(out=tmp_path / "run", resume=True), whole)


@pytest.mark.slow
def test_killed_processes_come_to_the_same_end(whole: Run, tmp_path: Path) -> None:
    for step in (3, 20):
        assert signalled(tmp_path / "run", signal.SIGKILL, step).returncode == -signal.SIGKILL
    assert_same(train(everything(), out=tmp_path / "run", resume=True), whole)


@pytest.mark.slow
def test_a_finished_run_trained_longer_is_the_recipe_with_a_restart_to_the_bit(whole: Run, tmp_path: Path) -> None:
    """And it is so where the new stretch is killed on the way."""
    longer = everything().changed({"train.epochs": 5})
    in_one_go = train(longer.changed({"train.restarts": [whole.record.steps]}), out=tmp_path / "one")
    folder = shutil.copytree(whole.folder, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))
    (folder / "evaluations" / "others").mkdir(parents=True)
    weights = (folder / "model.safetensors").read_bytes()
    happening = events(longer, out=folder, resume=True)
    for event in happening:
        if isinstance(event, Step) and event.step == whole.record.steps + 5:
            break
    happening.close()
    stopped = Run.load(folder)
    assert (stopped.record.state, stopped.record.weights) == ("stopped", whole.record.weights)
    assert stopped.record.calibration == whole.record.calibration is not None  # still that of the weights
    assert (folder / "model.safetensors").read_bytes() == weights  # until there are new ones
    run = train(longer, out=folder, resume=True)
    assert_same(run, in_one_go)
    assert run.recipe == in_one_go.recipe
    assert [stretch.steps for stretch in run.record.stretches or ()] == [whole.record.steps]
    before = Run.load(folder / "stretch-1")
    assert (before.record, before.recipe, before.metrics) == (whole.record, whole.recipe, whole.metrics)
    assert before.weights().preprocess == whole.weights().preprocess
    assert run.recipe.train.epochs == 5
    # What was measured elsewhere is of the weights that it was measured with.
    assert (before.folder / "evaluations" / "others").is_dir() and not (folder / "evaluations").exists()


def test_a_stretch_has_a_schedule_of_its_own(tmp_path: Path) -> None:
    run = train(quick_digits().changed({"train.warmup": 0.25}), out=tmp_path / "run")
    rates = [line["learning_rate"] for line in run.metrics if line["event"] == "step"]
    run = train(run.recipe.changed({"train.epochs": 2 * run.recipe.train.epochs}), out=tmp_path / "run", resume=True)
    assert [line["learning_rate"] for line in run.metrics if line["event"] == "step"] == rates * 2


def test_a_finished_run_is_only_trained_longer(whole: Run) -> None:
    for epochs in (1, 2):
        with pytest.raises(RunError, match=r"has been trained for 48 steps in .* ask for more"):
            train(everything().changed({"train.epochs": epochs}), out=whole.folder, resume=True)
    with pytest.raises(RunError, match="train.ema was 0.9 and is 0.5"):
        train(everything().changed({"train.epochs": 5, "train.ema": 0.5}), out=whole.folder, resume=True)
    with pytest.raises(RecipeError, match="each should come after the one before"):
        everything().changed({"train.restarts": [5, 5]})


def test_a_kill_before_the_stretch_is_noted_leaves_a_run_that_goes_on(whole: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(whole.folder, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))
    Run(folder).begin_stretch(everything().changed({"train.epochs": 4, "train.restarts": [whole.record.steps]}))
    run = train(out=folder, resume=True)
    assert (run.record.steps, run.recipe.train.epochs) == (whole.record.steps // 3 * 4, 4)
    assert Run.load(folder / "stretch-1").recipe == everything()
