"""One session of a run: from where it stood, until it is finished, stopped or killed. Writes the run folder."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, get_num_threads

from vitral.data.batches import Batch
from vitral.errors import RecipeError, RunError
from vitral.model.interface import Model
from vitral.model.lora import merged
from vitral.processes import Processes
from vitral.progress import Progress
from vitral.recipe import Recipe
from vitral.run import Choices, Comparison, Record, Run, Stretch, free_folder
from vitral.training.baseline import baseline
from vitral.training.budget import (
    BASELINE,
    RESERVE,
    BudgetWatch,
    Correction,
    Pace,
    Steps,
    check_steps,
    measuring_seconds,
    plan_steps,
    with_test_curve,
)
from vitral.training.checkpoint import TrainingState, read_checkpoint, write_checkpoint, write_shares
from vitral.training.learner import REFIT
from vitral.training.preparation import Plan
from vitral.training.schedules import learning_rate_share
from vitral.training.speed import apply_choices, find_fastest
from vitral.weights.own import Weights

if TYPE_CHECKING:
    from filelock import BaseFileLock

TRYING = "trying out steps"
LOCK_PATIENCE = 60.0  # seconds


class Epoch:
    """Once through the training pictures. `vars(epoch)` is its line in metrics.jsonl: each figure of the objective
    under its own name, such as `epoch.train_loss` and `epoch.validation_accuracy`.

    Training figures are of the augmented pictures, as they were learnt from.
    """

    epoch: int
    step: int
    waited: float  # share of the time of its steps that was spent waiting for pictures
    seconds: float  # since the start
    # The figures of classification; another objective may have others.
    train_loss: float
    train_accuracy: float
    validation_loss: float | None = None  # where there are no validation pictures
    validation_accuracy: float | None = None
    test_loss: float | None = None  # only with train.test_curve
    test_accuracy: float | None = None

    def __init__(
        self,
        epoch: int,
        step: int,
        train: Mapping[str, float],
        validation: Mapping[str, float],
        test: Mapping[str, float],
        *,
        waited: float,
        seconds: float,
    ) -> None:
        splits = {"train": train, "validation": validation, "test": test}
        named = {f"{split}_{name}": value for split, figures in splits.items() for name, value in figures.items()}
        vars(self).update(epoch=epoch, step=step, **named, waited=waited, seconds=seconds)

    def of(self, split: Literal["train", "validation", "test"]) -> dict[str, float]:
        """The figures of a split by their own names: loss, accuracy, …"""
        start = f"{split}_"
        return {name.removeprefix(start): value for name, value in vars(self).items() if name.startswith(start)}

    def __repr__(self) -> str:
        return f"Epoch({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def resolve_run(recipe: Recipe | None, out: str | Path | None, resume: bool) -> tuple[Recipe, Run | None]:
    """The recipe to train, and the run that goes on, if there is one; what does not fit together is refused."""
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
    before = earlier.recipe
    if recipe is None:
        return before, earlier
    if before.train.restarts and not recipe.train.restarts:
        recipe = recipe.changed({"train.restarts": before.train.restarts})
    # What others report may be learnt later, and how processes share the work is theirs.
    before = before.changed({"reported": recipe.reported.write(), "train.parallel": recipe.train.parallel})
    changes = dict(_differences(before.write(), recipe.write()))
    if not changes:
        return before, earlier
    record = earlier.record
    if record.state == "finished" and changes.keys() <= LENGTH:
        length = {"train.epochs": recipe.train.epochs, "train.budget": recipe.train.budget}
        return before.changed({**length, "train.restarts": sorted({*before.train.restarts, record.steps})}), earlier
    raise RunError(
        f"{out} was begun with another recipe: {'; '.join(changes.values())}. Go on without these settings, or begin "
        "anew."
    )


LENGTH = {"train.epochs", "train.budget"}  # what may change when a finished run is trained longer


def begins_stretch(recipe: Recipe, run: Run) -> bool:
    """Whether a finished run is to be trained longer by this recipe."""
    record = run.record
    return record.state == "finished" and recipe.train.restarts[-1:] == (record.steps,)


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each setting of two recipes that differs: its dotted name, and words on it."""
    for name in before.keys() | now.keys():
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            was, is_now = ("not set" if value is None else value for value in (old, new))
            yield f"{prefix}{name}", f"{prefix}{name} was {was} and is {is_now}"


@dataclass
class Session:
    """A training under way: its run folder, its plan, how far it is, and its clocks."""

    run: Run
    plan: Plan
    recipe: Recipe
    record: Record
    progress: TrainingState
    notes: tuple[str, ...]
    lock: "BaseFileLock | None"  # None: another process has it
    started_at: float  # by the clock of the processes; of a resumed run, as if it had never stopped
    pace: Pace  # as measured before the first step
    unfinished: bool = False  # whether a step is half done, or an epoch half judged
    saved_at: float = field(init=False)
    ticked_at: float = field(init=False)
    epoch_started_at: float = field(init=False)
    watch: BudgetWatch = field(init=False)
    saving: float = 0.0  # seconds that the last checkpoint took
    waited: float = 0.0  # seconds, in this epoch
    waiting_for_first: bool = True  # step of this session

    def __post_init__(self) -> None:
        self.saved_at = self.ticked_at = self.epoch_started_at = self.processes.clock()
        before = self.record.stretches[-1].seconds if self.record.stretches else 0.0
        plan = self.plan
        per_epoch = plan.batches.steps_per_epoch
        self.watch = BudgetWatch(self.pace, self.budget - before, per_epoch, measuring_seconds(self.pace, plan))

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        plan: Plan,
        earlier: Run | None,
        out: str | Path | None,
        started_at: float,
        comparison: Comparison | None = None,
    ) -> Generator[Progress, None, "Session"]:
        """Make the run folder, or bring everything to where the last checkpoint of the `earlier` run was."""
        yield Progress(0, 1, TRYING)
        processes = plan.processes
        if earlier:
            # A first process that has lost its launcher may still be writing a checkpoint.
            with _locked(processes, partial(earlier.lock, LOCK_PATIENCE if processes.many else 0.0)) as lock:
                return (yield from cls._resume(recipe, plan, earlier, started_at, lock))
        choices, pace = find_fastest(recipe.train, plan)
        pace = with_test_curve(pace, plan)
        if recipe.init.weights == "none":  # what others have learnt needs few steps
            check_steps(recipe.train, processes.clock() - started_at, pace)
        run = Run(Path(processes.decide(lambda: str(out or free_folder(recipe.data.source)))))
        with _locked(processes, run.reserve) as lock:
            record = plan.record(datetime.now(UTC), choices).model_copy(update={"comparison": comparison})
            processes.decide(lambda: run.begin(recipe, record, plan.pack.rows(), plan.pack.left_out_rows()))
            processes.decide(lambda: run.cut_back(0))
            yield from _run_baseline(recipe, run, plan)
            progress = TrainingState(planned=_planned_steps(recipe, plan, started_at, pace))
            return cls(run, plan, recipe, record, progress, (), lock, started_at, pace)

    @classmethod
    def _resume(
        cls, recipe: Recipe, plan: Plan, earlier: Run, started_at: float, lock: "BaseFileLock | None"
    ) -> Generator[Progress, None, "Session"]:
        before, processes = earlier.record, plan.processes
        threads = min(before.choices.threads, processes.tell(get_num_threads()))
        now = {"device": plan.learner.device.type, "threads": threads, "processes": processes.world}
        now["parallel"] = "shard" if plan.learner.shards else "replicate"
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
        is_longer = begins_stretch(recipe, earlier)
        if before.stretches or is_longer:  # the weights of the last one stay until there are new ones
            stays = {"stretches": before.stretches, "weights": before.weights, "calibration": before.calibration}
            record = record.model_copy(update=stays)
        notes = _condition_notes(before, record)
        progress = TrainingState()
        with processes.together():
            checkpoint = read_checkpoint(earlier.checkpoints)
        if checkpoint:
            progress, stored, damaged = checkpoint
            plan.learner.restore(stored)
            notes += damaged
        processes.agree({"the step of the checkpoint": progress.step})
        pace = with_test_curve(apply_choices(record.choices, plan), plan)
        if is_longer:
            record = _begin_stretch(recipe, plan, earlier, record, progress, started_at, pace)
            notes.append(
                f"Trained longer, by {progress.planned - progress.step:,} steps with a warm-up and schedule of their "
                f"own. What it was is in {earlier.folder}/stretch-{len(recipe.train.restarts)}."
            )
        yield from _run_baseline(recipe, earlier, plan)
        progress.planned = progress.planned or _planned_steps(recipe, plan, started_at, pace)
        notes += processes.decide(lambda: earlier.cut_back(progress.metrics))
        began: dict[str, Any] = {"started_at": before.started_at, "comparison": before.comparison}
        if checkpoint and not is_longer:  # as it was decided, also what was decided after the checkpoint
            began |= {"planned": before.planned, "corrected_at": before.corrected_at, "corrections": before.corrections}
        record = record.model_copy(update=began)
        if recipe != earlier.recipe:  # in what may change
            processes.decide(lambda: earlier.write_recipe(recipe))
        processes.decide(lambda: earlier.write_record(record))
        return cls(earlier, plan, recipe, record, progress, tuple(notes), lock, started_at - progress.seconds, pace)

    @property
    def processes(self) -> Processes:
        """Who learns together: the first of them writes."""
        return self.plan.processes

    @property
    def budget(self) -> float:
        """The budget in seconds; 0: there is none, or it is a number of steps."""
        return self.recipe.train.seconds

    @property
    def seconds(self) -> float:
        """Seconds of training, all sessions together."""
        return self.processes.now() - self.started_at

    @property
    def unsaved(self) -> float:
        """Seconds since the last checkpoint."""
        return self.processes.now() - self.saved_at

    @property
    def steps(self) -> Steps:
        """How many steps there are, by the plan as it stands."""
        record = self.record
        once = ((record.corrected_at, record.planned),) if record.corrected_at else ()  # as earlier versions wrote it
        corrections = tuple(Correction(*one) for one in record.corrections or once)
        return Steps(self.progress.planned, corrections, self.recipe.train.restarts)

    @property
    def expected(self) -> float:
        """Seconds that the steps to come will take, by the pace."""
        return (self.steps.total - self.progress.step) * self.pace.mean

    def progress_at(self, step: int) -> float:
        """How far the training is before a step: 0 at the first, 1 after the last; and in all stretches but the first,
        where what rises or thaws has arrived."""
        before, steps = self.steps.stretch(step)
        return 1.0 if before else (steps.place(step) - 1) / steps.planned

    def rate_share(self, step: int) -> float:
        """The learning rate of a step, as a share of the full one."""
        before, steps = self.steps.stretch(step)
        return learning_rate_share(self.recipe.train, steps.planned)(steps.place(step - before))

    def correct(self) -> bool:
        """Bring the number of steps in line with the time that is left, where it is time to; returns whether it did."""
        step, steps = self.progress.step, self.steps
        if not self.budget or any(correction.step >= step for correction in steps.corrections):
            return False  # a run that goes on does first what was decided before
        refitting = REFIT / 3 if self.plan.learner.refits_norms else 0.0  # steps that go forward only
        closing = max(RESERVE * self.budget, self.saving + refitting * self.watch.ratio * self.pace.full)
        corrected = self.watch.corrected(steps, step, self.budget - closing - self.seconds)
        if corrected == steps:
            return False
        told = {"corrections": corrected.corrections, "corrected_at": step, "planned": corrected.total}
        self.record = self.record.model_copy(update=told)
        self._write_record()
        if not self.saving:  # from a checkpoint on a resume has the same plan
            self.save()
        return True

    @property
    def epoch_is_over(self) -> bool:
        """Whether the last step of an epoch is done, and the epoch is not measured yet."""
        return bool(self.progress.losses) and self.progress.step % self.plan.batches.steps_per_epoch == 0

    @property
    def patience_is_over(self) -> bool:
        """Whether validation has not got better for train.patience epochs; also where it was killed just then."""
        return 0 < self.recipe.train.patience <= self.progress.since

    def is_finite(self, loss: Tensor, batch: Batch) -> bool:
        """Whether the gradients may become a step. If not, they are discarded, and the training stops or goes on."""
        if math.isfinite(float(loss)):
            return True
        self.plan.learner.discard()
        step = self.progress.step + 1
        names = [self.plan.pack.index.samples[int(sample)] for sample in batch.samples[:3]]
        if self.recipe.train.not_finite == "stop":
            raise _divergence(step, f" (pictures {', '.join(names)}, …)")
        self._append_metrics([{"event": "skipped", "step": step, "samples": names}])
        return False

    def record_step(self, step: int, loss: Tensor, figures: Mapping[str, Tensor], waited: float) -> None:
        """Count a step that is done: its time, loss and figures, and the seconds that it waited for its batch."""
        seconds = self._tick()
        if not self.waiting_for_first:  # it also sets things up, compiles: no measure for those to come
            self.watch.record(seconds, self.progress_at(step))
        self.waiting_for_first = False
        self.progress.step = step
        self.progress.losses.append(float(loss))
        for name, value in figures.items():
            self.progress.figures.setdefault(name, []).append(float(value))
        self.waited += waited

    def end_epoch(self) -> Epoch:
        """Validate, see whether this epoch is the best, write metrics.jsonl; returns the epoch's figures.

        What the test pictures give is told and nothing else: neither `_judge` nor anything after it looks at it.
        """
        plan, progress = self.plan, self.progress
        validation = plan.validate() if plan.validates else {}
        if not all(map(math.isfinite, validation.values())):
            self.unfinished = True  # nothing to go on from
            raise _divergence(progress.step)
        test = plan.measure_test() if plan.test_curve else {}
        plan.learner.model.train()
        now = self.processes.clock()
        self.watch.measuring = now - self.ticked_at
        figures = {name: _mean_of_finite(values) for name, values in progress.figures.items()}
        epoch = Epoch(
            epoch=progress.step // plan.batches.steps_per_epoch,
            step=progress.step,
            train={"loss": _mean_of_finite(progress.losses), **figures},
            validation=validation,
            test=test,
            waited=self.waited / (now - self.epoch_started_at),
            seconds=self.seconds,
        )
        self.unfinished = True  # until the epoch is judged and written: a resume must not judge it again
        self._judge(epoch)
        self._write_metrics(epoch)
        self.unfinished = False
        self._tick()
        self.waited, self.epoch_started_at = 0.0, self.processes.now()
        if words := plan.learner.objective.alarm(validation, epoch.step):
            raise RunError(f"Stopped after epoch {epoch.epoch}: {words}")
        return epoch

    def save(self) -> Path:
        """Write a checkpoint; returns its path."""
        self.progress.seconds = self.seconds
        if self.plan.learner.shards:
            path, self.saving = self._write_shares()
        else:
            path, self.saving = self.processes.decide(self._write_checkpoint)
        self.saved_at = self.processes.now()
        return Path(path)

    def _write_checkpoint(self) -> tuple[str, float]:
        """Write it; returns its path, and the seconds that this took."""
        began = time.perf_counter()
        with self.run.writing():
            path = write_checkpoint(self.run.checkpoints, self.progress, self.plan.learner.tensors())
        return str(path), time.perf_counter() - began

    def _write_shares(self) -> tuple[str, float]:
        """The same, where each process writes what it has."""
        began = self.processes.clock()
        with self.run.writing():
            path = write_shares(self.run.checkpoints, self.progress, self.plan.learner.tensors(), self.processes)
        return str(path), self.processes.clock() - began

    def end(self, finished: bool) -> None:
        """Write a checkpoint, the metrics, the weights and the record, and release the run folder."""
        if self.processes.lost and not self.processes.first:
            return  # it writes nothing, and nobody hears it
        learner = self.plan.learner
        out_of_reach = self.processes.lost and learner.shards  # the other shares: what there is, is the last checkpoint
        try:
            if learner.computing:  # stopped in the middle of a step: as if it had not begun
                learner.discard()
            if not self.unfinished and self.progress.step and not out_of_reach:
                self.save()
            self._write_metrics()  # after the checkpoint, which has the steps of an unfinished epoch itself
            state = "finished" if finished else "stopped"
            update = {"state": state, "seconds": round(self.seconds, 3), "steps": self.progress.step}
            self.record = self.record.model_copy(update=update)
            if out_of_reach:
                self._write_record()
                return
            if finished:
                learner.use_best()
                learner.refit_norms(self.plan.batches, self.progress.step, self.progress_at(self.progress.step))
            model = merged(learner.result())
            self.processes.decide(lambda: self._write_result(model, finished))
        finally:
            if self.lock:
                self.lock.release()

    def _write_result(self, model: Model, finished: bool) -> None:
        """Write the weights with their calibration, and the record."""
        if self.record.stretches and not finished:  # there are whole weights already
            self.run.write_record(self.record)
        elif all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values()):
            names, about = self.plan.class_names, dict(self.plan.about)
            weights = Weights(model, self.plan.preprocess, names, about, self.plan.other_targets)
            if self.record.stretches:
                self.run.clear_results()
            # Not finished before all of it is there: a kill in between leaves a run that goes on to its end.
            self.run.write_weights(weights, self.record.model_copy(update={"state": "stopped"}))
            if finished:
                self.run.finish(self.plan.calibrate(model))
        else:
            self.run.write_record(self.record)

    def _tick(self) -> float:
        """The seconds since the last tick."""
        before, self.ticked_at = self.ticked_at, self.processes.now()
        return self.ticked_at - before

    def _judge(self, epoch: Epoch) -> None:
        """Remember the weights if the epoch is the best so far, and count epochs without a smaller loss."""
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

    def _write_metrics(self, epoch: Epoch | None = None) -> None:
        """Append to metrics.jsonl: a line for each step of the epoch under way, and one for the epoch if it is over."""
        lines: list[dict[str, Any]] = []
        rate = self.plan.learner.optimizers.full_rates[0][0]
        first = self.progress.step - len(self.progress.losses) + 1
        for step, loss in enumerate(self.progress.losses, start=first):
            value = {"loss": loss} if math.isfinite(loss) else {}  # JSON has no word for what is no number
            lines.append({"event": "step", "step": step, "learning_rate": rate * self.rate_share(step), **value})
        if epoch:
            lines.append({"event": "epoch", **vars(epoch)})
        self._append_metrics(lines)
        self.progress.losses, self.progress.figures = [], {}

    def _append_metrics(self, lines: list[dict[str, Any]]) -> None:
        self.progress.metrics = self.processes.decide(lambda: self.run.append_metrics(lines))

    def _write_record(self) -> None:
        self.processes.decide(lambda: self.run.write_record(self.record))


def _mean_of_finite(values: list[float]) -> float:
    """The mean of those that are numbers; steps that were skipped are not."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / max(1, len(finite))


@contextmanager
def _locked(processes: Processes, take: Callable[[], "BaseFileLock"]) -> Iterator["BaseFileLock | None"]:
    """The lock of a run that begins, which the first process takes: it stays when all goes well, and is released when
    it does not."""
    with processes.together():
        lock = take() if processes.first else None
    try:
        yield lock
    except BaseException:
        if lock:
            lock.release()
        raise


def _run_baseline(recipe: Recipe, run: Run, plan: Plan) -> Generator[Progress]:
    """Write baseline.json where the recipe asks for it, unless it is there: a run may have been stopped before."""
    processes = plan.processes
    if not recipe.train.baseline or processes.decide(lambda: run.baseline is not None):
        return
    seconds = recipe.train.seconds
    with processes.together():
        if processes.first:
            run.write_baseline((yield from baseline(plan.pack, BASELINE * seconds if seconds else math.inf)))


def _planned_steps(recipe: Recipe, plan: Plan, started_at: float, pace: Pace) -> int:
    """As many steps as fit into a budget of time; else those of the plan."""
    seconds = recipe.train.seconds
    return plan_steps(seconds, plan.processes.clock() - started_at, pace).planned if seconds else plan.steps


def _begin_stretch(
    recipe: Recipe, plan: Plan, run: Run, record: Record, progress: TrainingState, started_at: float, pace: Pace
) -> Record:
    """Plan more steps of a finished run, and put aside what it was; returns the record of what goes on."""
    before = run.record
    if progress.step != before.steps:
        raise RunError(
            f"{run.folder} has no checkpoint of its end, so it cannot be trained longer. Begin from its weights: "
            f"init.weights={run.folder}"
        )
    has, seconds = before.seconds or 0.0, recipe.train.seconds
    fitting = _planned_steps(recipe, plan, started_at - has, pace)
    planned = progress.step + fitting if seconds else fitting
    if planned <= progress.step or 0 < seconds <= has:
        raise RunError(
            f"{run.folder} has been trained for {before.steps:,} steps in {has:.0f} s already, and train.epochs and "
            "train.budget count from its beginning: ask for more."
        )
    progress.planned = planned
    if 0 < recipe.train.patience <= progress.since:
        progress.since = 0
    plan.processes.decide(lambda: str(run.begin_stretch(recipe)))
    stretch = Stretch(steps=before.steps, seconds=has, weights=before.weights)
    return record.model_copy(update={"stretches": (*(before.stretches or ()), stretch)})


def _divergence(step: int, where: str = "") -> RunError:
    return RunError(
        f"The loss is no longer a number at step {step}{where}: the training has run away. "
        "Lower train.optimizer.learning_rate, raise train.warmup, or set train.clip=1."
    )


def _held(choices: Choices) -> str:
    return "a share of the model" if choices.parallel == "shard" else "the whole model"


def _condition_notes(before: Record, now: Record) -> list[str]:
    """A sentence on what is not as it was before, since then sums may be rounded in another order."""
    differences = {
        f"{name} was {old} and is {new}"
        for name, old, new in (
            ("the processor", before.machine.processor, now.machine.processor),
            ("torch", before.machine.torch, now.machine.torch),
            ("the device", before.choices.device, now.choices.device),
            ("the number of threads", before.choices.threads, now.choices.threads),
            ("the number of processes", before.choices.processes, now.choices.processes),
            ("what each of them holds", _held(before.choices), _held(now.choices)),
        )
        if old != new
    }
    return [f"Not to the bit as without the stop: {', '.join(sorted(differences))}."] if differences else []
