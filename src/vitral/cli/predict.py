"""vitral predict RUN PICTURE|FOLDER … [--csv FILE] [--unsure 0.5] [--json]"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import code_option, console, track
from vitral.errors import DataError, printable

if TYPE_CHECKING:
    from vitral.classifier import Classifier, FilePrediction


@click.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=completion.runs)
@click.argument("pictures", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PICTURE|FOLDER...")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Also write the answers as a CSV file.")
@click.option(
    "--unsure", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Mark what is less probable."
)
@click.option("--top", type=click.IntRange(1), default=3, show_default=True, help="How many classes to name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(
    run: Path,
    pictures: tuple[Path, ...],
    csv_path: Path | None,
    unsure: float,
    top: int,
    as_json: bool,
    code: tuple[Path, ...],
) -> None:
    """Say what a PICTURE shows, or all pictures of a FOLDER.

    RUN is a run folder, or weights: a model.safetensors, a folder of another library's, hf:org/model. A picture of any
    format and size passes through the preprocessing that is stored with the weights. In a folder, a file that cannot be
    read is named, and the others are answered.
    """
    from vitral.classifier import Classifier, write_csv

    if csv_path and csv_path.is_dir():
        raise click.UsageError(f"--csv {csv_path} is a folder, and a file was expected.")
    classifier = Classifier.load(run, code)
    for note in classifier.notes:
        click.echo(printable(note), err=True)
    predictions = list(_predictions(classifier, pictures))
    if csv_path:
        write_csv(csv_path, predictions, unsure, top)
    if as_json:
        click.echo(json.dumps([one.write(unsure, top) for one in predictions]))
    elif len(predictions) > 1 or predictions[0].prediction:
        for one in predictions:
            _print_prediction(one, unsure, top)
        _print_summary(predictions, unsure, csv_path)
    # A file of a folder may be unreadable; one that stands on the command line may not.
    if error := next((one.error for one in predictions if one.error and one.path in pictures), ""):
        raise DataError(error)
    if all(one.error for one in predictions):
        raise DataError("None of these files could be read as a picture.")


def _predictions(classifier: "Classifier", pictures: tuple[Path, ...]) -> "Iterable[FilePrediction]":
    from vitral.data.sources.folder import picture_files

    files = [file for picture in pictures for file in picture_files(picture)]
    return track(classifier.files(files), len(files), "predicting")


def _print_prediction(file: "FilePrediction", unsure: float, top: int) -> None:
    from rich.text import Text

    line = Text(f"{printable(str(file.path))}  ")
    if file.prediction is None:
        line.append(f"not answered: {printable(file.error)}", style="red")
    else:
        first, *others = file.prediction.probabilities[:top]
        line.append(f"{printable(first[0])} {first[1]:.1%}", style="bold")
        line.append("".join(f"   {printable(name)} {share:.1%}" for name, share in others), style="dim")
        if file.prediction.unknown:
            line.append("   unknown: unlike the pictures that it learnt from", style="yellow")
        elif file.prediction.probability < unsure:
            line.append("   unsure", style="yellow")
    console.print(line, soft_wrap=True)


def _print_summary(files: "list[FilePrediction]", unsure: float, csv_path: Path | None) -> None:
    """Print how many files were answered, and where the CSV file is."""
    if len(files) > 1:
        predictions = [file.prediction for file in files if file.prediction]
        doubtful = sum(prediction.probability < unsure for prediction in predictions)
        unknown = [prediction.unknown for prediction in predictions if prediction.distance is not None]
        unlike = f" {sum(unknown)} unlike what it learnt from," if unknown else ""  # else nobody has looked
        console.print(
            f"\n{len(files)} files: {len(predictions)} answered, {doubtful} of them unsure (below {unsure:g}),{unlike} "
            f"{len(files) - len(predictions)} could not be read."
        )
    if csv_path:
        console.print(f"Written to {csv_path}", soft_wrap=True)
