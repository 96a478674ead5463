"""One model shared out by torch's FSDP2: each process holds a slice of every weight, gradient and optimizer state.

A block is whole in every process only while it works; what stands outside of the blocks (the embedding, the head, the
modules of the objective) is whole for a whole step.
"""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from vitral.data.batches import Batch
from vitral.errors import RecipeError
from vitral.model.interface import Model
from vitral.processes import Processes
from vitral.training.objectives import Objective
from vitral.training.parallel import Forward, Loss, Work, batch_loss, whole

Answer = TypeVar("Answer")


class Shards:
    """A model in training, its average and its objective, of which each process has a share."""

    def __init__(self, model: Model, average: Model, objective: Objective, processes: Processes) -> None:
        check_model(model)
        self.processes = processes
        self.hollow = _hollow(model)
        device = next(model.parameters()).device.type
        mesh = init_device_mesh(device, (processes.world,))
        self.trained = _share_out(Work(model, objective), model, mesh)
        self.averaged = None if average is model else _share_out(Work(average), average, mesh)

    def loss(
        self, objective: Objective, forward: Forward, batch: Batch, step: int, progress: float, *, averages: bool
    ) -> Loss:
        """The gradients of every part of a batch are averaged, and not of the last alone: else each process would hold
        those of the whole model meanwhile."""
        loss: Loss = self.trained(batch_loss, objective, forward, batch, step, progress)
        return loss

    def ask(self, work: Callable[[], Answer]) -> Answer:
        """What `work` gives, within which the model, its average and the objective can be asked. All processes have to
        ask as often: a block comes together from all of them."""
        every = [one for one in (self.trained, self.averaged) if one is not None]
        for module in every:
            work = _within(module, work)
        try:
            with self.processes.explaining():
                return work()
        finally:
            for module in every:
                module.reshard()

    def gather(self, model: Model) -> Model:
        """A model in one piece: for the first process; the others get one without numbers."""
        state = {}
        for name, tensor in model.state_dict().items():  # one after the other: whole it may be large
            full = whole(tensor)
            if self.processes.first:
                state[name] = full
        one = deepcopy(self.hollow)
        if state:
            one.load_state_dict(state, assign=True)
        return one


def check_model(model: Model) -> None:
    """Refuse weights that cannot be cut, or that two blocks have in common."""
    owners = Counter(id(parameter) for block in model.repeated_blocks() for parameter in block.parameters())
    for name, parameter in model.named_parameters():
        if not parameter.ndim or owners[id(parameter)] > 1:
            what = "is one number, which cannot be cut" if not parameter.ndim else "belongs to two blocks"
            raise RecipeError(
                f"train.parallel shard cuts every weight, and {name} {what}: set train.parallel=replicate."
            )


def _share_out(work: Work, model: Model, mesh: DeviceMesh) -> Any:
    for block in model.repeated_blocks():
        fully_shard(block, mesh=mesh)
    return fully_shard(work, mesh=mesh)


def _within(module: nn.Module, work: Callable[[], Answer]) -> Callable[[], Answer]:
    return lambda: module(work)


def _hollow(model: Model) -> Model:
    """A copy of a model whose weights have no numbers."""
    memo: dict[int, Any] = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad) for one in model.parameters()
    }
    return deepcopy(model, memo)
