"""vitral ls"""

import json
from pathlib import Path
from typing import Any

import click

from vitral.cli.terminal import console, print_table, table


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(folder: Path, as_json: bool) -> None:
    """List the recipes, and the runs in FOLDER (default: runs)."""
    from vitral.recipes import RECIPES, about
    from vitral.run import Run

    recipes = {name: about(name) for name in RECIPES}
    there = sorted([*folder.glob("*"), *folder.glob("*/seed-*")])
    runs = [_run(path) for path in there if Run.is_run(path)]
    if as_json:
        click.echo(json.dumps({"recipes": recipes, "runs": runs}))
        return
    listed = table("recipe", "what it is")
    for name, what in recipes.items():
        listed.add_row(name, what)
    print_table(listed)
    console.print()
    if not runs:
        console.print(f"No runs in {folder}/ yet. Start one: vitral train digits", soft_wrap=True)
        return
    numbers = ("test accuracy", "seed", "steps", "seconds")
    listed = table("run", "state", "data", *numbers, "started (UTC)", right=numbers)
    for run in runs:
        shown = run | {"accuracy": f"{run['accuracy']:.1%}"} if "accuracy" in run else run
        columns = ("run", "state", "data", "accuracy", "seed", "steps", "seconds", "started_at")
        listed.add_row(*(str(shown.get(name, "")) for name in columns))
    print_table(listed)


def _run(path: Path) -> dict[str, Any]:
    """What there is to say of a run; of a damaged one, that it is."""
    from vitral.errors import VitralError
    from vitral.run import Run

    try:
        run = Run.load(path)
        record, evaluation = run.record, run.evaluation
        found = {
            "run": str(path),
            "state": record.state,
            "data": record.data.source,
            "seed": run.recipe.train.seed,
            "steps": record.steps,
            "started_at": record.started_at.removesuffix("+00:00").replace("T", " "),
        }
        found |= {"seconds": round(record.seconds, 1)} if record.seconds is not None else {}
        return found | ({"accuracy": float(evaluation["accuracy"])} if evaluation else {})
    except (VitralError, KeyError, ValueError, TypeError):
        return {"run": str(path), "state": "damaged"}
