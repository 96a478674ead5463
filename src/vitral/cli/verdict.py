"""Of `vitral pretrain`, with --verdict: for each seed a training with learning without labels first, and one without,
in equal time; then what they are worth on the same test pictures."""

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitral.cli.terminal import ProgressBar, console, duration, print_table, table
from vitral.cli.train import train_run
from vitral.errors import RunError, printable
from vitral.processes import Processes

if TYPE_CHECKING:
    from vitral.data.sources import Index
    from vitral.evaluation.verdict import Asked, Verdict
    from vitral.inference import Source
    from vitral.recipe import Recipe
    from vitral.recipes.verdict import Trial
    from vitral.run import Run

MEASURING = 0.05  # of the time of a training: what is measured and drawn afterwards
PROBING = 60.0  # seconds for each seed


def verdict(
    source: str | None,
    settings: Mapping[str, Any],
    labelled: str | None,
    seeds: int | None,
    share: float | None,
    out: Path | None,
    resume: bool,
    dry_run: bool,
    save_every: float,
) -> None:
    """Train what tells whether it helps, print the answer, and write it into the folder `out`."""
    from vitral.evaluation.report.verdict import write_verdict_report
    from vitral.evaluation.verdict import VERDICT, read_verdict
    from vitral.recipes.verdict import choose_trial
    from vitral.run import free_folder, last_name

    asked = _asked(source, settings, labelled, seeds, share, out if resume else None)
    with ProgressBar() as tell:
        trial = choose_trial(asked.source, asked.settings, asked.labelled, asked.share, tell)
    folder = out or free_folder(f"{last_name(asked.source)}-verdict")
    _print_trial(trial, asked)
    goes_on = _is_asked(folder) and resume
    begins = f"{_forecast(trial, asked)} Into {folder}." if not goes_on else f"What is done in {folder} stays as it is."
    console.print(f"{begins}\n", soft_wrap=True)
    if dry_run:
        console.print("Nothing was trained.")
        return
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if not resume and there - {VERDICT}:  # where nothing was trained, something else may be asked
        raise RunError(
            f"{folder} is not empty, and nothing is overwritten. Go on there with --resume, or choose another place "
            "with --out."
        )
    if not goes_on:
        asked.write(folder)
    try:
        for number in range(asked.seeds):
            _train_seed(trial, asked, folder, number, save_every)
        result = read_verdict(folder, asked)
    except KeyboardInterrupt:
        console.print(f"What was done is kept. Go on from here:\n    {_again(folder)}", soft_wrap=True)
        raise
    asked.write(folder, result.write())
    report = write_verdict_report(result)
    _print_verdict(result)
    console.print(f"Open {report}", soft_wrap=True)


def _again(folder: Path) -> str:
    import shlex

    return printable(shlex.join(["vitral", "pretrain", "--out", str(folder), "--resume"]))


def _asked(
    source: str | None,
    settings: Mapping[str, Any],
    labelled: str | None,
    seeds: int | None,
    share: float | None,
    earlier: Path | None,
) -> "Asked":
    """What is asked now; of a folder that goes on, what was asked there."""
    import click

    from vitral.evaluation.verdict import Asked
    from vitral.recipes.verdict import SHARE

    before = Asked.load(earlier) if earlier else None
    if before is None and source is None:
        raise click.UsageError("Missing argument 'FOLDER|FILE|NAME': there is no verdict to go on with.")
    if before is None:
        return Asked(
            source=source or "",
            labelled=labelled or "",
            settings=dict(settings),
            seeds=seeds or 3,
            share=SHARE if share is None else share,
        )
    now = {"source": source, "labelled": labelled, "settings": dict(settings) or None, "seeds": seeds, "share": share}
    for name, value in now.items():
        if value is not None and value != getattr(before, name):
            raise RunError(
                f"{earlier} was begun with other {name} ({getattr(before, name)}, and now {value}). Go on with: "
                f"{_again(earlier or Path())}"
            )
    return before


def _is_asked(folder: Path) -> bool:
    from vitral.evaluation.verdict import VERDICT

    return (folder / VERDICT).exists()


def _print_trial(trial: "Trial", asked: "Asked") -> None:
    """Print what is learnt from, and how."""
    for reason in trial.why:
        console.print(printable(reason), soft_wrap=True)
    index, labels = trial.labelled, trial.unlabelled
    console.print(
        f"{len(labels.of('train')):,} pictures without labels; {len(index.of('train')):,} with labels to learn from, "
        f"{len(index.of('validation')):,} to validate, {len(index.of('test')):,} to test, of "
        f"{len(index.class_names)} classes.",
        soft_wrap=True,
    )
    if trial.copies and asked.labelled:
        console.print(f"{trial.copies:,} pictures without labels are copies of test pictures: not learnt from.")


def _forecast(trial: "Trial", asked: "Asked") -> str:
    """A sentence on how long all of it takes."""
    from vitral.training.config import parse_budget

    seconds, steps = parse_budget(trial.budget)
    times = "once" if asked.seeds == 1 else f"{asked.seeds} times"
    first = parse_budget(trial.pretraining.train.budget)
    if seconds:
        way = f"{trial.budget} with learning without labels first ({duration(first[0])} of it), {trial.budget} without"
    else:
        way = f"{steps:,} steps with learning without labels first ({first[1]:,} of them), {steps:,} steps without"
    total = asked.seeds * (_seconds(trial, seconds, steps, first[1]) * (1 + MEASURING) + PROBING) + _packing(trial)
    ends_at = datetime.now() + timedelta(seconds=total)
    day = "" if ends_at.date() == datetime.now().date() else f"{ends_at:%d %B}, "
    return f"{times.capitalize()} {way}: about {duration(total)} in all, until {day}{ends_at:%H:%M}."


def _seconds(trial: "Trial", seconds: float, steps: int, first: int) -> float:
    """What a seed takes, without measuring: by the time that was set, or by a step of each kind."""
    from vitral.training.forecast import forecast_training

    if seconds:
        return 2 * seconds
    without = forecast_training(trial.pretraining, trial.unlabelled).step or 0.0
    return first * without + (2 * steps - first) * (forecast_training(trial.supervised, trial.labelled).step or 0.0)


def _packing(trial: "Trial") -> float:
    """What is not in a budget of steps: pictures that have to be decoded first."""
    from vitral.training.config import parse_budget

    if parse_budget(trial.budget)[0]:
        return 0.0
    from vitral.data.pack import forecast_packing
    from vitral.data.sources.named import data_directory
    from vitral.training.preparation import complete, preprocess_of

    recipe, index = trial.pretraining, trial.unlabelled
    preprocess = preprocess_of(recipe, complete(recipe.model, index, needs_labels=False))
    return forecast_packing(index, preprocess, data_directory(recipe.data.directory)).seconds


def _train_seed(trial: "Trial", asked: "Asked", folder: Path, number: int, save_every: float) -> None:
    """The three trainings of a seed, and what the features are worth as they are: all that is not done yet."""
    from vitral.evaluation.verdict import FINETUNED, PRETRAINED, SUPERVISED, seed_folder
    from vitral.run import Run

    seed, which = seed_folder(folder, number), f"{number + 1} of {asked.seeds}"
    first = trial.seeded(trial.pretraining, number)
    common: dict[str, Any] = {"save_every": save_every, "again": _again(folder)}
    _train(seed / PRETRAINED, f"Without labels, {which}", lambda: first, trial.unlabelled, **common)
    pretrained = Run.load(seed / PRETRAINED)
    _probe(trial, seed, pretrained, first)
    _train(
        seed / FINETUNED,
        f"And then with labels, {which}",
        lambda: trial.finetuned(pretrained),
        trial.labelled,
        **common,
    )
    alone = trial.seeded(trial.supervised, number)
    _train(seed / SUPERVISED, f"With labels alone, {which}", lambda: alone, trial.labelled, **common)


def _train(folder: Path, words: str, recipe_of: Any, index: "Index", save_every: float, again: str) -> None:
    """One training, unless it is done and, with labels, measured; one that was begun goes on as it was begun."""
    from vitral.evaluation.verdict import PRETRAINED
    from vitral.run import Run

    earlier = Run.load(folder) if Run.is_run(folder) else None
    if earlier and earlier.record.state == "finished" and (earlier.evaluation or folder.name == PRETRAINED):
        return
    console.print(words, style="bold")
    recipe: Recipe | None = None if earlier else recipe_of()
    train_run(recipe, folder, True, save_every, time.perf_counter(), Processes(), again, source=index)
    console.print()


def _probe(trial: "Trial", seed: Path, pretrained: "Run", recipe: "Recipe") -> None:
    """Linear probes of the model that has learnt without labels, and of the same before its first step."""
    import json

    from vitral.evaluation.probe import probe
    from vitral.evaluation.verdict import PROBES
    from vitral.files import write_whole
    from vitral.training.preparation import prepared
    from vitral.weights.own import Weights

    def trained() -> "Source":
        return pretrained

    def untrained() -> "Source":
        plan = prepared(recipe, index=trial.unlabelled)
        return Weights(plan.learner.model.eval(), plan.preprocess, ())

    for name, weights_of in zip(PROBES, (trained, untrained), strict=True):
        if not (seed / name).exists():
            with ProgressBar() as tell:
                result = probe(weights_of(), trial.labelled, tell=tell)
            write_whole(seed / name, json.dumps(result.write(), indent=1) + "\n")


def _print_verdict(result: "Verdict") -> None:
    """Print a table of the ways, the answer, and what to do."""
    seeds = len(result.runs)
    each = tuple(f"seed {number + 1}" for number in range(seeds)) if 1 < seeds <= 5 else ()
    listing = table("", "right", *each, right=("right", *each))
    for way in result.ways:
        listing.add_row(way.name, way.words, *(f"{share:.1%}" for share in way.accuracies[: len(each)]))
    print_table(listing)
    console.print()
    console.print(result.sentence, style="bold", soft_wrap=True)
    console.print(result.basis, soft_wrap=True)
    for sentence, command in result.advice:
        console.print(sentence, soft_wrap=True)
        for line in command.splitlines():
            console.print(f"    {printable(line)}", soft_wrap=True)
