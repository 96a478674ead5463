"""What a model answers for a set of pictures, and the figures that follow from it."""

from dataclasses import dataclass
from functools import cached_property

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
class Outputs:
    """Logits beside the right labels, and what the classifier saw."""

    logits: Tensor  # (n, classes)
    labels: Tensor  # (n,)
    features: Tensor  # (n, F)

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
def answers(
    model: ViT, pack: Pack, numbers: NDArray[np.int64], preprocess: Preprocess, mirrored: bool = False
) -> Outputs:
    """Ask the model about these pictures; `mirrored`: also about their mirror images, and take the mean probability.

    It is left in evaluation mode.
    """
    model.eval()
    like = next(model.parameters())  # device and precision
    asked = []
    for batch in in_order(pack, numbers, preprocess):
        logits, features = _asked(model, batch.images.to(like))
        if mirrored:
            other, _ = _asked(model, batch.images.to(like).flip(3))
            logits = torch.stack([logits, other]).softmax(dim=2).mean(dim=0).log()
        asked.append((logits.float().cpu(), batch.labels, features.float().cpu()))
    return Outputs(*map(torch.cat, zip(*asked, strict=True)))


def _asked(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:  # (B, C, H, W) → (B, classes), (B, F)
    tokens = model.features(images, first=model.config.tokens_seen)
    return torch.stack(model.logits(tokens)).mean(dim=0), model.pool(tokens)
