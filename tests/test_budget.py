"""A time becomes a number of steps, and the run can be repeated from what was recorded."""

import json
import re
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import quick_digits
from vitral import Finished, RecipeError, Run, Step, events, train
from vitral.progress import Progress
from vitral.training.budget import LEAST_TIMED, Forecast, Pace, Steps, correct, measure_pace, plan_steps
from vitral.training.config import Schedule, Train, parse_budget
from vitral.training.feature_cache import DOING as LOOKING
from vitral.training.loop import Corrected
from vitral.training.preparation import prepared
from vitral.training.schedules import learning_rate_share


@pytest.mark.parametrize(
    ("text", "found"),
    [("none", (0.0, 0)), ("90s", (90.0, 0)), ("10m", (600.0, 0)), ("1.5h", (5400.0, 0)), ("500steps", (0.0, 500))],
)
def test_a_budget_is_a_time_or_a_number(text: str, found: tuple[float, int]) -> None:
    assert parse_budget(text) == found


@pytest.mark.parametrize("text", ["ten minutes", "10", "0s", "-5m", "2.5steps", "10 m s"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="and should be none, or such as 90s, 10m, 2h or 500steps"):
        quick_digits().changed({"train.budget": text})


@given(planned=st.integers(2, 10_000), share=st.floats(0.01, 0.9), corrected=st.integers(1, 20_000))
def test_after_a_correction_schedules_end_where_they_would_have(planned: int, share: float, corrected: int) -> None:
    at = max(1, int(planned * share))
    steps = Steps(planned, at, at + corrected)
    assert steps.place(at) == at and steps.place(steps.total) == pytest.approx(planned)
    places = [steps.place(step) for step in range(1, steps.total + 1)]
    assert places == sorted(places)
    rate = learning_rate_share(Train(schedule=Schedule(kind="linear")), planned)
    assert rate(places[-1]) == pytest.approx(rate(planned))


def test_the_plan_fits_the_time_by_a_stand_in_clock() -> None:
    """A clock that moves a second whenever it is looked at: a step takes one, whatever the machine."""
    made = prepared(quick_digits())
    before = {name: tensor.clone() for name, tensor in made.learner.tensors().items()}
    ticks = iter(range(10**9))
    pace = measure_pace(made, most=5.0, clock=lambda: float(next(ticks)))
    assert pace.first == pace.full == pytest.approx(1 + 1 / 3 * 359 / 64 / made.batches.steps_per_epoch)
    steps = plan_steps(10_000.0, spent=100.0, pace=pace)
    assert steps.planned == int(9_700 / pace.mean)
    after = made.learner.tensors()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


def test_steps_that_take_far_too_long_are_tried_out_once() -> None:
    """The clock moves ten seconds whenever it is looked at, and two were to be spent."""
    made = prepared(quick_digits().changed({"train.patches": {"kind": "rising", "start": 0.5, "until": 0.5}}))
    times = [10.0 * n for n in range(100)]
    looks = iter(times)
    pace = measure_pace(made, most=1.9, clock=lambda: next(looks))
    assert pace.first == pace.full > 10 and next(looks) == times[2]


def test_of_steps_that_take_too_long_early_ones_are_not_tried_out_too() -> None:
    """Each takes three seconds, and two were to be spent: one to warm up, and one that tells."""
    made = prepared(quick_digits().changed({"train.patches": {"kind": "rising", "start": 0.5, "until": 0.5}}))
    times = [3.0 * n for n in range(100)]
    looks = iter(times)
    pace = measure_pace(made, most=2.0, clock=lambda: next(looks))
    assert pace.first == pace.full > 3 and next(looks) == times[4]


def test_the_correction_is_by_what_steps_really_took() -> None:
    pace, before = Pace(prepared(quick_digits()).learner, 1.0, 1.0), Steps(1000)
    # 250 steps took 500 s, and 490 s of 1,000 are left but for the reserve: 240 more fit.
    after = correct(before, 250, seconds=1000.0, spent=500.0, stepping=500.0, timed=250, pace=pace)
    assert (after.corrected_at, after.total) == (250, 250 + 240)
    faster = correct(before, 250, seconds=1000.0, spent=250.0, stepping=125.0, timed=250, pace=pace)
    assert faster.total == 250 + 1460


def test_early_steps_that_take_less_are_counted_as_measured() -> None:
    """Half of the patches at first, all after half of the steps; half the patches take 3/4 of the time."""
    learner = prepared(
        quick_digits().changed({"train.patches": {"kind": "rising", "start": 0.5, "until": 0.5}})
    ).learner
    pace = Pace(learner, first=3.0, full=4.0)
    assert [pace.at(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [3.0, 3.5, 4.0, 4.0]
    assert pace.mean == pytest.approx(3.75)
    # If everything takes just as long as was measured, nothing needs correcting.
    steps = Steps(1000)
    stepping = sum(pace.at((n - 1) / 1000) for n in range(1, 251))
    whole = sum(pace.at((n - 1) / 1000) for n in range(1, 1001))
    assert correct(steps, 250, whole / 0.98, stepping, stepping, 250, pace).total == pytest.approx(1000, abs=1)


@pytest.mark.usefixtures("ticking")
def test_a_start_that_takes_most_of_the_time_is_no_measure_of_steps(tmp_path: Path) -> None:
    """Where decoding or a busy machine has used a quarter of the time before the first step, its end says nothing."""
    began = time.perf_counter() - 1.0  # as if a second had passed before
    told = list(events(quick_digits().changed({"train.budget": "3s"}), out=tmp_path / "run", began=began))
    (corrected,) = [event for event in told if isinstance(event, Corrected)]
    assert corrected.step == 1 + LEAST_TIMED  # the first one sets things up, and is not timed
    run = Run.load(tmp_path / "run")
    assert run.record.steps == corrected.steps and run.record.seconds == pytest.approx(3, rel=0.1)


@pytest.mark.usefixtures("ticking")
def test_a_budget_that_leaves_too_few_steps_is_refused_before_it_is_spent(tmp_path: Path) -> None:
    """Nothing is left behind; the budget that is proposed is enough, and so is the number of steps."""
    recipe = quick_digits().changed({"train.budget": "2s"})
    with pytest.raises(RecipeError, match=r"would leave \d+ steps?: .* Set train.budget=(\w+), or") as refusal:
        train(recipe, out=tmp_path / "run", began=time.perf_counter() - 1.95)
    assert not (tmp_path / "run").exists()
    (proposal,) = re.findall(r"Set train.budget=(\w+)", str(refusal.value))
    seconds, _ = parse_budget(proposal)
    assert 1.95 < seconds <= 60
    run = train(recipe.changed({"train.budget": "1steps"}), out=tmp_path / "run", began=time.perf_counter() - 1.95)
    assert run.record.steps == 1


@pytest.mark.parametrize(("done", "refused"), [(100, True), (400, False), (960, False)])
def test_work_before_the_first_step_is_forecast(monkeypatch: pytest.MonkeyPatch, done: int, refused: bool) -> None:
    """By the pace of the work, 100 pictures in 3 s make 30 s; 400 of them 7.5; what is nearly done is not stopped."""
    clock = iter([0.0, 3.0])
    monkeypatch.setattr("vitral.training.budget.time.perf_counter", lambda: next(clock))
    forecast = Forecast("30s", started_at=-1.0 if done < 960 else -20.0)
    forecast(Progress(0, 1000, "packing pictures, once"))
    if not refused:
        forecast(Progress(done, 1000, "packing pictures, once"))
        return
    with pytest.raises(RecipeError, match=r"about 31 s will have passed \(packing pictures, once: 100 of 1,000 .*=2m"):
        forecast(Progress(done, 1000, "packing pictures, once"))


def test_what_frozen_layers_see_is_most_of_the_work_of_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 3.5])
    monkeypatch.setattr("vitral.training.budget.time.perf_counter", lambda: next(clock))
    forecast = Forecast("50s", started_at=0.0)
    forecast(Progress(0, 1000, LOOKING))
    forecast(Progress(100, 1000, LOOKING))  # 30 s of 50: a head on what is known by then takes seconds
    with pytest.raises(RecipeError, match="=2m"):
        forecast(Progress(80, 1000, LOOKING))


def test_waiting_and_the_first_moments_say_nothing_of_how_long_work_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 100.0, 101.0])
    monkeypatch.setattr("vitral.training.budget.time.perf_counter", lambda: next(clock))
    forecast = Forecast("30s", started_at=90.0)
    for done, waits in ((0, True), (0, True), (0, False), (1, False)):
        forecast(Progress(done, 1000, "packing pictures, once", waiting=waits))


def test_a_number_of_steps_is_that_many(tmp_path: Path) -> None:
    run = train(quick_digits().changed({"train.budget": "21steps"}), out=tmp_path / "run")
    assert run.record.steps == 21 and run.record.state == "finished"
    assert len([line for line in run.metrics if line["event"] == "step"]) == 21


@pytest.mark.usefixtures("ticking")
def test_a_time_is_planned_corrected_recorded_and_resumed(tmp_path: Path) -> None:
    recipe = quick_digits().changed({"train.budget": "4s"})
    told = list(events(recipe, out=tmp_path / "run"))
    run = Run.load(tmp_path / "run")
    (corrected,) = [event for event in told if isinstance(event, Corrected)]
    steps = [event for event in told if isinstance(event, Step)]
    assert isinstance(told[-1], Finished) and run.record.seconds == pytest.approx(4, rel=0.1)
    assert run.record.steps == len(steps) == corrected.steps < corrected.before
    assert run.record.corrected_at == corrected.step

    happening = events(recipe, out=tmp_path / "stopped")
    corrected = next(event for event in happening if isinstance(event, Corrected))
    happening.close()
    again = train(out=tmp_path / "stopped", resume=True)
    assert again.record.steps == corrected.steps  # as recorded, and not measured anew
    assert json.loads((tmp_path / "stopped" / "run.json").read_text())["state"] == "finished"
