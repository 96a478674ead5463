"""vitral pretrain FOLDER|SET [train.objective=mae|lejepa|dino] [key=value …] [--out RUN] [--resume]"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitral.cli import STARTED_AT, completion
from vitral.cli.terminal import ProgressBar, code_option, console, settings_of, with_settings
from vitral.cli.train import change_run, listener_option, save_every_option, show_groups, train_run
from vitral.errors import RecipeError, printable

if TYPE_CHECKING:
    from vitral.recipe import Recipe

VERDICT = "verdict.json"  # in a folder that --verdict has begun; also in evaluation/verdict.py, which loads torch


@click.command()
@click.argument("source", metavar="FOLDER|FILE|NAME", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder. Default: runs/ and the pictures' name.")
@click.option("--resume", is_flag=True, help="Go on with what was begun in --out; begin where there is nothing.")
@click.option("--verdict", "asks", is_flag=True, help="Then learn from labels, too, with and without it: does it help?")
@click.option("--labelled", metavar="FOLDER|FILE|NAME", help="With --verdict: where the labels are, if elsewhere.")
@click.option("--seeds", type=click.IntRange(1), help="With --verdict: how often all is trained. [default: 3]")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="With --verdict: of the time, for learning without labels. [default: 0.75]",
)
@click.option("--dry-run", is_flag=True, help="Show what would learn, and at which rate; train nothing.")
@save_every_option
@listener_option
@code_option
def command(
    source: str | None,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    asks: bool,
    labelled: str | None,
    seeds: int | None,
    share: float | None,
    dry_run: bool,
    save_every: float,
    listeners: tuple[str, ...],
    code: tuple[Path, ...],
) -> None:
    """Learn to see from pictures without labels; what was learnt is where a training with few labels begins.

    The pictures need no classes: a folder of them will do, or a zip, a named set, a TOML recipe. Three ways:
    train.objective=mae hides most of each picture and has the rest of it said; lejepa and dino have several parts of a
    picture look alike.

    \b
        vitral pretrain my-pictures train.budget=1h --out runs/seen
        vitral train my-labelled-pictures init.weights=runs/seen init.mode=full
        vitral pretrain my-pictures init.weights=vit_tiny_patch16_224      goes on from somebody's weights
        vitral pretrain --out runs/seen --resume      goes on after a stop

    With --verdict it is measured whether that helps, beside a training from nothing with as much time in all:

    \b
        vitral pretrain my-pictures --verdict --labelled my-labelled-pictures train.budget=1h
        vitral pretrain my-sorted-pictures --verdict data.labelled=0.1      as if few of them were labelled
    """
    from vitral.processes import join
    from vitral.recipe import Recipe
    from vitral.run import Run, free_folder, last_name

    processes = join()
    processes.agree({"the pictures": source, "the settings": settings, "--out": str(out), "--resume": resume})
    if source and "=" in source:
        settings, source = (source, *settings), None
    if asks or (resume and out and (out / VERDICT).exists()):
        from vitral.cli.verdict import verdict

        if processes.many or listeners or code:
            raise RecipeError("--verdict is for one process, and takes neither --listener nor --code.")
        verdict(source, settings_of(settings), labelled, seeds, share, out, resume, dry_run, save_every)
        return
    if labelled or seeds or share:
        raise click.UsageError("--labelled, --seeds and --share go with --verdict.")
    if source is None and not (resume and out):
        raise click.UsageError("Missing argument 'FOLDER|FILE|NAME'. Only `--out RUN --resume` goes without.")
    if out and not resume and not dry_run:
        Run(out).check_free()  # before the pictures are opened
    recipe, inputs = None, dict[str, Any]()
    with processes.together():
        if not processes.first:
            pass  # what the first has chosen is told
        elif out and Run.is_run(out) and resume and (source or settings) and not (source and _is_recipe(source)):
            same = (f"data.source={source}",) if source else ()
            recipe = change_run(out, (*same, *settings), code)
        elif source:
            recipe, inputs = _load(source, settings, code)
    if processes.many and (table := processes.tell(recipe.write() if recipe else None)):
        recipe = Recipe.read(table)
    if out is None and not resume and recipe and source:
        name = f"{last_name(source)}-{recipe.train.objective.kind.rpartition(':')[2]}"
        out = Path(processes.decide(lambda: str(free_folder(name))))
    if dry_run:
        if recipe is None:
            raise click.UsageError("Missing argument 'FOLDER|FILE|NAME': --dry-run needs it.")
        if processes.first:
            show_groups(recipe, code=code, **inputs)
        return
    train_run(recipe, out, resume, save_every, STARTED_AT, processes, code=code, listeners=listeners, **inputs)


def _is_recipe(name: str) -> bool:
    """Whether this is a file with a recipe, and not pictures."""
    return name.endswith((".toml", ".py")) or ".py:" in name


def _load(name: str, words: tuple[str, ...], code: tuple[Path, ...]) -> tuple["Recipe", dict[str, Any]]:
    """The recipe of a file, or the one that is chosen for pictures, with the reasons printed."""
    from vitral.plugin import load_plugins
    from vitral.recipes import find_recipe
    from vitral.recipes.pretraining import choose_pretraining
    from vitral.run import Run
    from vitral.training.objectives.make import objective_class

    settings, inputs = settings_of(words), dict[str, Any]()
    if Run.is_run(name):
        raise RecipeError(
            f"{name} is a run. To go on with it: vitral pretrain --out {name} --resume. To begin from its weights: "
            f"vitral pretrain FOLDER init.weights={name}"
        )
    if _is_recipe(name):
        recipe = with_settings(find_recipe(name), settings)
    else:
        with ProgressBar() as tell:
            choice = choose_pretraining(name, settings, code, tell)
        recipe, inputs = choice.recipe, {"source": choice.index, "start": choice.start}
        for reason in choice.why:
            console.print(printable(reason))
        console.print(f"Any of that can be set, as in {shlex.join(['vitral', 'pretrain', name, 'train.budget=1h'])}\n")
    if objective_class(recipe.train, load_plugins(recipe.plugins)).needs_labels:
        raise RecipeError(
            f"train.objective {recipe.train.objective.kind} asks for labels: `vitral train` learns from them. Without: "
            "mae, lejepa or dino."
        )
    return recipe, inputs
