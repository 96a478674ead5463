"""The label is to be the most probable class: cross-entropy."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.training.objectives.of_logits import Loss, OfLogits


class Classification(OfLogits):
    """Cross-entropy, and the share of labels that were the most probable class.

    >>> Classification().figures
    ('accuracy',)
    """

    figures = ("accuracy",)

    def __init__(
        self, class_weights: Tensor | None = None, label_smoothing: float = 0.0, function: Loss | None = None
    ) -> None:
        """`function` takes the place of cross-entropy: a user's own loss of logits and targets."""
        super().__init__()
        self.class_weights, self.label_smoothing, self.function = class_weights, label_smoothing, function

    @property
    def needs_whole_batch(self) -> bool:
        return super().needs_whole_batch or self.class_weights is not None  # it is divided by the weights of the batch

    def of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss, (), of logits, (B, classes), and labels (B,) or shares (B, classes)."""
        if self.function:
            return self.function(logits, targets)
        return cross_entropy(logits, targets, weight=self.class_weights, label_smoothing=self.label_smoothing)

    def measure(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"accuracy": accuracy(logits, labels)}

    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, whatever label_smoothing and class_weights are."""
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
    return (logits.detach().argmax(dim=1) == labels).to(logits.dtype).mean()


def class_of(labels: Tensor) -> Tensor:  # (B, classes) → (B,)
    """The class of each picture, where it stands as 1 among zeros: as one of several tasks."""
    return labels.argmax(dim=1)


def balanced_weights(labels: Tensor) -> Tensor:  # (n, classes), a 1 among zeros each → (classes,)
    """The mean number of pictures per class over the number of this class, as `class_weights` has it."""
    counts = labels.sum(dim=0)
    return counts.sum() / counts.clamp(min=1) / (counts > 0).sum() * (counts > 0)
