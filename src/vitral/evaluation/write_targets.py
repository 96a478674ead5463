"""An evaluation as evaluation.json has it, where a picture has not one class: target by target (docs/schema.md)."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.metrics import Figure, Metrics
from vitral.evaluation.target_metrics import METRICS_OF, LabelsMetrics, NumberMetrics
from vitral.inference import margins_of, thresholds_of
from vitral.settings import FORMAT
from vitral.targets import Target, columns

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation


def write_targets(evaluation: "Evaluation") -> dict[str, Any]:
    """All of it, as values."""
    group_of = evaluation.group_of
    thresholds = thresholds_of(evaluation.targets, evaluation.calibration)
    rows = zip(evaluation.samples, evaluation.labels, evaluation.values, strict=True)
    return {
        "format": FORMAT,
        "split": "test" if evaluation.own else "all",
        **({} if evaluation.own else {"source": evaluation.pack.index.source}),
        **({"mirrored": True} if evaluation.mirrored else {}),
        **({"notes": list(evaluation.notes)} if evaluation.notes else {}),
        "pictures": evaluation.pictures,
        **({"called_unknown": asdict(evaluation.unknown)} if evaluation.unknown else {}),
        "targets": [_target(evaluation, place, target) for place, target in enumerate(evaluation.targets)],
        "predictions": [
            {
                "sample": sample,
                "targets": {
                    target.name: _answer(target, truth[mine], values[mine], thresholds[mine])
                    for target, mine in zip(evaluation.targets, columns(evaluation.targets), strict=True)
                },
                **({"group": group_of[n]} if group_of else {}),
            }
            for n, (sample, truth, values) in enumerate(rows)
        ],
    }


def _target(evaluation: "Evaluation", place: int, target: Target) -> dict[str, Any]:
    metrics, calibration = evaluation.by_target[target.name], evaluation.calibration
    values: dict[str, Any] = {"name": target.name, "kind": target.kind, "figures": _as_dicts(metrics.figures)}
    if calibration and target.kind != "number":
        plain = evaluation.uncalibrated_by_target[target.name].figures
        changed = {metric.name for metric in METRICS_OF[target.kind] if metric.uses_temperature}
        values["temperature"] = float(calibration.temperature[place])
        values["uncalibrated"] = _as_dicts({name: figure for name, figure in plain.items() if name in changed})
    match metrics:
        case Metrics():
            values |= {
                **{f"{name}_by_chance": value for name, value in metrics.by_chance.items()},
                "class_names": list(target.names),
                "per_class": [_without_none(asdict(one)) for one in metrics.classes],
                "reliability": [asdict(one) for one in metrics.reliability],
                "confusion": metrics.confusion.tolist(),
            }
        case LabelsMetrics():
            values |= {
                "per_label": [_without_none(asdict(one)) for one in metrics.labels],
                "reliability": [asdict(one) for one in metrics.reliability],
            }
        case NumberMetrics():
            margin = float(margins_of(evaluation.targets, calibration)[columns(evaluation.targets)[place].start])
            values |= {"mean": target.mean, "std": target.std, **({"margin": margin} if margin else {})}
    baseline = evaluation.baselines.get(target.name)
    return values | ({"baseline": baseline.write()} if baseline else {})


def _answer(
    target: Target, truth: NDArray[Any], values: NDArray[np.float64], thresholds: NDArray[np.float64]
) -> dict[str, Any]:
    """What is true of a picture, and what was said."""
    if target.kind == "number":
        return {"value": float(truth[0]), "predicted": float(values[0])}
    if target.kind == "labels":
        has, said = ([target.names[n] for n in np.flatnonzero(one)] for one in (truth > 0.5, values >= thresholds))
        return {"labels": has, "predicted": said, "probabilities": [round(share, 6) for share in values.tolist()]}
    label, predicted = int(truth.argmax()), int(values.argmax())
    return {"label": target.names[label], "predicted": target.names[predicted], "probability": float(values[predicted])}


def _as_dicts(figures: Mapping[str, Figure]) -> dict[str, dict[str, Any]]:
    return {name: _without_none(asdict(figure)) for name, figure in figures.items()}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
