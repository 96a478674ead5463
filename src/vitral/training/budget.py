"""A time becomes a number of steps: estimated by a few steps on a copy, corrected once at a quarter of the time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from vitral.training.learner import Learner
from vitral.training.preparation import Plan

RESERVE = 0.02  # of the budget, for writing and for what was not foreseen
PROBE = 0.02  # of the budget, at most, for trying steps out
CORRECTED_AT = 0.25  # of the budget,
TIMED = 5  # and not before so many steps have been timed


@dataclass(frozen=True)
class Steps:
    """How many steps there are. After a correction the schedules stretch or shrink to the new number."""

    planned: int
    corrected_at: int = 0  # 0: they were not
    corrected: int = 0

    @property
    def total(self) -> int:
        return self.corrected if self.corrected_at else self.planned

    def place(self, step: int) -> float:
        """Where a step stands in the plan as it was made, 1 … planned: for schedules."""
        if not self.corrected_at or step <= self.corrected_at:
            return step
        left = (self.planned - self.corrected_at) / (self.corrected - self.corrected_at)
        return self.corrected_at + (step - self.corrected_at) * left


@dataclass(frozen=True)
class Pace:
    """Seconds a step. Early steps may look at fewer patches, or at smaller pictures, and take less."""

    learner: Learner
    first: float  # seconds of the first step
    full: float  # and of one that looks at everything

    def at(self, progress: float) -> float:
        """In between it follows the number of patches."""
        least, now = self.learner.patches_seen(0.0), self.learner.patches_seen(progress)
        return self.full if least == 1 else self.first + (self.full - self.first) * (now - least) / (1 - least)

    def mean_of(self, start: float, end: float) -> float:
        """Over a part of a training."""
        return sum(self.at(start + (end - start) * (n + 0.5) / 100) for n in range(100)) / 100

    @property
    def mean(self) -> float:
        """Over a whole training."""
        return self.mean_of(0.0, 1.0)


def measure_pace(plan: Plan, most: float = 1.0, clock: Callable[[], float] | None = None) -> Pace:
    """Measured on a copy of the learner, in about so many seconds; its share of the validation is included."""
    clock = clock or time.perf_counter
    full = _tried(plan, most, clock, progress=1.0)
    first = full if plan.learner.patches_seen(0.0) == 1 else _tried(plan, most, clock, progress=0.0)
    validation = full / 3 * len(plan.pack.of("validation")) / plan.batches.batch_size  # forward only: a third
    each = validation / plan.batches.steps_per_epoch
    return Pace(plan.learner, first + each, full + each)


def plan_steps(seconds: float, spent: float, pace: Pace) -> Steps:
    """As many steps as fit into the budget, of which some seconds are spent already."""
    left = seconds * (1 - RESERVE) - spent
    return Steps(max(1, int(left / pace.mean)))


def correct(steps: Steps, step: int, seconds: float, spent: float, stepping: float, timed: int, pace: Pace) -> Steps:
    """The plan again, after `step` steps, with the time that `timed` of them have really taken, validation and all."""
    if steps.planned <= step:
        return steps
    here = step / steps.planned
    done, ahead = pace.mean_of(0.0, here) * timed, pace.mean_of(here, 1.0) * (steps.planned - step)
    wanted = ahead * stepping / done  # seconds that the rest would take
    fitting = (seconds * (1 - RESERVE) - spent) / wanted * (steps.planned - step)
    return Steps(steps.planned, step, step + max(1, int(fitting)))


def _tried(plan: Plan, most: float, clock: Callable[[], float], progress: float) -> float:
    """Seconds a step, of a copy of the learner: the learner itself stays as it is."""
    learner = plan.learner.copy()
    times: list[float] = []
    stream = plan.batches.starting_at(1)
    try:
        for step, batch in stream:
            began = clock()
            learner.gradients(step, batch, progress)
            learner.update(step, 0.0)
            times.append(clock() - began)
            if len(times) >= 20 or sum(times[1:]) > most:  # the first one may take long: compiling, memory
                break
    finally:
        stream.close()
    warm = sorted(times[2:] or times[-1:])  # the first ones also set things up
    return warm[len(warm) // 2]
