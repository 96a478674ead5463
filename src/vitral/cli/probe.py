"""vitral probe WEIGHTS FOLDER [--out FOLDER] [--json]"""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.embed import data_of
from vitral.cli.terminal import ProgressBar, code_option, console, duration, print_table, table
from vitral.errors import printable

if TYPE_CHECKING:
    from vitral.evaluation.probe import Method, ProbeResult

SHOW = 3  # pictures that it has wrong


@click.command()
@click.argument("weights", metavar="RUN|WEIGHTS", shell_complete=completion.runs)
@click.argument("source", metavar="FOLDER|FILE|NAME")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--out", type=click.Path(path_type=Path), help="Where the results are kept. Default: probes/NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(
    weights: str, source: str, settings: tuple[str, ...], out: Path | None, as_json: bool, code: tuple[Path, ...]
) -> None:
    """Say whether a backbone is good for your pictures, without training it.

    RUN|WEIGHTS is a run, a file or folder of weights, a name in weights/ of the data directory, or hf:org/model.
    What it sees in the training pictures teaches nearest neighbours and a logistic regression, which answer for the
    test pictures. The result is kept in --out, and other backbones that were probed there on the same pictures are
    shown beside it.
    """
    from vitral.evaluation.probe import probe
    from vitral.run import last_name

    folder = out or Path("probes") / last_name(source)
    with ProgressBar() as tell:
        result = probe(weights, data_of(source, settings), tell=tell, code=code)
    path = result.save(folder)
    others = result.others(folder)
    if as_json:
        click.echo(json.dumps({**result.write(), "others": [one.write() for one in others]}))
    else:
        _print_probe(result, others, path)
        words = printable(shlex.join([source, *settings, f"init.weights={weights}"]))
        console.print(f"A model of your own: vitral train {words}", soft_wrap=True)


def _print_probe(result: "ProbeResult", others: list["ProbeResult"], path: Path) -> None:
    """Print the scores of a backbone beside others, and what they say."""
    for note in result.notes:
        console.print(printable(note))
    pictures = f"{result.learnt:,} pictures of {result.classes:,} classes to learn from (train and validation)"
    console.print(f"{pictures}, {result.tested:,} to test.\n")
    listing = table("weights", "method", "right", "accuracy", "95 % interval", right=("right", "accuracy"))
    for one in sorted([result, *others], key=lambda one: -one.linear.right):
        style = "bold" if one is result and others else ""
        listing.add_row(printable(one.weights), "linear", *_cells(one, one.linear), style=style)
        listing.add_row("", "kNN", *_cells(one, one.knn), style=style)
    print_table(listing)
    best = result.linear.accuracy
    score = f"{best.value:.0%} right ({best.low:.0%} to {best.high:.0%})"
    guessing = f"always saying the most frequent class has {result.guessing:.0%}"
    console.print(f"\n{_verdict(result)}: {score}; {guessing}.", soft_wrap=True)
    if wrong := result.linear.wrong[:SHOW]:
        more = f" and {len(result.linear.wrong) - SHOW} more" if len(result.linear.wrong) > SHOW else ""
        console.print(printable(f"Wrong: {', '.join(wrong)}{more}."), soft_wrap=True)
    linear, knn = (f"{one.features}, {one.setting}" for one in (result.linear, result.knn))
    console.print(f"Chosen by cross-validation: {linear}; for kNN {knn}.", soft_wrap=True)
    for other in others:
        console.print(printable(result.against(other).verdict), soft_wrap=True)
    console.print(f"{duration(result.seconds)}. Kept in {path}", soft_wrap=True)


def _verdict(result: "ProbeResult") -> str:
    """A verdict in a few words, by the lower end of the interval."""
    low = result.linear.accuracy.low or 0.0
    if low <= result.guessing:
        return "That may be luck"
    return "Good for these pictures" if 1 - low < (1 - result.guessing) / 4 else "Of some use for these pictures"


def _cells(result: "ProbeResult", method: "Method") -> tuple[str, ...]:
    accuracy = method.accuracy
    return (
        f"{method.right:,} of {result.tested:,}",
        f"{accuracy.value:.1%}",
        f"{accuracy.low:.1%} to {accuracy.high:.1%}",
    )
