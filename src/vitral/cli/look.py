"""vitral look RUN|WEIGHTS PICTURE|FOLDER … [--method NAME] [--examples N] [--model] [--json]"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitral.cli import completion
from vitral.cli.terminal import code_option, console, track
from vitral.errors import DataError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vitral.data.decode import Picture
    from vitral.look.explain import Explainer
    from vitral.look.maps import Some


WATCH = 16  # pictures that `--model` watches heads on
MOST_SINES = 4096  # a side of the table of `--sine`: more, no figure shows


@click.command()
@click.argument("source", metavar="[RUN|WEIGHTS]", default="", shell_complete=completion.runs)
@click.argument("pictures", nargs=-1, type=click.Path(path_type=Path), metavar="[PICTURE|FOLDER]...")
@click.option(
    "--method",
    help="Which map: attention, mean-attention, rollout or class-attention, the default where there are classes.",
)
@click.option(
    "--label",
    metavar="NAME",
    help="The class or label that maps are for, or the task. Default: what it answers, of several labels the most "
    "probable, of several tasks the first.",
)
@click.option("--blocks", default="-1", show_default=True, help="Whose heads are shown: 0,5 or all; -1 is the last.")
@click.option("--examples", type=click.IntRange(1), metavar="N", help="N test pictures of RUN, of all its classes.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where to. Default: looks/NAME.")
@click.option(
    "--model", "of_model", is_flag=True, help="Draw the model: patches, filters, positions, how far heads look."
)
@click.option("--sine", metavar="N×D", help="Draw a table of N fixed positions of D numbers, as 100x300; of no model.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(
    source: str,
    pictures: tuple[Path, ...],
    method: str | None,
    label: str | None,
    blocks: str,
    examples: int | None,
    out: Path | None,
    of_model: bool,
    sine: str | None,
    as_json: bool,
    code: tuple[Path, ...],
) -> None:
    """Show where a model looked for its answer, and how far to believe that.

    Writes one figure a PICTURE: its patches, the prediction, the map over the picture, other maps, the heads of a
    block. Of a FOLDER, or of --examples, there is also a page with them all, index.html. Each map is graded: patches
    are taken away in its order, and if the answer does not fall sooner than with 19 random maps, the figure says so.

    RUN is a run folder, or weights as for `vitral predict`; without classes there are maps and no prediction.
    """
    from vitral.data.sources.folder import picture_files
    from vitral.look.explain import Explainer
    from vitral.look.gallery import GALLERY
    from vitral.run import name_of

    if sine is not None:
        if source or method or label or blocks != "-1" or examples or of_model:
            raise click.UsageError("--sine draws a table of no model: leave all but --out and --json out.")
        _draw_sine(sine, (out or Path("looks")) / "sine.png", as_json)
        return
    if not source:
        raise click.UsageError("Name a run or weights to look into, and a picture.")
    if not pictures and not of_model and examples is None:
        raise click.UsageError("Name a picture or a folder to look at; or --model draws the model itself.")
    if of_model and (method or label or blocks != "-1" or examples):
        raise click.UsageError(
            "--model draws the model as a whole: --method, --label, --blocks and --examples do not go with it."
        )
    explainer = Explainer.load(source, method, _blocks(blocks), code, label)
    for note in explainer.inspected.notes:
        click.echo(printable(note), err=True)
    files: dict[Path, Picture] = {file: file for picture in pictures for file in picture_files(picture)}
    folder = out or Path("looks") / name_of(source)
    if of_model:
        _draw_model(source, explainer, list(files), folder, as_json)
        return
    files |= _examples(source, examples) if examples else {}
    several = len(files) > 1 or any(picture.is_dir() for picture in pictures)
    results, failures = _look(explainer, files, folder, several)
    if as_json:
        click.echo(json.dumps(results))
    elif len(results) > 1 or not failures:
        _print_results(results, folder / GALLERY if several else None)
    # A file of a folder may be unreadable; one that stands on the command line may not.
    if named := next((failures[picture] for picture in pictures if picture in failures), ""):
        raise DataError(named)
    if len(failures) == len(files):
        raise DataError("None of these files could be read as a picture.")


def _blocks(text: str) -> "Some":
    if text.strip() == "all":
        return "all"
    if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", text):
        raise click.UsageError(f"--blocks {text}: it takes numbers with commas between them, as in 0,5,-1, or all.")
    return [int(number) for number in text.split(",")]


def _examples(source: str, count: int) -> "dict[Path, Picture]":
    """Test pictures of a run, by what they show and their names; by their numbers too, where those are the same."""
    from vitral.data.sources import open_source
    from vitral.run import Run

    if not Run.is_run(source):
        raise click.UsageError(f"--examples takes the test pictures of a run, which {source} is not: name pictures.")
    index = open_source(Run.load(source).recipe.data)
    pictures: dict[Path, Picture] = {}
    for number in index.spread(count):
        words = f"{index.label_of(number)} {Path(index.samples[number]).stem}"
        name = Path(re.sub(r"[^\w.]+", "-", words))
        pictures[name.with_name(f"{name}-{number}") if name in pictures else name] = index.storage.read(number)
    return pictures


def _look(
    explainer: "Explainer", files: "Mapping[Path, Picture]", folder: Path, several: bool
) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """Draw a figure of each file. Returns a result for each, and a sentence for each that could not be read."""
    from vitral.look.gallery import GALLERY, card, write_gallery
    from vitral.look.overlay import draw_explanation

    results: list[dict[str, Any]] = []
    cards, failures = [], dict[Path, str]()
    # A figure never takes the place of a picture, wherever it is written to.
    names = {file.name.lower() for file in files if file.parent.resolve() == folder.resolve()}
    for file, explanation in track(
        zip(files, explainer.each((picture, str(file)) for file, picture in files.items()), strict=True),
        len(files),
        "looking",
    ):
        if isinstance(explanation, DataError):
            failures[file] = str(explanation)
            results.append({"path": str(file), "error": str(explanation)})
            continue
        folder.mkdir(parents=True, exist_ok=True)
        figure = folder / _free_name(file, names)
        draw_explanation(figure, explanation, explainer.inspected.name)
        results.append({**explanation.write(), "says": explanation.says, "figure": str(figure)})
        if several:
            cards.append(card(explanation, figure.name))
    if cards:
        write_gallery(folder / GALLERY, cards, list(failures.values()), explainer.inspected.name, explainer.method)
    return results, failures


def _free_name(file: Path, names: set[str]) -> str:
    """A name for its figure that is not among `names`, which are lower case, as some file systems are; it is added."""
    stem, number = file.stem, 1
    name = f"{stem}.png"
    while name.lower() in names:
        number += 1
        name = f"{stem}-{number}.png"
    names.add(name.lower())
    return name


def _print_results(results: list[dict[str, Any]], page: Path | None) -> None:
    """Print a line on each picture and its grade, and where to look."""
    from rich.text import Text

    for result in results:
        line = Text(f"{printable(result['path'])}  ")
        if "error" in result:
            line.append(f"not looked at: {printable(result['error'])}", style="red")
        else:
            line.append(f"{printable(result['says']) or 'No classes, so no prediction.'}\n", style="bold")
            grade = result.get("grade")
            style = "dim" if grade is None or grade["better_than_chance"] else "yellow"
            line.append(f"    {grade['sentence'] if grade else result['ungraded']}", style=style)
        console.print(line, soft_wrap=True)
    grades = [result["grade"] for result in results if "grade" in result]
    if len(grades) > 1:
        better = sum(grade["better_than_chance"] for grade in grades)
        console.print(f"\nOn {better} of {len(grades)} pictures the map is better than chance.")
    if figures := [result["figure"] for result in results if "figure" in result]:
        console.print(f"Look at {page or figures[0]}", soft_wrap=True)


def _draw_sine(size: str, path: Path, as_json: bool) -> None:
    """Draw a table of fixed positions, and print where it is."""
    from vitral.look.plots import draw_sine_table
    from vitral.look.readings import sine_table

    sides = re.fullmatch(r"(\d{1,4})[x×](\d{1,4})", size.strip())
    if not sides or max(map(int, sides.groups())) > MOST_SINES:
        raise click.UsageError(f"--sine {size}: it takes positions and width, as in 100x300, up to {MOST_SINES}.")
    table = sine_table(int(sides[1]), int(sides[2]))
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_sine_table(path, table)
    if as_json:
        click.echo(json.dumps({"figures": [str(path)], "notes": []}))
        return
    console.print(f"Look at {path}", soft_wrap=True)


def _draw_model(source: str, explainer: "Explainer", files: list[Path], folder: Path, as_json: bool) -> None:
    """Draw the figures of the model itself, and print where they are."""
    from vitral.look.glass.shelf import examples
    from vitral.look.model_figures import draw_model

    inspected = explainer.inspected
    pictures, notes = [], []
    for file in files[:WATCH]:
        try:
            pictures.append(inspected.preprocess.resized(file))
        except DataError as error:
            notes.append(str(error))
    if files and not pictures:
        raise DataError("None of these files could be read as a picture.")
    if len(files) > WATCH:
        notes.append(f"Heads are watched on the first {WATCH} of {len(files)} pictures.")
    pictures = pictures or [example.pixels for example in examples(source, inspected.preprocess)]
    folder.mkdir(parents=True, exist_ok=True)
    figures, missing = draw_model(folder, inspected.model, inspected.preprocess, pictures)
    notes += missing
    if as_json:
        click.echo(json.dumps({"figures": [str(path) for path in figures], "notes": notes}))
        return
    for note in notes:
        console.print(note, soft_wrap=True)
    console.print(f"Look at {folder}/: {', '.join(path.name for path in figures)}", soft_wrap=True)
