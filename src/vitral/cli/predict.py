"""vitral predict RUN PICTURE|FOLDER … [--csv FILE] [--unsure 0.5] [--json]"""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import code_option, console, printable
from vitral.errors import DataError

if TYPE_CHECKING:
    from vitral.classifier import Classifier, Prediction


@dataclass(frozen=True)
class Answer:
    """What is said of one file: a prediction, or why there is none."""

    path: Path
    prediction: "Prediction | None"
    error: str = ""


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
    from vitral.classifier import Classifier

    if csv_path and csv_path.is_dir():
        raise click.UsageError(f"--csv {csv_path} is a folder, and a file was expected.")
    classifier = Classifier.load(run, code)
    for note in classifier.notes:
        click.echo(printable(note), err=True)
    answers = list(_answers(classifier, pictures))
    named = [answer for answer in answers if answer.path in pictures]
    if csv_path:
        _write_csv(csv_path, answers, unsure, top)
    if as_json:
        click.echo(json.dumps([_as_json(answer, unsure, top) for answer in answers]))
    elif len(answers) > 1 or answers[0].prediction:
        for answer in answers:
            _tell(answer, unsure, top)
        _summary(answers, unsure, csv_path)
    # What was found in a folder may be unreadable; what was asked for by name may not.
    if failed := next((answer.error for answer in named if answer.error), ""):
        raise DataError(failed)
    if all(answer.error for answer in answers):
        raise DataError("None of these files could be read as a picture.")


def _answers(classifier: "Classifier", pictures: tuple[Path, ...]) -> Iterator[Answer]:
    from rich.console import Console
    from rich.progress import track

    files = [file for picture in pictures for file in picture_files(picture)]
    bar = Console(stderr=True)  # so that what a program reads from stdout is the answers alone
    quiet = len(files) < 50 or not bar.is_terminal
    answers = track(classifier.each(files), "predicting", len(files), console=bar, transient=True, disable=quiet)
    for file, answer in zip(files, answers, strict=True):
        yield Answer(file, None, str(answer)) if isinstance(answer, DataError) else Answer(file, answer)


def picture_files(picture: Path) -> list[Path]:
    """The picture itself, or all pictures below a folder, sorted, hidden ones left out."""
    from vitral.data.decode import ENDINGS

    if not picture.is_dir():
        return [picture]
    below = (path for path in picture.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    found = sorted(path for path in below if not any(part.startswith(".") for part in path.relative_to(picture).parts))
    if not found:
        raise DataError(f"There is no picture in {picture}. Vitral reads {', '.join(ENDINGS)}.")
    return found


def _tell(answer: Answer, unsure: float, top: int) -> None:
    from rich.text import Text

    line = Text(f"{printable(str(answer.path))}  ")
    if answer.prediction is None:
        line.append(f"not answered: {printable(answer.error)}", style="red")
    else:
        first, *others = answer.prediction.probabilities[:top]
        line.append(f"{printable(first[0])} {first[1]:.1%}", style="bold")
        line.append("".join(f"   {printable(name)} {share:.1%}" for name, share in others), style="dim")
        if answer.prediction.unknown:
            line.append("   unknown: unlike the pictures that it learnt from", style="yellow")
        elif answer.prediction.probability < unsure:
            line.append("   unsure", style="yellow")
    console.print(line, soft_wrap=True)


def _summary(answers: list[Answer], unsure: float, csv_path: Path | None) -> None:
    if len(answers) > 1:
        read = [answer.prediction for answer in answers if answer.prediction]
        doubtful = sum(prediction.probability < unsure for prediction in read)
        unlike = [prediction.unknown for prediction in read if prediction.distance is not None]
        told = f" {sum(unlike)} unlike what it learnt from," if unlike else ""  # else nobody has looked
        console.print(
            f"\n{len(answers)} files: {len(read)} answered, {doubtful} of them unsure (below {unsure:g}),{told} "
            f"{len(answers) - len(read)} could not be read."
        )
    if csv_path:
        console.print(f"Written to {csv_path}", soft_wrap=True)


def _write_csv(path: Path, answers: list[Answer], unsure: float, top: int) -> None:
    """A row a file: the answer, and the next most probable ones."""
    from vitral.files import write_whole

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    others = [f"{name}_{place}" for place in range(2, top + 1) for name in ("label", "probability")]
    writer.writerow(["path", "label", "probability", "unsure", "unknown", "error", *others])
    for answer in answers:
        if answer.prediction is None:
            writer.writerow([answer.path, "", "", "", "", answer.error] + [""] * len(others))
            continue
        (label, probability), *rest = answer.prediction.probabilities[:top]
        doubtful = "yes" if probability < unsure else "no"
        ranked = [cell for name, share in rest for cell in (name, f"{share:.6f}")]
        ranked += [""] * (len(others) - len(ranked))  # fewer classes than were asked for
        unknown = "" if answer.prediction.distance is None else "yes" if answer.prediction.unknown else "no"
        writer.writerow([answer.path, label, f"{probability:.6f}", doubtful, unknown, "", *ranked])
    try:
        if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
            path.write_text(text.getvalue())
        else:
            write_whole(path, text.getvalue())
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}).") from None


def _as_json(answer: Answer, unsure: float, top: int) -> dict[str, object]:
    if answer.prediction is None:
        return {"path": str(answer.path), "error": answer.error}
    return {
        "path": str(answer.path),
        "label": answer.prediction.label,
        "probability": answer.prediction.probability,
        "unsure": answer.prediction.probability < unsure,
        "unknown": None if answer.prediction.distance is None else answer.prediction.unknown,
        "distance": answer.prediction.distance,
        "probabilities": [
            {"label": name, "probability": share} for name, share in answer.prediction.probabilities[:top]
        ],
    }
