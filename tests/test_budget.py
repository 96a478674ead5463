"""A time becomes a number of steps, and the run can be repeated from what was recorded."""

import json
import re
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import quick_digits, stopped
from vitral import Finished, RecipeError, Run, Step, events, train
from vitral.progress import Progress
from vitral.training.budget import (
    LEAST_TIMED,
    RESERVE,
    BudgetWatch,
    Correction,
    Forecast,
    Pace,
    Steps,
    measure_pace,
    plan_steps,
)
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


@given(
    planned=st.integers(2, 2_000),
    corrections=st.lists(st.tuples(st.floats(0.01, 0.9), st.integers(1, 2_000)), max_size=6),
)
@settings(max_examples=50)
def test_after_corrections_schedules_end_where_they_would_have(
    planned: int, corrections: list[tuple[float, int]]
) -> None:
    steps = Steps(planned)
    for share, more in corrections:
        since = steps.corrections[-1].step if steps.corrections else 0
        at = since + max(1, int((steps.total - since) * share))
        before = [steps.place(step) for step in range(1, at + 1)]
        steps = Steps(planned, (*steps.corrections, Correction(at, at + more)))
        assert [steps.place(step) for step in range(1, at + 1)] == before  # what was done stays as it was
    assert steps.place(steps.total) == pytest.approx(planned)
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


@cache
def even_pace() -> Pace:
    """A second a step, throughout."""
    return Pace(prepared(quick_digits()).learner, 1.0, 1.0)


class Machine:
    """A clock that runs as the steps of a training would on a machine, whose speed may change on the way."""

    def __init__(self, seconds_of: Callable[[float], float], budget: float, measuring: float = 0.0) -> None:
        """`seconds_of`: of a step, at a time; the plan believes in the even pace."""
        self.seconds_of, self.budget, self.measuring, self.now = seconds_of, budget, measuring, 0.0
        self.pace = even_pace()

    def train(self, per_epoch: int = 100) -> Steps:
        left = self.budget * (1 - RESERVE)
        steps = plan_steps(self.budget, 0.0, self.pace)
        watch = BudgetWatch(self.pace, self.budget, per_epoch, self.measuring)
        step = 0
        while step < steps.total:
            step, seconds = step + 1, self.seconds_of(self.now)
            watch.record(seconds, (steps.place(step) - 1) / steps.planned)
            self.now += seconds + (0.0 if step % per_epoch else self.measuring)
            steps = watch.corrected(steps, step, left - self.now)
        return steps


@pytest.mark.parametrize(
    "seconds_of",
    [
        pytest.param(lambda now: 1.0, id="as planned"),
        pytest.param(lambda now: 3.0, id="slower throughout"),
        pytest.param(lambda now: 0.3, id="quicker throughout"),
        pytest.param(lambda now: 1.0 + now / 1000, id="drifts"),
        pytest.param(lambda now: 2.0 if now > 600 else 1.0, id="half as quick from then on"),
        pytest.param(lambda now: 2.0 if now > 950 else 1.0, id="half as quick in the end"),
        pytest.param(lambda now: 0.4 if now > 600 else 1.0, id="quicker from then on"),
        pytest.param(lambda now: 200.0 if 500 < now < 510 else 1.0, id="stalls"),
        pytest.param(lambda now: 200.0 if 700 < now < 710 else 1.0, id="stalls late"),
        pytest.param(lambda now: 3.0 if int(now) // 40 % 2 else 0.8, id="busy now and then"),
    ],
)
def test_a_budget_holds_whatever_becomes_of_the_machine(seconds_of: Callable[[float], float]) -> None:
    """No more than asked for, and no less than 97 % of it."""
    machine = Machine(seconds_of, budget=1000.0, measuring=5.0)
    steps = machine.train()
    assert 970 <= machine.now <= 1000
    assert steps.place(steps.total) == pytest.approx(steps.planned)  # the schedule has come to its end, too


@given(changes=st.lists(st.tuples(st.floats(0, 0.9), st.floats(0.2, 5.0)), max_size=5), measuring=st.floats(0, 10))
@settings(max_examples=50)
def test_a_budget_holds_when_the_speed_changes_again_and_again(
    changes: list[tuple[float, float]], measuring: float
) -> None:
    def seconds_of(now: float) -> float:
        return next((seconds for since, seconds in sorted(changes, reverse=True) if since * 2000 <= now), 1.0)

    machine = Machine(seconds_of, budget=2000.0, measuring=measuring)
    machine.train()
    assert 0.97 * 2000 <= machine.now <= 2000


def test_a_stall_changes_the_plan_by_the_time_that_it_took() -> None:
    """And not by taking it for the pace of the steps to come: these are planned as many as really fit."""
    machine = Machine(lambda now: 100.0 if 300 < now < 310 else 1.0, budget=1000.0)
    assert machine.train().total == pytest.approx(880, abs=3)


def test_a_budget_that_is_over_ends_with_the_step(tmp_path: Path) -> None:
    machine = Machine(lambda now: 1500.0, budget=1000.0)
    assert machine.train().total == 1


def test_early_steps_that_take_less_are_counted_as_measured() -> None:
    """Half of the patches at first, all after half of the steps; half the patches take 3/4 of the time."""
    learner = prepared(
        quick_digits().changed({"train.patches": {"kind": "rising", "start": 0.5, "until": 0.5}})
    ).learner
    pace = Pace(learner, first=3.0, full=4.0)
    assert [pace.at(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [3.0, 3.5, 4.0, 4.0]
    assert pace.mean == pytest.approx(3.75)
    # If everything takes just as long as was measured, nothing needs correcting.
    steps, watch = Steps(1000), BudgetWatch(pace, pace.mean * 1000, steps_per_epoch=2000, measuring=0.0)
    left = pace.mean * 1000
    for step in range(1, 1001):
        progress = (step - 1) / 1000
        watch.record(pace.at(progress), progress)
        left -= pace.at(progress)
        assert watch.corrected(steps, step, left) == steps


@pytest.mark.usefixtures("ticking")
def test_a_start_that_takes_most_of_the_time_is_no_measure_of_steps(tmp_path: Path) -> None:
    """Where decoding or a busy machine has used a quarter of the time before the first step, its end says nothing."""
    began = time.perf_counter() - 1.0  # as if a second had passed before
    told = list(events(quick_digits().changed({"train.budget": "3s"}), out=tmp_path / "run", began=began))
    corrected = [event for event in told if isinstance(event, Corrected)]
    assert corrected[0].step == 1 + LEAST_TIMED  # the first one sets things up, and is not timed
    run = Run.load(tmp_path / "run")
    assert run.record.steps == corrected[-1].steps and 2.7 < (run.record.seconds or 0) <= 1.02 * 3


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


@pytest.mark.usefixtures("ticking")
def test_a_budget_may_cover_what_comes_after_the_weights(tmp_path: Path) -> None:
    recipe = quick_digits().changed({"train.budget": "20s", "train.budget_covers": "report"})
    assert recipe.train.seconds + recipe.train.seconds_after(recipe.train.seconds) == 20
    assert 4.5 < (train(recipe, out=tmp_path / "run").record.seconds or 0) <= 1.02 * 5
    with pytest.raises(RecipeError, match="15 s of it are for measuring and drawing: nothing is left. Set .*=30s"):
        recipe.changed({"train.budget": "15s"})


@pytest.mark.parametrize(("done", "refused"), [(100, True), (400, False), (960, False)])
def test_work_before_the_first_step_is_forecast(monkeypatch: pytest.MonkeyPatch, done: int, refused: bool) -> None:
    """By the pace of the work, 100 pictures in 3 s make 30 s; 400 of them 7.5; what is nearly done is not stopped."""
    clock = iter([0.0, 3.0])
    monkeypatch.setattr("vitral.training.budget.time.perf_counter", lambda: next(clock))
    forecast = Forecast(Train(budget="30s"), started_at=-1.0 if done < 960 else -20.0)
    forecast(Progress(0, 1000, "packing pictures, once"))
    if not refused:
        forecast(Progress(done, 1000, "packing pictures, once"))
        return
    with pytest.raises(RecipeError, match=r"about 31 s will have passed \(packing pictures, once: 100 of 1,000 .*=2m"):
        forecast(Progress(done, 1000, "packing pictures, once"))


def test_what_frozen_layers_see_is_most_of_the_work_of_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 3.5])
    monkeypatch.setattr("vitral.training.budget.time.perf_counter", lambda: next(clock))
    forecast = Forecast(Train(budget="50s"), started_at=0.0)
    forecast(Progress(0, 1000, LOOKING))
    forecast(Progress(100, 1000, LOOKING))  # 30 s of 50: a head on what is known by then takes seconds
    with pytest.raises(RecipeError, match="=2m"):
        forecast(Progress(80, 1000, LOOKING))


def test_waiting_and_the_first_moments_say_nothing_of_how_long_work_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 100.0, 101.0])
    monkeypatch.setattr("vitral.training.budget.time.perf_counter", lambda: next(clock))
    forecast = Forecast(Train(budget="30s"), started_at=90.0)
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
    corrected = [event for event in told if isinstance(event, Corrected)]
    steps = [event for event in told if isinstance(event, Step)]
    assert isinstance(told[-1], Finished) and 3.6 < (run.record.seconds or 0) <= 1.02 * 4
    assert run.record.steps == len(steps) == corrected[-1].steps < corrected[0].before
    assert run.record.corrections == tuple((event.step, event.steps) for event in corrected)
    assert (run.record.corrected_at, run.record.planned) == run.record.corrections[-1]


@pytest.mark.usefixtures("ticking")
def test_what_was_corrected_is_repeated_also_after_the_last_checkpoint(tmp_path: Path) -> None:
    """A kill after the third correction, and the only checkpoint is that of the first: it goes on from there by what
    was recorded, to the same bits, and by its own clock after that."""
    happening = events(quick_digits().changed({"train.budget": "4s"}), out=tmp_path / "run", save_every=1e9)
    rates: dict[int, float] = {}
    corrected: list[Corrected] = []
    for event in happening:
        if isinstance(event, Step):
            rates[event.step] = event.learning_rate
        if isinstance(event, Corrected):
            corrected.append(event)
            if len(corrected) == 3:
                shutil.copytree(tmp_path / "run", tmp_path / "killed")
        if corrected[3:]:
            break
    happening.close()
    again = list(events(out=tmp_path / "killed", resume=True))
    repeated = {event.step: event.learning_rate for event in again if isinstance(event, Step)}
    first, last = corrected[0].step, corrected[2].step
    assert min(repeated) == first + 1 and last - first > 5
    assert all(repeated[step] == rates[step] for step in range(first + 1, last + 1))
    new = [event.step for event in again if isinstance(event, Corrected)]
    assert new and min(new) > last
    record = Run.load(tmp_path / "killed").record
    assert record.corrections and record.corrections[:3] == tuple((one.step, one.steps) for one in corrected[:3])


def test_the_one_correction_of_earlier_versions_is_read(tmp_path: Path) -> None:
    run = stopped(quick_digits().changed({"train.budget": "21steps"}), tmp_path / "run", after=9)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"planned": 15, "corrected_at": 8}))
    assert train(out=run, resume=True).record.steps == 15
