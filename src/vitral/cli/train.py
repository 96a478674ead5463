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
from vitral.cli.display import TrainingDisplay
from vitral.cli.interrupt import ctrl_c
from vitral.cli.terminal import ProgressBar, code_option, console, duration, settings_of, with_settings
from vitral.errors import RecipeError, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vitral.data.sources import Index
    from vitral.evaluation.evaluate import Evaluation
    from vitral.processes import Processes
    from vitral.recipe import Recipe
    from vitral.run import Run
    from vitral.training.forecast import TrainingForecast
    from vitral.training.listeners import SafeListener
    from vitral.training.memory import MemoryForecast
    from vitral.weights.pretrained import Pretrained

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
