"""vitral fetch [NAME…]"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli.terminal import console, print_table, table

if TYPE_CHECKING:
    from vitral.data.fetch import Fetched
    from vitral.data.sources.named import NamedSet, RemoteFile


def _names(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    from vitral.data.sources.named import NAMED

    return [name for name in NAMED if name.startswith(typed)]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_names)
def command(names: tuple[str, ...]) -> None:
    """Fetch sets of pictures by NAME, or list them.

    They go into the data directory: VITRAL_DATA, or else the user's cache (~/.cache/vitral). Every file is checked
    against its published sha256 where there is one. A fetch that was stopped goes on where it stopped.
    """
    from vitral.data.sources.named import data_directory, named

    directory = data_directory()
    wanted = [named(name) for name in names]  # all of them known before the first is fetched
    if not wanted:
        _list(directory)
    for each in wanted:
        _fetch(each, directory)


def _list(directory: Path) -> None:
    from vitral.data.sources.named import NAMED, locate

    numbers = ("pictures", "MB")
    listed = table("set", "what it is", *numbers, "licence", "here", right=numbers)
    for column in listed.columns:
        column.no_wrap, column.overflow = column.header not in ("what it is", "licence"), "fold"
    for each in NAMED.values():
        megabytes = f"{each.size / 1e6:.1f}" if each.files else ""
        here = "yes" if locate(each, directory) else "no"
        listed.add_row(each.name, each.what, f"{each.pictures:,}", megabytes, each.licence, here)
    print_table(listed)
    console.print(f"\nThe data directory is {directory}. Fetch one: vitral fetch mnist", soft_wrap=True)


def _fetch(wanted: "NamedSet", directory: Path) -> None:
    from vitral.data.sources.named import locate

    _say(f"{wanted.name}: {wanted.what}. {wanted.pictures:,} pictures, {wanted.classes} classes.")
    _say(f"  licence  {wanted.licence}")
    _say(f"  cite     {wanted.cite}")
    before = locate(wanted, directory)
    if before and before.kind == "embedded":
        _say("  here     nothing to fetch")
        return
    fetched = () if before else _with_a_bar(wanted, directory)
    for each in fetched:
        told = "as published" if each.file.sha256 else "there is no published one to compare it with"
        _say(f"  sha256   {each.sha256}  {Path(each.file.path).name} ({told})")
    found = before or locate(wanted, directory)
    _say(f"  here     {found.path if found else directory}{'' if fetched else ' (already)'}")


def _with_a_bar(wanted: "NamedSet", directory: Path) -> "tuple[Fetched, ...]":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from vitral.data.fetch import fetch

    if wanted.files:
        _say(f"  size     {wanted.size / 1e6:.1f} MB, into {directory}")
    bar = Console(stderr=True, markup=False, highlight=False, emoji=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=bar, transient=True, disable=not bar.is_terminal) as shown:
        tasks = {file: shown.add_task(Path(file.path).name, total=file.size, visible=False) for file in wanted.files}

        def progress(file: "RemoteFile", here: int) -> None:
            shown.update(tasks[file], completed=here, visible=True)

        def tell(sentence: str) -> None:
            if bar.is_terminal:
                bar.print(sentence)
            else:
                print(sentence, file=sys.stderr, flush=True)

        return fetch(wanted, directory, progress=progress, tell=tell)


def _say(line: str) -> None:
    console.print(line, soft_wrap=True)
