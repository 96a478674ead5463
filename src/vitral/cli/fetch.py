"""vitral fetch [NAME…]"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli.terminal import Screen, console, print_table, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import TaskID

    from vitral.data.fetch import Fetched, Progress, Tell
    from vitral.data.sources.named import NamedSet, RemoteFile
    from vitral.weights.catalogue import NamedWeights


def _names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """For completion: the named sets and weights that begin so."""
    from vitral.data.sources.named import NAMED
    from vitral.deploy.web.runtime import NAME
    from vitral.weights.catalogue import NAMED_WEIGHTS

    return [name for name in (*NAMED, *NAMED_WEIGHTS, NAME) if name.startswith(incomplete)]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_names)
def command(names: tuple[str, ...]) -> None:
    """Fetch sets of pictures, or weights, by NAME; or list them. `onnxruntime-web` is what pages are made with
    (vitral export RUN page.html).

    They go into the data directory: VITRAL_DATA, or else the user's cache (~/.cache/vitral). Every file is checked
    against its published sha256 where there is one. A fetch that was stopped goes on where it stopped.
    """
    from vitral.data.sources.named import NAMED, data_directory
    from vitral.deploy.web.runtime import NAME
    from vitral.errors import RecipeError
    from vitral.settings import unknown
    from vitral.weights.catalogue import NAMED_WEIGHTS

    directory = data_directory()
    for name in names:  # all of them known before the first is fetched
        if name not in (*NAMED, *NAMED_WEIGHTS, NAME):
            raise RecipeError(unknown(name, [*NAMED, *NAMED_WEIGHTS, NAME], "named set or weights"))
    if not names:
        _list(directory)
    for name in names:
        if name in NAMED:
            _fetch_set(NAMED[name], directory)
        elif name == NAME:
            _fetch_runtime(directory)
        else:
            _fetch_weights(NAMED_WEIGHTS[name], directory)


def _list(directory: Path) -> None:
    """Print the named sets and weights, and which of them are here."""
    from vitral.data.sources.named import NAMED, find
    from vitral.deploy.web.runtime import NAME, SIZE, VERSION, is_here
    from vitral.weights.catalogue import NAMED_WEIGHTS

    numbers = ("pictures", "MB")
    listing = table("set", "what it is", *numbers, "licence", "here", right=numbers)
    weights = table("weights", "what they are", "MB", "licence", "here", right=("MB",))
    for column in (*listing.columns, *weights.columns):
        column.no_wrap, column.overflow = column.header not in ("what it is", "what they are", "licence"), "fold"
    for each in NAMED.values():
        megabytes = f"{each.size / 1e6:.1f}" if each.files else ""
        place = find(each)
        here = ("as torchvision's" if place.note else "yes") if place else "no"
        listing.add_row(each.name, each.what, f"{each.pictures:,}", megabytes, each.licence, here)
    for one in NAMED_WEIGHTS.values():
        here = "yes" if one.is_here(directory) else "no"
        weights.add_row(one.name, one.what, f"{one.megabytes:.1f}", one.licence, here)
    print_table(listing)
    console.print()
    print_table(weights)
    facts = f"{NAME} {VERSION}, {SIZE / 1e6:.1f} MB, MIT, {'here' if is_here(directory) else 'not here'}"
    console.print(f"\nFor pages (vitral export RUN page.html): {facts}", soft_wrap=True)
    console.print(f"\nThe data directory is {directory}. Fetch one: vitral fetch mnist", soft_wrap=True)


def _fetch_set(named_set: "NamedSet", directory: Path) -> None:
    """Fetch a set unless it is here; print its licence, what to cite, and where it is."""
    from vitral.data.fetch import fetch
    from vitral.data.sources.named import locate

    _print(f"{named_set.name}: {named_set.what}. {named_set.pictures:,} pictures, {named_set.classes} classes.")
    _print(f"  licence  {named_set.licence}")
    _print(f"  cite     {named_set.cite}")
    before = locate(named_set, directory)
    if before and before.kind == "embedded":
        _print("  here     nothing to fetch")
        return
    if named_set.files and not before:
        _print(f"  size     {named_set.size / 1e6:.1f} MB, into {directory}")
    files = (
        () if before else _with_bar(lambda progress, tell: fetch(named_set, directory, progress=progress, tell=tell))
    )
    _print_digests(files)
    place = before or locate(named_set, directory)
    _print(f"  here     {place.path if place else directory}{'' if files else ' (already)'}")


def _fetch_weights(weights: "NamedWeights", directory: Path) -> None:
    """Fetch weights unless they are here; print their licence, what to cite, and where they are."""
    from vitral.weights.fetch import fetch_weights

    _print(f"{weights.name}: {weights.what}. {weights.parameters:,} parameters.")
    _print(f"  licence  {weights.licence}")
    _print(f"  cite     {weights.cite}")
    before = weights.is_here(directory)
    if not before:
        _print(f"  size     about {weights.megabytes:.1f} MB, into {directory}")
    files = _with_bar(lambda progress, tell: fetch_weights(weights, directory, progress=progress, tell=tell))
    _print_digests(files)
    if weights.is_pickle and not before:
        _print("  pickle   of which the tensors alone were read, into model.safetensors; it was not kept")
    _print(f"  here     {directory / 'weights' / weights.name}{' (already)' if before else ''}")


def _fetch_runtime(directory: Path) -> None:
    """Fetch what runs models in pages unless it is here; print its licence, and where it is."""
    from vitral.deploy.web import runtime

    _print(f"{runtime.NAME} {runtime.VERSION}: {runtime.WHAT}.")
    _print("  licence  MIT, copyright (c) Microsoft Corporation")
    before = runtime.is_here(directory)
    if not before:
        _print(f"  size     {runtime.SIZE / 1e6:.1f} MB, into {directory}")
    _print_digests(_with_bar(lambda progress, tell: runtime.fetch_runtime(directory, progress=progress, tell=tell)))
    _print(f"  here     {runtime.runtime_folder(directory)}{' (already)' if before else ''}")


def _print_digests(files: "tuple[Fetched, ...]") -> None:
    for each in files:
        check = "as published" if each.file.sha256 else "there is no published one to compare it with"
        _print(f"  sha256   {each.sha256}  {Path(each.file.path).name} ({check})")


def _with_bar(fetching: "Callable[[Progress, Tell], tuple[Fetched, ...]]") -> "tuple[Fetched, ...]":
    """Fetch files, with a bar for each on stderr."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    errors = Screen(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        tasks: dict[RemoteFile, TaskID] = {}

        def progress(file: "RemoteFile", here: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(Path(file.path).name, total=file.size)
            bar.update(tasks[file], completed=here)

        def tell(sentence: str) -> None:
            if errors.is_terminal:
                errors.print(sentence)
            else:
                print(sentence, file=sys.stderr, flush=True)

        return fetching(progress, tell)


def _print(line: str) -> None:
    console.print(line, soft_wrap=True)
