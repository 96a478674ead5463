"""Precision and compiling: by measuring, recorded, used again."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import quick_digits
from vitral import RecipeError, Started, Step, events, train
from vitral.cli.step_speed import flops_per_image, measure_step, precisions
from vitral.data.batches import Batch
from vitral.model import build
from vitral.recipes.cifar10 import cifar10
from vitral.training import speed
from vitral.training.budget import Pace
from vitral.training.config import Rising, Train
from vitral.training.learner import Learner
from vitral.training.preparation import Plan, prepared
from vitral.training.speed import bfloat16_speed, find_fastest

# torch's compiler uses what torch itself has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def emulated(device: torch.device) -> float:
    """bfloat16, on the machine that is spoken of."""
    return 0.1


def real(device: torch.device) -> float:
    return 3.0


def broken(device: torch.device) -> float:
    return 0.0


def measured_as(plain: float, short: float = 9.0, compiled: float = 9.0) -> Callable[[Plan, float], Pace]:
    """A stand-in for the clock: seconds a step, by how the learner computes."""

    def measure(plan: Plan, most: float) -> Pace:
        learner = plan.learner
        seconds = compiled if learner.compiled else short if learner.precision == "bfloat16" else plain
        return Pace(learner, seconds, seconds)

    return measure


@pytest.mark.parametrize(
    ("train", "measure", "chosen"),
    [
        (Train(), measured_as(1.0), ("float32", False)),
        (Train(precision="bfloat16"), measured_as(1.0), ("bfloat16", False)),
        (Train(compile="yes"), measured_as(1.0), ("float32", True)),
        (Train(budget="1h"), measured_as(1.0, compiled=0.5), ("float32", True)),
        (Train(budget="1h"), measured_as(1.0, compiled=0.95), ("float32", False)),
        (Train(budget="1h", compile="no"), measured_as(1.0, compiled=0.5), ("float32", False)),
        (Train(budget="10m"), measured_as(1.0, compiled=0.5), ("float32", False)),
        (Train(budget="1h", patches=Rising()), measured_as(1.0, compiled=0.5), ("float32", False)),
    ],
)
def test_what_is_faster_is_taken_where_it_can_pay(
    train: Train, measure: Callable[[Plan, float], Pace], chosen: tuple[str, bool]
) -> None:
    made = prepared(quick_digits())
    choices, pace = find_fastest(train, made, measure, short_numbers=emulated)
    assert (choices.precision, choices.compiled) == chosen
    assert (made.learner.precision, made.learner.compiled) == chosen
    assert pace == measure(made, 1.0)


@pytest.mark.parametrize(("short", "chosen"), [(0.5, "bfloat16"), (0.95, "float32"), (2.0, "float32")])
def test_where_short_numbers_are_no_emulation_a_step_with_them_is_tried(short: float, chosen: str) -> None:
    measure, made = measured_as(1.0, short=short), prepared(quick_digits())
    choices, pace = find_fastest(Train(budget="10m"), made, measure, short_numbers=real)
    assert (choices.precision, pace.full) == (chosen, short if chosen == "bfloat16" else 1.0)


def test_a_short_training_does_not_wait_for_a_trial_of_short_numbers() -> None:
    choices, _ = find_fastest(Train(budget="1m"), prepared(quick_digits()), measured_as(1.0, 0.5), real)
    assert choices.precision == "float32"


def test_short_numbers_that_end_the_process_are_not_used_and_asked_for_told() -> None:
    """There are machines that claim to have the instructions and stop at them: that is found out without harm."""
    made = prepared(quick_digits())
    assert find_fastest(Train(budget="10m"), made, measured_as(1.0, 0.5), broken)[0].precision == "float32"
    with pytest.raises(RecipeError, match="This machine cannot compute with bfloat16: set train.precision=float32"):
        find_fastest(Train(precision="bfloat16"), made, measured_as(1.0), broken)


def test_the_trial_of_short_numbers_outlives_those_that_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same trial with numbers that every machine has; and with an instruction that this one has not."""
    monkeypatch.setattr(speed, "TRIAL", speed.TRIAL.replace("bfloat16", "float64"))
    assert bfloat16_speed.__wrapped__(torch.device("cpu")) > 0.0
    monkeypatch.setattr(speed, "TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert bfloat16_speed.__wrapped__(torch.device("cpu")) == 0.0


def test_a_compiler_that_fails_is_done_without_unless_it_was_asked_for() -> None:
    def measure(plan: Plan, most: float) -> Pace:
        if plan.learner.compiled:
            raise RuntimeError("no compiler is installed")
        return Pace(plan.learner, 1.0, 1.0)

    choices, pace = find_fastest(Train(budget="1h"), prepared(quick_digits()), measure, short_numbers=emulated)
    assert (choices.compiled, pace.full) == (False, 1.0)
    with pytest.raises(
        RecipeError, match=r"cannot compile the model here \(no compiler is installed\): set train.comp"
    ):
        find_fastest(Train(compile="yes"), prepared(quick_digits()), measure)


@pytest.mark.usefixtures("bfloat16")
def test_what_was_chosen_is_recorded_and_used_again(tmp_path: Path) -> None:
    """Short numbers, asked for: the weights stay in float32, and a run that goes on computes as it began."""
    asked = quick_digits().changed({"train.precision": "bfloat16", "train.epochs": 2})
    whole = train(asked, out=tmp_path / "whole")
    assert whole.record.choices.precision == "bfloat16"
    model = whole.weights().model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    exact = train(quick_digits().changed({"train.precision": "float32", "train.epochs": 2}), out=tmp_path / "exact")
    assert exact.record.weights != whole.record.weights  # it does make a difference

    # As if `auto` had found bfloat16 on the day that it began, before the first checkpoint.
    record = json.loads((tmp_path / "exact" / "run.json").read_text())
    record.update(state="running", weights=None)
    record["choices"]["precision"] = "bfloat16"
    (tmp_path / "exact" / "run.json").write_text(json.dumps(record))
    for checkpoint in (tmp_path / "exact" / "checkpoints").iterdir():
        checkpoint.unlink()
    again = train(out=tmp_path / "exact", resume=True)
    assert again.record.weights == whole.record.weights


def test_compiling_does_not_go_with_sizes_that_change() -> None:
    with pytest.raises(RecipeError, match="each size would be compiled anew"):
        quick_digits().changed({"train.compile": "yes", "train.patches": "rising"})


@pytest.mark.slow
def test_a_compiled_training_learns_the_same(tmp_path: Path) -> None:
    runs = {
        word: train(quick_digits().changed({"train.compile": word, "train.epochs": 1}), out=tmp_path / word)
        for word in ("yes", "no")
    }
    assert runs["yes"].record.choices.compiled
    losses = [[line["loss"] for line in run.metrics if line["event"] == "step"] for run in runs.values()]
    # Sums are rounded in another order, by each processor in its own, and every step adds to that.
    assert len(losses[0]) > 10 and losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize(("alone", "is_busy", "chosen"), [(0.2, True, 1), (0.95, True, 2), (0.2, False, 2)])
def test_one_thread_is_taken_where_others_use_the_machine_and_it_is_faster(
    alone: float, is_busy: bool, chosen: int
) -> None:
    def measure(plan: Plan, most: float) -> Pace:
        seconds = alone if torch.get_num_threads() == 1 else 1.0
        return Pace(plan.learner, seconds, seconds)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made = prepared(quick_digits())
        choices, pace = find_fastest(Train(budget="1m"), made, measure, emulated, lambda: is_busy)
        assert choices.threads == chosen and pace.mean == pytest.approx(alone if chosen == 1 else 1.0)
        assert torch.get_num_threads() == 2  # until the first step
        assert find_fastest(Train(), made, measure, emulated, lambda: True)[0].threads == 2  # without a budget
    finally:
        torch.set_num_threads(before)


def test_a_run_goes_on_with_the_threads_that_it_was_begun_with(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        happening = events(quick_digits(), out=tmp_path / "run")
        next(event for event in happening if isinstance(event, Step))
        happening.close()
        torch.set_num_threads(2)
        steps = [event for event in events(out=tmp_path / "run", resume=True) if isinstance(event, Started | Step)]
        assert isinstance(steps[0], Started) and steps[0].choices.threads == 1 and not steps[0].notes
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_step_is_measured_beside_the_products_that_the_machine_can_do() -> None:
    speed = measure_step(torch.device("cpu"), "float32", seconds=0.0)
    assert 0.01 < speed.share < 1.5 and "images/s" in str(speed) and "GFLOP/s" in str(speed)


def test_the_products_of_a_step_are_all_counted() -> None:
    # Products of 64 tokens of width 96 in 4 blocks with an MLP of 192, there and back (twice); in each of two
    # convolutions 3×3, of which the first need not know what would change its input; measured first layer; head.
    block = 2 * 64 * (96 * 288 + 96 * 96 + 2 * 96 * 192) + 2 * 2 * 64 * 64 * 96
    convolutions = 2 * (32 * 32 * 9 * 24 * 48 * 2 + 16 * 16 * 9 * 48 * 96 * 3 + 32 * 32 * 12 * 24)
    learner = Learner(build(cifar10.model), cifar10.train)
    assert flops_per_image(learner) == 3 * 4 * block + convolutions + 3 * 2 * 96 * 10


def test_short_numbers_are_measured_only_where_a_trial_says_that_they_are_fast() -> None:
    device = torch.device("cpu")
    assert precisions(device, real) == ("float32", "bfloat16")
    assert precisions(device, broken) == precisions(device, emulated) == ("float32",)


def test_in_short_numbers_tokens_and_muon_stay_short_and_weights_do_not() -> None:
    """A LayerScale in float32 would turn every branch, and all tokens after it, into float32."""
    learner = Learner(build(cifar10.model), cifar10.train)
    learner.set_precision("bfloat16", compiled=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert {tokens.dtype for tokens in learner.model.states(torch.randn(2, 3, 32, 32))} == {torch.bfloat16}
    labels = torch.arange(4)
    batch = Batch(torch.randn(4, 3, 32, 32), labels, np.arange(4), labels)
    for step in (1, 2):
        learner.gradients(step, batch, progress=1.0)
        learner.update(step, share=1.0)
    tensors = [*learner.model.parameters(), *learner.optimizers.tensors().values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32} and all(t.isfinite().all() for t in tensors)
