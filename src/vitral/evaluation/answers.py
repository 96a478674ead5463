"""What a model answers for a set of pictures, and the figures that follow from it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.data.batches import in_order
from vitral.data.pack import Pack
from vitral.data.preprocess import Preprocess
from vitral.model.vit import ViT


@dataclass(frozen=True)
class Answers:
    """Logits beside the right labels."""

    logits: Tensor  # (n, classes)
    labels: Tensor  # (n,)

    @cached_property
    def probabilities(self) -> NDArray[Any]:
        """(n, classes)."""
        return self.logits.softmax(dim=1).numpy()

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(n,) the most probable class."""
        return self.logits.argmax(dim=1).numpy()

    @property
    def loss(self) -> float:
        """Mean cross-entropy."""
        return float(cross_entropy(self.logits, self.labels))

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(np.mean(self.predicted == self.labels.numpy()))


@torch.no_grad()
def answers(model: ViT, pack: Pack, split: str, preprocess: Preprocess) -> Answers:
    """Ask the model about every picture of a split. The model is left in evaluation mode."""
    model.eval()
    like = next(model.parameters())  # device and precision
    asked = [(model(batch.images.to(like)).cpu(), batch.labels) for batch in in_order(pack, split, preprocess)]
    logits, labels = zip(*asked, strict=True)
    return Answers(torch.cat(logits), torch.cat(labels))
