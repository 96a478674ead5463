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
    from vitral.evaluation.probe_results import Method, ProbeResult, TargetProbe, TargetsProbeResult

SHOW = 3  # pictures that it has wrong


@click.command()
@click.argument("weights", metavar="RUN|WEIGHTS", shell_complete=completion.runs)
@click.argument("source", metavar="FOLDER|FILE|NAME")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--out", type=click.Path(path_type=Path), help="Where the results are kept. Default: probes/NAME.")
@click.option("--patches", is_flag=True, help="Also a regression on what it sees in each patch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(
    weights: str,
    source: str,
    settings: tuple[str, ...],
    out: Path | None,
    patches: bool,
    as_json: bool,
    code: tuple[Path, ...],
) -> None:
    """Say whether a backbone is good for your pictures, without training it.

    RUN|WEIGHTS is a run, a file or folder of weights, a name in weights/ of the data directory, or hf:org/model.
    What it sees in the training pictures teaches nearest neighbours and a logistic regression, which answer for the
    test pictures; of several labels, a number or several tasks a regression learns each. With --patches also what it
    sees in each patch does: every patch answers, and their mean counts. The result is kept in --out,
    and other backbones that were probed there on the same pictures are shown beside it.
    """
    from vitral.evaluation.probe import probe
    from vitral.evaluation.probe_results import ProbeResult
    from vitral.run import last_name

    folder = out or Path("probes") / last_name(source)
    with ProgressBar() as tell:
        result = probe(weights, data_of(source, settings), patches=patches, tell=tell, code=code)
    path = result.save(folder)
    if as_json:
        others = [one.write() for one in result.others(folder)]
        click.echo(json.dumps({**result.write(), "others": others}))
        return
    for note in result.notes:
        console.print(printable(note))
    if isinstance(result, ProbeResult):
        _print_probe(result, result.others(folder))
    else:
        _print_targets(result, result.others(folder))
    console.print(f"{duration(result.seconds)}. Kept in {path}", soft_wrap=True)
    words = printable(shlex.join([source, *settings, f"init.weights={weights}"]))
    console.print(f"A model of your own: vitral train {words}", soft_wrap=True)


def _print_probe(result: "ProbeResult", others: list["ProbeResult"]) -> None:
    """Print the scores of a backbone beside others, and what they say."""
    pictures = f"{result.learnt:,} pictures of {result.classes:,} classes to learn from (train and validation)"
    console.print(f"{pictures}, {result.tested:,} to test.\n")
    listing = table("weights", "method", "right", "accuracy", "95 % interval", right=("right", "accuracy"))
    for one in sorted([result, *others], key=lambda one: -one.linear.right):
        style = "bold" if one is result and others else ""
        listing.add_row(printable(one.weights), "linear", *_cells(one, one.linear), style=style)
        listing.add_row("", "kNN", *_cells(one, one.knn), style=style)
        if one.patches:
            listing.add_row("", "patches", *_cells(one, one.patches), style=style)
    print_table(listing)
    best = result.linear.accuracy
    score = f"{best.value:.0%} right ({best.low:.0%} to {best.high:.0%})"
    guessing = f"always saying the most frequent class has {result.guessing:.0%}"
    console.print(f"\n{_verdict(result)}: {score}; {guessing}.", soft_wrap=True)
    if wrong := result.linear.wrong[:SHOW]:
        more = f" and {len(result.linear.wrong) - SHOW} more" if len(result.linear.wrong) > SHOW else ""
        console.print(printable(f"Wrong: {', '.join(wrong)}{more}."), soft_wrap=True)
    linear, knn = (f"{one.features}, {one.setting}" for one in (result.linear, result.knn))
    patches = f"; for patches {result.patches.setting}" if result.patches else ""
    console.print(f"Chosen by cross-validation: {linear}; for kNN {knn}{patches}.", soft_wrap=True)
    for other in others:
        console.print(printable(result.against(other).verdict), soft_wrap=True)


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


GUESSING = {
    "class": "always saying the most frequent class has",
    "labels": "saying the same of every picture has",
    "number": "always saying the mean has",
}


def _print_targets(result: "TargetsProbeResult", others: list["TargetsProbeResult"]) -> None:
    """Print the figures of each target beside those of other backbones, and what they say."""
    from vitral.evaluation.target_metrics import METRICS_OF

    console.print(f"{result.learnt:,} pictures to learn from (train and validation), {result.tested:,} to test.\n")
    listing = table("weights", "target", "figure", "value", "95 % interval", right=("value",))
    for one in sorted([result, *others], key=lambda one: -one.score):
        weights = one.weights
        for target in one.targets:
            name = target.name
            for row in (row for row in METRICS_OF[target.kind] if row.name in target.figures):
                figure = target.figures[row.name]
                known = figure.low is not None and figure.high is not None
                interval = f"{row.text(figure.low or 0)} to {row.text(figure.high or 0)}" if known else ""
                style = "bold" if one is result and others else ""
                cells = (row.title.replace("Mean absolute error", "MAE"), row.text(figure.value), interval)
                listing.add_row(printable(weights), printable(name), *cells, style=style)
                weights = name = ""
    print_table(listing)
    console.print("")
    for target in result.targets:
        console.print(printable(_verdict_of(target)), soft_wrap=True)


def _verdict_of(target: "TargetProbe") -> str:
    """What the figures of a target say, in a sentence or two."""
    from vitral.evaluation.target_metrics import METRICS_OF

    main = next(row for row in METRICS_OF[target.kind] if row.name in target.figures)
    figure = target.figures[main.name]
    if figure.low is None or figure.high is None:
        words = "too few test pictures to tell"
    elif figure.high < target.guess if target.kind == "number" else figure.low > target.guess:
        words = "more than luck"
    else:
        words = "that may be luck"
    score = f"{main.title.lower()} {main.text(figure.value)}; {GUESSING[target.kind]} {main.text(target.guess)}"
    return f"{target.name}: {score}: {words}. Chosen by cross-validation: {target.features}, {target.setting}."
