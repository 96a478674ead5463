"""The label is to be the most probable class: cross-entropy."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.data.batches import Batch
from vitral.model.interface import Model
from vitral.training.objectives import Objective

Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, classes), labels (B,) or shares (B, classes) → ()


class Classification(Objective):
    """A loss of the logits, and the share of labels that were the most probable class.

    >>> Classification().figures
    ('accuracy',)
    """

    figures = ("accuracy",)
    only_logits = True

    def __init__(
        self, class_weights: Tensor | None = None, label_smoothing: float = 0.0, function: Loss | None = None
    ) -> None:
        """`function` takes the place of cross-entropy: a user's own loss of logits and targets."""
        super().__init__()
        self.class_weights, self.label_smoothing, self.function = class_weights, label_smoothing, function

    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        logits = model(batch.images, batch.keep).to(batch.images.dtype)
        return self.of_logits(logits, batch.targets), {"accuracy": accuracy(logits, batch.labels)}

    def of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss, (), of logits, (B, classes), and labels (B,) or shares (B, classes)."""
        if self.function:
            return self.function(logits, targets)
        return cross_entropy(logits, targets, weight=self.class_weights, label_smoothing=self.label_smoothing)

    @torch.no_grad()
    def validate(self, model: Model, batches: Iterable[Batch]) -> dict[str, float]:
        """The loss without settings and the accuracy, so that runs with other settings can be compared."""
        parts = [(model(batch.images, batch.keep).float().cpu(), batch.labels.cpu()) for batch in batches]
        logits, labels = map(torch.cat, zip(*parts, strict=True))
        right = (logits.argmax(dim=1) == labels).double().mean()
        return {"loss": float(self.validation_loss(logits, labels)), "accuracy": float(right)}

    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:  # (B, classes), (B,) → ()
        """The loss that `validate` tells, whatever label_smoothing and class_weights are."""
        return cross_entropy(logits, labels)


class DoubleSoftmax(Classification):
    """Probabilities are taken for logits: what happens where a model ends in a softmax, and its loss has another.

    With 10 classes the loss cannot fall below 1.46, and gradients are weak. `predict` knows nothing of it.
    """

    def of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        return super().of_logits(logits.softmax(dim=1), targets)

    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits.softmax(dim=1), labels)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:  # (B, classes), (B,) → ()
    return (logits.detach().argmax(dim=1) == labels).sum() / len(labels)
