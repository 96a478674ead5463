"""vitral check FOLDER|NAME [--out FOLDER] [--augment RECIPE] [--json]"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import ProgressBar, console, print_table, settings_of, table
from vitral.errors import printable
from vitral.progress import Progress

if TYPE_CHECKING:
    from vitral.data.check import Report
    from vitral.recipe import Recipe
    from vitral.targets import Target


@click.command()
@click.argument("source", metavar="FOLDER|FILE|NAME")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--out", type=click.Path(path_type=Path), help="Where the sheets go. Default: checks/NAME.")
@click.option(
    "--augment", "recipe", metavar="RECIPE", shell_complete=completion.recipes, help="Draw what its model will see."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(source: str, settings: tuple[str, ...], out: Path | None, recipe: str | None, as_json: bool) -> None:
    """Look at every picture before anyone trains, and say what is wrong.

    FOLDER has class folders, with or without train/ val/ test/ above them; a CSV or JSONL file (path, label), a zip, a
    tar and a named set (`vitral fetch`) are understood as well. Broken files, copies, the same picture in train and
    test, doubtful labels, uneven classes: each with what to do about it, and contact sheets to look at. Exit code 1 if
    something is seriously wrong. Settings of [data] may be changed, such as data.group_by='(patient\\d+)'.
    """
    from vitral.data.check import check
    from vitral.data.sources import open_source
    from vitral.data.sources.named import data_directory
    from vitral.errors import RecipeError
    from vitral.processes import join
    from vitral.recipe import Recipe
    from vitral.recipes import find_recipe
    from vitral.run import last_name

    changes = settings_of(settings)
    if other := [name for name in changes if not name.startswith("data.")]:
        raise RecipeError(f"{other[0]} is no setting of the pictures: `vitral check` takes those that start with data.")
    changes["data.source"] = source
    full_recipe = (find_recipe(recipe) if recipe else Recipe()).changed(changes)
    folder = out or Path("checks") / last_name(source)
    with ProgressBar() as tell:
        index = open_source(full_recipe.data, tell=tell)
    processes = join()
    if processes.first:
        _clear(folder)
    with ProgressBar() as tell:
        report = check(index, tell, processes=processes, directory=data_directory(full_recipe.data.directory))
    if not processes.first:
        return
    if as_json:
        click.echo(json.dumps(report.write()))
    else:
        _print_report(report, folder)
    with _drawing(folder):
        _draw(report, folder, full_recipe if recipe else None)
    if not as_json:
        _print_sheets(folder)
    if report.serious:
        sys.exit(1)


def _clear(folder: Path) -> None:
    """Remove the sheets of an earlier check, so that no old one is taken for new."""
    from vitral.errors import RunError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("overview.png", "sizes.png", "findings.png", "findings.csv", "augmented.png", "classes/*.png"):
            for path in folder.glob(name):
                path.unlink()
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another place with --out.") from None


@contextmanager
def _drawing(folder: Path) -> Iterator[None]:
    """Show that sheets are drawn; a folder that cannot be written becomes a sentence."""
    from vitral.errors import RunError

    try:
        with ProgressBar() as tell:
            tell(Progress(0, 1, "drawing"))
            yield
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another place with --out.") from None


def _draw(report: "Report", folder: Path, recipe: "Recipe | None") -> None:
    """Write the sheets and findings.csv; with a recipe, also what its model will see."""
    from vitral.files import write_whole
    from vitral.look import check_sheets
    from vitral.training.preparation import complete, preprocess_of

    check_sheets.draw(report, folder)
    if any(finding.samples for finding in report.findings):
        write_whole(folder / "findings.csv", report.as_csv())
    if recipe:
        index = report.index
        config = complete(recipe.model.model_copy(update={"classes": 0}), index)
        preprocess = preprocess_of(recipe, config)
        check_sheets.augmentation(index, preprocess, recipe.data.augment, recipe.train.seed, folder / "augmented.png")


def _print_report(report: "Report", folder: Path) -> None:
    """Print classes, sizes and findings, the serious ones first."""
    from vitral.data.sources import SPLITS
    from vitral.targets import columns

    index = report.index
    for note in index.notes:
        console.print(printable(note))
    words = [{"class": "class", "labels": "label", "number": "number"}[target.kind] for target in index.targets]
    listing = table(words[0] if len(words) == 1 else "target", *SPLITS, right=SPLITS)
    rows = [
        row
        for target, part in zip(index.targets, columns(index.targets), strict=True)
        for row in _rows(report, target, part)
    ]
    for row in rows[:40]:
        listing.add_row(*row)
    if len(rows) > 40:
        listing.add_row(f"and {len(rows) - 40} more", "", "", "")
    listing.add_row("all", *(f"{len(index.of(split)):,}" for split in SPLITS), style="bold")
    print_table(listing)
    _print_sizes(report)
    serious = [finding for finding in report.findings if finding.serious]
    for finding in [*serious, *(finding for finding in report.findings if not finding.serious)]:
        mark = "!" if finding.serious else "·"
        console.print(f"\n{mark} {printable(finding.what)}", style="bold red" if finding.serious else "bold")
        console.print(f"  {finding.advice}")
        for group in finding.samples[:3]:
            names = "  =  ".join(printable(index.samples[number]) for number in group[:4])
            reason = report.checks[group[0]].error if finding.kind == "unreadable" else ""
            console.print(f"    {printable(reason) or names}", style="dim", soft_wrap=True)
        if len(finding.samples) > 3:
            console.print(f"    and {len(finding.samples) - 3:,} more in {folder}/findings.csv", style="dim")
    if not report.compared:
        console.print(
            "\nNear copies were not looked for: there are too many pictures to compare each with each. With one "
            "package more that need not be: pip install 'vitral[near]'.",
            markup=False,
        )
    other = len(report.findings) - len(serious)
    verdict = f"{len(serious)} serious, {other} to know of" if report.findings else "nothing was found"
    console.print(f"\n{len(index.samples):,} pictures looked at: {verdict}.")


def _rows(report: "Report", target: "Target", part: slice) -> "Iterator[tuple[str, ...]]":
    """How many pictures of each split have each class or label; of a number its span in each of them."""
    import numpy as np

    from vitral.data.sources import SPLITS

    index = report.index
    of_target = f"{target.name} " if len(index.targets) > 1 or target.kind == "number" else ""
    if target.kind != "number":
        for name, counts in zip(target.names, report.counts[part], strict=True):
            yield printable(of_target + name), *(f"{count:,}" for count in counts)
        return
    numbers = [index.labels[index.of(split), part] for split in SPLITS]
    for word, quantile in (("least", 0), ("median", 50), ("most", 100)):
        yield (
            printable(of_target + word),
            *(f"{np.percentile(some, quantile):.4g}" if len(some) else "" for some in numbers),
        )


def _print_sheets(folder: Path) -> None:
    """Print which sheets there are to look at."""
    sheets = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file()))
    console.print(f"Look at {folder}/: {sheets}, and a sheet of each class in classes/.", soft_wrap=True)


def _print_sizes(report: "Report") -> None:
    """Print sizes, formats and modes of the pictures, where one could be read."""
    import numpy as np

    sizes = report.sizes
    if not len(sizes):
        return
    (low_w, low_h), (mid_w, mid_h), (top_w, top_h) = np.percentile(sizes, (0, 50, 100), axis=0).astype(int)
    formats = ", ".join(f"{count:,} {name}" for name, count in report.tally("format").items())
    modes = ", ".join(f"{count:,} {name}" for name, count in report.tally("mode").items() if name)
    console.print(
        f"\nWidth {low_w} to {top_w} (median {mid_w}), height {low_h} to {top_h} (median {mid_h}). "
        f"{formats}{'; modes ' + modes if modes else ''}."
    )
