"""What frozen features say of one of several targets, of labels, or of a number: a regression on standardised features.

How strong its penalty and which features are chosen by cross-validation on the training pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitral.evaluation.metrics import Value, bootstrap, loss
from vitral.evaluation.probe_results import TargetProbe
from vitral.evaluation.target_metrics import METRICS_OF, labels_loss, mae, outcomes_of
from vitral.progress import Progress, Tell
from vitral.regressions import logistic, ridge
from vitral.targets import Target

STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)  # scikit-learn's C: small is strong
PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)  # of ridge regression: large is strong
MOST_STEPS = 300  # of logistic regression
FIGURES = {"class": ("accuracy",), "labels": ("map",), "number": ("mae", "mae_of_mean", "r2")}
LOSSES: dict[str, Value] = {"class": loss, "labels": labels_loss, "number": mae}  # what chooses

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TargetTask:
    """The features of all pictures, and what is true of them: of those that are learnt from, then of the others."""

    features: dict[str, Floats]  # each (learnt + test pictures, F)
    labels: Doubles  # (learnt pictures, outputs)
    test_labels: Doubles  # (test pictures, outputs)
    folds: Ints  # (learnt pictures,); -1: in no fold
    groups: Sequence[str] | None  # (test pictures,) what belongs together
    tell: Tell


def probe_target(target: Target, task: TargetTask) -> TargetProbe:
    """The best features and penalty by cross-validation, measured on the test pictures."""
    learnt = len(task.labels)
    target = target.model_copy(update={"mean": float(task.labels.mean())})  # of a number: what there is to beat
    name, settings = ("penalty", PENALTIES) if target.kind == "number" else ("C", STRENGTHS)
    tries = [(features, setting) for features in task.features for setting in settings]
    told = np.flatnonzero(task.folds >= 0)
    once, truth = np.ones(len(told)), task.labels[told]
    doing = f"choosing {name} for {target.name}"
    held_out = []
    for number, (features, setting) in enumerate(tries):
        task.tell(Progress(number, len(tries), doing))
        said = _of_others(target, task.features[features][told], truth, task.folds[told], setting)
        held_out.append(outcomes_of(target, truth, said))
    task.tell(Progress(len(tries), len(tries), doing))
    best = int(np.argmin([LOSSES[target.kind](outcomes, once) for outcomes in held_out]))
    features, setting = tries[best]
    vectors = task.features[features]
    said = _fit_predict(target, vectors[:learnt], task.labels, vectors[learnt:], setting)
    known = task.test_labels if target.kind == "class" else task.labels  # the most frequent class of the test pictures
    same = np.broadcast_to(known.mean(axis=0), task.test_labels.shape)
    rows = [row for row in METRICS_OF[target.kind] if row.name in FIGURES[target.kind]]
    if not task.test_labels.std():
        rows = [row for row in rows if row.name != "r2"]
    main = rows[0]
    return TargetProbe(
        name=target.name,
        kind=target.kind,
        features=features,
        setting=f"{name} = {setting:g}",
        validation=main.value(held_out[best], once),
        guess=main.value(outcomes_of(target, task.test_labels, same), np.ones(len(same))),
        figures=bootstrap(outcomes_of(target, task.test_labels, said), rows, {}, task.groups),
    )


def _of_others(target: Target, vectors: Floats, labels: Doubles, folds: Ints, setting: float) -> Doubles:
    """What is said of the pictures of each fold by what learnt from the other folds: (n, outputs)."""
    said = np.zeros(labels.shape)
    for fold in np.unique(folds):
        held_out = folds == fold
        said[held_out] = _fit_predict(target, vectors[~held_out], labels[~held_out], vectors[held_out], setting)
    return said


def _fit_predict(target: Target, vectors: Floats, labels: Doubles, others: Floats, setting: float) -> Doubles:
    """Learn from vectors and labels; for other vectors numbers, or probabilities: (n, outputs)."""
    middle, spread = vectors.mean(axis=0), vectors.std(axis=0)
    spread[spread == 0] = 1
    x, others = (vectors - middle) / spread, (others - middle) / spread
    if target.kind == "number":
        numbers: Doubles = ridge(x, labels, [setting])[0](others)
        return numbers
    says: Doubles = logistic(x, labels, setting, MOST_STEPS)(others)
    return says / np.maximum(says.sum(axis=1, keepdims=True), 1e-12) if target.kind == "class" else says
