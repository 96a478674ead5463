"""Each label is to be said where it is: binary cross-entropy, label by label."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from vitral.training.objectives.of_logits import Loss, OfLogits


class Labels(OfLogits):
    """Binary cross-entropy, the mean over labels, and the mean average precision: how far the pictures that have a
    label stand before those that have not, when they are ordered by its logit.

    >>> Labels().figures
    ('map',)
    """

    figures = ("map",)

    def __init__(
        self, positive_weights: Tensor | None = None, label_smoothing: float = 0.0, function: Loss | None = None
    ) -> None:
        """`positive_weights`, (labels,): how much more a label counts where it is than where it is not. `function`: a
        user's own loss of logits and targets, both (B, labels)."""
        super().__init__()
        self.positive_weights, self.label_smoothing, self.function = positive_weights, label_smoothing, function

    @property
    def needs_whole_batch(self) -> bool:
        return True  # the mean average precision of a batch is not the mean of those of its parts

    def of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:  # (B, labels), (B, labels) of 0 to 1
        targets = targets.to(logits.dtype)
        if self.function:
            return self.function(logits, targets)
        smooth = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        return binary_cross_entropy_with_logits(logits, smooth, pos_weight=self.positive_weights)

    def measure(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"map": mean_average_precision(logits.detach(), labels)}

    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def mean_average_precision(logits: Tensor, labels: Tensor) -> Tensor:  # (B, labels), (B, labels) → ()
    """The mean, over the labels that some of these pictures have, of the precision at each picture that has the label.

    >>> float(mean_average_precision(torch.tensor([[3.0], [2.0], [1.0]]), torch.tensor([[1], [0], [1]])))
    0.8333333...
    """
    order = logits.argsort(dim=0, descending=True)
    ranked = (labels > 0.5).gather(0, order).to(logits.dtype)
    places = torch.arange(1, len(ranked) + 1, device=ranked.device)[:, None]
    count = ranked.sum(dim=0)
    each = (ranked * ranked.cumsum(dim=0) / places).sum(dim=0) / count.clamp(min=1)
    return each.sum() / (count > 0).sum().clamp(min=1)


def positive_weights(labels: Tensor) -> Tensor:  # (n, labels) → (labels,)
    """How many pictures have not a label for each that has it: then both count alike.

    >>> positive_weights(torch.tensor([[1], [0], [0], [0]]))
    tensor([3.])
    """
    has = (labels > 0.5).float().mean(dim=0)
    return torch.where(has > 0, (1 - has) / has.clamp(min=1e-9), 1.0)
