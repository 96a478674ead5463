"""One session of a run: from where it stood, until it is finished, stopped or killed. Keeps the run folder."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, get_num_threads

from vitral.data.batches import Batch
from vitral.errors import RecipeError, RunError
from vitral.recipe import Recipe
from vitral.run import Record, Run, free_folder
from vitral.training.baseline import baseline
from vitral.training.budget import CORRECTED_AT, TIMED, Pace, Steps, correct, plan_steps
from vitral.training.checkpoint import TrainingState, read_checkpoint, write_checkpoint
from vitral.training.config import parse_budget
from vitral.training.preparation import Plan
from vitral.training.schedules import learning_rate_share
from vitral.training.speed import find_fastest, set_to
from vitral.weights.own import Weights

if TYPE_CHECKING:
    from filelock import BaseFileLock


class Epoch:
    """Once through the training pictures. `vars(epoch)` is its line in metrics.jsonl: each figure of the objective
    under its own name, such as `epoch.train_loss` and `epoch.validation_accuracy`.

    Training figures are of the augmented pictures, as they were learnt from.
    """

    epoch: int
    step: int
    waited: float  # share of the time of its steps that was spent waiting for pictures
    seconds: float  # since the start
    # Those of classification; another objective may tell others.
    train_loss: float
    train_accuracy: float
    validation_loss: float | None = None  # where there are no validation pictures
    validation_accuracy: float | None = None

    def __init__(
        self,
        epoch: int,
        step: int,
        train: Mapping[str, float],
        validation: Mapping[str, float],
        *,
        waited: float,
        seconds: float,
    ) -> None:
        named = {f"train_{name}": value for name, value in train.items()}
        named |= {f"validation_{name}": value for name, value in validation.items()}
        vars(self).update(epoch=epoch, step=step, **named, waited=waited, seconds=seconds)

    def of(self, split: Literal["train", "validation"]) -> dict[str, float]:
        """The figures of one side: loss, accuracy, …"""
        return {name.removeprefix(f"{split}_"): value for name, value in vars(self).items() if name.startswith(split)}

    def __repr__(self) -> str:
        return f"Epoch({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def what_to_do(recipe: Recipe | None, out: str | Path | None, resume: bool) -> tuple[Recipe, Run | None]:
    """The recipe, and the run that goes on if there is one."""
    earlier = Run.load(out) if resume and out is not None and Run.is_run(out) else None
    if resume and out is None:
        raise RunError("Say which run goes on: --out RUN --resume.")
    if recipe is None and earlier is None:
        raise RecipeError(f"There is no run in {out} to go on with: name a recipe to begin one.")
    if earlier is None:
        assert recipe is not None
        if out is not None:
            Run(Path(out)).check_free()  # now, and not when the pictures are packed
        return recipe, None
    if recipe is not None and (changed := list(_changed(earlier.recipe.write(), recipe.write()))):
        raise RunError(
            f"{out} was begun with another recipe: {'; '.join(changed)}. Go on without these settings, or begin anew."
        )
    return earlier.recipe, earlier


def _changed(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name in before.keys() | now.keys():
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changed(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name} was {old} and is {new}"


@dataclass
class Session:
    """What is going on."""

    run: Run
    plan: Plan
    recipe: Recipe
    record: Record
    progress: TrainingState
    notes: tuple[str, ...]
    lock: "BaseFileLock"
    began: float  # by the clock
    pace: Pace  # as measured before the first step
    torn: bool = False  # whether a step is half taken, or an epoch half judged
    saved_at: float = field(default_factory=lambda: time.perf_counter())  # not the function itself, which would stay
    ticked_at: float = field(default_factory=lambda: time.perf_counter())  # where a test brings a clock of its own
    epoch_began: float = field(default_factory=lambda: time.perf_counter())
    waited: float = 0.0  # seconds, in this epoch
    waiting_for_first: bool = True  # step of this session

    @classmethod
    def begin(cls, recipe: Recipe, plan: Plan, earlier: Run | None, out: str | Path | None, began: float) -> "Session":
        """Make the run folder, or bring everything to where the last checkpoint was."""
        if earlier is None:
            run, lock = Run.reserve(out or free_folder(recipe.data.source))
            choices, pace = find_fastest(recipe.train, plan)
            record = plan.record(datetime.now(UTC), choices)
            run.begin(recipe, record, plan.pack.rows(), plan.pack.left_out_rows())
            run.cut_back(0)
            _compare(recipe, run, plan)
            progress = TrainingState(planned=_planned(recipe, plan, began, pace))
            return cls(run, plan, recipe, record, progress, _too_late(recipe, began), lock, began, pace)
        lock = earlier.lock()
        before = earlier.record
        now = {"device": plan.learner.device.type, "threads": get_num_threads()}
        record = plan.record(datetime.now(UTC), before.choices.model_copy(update=now))
        if before.data.sha256 != record.data.sha256:
            raise RunError(
                f"The pictures of {recipe.data.source} are not those that {earlier.folder} was begun with: they, their "
                "labels or their split have changed. Bring them back, or begin anew."
            )
        if before.start != record.start:
            raise RunError(
                f"The weights of {recipe.init.weights} are not those that {earlier.folder} was begun with. Bring them "
                "back, or begin anew."
            )
        if before.code != record.code:
            raise RunError(
                f"{' and '.join(recipe.plugins)} is not what {earlier.folder} was begun with: the file has "
                "changed. Bring it back, or begin anew."
            )
        if before.teacher != record.teacher:
            raise RunError(
                f"The teacher {recipe.teacher.source} is not the one that {earlier.folder} was begun with. Bring it "
                "back, or begin anew."
            )
        notes = _other_conditions(before, record)
        progress = TrainingState()
        if found := read_checkpoint(earlier.checkpoints):
            progress, tensors, damaged = found
            plan.learner.restore(tensors)
            notes += damaged
        pace = set_to(record.choices, plan)
        _compare(recipe, earlier, plan)
        progress.planned = progress.planned or _planned(recipe, plan, began, pace)
        notes += earlier.cut_back(progress.metrics)
        plan_then = {"planned": progress.corrected, "corrected_at": progress.corrected_at}
        record = record.model_copy(update={"started_at": before.started_at, **plan_then})
        earlier.write_record(record)
        return cls(earlier, plan, recipe, record, progress, tuple(notes), lock, began - progress.seconds, pace)

    @property
    def budget(self) -> float:
        """In seconds; 0: there is none."""
        return parse_budget(self.recipe.train.budget)[0]

    @property
    def seconds(self) -> float:
        """Of training, all sessions together."""
        return time.perf_counter() - self.began

    @property
    def unsaved(self) -> float:
        """Seconds since the last checkpoint."""
        return time.perf_counter() - self.saved_at

    @property
    def steps(self) -> Steps:
        """How many there are."""
        return Steps(self.progress.planned, self.progress.corrected_at, self.progress.corrected)

    @property
    def expected(self) -> float:
        """Seconds that the rest will take, by what was measured."""
        return (self.steps.total - self.progress.step) * self.pace.mean

    def share_done(self, step: int) -> float:
        """0 at the first step, 1 after the last."""
        return (self.steps.place(step) - 1) / self.progress.planned

    def rate_share(self, step: int) -> float:
        """Of the full learning rate."""
        return learning_rate_share(self.recipe.train, self.progress.planned)(self.steps.place(step))

    @property
    def due_for_correction(self) -> bool:
        """A quarter of the time is over, and the plan has not been looked at again."""
        late = self.seconds >= CORRECTED_AT * self.budget and self.progress.timed >= TIMED
        return bool(self.budget) and not self.progress.corrected_at and late

    def correct(self) -> int:
        """Look at the plan again; the number of steps that it has now."""
        step = self.progress.step
        told = self.progress
        now = correct(self.steps, step, self.budget, self.seconds, told.stepping, told.timed, self.pace)
        self.progress.corrected_at, self.progress.corrected = now.corrected_at, now.corrected
        self.record = self.record.model_copy(update={"corrected_at": now.corrected_at, "planned": now.total})
        self.run.write_record(self.record)
        self.save()  # from here on a resume has the same plan
        return now.total

    @property
    def epoch_is_over(self) -> bool:
        """Whether its last step was taken, and it was not measured yet."""
        return bool(self.progress.losses) and self.progress.step % self.plan.batches.steps_per_epoch == 0

    @property
    def gave_up(self) -> bool:
        """Because validation does not get better; also where it was killed just then."""
        return 0 < self.recipe.train.patience <= self.progress.since

    def is_finite(self, loss: Tensor, batch: Batch) -> bool:
        """Whether the step can be taken. If not: stop, or say that it was left out."""
        if math.isfinite(float(loss)):
            return True
        self.plan.learner.discard()
        step = self.progress.step + 1
        names = [self.plan.pack.index.samples[int(sample)] for sample in batch.samples[:3]]
        if self.recipe.train.not_finite == "stop":
            raise _run_away(step, f" (pictures {', '.join(names)}, …)")
        self.progress.metrics = self.run.append_metrics([{"event": "skipped", "step": step, "samples": names}])
        return False

    def taken(self, step: int, loss: Tensor, figures: Mapping[str, Tensor], waited: float) -> None:
        """A step was taken."""
        if self.waiting_for_first:  # it also sets things up, compiles: no measure for those to come
            self.waiting_for_first, self.ticked_at = False, time.perf_counter()
        else:
            self.progress.timed += 1
        self._tick()
        self.progress.step = step
        self.progress.losses.append(float(loss))
        for name, value in figures.items():
            self.progress.figures.setdefault(name, []).append(float(value))
        self.waited += waited

    def epoch_ends(self) -> Epoch:
        """Validate, write metrics.jsonl, see whether it was the best."""
        plan, progress = self.plan, self.progress
        validation = plan.validate() if plan.validates else {}
        plan.learner.model.train()
        if not all(map(math.isfinite, validation.values())):
            self.torn = True  # nothing to go on from
            raise _run_away(progress.step)
        finite = [loss for loss in progress.losses if math.isfinite(loss)]
        figures = {name: math.fsum(values) / len(values) for name, values in progress.figures.items()}
        epoch = Epoch(
            epoch=progress.step // plan.batches.steps_per_epoch,
            step=progress.step,
            train={"loss": math.fsum(finite) / max(1, len(finite)), **figures},
            validation=validation,
            waited=self.waited / (time.perf_counter() - self.epoch_began),
            seconds=self.seconds,
        )
        self.torn = True  # until the epoch is judged and written: a resume must not judge it again
        self._judge(epoch)
        self._write(epoch)
        self.torn = False
        self._tick()
        self.waited, self.epoch_began = 0.0, time.perf_counter()
        return epoch

    def save(self) -> Path:
        """A checkpoint."""
        self.progress.seconds = self.seconds
        with self.run.writing():
            path = write_checkpoint(self.run.checkpoints, self.progress, self.plan.learner.tensors())
        self.saved_at = time.perf_counter()
        return path

    def end(self, finished: bool) -> None:
        """Write what there is."""
        learner = self.plan.learner
        try:
            if not self.torn and self.progress.step:
                self.save()
            self._write()  # after the checkpoint, which has the steps of an unfinished epoch itself
            state = "finished" if finished else "stopped"
            update = {"state": state, "seconds": round(self.seconds, 3), "steps": self.progress.step}
            self.record = self.record.model_copy(update=update)
            model = learner.result() if finished else learner.average.model
            if finished:
                learner.refit_norms(self.plan.batches, self.progress.step, self.share_done(self.progress.step))
            if all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values()):
                names, about = self.plan.pack.index.class_names, dict(self.plan.about)
                weights = Weights(model, self.plan.preprocess, names, about)
                self.run.write_weights(weights, self.record)
                if finished and (doubt := self.plan.calibrate(model)):
                    self.run.write_calibration(doubt)
            else:
                self.run.write_record(self.record)
        finally:
            self.lock.release()

    def _tick(self) -> None:
        now = time.perf_counter()
        self.progress.stepping += now - self.ticked_at
        self.ticked_at = now

    def _judge(self, epoch: Epoch) -> None:
        """Is it the best so far? For how long has it not got better?"""
        train, progress, validation = self.recipe.train, self.progress, epoch.of("validation")
        if not validation:
            return
        if train.choose != "last":
            figure = validation[train.choose] * (-1 if train.choose == "loss" else 1)
            if progress.best is None or figure > progress.best:
                progress.best = figure
                self.plan.learner.keep_best()
        if progress.least_loss is None or validation["loss"] < progress.least_loss:
            progress.least_loss, progress.since = validation["loss"], 0
        else:
            progress.since += 1

    def _write(self, epoch: Epoch | None = None) -> None:
        """Lines for metrics.jsonl: the steps of the epoch that is under way, and the epoch."""
        lines: list[dict[str, Any]] = []
        rate = self.plan.learner.optimizers.full_rates[0][0]
        first = self.progress.step - len(self.progress.losses) + 1
        for step, loss in enumerate(self.progress.losses, start=first):
            told = {"loss": loss} if math.isfinite(loss) else {}  # JSON has no word for what is no number
            lines.append({"event": "step", "step": step, "learning_rate": rate * self.rate_share(step), **told})
        if epoch:
            lines.append({"event": "epoch", **vars(epoch)})
        self.progress.metrics = self.run.append_metrics(lines)
        self.progress.losses, self.progress.figures = [], {}


def _compare(recipe: Recipe, run: Run, plan: Plan) -> None:
    """Simple methods first; also in a run that was stopped before they were done."""
    if recipe.train.baseline and run.baseline is None:
        run.write_baseline(baseline(plan.pack))


def _too_late(recipe: Recipe, began: float) -> tuple[str, ...]:
    seconds, _ = parse_budget(recipe.train.budget)
    if seconds and time.perf_counter() - began > seconds:
        return (f"The budget, {recipe.train.budget}, is over before the first step; one is taken.",)
    return ()


def _planned(recipe: Recipe, plan: Plan, began: float, pace: Pace) -> int:
    seconds, _ = parse_budget(recipe.train.budget)
    return plan_steps(seconds, time.perf_counter() - began, pace).planned if seconds else plan.steps


def _run_away(step: int, where: str = "") -> RunError:
    return RunError(
        f"The loss is no longer a number at step {step}{where}: the training has run away. "
        "Lower train.optimizer.learning_rate, raise train.warmup, or set train.clip=1."
    )


def _other_conditions(before: Record, now: Record) -> list[str]:
    """What is not as it was: then sums may be rounded in another order."""
    found = {
        f"{name} was {old} and is {new}"
        for name, old, new in (
            ("the processor", before.machine.processor, now.machine.processor),
            ("torch", before.machine.torch, now.machine.torch),
            ("the device", before.choices.device, now.choices.device),
            ("the number of threads", before.choices.threads, now.choices.threads),
        )
        if old != new
    }
    return [f"Not to the bit as without the stop: {', '.join(sorted(found))}."] if found else []
