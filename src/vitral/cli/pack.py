"""vitral pack SOURCE [OUT --shards 256MB] [KEY=VALUE…] [--list] [--prune]"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import ProgressBar, console, print_table, settings_of, table, with_settings
from vitral.errors import RecipeError, printable

if TYPE_CHECKING:
    from vitral.data.preprocess import Preprocess
    from vitral.data.sources import Index
    from vitral.data.write_shards import Stored
    from vitral.recipe import Recipe


@click.command()
@click.argument("source", metavar="[SOURCE]", default="", shell_complete=completion.recipes)
@click.argument("out", metavar="[OUT]", default="")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--shards", metavar="SIZE|NUMBER", help="Write tars of this size, such as 256MB, or so many of them.")
@click.option(
    "--as",
    "stored",
    type=click.Choice(["file", "png", "jpeg"]),
    default="file",
    show_default=True,
    help="Pictures in shards: their files as they are; or in the size of the recipe's model, exact or small.",
)
@click.option(
    "--recipe", "name", metavar="RECIPE", shell_complete=completion.recipes, help="Whose size and resizing is meant."
)
@click.option("--list", "lists", is_flag=True, help="Show the packs, and what else can be made again, with its size.")
@click.option("--prune", is_flag=True, help="Remove all of that; with --days only what was not used for so long.")
@click.option("--days", type=click.FloatRange(0), help="Of --prune: what was not used for so many days.")
def command(
    source: str,
    out: str,
    settings: tuple[str, ...],
    shards: str | None,
    stored: "Stored",
    name: str | None,
    lists: bool,
    prune: bool,
    days: float | None,
) -> None:
    """Decode and resize pictures once, before anyone trains; or write them as shards, for sets larger than a disk.

    SOURCE is a recipe, or pictures: a folder, a table, an archive, a set by name. `vitral train` packs by itself what
    is not packed yet, and so does `vitral pack SOURCE`, which says where. With OUT and --shards the pictures go into
    tars, as WebDataset has them, with an index beside them: `vitral train shards:OUT` learns from these without packing
    them. An interrupted command goes on where it was. --list and --prune are about what lies in the data directory and
    can be made again: packs, expanded archives, indices and blocks of shards, unfinished work.
    """
    if days is not None and not prune:
        raise click.UsageError("--days goes with --prune, as in: vitral pack --prune --days 30.")
    if lists or prune:
        if source or shards:
            raise click.UsageError("--list and --prune are about what is there already, and take no SOURCE.")
        _show(prune, days or 0.0)
        return
    if not source:
        raise click.UsageError("Missing argument 'SOURCE'. Only --list and --prune go without.")
    if "=" in out:
        out, settings = "", (out, *settings)
    if bool(out) != bool(shards):
        raise click.UsageError("Shards need a place and a size: vitral pack SOURCE OUT --shards 256MB.")
    if stored != "file" and not shards:
        raise click.UsageError("--as says how pictures lie in shards: vitral pack SOURCE OUT --shards 256MB --as jpeg.")
    if shards:
        _write_shards(source, Path(out).expanduser(), settings, shards, stored, name)
    else:
        _pack(source, settings, name)


def _pack(source: str, settings: tuple[str, ...], name: str | None) -> None:
    """Make the pack that a training would make, and say where it is."""
    from vitral.data.pack import pack, place_of
    from vitral.data.sources.named import data_directory

    recipe, index = _recipe_and_pictures(source, settings, name)
    directory, preprocess = data_directory(recipe.data.directory), _preprocess_of(recipe, index)
    with ProgressBar() as tell:
        packed = pack(index, preprocess, directory, tell)
    _print_notes((*index.notes, *packed.notes))
    count, _, height, width = packed.images.shape
    console.print(f"{count:,} pictures of {width} × {height} pixels.", style="bold")
    place = place_of(index, preprocess, directory)
    where = f"Packed in {place}" if place else "They need no pack: pixels of a set this small are kept in memory."
    console.print(where, soft_wrap=True)


def _write_shards(
    source: str, out: Path, settings: tuple[str, ...], shards: str, stored: "Stored", name: str | None
) -> None:
    """Write the shards, and say what they are read with."""
    from vitral.data.write_shards import plan_shards, writing_shards
    from vitral.progress import drain

    count, size = (int(shards), None) if shards.isdecimal() else (None, _bytes_of(shards))
    if count == 0:
        raise RecipeError("--shards is 0: give a size, such as 256MB, or how many, such as 100.")
    if stored == "file":
        index, preprocess = _pictures(source, settings), None
    else:
        recipe, index = _recipe_and_pictures(source, settings, name)
        preprocess = _preprocess_of(recipe, index)
    plan = plan_shards(index, preprocess, stored, size, count)
    with ProgressBar() as tell:
        about = drain(writing_shards(index, out, plan, preprocess, stored), tell)
    _print_notes(index.notes)
    for left_out, why in about.left_out[:5]:
        console.print(f"left out: {printable(why if left_out in why else f'{left_out}: {why}')}", soft_wrap=True)
    pictures, total = sum(shard.pictures for shard in about.shards), sum(shard.size for shard in about.shards)
    many = "1 shard" if len(about.shards) == 1 else f"{len(about.shards):,} shards"
    console.print(f"{pictures:,} pictures in {many}, {total / 1e6:,.1f} MB.", style="bold")
    console.print(f"Learn from them: vitral train shards:{out}", soft_wrap=True)


def _bytes_of(size: str) -> int:
    """A size that was typed, in bytes.

    >>> _bytes_of("256MB"), _bytes_of("1.5gb")
    (256000000, 1500000000)
    """
    from vitral.data.write_shards import LEAST_SHARD

    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
    try:
        count = int(float(size[:-2]) * units[size[-2:].upper()])
    except (KeyError, ValueError, OverflowError):
        raise RecipeError(f"--shards is {size}: give a size, such as 256MB, or how many, such as 100.") from None
    if count < LEAST_SHARD:
        raise RecipeError(f"--shards is {size}, which is too small for a shard: 256MB is usual.")
    return count


def _pictures(source: str, settings: tuple[str, ...]) -> "Index":
    """The pictures of a source; of a recipe those that it learns from."""
    from vitral.data.sources import open_source
    from vitral.recipe import Recipe
    from vitral.recipes import find_recipe, has_pictures

    changes = settings_of(settings)
    if other := [setting for setting in changes if not setting.startswith("data.")]:
        raise RecipeError(f"{other[0]} changes nothing about files as they are: set it together with --as png or jpeg.")
    recipe = Recipe().changed({"data.source": source}) if has_pictures(source) else find_recipe(source)
    with ProgressBar() as tell:
        return open_source(recipe.changed(changes).data, unsorted=True, tell=tell)


def _recipe_and_pictures(source: str, settings: tuple[str, ...], name: str | None) -> "tuple[Recipe, Index]":
    """The recipe whose model is to see the pictures: the one that is named, or the one that is chosen for them."""
    from vitral.data.sources import open_source
    from vitral.recipes import find_recipe, has_pictures

    changes = settings_of(settings)
    if name:
        recipe = with_settings(find_recipe(name), {**changes, "data.source": source})
    elif has_pictures(source, changes):
        from vitral.recipes.choose import choose

        with ProgressBar() as tell:
            choice = choose(source, changes, tell=tell)
        return choice.recipe, choice.index
    else:
        recipe = with_settings(find_recipe(source), changes)
    with ProgressBar() as tell:
        return recipe, open_source(recipe.data, unsorted=True, tell=tell)


def _preprocess_of(recipe: "Recipe", index: "Index") -> "Preprocess":
    from vitral.model import resolve
    from vitral.plugin import load_plugins
    from vitral.training.preparation import complete, preprocess_of

    config = resolve(recipe.model, load_plugins(recipe.plugins))
    return preprocess_of(recipe, complete(config, index, needs_labels=config.has_classes))


def _show(prune: bool, days: float) -> None:
    """Print what can be made again; with `prune`, remove what was not used for so many days."""
    from vitral.data.leftovers import leftovers, remove
    from vitral.data.sources.named import data_directory

    directory = data_directory()
    if not (every := leftovers(directory)):
        console.print(f"There is nothing in {directory} that could be made again.", soft_wrap=True)
        return
    listing = table("what", "MB", "days ago", "of", "name", right=("MB", "days ago"))
    freed = 0
    for one in every:
        goes = prune and one.days >= days and remove(one)
        freed += one.bytes if goes else 0
        what = f"{one.kind}, removed" if goes else one.kind
        place = str(one.path.relative_to(directory))
        listing.add_row(what, f"{one.bytes / 1e6:,.1f}", f"{one.days:.0f}", one.of, place)
    print_table(listing)
    total = sum(one.bytes for one in every)
    words = f"{freed / 1e6:,.1f} MB of {total / 1e6:,.1f} MB were removed" if prune else f"{total / 1e6:,.1f} MB"
    console.print(f"\n{words}, in {directory}. A training makes what it needs again.", soft_wrap=True)


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        console.print(printable(note))
