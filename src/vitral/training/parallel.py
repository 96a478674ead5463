"""Several processes learn one model: each computes the gradients of its share of a batch, and they are averaged.

Here the whole model is in every process (torch's DDP); in shards.py each has a share of it.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitral.data.batches import Batch
from vitral.errors import RecipeError
from vitral.processes import Processes
from vitral.recipe import Recipe
from vitral.training.config import Train
from vitral.training.objectives import Objective

Loss = tuple[Tensor, dict[str, Tensor]]  # (), and the figures by name, each ()
Forward = Callable[..., Tensor]


class Work(nn.Module):
    """Modules as one, which does what it is given: DDP and FSDP2 look after a module that is called, and an objective
    asks a model for more than its `forward`."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, work: Callable[..., Any], *words: Any) -> Any:
        return work(*words)


class Replicas:
    """The loss of a batch, so that after the way back every process has the mean of the gradients of all."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        self.module = Work(model, objective)
        self.learning: list[int] = []  # ids of the parameters that learn
        self.ddp: Any = None

    def loss(
        self, objective: Objective, forward: Forward, batch: Batch, step: int, progress: float, *, averages: bool
    ) -> Loss:
        """`averages`: whether the gradients are averaged on the way back; of a batch in parts, with the last alone."""
        learning = [id(parameter) for parameter in self.module.parameters() if parameter.requires_grad]
        if learning != self.learning:  # at first, and when blocks thaw
            # Not every objective uses every parameter, and none is to be waited for.
            self.ddp = DistributedDataParallel(self.module, forward_sync_buffers=False, find_unused_parameters=True)
            self.learning = learning
        with nullcontext() if averages else self.ddp.no_sync():
            loss: Loss = self.ddp(batch_loss, objective, forward, batch, step, progress)
        return loss


def batch_loss(objective: Objective, forward: Forward, batch: Batch, step: int, progress: float) -> Loss:
    """The loss of a batch, which has a gradient, and its figures, which have none."""
    loss, figures = objective.checked_loss(forward, batch, step, progress)  # type: ignore[arg-type]
    return loss, {name: value.detach() for name, value in figures.items()}


# A tensor that is shared out is a DTensor, cut along its first dimension. To ask for its type would load FSDP2.


def is_slice(tensor: Any) -> bool:
    """Whether this process holds but a slice of a tensor."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Tensor:
    """What this process holds of a tensor."""
    part: Tensor = tensor.to_local() if is_slice(tensor) else tensor
    return part


def first_row(tensor: Any) -> int:
    """Where that begins."""
    if not is_slice(tensor):
        return 0
    mesh = tensor.device_mesh
    return min(-(-len(tensor) // mesh.size()) * mesh.get_local_rank(), len(tensor))


def whole(tensor: Any) -> Tensor:
    """All of a tensor: its slices come from all processes."""
    every: Tensor = tensor.full_tensor() if is_slice(tensor) else tensor
    return every


def check_parallel(recipe: Recipe, processes: Processes, learns_by: type[Objective]) -> None:
    """Refuse what several processes could not do as one does."""
    if not processes.many:
        return
    check_share(recipe.train.batch_size, recipe.train, processes)
    if not learns_by.by_picture:
        raise RecipeError(
            f"train.objective {recipe.train.objective.kind} may compare the pictures of a batch, of which each of "
            f"{processes} has a share. If its loss is a mean over pictures, say so in the class: by_picture = True."
        )
    if recipe.train.parallel == "shard" and (reason := why_not_shared(recipe, learns_by)):
        raise RecipeError(f"{reason} Set train.parallel=replicate.")
    if recipe.train.device == "mps":
        raise RecipeError("train.device mps is for one process: torch has no way for several to add up tensors there.")


def why_not_shared(recipe: Recipe, learns_by: type[Objective]) -> str:
    """A sentence where a recipe needs the whole model in each process; else ""."""
    if learns_by.after_step is not Objective.after_step:
        return (
            f"train.objective {recipe.train.objective.kind} follows the weights after each step, and with "
            "train.parallel=shard no process has them whole."
        )
    if recipe.train.compile == "yes":
        return "train.compile=yes is for a model that is whole, and with train.parallel=shard no process has that."
    return ""


def check_share(pictures: int, train: Train, processes: Processes) -> None:
    """Refuse a batch of so many pictures that cannot be shared out evenly."""
    parts = f" in {train.accumulate} parts (train.accumulate)" if train.accumulate > 1 else ""
    each = processes.world * train.accumulate
    if processes.many and pictures % each:
        larger = -(-pictures // each) * each if pictures == train.batch_size else 0  # else there are no more pictures
        near = " or ".join(str(count) for count in (pictures // each * each, larger) if count)
        raise RecipeError(
            f"{processes} cannot share out a batch of {pictures} pictures{parts} evenly. Set train.batch_size={near}, "
            "or start another number of processes."
        )
