"""vitral evaluate RUN"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import console

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation


@click.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=completion.runs)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, for programs.")
def command(run: Path, as_json: bool) -> None:
    """Measure RUN on its test pictures; write evaluation.json and the figures into its folder."""
    from vitral.evaluation.evaluate import evaluate

    evaluation = evaluate(run)
    if as_json:
        click.echo(json.dumps(evaluation.write()))
    else:
        tell(evaluation)


def tell(evaluation: "Evaluation") -> None:
    """What a person wants to know first, and where to look."""
    low, high = evaluation.accuracy_interval
    figures = sorted(path.name for path in evaluation.run.folder.glob("*.png"))
    console.print(
        f"\nTest loss {evaluation.loss:.3f}, test accuracy {evaluation.accuracy:.1%} "
        f"of {evaluation.pictures:,} pictures (95 % interval {low:.1%} to {high:.1%}).",
        style="bold",
    )
    console.print(f"Look at {evaluation.run.folder}/: {', '.join(figures)}", soft_wrap=True)
    console.print(f"Ask it about a picture: vitral predict {evaluation.run.folder} PICTURE", soft_wrap=True)
    if evaluation.beside:
        console.print(evaluation.beside.verdict, style="bold")
