"""The text of the page: words and numbers from evaluation.json, run.json, metrics.jsonl and check.json."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitral.errors import printable
from vitral.evaluation.baseline import TargetComparison
from vitral.evaluation.figures import how_to_read_confusion, how_to_read_curves, of_what
from vitral.evaluation.metrics import FEW, Metric, Metrics
from vitral.evaluation.target_figures import (
    HOW_TO_READ_ERRORS,
    how_to_read_precision_recall,
    how_to_read_said_and_true,
    of_number,
)
from vitral.evaluation.target_metrics import METRICS_OF, LabelsMetrics, NumberMetrics
from vitral.run import CHECKED, Record, Run
from vitral.targets import TargetKind

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation

ROWS = 200  # classes in the table, at most
MOST_UNSORTED = 12  # classes, above which the worst come first
GROUPS = 20  # in the table, at most
PAIRS = 10  # of classes that are confused, at most
UNEVEN = 3  # times more pictures in the largest class than in the smallest
ENOUGH = 10  # pictures of about the same confidence, to say how often they are right


def facts(evaluation: "Evaluation") -> dict[str, Any]:
    """All facts of the page, under the names that the template uses; in `parts` those of each target."""
    run = evaluation.run
    record, recipe = run.record, run.recipe
    return {
        "name": printable(run.folder.resolve().name),
        "source": _last(record.data.source),
        "measured_on": None if evaluation.own else _last(evaluation.pack.index.source),
        "mirrored": evaluation.mirrored,
        "what": of_what(evaluation),
        "pictures": evaluation.pictures,
        "parts": [
            _part(part, place, evaluation.baselines.get(target.name))
            for place, (target, part) in enumerate(zip(evaluation.targets, evaluation.parts, strict=True), start=1)
        ],
        "warnings": [
            *map(printable, evaluation.notes),
            *_serious(run),
            *_warnings(evaluation),
        ],
        "check": _check(run),
        "training": _training(run),
        "curves": printable(how_to_read_curves(run, evaluation.targets)),
        "recipe": recipe.to_toml(),
        "made": _provenance(record, evaluation),
        "comparison": record.comparison,
        "again": f"vitral evaluate {shlex.quote(_place(run.folder))}",
        "look": f"vitral look {shlex.quote(_place(run.folder))} PICTURE",
        "shell": f"vitral predict {shlex.quote(_place(run.folder))} PICTURE",
        "python": f'vitral.Classifier.load({json.dumps(_place(run.folder), ensure_ascii=False)}).predict("PICTURE")',
    }


def _part(part: "Evaluation", place: int, simple: TargetComparison | None) -> dict[str, Any]:
    """What there is to say of a target; `id` begins its places on the page."""
    [target], facts_of = part.targets, {"class": _of_class, "labels": _of_labels, "number": _of_number}
    results = part.write()
    results = results if target.kind == "class" else results["targets"][0]
    return {
        "id": f"{place}-" if part.task else "",
        "task": printable(part.task),
        "kind": target.kind,
        "verdict": _verdict(part, simple),
        "figures": _figures(results, target.kind),
        **facts_of[target.kind](part, results),
    }


def _of_class(part: "Evaluation", results: dict[str, Any]) -> dict[str, Any]:
    return {
        "classes": len(results["class_names"]),
        "first": results["figures"]["accuracy"],
        "most_frequent": _most_frequent(results),
        "table": _table(results),
        "groups": _groups(results),
        "pairs": _pairs(results),
        "confusion": how_to_read_confusion(len(results["class_names"])),
        "wrong": int((~part.right).sum()),
        "calibration": _calibration(results, part),
    }


def _of_labels(part: "Evaluation", results: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {"recall": None, "precision": None, "average_precision": None, **one, "name": printable(one["name"])}
        for one in results["per_label"]
    ]
    if worst_first := len(rows) > MOST_UNSORTED:
        rows.sort(key=lambda row: (row["average_precision"] is None, row["average_precision"]))
    metrics = part.measured
    assert isinstance(metrics, LabelsMetrics)
    return {
        "labels": len(rows),
        "first": results["figures"]["map"],
        "all_right": results["figures"]["all_right"]["value"],
        "per_picture": float((part.labels > 0.5).sum(axis=1).mean()),
        "by_chance": float((part.labels > 0.5).mean(axis=0)[(part.labels > 0.5).any(axis=0)].mean()),
        "table": {"rows": rows[:ROWS], "left_out": max(0, len(rows) - ROWS), "worst_first": worst_first},
        "has_thresholds": part.calibration is not None,
        "instead": _instead(part),
        "trade": printable(how_to_read_precision_recall(metrics)),
        "wrong": int((~part.right).sum()),
        "temperature": results.get("temperature"),
    }


def _instead(part: "Evaluation") -> list[dict[str, Any]]:
    """Pairs of labels of which one was missed and the other said in the same picture, the most frequent first."""
    truth, said, names = part.labels > 0.5, part.said, [printable(name) for name in part.weights.class_names]
    times = (truth & ~said).T.astype(np.int64) @ (said & ~truth)  # (labels, labels)
    missed = (truth & ~said).sum(axis=0)
    pairs = [
        {"was": names[i], "said": names[j], "times": int(times[i, j]), "of": int(missed[i])}
        for i, j in zip(*np.nonzero(times), strict=True)
        if times[i, j] > 1  # once is luck
    ]
    return sorted(pairs, key=lambda pair: -pair["times"])[:PAIRS]


def _of_number(part: "Evaluation", results: dict[str, Any]) -> dict[str, Any]:
    truth, said, margin = of_number(part)
    return {
        "first": results["figures"]["mae"],
        "of_mean": results["figures"]["mae_of_mean"]["value"],
        "mean": results["mean"],
        "range": [float(truth.min()), float(truth.max())],
        "margin": margin,
        "inside": results["figures"].get("inside"),
        "validation": part.run.record.data.pictures.get("validation", 0),
        "bias": float((said - truth).mean()),
        "how": {"said": how_to_read_said_and_true(margin), "errors": HOW_TO_READ_ERRORS},
    }


def _most_frequent(results: dict[str, Any]) -> dict[str, Any]:
    """The most frequent class, and the share of pictures that it has."""
    most = max(results["per_class"], key=lambda one: one["pictures"])
    return {"name": printable(most["name"]), "share": most["pictures"] / results["pictures"]}


def _verdict(part: "Evaluation", simple: TargetComparison | None) -> dict[str, Any] | None:
    comparison = part.baseline or simple
    if comparison is None:
        return None
    kind, heading = {
        "few": ("doubtful", "Beside a simple method: too few pictures to say"),
        "better": ("good", "Better than a simple method"),
        "worse": ("bad", "Worse than a simple method"),
        "equal": ("good", "As good as a simple method"),
        "unclear": ("doubtful", "Not shown to be better than a simple method"),
    }[comparison.kind]
    return {"kind": kind, "heading": heading, "text": comparison.verdict}


def _warnings(evaluation: "Evaluation") -> Iterator[str]:
    """Sentences to know before believing the numbers."""
    run, record, what = evaluation.run, evaluation.run.record, of_what(evaluation)
    if not any(line["event"] == "epoch" for line in run.metrics):
        yield "The model has not been through its training pictures even once: it has hardly learnt anything."
    if record.state != "finished":
        yield "The training was stopped before its end: these are the weights that it had got to."
    if evaluation.pictures < FEW:
        pictures = f"{evaluation.pictures} {what} are" if evaluation.pictures > 1 else f"1 {what[:-1]} is"
        yield f"{pictures} few: take these numbers as a first sign, no more. From some hundreds on they tell something."
    for part in evaluation.parts:
        if not isinstance(part.measured, NumberMetrics):
            yield from _warnings_of(part, what)
    validation = record.data.pictures.get("validation", 0)
    if evaluation.calibration is not None and validation < FEW:
        pictures = f"{validation} validation picture{'s' if validation > 1 else ''}"
        yield f"How sure it is, and what it calls unknown, was set on {pictures} only: take both with care."
    has_probabilities = any(part.targets[0].kind != "number" for part in evaluation.parts)
    if evaluation.calibration is None and has_probabilities:
        yield f"{_no_temperature(record)} Take its probabilities with care."


def _warnings_of(part: "Evaluation", what: str) -> Iterator[str]:
    """Of classes or labels: those without pictures; and whether there are many more of some than of others."""
    metrics = part.measured
    is_class = isinstance(metrics, Metrics)
    each = metrics.classes if isinstance(metrics, Metrics) else metrics.labels  # type: ignore[union-attr]
    missing = [printable(one.name) for one in each if not one.pictures]
    if missing and part.own:
        more = f" and {len(missing) - 8} more {'classes' if is_class else 'labels'}" if len(missing) > 8 else ""
        shows = "shows" if is_class else "has the label"
        yield f"No test picture {shows} {', '.join(missing[:8])}{more}: nothing is known about that."
    there = [one for one in each if one.pictures]
    if not is_class or not there:
        return
    most, least = (choose(there, key=lambda one: one.pictures) for choose in (max, min))
    if most.pictures > UNEVEN * least.pictures:
        yield (
            f"The classes are uneven: {most.pictures:,} {what} show {printable(most.name)} and "
            f"{least.pictures:,} {printable(least.name)}. Accuracy flatters then; look at balanced accuracy, "
            f"{metrics.figures['balanced_accuracy'].value:.1%}, and at each class."
        )


def _no_temperature(record: Record) -> str:
    if record.data.pictures.get("validation"):
        return (
            "No temperature was measured for this model (its training was stopped, or is older than that), "
            "so it may be surer or less sure than it should be."
        )
    return (
        "There were no validation pictures, so no temperature could be found, and the model may be surer or "
        "less sure than it should be."
    )


def _check(run: Run) -> dict[str, Any]:
    """The findings of `vitral check`, the serious first; None: it has not run, as there are many pictures."""
    findings = (
        [
            {"serious": one.serious, "what": printable(one.what), "advice": printable(one.advice)}
            for one in run.checked.findings
        ]
        if run.checked
        else None
    )
    source, place = shlex.quote(run.record.data.source), shlex.quote(_place(run.folder))
    return {
        "findings": findings and sorted(findings, key=lambda one: not one["serious"]),
        "how": f"vitral check {printable(source)} --json > {place}/{CHECKED}",
    }


def _serious(run: Run) -> Iterator[str]:
    """A sentence for each serious finding in the pictures."""
    for one in run.checked.findings if run.checked else ():
        if one.serious:
            yield printable(f"In the pictures: {one.what} {one.advice}")


def _before_temperature(metric: Metric, results: dict[str, Any]) -> str:
    """A sentence on a figure that the temperature changed: the terminal tells both, too."""
    before, now = (results.get(name, {}).get(metric.name) for name in ("uncalibrated", "figures"))
    if not before or not now or before["value"] == now["value"]:
        return ""
    return f" Before the temperature it was {metric.text(before['value'])}."


def _figures(results: dict[str, Any], kind: TargetKind) -> list[dict[str, Any]]:
    return [
        {
            "id": metric.name,
            "name": metric.title,
            "meaning": metric.meaning.format(by_chance=results.get(f"{metric.name}_by_chance"))
            + _before_temperature(metric, results),
            **_in_words(metric, **results["figures"][metric.name]),
        }
        for metric in METRICS_OF[kind]
        if metric.name in results["figures"]
    ]


def _in_words(metric: Metric, value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """A figure, and how it and its interval are read."""
    interval = "not known" if low is None or high is None else f"{metric.text(low)} to {metric.text(high)}"
    return {"value": value, "text": metric.text(value), "interval": interval}


def _training(run: Run) -> dict[str, Any] | None:
    """The number of epochs, the last and the best, from metrics.jsonl; None: not one epoch came to its end."""
    epochs = [line for line in run.metrics if line["event"] == "epoch"]
    if not epochs:
        return None
    has_validation = "validation_loss" in epochs[0]
    best = min(epochs, key=lambda line: line["validation_loss"]) if has_validation else None
    splits = [split for split in USES if any(f"{split}_loss" in line for line in epochs)]
    return {"epochs": len(epochs), "last": epochs[-1], "best": best, "splits": splits}


def _table(results: dict[str, Any]) -> dict[str, Any]:
    rows = [{**one, "name": printable(one["name"])} for one in results["per_class"]]
    for row in rows:
        row.setdefault("recall", None)
        row.setdefault("precision", None)
    if worst_first := len(rows) > MOST_UNSORTED:
        rows.sort(key=lambda row: (row["recall"] is None, row["recall"] and row["recall"]["value"], -row["pictures"]))
    return {"rows": rows[:ROWS], "left_out": max(0, len(rows) - ROWS), "worst_first": worst_first}


def _groups(results: dict[str, Any]) -> dict[str, Any]:
    """The accuracy of each group by data.group_by, the worst first."""
    rows = [{"name": printable(name), **figure} for name, figure in results.get("groups", {}).items()]
    return {"rows": rows[:GROUPS], "all": len(rows)}


def _pairs(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Pairs of classes that were confused, the most frequent first."""
    names = [printable(name) for name in results["class_names"]]
    pairs = [
        {"was": names[i], "said": names[j], "times": times, "of": sum(row), "share": times / sum(row)}
        for i, row in enumerate(results["confusion"])
        for j, times in enumerate(row)
        if times and i != j
    ]
    return sorted(pairs, key=lambda pair: (-pair["times"], -pair["share"]))[:PAIRS]


def _calibration(results: dict[str, Any], evaluation: "Evaluation") -> dict[str, Any]:
    enough = [one for one in results["reliability"] if one["pictures"] >= ENOUGH]
    near = min(enough, key=lambda one: abs(one["confidence"] - 0.8)) if enough else None
    return {
        "temperature": results.get("temperature"),
        "fit": evaluation.calibration and evaluation.calibration.fit,
        "error": results["figures"]["calibration_error"]["value"],
        "pictures": evaluation.run.record.data.pictures.get("validation", 0),
        "unknown": results.get("called_unknown"),
        "before": results["uncalibrated"]["calibration_error"]["value"] if "uncalibrated" in results else None,
        "why_not": _no_temperature(evaluation.run.record),
        "example": near
        and {
            "sure": near["confidence"],
            "right": near["accuracy"]["value"],
            "times": round(near["accuracy"]["value"] * near["pictures"]),
            "of": near["pictures"],
        },
    }


def _provenance(record: Record, evaluation: "Evaluation") -> dict[str, str]:
    """A table of the training: pictures, model, time, machine, software."""
    counts = record.data.pictures
    machine, choices, config = record.machine, record.choices, evaluation.weights.model.config
    height, width = evaluation.weights.preprocess.image_size
    rows = {
        "Pictures": ", ".join(f"{counts.get(split, 0):,} to {word}" for split, word in USES.items()),
        "Data": f"{_last(record.data.source)}, sha256 {record.data.sha256[:12]}…",
        "Model": f"{config.words}; pictures of {height} × {width} pixels"
        + (f" in patches of {config.stride} × {config.stride}" if config.stride > 1 else ""),
        "Steps": f"{record.steps:,}",
        "Started": record.started_at.replace("T", " ").replace("+00:00", " UTC"),
        "Machine": f"{machine.system}, {machine.processor}, {machine.cores} cores; trained on {choices.device} "
        f"in {choices.precision} with {choices.threads} thread{'s' if choices.threads > 1 else ''}",
        "Software": f"Vitral {record.version}, PyTorch {machine.torch}, Python {machine.python}",
    }
    if origin := evaluation.weights.about.get("origin"):
        licence, mode = evaluation.weights.about.get("licence"), evaluation.run.recipe.init.mode
        rows["Began with"] = f"{printable(origin)}{f' ({printable(licence)})' if licence else ''}; {LEARNT[mode]}"
    if record.weights:
        rows["Weights"] = f"{record.weights.parameters:,} parameters, sha256 {record.weights.sha256[:12]}…"
    if record.seconds is not None:
        rows["Time"] = _duration(record.seconds)
    order = ("Pictures", "Data", "Model", "Began with", "Weights", "Steps", "Time", "Started", "Machine", "Software")
    return {name: rows[name] for name in order if name in rows}


USES = {"train": "learn from", "validation": "validate", "test": "test"}
LEARNT = {
    "probe": "only the head learnt",
    "lora": "the head learnt, and thin matrices beside those of the blocks",
    "gentle": "all of it learnt, the first blocks least",
    "full": "all of it learnt",
}


def _duration(seconds: float) -> str:
    """
    >>> _duration(67.061), _duration(8.2), _duration(7384.0)
    ('1 min 7 s', '8.2 s', '2 h 3 min 4 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {left} s" if hours else f"{minutes} min {left} s"


def _last(source: str) -> str:
    """The last name of a path: the title need not show where files are on this machine."""
    return printable(Path(source).name or source)


def _place(folder: Path) -> str:
    """The folder as typed from here, or by its name alone where it is not below."""
    near = os.path.relpath(folder)
    return printable(folder.resolve().name if near.startswith("..") else near)
