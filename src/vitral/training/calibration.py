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
from vitral.weights.calibration import Calibration, head_of

MOST = 5_000  # training pictures whose features are measured
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
    calibration = Calibration(
        head=head_of(model),
        temperature=torch.tensor(fit_temperature(validation.logits, labels)),
        means=means,
        metric=metric,
        far=torch.tensor(1.0),
    )
    far = torch.quantile(calibration.distances(validation.features), NEAR)
    # Not quite 0 where features do not vary at all: then nothing is far.
    return replace(calibration, far=far.clamp(min=1e-6))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature at which the labels are most probable; between 1/20 and 20.

    As if there were one picture more, whose label is unknown: else a few pictures that are all right would make the
    model certain of everything.

    >>> sure = torch.tensor([[9.0, 0.0]] * 400)  # right three times out of four, and as good as certain
    >>> round(9 / fit_temperature(sure, torch.tensor([0, 0, 0, 1] * 100)), 2), round(float(np.log(3)), 2)
    (1.1, 1.1)
    >>> all_right = torch.tensor([[9.0, 0.0]] * 4)
    >>> round(float((all_right / fit_temperature(all_right, torch.zeros(4, dtype=torch.int64))).softmax(1)[0, 0]), 2)
    0.9
    """
    from scipy.optimize import minimize_scalar

    def loss(exponent: float) -> float:
        unknown = 1 / (len(labels) + 1)
        return float(cross_entropy(logits.double() / np.exp(exponent), labels, label_smoothing=unknown))

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
