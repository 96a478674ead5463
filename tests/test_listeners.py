"""Listeners from the command line: trackers by one word, one's own by its file; none of them ends a training."""

import importlib.util
from pathlib import Path

import pytest

from conftest import quick_digits
from vitral import RecipeError, train
from vitral.cli import main
from vitral.training.listeners import TRACKERS, SafeListener, make_listener
from vitral.training.loop import Listener, Scored

MINE = """
from pathlib import Path

import torch

heard = []


def log(event):
    torch.rand(7)  # as its own business
    heard.append(type(event).__name__)
    if heard[-1] == "Scored":
        Path("heard").write_text(" ".join(heard) + f" {event.figures['accuracy']:.3f}")


class Late:
    def __call__(self, event):
        if getattr(event, "step", 0) == 5:
            raise ValueError("no\\x1bmore")

number = 3
"""


@pytest.mark.slow
def test_a_listener_hears_all_and_its_failure_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("quick.toml").write_text(quick_digits().to_toml())
    main(["train", "quick.toml", "--out", "heard-run", "--listener", "mine.py:log", "--listener", "mine.py:Late"])
    silent = train(quick_digits(), out="silent")
    ours = (tmp_path / "heard-run" / "model.safetensors").read_bytes()
    assert ours == (silent.folder / "model.safetensors").read_bytes()
    *heard, accuracy = Path("heard").read_text().split()
    assert heard.count("Step") == silent.record.steps
    assert (heard[-1], heard[-2], "Started" in heard, "Epoch" in heard) == ("Scored", "Finished", True, True)
    output = capsys.readouterr().out
    assert output.count("The listener mine.py:Late failed (ValueError: no\\x1bmore). It hears no more") == 1
    assert f"test accuracy {float(accuracy):.1%}" in output


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tensorbord", "There is no listener tensorbord. Did you mean tensorboard?"),
        ("mine.py:none", "mine.py has no none. It has: log, Late"),
        ("mine.py:number", "mine.py:number is of type int, and should be a function of an event."),
    ],
)
def test_a_name_that_is_no_listener_is_told(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    with pytest.raises(RecipeError) as told:
        make_listener(name)
    assert str(told.value).startswith(sentence)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_not_installed_says_how_it_is(name: str) -> None:
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed here")
    with pytest.raises(RecipeError, match=f"The listener {name} needs the package {name}: pip install {name}"):
        make_listener(name)


@pytest.mark.slow
def test_tensorboard_holds_the_settings_the_figures_and_the_score(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install vitral[tracking]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    safe = SafeListener("tensorboard", pytest.fail)
    listener: Listener = safe
    run = train(quick_digits(), out=tmp_path / "run", listeners=[listener])
    listener(Scored(run, {"accuracy": 0.5}))
    safe.close()
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    steps = [line for line in run.metrics if line["event"] == "step"]
    assert [scalar.value for scalar in events.Scalars("loss")] == pytest.approx([line["loss"] for line in steps])
    assert [scalar.step for scalar in events.Scalars("loss")] == [line["step"] for line in steps]
    assert len(events.Scalars("validation_loss")) == run.recipe.train.epochs
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("test_accuracy")] == [(len(steps), 0.5)]
    assert "recipe/text_summary" in events.Tags()["tensors"]
