"""vitral train RECIPE [key=value …] [--out RUN] [--resume]"""

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitral.cli import STARTED_AT, completion
from vitral.cli.interrupt import ctrl_c
from vitral.cli.terminal import code_option, console, duration, printable, settings_of
from vitral.errors import RecipeError

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
    full_recipe, inputs = _load_recipe(recipe, settings, out if resume else None, code) if recipe else (None, {})
    # Loading torch takes a second or two; an error in the recipe has been printed by now.
    if dry_run:
        if full_recipe is None:
            raise click.UsageError("Missing argument 'RECIPE': --dry-run needs it.")
        _show_groups(full_recipe, code=code, **inputs)
    elif seeds is None:
        _train(full_recipe, out, resume, save_every, STARTED_AT, code=code, **inputs)
    elif full_recipe is None:
        raise click.UsageError("Missing argument 'RECIPE': with --seeds each run needs it.")
    else:
        words = (str(recipe), *settings, "--seeds", str(seeds))
        _train_seeds(full_recipe, seeds, out, resume, save_every, words, code=code, **inputs)


def _load_recipe(
    name: str, words: tuple[str, ...], earlier: Path | None, code: tuple[Path, ...]
) -> tuple["Recipe", dict[str, Any]]:
    """The recipe of a name, with the settings among `words`; for pictures one is chosen, and the reasons are printed.

    The second value are arguments for `train`: pictures and weights that are open by now. Where there is an `earlier`
    run that goes on, what was chosen then stands.
    """
    from vitral.data.sources.named import NAMED
    from vitral.recipes import find_recipe, has_pictures
    from vitral.run import Run

    settings = settings_of(words)
    if Run.is_run(name):
        raise RecipeError(
            f"{name} is a run. To go on with it: vitral train --out {name} --resume. To begin from its weights: vitral "
            f"train FOLDER init.weights={name}"
        )
    if not has_pictures(name, settings):
        return find_recipe(name).changed(settings), {}
    if earlier and Run.is_run(earlier):
        run = Run.load(earlier)
        run.plugins(code)  # what it names is not typed by this person: without --code a sentence
        return run.recipe.changed({"data.source": name, **settings}), {}
    from vitral.recipes.choose import choose

    choice = choose(name, settings, code)
    if name in NAMED and Path(name).exists():
        console.print(f"{name} is the named set here; the folder {name} is written ./{name}.")
    for reason in choice.why:
        console.print(printable(reason))
    typed_words = printable(shlex.join([name, *words]))
    console.print(f"To change any of that: vitral show {typed_words} > mine.toml\n", soft_wrap=True)
    return choice.recipe, {"source": choice.index, "start": choice.start}


def _train_seeds(
    recipe: "Recipe",
    seeds: int,
    out: Path | None,
    resume: bool,
    save_every: float,
    words: tuple[str, ...],
    **inputs: Any,
) -> None:
    """As many runs, each with the next seed, into a folder; then mean ± sd. `words` are those of the command."""
    from vitral.evaluation.seeds import spread_over_seeds
    from vitral.run import free_folder

    folder = out or free_folder(recipe.data.source)
    again = shlex.join([*words, "--out", str(folder), "--resume"])
    evaluations = []
    for seed in range(recipe.train.seed, recipe.train.seed + seeds):
        console.print(f"Seed {seed}", style="bold")
        seeded, run_folder = recipe.changed({"train.seed": seed}), folder / f"seed-{seed}"
        if evaluation := _train(seeded, run_folder, resume, save_every, time.perf_counter(), again, **inputs):
            evaluations.append(evaluation)
        console.print()
    if len(evaluations) < 2:
        return
    spread = spread_over_seeds(evaluations)
    if spread.note:
        console.print(spread.note)
    console.print(str(spread), style="bold")


def _show_groups(
    recipe: "Recipe",
    source: "Index | None" = None,
    start: "Pretrained | None" = None,
    code: tuple[Path, ...] = (),
) -> None:
    """Print which parts of the model learn, and at which rate."""
    from vitral.cli.terminal import print_table, table
    from vitral.training.config import parse_budget
    from vitral.training.preparation import prepared

    plan = prepared(recipe, index=source, start=start, code=code, to_train=False)
    console.print(repr(plan.learner.model))
    if recipe.teacher.source != "none":
        teacher = recipe.teacher
        console.print(
            f"Teacher: {teacher.source}, {teacher.kind}, sees each {teacher.sees}, {teacher.weight:.0%} of the loss."
        )
    if plan.start:
        console.print(str(plan.start.loaded or "Vitral's own weights."), soft_wrap=True)
    right = ("numbers", "learning rate", "weight decay")
    listing = table("part", *right, right=right)
    for part in plan.learner.optimizers.groups(plan.learner.layers):
        rate = f"{'' if part.at_once else 'frozen, then '}{part.rate:.2e}" if part.learns else "frozen"
        decay = f"{part.decay:g}" + (f" on {part.decayed:,}" if 0 < part.decayed < part.numbers else "")
        listing.add_row(part.name, f"{part.numbers:,}", rate, decay if part.learns else "")
    print_table(listing)
    seconds = parse_budget(recipe.train.budget)[0]
    steps = f"As many steps as fit into {recipe.train.budget}," if seconds else f"{plan.steps:,} steps"
    console.print(f"{steps} of {plan.batches.batch_size} pictures. Nothing was trained.")


def _train(
    recipe: "Recipe | None",
    out: Path | None,
    resume: bool,
    save_every: float,
    started_at: float,
    again: str = "",
    code: tuple[Path, ...] = (),
    **inputs: Any,
) -> "Evaluation | None":
    """One run, from the first line to the last; None where it cannot be evaluated.

    Its budget counts from `started_at`. `again` are the words of the command that goes on with it after a stop; else
    they are those for this run alone.
    """
    from vitral.cli.evaluate import print_evaluation
    from vitral.evaluation.evaluate import evaluate
    from vitral.training.loop import train

    display = TrainingDisplay()
    try:
        with _stopping(display):
            run = train(
                recipe,
                out=out,
                resume=resume,
                listeners=[display],
                save_every=save_every,
                began=started_at,
                code=code,
                **inputs,
            )
        if display.stop:  # it came after the last step
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        if display.run:
            _print_resume(display.run, again)
        raise
    finally:
        display.close()
    if not display.labels:
        console.print("It learnt without labels, so there is no accuracy to measure.")
        return None
    if display.untested:
        console.print("There are no test pictures, so nobody knows how good it is. Add some, and train again.")
        return None
    with console.status("Measuring on the test pictures, drawing …"):
        evaluation = evaluate(run, source=display.pack, code=[*_code_of(recipe), *code])
    print_evaluation(evaluation)
    return evaluation


def _print_resume(run: "Run", again: str) -> None:
    """Print where a stopped run is, and the command that goes on with it."""
    console.print(f"What it has learnt so far is in {run.folder}. Go on from here:", soft_wrap=True)
    needs = "".join(f" --code {shlex.quote(file)}" for file in _code_of(run.recipe))
    again = again or f"--out {shlex.quote(str(run.folder))} --resume{needs}"
    console.print(f"    vitral train {again}", soft_wrap=True)


def _code_of(recipe: "Recipe | None") -> list[str]:
    """The Python files that a recipe names."""
    return list(dict.fromkeys(name.rpartition(":")[0] for name in recipe.plugins)) if recipe else []


@contextmanager
def _stopping(display: "TrainingDisplay") -> Iterator[None]:
    """Ctrl-C and SIGTERM stop between two steps, where everything can be saved; a second one stops at once."""

    def stop(number: int, frame: object) -> None:
        if display.stop or display.run is None:
            ctrl_c(number, frame)
        display.stop = True

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
        self.stop = False  # whether to stop after the next step
        self.untested = False  # whether there are no test pictures
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
                self._show_packing(event)
            case Started():
                self._begin(event)
            case Step(step=step):
                self.bar.update(self.task, completed=step, speed=self._status(event))
                if self.stop:
                    raise KeyboardInterrupt
            case Epoch():
                self._print_epoch(event)
            case Corrected(step=step, before=before, steps=steps):
                self.bar.update(self.task, total=steps)
                console.print(f"At step {step:,} of {before:,}, a quarter of the time or more: {steps:,} steps fit.")
            case Finished(seconds=seconds, run=run):
                self.close()
                console.print(f"Trained in {seconds:.1f} s: {run.folder}/model.safetensors")

    def close(self) -> None:
        self.bar.stop()

    def _show_packing(self, event: "Packing") -> None:
        """Move the bar of the work before the first step."""
        if not self.bar.tasks:
            self.packing = self.bar.add_task("", total=event.total, speed="")
            self.bar.start()
        work = "another process packs these pictures" if event.waiting else event.doing
        work = work if event.done < event.total else "getting ready"
        self.bar.update(
            self.packing, total=event.total, completed=event.done, description=work, speed=self._speed(self.packing, 1)
        )

    def _begin(self, event: "Started") -> None:
        """Print what is going to be trained, and start the bar."""
        plan, objective = event.plan, event.plan.learner.objective
        self.run, self.untested, self.pack = event.run, not len(plan.pack.of("test")), plan.pack
        self.epochs, self.batch_size = event.steps / plan.batches.steps_per_epoch, plan.batches.batch_size
        self.validates = plan.validates
        self.figures, self.labels = objective.figures, objective.needs_labels
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        self._print_notes(event)
        self._print_setup(event)
        self._print_header()
        self.task = self.bar.add_task("training", total=event.steps, completed=event.step, speed="")
        self.bar.start()

    def _print_notes(self, event: "Started") -> None:
        """Print what is worth knowing of the pictures and of a run that goes on."""
        pack, index = event.plan.pack, event.plan.pack.index
        for note in (*index.notes, *pack.notes, *event.notes):
            console.print(printable(note))
        in_test = {index.class_names[label] for label in index.labels[pack.of("test")]}
        missing = [name for name in index.class_names if name not in in_test]
        if missing and not self.untested:
            console.print(f"No test picture shows {printable(', '.join(missing[:5]))}: nobody will know about that.")
        if event.step:
            console.print(f"Goes on after step {event.step:,}.")

    def _print_setup(self, event: "Started") -> None:
        """Print the device, the pictures, the model, a baseline, the number of steps and the time they will take."""
        plan, choices, index = event.plan, event.choices, event.plan.pack.index
        cores = f"{choices.threads} thread{'s' if choices.threads > 1 else ''}"
        compiled = ", compiled" if choices.compiled else ""
        console.print(f"Device {choices.device}, {cores}, precision {choices.precision}{compiled}.")
        train, validation, test = (len(plan.pack.of(split)) for split in ("train", "validation", "test"))
        console.print(
            f"{printable(index.source)}: {train:,} pictures to learn from, "
            f"{validation:,} to validate, {test:,} to test; {len(index.class_names)} classes."
        )
        console.print(repr(plan.learner.model))
        if baseline := event.run.baseline:
            accuracy = baseline.validation_accuracy
            score = "" if accuracy is None else f": {accuracy:.1%} of the validation pictures"
            console.print(f"To compare with, {baseline.method}{score}.")
        epochs = f"{self.epochs:.3g} epoch{'s' if self.epochs > 1 else ''}"
        console.print(f"{event.steps:,} step{'s' if event.steps > 1 else ''} in {epochs}, into {event.run.folder}")
        console.print(f"Expected to take about {duration(event.expected)}, with {_memory()} of memory.\n")

    def _print_header(self) -> None:
        """Print the names of the columns of `_print_epoch`."""
        columns = "".join(f"  {name:>8}" for name in self.figures)
        validation = f"   validation loss{columns}" if self.validates else ""
        console.print(f"epoch   train loss{columns}{validation}   seconds   waited", style="bold")

    def _print_epoch(self, epoch: "Epoch") -> None:
        """Print a line an epoch; where there are many, about thirty in all."""
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
        """The columns beside the loss: the objective's figures; an accuracy is a share."""
        return "".join(
            f"  {figures[name]:>{max(8, len(name))}{'.1%' if name == 'accuracy' else '.3f'}}" for name in self.figures
        )

    def _status(self, event: "Step") -> str:
        """The text behind the bar: how fast, how good, how much of the last second was waiting."""
        speed = self._speed(self.task, self.batch_size)
        rate = self.bar.tasks[-1].speed or 0.0
        waiting = min(1.0, event.waited * rate)
        return f"{speed}  loss {float(event.loss):.3f}  rate {event.learning_rate:.2g}  waiting {waiting:.0%}"

    def _speed(self, task: "TaskID", pictures: int) -> str:
        """Pictures a second, of a task with so many pictures a step; empty where that is not known yet."""
        speed = next(known.speed for known in self.bar.tasks if known.id == task)
        return f"{speed * pictures:,.0f} pictures/s" if speed else ""
