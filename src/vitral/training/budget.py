"""A time becomes a number of steps: estimated by a few steps on a copy, and corrected by how long steps really take.

The plan is looked at when a quarter of the time or of the steps is over, then whenever a fifth of what was left is, and
in the end after every step: how fast the machine will be can only be wrong of what is left.

A time that leaves too little for the training is refused before it is spent, with one that does.
"""

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vitral.errors import RecipeError
from vitral.progress import Progress
from vitral.training.config import Train, parse_budget
from vitral.training.feature_cache import DOING as LOOKING
from vitral.training.feature_cache import HeldOut
from vitral.training.learner import Learner
from vitral.training.preparation import Plan

RESERVE = 0.02  # of the budget, for writing and for what was not foreseen
PROBE = 0.02  # of the budget, at most, for trying steps out
HOPELESS = 5  # times what trying out may take, for one step: a tenth of the budget, of which nothing can come
FIRST_LOOK = 0.25  # of the time or of the steps is over when the plan is looked at
NEXT_LOOK = 0.2  # of what was left of either is over when it is looked at again
WORTH_CORRECTING = 0.002  # of the budget
LEAST_TIMED = 5  # steps: the plan is not corrected before so many have been timed
STALL = 4.0  # times the median: a step that took longer says nothing of those to come
MOST_BEFORE = 0.5  # of the budget, for what comes before the first step
MOST_LOOKING = 0.8  # of the budget, where frozen layers have looked at the pictures by then: what is left is quick
SURE_AFTER = 2.0  # seconds of a work, before which it is too early to say how long it will take
LEAST_STEPS = 50  # with fewer a new model knows less than simple methods: docs/decisions/0009-the-quick-recipes.md
BASELINE = 0.1  # of the budget, at most, for simple methods to compare with
SPARE = 1.5  # times what is forecast: a budget that is proposed must hold where the machine is busier by then
PROPOSALS = ("30s", "60s", "2m", "3m", "5m", "10m", "15m", "20m", "30m", "1h", "2h", "5h", "10h", "24h")


class Correction(NamedTuple):
    """After a step the number of all steps was changed."""

    step: int
    steps: int  # in all, from now on


@dataclass(frozen=True)
class Steps:
    """How many steps there are. After a correction the schedules stretch or shrink to the new number."""

    planned: int
    corrections: tuple[Correction, ...] = ()
    restarts: tuple[int, ...] = ()  # steps after which the schedules begin anew

    @property
    def total(self) -> int:
        return self.corrections[-1].steps if self.corrections else self.planned

    def place(self, step: int) -> float:
        """Where a step stands in the plan before any correction, 1 … planned: for schedules.

        >>> steps = Steps(100, (Correction(50, 75), Correction(70, 90)))
        >>> [steps.place(step) for step in (50, 70, 80, 90)]
        [50.0, 90.0, 95.0, 100.0]
        """
        place, since, total = 0.0, 0, self.planned
        for correction in self.corrections:
            if step <= correction.step:
                break
            place += (correction.step - since) * ((self.planned - place) / (total - since))
            since, total = correction
        return place + (step - since) * ((self.planned - place) / (total - since)) if step > since else place

    def stretch(self, step: int) -> tuple[int, "Steps"]:
        """The stretch that a step is in: how many steps were before it, and its own.

        >>> Steps(30, restarts=(10,)).stretch(11)
        (10, Steps(planned=20, corrections=(), restarts=()))
        """
        ends = [*(restart for restart in self.restarts if restart < self.planned), self.planned]
        starts = [0, *ends[:-1]]
        number = max((n for n, start in enumerate(starts) if start < step), default=0)
        start, end = starts[number], ends[number]
        if end < self.planned:
            return start, Steps(end - start)
        before = [steps for at, steps in self.corrections if at <= start]
        after = tuple(Correction(at - start, steps - start) for at, steps in self.corrections if at > start)
        return start, Steps((before or [end])[-1] - start, after)


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

    def __init__(self, train: Train, started_at: float, advice: str = "") -> None:
        self.train, self.started_at, self.advice = train, started_at, advice
        self.doing, self.first, self.since = "", 0, started_at

    def __call__(self, progress: Progress) -> None:
        seconds, now = self.train.seconds, time.perf_counter()
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
                f"{progress.done:,} of {progress.total:,} after {took:.0f} s), and train.budget={self.train.budget} "
                f"would leave too little for the training. Set train.budget={propose(before / most)}{advice}."
            )


def propose(seconds: float) -> str:
    """The shortest usual budget that holds these seconds, and some to spare.

    >>> propose(30), propose(150), propose(72_000)
    ('60s', '5m', '30h')
    """
    enough = SPARE * seconds
    return next((one for one in PROPOSALS if parse_budget(one)[0] >= enough), f"{math.ceil(enough / 3600)}h")


def check_steps(train: Train, spent: float, pace: "Pace") -> None:
    """Refuse a budget of time that leaves too few steps to learn anything."""
    planned = plan_steps(train.seconds, spent, pace).planned
    if not train.seconds or planned >= LEAST_STEPS:
        return
    enough = (spent + LEAST_STEPS * pace.mean) / (1 - RESERVE - BASELINE)
    raise RecipeError(
        f"train.budget={train.budget} would leave {planned} step{'s' if planned > 1 else ''}: {spent:.0f} s have "
        f"passed, and a step takes {pace.mean:.2g} s. With fewer than {LEAST_STEPS} a new model knows less than simple "
        f"methods do. Set train.budget={propose(enough)}, or train.budget={planned}steps if that is what you want."
    )


def measure_pace(plan: Plan, most: float = 1.0, clock: Callable[[], float] | None = None) -> Pace:
    """Time steps of a copy of the learner, for about `most` seconds. A step's share of the validation is included."""
    clock = clock or plan.processes.clock
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


def measuring_seconds(pace: Pace, plan: Plan) -> float:
    """The seconds that it takes to measure what is measured after an epoch, by the pace."""
    share = _share_of_step(plan, "validation") + (_share_of_step(plan, "test") if plan.test_curve else 0.0)
    return pace.full * share / (1 + share) * plan.batches.steps_per_epoch


def plan_steps(seconds: float, spent: float, pace: Pace) -> Steps:
    """As many steps as fit into the budget, of which some seconds are spent already."""
    left = seconds * (1 - RESERVE) - spent
    return Steps(max(1, int(left / pace.mean)))


@dataclass
class BudgetWatch:
    """Whether the steps that are planned fit into the time that is left, by how long steps have really taken."""

    pace: Pace
    seconds: float  # that there were for the steps
    steps_per_epoch: int
    measuring: float  # seconds after each epoch
    ratios: list[float] = field(default_factory=list)  # of the steps since the last look: their seconds, by the pace
    ratio: float = 0.0  # of these steps, at the last look; 0: there was none
    look_at: tuple[float, float] | None = None  # seconds or steps that are left at the next look; None: the first one

    def record(self, seconds: float, progress: float) -> None:
        """A step at this progress took so long."""
        self.ratios.append(seconds / self.pace.at(progress))

    def corrected(self, steps: Steps, step: int, left: float) -> Steps:
        """The plan, `left` seconds before the last step has to be done; it stays as it is where it need not be looked
        at, and where a correction would not matter."""
        progress, planned = min(1.0, steps.place(step) / steps.planned), steps.total - step
        seconds, count = self.look_at or ((1 - FIRST_LOOK) * self.seconds, (1 - FIRST_LOOK) * steps.planned)
        looks = (left <= seconds or planned <= count) and len(self.ratios) >= LEAST_TIMED
        if looks:
            middle = sorted(self.ratios)[len(self.ratios) // 2]
            self.ratio = sum(min(ratio, STALL * middle) for ratio in self.ratios) / len(self.ratios)
            self.ratios = []
        if not looks and left > 2 * self.ratio * self.pace.full:
            return steps
        each = self.ratio * self.pace.mean_of(progress, 1.0)
        fitting = self._fitting(step, each, left)
        self.look_at = (1 - NEXT_LOOK) * left, (1 - NEXT_LOOK) * fitting
        if planned <= 0 or abs(fitting - planned) * each < min(each, WORTH_CORRECTING * self.seconds):
            return steps
        return replace(steps, corrections=(*steps.corrections, Correction(step, step + fitting)))

    def _fitting(self, step: int, each: float, left: float) -> int:
        """How many more steps fit, with what is measured after each epoch."""
        if not each:
            return 0
        count = max(0, int(left / each))
        while count:
            epochs = (step + count) // self.steps_per_epoch - step // self.steps_per_epoch
            over = count * each + epochs * self.measuring - left
            if over <= 0:
                break
            count -= min(count, math.ceil(over / each))
        return count


def _measure_step(plan: Plan, most: float, clock: Callable[[], float], progress: float) -> float:
    """The median seconds of a step at this progress, on a copy: the learner itself stays as it is."""
    times: list[float] = []
    stream = plan.batches.starting_at(1)
    with closing(stream), plan.learner.trial() as learner:
        for step, batch in stream:
            started_at = clock()
            learner.gradients(step, batch, progress)
            learner.update(step, 0.0)
            times.append(clock() - started_at)
            # The first one may take long, for compiling and memory; but not so long.
            if len(times) >= 20 or sum(times[1:]) > most or times[0] > HOPELESS * most:
                break
    warm = sorted(times[2:] or times[-1:])  # the first ones also set things up
    return warm[len(warm) // 2]
