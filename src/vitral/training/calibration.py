"""How sure a model may be of its answers: a temperature, and distances of features, measured in validation."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from vitral.data.pack import Pack
from vitral.inference import Outputs, values_of
from vitral.model.interface import Model
from vitral.targets import Target, columns, is_one_class
from vitral.weights.calibration import Calibration, TemperatureFit, head_of

MOST = 5_000  # training pictures whose features are measured
FOLDS = 10  # of the validation pictures
SHRINK = 0.3  # 12 to 360 validation pictures of four sets: docs/decisions/0017-what-better-means.md
ENOUGH = 5  # pictures with a label, and without it, for a threshold of its own
INSIDE = 0.9  # share of the pictures whose number is to lie within its margin
NEAR = 0.95  # share of the validation pictures that count as like those learnt from


def calibrate(
    model: Model,
    pack: Pack,
    outputs: Callable[[Model, NDArray[np.int64]], Outputs],
    targets: Sequence[Target] = (),
) -> Calibration | None:
    """Measure a model's calibration; `outputs` gives its logits and features for pictures by their numbers. `targets`
    say what its outputs are; left out, those of the pack.

    None where there are no validation pictures: on those that it learnt from, a model is surer than it should be.
    """
    if not len(pack.of("validation")):
        return None
    targets = targets or pack.index.targets
    splits = (_some_of_each_class(pack), pack.of("validation"))
    train, validation = (outputs(model, numbers) for numbers in splits)
    train_labels, labels = (torch.from_numpy(pack.index.labels[numbers]) for numbers in splits)
    groups = None if pack.index.groups is None else np.array(pack.index.groups)[splits[1]]
    if is_one_class(targets):
        means, metric = class_statistics(train.features, train_labels, model.config.classes)
        fit = choose_temperature(validation.logits, labels, groups)
        calibration = Calibration(
            head=head_of(model),
            temperature=torch.tensor(fit.fitted if fit.kept else 1.0),
            means=means,
            metric=metric,
            far=torch.tensor(1.0),
            fit=fit,
        )
    else:
        # There are no classes whose pictures would lie together: one cloud of all.
        means, metric = class_statistics(train.features, torch.zeros(len(train.features), dtype=torch.int64), 1)
        calibration = Calibration(
            head=head_of(model),
            temperature=_temperatures(validation.logits, labels, targets, groups),
            means=means,
            metric=metric,
            far=torch.tensor(1.0),
        )
        calibration = _with_decisions(calibration, validation.logits, labels, targets)
    far = torch.quantile(calibration.distances(validation.features), NEAR)
    # Not quite 0 where features do not vary at all: then nothing is far.
    return replace(calibration, far=far.clamp(min=1e-6))


def _temperatures(
    logits: Tensor, labels: Tensor, targets: Sequence[Target], groups: NDArray[np.str_] | None
) -> Tensor:  # → (targets,)
    """One for each target, which all its labels share: for a label alone there are few pictures. A number has none."""
    temperatures = []
    for target, mine in zip(targets, columns(targets), strict=True):
        if target.kind == "number":
            temperatures.append(1.0)
            continue
        if target.kind == "class":
            fit = choose_temperature(logits[:, mine], labels[:, mine].argmax(dim=1), groups)
        else:
            fit = choose_temperature(logits[:, mine], labels[:, mine].double(), groups, binary_losses)
        temperatures.append(fit.fitted if fit.kept else 1.0)
    return torch.tensor(temperatures)


def _with_decisions(calibration: Calibration, logits: Tensor, labels: Tensor, targets: Sequence[Target]) -> Calibration:
    """With the thresholds of labels and the margins of numbers."""
    values = values_of(logits.double(), targets, calibration).numpy()
    thresholds, margins = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    for target, mine in zip(targets, columns(targets), strict=True):
        for output in range(mine.start, mine.stop):
            truth = labels[:, output].numpy()
            if target.kind == "labels":
                thresholds[output] = choose_threshold(values[:, output], truth > 0.5)
            elif target.kind == "number":
                margins[output] = choose_margin(np.abs(values[:, output] - truth))
    return replace(calibration, thresholds=torch.from_numpy(thresholds), margins=torch.from_numpy(margins))


def choose_threshold(probabilities: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """The threshold of the largest F1, halfway between two probabilities; of equally good ones the nearest to one half.
    Where fewer than ENOUGH pictures have the label, or have it not, they say too little: it is one half.

    >>> choose_threshold(np.array([0.1, 0.2, 0.3, 0.4] * 5), np.array([False, False, True, True] * 5))
    0.25
    """
    if min(truth.sum(), (~truth).sum()) < ENOUGH:
        return 0.5
    order = np.argsort(-probabilities, kind="stable")
    ranked, right = probabilities[order], np.cumsum(truth[order])
    last = np.append(ranked[1:] < ranked[:-1], True)  # a threshold does not part equal probabilities
    said = np.arange(1, len(ranked) + 1)
    f1 = np.where(last, 2 * right / (said + truth.sum()), -1.0)
    between = (ranked + np.append(ranked[1:], 0.0)) / 2
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(between[best[np.argmin(np.abs(between[best] - 0.5))]])


def choose_margin(off: NDArray[np.float64]) -> float:
    """How far a number may be off, so that at least 90 % of new pictures are not farther, if they are like these: the
    ⌈0.9 (n + 1)⌉-th of n distances (split conformal prediction). 0, nobody knows, where n is too small for that.

    >>> choose_margin(np.arange(1.0, 20.0)), choose_margin(np.ones(5))
    (18.0, 0.0)
    """
    place = int(np.ceil(INSIDE * (len(off) + 1)))
    return float(np.sort(off)[place - 1]) if place <= len(off) else 0.0


Losses = Callable[[Tensor, Tensor], Tensor]  # logits (n, outputs), labels (n,) or (n, outputs) → (n,)


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each picture."""
    return cross_entropy(logits, labels, reduction="none")


def binary_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The binary cross-entropy of each picture, on average over the labels."""
    return binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)


def choose_temperature(
    logits: Tensor, labels: Tensor, groups: NDArray[np.str_] | None = None, losses: Losses = class_losses
) -> TemperatureFit:
    """Fit a temperature, and measure by cross-validation what it is worth; pictures of one group are held out together.

    >>> sure, labels = torch.tensor([[9.0, 0.0]] * 400), torch.tensor([0, 0, 0, 1] * 100)  # certain, and 1 in 4 wrong
    >>> choose_temperature(sure, labels).kept, choose_temperature(sure / 8, labels).kept
    (True, False)
    """
    if groups is None:  # each picture by itself, in the order of the classes, so that all folds have some of each
        unit_of = np.argsort(np.argsort(labels.numpy(), kind="stable")) if labels.ndim == 1 else np.arange(len(labels))
    else:
        unit_of = np.unique(groups, return_inverse=True)[1]
    before = losses(logits.double(), labels)
    after, units = before.clone(), int(unit_of.max()) + 1
    for fold in range(FOLDS if units > 1 else 0):
        held_out = torch.from_numpy(unit_of % FOLDS == fold)
        scaled = logits[held_out].double() / fit_temperature(logits[~held_out], labels[~held_out], losses)
        after[held_out] = losses(scaled, labels[held_out])
    gains = np.bincount(unit_of, (before - after).numpy())
    return TemperatureFit(
        fitted=fit_temperature(logits, labels, losses),
        before=float(before.mean()),
        after=float(after.mean()),
        error=float(gains.std(ddof=1) * units**0.5 / len(labels)) if units > 1 else 0.0,
        pictures=len(labels),
    )


def fit_temperature(logits: Tensor, labels: Tensor, losses: Losses = class_losses) -> float:
    """The temperature at which the labels are most probable, drawn towards 1 as far as the pictures are few.

    >>> sure = torch.tensor([[9.0, 0.0]] * 4_000)  # right three times out of four, and as good as certain
    >>> round(9 / fit_temperature(sure, torch.tensor([0, 0, 0, 1] * 1_000)), 2), round(float(np.log(3)), 2)
    (1.13, 1.1)
    >>> round(fit_temperature(sure[:4], torch.tensor([0, 0, 0, 1])), 2)
    1.63
    """
    from scipy.optimize import minimize_scalar

    def loss(exponent: float) -> float:
        # Bayes: before a picture was seen, the logarithm of the temperature was likely near 0, with an sd of SHRINK.
        prior = (exponent / SHRINK) ** 2 / 2
        return float(losses(logits.double() / np.exp(exponent), labels).mean()) + prior / len(labels)

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))


def _some_of_each_class(pack: Pack) -> NDArray[np.int64]:
    """Numbers of training pictures, evenly of each class: at most MOST in all, but one of each class at least."""
    train, labels = pack.of("train"), pack.index.labels
    if labels.ndim > 1:
        return train[np.unique(np.linspace(0, len(train) - 1, min(MOST, len(train))).astype(np.int64))]
    classes = [train[labels[train] == label] for label in range(len(pack.index.class_names))]
    most = max(1, MOST // len(classes))
    evenly = [np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(np.int64) for numbers in classes]
    return np.sort(np.concatenate([numbers[some] for numbers, some in zip(classes, evenly, strict=True)]))


def class_statistics(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean of each class, (classes, F), and the metric that evens out the spread within the classes, (F, F)."""
    features = features.double()
    means = torch.stack([features[labels == label].mean(dim=0) for label in range(classes)])
    within = features - means[labels]
    spread = within.T @ within / len(within)
    sizes, directions = torch.linalg.eigh(spread)
    # Directions in which hardly anything varies would else decide alone.
    floor = 1e-3 * sizes.mean() + 1e-12
    metric = directions / (sizes + floor).sqrt()
    return means.float(), metric.float()
