"""vitral fetch [NAME…]"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli.terminal import Screen, console, print_table, table

if TYPE_CHECKING:
    from vitral.data.fetch import Fetched
    from vitral.data.sources.named import NamedSet, RemoteFile


def _names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """For completion: the named sets that begin so."""
    from vitral.data.sources.named import NAMED

    return [name for name in NAMED if name.startswith(incomplete)]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_names)
def command(names: tuple[str, ...]) -> None:
    """Fetch sets of pictures by NAME, or list them.

    They go into the data directory: VITRAL_DATA, or else the user's cache (~/.cache/vitral). Every file is checked
    against its published sha256 where there is one. A fetch that was stopped goes on where it stopped.
    """
    from vitral.data.sources.named import data_directory, named

    directory = data_directory()
    sets = [named(name) for name in names]  # all of them known before the first is fetched
    if not sets:
        _list(directory)
    for each in sets:
        _fetch(each, directory)


def _list(directory: Path) -> None:
    """Print the named sets, and which of them are here."""
    from vitral.data.sources.named import NAMED, locate

    numbers = ("pictures", "MB")
    listing = table("set", "what it is", *numbers, "licence", "here", right=numbers)
    for column in listing.columns:
        column.no_wrap, column.overflow = column.header not in ("what it is", "licence"), "fold"
    for each in NAMED.values():
        megabytes = f"{each.size / 1e6:.1f}" if each.files else ""
        here = "yes" if locate(each, directory) else "no"
        listing.add_row(each.name, each.what, f"{each.pictures:,}", megabytes, each.licence, here)
    print_table(listing)
    console.print(f"\nThe data directory is {directory}. Fetch one: vitral fetch mnist", soft_wrap=True)


def _fetch(named_set: "NamedSet", directory: Path) -> None:
    """Fetch a set unless it is here; print its licence, what to cite, and where it is."""
    from vitral.data.sources.named import locate

    _print(f"{named_set.name}: {named_set.what}. {named_set.pictures:,} pictures, {named_set.classes} classes.")
    _print(f"  licence  {named_set.licence}")
    _print(f"  cite     {named_set.cite}")
    before = locate(named_set, directory)
    if before and before.kind == "embedded":
        _print("  here     nothing to fetch")
        return
    files = () if before else _fetch_with_bar(named_set, directory)
    for each in files:
        check = "as published" if each.file.sha256 else "there is no published one to compare it with"
        _print(f"  sha256   {each.sha256}  {Path(each.file.path).name} ({check})")
    place = before or locate(named_set, directory)
    _print(f"  here     {place.path if place else directory}{'' if files else ' (already)'}")


def _fetch_with_bar(named_set: "NamedSet", directory: Path) -> "tuple[Fetched, ...]":
    """Fetch the files of a set, with a bar for each on stderr."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from vitral.data.fetch import fetch

    if named_set.files:
        _print(f"  size     {named_set.size / 1e6:.1f} MB, into {directory}")
    errors = Screen(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        tasks = {file: bar.add_task(Path(file.path).name, total=file.size, visible=False) for file in named_set.files}

        def progress(file: "RemoteFile", here: int) -> None:
            bar.update(tasks[file], completed=here, visible=True)

        def tell(sentence: str) -> None:
            if errors.is_terminal:
                errors.print(sentence)
            else:
                print(sentence, file=sys.stderr, flush=True)

        return fetch(named_set, directory, progress=progress, tell=tell)


def _print(line: str) -> None:
    console.print(line, soft_wrap=True)
