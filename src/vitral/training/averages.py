"""The average of the weights along the way, which is often better than the last ones."""

from copy import deepcopy

import torch

from vitral.model.interface import Model
from vitral.training.parallel import local


class Average:
    """An exponential moving average. With decay 0 it is the model itself."""

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.trained = model
        self.model = deepcopy(model).requires_grad_(False) if decay else model

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step n (from 1): a ← d·a + (1 − d)·w."""
        if self.decay:
            # The average is short at first, so that a short run does not end as it began.
            decay = min(self.decay, (1 + step) / (10 + step))
            ours, theirs = ([local(one) for one in model.parameters()] for model in (self.model, self.trained))
            torch._foreach_lerp_(ours, theirs, 1 - decay)
            for average, last in zip(self.model.buffers(), self.trained.buffers(), strict=True):
                average.copy_(last)  # averages already, of a BatchNorm
