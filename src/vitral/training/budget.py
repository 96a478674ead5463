"""A time becomes a number of steps: estimated by a few steps on a copy, corrected once at a quarter of the time.

A time that leaves too little for the training is refused before it is spent, with one that does.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from vitral.errors import RecipeError
from vitral.progress import Progress
from vitral.training.config import parse_budget
from vitral.training.feature_cache import DOING as LOOKING
from vitral.training.feature_cache import HeldOut
from vitral.training.learner import Learner
from vitral.training.preparation import Plan

RESERVE = 0.02  # of the budget, for writing and for what was not foreseen
PROBE = 0.02  # of the budget, at most, for trying steps out
HOPELESS = 5  # times what trying out may take, for one step: a tenth of the budget, of which nothing can come
CORRECTED_AT = 0.25  # of the budget
LEAST_TIMED = 5  # steps: the plan is not corrected before so many have been timed
MOST_BEFORE = 0.5  # of the budget, for what comes before the first step
MOST_LOOKING = 0.8  # of the budget, where frozen layers have looked at the pictures by then: what is left is quick
SURE_AFTER = 2.0  # seconds of a work, before which it is too early to say how long it will take
LEAST_STEPS = 50  # with fewer a new model knows less than simple methods: docs/decisions/0009-the-quick-recipes.md
BASELINE = 0.1  # of the budget, at most, for simple methods to compare with
SPARE = 1.5  # times what is forecast: a budget that is proposed must hold where the machine is busier by then
PROPOSALS = ("30s", "60s", "2m", "3m", "5m", "10m", "15m", "20m", "30m", "1h", "2h", "5h", "10h", "24h")


@dataclass(frozen=True)
class Steps:
    """How many steps there are. After a correction the schedules stretch or shrink to the new number."""

    planned: int
    corrected_at: int = 0  # the step after which the number was corrected; 0: it was not
    corrected: int = 0  # the new number
    restarts: tuple[int, ...] = ()  # steps after which the schedules begin anew

    @property
    def total(self) -> int:
        return self.corrected if self.corrected_at else self.planned

    def place(self, step: int) -> float:
        """Where a step stands in the plan before any correction, 1 … planned: for schedules."""
        if not self.corrected_at or step <= self.corrected_at:
            return step
        stretch = (self.planned - self.corrected_at) / (self.corrected - self.corrected_at)
        return self.corrected_at + (step - self.corrected_at) * stretch

    def stretch(self, step: int) -> tuple[int, "Steps"]:
        """The stretch that a step is in: how many steps were before it, and its own.

        >>> Steps(30, restarts=(10,)).stretch(11)
        (10, Steps(planned=20, corrected_at=0, corrected=0, restarts=()))
        """
        ends = [*(restart for restart in self.restarts if restart < self.planned), self.planned]
        starts = [0, *ends[:-1]]
        number = max((n for n, start in enumerate(starts) if start < step), default=0)
        start, end = starts[number], ends[number]
        if end < self.planned or not self.corrected_at:
            return start, Steps(end - start)
        if self.corrected_at <= start:
            return start, Steps(self.corrected - start)
        return start, Steps(end - start, self.corrected_at - start, self.corrected - start)


@dataclass(frozen=True)
class Pace:
    """Seconds a step. Early steps may look at fewer patches, or at smaller pictures, and take less."""

    learner: Learner
    first: float  # seconds of the first step
    full: float  # seconds of a step that looks at all patches

    def at(self, progress: float) -> float:
        """Seconds of a step at a progress from 0 to 1: in between they follow the number of patches."""
        least, now = self.learner.patches_seen(0.0), self.learner.patches_seen(progress)
        return self.full if least == 1 else self.first + (self.full - self.first) * (now - least) / (1 - least)

    def mean_of(self, start: float, end: float) -> float:
        """Seconds a step, over the part of a training from `start` to `end`, 0 to 1."""
        return sum(self.at(start + (end - start) * (n + 0.5) / 100) for n in range(100)) / 100

    @property
    def mean(self) -> float:
        """Seconds a step, over a whole training."""
        return self.mean_of(0.0, 1.0)


class Forecast:
    """Hears how far the work before the first step is, and refuses a budget that it would use up.

    Work that is nearly done is not stopped: how many steps then fit is seen when they are tried out.
    """

    def __init__(self, budget: str, started_at: float, advice: str = "") -> None:
        self.budget, self.started_at, self.advice = budget, started_at, advice
        self.doing, self.first, self.since = "", 0, started_at

    def __call__(self, progress: Progress) -> None:
        seconds, now = parse_budget(self.budget)[0], time.perf_counter()
        if progress.doing != self.doing or progress.waiting:  # waiting says nothing of the work itself
            self.doing, self.first, self.since = progress.doing, progress.done, now
        done, took = progress.done - self.first, now - self.since
        if not seconds or not done or took < SURE_AFTER:
            return
        rest = took / done * (progress.total - progress.done)
        before, most = now - self.started_at + rest, MOST_LOOKING if progress.doing == LOOKING else MOST_BEFORE
        if before > most * seconds and rest > BASELINE * seconds:
            advice = "" if progress.doing == LOOKING else self.advice
            raise RecipeError(
                f"Before the first step about {before:.0f} s will have passed ({progress.doing}: "
                f"{progress.done:,} of {progress.total:,} after {took:.0f} s), and train.budget={self.budget} would "
                f"leave too little for the training. Set train.budget={propose(before / most)}{advice}."
            )


def propose(seconds: float) -> str:
    """The shortest usual budget that holds these seconds, and some to spare.

    >>> propose(30), propose(150), propose(72_000)
    ('60s', '5m', '30h')
    """
    enough = SPARE * seconds
    return next((one for one in PROPOSALS if parse_budget(one)[0] >= enough), f"{math.ceil(enough / 3600)}h")


def check_steps(budget: str, spent: float, pace: "Pace") -> None:
    """Refuse a budget of time that leaves too few steps to learn anything."""
    seconds = parse_budget(budget)[0]
    planned = plan_steps(seconds, spent, pace).planned
    if not seconds or planned >= LEAST_STEPS:
        return
    enough = (spent + LEAST_STEPS * pace.mean) / (1 - RESERVE - BASELINE)
    raise RecipeError(
        f"train.budget={budget} would leave {planned} step{'s' if planned > 1 else ''}: {spent:.0f} s have passed, and "
        f"a step takes {pace.mean:.2g} s. With fewer than {LEAST_STEPS} a new model knows less than simple methods do. "
        f"Set train.budget={propose(enough)}, or train.budget={planned}steps if that is what you want."
    )


def measure_pace(plan: Plan, most: float = 1.0, clock: Callable[[], float] | None = None) -> Pace:
    """Time steps of a copy of the learner, for about `most` seconds. A step's share of the validation is included."""
    clock = clock or time.perf_counter
    full = _measure_step(plan, most, clock, progress=1.0)
    alike = plan.learner.patches_seen(0.0) == 1 or full > most  # which of early ones, too, leaves no time for many
    first = full if alike else _measure_step(plan, most, clock, progress=0.0)
    each = full * _share_of_step(plan, "validation")
    return Pace(plan.learner, first + each, full + each)


def with_test_curve(pace: Pace, plan: Plan) -> Pace:
    """The pace with a step's share of the test curve, where there is one.

    Not in `measure_pace`, by which precision and compiling are chosen: the test curve must not change these.
    """
    if not plan.test_curve:
        return pace
    each = pace.full / (1 + _share_of_step(plan, "validation")) * _share_of_step(plan, "test")
    return replace(pace, first=pace.first + each, full=pace.full + each)


def _share_of_step(plan: Plan, split: HeldOut) -> float:
    """What measuring a split after every epoch takes, divided among the steps of one, as a share of a step's time."""
    batches = len(plan.pack.of(split)) / plan.batches.batch_size
    return batches / 3 / plan.batches.steps_per_epoch  # forward only: a third


def plan_steps(seconds: float, spent: float, pace: Pace) -> Steps:
    """As many steps as fit into the budget, of which some seconds are spent already."""
    left = seconds * (1 - RESERVE) - spent
    return Steps(max(1, int(left / pace.mean)))


def correct(steps: Steps, step: int, seconds: float, spent: float, stepping: float, timed: int, pace: Pace) -> Steps:
    """The plan again, after `step` steps: `timed` of them have taken `stepping` seconds, validation and all."""
    if steps.planned <= step:
        return steps
    here = step / steps.planned
    # By the pace measured before: seconds of the steps that were timed, and of those to come.
    behind, ahead = pace.mean_of(0.0, here) * timed, pace.mean_of(here, 1.0) * (steps.planned - step)
    rest = ahead * stepping / behind  # seconds that the steps to come would really take
    fitting = (seconds * (1 - RESERVE) - spent) / rest * (steps.planned - step)
    return replace(steps, corrected_at=step, corrected=step + max(1, int(fitting)))


def _measure_step(plan: Plan, most: float, clock: Callable[[], float], progress: float) -> float:
    """The median seconds of a step at this progress, on a copy: the learner itself stays as it is."""
    learner = plan.learner.copy()
    times: list[float] = []
    stream = plan.batches.starting_at(1)
    try:
        for step, batch in stream:
            started_at = clock()
            learner.gradients(step, batch, progress)
            learner.update(step, 0.0)
            times.append(clock() - started_at)
            # The first one may take long, for compiling and memory; but not so long.
            if len(times) >= 20 or sum(times[1:]) > most or times[0] > HOPELESS * most:
                break
    finally:
        stream.close()
    warm = sorted(times[2:] or times[-1:])  # the first ones also set things up
    return warm[len(warm) // 2]
