"""What the commands print on: colour and bars for people, plain lines where nobody looks (NO_COLOR is honoured)."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitral.errors import printable

if TYPE_CHECKING:
    from rich.progress import TaskID

    from vitral.progress import Progress
    from vitral.recipe import Recipe

Item = TypeVar("Item")
WAIT, EVERY = 2.0, 10.0  # seconds of work until a log says so for the first time, and then between two lines

# For commands that open a run: its model or objective may be in a user's own file.
code_option = click.option(
    "--code",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A Python file that RUN was made with, and that may be run.",
)


class Screen(Console):
    """No markup, because a file may be called [bold]; no painted numbers; a line is a line where nobody looks."""

    def __init__(self, **options: Any) -> None:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every line and every cell of a table passes here: no name in it steers the terminal."""
        return super().render_str(printable(text, keep="\n"), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # as everywhere else in Python; `main` knows what to do


console = Screen()


class ProgressLog:
    """A listener to Progress where nobody looks: lines on stderr about work that takes long.

    A thread says them: the work itself may be at one and the same place for minutes.
    """

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.started_at = 0.0
        self.timer: Timer | None = None

    def __call__(self, progress: "Progress") -> None:
        before, self.progress = self.progress, progress
        if before is None or progress.doing != before.doing:
            self.started_at = time.perf_counter()
            self.wait(WAIT)

    def wait(self, seconds: float) -> None:
        """Say nothing for so long."""
        self._cancel()
        self.timer = Timer(seconds, self._say)
        self.timer.daemon = True  # it ends with the program, however that ends
        self.timer.start()

    def stop(self) -> None:
        """Say nothing more, until the next progress."""
        self.progress = None  # a timer that has just run out sees it
        self._cancel()

    def _cancel(self) -> None:
        if self.timer:
            self.timer.cancel()

    def _say(self) -> None:
        if (progress := self.progress) is None or progress.done >= progress.total:
            return
        count = f" {progress.done:,} of {progress.total:,}," if progress.total > 1 else ""
        took = duration(time.perf_counter() - self.started_at)
        with suppress(OSError, ValueError):  # nobody can hear it
            click.echo(f"{progress.words}:{count} {took} so far", err=True)
        self.wait(EVERY)


class ProgressBar:
    """A listener to Progress: a bar for each kind of work; in a log, a line now and then.

    On stderr, so that what a program reads from stdout is the answer alone.
    """

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        errors = Screen(stderr=True)
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
        self.log = ProgressLog() if self.bar.disable else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away; the next progress brings it back."""
        self.bar.stop()
        if self.log:
            self.log.stop()

    def __call__(self, progress: "Progress") -> None:
        self.bar.start()
        if self.log:
            self.log(progress)
        words = progress.words
        if words not in self.tasks:
            for task in self.tasks.values():  # what came before is done
                self.bar.update(task, visible=False)
            self.tasks[words] = self.bar.add_task(words, total=progress.total, completed=progress.done)
            if self.log and 0 < progress.done < progress.total:
                click.echo(f"{words}: {progress.done:,} of {progress.total:,} were done before", err=True)
        self.bar.update(self.tasks[words], completed=progress.done, total=progress.total, visible=True)

    def print(self, sentence: str) -> None:
        """Print a sentence above the bar, on stdout."""
        self.stop()
        console.print(sentence)


def track(work: Iterable[Item], total: int, doing: str) -> Iterator[Item]:
    """The items of the work, and a bar of how many there are so far."""
    from vitral.progress import Progress

    with ProgressBar() as tell:
        tell(Progress(0, total, doing))
        for done, item in enumerate(work, start=1):
            yield item
            tell(Progress(done, total, doing))


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
    wide = Screen(width=10_000, color_system=None)
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


def settings_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`train.epochs=5 …` as a dict."""
    from vitral.recipe import parse_setting

    return dict(parse_setting(pair) for pair in pairs)


def with_settings(recipe: "Recipe", settings: dict[str, Any]) -> "Recipe":
    """The recipe with these settings; on stderr, which ones went with another kind of a part."""
    for sentence in recipe.dropped(settings):
        click.echo(printable(sentence), err=True)
    return recipe.changed(settings)
