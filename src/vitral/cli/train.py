"""vitral train RECIPE [key=value …] [--out RUN] [--resume]"""

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitral.cli import STARTED_AT, completion
from vitral.cli.comparison import compare_ways, told_ways, words_of
from vitral.cli.interrupt import ctrl_c
from vitral.cli.terminal import (
    EVERY,
    ProgressBar,
    ProgressLog,
    code_option,
    console,
    duration,
    settings_of,
    with_settings,
)
from vitral.errors import RecipeError, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.progress import TaskID

    from vitral.data.pack import Pack
    from vitral.data.sources import Index
    from vitral.evaluation.evaluate import Evaluation
    from vitral.processes import Processes
    from vitral.progress import Progress
    from vitral.recipe import Recipe
    from vitral.run import Baseline, Run
    from vitral.training.forecast import TrainingForecast
    from vitral.training.listeners import SafeListener
    from vitral.training.loop import Event, Started, Step
    from vitral.training.memory import MemoryForecast
    from vitral.training.session import Epoch
    from vitral.weights.pretrained import Pretrained

WORTH_TELLING = 0.05  # of the steps: a correction of less is made without a word

save_every_option = click.option(
    "--save-every", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds between checkpoints."
)
listener_option = click.option(
    "--listener",
    "listeners",
    multiple=True,
    help="Who hears of each step: tensorboard, wandb, mlflow, or a function in a Python file, mine.py:log.",
)


@click.command()
@click.argument("recipe", required=False, shell_complete=completion.recipes)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The run's folder. Default: runs/ and the name of the recipe or the pictures, the next that is free.",
)
@click.option("--resume", is_flag=True, help="Go on with what was begun in --out; begin where there is nothing.")
@click.option("--seeds", type=click.IntRange(2), help="Train as many times, into RUN/seed-0 …; tells mean ± sd.")
@click.option("--dry-run", is_flag=True, help="Show what would learn, and at which rate; train nothing.")
@save_every_option
@listener_option
@code_option
def command(
    recipe: str | None,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    seeds: int | None,
    dry_run: bool,
    save_every: float,
    listeners: tuple[str, ...],
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
        vitral train --out runs/x --resume train.epochs=10      trains a finished run longer, to 10 epochs in all
    """
    from vitral.processes import join
    from vitral.recipe import Recipe
    from vitral.recipes import RECIPES
    from vitral.run import Run, free_folder

    processes = join()
    processes.agree({"the recipe": recipe, "the settings": settings, "--out": str(out), "--resume": resume})
    if recipe and "=" in recipe:
        settings, recipe = (recipe, *settings), None
    if resume and recipe and out is None and Run.is_run(recipe):  # --resume RUN
        out, recipe = Path(recipe), None
    if recipe is None and (not resume or (settings and out is None)):
        raise click.UsageError("Missing argument 'RECIPE'. Only `--out RUN --resume` goes without.")
    if out and not resume and seeds is None and not dry_run:
        Run(out).check_free()  # before anything is tried
    full_recipe, inputs = None, dict[str, Any]()
    if recipe and recipe in RECIPES and out is None and not resume:
        # Of a recipe its name: several have the same pictures.
        out = Path(processes.decide(lambda: str(free_folder(recipe))))
    with processes.together():
        if not processes.first:
            pass  # what the first has chosen is told
        elif recipe:
            full_recipe, inputs = _load_recipe(recipe, settings, out if resume else None, code, compares=not dry_run)
        elif settings and out:
            full_recipe = change_run(out, settings, code)
    if processes.many and (table := processes.tell(full_recipe.write() if full_recipe else None)):
        full_recipe = Recipe.read(table)
    # Loading torch takes a second or two; an error in the recipe has been printed by now.
    if dry_run:
        if full_recipe is None:
            raise click.UsageError("Missing argument 'RECIPE': --dry-run needs it.")
        if processes.first:
            show_groups(full_recipe, code=code, **inputs)
    elif seeds is None:
        train_run(full_recipe, out, resume, save_every, STARTED_AT, processes, code=code, listeners=listeners, **inputs)
    elif full_recipe is None:
        raise click.UsageError("Missing argument 'RECIPE': with --seeds each run needs it.")
    else:
        words = (str(recipe), *settings, "--seeds", str(seeds), *_options("--listener", listeners))
        _train_seeds(
            full_recipe, seeds, out, resume, save_every, words, processes, code=code, listeners=listeners, **inputs
        )


def _load_recipe(
    name: str, words: tuple[str, ...], earlier: Path | None, code: tuple[Path, ...], compares: bool
) -> tuple["Recipe", dict[str, Any]]:
    """The recipe of a name, with the settings among `words`; for pictures one is chosen, and the reasons are printed.

    The second value are arguments for `train`: pictures and weights that are open by now. Where there is an `earlier`
    run that goes on, what was chosen then stands. Where there are several ways, they are tried, or told.
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
        return with_settings(find_recipe(name), settings), {}
    if earlier and Run.is_run(earlier):
        return change_run(earlier, (f"data.source={name}", *words), code), {}
    from vitral.recipes.choose import choose

    with ProgressBar() as tell:
        choice = choose(name, settings, code, tell)
    if name in NAMED and Path(name).exists():
        console.print(f"{name} is the named set here; the folder {name} is written ./{name}.")
    for note in choice.index.notes:  # first of all: what the pictures were taken for
        console.print(printable(note))
    recipe, why, inputs = choice.recipe, choice.why, dict[str, Any](start=choice.start)
    if choice.compared_with != "none" and not compares:
        console.print(f"{told_ways(choice.compared_with, choice.budget)} The new model would be:", soft_wrap=True)
    elif choice.compared_with != "none":
        way, comparison = compare_ways(choice, settings, STARTED_AT, code)
        recipe, why, words = way.recipe, way.why, words_of(way.settings)
        inputs = {"start": way.start, "comparison": comparison}
    for reason in why:
        console.print(printable(reason))
    typed_words = printable(shlex.join([name, *words]))
    console.print(f"To change any of that: vitral show {typed_words} > mine.toml\n", soft_wrap=True)
    return recipe, {"source": replace(choice.index, notes=()), **inputs}


def change_run(folder: Path, words: tuple[str, ...], code: tuple[Path, ...]) -> "Recipe":
    """The recipe of a run that goes on, with the settings among `words`."""
    from vitral.run import Run

    run = Run.load(folder)
    run.plugins(code)  # what it names is not typed by this person: without --code a sentence
    return run.recipe.changed(settings_of(words))


def _train_seeds(
    recipe: "Recipe",
    seeds: int,
    out: Path | None,
    resume: bool,
    save_every: float,
    words: tuple[str, ...],
    processes: "Processes",
    **inputs: Any,
) -> None:
    """As many runs, each with the next seed, into a folder; then mean ± sd. `words` are those of the command."""
    from vitral.evaluation.seeds import spread_over_seeds
    from vitral.run import free_folder

    folder = Path(processes.decide(lambda: str(out or free_folder(recipe.data.source))))
    again = shlex.join(["vitral", "train", *words, "--out", str(folder), "--resume"])
    evaluations = []
    for seed in range(recipe.train.seed, recipe.train.seed + seeds):
        console.print(f"Seed {seed}", style="bold")
        seeded, run_folder = recipe.changed({"train.seed": seed}), folder / f"seed-{seed}"
        began = time.perf_counter()
        if evaluation := train_run(seeded, run_folder, resume, save_every, began, processes, again, **inputs):
            evaluations.append(evaluation)
        console.print()
    if len(evaluations) < 2:
        return
    spreads = spread_over_seeds(evaluations)
    if spreads[0].note:
        console.print(spreads[0].note)
    for spread in spreads:
        console.print(printable(str(spread)), style="bold", soft_wrap=True)


def show_groups(
    recipe: "Recipe",
    source: "Index | None" = None,
    start: "Pretrained | None" = None,
    code: tuple[Path, ...] = (),
) -> None:
    """Print which parts of the model learn, and at which rate."""
    from vitral.cli.terminal import print_table, table
    from vitral.training.forecast import forecast_training
    from vitral.training.memory import forecast_memory

    forecast = forecast_training(recipe, source, start, code)
    plan = forecast.plan
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
    if forecast.packing.seconds:
        console.print(forecast.packing.words)
    # Somebody's own code may want to see numbers, and a step without labels is another than the one that is tried.
    if not recipe.plugins and plan.learner.objective.needs_labels:
        console.print(_memory_words(forecast_memory(recipe, plan.learner.model.config)))
    console.print(f"{_steps_words(forecast, recipe)} Nothing was trained.")


def _steps_words(forecast: "TrainingForecast", recipe: "Recipe") -> str:
    """A sentence on how many steps there will be, and how long they take."""
    from vitral.training.config import parse_budget

    of = f"of {forecast.plan.batches.batch_size} pictures"
    if forecast.step is None:
        fits = parse_budget(recipe.train.budget)[0] > 0
        return f"As many steps as fit into {recipe.train.budget}, {of}." if fits else f"{forecast.steps:,} steps {of}."
    epochs = f"{forecast.epochs:.3g} epoch{'' if forecast.epochs == 1 else 's'}"
    return (
        f"{forecast.steps:,} steps {of}, {epochs}, in about {duration(forecast.steps * forecast.step)}: a step takes "
        f"{forecast.step:.2g} s."
    )


def _memory_words(forecast: "MemoryForecast") -> str:
    """A sentence on what a step takes.

    >>> from vitral.training.memory import MemoryForecast
    >>> _memory_words(MemoryForecast(2**30, 2**30, 2**31, 2**32, 7 * 2**30))
    'A step takes up to 7.00 GiB: weights 1.00, optimizer 2.00, gradients 1.00, kept for the way back 4.00.'
    """
    parts = {
        "weights": forecast.weights,
        "optimizer": forecast.optimizer,
        "gradients": forecast.gradients,
        "kept for the way back": forecast.activations,
    }
    words = ", ".join(f"{name} {count / 2**30:.2f}" for name, count in parts.items())
    return f"A step takes up to {forecast.most / 2**30:.2f} GiB: {words}."


def train_run(
    recipe: "Recipe | None",
    out: Path | None,
    resume: bool,
    save_every: float,
    started_at: float,
    processes: "Processes",
    again: str = "",
    code: tuple[Path, ...] = (),
    listeners: tuple[str, ...] = (),
    **inputs: Any,
) -> "Evaluation | None":
    """One run, from the first line to the last; None where it cannot be evaluated.

    Its budget counts from `started_at`. `again` are the words of the command that goes on with it after a stop; else
    they are those for this run alone. `listeners` are names: of several `processes` the first one tells them.
    """
    from vitral.training.listeners import SafeListener

    listeners = listeners if processes.first else ()
    safe_listeners = [SafeListener(name, lambda sentence: console.print(printable(sentence))) for name in listeners]
    try:
        return _train_and_evaluate(
            recipe, out, resume, save_every, started_at, processes, again, code, safe_listeners, **inputs
        )
    finally:
        for listener in safe_listeners:
            listener.close()


def _train_and_evaluate(
    recipe: "Recipe | None",
    out: Path | None,
    resume: bool,
    save_every: float,
    started_at: float,
    processes: "Processes",
    again: str,
    code: tuple[Path, ...],
    safe_listeners: "list[SafeListener]",
    **inputs: Any,
) -> "Evaluation | None":
    from vitral.cli.evaluate import print_evaluation
    from vitral.evaluation.evaluate import evaluate
    from vitral.evaluation.report.pretraining import write_pretraining_report
    from vitral.targets import is_one_class
    from vitral.training.config import WITHOUT_LABELS
    from vitral.training.loop import Scored, train
    from vitral.training.moments import Moments

    display = TrainingDisplay(processes)
    moments = [Moments()] if processes.first else []
    try:
        with _stopping(display):
            run = train(
                recipe,
                out=out,
                resume=resume,
                listeners=[*safe_listeners, *moments, display],
                save_every=save_every,
                began=started_at,
                code=code,
                processes=processes,
                **inputs,
            )
        if any(processes.gather(processes.stop_asked)):  # it came after the last step
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        if display.run:
            _print_resume(display.run, again, _options("--listener", [listener.name for listener in safe_listeners]))
        raise
    finally:
        display.close()
    ours = run.recipe.train.objective.kind in WITHOUT_LABELS  # one that was finished before was not displayed
    if ours or not display.labels:
        console.print("It learnt without labels, so there is no accuracy to measure.")
        if (ours or display.watched) and processes.first:
            console.print(f"Open {write_pretraining_report(run)}", soft_wrap=True)
            _print_what_for(run)
        return None
    if display.untested:
        console.print("There are no test pictures, so nobody knows how good it is. Add some, and train again.")
        return None
    seconds = run.recipe.train.seconds_after(run.record.seconds or 0.0)
    with ProgressBar() as tell:
        evaluation = evaluate(
            run,
            source=display.pack,
            code=[*_code_of(recipe), *code],
            seconds=seconds,
            tell=tell,
            processes=processes,
        )
    for listener in safe_listeners if display.run else ():  # else it was finished before, and nobody has heard of it
        figures = {name: figure.value for name, figure in evaluation.figures.items()}
        if is_one_class(evaluation.targets):
            figures["loss"] = evaluation.loss  # as in training: without the temperature
        listener(Scored(run, figures))
    print_evaluation(evaluation)
    return evaluation


def _print_what_for(run: "Run") -> None:
    """Print what can be done with a model that has learnt without labels."""
    place = printable(shlex.quote(str(run.folder)))
    console.print(f"What it is good for, by pictures with labels: vitral probe {place} LABELLED", soft_wrap=True)
    console.print(f"To begin from it: vitral train LABELLED init.weights={place} init.mode=full", soft_wrap=True)


def _print_resume(run: "Run", again: str, listening: list[str]) -> None:
    """Print where a stopped run is, and the command that goes on with it."""
    console.print(f"What it has learnt so far is in {run.folder}. Go on from here:", soft_wrap=True)
    needs = shlex.join(_options("--code", _code_of(run.recipe)) + listening)
    again = again or f"vitral train --out {shlex.quote(str(run.folder))} --resume {needs}".rstrip()
    console.print(f"    {again}", soft_wrap=True)


def _options(option: str, values: "Iterable[str]") -> list[str]:
    """An option once for each value, as it is typed."""
    return [word for value in values for word in (option, value)]


def _code_of(recipe: "Recipe | None") -> list[str]:
    """The Python files that a recipe names."""
    return list(dict.fromkeys(name.rpartition(":")[0] for name in recipe.plugins)) if recipe else []


@contextmanager
def _stopping(display: "TrainingDisplay") -> Iterator[None]:
    """Ctrl-C and SIGTERM stop between two steps, where everything can be saved; a second one stops at once. Several
    processes stop after the same step, and a second one changes nothing: launchers send more than one."""
    processes = display.processes

    def stop(number: int, frame: object) -> None:
        if display.run is None or (processes.stop_asked and not processes.many):
            ctrl_c(number, frame)
        processes.stop_asked = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_share(figure: str) -> bool:
    """Whether a figure is shown in percent: of several tasks it stands behind the name of its task."""
    return figure.rpartition("_")[2] in ("accuracy", "map")


def _memory() -> str:
    """The most that this process has had so far: a few steps have been tried out by now."""
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB"


class TrainingDisplay:
    """A listener: a line an epoch, and on a terminal a bar below."""

    task: "TaskID"  # of the bar, and the steps in all: from the event Started on
    steps: int

    def __init__(self, processes: "Processes") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.processes = processes
        self.run: Run | None = None
        self.untested = False  # whether there are no test pictures
        self.labels = True  # whether it learns from labels
        self.watched: tuple[str, ...] = ()  # figures that are told of validation pictures alone
        self.pack: Pack | None = None  # its pictures, once they are open
        self.before = ProgressBar()  # the first step
        self.log = None if console.is_terminal else ProgressLog()
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
        from vitral.progress import Progress
        from vitral.training.loop import Corrected, Finished, Started, Step
        from vitral.training.session import Epoch

        match event:
            case Progress() if self.run is None:
                self.before(event)
            case Progress(doing=doing):
                self.bar.update(self.task, description=doing)
                self._tell_log(event)
            case Started():
                self._begin(event)
            case Step(step=step):
                self.bar.update(self.task, completed=step, speed=self._status(event))
                self._tell_log(Progress(step, self.steps, "training"))
                if self.processes.stopping:
                    raise KeyboardInterrupt
            case Epoch():
                self._print_epoch(event)
                if self.log:
                    self.log.wait(EVERY)
            case Corrected(step=step, before=before, steps=steps):
                self.steps = steps
                self.bar.update(self.task, total=steps)
                if abs(steps - before) > WORTH_TELLING * before:
                    console.print(f"At step {step:,} of {before:,}: by now {steps:,} steps fit into the time.")
            case Finished(seconds=seconds, run=run):
                self.close()
                console.print(f"Trained in {seconds:.1f} s: {run.folder}/model.safetensors")

    def close(self) -> None:
        self.before.stop()
        self.bar.stop()
        if self.log:
            self.log.stop()

    def _tell_log(self, progress: "Progress") -> None:
        if self.log:
            self.log(progress)

    def _begin(self, event: "Started") -> None:
        """Print what is going to be trained, and start the bar."""
        plan, objective = event.plan, event.plan.learner.objective
        self.run, self.untested, self.pack = event.run, not len(plan.pack.of("test")), plan.pack
        self.epochs, self.batch_size = event.steps / plan.batches.steps_per_epoch, plan.batches.batch_size
        measured = {"train": True, "validation": plan.validates, "test": plan.test_curve}
        self.splits: list[Any] = [split for split, is_measured in measured.items() if is_measured]
        self.grouped = len(self.splits) > 2  # a line of names above, so that all columns fit into 80 letters
        self.figures, self.watched, self.labels = objective.figures, objective.watched, objective.needs_labels
        self.steps = event.steps
        self.before.stop()
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
        tested = index.counts(pack.of("test"))
        missing = [name for name, count in zip(index.class_names, tested, strict=True) if count == 0]
        if missing and not self.untested:
            console.print(f"No test picture shows {printable(', '.join(missing[:5]))}: nobody will know about that.")
        if event.step:
            console.print(f"Goes on after step {event.step:,}.")

    def _print_setup(self, event: "Started") -> None:
        """Print the device, the pictures, the model, a baseline, the number of steps and the time they will take."""
        plan, choices, index = event.plan, event.choices, event.plan.pack.index
        cores = f"{choices.threads} thread{'s' if choices.threads > 1 else ''}"
        compiled = ", compiled" if choices.compiled else ""
        if self.processes.many:
            share = " and a share of the model" if choices.parallel == "shard" else ""
            cores = f"{self.processes} with {cores}{share} each"
        console.print(f"Device {choices.device}, {cores}, precision {choices.precision}{compiled}.")
        train, validation, test = (len(plan.pack.of(split)) for split in ("train", "validation", "test"))
        learnt = _learnt(index) if self.labels else "no label is looked at"
        console.print(
            f"{printable(index.source)}: {train:,} pictures to learn from, "
            f"{validation:,} to validate, {test:,} to test; {learnt}."
        )
        console.print(repr(plan.learner.model))
        if baseline := event.run.baseline:
            for line in _to_compare(baseline):
                console.print(printable(line))
        epochs = f"{self.epochs:.3g} epoch{'s' if self.epochs > 1 else ''}"
        console.print(f"{event.steps:,} step{'s' if event.steps > 1 else ''} in {epochs}, into {event.run.folder}")
        recipe = event.run.recipe.train
        after = f", and then up to {duration(recipe.seconds_after(recipe.seconds))} to measure it"
        expected = f"{duration(event.expected)}{after if recipe.seconds else ''}"
        console.print(f"Expected to take about {expected}, with {_memory()} of memory.")
        if plan.test_curve:
            console.print(f"The {test:,} test pictures are measured after every epoch: a curve that chooses nothing.")
        console.print()

    def _print_header(self) -> None:
        """Print the names of the columns of `_print_epoch`."""
        widths = {split: self._widths(split) for split in self.splits}
        if self.grouped:
            groups = (f" {split} ".center(sum(one.values()) + 2 * (len(one) - 1), "─") for split, one in widths.items())
            console.print(" " * 5 + "".join(f"   {group}" for group in groups), style="bold")
        columns = "".join(" " + "".join(f"  {name:>{width}}" for name, width in one.items()) for one in widths.values())
        console.print(f"epoch{columns}   seconds   waited", style="bold")

    def _print_epoch(self, epoch: "Epoch") -> None:
        """Print a line an epoch; where there are many, about thirty in all."""
        every = -(-int(self.epochs) // 30) or 1
        if epoch.epoch % every and 1 < epoch.epoch < int(self.epochs):
            return
        columns = "".join(" " + self._columns(split, epoch.of(split)) for split in self.splits)
        console.print(f"{epoch.epoch:>5}{columns}   {epoch.seconds:>7.1f}   {epoch.waited:>6.1%}")

    def _widths(self, split: str) -> dict[str, int]:
        """The columns of a split, and how wide they are: its loss, then the objective's figures."""
        loss = {"loss": 5} if self.grouped else {f"{split} loss": len(f"{split} loss")}
        figures = (*self.figures, *self.watched) if split == "validation" else self.figures
        return loss | {name: max(8, len(name)) for name in figures}

    def _columns(self, split: str, figures: "Mapping[str, float]") -> str:
        """The values in these columns: an accuracy is a share, and what is no number a dash."""
        names = [(name.rpartition(" ")[2], width) for name, width in self._widths(split).items()]
        values = {name: f"{value:{'.1%' if _is_share(name) else '.3f'}}" for name, value in figures.items()}
        return "".join(f"  {values.get(name, '–'):>{width}}" for name, width in names)

    def _status(self, event: "Step") -> str:
        """The text behind the bar: how fast, how good, how much of the last second was waiting."""
        rate = self.bar.tasks[-1].speed or 0.0
        speed = f"{rate * self.batch_size:,.0f} pictures/s" if rate else ""
        waiting = min(1.0, event.waited * rate)
        return f"{speed}  loss {float(event.loss):.3f}  rate {event.learning_rate:.2g}  waiting {waiting:.0%}"


def _learnt(index: "Index") -> str:
    """What is to be learnt, as the line on the pictures ends."""
    targets = index.targets
    words = [
        ("a number" if len(targets) > 1 else f"the number {target.name}")
        if target.kind == "number"
        else f"{target.outputs} {'classes' if target.kind == 'class' else 'labels'}"
        for target in targets
    ]
    if len(targets) > 1:
        parts = (f"{target.name} ({word})" for target, word in zip(targets, words, strict=True))
        return f"{len(targets)} tasks: {printable(', '.join(parts))}"
    return printable(words[0])


def _to_compare(baseline: "Baseline") -> "Iterator[str]":
    """How simple methods do in validation; with several targets a line for each."""
    if not baseline.targets:
        accuracy = baseline.validation_accuracy
        score = "" if accuracy is None else f": {accuracy:.1%} of the validation pictures"
        yield f"To compare with, {baseline.method}{score}."
    for one in baseline.targets:
        name = {"class": "accuracy", "labels": "mean average precision", "number": "mean absolute error"}[one.kind]
        score = "" if one.validation is None else f"{one.validation:.{'3g' if one.kind == 'number' else '1%'}}"
        of_target = f" {one.name}" if len(baseline.targets) > 1 else ""
        yield f"To compare{of_target} with, {one.method}{f': {name} {score} in validation' if score else ''}."
