"""What a model learns by: from a batch to a loss. One file per objective; the learner knows none of them.

A new one is a class of `Objective` in a file here, or in one's own (`train.objective=mine.py:Focal`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from vitral.data.batches import Batch
from vitral.errors import RecipeError, VitralError
from vitral.files import where_it_failed
from vitral.model.config import ModelConfig
from vitral.model.interface import Model
from vitral.processes import Processes

if TYPE_CHECKING:
    from vitral.recipe import Recipe


class Objective(nn.Module, ABC):
    """A loss to be made small, and figures such as the accuracy that show how it goes.

    Its modules (a decoder, a projector) learn with the model and are checkpointed, and are not part of
    model.safetensors. What it draws from torch's random numbers follows from seed and step alone.
    """

    figures: tuple[str, ...] = ()  # names of the figures that `loss` and `validate` return
    needs_labels: ClassVar[bool] = True
    # How many views of each picture a batch has, by the size of each as a share of the model's image size: the first is
    # `batch.images`, the others are `batch.more_views`. Where data.augment.crop is set, a smaller view is of a smaller
    # part of the picture: see `Batches`.
    views: ClassVar[tuple[float, ...]] = (1.0,)
    # Figures that `watch` tells, of validation pictures; an objective that has some needs such pictures.
    watched: ClassVar[tuple[str, ...]] = ()
    # Whether it asks the model for `model(images, keep)` alone. Then what frozen blocks make of pictures can be cached.
    only_logits: ClassVar[bool] = False

    # Whether processes can share out a batch: its loss is a mean over pictures that do not know of each other, or it
    # asks `of_all` for what it compares.
    by_picture: ClassVar[bool] = False
    # Whether `validate` asks the model for `model(images, keep)` alone, as `only_logits` says it of `loss`.
    validates_logits: ClassVar[bool] = False

    plugin = ""  # what a recipe calls it, where it is in a file of the user's own
    processes = Processes()  # that share out a batch

    @classmethod
    def check(cls, recipe: "Recipe", config: ModelConfig) -> None:
        """Refuse, in a sentence, what it cannot learn with: before any picture is read."""
        return

    @abstractmethod
    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, (), and its figures. `progress`, 0 to 1: how far the training is."""

    def checked_loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The same; of code that is not ours, what fails or does not fit is told in a sentence."""
        if not self.plugin:
            return self.loss(model, batch, step, progress)
        try:
            loss, figures = self.loss(model, batch, step, progress)
        except VitralError:
            raise
        except Exception as error:
            raise RecipeError(f"{self.plugin} fails: {where_it_failed(error)}") from error
        if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad and torch.is_grad_enabled():
            raise RecipeError(f"{self.plugin} should give a loss that is one number and has a gradient.")
        if set(figures) != set(self.figures) or not all(isinstance(one, Tensor) for one in figures.values()):
            names = ", ".join(self.figures) or "none"
            raise RecipeError(f"{self.plugin} should tell these figures, each as a tensor: {names}.")
        return loss, figures

    def after_step(self, model: Model, step: int) -> None:
        """Called when the weights have moved: for what follows them, such as a teacher that is their average."""
        return

    @torch.no_grad()
    def validate(self, model: Model, batches: Iterable[Batch]) -> dict[str, float]:
        """The loss and the figures of validation pictures: by default their means over the batches."""
        sums: dict[str, float] = {}
        count = 0
        for batch in batches:
            loss, figures = self.checked_loss(model, batch, step=0, progress=1.0)
            for name, value in {"loss": loss, **figures}.items():
                sums[name] = sums.get(name, 0.0) + float(value) * len(batch.samples)
            count += len(batch.samples)
        return {name: value / count for name, value in sums.items()}

    def watch(self, model: Model, batches: Iterable[Batch]) -> dict[str, float]:
        """What the model sees in the validation pictures, not augmented: figures that choose nothing."""
        return {}

    def alarm(self, figures: Mapping[str, float], step: int) -> str:
        """A sentence where the validation figures of an epoch, which ended with this step, say that it makes no sense
        to go on; else ""."""
        return ""

    def share(self, processes: Processes) -> None:
        """From now on these processes share out every batch."""
        for module in self.modules():
            if isinstance(module, Objective):
                module.processes = processes

    def of_all(self, rows: Tensor) -> Tensor:  # (n, …) → (N, …)
        """The rows of all processes that share out a batch, of which each gets the gradients of its own."""
        if not self.processes.many:
            return rows
        every: Tensor = _OfAll.apply(rows, self.processes)  # type: ignore[no-untyped-call]
        return every

    def copy(self) -> "Objective":
        """An objective to try something out with, which shares nothing with this one."""
        return deepcopy(self)


class _OfAll(torch.autograd.Function):
    """The rows of all processes. Each takes the loss of them all, and the gradients of its own rows; since those of all
    processes are averaged afterwards, they count as often as there are processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return processes.stack(rows).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].chunk(ctx.processes.world)[ctx.processes.rank] * ctx.processes.world, None
