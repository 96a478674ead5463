"""How sure a model may be of its answers: a temperature, and distances of features, measured in validation."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.data.pack import Pack
from vitral.inference import Outputs
from vitral.model.interface import Model
from vitral.weights.calibration import Calibration, TemperatureFit, head_of

MOST = 5_000  # training pictures whose features are measured
FOLDS = 10  # of the validation pictures
SHRINK = 0.3  # 12 to 360 validation pictures of four sets: docs/decisions/0017-what-better-means.md
NEAR = 0.95  # share of the validation pictures that count as like those learnt from


def calibrate(model: Model, pack: Pack, outputs: Callable[[Model, NDArray[np.int64]], Outputs]) -> Calibration | None:
    """Measure a model's calibration; `outputs` gives its logits and features for pictures by their numbers.

    None where there are no validation pictures: on those that it learnt from, a model is surer than it should be.
    """
    if not len(pack.of("validation")):
        return None
    splits = (_some_of_each_class(pack), pack.of("validation"))
    train, validation = (outputs(model, numbers) for numbers in splits)
    train_labels, labels = (torch.from_numpy(pack.index.labels[numbers]) for numbers in splits)
    means, metric = class_statistics(train.features, train_labels, model.config.classes)
    groups = None if pack.index.groups is None else np.array(pack.index.groups)[splits[1]]
    fit = choose_temperature(validation.logits, labels, groups)
    calibration = Calibration(
        head=head_of(model),
        temperature=torch.tensor(fit.fitted if fit.kept else 1.0),
        means=means,
        metric=metric,
        far=torch.tensor(1.0),
        fit=fit,
    )
    far = torch.quantile(calibration.distances(validation.features), NEAR)
    # Not quite 0 where features do not vary at all: then nothing is far.
    return replace(calibration, far=far.clamp(min=1e-6))


def choose_temperature(logits: Tensor, labels: Tensor, groups: NDArray[np.str_] | None = None) -> TemperatureFit:
    """Fit a temperature, and measure by cross-validation what it is worth; pictures of one group are held out together.

    >>> sure, labels = torch.tensor([[9.0, 0.0]] * 400), torch.tensor([0, 0, 0, 1] * 100)  # certain, and 1 in 4 wrong
    >>> choose_temperature(sure, labels).kept, choose_temperature(sure / 8, labels).kept
    (True, False)
    """
    if groups is None:  # each picture by itself, in the order of the classes, so that all folds have some of each
        unit_of = np.argsort(np.argsort(labels.numpy(), kind="stable"))
    else:
        unit_of = np.unique(groups, return_inverse=True)[1]
    before = cross_entropy(logits.double(), labels, reduction="none")
    after, units = before.clone(), int(unit_of.max()) + 1
    for fold in range(FOLDS if units > 1 else 0):
        held_out = torch.from_numpy(unit_of % FOLDS == fold)
        scaled = logits[held_out].double() / fit_temperature(logits[~held_out], labels[~held_out])
        after[held_out] = cross_entropy(scaled, labels[held_out], reduction="none")
    gains = np.bincount(unit_of, (before - after).numpy())
    return TemperatureFit(
        fitted=fit_temperature(logits, labels),
        before=float(before.mean()),
        after=float(after.mean()),
        error=float(gains.std(ddof=1) * units**0.5 / len(labels)) if units > 1 else 0.0,
        pictures=len(labels),
    )


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
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
        return float(cross_entropy(logits.double() / np.exp(exponent), labels)) + prior / len(labels)

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))


def _some_of_each_class(pack: Pack) -> NDArray[np.int64]:
    """Numbers of training pictures, evenly of each class: at most MOST in all, but one of each class at least."""
    train, labels = pack.of("train"), pack.index.labels
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
