"""vitral evaluate RUN"""

import json
from collections.abc import Iterator
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


def _more(evaluation: "Evaluation") -> Iterator[str]:
    """What else is known, and what is not."""
    from vitral.evaluation.metrics import FEW

    found = evaluation.metrics
    shares = {"top 5": found.top_5, "balanced accuracy": found.balanced_accuracy, "macro-F1": found.macro_f1}
    yield ", ".join(f"{name} {figure.value:.1%}" for name, figure in shares.items() if figure).capitalize() + "."
    apart = f"Probabilities are off by {found.calibration_error.value:.1%} on average"
    if evaluation.calibration is None:
        yield f"{apart}; without validation pictures no temperature could be found to mend that."
    else:
        before = evaluation.uncalibrated.calibration_error.value
        yield f"{apart} ({before:.1%} before the temperature, {float(evaluation.calibration.temperature):.2f})."
    if untested := [one.name for one in found.classes if not one.pictures]:
        yield f"No test picture shows {', '.join(untested[:5])}: nothing is known about that."
    if evaluation.pictures < FEW:
        yield f"{evaluation.pictures} test pictures are few: take these numbers as a first sign, no more."


def tell(evaluation: "Evaluation") -> None:
    """What a person wants to know first, and where to look."""
    figures = sorted(path.name for path in evaluation.run.folder.glob("*.png"))
    found = evaluation.metrics
    accuracy = found.accuracy
    console.print(
        f"\nTest loss {evaluation.loss:.3f}, test accuracy {accuracy.value:.1%} "
        f"of {evaluation.pictures:,} pictures (95 % interval {accuracy.low:.1%} to {accuracy.high:.1%}).",
        style="bold",
    )
    for line in _more(evaluation):
        console.print(line, soft_wrap=True)
    console.print(f"Look at {evaluation.run.folder}/: {', '.join(figures)}", soft_wrap=True)
    console.print(f"Ask it about a picture: vitral predict {evaluation.run.folder} PICTURE", soft_wrap=True)
    if evaluation.beside:
        console.print(evaluation.beside.verdict, style="bold")
