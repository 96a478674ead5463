"""What the commands print on: colour and bars for people, plain lines where nobody looks (NO_COLOR is honoured)."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.progress import TaskID

    from vitral.progress import Progress

LONG = 1_000  # pictures or steps, from which a log should not be silent

# For commands that open a run: its model or objective may be in a user's own file.
code_option = click.option(
    "--code",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A Python file that RUN was made with, and that may be run.",
)


class Screen(Console):
    """No markup, because a file may be called [bold]; no painted numbers; a line is a line where nobody looks."""

    def __init__(self) -> None:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # as everywhere else in Python; `main` knows what to do


console = Screen()


class ProgressBar:
    """A listener to Progress: a bar for each kind of work; in a log, a line for each that takes long.

    On stderr, so that what a program reads from stdout is the answer alone.
    """

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        errors = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def __call__(self, progress: "Progress") -> None:
        words = "waiting for another process" if progress.waiting else progress.doing
        if words not in self.tasks:
            self.tasks[words] = self.bar.add_task(words, total=progress.total, completed=progress.done)
            if self.bar.disable and progress.total > LONG:
                before = f", {progress.done:,} of them done before" if progress.done else ""
                click.echo(f"{words}: {progress.total:,}{before} …", err=True)
        self.bar.update(self.tasks[words], completed=progress.done, total=progress.total)

    def print(self, sentence: str) -> None:
        """Print a sentence above the bar, on stdout."""
        self.bar.stop()
        console.print(sentence)
        self.bar.start()


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table without lines; the columns named in `right` are numbers."""
    listing = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for name in columns:
        listing.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    return listing


def print_table(listing: Table) -> None:
    """Print a table; where nobody looks, as wide as it needs to be, so that no cell is cut."""
    if console.is_terminal:
        console.print(listing)
        return
    wide = Console(highlight=False, markup=False, emoji=False, width=10_000, color_system=None)
    with wide.capture() as capture:
        wide.print(listing)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def duration(seconds: float) -> str:
    """Seconds as one says them.

    >>> duration(0.2), duration(48.6), duration(150), duration(9000)
    ('1 s', '49 s', '2 min 30 s', '2 h 30 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def printable(text: str) -> str:
    """A text with newlines, control characters and bytes that are no text spelt out, so that a terminal is safe."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def settings_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`train.epochs=5 …` as a dict."""
    from vitral.recipe import parse_setting

    return dict(parse_setting(pair) for pair in pairs)
