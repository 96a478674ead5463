"""vitral predict RUN PICTURE|FOLDER|- … [--list FILE] [--csv FILE] [--unsure 0.5] [--json]"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import ProgressBar, code_option, console, track
from vitral.errors import DataError, printable

if TYPE_CHECKING:
    from vitral.classifier import Classifier, FilePrediction

STDIN = Path("-")


@click.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=completion.runs)
@click.argument("sources", nargs=-1, type=click.Path(), metavar="PICTURE|FOLDER|-...")
@click.option(
    "--list",
    "listed",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A file with a path in each line, or - for standard input.",
)
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Also write the answers as a CSV file.")
@click.option(
    "--unsure", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Mark what is less probable."
)
@click.option("--top", type=click.IntRange(1), default=3, show_default=True, help="How many classes to name.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, mps, or auto, the best that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(
    run: Path,
    sources: tuple[str, ...],
    listed: Path | None,
    csv_path: Path | None,
    unsure: float,
    top: int,
    device: str,
    as_json: bool,
    code: tuple[Path, ...],
) -> None:
    """Say what a PICTURE shows, or all pictures of a FOLDER; or the one that comes from standard input, -.

    RUN is a run folder, an exported model.onnx, or weights: a model.safetensors, a folder of another library's,
    hf:org/model. A picture of any format and size passes through the preprocessing that is stored with the weights. In
    a folder or a list, a file that cannot be read is named, and the others are answered. shards:FOLDER means all
    pictures of shards.

    Where RUN learnt several labels, all that reach their thresholds are said, then the next ones; a number comes with
    the interval in which it lies 9 times out of 10; of several tasks each has a line.
    """
    from vitral.classifier import Classifier, write_csv
    from vitral.data.config import Data
    from vitral.data.sources import SHARDS, open_source
    from vitral.data.sources.named import data_directory
    from vitral.processes import join

    if csv_path and csv_path.is_dir():
        raise click.UsageError(f"--csv {csv_path} is a folder, and a file was expected.")
    in_shards = any(source.startswith(SHARDS) for source in sources)
    if in_shards and (len(sources) > 1 or listed):
        raise click.UsageError("Shards are asked about alone, without other pictures.")
    pictures = tuple(map(Path, sources))  # for shards no path, but that is not asked
    if not pictures and not listed:
        raise click.UsageError("Missing argument 'PICTURE|FOLDER|-...', or --list FILE.")
    if STDIN in (*pictures, listed) and (len(pictures) > 1 or (pictures and listed)):
        raise click.UsageError("Standard input, -, is one picture or one list, and stands alone.")
    classifier = Classifier.load(run, code, device)
    for note in classifier.notes:
        click.echo(printable(note), err=True)
    processes = join()
    if pictures == (STDIN,):
        predictions = [_of_stdin(classifier)]
    elif in_shards:
        with ProgressBar() as tell:
            index = open_source(Data(source=sources[0]), unsorted=True, tell=tell)
        keep = None if code else data_directory()
        predictions = list(track(classifier.stored(index, processes, keep), len(index.samples), "predicting"))
    else:
        files = _files(pictures, listed)
        keep = None if code or len(files) == 1 else data_directory()  # somebody's own code may change
        predictions = list(track(classifier.files(files, processes, keep), len(files), "predicting"))
    if not processes.first:
        return
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


def _files(pictures: tuple[Path, ...], listed: Path | None) -> list[Path]:
    from vitral.data.sources.folder import picture_files

    files = [file for picture in pictures for file in picture_files(picture)]
    if listed:
        content = sys.stdin.buffer.read() if listed == STDIN else listed.read_bytes()
        files += [Path(line.rstrip("\r")) for line in os.fsdecode(content).split("\n") if line.strip()]
    if not files:
        raise DataError("The list is empty: it should have the path of a picture in each line.")
    return files


def _of_stdin(classifier: "Classifier") -> "FilePrediction":
    from vitral.classifier import FilePrediction

    [answer] = classifier.each([sys.stdin.buffer.read()])
    return FilePrediction(STDIN, None, str(answer)) if isinstance(answer, DataError) else FilePrediction(STDIN, answer)


def _print_prediction(file: "FilePrediction", unsure: float, top: int) -> None:
    from rich.text import Text

    from vitral.predictions import TasksPrediction

    line, prediction = Text(f"{printable(str(file.path))}  "), file.prediction
    if prediction is None:
        line.append(f"not answered: {printable(file.error)}", style="red")
    else:
        tasks = prediction.tasks if isinstance(prediction, TasksPrediction) else {}
        width = max(map(len, tasks), default=0)
        for number, (name, one) in enumerate((tasks or {"": prediction}).items()):
            answer, others = one.words(top)
            line.append(f"\n    {printable(name):{width}}  " if tasks else "")
            line.append(printable(answer), style="bold")
            line.append(printable(others), style="dim")
            if prediction.unknown and number == 0:
                line.append("   unknown: unlike the pictures that it learnt from", style="yellow")
            elif not prediction.unknown and one.unsure(unsure):
                line.append("   unsure", style="yellow")
    console.print(line, soft_wrap=True)


def _print_summary(files: "list[FilePrediction]", unsure: float, csv_path: Path | None) -> None:
    """Print how many files were answered, and where the CSV file is."""
    if len(files) > 1:
        predictions = [file.prediction for file in files if file.prediction]
        doubtful = sum(prediction.unsure(unsure) for prediction in predictions)
        unknown = [prediction.unknown for prediction in predictions if prediction.distance is not None]
        unlike = f" {sum(unknown)} unlike what it learnt from," if unknown else ""  # else nobody has looked
        console.print(
            f"\n{len(files)} files: {len(predictions)} answered, {doubtful} of them unsure (below {unsure:g}),{unlike} "
            f"{len(files) - len(predictions)} could not be read."
        )
    if csv_path:
        console.print(f"Written to {csv_path}", soft_wrap=True)
