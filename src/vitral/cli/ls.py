"""vitral ls"""

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from vitral.cli.terminal import console, print_table, table


@click.command()
@click.argument("name", metavar="[FOLDER]", type=click.Path(), default="runs")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(name: str, as_json: bool) -> None:
    """List the recipes, and the runs in FOLDER (default: runs).

    `vitral ls tutorials` lists the tutorials that people come from, `vitral ls weights` weights worth having; folders
    of these names are ./tutorials and ./weights.
    """
    from vitral.recipes import RECIPES, about
    from vitral.run import Run

    if name == "weights":
        _weights(as_json)
        return
    if name == "tutorials":
        _tutorials(as_json)
        return

    folder = Path(name)  # without the ./ before a name
    near = get_close_matches(name, ["tutorials", "weights", "runs"], n=1)
    if near and str(folder) not in near and not folder.is_dir():
        raise click.UsageError(f"There is no folder {folder}. Did you mean {near[0]}?")
    recipes = {name: about(name) for name in RECIPES}
    folders = sorted([*folder.glob("*"), *folder.glob("*/seed-*")])
    runs = [_run(path) for path in folders if Run.is_run(path)]
    if as_json:
        click.echo(json.dumps({"recipes": recipes, "runs": runs}))
        return
    listing = table("recipe", "what it is")
    for name, line in recipes.items():
        listing.add_row(name, line)
    print_table(listing)
    console.print("\nYou come from a tutorial? `vitral ls tutorials` says which recipe is whose.\n", soft_wrap=True)
    if not runs:
        console.print(f"No runs in {folder}/ yet. Start one: vitral train digits", soft_wrap=True)
        return
    numbers = ("test accuracy", "seed", "steps", "seconds")
    listing = table("run", "state", "data", *numbers, "started (UTC)", right=numbers)
    for run in runs:
        cells = run | {"accuracy": f"{run['accuracy']:.1%}"} if "accuracy" in run else run
        columns = ("run", "state", "data", "accuracy", "seed", "steps", "seconds", "started_at")
        listing.add_row(*(str(cells.get(name, "")) for name in columns))
    print_table(listing)


def _tutorials(as_json: bool) -> None:
    """Print the tutorials, and the commands for each."""
    from dataclasses import asdict

    from vitral.recipes.tutorials import TUTORIALS

    if as_json:
        click.echo(json.dumps({"tutorials": [asdict(one) | {"command": one.command} for one in TUTORIALS]}))
        return
    for one in TUTORIALS:
        recipes = {"exactly that": one.recipe, "on our plain ViT": one.plain, "to go on with": one.beyond}
        console.print(f"{one.author}: {one.title}\n    {one.source}", soft_wrap=True)
        for what, recipe in recipes.items():
            if recipe:
                console.print(f"    {what:18}vitral train {recipe}", soft_wrap=True)
        console.print(f"    {'it reports':18}{one.reported}\n", soft_wrap=True)
    console.print("docs/tutorials.md has their classes and figures beside ours.", soft_wrap=True)


def _weights(as_json: bool) -> None:
    """Print the weights of the Hub that are worth having, and those that are in the data directory."""
    from dataclasses import asdict

    from vitral.data.sources.named import data_directory
    from vitral.weights.catalogue import KNOWN, NAMED_WEIGHTS

    directory = data_directory("auto")
    place = directory / "weights"
    missing = [name for name, one in NAMED_WEIGHTS.items() if not one.is_here(directory)]
    folders = sorted(path.name for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    here = [name for name in folders if name not in missing]
    if as_json:
        click.echo(json.dumps({"known": [asdict(one) for one in KNOWN], "here": here}))
        return
    listing = table("weights", "MB", "licence", "what for", right=("MB",))
    for one in KNOWN:
        listing.add_row(one.where, f"{one.megabytes:,}", one.licence, one.what_for)
    print_table(listing)
    console.print("\nThey are fetched when they are first used (pip install huggingface_hub).", soft_wrap=True)
    for name in missing:
        console.print(f"What recipes need, and is not here: {name} (vitral fetch {name})", soft_wrap=True)
    for name in here:
        teaches = " (a CNN: only as teacher.source)" if "resnet" in name else ""
        console.print(f"In the data directory, by this name alone: {name}{teaches}", soft_wrap=True)


def _run(path: Path) -> dict[str, Any]:
    """Facts about a run, by name; of a damaged one only that it is."""
    from vitral.errors import VitralError
    from vitral.run import Run

    try:
        run = Run.load(path)
        record, evaluation = run.record, run.evaluation
        facts = {
            "run": str(path),
            "state": record.state,
            "data": record.data.source,
            "seed": run.recipe.train.seed,
            "steps": record.steps,
            "started_at": record.started_at.removesuffix("+00:00").replace("T", " "),
        }
        facts |= {"seconds": round(record.seconds, 1)} if record.seconds is not None else {}
        return facts | ({"accuracy": float(evaluation["accuracy"])} if evaluation else {})
    except (VitralError, KeyError, ValueError, TypeError):
        return {"run": str(path), "state": "damaged"}
