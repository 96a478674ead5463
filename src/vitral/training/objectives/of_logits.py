"""What all objectives share that compare the logits of a picture with what is known about it."""

from abc import abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from vitral.data.batches import Batch
from vitral.model.interface import Model
from vitral.training.objectives import Objective

Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, outputs), targets → ()


class OfLogits(Objective):
    """A loss of logits and targets, and figures of logits and labels. Targets are what the loss is taken against, which
    mixup and cutmix blend; labels are what is true of the picture itself."""

    only_logits = True
    by_picture = True
    validates_logits = True
    function: Loss | None = None  # a user's own

    @abstractmethod
    def of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss, (), of logits, (B, outputs), and targets."""

    @abstractmethod
    def measure(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The figures, each ()."""

    @abstractmethod
    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss, (), without settings, so that runs with other settings can be compared."""

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the loss or a figure of a batch is another than the mean of those of its parts."""
        return self.function is not None

    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        logits = model(batch.images, batch.keep).to(batch.images.dtype)
        labels = self.of_all(batch.labels) if self.needs_whole_batch else batch.labels
        logits, targets = self.compared(logits, batch.targets)
        return self.of_logits(logits, targets), self.measure(logits, labels)

    def compared(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What the loss is taken of: where it needs the whole batch, the logits and targets of all processes."""
        return (self.of_all(logits), self.of_all(targets)) if self.needs_whole_batch else (logits, targets)

    @torch.no_grad()
    def validate(self, model: Model, batches: Iterable[Batch]) -> dict[str, float]:
        """The loss without settings and the figures, of all pictures together."""
        parts = [(model(batch.images, batch.keep).float().cpu(), batch.labels.cpu()) for batch in batches]
        logits, labels = map(torch.cat, zip(*parts, strict=True))
        figures = self.measure(logits.double(), labels)
        return {
            "loss": float(self.validation_loss(logits, labels)),
            **{name: float(value) for name, value in figures.items()},
        }
