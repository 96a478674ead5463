"""What the front knows of a model that others compute: what it takes, what it says. No torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.predictions import Prediction, prediction_of
from vitral.settings import Settings
from vitral.targets import Target


class ModelFacts(Settings):
    """A model as a worker describes it.

    >>> facts = ModelFacts(name="pets", runtime="torch", identity="1", channels=3, image_size=(8, 8),
    ...     thresholds=(0.5, 0.5), margins=(0, 0), targets=(Target(names=("cat", "dog")),), has_distance=False)
    >>> facts.prediction(np.array([0.25, 0.75]), None).label
    'dog'
    """

    name: str
    runtime: str  # what computes it, with its version
    identity: str  # which weights these are: the same for the same answers
    channels: int
    image_size: tuple[int, int]
    targets: tuple[Target, ...]
    thresholds: tuple[float, ...]
    margins: tuple[float, ...]
    has_distance: bool  # whether it tells how unlike what it learnt from a picture is
    methods: tuple[str, ...] = ()  # maps that it can draw
    notes: tuple[str, ...] = ()

    @property
    def pixels(self) -> tuple[int, int, int]:
        """(C, H, W) of a picture as a tensor."""
        return self.channels, *self.image_size

    @property
    def outputs(self) -> int:
        """How many numbers it says of a picture."""
        return len(self.thresholds)

    @property
    def values_name(self) -> str:
        """What these are called, as in an exported graph: a number is no probability."""
        return "values" if any(target.kind == "number" for target in self.targets) else "probabilities"

    def prediction(self, values: NDArray[Any], distance: float | None) -> Prediction:
        """What it says of a picture, from its (outputs,)."""
        return prediction_of(values, self.targets, distance, np.array(self.thresholds), np.array(self.margins))
