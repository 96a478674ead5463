"""Several tasks at once: the losses of all, added."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitral.targets import Target, columns
from vitral.training.objectives.classification import Classification, class_of
from vitral.training.objectives.of_logits import OfLogits


@dataclass(frozen=True)
class Task:
    """A part of the outputs that is learnt for itself."""

    target: Target
    columns: slice
    objective: OfLogits
    weight: float

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:  # both (B, outputs) → ()
        mine, targets = logits[:, self.columns], targets[:, self.columns]
        is_class = isinstance(self.objective, Classification)
        return self.weight * self.objective.of_logits(mine, targets.to(mine.dtype) if is_class else targets)

    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.weight * self.objective.validation_loss(logits[:, self.columns], self._labels(labels))

    def measure(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        figures = self.objective.measure(logits[:, self.columns], self._labels(labels))
        return {f"{self.target.name}_{name}": value for name, value in figures.items()}

    def _labels(self, labels: Tensor) -> Tensor:  # (B, outputs) → (B, columns), or (B,) of classes
        mine = labels[:, self.columns]
        return class_of(mine) if isinstance(self.objective, Classification) else mine


class Tasks(OfLogits):
    """The weighted sum of the losses of several tasks. Each has its own figures, behind its name: digit_accuracy."""

    def __init__(self, targets: Sequence[Target], objectives: Sequence[OfLogits], weights: Sequence[float]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(objectives)
        places = zip(targets, columns(targets), objectives, weights, strict=True)
        self.tasks = [Task(*place) for place in places]
        self.figures = tuple(f"{task.target.name}_{name}" for task in self.tasks for name in task.objective.figures)

    @property
    def needs_whole_batch(self) -> bool:
        return any(task.objective.needs_whole_batch for task in self.tasks)

    def of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([task.loss(logits, targets) for task in self.tasks]).sum()

    def measure(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {name: value for task in self.tasks for name, value in task.measure(logits, labels).items()}

    def validation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([task.validation_loss(logits, labels) for task in self.tasks]).sum()
