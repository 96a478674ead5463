"""A time becomes a number of steps: estimated by a few steps on a copy, corrected once at a quarter of the time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from vitral.training.learner import Learner
from vitral.training.preparation import Plan

RESERVE = 0.02  # of the budget, for writing and for what was not foreseen
PROBE = 0.02  # of the budget, at most, for trying steps out
CORRECTED_AT = 0.25  # of the budget
LEAST_TIMED = 5  # steps: the plan is not corrected before so many have been timed


@dataclass(frozen=True)
class Steps:
    """How many steps there are. After a correction the schedules stretch or shrink to the new number."""

    planned: int
    corrected_at: int = 0  # the step after which the number was corrected; 0: it was not
    corrected: int = 0  # the new number

    @property
    def total(self) -> int:
        return self.corrected if self.corrected_at else self.planned

    def place(self, step: int) -> float:
        """Where a step stands in the plan before any correction, 1 … planned: for schedules."""
        if not self.corrected_at or step <= self.corrected_at:
            return step
        stretch = (self.planned - self.corrected_at) / (self.corrected - self.corrected_at)
        return self.corrected_at + (step - self.corrected_at) * stretch


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


def measure_pace(plan: Plan, most: float = 1.0, clock: Callable[[], float] | None = None) -> Pace:
    """Time steps of a copy of the learner, for about `most` seconds. A step's share of the validation is included."""
    clock = clock or time.perf_counter
    full = _measure_step(plan, most, clock, progress=1.0)
    first = full if plan.learner.patches_seen(0.0) == 1 else _measure_step(plan, most, clock, progress=0.0)
    validation = full / 3 * len(plan.pack.of("validation")) / plan.batches.batch_size  # forward only: a third
    each = validation / plan.batches.steps_per_epoch
    return Pace(plan.learner, first + each, full + each)


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
    return Steps(steps.planned, step, step + max(1, int(fitting)))


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
            if len(times) >= 20 or sum(times[1:]) > most:  # the first one may take long: compiling, memory
                break
    finally:
        stream.close()
    warm = sorted(times[2:] or times[-1:])  # the first ones also set things up
    return warm[len(warm) // 2]
