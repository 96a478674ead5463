"""The text of the page: words and numbers from evaluation.json, run.json, metrics.jsonl and check.json."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitral.errors import printable
from vitral.evaluation.figures import how_to_read_confusion, how_to_read_curves, of_what
from vitral.evaluation.metrics import FEW, METRICS, Metric
from vitral.run import CHECKED, Record, Run

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation

ROWS = 200  # classes in the table, at most
MOST_UNSORTED = 12  # classes, above which the worst come first
GROUPS = 20  # in the table, at most
PAIRS = 10  # of classes that are confused, at most
UNEVEN = 3  # times more pictures in the largest class than in the smallest
ENOUGH = 10  # pictures of about the same confidence, to say how often they are right


def facts(evaluation: "Evaluation") -> dict[str, Any]:
    """All facts of the page, under the names that the template uses."""
    run, results = evaluation.run, evaluation.write()
    record, recipe = run.record, run.recipe
    return {
        "name": printable(run.folder.resolve().name),
        "source": _last(record.data.source),
        "measured_on": None if evaluation.own else _last(results["source"]),
        "mirrored": evaluation.mirrored,
        "what": of_what(evaluation),
        "pictures": results["pictures"],
        "classes": len(results["class_names"]),
        "accuracy": results["figures"]["accuracy"],
        "most_frequent": _most_frequent(results),
        "verdict": _verdict(evaluation),
        "warnings": [
            *map(printable, evaluation.notes),
            *_serious(run),
            *_warnings(results, record, run, of_what(evaluation)),
        ],
        "check": _check(run),
        "figures": _figures(results),
        "training": _training(run),
        "curves": printable(how_to_read_curves(run)),
        "table": _table(results),
        "groups": _groups(results),
        "pairs": _pairs(results),
        "confusion": how_to_read_confusion(len(results["class_names"])),
        "wrong": sum(one["label"] != one["predicted"] for one in results["predictions"]),
        "calibration": _calibration(results, evaluation),
        "recipe": recipe.to_toml(),
        "made": _provenance(record, evaluation),
        "again": f"vitral evaluate {shlex.quote(_place(run.folder))}",
        "look": f"vitral look {shlex.quote(_place(run.folder))} PICTURE",
        "shell": f"vitral predict {shlex.quote(_place(run.folder))} PICTURE",
        "python": f'vitral.Classifier.load({json.dumps(_place(run.folder), ensure_ascii=False)}).predict("PICTURE")',
    }


def _most_frequent(results: dict[str, Any]) -> dict[str, Any]:
    """The most frequent class, and the share of pictures that it has."""
    most = max(results["per_class"], key=lambda one: one["pictures"])
    return {"name": printable(most["name"]), "share": most["pictures"] / results["pictures"]}


def _verdict(evaluation: "Evaluation") -> dict[str, Any] | None:
    if evaluation.baseline is None:
        return None
    kind, heading = {
        "few": ("doubtful", "Beside a simple method: too few pictures to say"),
        "better": ("good", "Better than a simple method"),
        "worse": ("bad", "Worse than a simple method"),
        "equal": ("good", "As good as a simple method"),
        "unclear": ("doubtful", "Not shown to be better than a simple method"),
    }[evaluation.baseline.kind]
    return {"kind": kind, "heading": heading, "text": evaluation.baseline.verdict}


def _warnings(results: dict[str, Any], record: Record, run: Run, what: str) -> Iterator[str]:
    """Sentences to know before believing the numbers."""
    if not any(line["event"] == "epoch" for line in run.metrics):
        yield "The model has not been through its training pictures even once: it has hardly learnt anything."
    if record.state != "finished":
        yield "The training was stopped before its end: these are the weights that it had got to."
    if results["pictures"] < FEW:
        pictures = f"{results['pictures']} {what} are" if results["pictures"] > 1 else f"1 {what[:-1]} is"
        yield f"{pictures} few: take these numbers as a first sign, no more. From some hundreds on they tell something."
    missing = [printable(one["name"]) for one in results["per_class"] if not one["pictures"]]
    if missing and results["split"] == "test":
        more = f" and {len(missing) - 8} more classes" if len(missing) > 8 else ""
        yield f"No test picture shows {', '.join(missing[:8])}{more}: nothing is known about that."
    classes = [one for one in results["per_class"] if one["pictures"]]
    most, least = (choose(classes, key=lambda one: one["pictures"]) for choose in (max, min))
    if most["pictures"] > UNEVEN * least["pictures"]:
        yield (
            f"The classes are uneven: {most['pictures']:,} {what} show {printable(most['name'])} and "
            f"{least['pictures']:,} {printable(least['name'])}. Accuracy flatters then; look at balanced accuracy, "
            f"{results['figures']['balanced_accuracy']['value']:.1%}, and at each class."
        )
    validation = record.data.pictures.get("validation", 0)
    if "temperature" in results and validation < FEW:
        pictures = f"{validation} validation picture{'s' if validation > 1 else ''}"
        yield f"How sure it is, and what it calls unknown, was set on {pictures} only: take both with care."
    if "temperature" not in results:
        yield f"{_no_temperature(record)} Take its probabilities with care."


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
    value = f"{before['value']:.1%}" if metric.is_share else f"{before['value']:.3f}"
    return f" Before the temperature it was {value}."


def _figures(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": metric.name,
            "name": metric.title,
            "meaning": metric.meaning.format(by_chance=results.get(f"{metric.name}_by_chance"))
            + _before_temperature(metric, results),
            "is_share": metric.is_share,
            "low": None,
            "high": None,
            **results["figures"][metric.name],
        }
        for metric in METRICS
        if metric.name in results["figures"]
    ]


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
    if record.weights:
        rows["Weights"] = f"{record.weights.parameters:,} parameters, sha256 {record.weights.sha256[:12]}…"
    if record.seconds is not None:
        rows["Time"] = _duration(record.seconds)
    order = ("Pictures", "Data", "Model", "Weights", "Steps", "Time", "Started", "Machine", "Software")
    return {name: rows[name] for name in order if name in rows}


USES = {"train": "learn from", "validation": "validate", "test": "test"}


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
