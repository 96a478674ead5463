"""A number is to be said: Huber's loss of how far off it is, in standard deviations."""

from torch import Tensor
from torch.nn.functional import huber_loss

from vitral.targets import Target
from vitral.training.objectives.of_logits import Loss, OfLogits


class Number(OfLogits):
    """Huber's loss on the standardised number: a square near 0, and a straight line for what is off by more than one
    standard deviation, so that a few wild numbers do not lead the rest. The figure is the mean absolute error, in the
    unit of the data.

    >>> Number(Target(name="angle", kind="number", names=("angle",), std=20.0)).figures
    ('mae',)
    """

    figures = ("mae",)

    def __init__(self, target: Target, function: Loss | None = None) -> None:
        """`function` takes the place of Huber's loss: a user's own, of outputs and standardised numbers, each (B, 1)"""
        super().__init__()
        self.target, self.function = target, function

    def of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:  # (B, 1), (B, 1) in the unit of the data
        numbers = self._standardise(targets).to(logits.dtype)
        return self.function(logits, numbers) if self.function else huber_loss(logits, numbers)

    def measure(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        off = (logits.detach() - self._standardise(labels).to(logits.dtype)).abs()
        return {"mae": off.mean() * self.target.std}

    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return huber_loss(logits, self._standardise(labels).to(logits.dtype))

    def _standardise(self, numbers: Tensor) -> Tensor:
        return (numbers - self.target.mean) / self.target.std
