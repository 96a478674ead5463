"""The loop: batches become weights, and what happens on the way is told as events.

`events(recipe)` is a generator. Progress bars, trackers, tests and notebooks are listeners to what it yields;
nothing in here prints. Closing it saves what there is.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.errors import RunError
from vitral.evaluation.answers import answers
from vitral.recipe import Recipe
from vitral.run import Choices, Run, free_folder
from vitral.training.preparation import Plan, prepare
from vitral.weights.own import Weights


@dataclass(frozen=True)
class Packing:
    """Pictures are decoded; once for all trainings on them."""

    done: int
    total: int
    waiting: bool  # for another process that packs the same pictures


@dataclass(frozen=True)
class Started:
    """The data is there, the model is built, the run folder is made."""

    run: Run
    plan: Plan
    choices: Choices


@dataclass(frozen=True)
class Step:
    """The weights moved once."""

    step: int
    loss: Tensor  # (), still on the device: asking for the number makes the CPU wait
    learning_rate: float
    waited: float  # seconds until the batch was there


@dataclass(frozen=True)
class Epoch:
    """Once through the training pictures. Training figures are of the augmented pictures, as they were learnt from."""

    epoch: int
    step: int
    train_loss: float
    train_accuracy: float
    validation_loss: float | None  # where there are no validation pictures
    validation_accuracy: float | None
    waited: float  # share of the time of its steps that was spent waiting for pictures
    seconds: float  # since the start


@dataclass(frozen=True)
class Finished:
    """The final weights are in the run folder."""

    run: Run
    seconds: float


Event = Packing | Started | Step | Epoch | Finished
Listener = Callable[[Event], None]


def train(recipe: Recipe, *, out: str | Path | None = None, listeners: Iterable[Listener] = ()) -> Run:
    """Train as the recipe asks, and return the run. `out` is its folder; without it, the next free one in `runs/`."""
    listeners = list(listeners)
    happening = events(recipe, out=out)
    try:
        for event in happening:
            for listener in listeners:
                listener(event)
    finally:
        happening.close()
    assert isinstance(event, Finished)
    return event.run


def events(recipe: Recipe, *, out: str | Path | None = None) -> Generator[Event]:
    """Train, and tell: Packing, then Started, then Steps with an Epoch now and then, then Finished."""
    started_at, clock = datetime.now(UTC), time.perf_counter()
    plan = yield from _prepared(recipe)
    model, average, optimizers = plan.model, plan.average, plan.optimizers
    record = plan.record(started_at)
    run = Run.create(out or free_folder(recipe.data.source), recipe, record, plan.pack.rows())
    run.write_left_out(plan.pack.left_out_rows())
    finished, step = False, 0
    progress: list[tuple[Step, Tensor]] = []  # of this epoch: steps, and the share of each batch that was right
    try:
        yield Started(run, plan, record.choices)
        epoch_began = time.perf_counter()
        for step, batch in plan.batches.starting_at(1):
            optimizers.set_share(plan.share(step))
            logits = model(batch.images.to(plan.device))
            loss = cross_entropy(
                logits,
                batch.targets.to(plan.device),
                weight=plan.class_weights,
                label_smoothing=recipe.train.label_smoothing,
            )
            loss.backward()
            optimizers.step()
            optimizers.zero_grad()
            average.update(step)
            happened = Step(step, loss.detach(), optimizers.rate, batch.waited)
            right = logits.detach().argmax(dim=1) == batch.labels.to(plan.device)
            progress.append((happened, right.float().mean()))
            yield happened
            if step % plan.batches.steps_per_epoch == 0:
                waited = sum(happened.waited for happened, _ in progress) / (time.perf_counter() - epoch_began)
                epoch = _epoch(plan, step, progress, waited, time.perf_counter() - clock)
                _write(run, progress, epoch)
                progress = []
                yield epoch
                epoch_began = time.perf_counter()
            if step == plan.steps:
                break
        finished = True
    finally:
        # Also when the generator is closed or something fails: what was learnt is never lost.
        _write(run, progress)
        seconds = time.perf_counter() - clock
        state = "finished" if finished else "stopped"
        record = record.model_copy(update={"state": state, "seconds": round(seconds, 3), "steps": step})
        if all(bool(parameter.isfinite().all()) for parameter in average.model.parameters()):
            run.write_weights(Weights(average.model, plan.preprocess, plan.pack.index.class_names), record)
        else:
            run.write_record(record)
    yield Finished(run, seconds)


def _prepared(recipe: Recipe) -> Generator[Event, None, Plan]:
    """The plan, and on the way there how far the packing is."""
    steps = prepare(recipe)
    while True:
        try:
            told = next(steps)
        except StopIteration as end:
            plan: Plan = end.value
            return plan
        yield Packing(told.done, told.total, told.waiting)


def _epoch(plan: Plan, step: int, progress: list[tuple[Step, Tensor]], waited: float, seconds: float) -> Epoch:
    """The epoch that ends with this step, measured."""
    train_loss = float(torch.stack([happened.loss for happened, _ in progress]).mean())
    validation = None
    if plan.validates:
        validation = answers(plan.average.model, plan.pack, "validation", plan.preprocess)
        plan.model.train()
    if not math.isfinite(train_loss + (validation.loss if validation else 0.0)):
        raise RunError(
            f"The loss is no longer a number at step {step}: the training has run away. "
            "Lower train.optimizer.learning_rate, or raise train.warmup."
        )
    return Epoch(
        epoch=step // plan.batches.steps_per_epoch,
        step=step,
        train_loss=train_loss,
        train_accuracy=float(torch.stack([share for _, share in progress]).mean()),
        validation_loss=validation.loss if validation else None,
        validation_accuracy=validation.accuracy if validation else None,
        waited=waited,
        seconds=seconds,
    )


def _write(run: Run, progress: list[tuple[Step, Tensor]], epoch: Epoch | None = None) -> None:
    """Lines for metrics.jsonl; the losses are asked for here, once an epoch."""
    lines: list[dict[str, Any]] = []
    for happened, _ in progress:
        line = {"event": "step", "step": happened.step, "learning_rate": happened.learning_rate}
        loss = float(happened.loss)
        lines.append(line | ({"loss": loss} if math.isfinite(loss) else {}))  # JSON has no word for what is no number
    if epoch:
        lines.append({"event": "epoch", **{name: value for name, value in asdict(epoch).items() if value is not None}})
    run.append_metrics(lines)
