"""vitral compare RUN…"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitral.cli import completion
from vitral.cli.terminal import console, print_table, table
from vitral.errors import printable

if TYPE_CHECKING:
    from vitral.evaluation.compare import Comparison, Group


@click.command()
@click.argument(
    "runs", metavar="RUN…", type=click.Path(path_type=Path), nargs=-1, required=True, shell_complete=completion.runs
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for curves.png (default: comparisons/NAME-NAME).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Put runs side by side: settings that differ, numbers, learning curves.

    A RUN may also be a folder that holds runs. Runs that differ only in train.seed are told together, as mean ± sd.
    """
    from vitral.evaluation.compare import compare, draw, place_for

    comparison = compare(runs)
    path = draw(comparison, out or place_for(comparison))
    if as_json:
        click.echo(json.dumps(comparison.write() | {"figure": str(path)}))
        return
    print_comparison(comparison)
    console.print(f"Look at {path}", soft_wrap=True)


def print_comparison(comparison: "Comparison") -> None:
    """Print a column a group: its settings, then its numbers; and below them the verdicts."""
    settings = comparison.settings
    first = max(map(len, [*settings, "validation accuracy", *comparison.measures]))
    # On a narrow terminal a few columns at a time, so that no number is cut.
    at_once = max(1, (console.width - first) // 26) if console.is_terminal else len(comparison.groups)
    for start in range(0, len(comparison.groups), at_once):
        _print_columns(comparison, slice(start, start + at_once))
        console.print()
    for pair in comparison.pairs:
        console.print(printable(pair.verdict), soft_wrap=True, style="bold")
    for note in comparison.notes:
        console.print(f"Note: {printable(note)}", soft_wrap=True)


def _print_columns(comparison: "Comparison", columns: slice) -> None:
    """Print some of the groups, one a column."""
    from vitral.evaluation.compare import in_words

    groups = comparison.groups[columns]
    names = [printable(group.name) for group in groups]
    listing = table("", *names, right=tuple(names))
    for name, values in comparison.settings.items():
        listing.add_row(name, *map(_setting, values[columns]))
    if comparison.settings:
        listing.add_row()
    listing.add_row("runs", *(str(len(group.members)) for group in groups))
    for measure in comparison.measures:
        if measure.startswith("test_") or any(group.values(measure) for group in comparison.groups):
            listing.add_row(printable(in_words(measure)), *(cell(group, measure) for group in groups))
    print_table(listing)


def _setting(value: Any) -> str:
    """A setting as text, and a dash where a group has none."""
    if value is None:
        return "–"
    return printable(value) if isinstance(value, str) else json.dumps(value)


def cell(group: "Group", measure: str) -> str:
    """A measure of a group as text: mean ± sd over the runs that have it; of one run the number, and its interval."""
    from vitral.evaluation.compare import mean_sd, words

    values = group.values(measure)
    if not values:
        return "not evaluated" if measure.startswith("test_") else "–"
    mean, sd = mean_sd(values)
    text = words(mean, measure)
    if interval := group.interval(measure):
        text += f" ({' to '.join(words(end, measure) for end in interval)})"
    if sd is not None and not (measure == "steps" and sd == 0):
        text += f" ± {words(sd, measure)}"
    return text if len(values) == len(group.members) else f"{text} ({len(values)} of {len(group.members)})"
