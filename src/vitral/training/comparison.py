"""Ways to learn from the same pictures, each tried for a short time: validation says which one goes on.

How a long training is foreseen by short ones, and how often that was right: docs/decisions/0020-by-itself.md.
"""

import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.data.pack import check_space, forecast_packing
from vitral.data.preprocess import Preprocess
from vitral.data.sources import Index
from vitral.data.sources.named import data_directory
from vitral.data.sources.splits import complete_splits, strata
from vitral.data.threads import machine_is_busy
from vitral.errors import DataError
from vitral.plugin import Code
from vitral.progress import OutOfTime, Progress, Tell, tap
from vitral.recipe import Recipe
from vitral.run import Comparison, Way
from vitral.training.budget import LEAST_STEPS, RESERVE, Pace, measure_pace
from vitral.training.folds import train_steps
from vitral.training.preparation import Plan, complete, prepare, preprocess_of
from vitral.training.sample import some_of, temporary_packs
from vitral.weights.pretrained import Pretrained

FROM_NOTHING, PROBE, GENTLE = "from nothing", "probe", "gentle"
TRAINING = "a short training"
SHARE = 1 / 3  # of the time that is left when it begins
MOST = 2_000  # pictures that are learnt from and validated on
EACH = 8  # of each class at least, even where there is time for fewer
ENOUGH = 300  # validation pictures; where the source has fewer, more are held out
HELD_OUT = 0.25  # of the pictures to learn from and validate, then
LEAST_TRIED = 6  # steps of the shorter training: fewer say nothing of more
BEST_DOUBLING = 0.5  # of the odds of a wrong answer stay, at least, where the steps are doubled
MOST_EPOCHS = 20  # beyond, more of them are not taken to bring more
STEP = 3.0  # times as long as looking at its pictures once


@dataclass(frozen=True)
class Candidate:
    """A way to learn: a recipe, and the weights that it starts from."""

    name: str
    recipe: Recipe
    settings: Mapping[str, Any] = field(default_factory=dict)  # for these `choose` gives it
    start: Pretrained | None = None
    why: tuple[str, ...] = ()  # it is as it is: a sentence each

    def packing(self, index: Index) -> tuple[Index, Preprocess, Path]:
        """The pictures, how it needs them, and where they go: what `vitral.data.pack` asks for."""
        config = self.start.model.config if self.start else complete(self.recipe.model, index)
        return index, preprocess_of(self.recipe, config), data_directory(self.recipe.data.directory)

    @property
    def is_quick(self) -> bool:
        """Whether only a head learns, from what frozen layers see once: that is tried whole."""
        return self.recipe.init.mode == "probe"


class Stopwatch:
    """What is measured while ways are compared. A benchmark that must not hang on other work says it instead."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds_a_picture(self, start: Pretrained) -> float:
        """How long a model takes to look at a picture, when it looks at eight: the best of two, since a moment says
        little where others use the machine."""
        height, width = start.preprocess.image_size
        images, model = torch.zeros(8, start.preprocess.channels, height, width), start.model.eval()
        times = []
        with torch.no_grad():
            for _ in range(2):
                began = self.now()
                model.features(images)
                times.append(self.now() - began)
        return min(times) / len(images)

    def pace(self, plan: Plan, most: float) -> Pace:
        return measure_pace(plan, most)


@dataclass
class Trials:
    """Candidates, and the pictures that they are tried on."""

    index: Index
    splits: NDArray[np.str_]
    places: Mapping[str, Any]  # data.directory, where the packs go afterwards
    left: float  # seconds for the training that goes on
    whole: Index  # all pictures, of which `index` may have some
    code: Code
    watch: Stopwatch
    figure: str = "accuracy"  # by which one is chosen; where the objective tells none, the loss

    def try_out(self, candidate: Candidate, ends_at: float) -> Generator[Progress, None, Way]:
        """Train a candidate until `ends_at`, at the latest; how far it came, or why it was not tried."""
        each = self.watch.seconds_a_picture(candidate.start) if candidate.start else 0.0
        if why_not := self._hopeless(candidate, each, ends_at - self.watch.now()):
            return Way(name=candidate.name, why_not=why_not)
        settings = {**self.places, "train.baseline": False, "train.test_curve": False}
        preparation = prepare(
            candidate.recipe.changed(settings), self.splits, index=self.index, start=candidate.start, code=self.code
        )
        try:
            plan = yield from tap(preparation, self._until(ends_at))
        except OutOfTime:
            recipe = candidate.recipe
            planned = recipe.train.epochs * max(1, self.count // recipe.train.batch_size) if candidate.is_quick else 0
            return Way(name=candidate.name, planned=planned, why_not="its time was over before the first step")
        self.figure = "accuracy" if "accuracy" in plan.learner.objective.figures else "loss"
        if candidate.is_quick:
            value = yield from self._train(plan, plan.steps)
            return Way(name=candidate.name, steps=plan.steps, value=value, planned=plan.steps, expected=value)
        pace = self.watch.pace(plan, 0.1 * (ends_at - self.watch.now()))
        third = int((ends_at - self.watch.now()) / pace.mean / 3)
        # Where only some of the pictures are tried, the others are still to be packed.
        packing = forecast_packing(*candidate.packing(self.whole)).seconds if self.index is not self.whole else 0.0
        planned = int((self.left - packing) / pace.mean)
        if third < LEAST_TRIED or planned < LEAST_STEPS:
            return Way(name=candidate.name, planned=planned, why_not=_few(planned))
        first = yield from self._train(replace(plan, learner=plan.learner.copy()), third)
        second = yield from self._train(plan, 2 * third)
        epochs = MOST_EPOCHS * max(1, self.count // plan.batches.batch_size)
        expected = self.expect(first, second, math.log2(max(1.0, min(planned, epochs) / (2 * third))))
        return Way(name=candidate.name, steps=2 * third, value=second, planned=planned, expected=expected)

    def expect(self, first: float, second: float, doublings: float) -> float:
        """The figure after so many more doublings of the steps, where one doubling brought it from `first` to `second`:
        the odds of a wrong answer, or the loss, fall by a power of the steps."""
        if self.figure == "loss":
            return second * min(1.0, second / first if first else 1.0) ** doublings
        before, now = (wrong / (1 - wrong) for wrong in map(self._missing, (first, second)))
        odds = now * min(1.0, max(BEST_DOUBLING, now / before)) ** doublings
        return 1 - odds / (1 + odds)

    def choose(self, ways: Sequence[Way]) -> str:
        """The first way that is as good as the best, but for what can be luck: one standard error of the difference.
        A loss that ran away and is no number is not good."""
        expected = {
            way.name: self._missing(way.expected)
            for way in ways
            if way.expected is not None and math.isfinite(way.expected)
        }
        if not expected:  # nothing was tried, and what fits nevertheless goes on: a head needs no trial to be learnt
            return next((way.name for way in ways if way.why_not and way.planned >= LEAST_STEPS), FROM_NOTHING)
        best = min(expected.values())
        return next(name for name, one in expected.items() if one - best <= self._error(one, best))

    def _missing(self, value: float) -> float:
        """The share of wrong answers, never quite 0 since pictures are few; or the loss."""
        wrong = (1 - value) * self.pictures
        return (wrong + 0.5) / (self.pictures + 1) if self.figure == "accuracy" else value

    def _error(self, one: float, other: float) -> float:
        """The standard error of the difference; a loss is taken to differ from picture to picture as much as it is."""
        share = self.figure == "accuracy"
        return math.sqrt(sum(e * (1 - e) if share else e * e for e in (one, other)) / self.pictures)

    @property
    def count(self) -> int:
        """How many pictures there are to learn from and to validate."""
        return int((self.whole.splits != "test").sum())

    @property
    def pictures(self) -> int:
        """How many are held out."""
        return int((self.splits == "validation").sum())

    def _hopeless(self, candidate: Candidate, each: float, seconds: float) -> str | None:
        """Why a candidate need not be tried, by what its model takes for a picture; None: it is tried."""
        batch = candidate.recipe.train.batch_size
        if candidate.is_quick and each * self.count > self.left:
            return f"to look at all pictures once would take {each * self.count / 60:.0f} min"
        planned = int(self.left / (STEP * each * batch)) if each and not candidate.is_quick else LEAST_STEPS
        if planned < LEAST_STEPS or not candidate.is_quick and seconds < 3 * LEAST_TRIED * STEP * each * batch:
            return _few(planned)
        return None

    def _until(self, ends_at: float) -> Tell:
        def tell(progress: Progress) -> None:
            if self.watch.now() > ends_at and progress.done < progress.total:
                raise OutOfTime

        return tell

    def _train(self, plan: Plan, steps: int) -> Generator[Progress, None, float]:
        """A whole training of so many steps; the figure of the validation pictures, at its end or in the best epoch,
        whichever gives the weights."""
        doing, figures = f"{TRAINING} of {steps:,} steps", list[dict[str, float]]()
        every = plan.batches.steps_per_epoch if plan.learner.train.choose == "loss" else steps
        yield Progress(0, steps, doing)
        for step in train_steps(plan, steps):
            yield Progress(step, steps, doing)
            if step % every == 0 and step < steps:
                figures.append(plan.validate())
        figures.append(plan.validate())
        return min(figures, key=lambda one: one["loss"])[self.figure]


def compare(
    candidates: Sequence[Candidate],
    index: Index,
    budget: float,
    began: float,
    code: Code = (),
    watch: Stopwatch | None = None,
) -> Generator[Progress, None, Comparison]:
    """Try candidates, the cheapest first, for a third of what is left of the budget (seconds, which count from
    `began`); yields how far it is. `chosen` is then the name of the one that should go on.

    The test pictures are not looked at. All are validated on the same pictures, which none of them learns from. What
    the disk has no room for is not tried, and where it has room for none that is refused before anything is.
    """
    watch, no_room = watch or Stopwatch(), dict[str, DataError]()
    for candidate in candidates:
        try:
            check_space(*candidate.packing(index))
        except DataError as error:
            no_room[candidate.name] = error
    if len(no_room) == len(candidates):
        raise no_room[candidates[0].name]
    started_at = watch.now()
    seconds = SHARE * (began + budget - started_at)
    ends_at = started_at + seconds
    look = max((watch.seconds_a_picture(one.start) for one in candidates if one.start), default=0.0)
    known = np.flatnonzero(index.splits != "test")
    most = max(EACH * len(index.class_names), min(MOST, int(seconds / 2 / look) if look else MOST))
    all_of_them = len(known) <= most
    with nullcontext() if all_of_them else temporary_packs() as directory, _threads():
        some = index if all_of_them else some_of(index, known, most)
        left = began + budget * (1 - RESERVE) - ends_at
        places = {"data.directory": directory} if directory else {}
        trials = Trials(some, _held_out(some), places, left, index, code, watch)
        ways: list[Way] = []
        for number, candidate in enumerate(candidates):
            if candidate.name in no_room:
                ways.append(Way(name=candidate.name, why_not="the disk has no room for its pictures"))
                continue
            now = watch.now()
            part = ends_at - now if candidate.is_quick else (ends_at - now) / (len(candidates) - number)
            ways.append((yield from trials.try_out(candidate, now + part)))
    return Comparison(
        weights=next((one.recipe.init.weights for one in candidates if one.start), "none"),
        figure=trials.figure,
        pictures=trials.pictures,
        seconds=round(watch.now() - started_at, 1),
        ways=tuple(ways),
        chosen=trials.choose(ways),
    )


def _few(planned: int) -> str:
    steps = "1 step fits" if planned == 1 else f"{planned} steps fit"
    return f"only {steps} into the time" if planned < LEAST_STEPS else "too few steps fit to try it"


def _held_out(index: Index) -> NDArray[np.str_]:
    """The splits to try with: as they are where enough pictures validate, else more of them do."""
    if len(index.of("validation")) >= min(ENOUGH, HELD_OUT * np.sum(index.splits != "test")):
        return index.splits
    splits = np.where(index.splits == "test", "test", "")
    shares, _ = strata(index.targets, index.labels)
    return complete_splits(splits, shares, index.samples, index.groups, validation=HELD_OUT, seed=0)[0]


@contextmanager
def _threads() -> Iterator[None]:
    """One thread where others use the machine: several would wait for the slowest of them in every operation."""
    before = torch.get_num_threads()
    if machine_is_busy():
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
