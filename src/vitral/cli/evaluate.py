"""vitral evaluate RUN|WEIGHTS [DATA]"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import ProgressBar, code_option, console
from vitral.errors import printable

if TYPE_CHECKING:
    from vitral.data.folds import OutOfFold
    from vitral.evaluation.evaluate import Evaluation
    from vitral.evaluation.metrics import Figure
    from vitral.run import Run
    from vitral.targets import Target

SENTENCES = ("accuracy", "loss", "calibration_error")  # figures that have one of their own


@click.command()
@click.argument("run", metavar="RUN|WEIGHTS", type=click.Path(path_type=Path), shell_complete=completion.runs)
@click.argument("data", required=False)
@click.option("--suspects", is_flag=True, help="List the pictures whose label is doubtful: takes some short trainings.")
@click.option("--mirrored", is_flag=True, help="Ask about each picture's mirror image too, and take the mean.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, for programs.")
@code_option
def command(run: Path, data: str | None, suspects: bool, mirrored: bool, as_json: bool, code: tuple[Path, ...]) -> None:
    """Measure RUN on its test pictures; write evaluation.json, a report and figures into its folder.

    With DATA (a folder, a table, an archive or a named set), on all pictures of that, whose classes are found by name;
    what was found is written into RUN/evaluations/. WEIGHTS that are in no run need DATA: evaluation.json and figures
    go to evaluations/NAME/.
    """
    from vitral.evaluation.evaluate import evaluate
    from vitral.processes import join
    from vitral.run import Run, last_name, name_of

    processes = join()
    if suspects:
        if processes.many:
            raise click.UsageError("--suspects is for one process: start it without torchrun.")
        if data or mirrored or as_json:
            raise click.UsageError("--suspects stands alone: it is about the labels that RUN was trained with.")
        _suspects(run, code)
        return
    # Weights have no folder for what is found.
    out = None if data is None or Run.is_run(run) else Path("evaluations") / name_of(run) / last_name(data)
    with ProgressBar() as tell:
        evaluation = evaluate(run, data, mirrored=mirrored, out=out, code=code, tell=tell, processes=processes)
    if not processes.first:
        return
    if as_json:
        click.echo(json.dumps(evaluation.write()))
    else:
        print_evaluation(evaluation)


def _suspects(folder: Path, code: tuple[Path, ...]) -> None:
    """Print and write which labels are doubtful, by models that have not learnt from the picture in question."""
    from vitral.evaluation.suspects import suspects, write_suspects
    from vitral.run import Run
    from vitral.targets import is_one_class

    run = Run.load(folder)
    run.check_writable()
    probes = run.recipe.init.weights != "none" and (not run.has_weights or is_one_class(run.weights(code).targets))
    outputs = _by_probes(run, code) if probes else _by_training(run, code)
    doubtful = suspects(outputs)
    with run.writing():
        write_suspects(doubtful, outputs.pack, run.folder)
    console.print(f"{len(doubtful):,} of {len(outputs.numbers):,} labels are doubtful.", style="bold")
    for line in _accusers(outputs):
        console.print(printable(line), soft_wrap=True)
    targets = dict.fromkeys(one.target for one in doubtful)
    for one in (one for target in targets for one in [one for one in doubtful if one.target == target][:10]):
        answer = one.words if one.far else f"{one.words}, {one.label} {one.label_probability:.0%}"
        label = f"{one.target} {one.label}" if one.far else one.label
        console.print(f"  {printable(one.sample)} is labelled {printable(label)}: {printable(answer)}", soft_wrap=True)
    if doubtful:
        console.print(f"Look at {run.folder}/: suspects.png, suspects.csv", soft_wrap=True)


def _accusers(outputs: "OutOfFold") -> Iterator[str]:
    """How good those are who doubt: of other targets than one class, target by target."""
    import numpy as np

    from vitral.evaluation.target_metrics import METRICS_OF, outcomes_of
    from vitral.targets import columns, is_one_class

    targets, labels, values = outputs.pack.index.targets, outputs.labels, outputs.probabilities
    if is_one_class(targets):
        weak = "." if outputs.accuracy > 0.9 else ": so weak a model accuses many labels that are right."
        yield f"Who doubts them is right for {outputs.accuracy:.1%} of the pictures that it had not seen{weak}"
        return
    for target, mine in zip(targets, columns(targets), strict=True):
        metric = METRICS_OF[target.kind][0]
        value = metric.value(outcomes_of(target, labels[:, mine], values[:, mine]), np.ones(len(labels)))
        of_them = f"{_small(metric.title)} {metric.text(value)} on pictures that it had not seen"
        yield f"Who doubts {target.name} has {of_them}: the weaker it is, the more it accuses that is right."


def _by_training(run: "Run", code: tuple[Path, ...]) -> "OutOfFold":
    """Probabilities for all pictures, by short trainings of the run's recipe."""
    from vitral.progress import Progress, drain
    from vitral.training.folds import TRAINING, out_of_fold

    steps = max(1, run.record.steps // 2)
    each = f"{steps:,} step{'s' if steps > 1 else ''}"
    with ProgressBar() as bar:

        def show(progress: Progress) -> None:
            if progress.doing == TRAINING and not progress.done:
                folds = progress.total // steps
                bar.print(f"Training {folds} times, each time without another part of the pictures; {each}.")
            bar(progress)

        return drain(out_of_fold(run.recipe, steps, sha256=run.record.data.sha256, plugins=run.plugins(code)), show)


def _by_probes(run: "Run", code: tuple[Path, ...]) -> "OutOfFold":
    """Probabilities for all pictures, by linear probes on the weights that the run started from: in a minute."""
    from vitral.evaluation.probe import out_of_fold

    weights = run.recipe.init.weights
    console.print(f"Asking linear probes on {weights}, each without another part of the pictures.", soft_wrap=True)
    with ProgressBar() as tell:
        return out_of_fold(weights, run.recipe.data, run.record.data.sha256, tell=tell, code=code)


def _more(evaluation: "Evaluation") -> Iterator[str]:
    """Sentences on what else is known, and on what is not."""
    from vitral.evaluation.figures import how_many
    from vitral.evaluation.metrics import FEW

    yield from evaluation.notes
    figures = evaluation.metrics.figures
    yield _other_figures(figures)
    apart = f"Probabilities are off by {figures['calibration_error'].value:.1%} on average"
    if evaluation.calibration is not None:
        before, fit = evaluation.uncalibrated.figures["calibration_error"].value, evaluation.calibration.fit
        if fit and not fit.kept:
            yield f"{apart}. The temperature was left at 1, for {fit.fitted:.2f} is no clear gain: {fit}."
        else:
            temperature = f"{before:.1%} before the temperature, {float(evaluation.calibration.temperature):.2f}"
            yield f"{apart} ({temperature}{f', kept: {fit}' if fit else ''})."
    elif evaluation.origin is None:
        yield f"{apart}; beside these weights there is no temperature to mend that."
    elif evaluation.run.record.data.pictures.get("validation"):
        yield f"{apart}: the training was stopped before a temperature was found to mend that."
    else:
        yield f"{apart}; without validation pictures no temperature could be found to mend that."
    untested = [one.name for one in evaluation.metrics.classes if not one.pictures]
    if untested and evaluation.own:
        more = f" and {len(untested) - 5} more classes" if len(untested) > 5 else ""
        yield f"No test picture shows {', '.join(untested[:5])}{more}: nothing is known about that."
    if len(evaluation.groups) > 1:
        worst, figure = next(iter(evaluation.groups.items()))
        yield f"Of {len(evaluation.groups):,} groups {worst} is recognised least: {figure.value:.1%}."
    if evaluation.pictures < FEW:
        few = f"{how_many(evaluation)} {'is' if evaluation.pictures == 1 else 'are'} few"
        yield f"{few}: take these numbers as a first sign, no more."
    if evaluation.origin and (report := evaluation.run.checked):
        yield from (f"In the pictures: {one.what} {one.advice}" for one in report.findings if one.serious)


def _other_figures(figures: "dict[str, Figure]") -> str:
    """One sentence with the figures that have none of their own; those that only many classes have come last."""
    from vitral.evaluation.metrics import METRICS

    rows = [metric for metric in METRICS if metric.name in figures and metric.name not in SENTENCES]
    rows.sort(key=lambda metric: metric.more_classes_than)
    sentence = ", ".join(f"{_small(metric.title)} {metric.text(figures[metric.name].value)}" for metric in rows)
    return f"{sentence[0].upper()}{sentence[1:]}."


def print_evaluation(evaluation: "Evaluation") -> None:
    """Print what a person wants to know first, and where to look."""
    from vitral.evaluation.figures import how_many
    from vitral.targets import is_one_class

    if not is_one_class(evaluation.targets):
        _print_targets(evaluation)
        return
    accuracy = evaluation.metrics.accuracy
    how = " with mirrored pictures" if evaluation.mirrored else ""
    loss, right = ("Test loss", "test accuracy") if evaluation.own else ("Loss", "accuracy")
    calibrated = evaluation.metrics.loss.value
    both = f" ({calibrated:.3f} with the temperature)" if calibrated != evaluation.loss else ""
    console.print(
        f"\n{loss} {evaluation.loss:.3f}{both}, {right}{how} {accuracy.value:.1%} "
        f"of {how_many(evaluation)} (95 % interval {accuracy.low:.1%} to {accuracy.high:.1%}).",
        style="bold",
    )
    for line in _more(evaluation):
        console.print(printable(line), soft_wrap=True)
    _print_places(evaluation)
    if evaluation.baseline:
        console.print(evaluation.baseline.verdict, style="bold")


def _print_targets(evaluation: "Evaluation") -> None:
    """The same where a picture has not one class: some lines for each target."""
    from vitral.evaluation.figures import how_many
    from vitral.evaluation.metrics import FEW

    how = " with mirrored pictures" if evaluation.mirrored else ""
    console.print(f"\nOn {how_many(evaluation)}{how}:")
    for target in evaluation.targets:
        first, *others = _target_lines(evaluation, target)
        console.print(printable(first), style="bold", soft_wrap=True)
        for line in others:
            console.print(printable(line), soft_wrap=True)
    for note in evaluation.notes:
        console.print(printable(note), soft_wrap=True)
    if evaluation.pictures < FEW:
        console.print(f"{how_many(evaluation)} are few: take these numbers as a first sign, no more.")
    _print_places(evaluation)


def _print_places(evaluation: "Evaluation") -> None:
    """Print where to look, and what to do next."""
    figures = sorted(path.name for path in evaluation.folder.glob("*.png") if path.name != "suspects.png")
    if evaluation.origin is None:
        console.print(f"Look at {evaluation.folder}/: evaluation.json, {', '.join(figures)}", soft_wrap=True)
        return
    console.print(f"Open {evaluation.folder}/report.html; as pictures: {', '.join(figures)}", soft_wrap=True)
    if evaluation.left_out:
        again = f"vitral evaluate {evaluation.run.folder}"
        console.print(f"There was no time for {' and '.join(evaluation.left_out)}: {again} takes it.", soft_wrap=True)
    console.print(f"Ask it about a picture: vitral predict {evaluation.run.folder} PICTURE", soft_wrap=True)


def _target_lines(evaluation: "Evaluation", target: "Target") -> Iterator[str]:
    """Its first figure with the interval, the others, and of several labels the one that is found least."""
    from vitral.evaluation.target_metrics import METRICS_OF, LabelsMetrics

    metrics = evaluation.by_target[target.name]
    rows = [row for row in METRICS_OF[target.kind] if row.name in metrics.figures]
    titles = {row.name: _small(row.long_title or row.title) for row in rows}
    values = {row.name: row.text(metrics.figures[row.name].value) for row in rows}
    first, figure = rows[0], metrics.figures[rows[0].name]
    ends = [first.text(end) for end in (figure.low, figure.high) if end is not None]
    interval = f" (95 % interval {' to '.join(ends)})" if ends else ""
    yield f"{target.name}: {titles[first.name]} {values[first.name]}{interval}."
    sentence = ", ".join(f"{titles[row.name]} {values[row.name]}" for row in rows[1:])
    yield f"{sentence[0].upper()}{sentence[1:]}."
    if isinstance(metrics, LabelsMetrics):
        known = [one for one in metrics.labels if one.average_precision is not None]
        if len(known) > 1:
            worst = min(known, key=lambda one: one.average_precision or 0.0)
            precision = f"{worst.average_precision:.1%}"
            yield f"Of {len(known)} labels {worst.name} is found least: its average precision is {precision}."
    if target.name in evaluation.baselines:
        yield evaluation.baselines[target.name].verdict


def _small(title: str) -> str:
    return title[0].lower() + title[1:] if title[1].islower() else title  # R²
