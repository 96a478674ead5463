"""vitral train RECIPE [key=value …] [--out RUN] [--resume]"""

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitral.cli import STARTED, completion
from vitral.cli.interrupt import ctrl_c
from vitral.cli.terminal import code_option, console, duration, printable, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.progress import TaskID

    from vitral.data.pack import Pack
    from vitral.data.sources import Index
    from vitral.evaluation.evaluate import Evaluation
    from vitral.recipe import Recipe
    from vitral.run import Run
    from vitral.training.loop import Event, Packing, Started, Step
    from vitral.training.session import Epoch
    from vitral.weights.pretrained import Pretrained


@click.command()
@click.argument("recipe", required=False, shell_complete=completion.recipes)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder. Default: the next free one in runs/.")
@click.option("--resume", is_flag=True, help="Go on with what was begun in --out; begin where there is nothing.")
@click.option("--seeds", type=click.IntRange(2), help="Train as many times, into RUN/seed-0 …; tells mean ± sd.")
@click.option("--dry-run", is_flag=True, help="Show what would learn, and at which rate; train nothing.")
@click.option(
    "--save-every", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds between checkpoints."
)
@code_option
def command(
    recipe: str | None,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    seeds: int | None,
    dry_run: bool,
    save_every: float,
    code: tuple[Path, ...],
) -> None:
    """Train a model, measure it on pictures it has never seen, and draw what it learnt.

    RECIPE is a name (`vitral ls`), a TOML file (`vitral show digits > mine.toml`) or a recipe in a Python file
    (mine.py:flowers). Any setting of it can be changed. For a folder of pictures (or a zip, a table, a named set) a
    recipe is chosen:

    \b
        vitral train my-pictures train.budget=10m
        vitral train digits train.epochs=5 train.seed=3 --out runs/x
        vitral train --out runs/x --resume      goes on after a stop, to the bit as if there had been none
    """
    if recipe and "=" in recipe:
        settings, recipe = (recipe, *settings), None
    if recipe is None and (settings or not resume):
        raise click.UsageError("Missing argument 'RECIPE'. Only `--out RUN --resume` goes without.")
    asked, ready = _asked(recipe, settings, out if resume else None) if recipe else (None, {})
    # Loading torch takes a second or two; a mistake in the recipe has been told by now.
    if dry_run:
        if asked is None:
            raise click.UsageError("Missing argument 'RECIPE': --dry-run needs it.")
        _show_groups(asked, **ready)
        return
    if seeds is None:
        _train(asked, out, resume, save_every, STARTED, code=code, **ready)
        return
    if asked is None:
        raise click.UsageError("Missing argument 'RECIPE': with --seeds each run needs it.")
    from vitral.evaluation.seeds import spread_over_seeds
    from vitral.run import free_folder

    folder = out or free_folder(asked.data.source)
    evaluations = []
    for seed in range(asked.train.seed, asked.train.seed + seeds):
        console.print(f"Seed {seed}", style="bold")
        one = asked.changed({"train.seed": seed})
        again = shlex.join([str(recipe), *settings, "--seeds", str(seeds), "--out", str(folder), "--resume"])
        if evaluation := _train(one, folder / f"seed-{seed}", resume, save_every, time.perf_counter(), again, **ready):
            evaluations.append(evaluation)
        console.print()
    if len(evaluations) < 2:
        return
    spread = spread_over_seeds(evaluations)
    if spread.note:
        console.print(spread.note)
    console.print(str(spread), style="bold")


def _show_groups(recipe: "Recipe", source: "Index | None" = None, start: "Pretrained | None" = None) -> None:
    """Which parts of the model learn, and at which rate."""
    from vitral.cli.terminal import print_table, table
    from vitral.training.config import parse_budget
    from vitral.training.preparation import prepared

    plan = prepared(recipe, index=source, start=start, to_train=False)
    console.print(repr(plan.learner.model))
    if recipe.teacher.source != "none":
        asked = recipe.teacher
        console.print(f"Teacher: {asked.source}, {asked.kind}, sees each {asked.sees}, {asked.weight:.0%} of the loss.")
    if plan.start:
        console.print(str(plan.start.loaded or "Vitral's own weights."), soft_wrap=True)
    right = ("numbers", "learning rate", "weight decay")
    listed = table("part", *right, right=right)
    for part in plan.learner.optimizers.groups(plan.learner.layers):
        rate = f"{'' if part.at_once else 'frozen, then '}{part.rate:.2e}" if part.learns else "frozen"
        decay = f"{part.decay:g}" + (f" on {part.decayed:,}" if 0 < part.decayed < part.numbers else "")
        listed.add_row(part.name, f"{part.numbers:,}", rate, decay if part.learns else "")
    print_table(listed)
    timed = parse_budget(recipe.train.budget)[0]
    steps = f"As many steps as fit into {recipe.train.budget}," if timed else f"{plan.steps:,} steps"
    console.print(f"{steps} of {plan.batches.batch_size} pictures. Nothing was trained.")


def _asked(name: str, typed: tuple[str, ...], goes_on: Path | None) -> tuple["Recipe", dict[str, Any]]:
    """A recipe by its name, with the settings that were typed; for pictures, one is chosen, and why is said. Then they
    and the weights are open, and `train` need not open them again."""
    from vitral.data.sources.named import NAMED
    from vitral.recipes import find_recipe, has_pictures
    from vitral.run import Run

    settings = settings_of(typed)
    if not has_pictures(name, settings):
        return find_recipe(name).changed(settings), {}
    if goes_on and Run.is_run(goes_on):  # what was chosen then stands
        return Run.load(goes_on).recipe.changed({"data.source": name, **settings}), {}
    from vitral.recipes.choose import choose

    chosen = choose(name, settings)
    if name in NAMED and Path(name).exists():
        console.print(f"{name} is the named set here; the folder {name} is written ./{name}.")
    for why in chosen.why:
        console.print(printable(why))
    words = printable(shlex.join([name, *typed]))
    console.print(f"To change any of that: vitral show {words} > mine.toml\n", soft_wrap=True)
    return chosen.recipe, {"source": chosen.index, "start": chosen.start}


def _train(
    asked: "Recipe | None",
    out: Path | None,
    resume: bool,
    save_every: float,
    began: float,
    again: str = "",
    code: tuple[Path, ...] = (),
    **ready: Any,
) -> "Evaluation | None":
    """One run, from the first line to the last. Its budget counts from `began`."""
    from vitral.cli.evaluate import tell
    from vitral.evaluation.evaluate import evaluate
    from vitral.training.loop import train

    progress = TrainingDisplay()
    try:
        with _stopping(progress):
            run = train(
                asked,
                out=out,
                resume=resume,
                listeners=[progress],
                save_every=save_every,
                began=began,
                code=code,
                **ready,
            )
        if progress.stop:  # it came after the last step
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        if progress.run:
            console.print(f"What it has learnt so far is in {progress.run.folder}. Go on from here:", soft_wrap=True)
            needs = "".join(f" --code {shlex.quote(file)}" for file in _code_of(progress.run))
            again = again or f"--out {shlex.quote(str(progress.run.folder))} --resume{needs}"
            console.print(f"    vitral train {again}", soft_wrap=True)
        raise
    finally:
        progress.close()
    if not progress.labels:
        console.print("It learnt without labels, so there is no accuracy to measure.")
        return None
    if progress.untested:
        console.print("There are no test pictures, so nobody knows how good it is. Add some, and train again.")
        return None
    with console.status("Measuring on the test pictures, drawing …"):
        evaluation = evaluate(run, source=progress.pack, code=_code_of(run) if asked else code)
    tell(evaluation)
    return evaluation


def _code_of(run: "Run") -> list[str]:
    """The Python files that its recipe names."""
    return list(dict.fromkeys(name.rpartition(":")[0] for name in run.record.code or {}))


@contextmanager
def _stopping(progress: "TrainingDisplay") -> Iterator[None]:
    """Ctrl-C and SIGTERM stop between two steps, where everything can be saved; a second one stops at once."""

    def stop(number: int, frame: object) -> None:
        if progress.stop or progress.run is None:
            ctrl_c(number, frame)
        progress.stop = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _memory() -> str:
    """The most that this process has had so far: a few steps have been tried out by now."""
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB"


class TrainingDisplay:
    """A listener: a line an epoch, and on a terminal a bar below."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.run: Run | None = None
        self.stop = False  # asked for, and done after the next step
        self.untested = False
        self.labels = True  # whether it learns from labels
        self.pack: Pack | None = None  # its pictures, once they are open
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[speed]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __call__(self, event: "Event") -> None:
        from vitral.training.loop import Corrected, Finished, Packing, Started, Step
        from vitral.training.session import Epoch

        match event:
            case Packing():
                self._pack(event)
            case Started():
                self._begin(event)
            case Step(step=step):
                self.bar.update(self.task, completed=step, speed=self._now(event))
                if self.stop:
                    raise KeyboardInterrupt
            case Epoch():
                self._line(event)
            case Corrected(step=step, before=before, steps=steps):
                self.bar.update(self.task, total=steps)
                console.print(f"At step {step:,} of {before:,}, a quarter of the time or more: {steps:,} steps fit.")
            case Finished(seconds=seconds, run=run):
                self.close()
                console.print(f"Trained in {seconds:.1f} s: {run.folder}/model.safetensors")

    def close(self) -> None:
        self.bar.stop()

    def _pack(self, event: "Packing") -> None:
        if not self.bar.tasks:
            self.packing = self.bar.add_task("", total=event.total, speed="")
            self.bar.start()
        what = "another process packs these pictures" if event.waiting else event.doing
        what = what if event.done < event.total else "getting ready"
        self.bar.update(
            self.packing, total=event.total, completed=event.done, description=what, speed=self._speed(self.packing, 1)
        )

    def _begin(self, event: "Started") -> None:
        plan, choices, index = event.plan, event.choices, event.plan.pack.index
        counts = {split: len(plan.pack.of(split)) for split in ("train", "validation", "test")}
        cores = f"{choices.threads} thread{'s' if choices.threads > 1 else ''}"
        self.run, self.untested, self.pack = event.run, not counts["test"], plan.pack
        self.epochs, self.batch_size = event.steps / plan.batches.steps_per_epoch, plan.batches.batch_size
        self.validates = plan.validates
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        tested = {index.class_names[label] for label in index.labels[plan.pack.of("test")]}
        unseen = [name for name in index.class_names if name not in tested]
        for note in (*index.notes, *plan.pack.notes, *event.notes):
            console.print(printable(note))
        if unseen and counts["test"]:
            console.print(f"No test picture shows {printable(', '.join(unseen[:5]))}: nobody will know about that.")
        if event.step:
            console.print(f"Goes on after step {event.step:,}.")
        compiled = ", compiled" if choices.compiled else ""
        console.print(f"Device {choices.device}, {cores}, precision {choices.precision}{compiled}.")
        console.print(
            f"{printable(index.source)}: {counts['train']:,} pictures to learn from, "
            f"{counts['validation']:,} to validate, {counts['test']:,} to test; {len(index.class_names)} classes."
        )
        console.print(repr(plan.learner.model))
        if told := event.run.baseline:
            score = told.validation_accuracy
            known = "" if score is None else f": {score:.1%} of the validation pictures"
            console.print(f"To compare with, {told.method}{known}.")
        epochs = f"{self.epochs:.3g} epoch{'s' if self.epochs > 1 else ''}"
        console.print(f"{event.steps:,} step{'s' if event.steps > 1 else ''} in {epochs}, into {event.run.folder}")
        console.print(f"Expected to take about {duration(event.expected)}, with {_memory()} of memory.\n")
        self.figures, self.labels = plan.learner.objective.figures, plan.learner.objective.needs_labels
        columns = "".join(f"  {name:>8}" for name in self.figures)
        validation = f"   validation loss{columns}" if self.validates else ""
        console.print(f"epoch   train loss{columns}{validation}   seconds   waited", style="bold")
        self.task = self.bar.add_task("training", total=event.steps, completed=event.step, speed="")
        self.bar.start()

    def _line(self, epoch: "Epoch") -> None:
        """A line an epoch; where there are many, about thirty in all."""
        every = -(-int(self.epochs) // 30) or 1
        if epoch.epoch % every and 1 < epoch.epoch < int(self.epochs):
            return
        train, validation = epoch.of("train"), epoch.of("validation")
        console.print(
            f"{epoch.epoch:>5}   {train['loss']:>10.3f}{self._figures(train)}"
            + (f"   {validation['loss']:>15.3f}{self._figures(validation)}" if self.validates else "")
            + f"   {epoch.seconds:>7.1f}   {epoch.waited:>6.1%}"
        )

    def _figures(self, figures: "Mapping[str, float]") -> str:
        """Beside the loss, what the objective tells; an accuracy is a share."""
        return "".join(
            f"  {figures[name]:>{max(8, len(name))}{'.1%' if name == 'accuracy' else '.3f'}}" for name in self.figures
        )

    def _now(self, event: "Step") -> str:
        """What stands behind the bar: how fast, how good, how much of the last second was waiting."""
        speed = self._speed(self.task, self.batch_size)
        rate = self.bar.tasks[-1].speed or 0.0
        waiting = min(1.0, event.waited * rate)
        return f"{speed}  loss {float(event.loss):.3f}  rate {event.learning_rate:.2g}  waiting {waiting:.0%}"

    def _speed(self, task: "TaskID", pictures: int) -> str:
        speed = next(known.speed for known in self.bar.tasks if known.id == task)
        return f"{speed * pictures:,.0f} pictures/s" if speed else ""
