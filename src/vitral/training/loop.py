"""The loop: batches become weights, and what happens on the way is yielded as events.

`events(recipe)` is a generator. Progress bars, trackers, tests and notebooks are listeners to what it yields;
nothing in here prints. Closing it saves what there is.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitral.data.sources import Index
from vitral.data.sources.python import PythonSource, open_python
from vitral.errors import RecipeError
from vitral.plugin import Code, files_of, load_plugins
from vitral.processes import Processes
from vitral.progress import Progress, tap
from vitral.recipe import Recipe
from vitral.run import Choices, Comparison, Run, free_folder
from vitral.training.budget import Forecast
from vitral.training.preparation import Plan, prepare
from vitral.training.session import Epoch, Session, begins_stretch, resolve_run
from vitral.version import __version__
from vitral.weights.pretrained import Pretrained

SAVE_EVERY = 30.0  # seconds between checkpoints


@dataclass(frozen=True)
class Started:
    """The data is there, the model is built, the run folder is made."""

    run: Run
    plan: Plan
    choices: Choices
    steps: int  # in all
    step: int  # the last one before: 0, or where a resumed run goes on
    expected: float  # seconds that it will take from here, by a few steps that were tried out
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """The weights moved once."""

    step: int
    loss: Tensor  # (), on the device
    learning_rate: float
    waited: float  # seconds until the batch was there
    figures: Mapping[str, Tensor] = field(default_factory=dict)  # the objective's, by name; each ()


@dataclass(frozen=True)
class Corrected:
    """The number of steps was brought in line with the time that is left of the budget."""

    step: int
    before: int  # steps in all, by the plan so far
    steps: int  # and from now on


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written: from here an exact resume goes on."""

    step: int
    path: Path


@dataclass(frozen=True)
class Finished:
    """The final weights are in the run folder."""

    run: Run
    seconds: float


@dataclass(frozen=True)
class Scored:
    """The run was measured on its test pictures: by `vitral train`, after Finished. `train` itself sends none."""

    run: Run
    figures: Mapping[str, float]  # accuracy, loss, …: as in evaluation.json


Event = Progress | Started | Step | Epoch | Corrected | Saved | Finished | Scored
Packing = Progress  # the old name
Listener = Callable[[Event], None]


def train(
    recipe: Recipe | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    listeners: Iterable[Listener] = (),
    save_every: float = SAVE_EVERY,
    began: float | None = None,
    source: PythonSource | Index | None = None,
    start: Pretrained | None = None,
    code: Code = (),
    comparison: Comparison | None = None,
    processes: Processes | None = None,
) -> Run:
    """Train as the recipe asks, and return the run.

    `out` is its folder; without it, the next free one in `runs/`. With `resume`, what was begun there goes on, to the
    bit as if it had never stopped, and the recipe may be left out; a finished run is trained longer by a recipe with
    more train.epochs or train.budget. Checkpoints are written every `save_every` seconds.
    A budget counts from `began`, by `time.perf_counter`; without it, from now.

    `source` takes the place of data.source: pictures that a Python program hands over, such as a torch Dataset (see
    `vitral.data.sources.python`), or an Index. `start` are the weights of init.weights, where they are loaded already.
    `code`: Python files that may be run, for a run that goes on and that was begun with them. `comparison`: of the ways
    that were tried before this one was chosen, for the record of a new run. `processes`: all that train together, as
    `vitral.processes.join` gives them where torchrun has started this program; then each of them calls `train`.
    """
    if isinstance(recipe, str | Path):
        raise RecipeError(f"train takes a Recipe: train(find_recipe({str(recipe)!r})), which vitral.recipes has.")
    listeners = list(listeners)
    stream = events(
        recipe,
        out=out,
        resume=resume,
        save_every=save_every,
        began=began,
        source=source,
        start=start,
        code=code,
        comparison=comparison,
        processes=processes,
    )
    try:
        for event in stream:
            for listener in listeners:
                listener(event)
    finally:
        stream.close()
    assert isinstance(event, Finished)
    return event.run


def events(
    recipe: Recipe | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    save_every: float = SAVE_EVERY,
    began: float | None = None,
    source: PythonSource | Index | None = None,
    start: Pretrained | None = None,
    code: Code = (),
    comparison: Comparison | None = None,
    processes: Processes | None = None,
) -> Generator[Event]:
    """Train as `train` does, and yield what happens: Progress, Started, then Steps with an Epoch or Saved now and then,
    then Finished."""
    processes = processes or Processes()
    started_at = processes.tell(time.perf_counter() if began is None else began)
    has_recipe, index = recipe is not None, source if isinstance(source, Index) else None
    if source is not None and not isinstance(source, Index):
        index = open_python(source, recipe.data if recipe else Run.load(out or "").recipe.data)
        recipe = recipe.changed({"data.source": index.source}) if recipe else None
    if processes.many:
        out = _shared_folder(recipe, out, processes)
    with processes.together():
        recipe, earlier = resolve_run(recipe, out, resume)
    processes.agree({"Vitral": __version__, "torch": torch.__version__, **recipe.dotted()})
    if earlier and earlier.record.state == "finished" and not begins_stretch(recipe, earlier):
        yield Finished(earlier, earlier.record.seconds or 0.0)
        return
    # Files that the person names are run: in the recipe, or in `code`. What is stored runs none.
    named = [*files_of(code), *(name.rpartition(":")[0] for name in recipe.plugins if has_recipe)]
    plugins = earlier.plugins(named) if earlier else load_plugins(recipe.plugins)
    preparation = prepare(
        recipe,
        index=index,
        start=start,
        plugins=plugins,
        code=code,
        processes=processes,
        before=earlier.record.choices if earlier else None,
    )
    # A run that goes on has its plan; for a new one it should be worth beginning, by the clock of the first process.
    sooner = ", or data.jpeg=scaled if they are large JPEGs" if recipe.data.jpeg == "full" else ""
    forecast = Forecast(recipe.train, started_at, sooner)
    with processes.together():
        watched = tap(preparation, forecast) if processes.first and not earlier else preparation
        plan = yield from tap(watched, processes.hear)
    processes.agree(plan.identity)
    session = yield from Session.begin(recipe, plan, earlier, out, started_at, comparison)
    learner, progress = plan.learner, session.progress
    finished, threads = False, torch.get_num_threads()
    torch.set_num_threads(session.record.choices.threads)
    try:
        yield Started(
            session.run,
            plan,
            session.record.choices,
            steps=session.steps.total,
            step=progress.step,
            expected=session.expected,
            notes=(*plan.notes, *session.notes),
        )
        if session.epoch_is_over:  # it was stopped just there
            yield session.end_epoch()
        for step, batch in plan.batches.starting_at(progress.step + 1):
            if step > session.steps.total or session.patience_is_over:
                break
            loss, figures = learner.gradients(step, batch, session.progress_at(step))
            session.unfinished = True  # until the step is whole: a kill in between must not be saved
            if session.is_finite(loss, batch):
                learner.update(step, session.rate_share(step))
            session.record_step(step, loss, figures, batch.waited)
            session.unfinished = False
            yield Step(step, loss, learner.optimizers.rate, batch.waited, figures)
            if session.epoch_is_over:
                yield session.end_epoch()
            before = session.steps.total
            if session.correct():
                yield Corrected(step, before, session.steps.total)
            if session.unsaved >= save_every:
                yield Saved(step, session.save())
        yield Progress(0, 1, "finishing")
        finished = True
    finally:
        # Also when the generator is closed or something fails: what was learnt is never lost.
        session.end(finished)
        torch.set_num_threads(threads)
    yield Finished(session.run, session.seconds)


def _shared_folder(recipe: Recipe | None, out: str | Path | None, processes: Processes) -> Path | None:
    """The folder of the run, which all processes must see."""
    source = recipe.data.source if recipe else ""
    if out is None and not source:
        return None
    folder = Path(processes.decide(lambda: str(out or free_folder(source))))
    Run(folder).check_shared(processes)
    return folder
