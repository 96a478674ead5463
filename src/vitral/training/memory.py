"""How much memory a training takes, before it begins: one step of it, with tensors that have a shape and no numbers.

The step is the learner's own, so whatever a recipe asks for is in it: what is frozen, an average, parts of a batch,
short numbers. Not in it: Python and torch themselves (about 0.3 GiB), pictures, cached features, a teacher, what an
objective in a user's own file makes, and what the system's allocator keeps without need: up to a third more on Linux.
"""

import math
import os
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vitral.data.batches import Batch
from vitral.model import build
from vitral.model.config import ModelConfig
from vitral.model.interface import Model
from vitral.processes import Processes
from vitral.recipe import Recipe
from vitral.run import Choices
from vitral.training.freezing import freeze_by
from vitral.training.learner import Learner
from vitral.training.objectives import Objective
from vitral.training.parallel import why_not_shared

# What the forecast leaves out: what the allocator keeps without need, at most, and Python with torch.
ALLOCATOR, TORCH = 4 / 3, 0.3 * 2**30
COPIES = 4  # weights, gradients, and two for the optimizer
LITTLE = 0.05  # of the memory: where these take less, nothing is gained by sharing them out


@dataclass(frozen=True)
class MemoryForecast:
    """What a step of training takes, in bytes."""

    weights: int  # of the model, and of its average and its best epoch where they are kept
    gradients: int
    optimizer: int
    activations: int  # what the way back needs of the way there
    most: int  # at once. Less than the sum: gradients come while activations go


def forecast_memory(recipe: Recipe, config: ModelConfig) -> MemoryForecast:
    """The memory that a step of a recipe takes. `config`: its model, with the classes and channels of the pictures.

    >>> from vitral.model.config import ViTConfig
    >>> forecast_memory(Recipe(), ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=4)).gradients
    714400
    """
    train, parts = recipe.train, min(recipe.train.accumulate, 2)  # those that come later take as much as the second
    size = -(-train.batch_size // train.accumulate) * parts
    train = train.model_copy(update={"batch_size": size, "accumulate": parts})
    with _without_numbers() as held:
        model = build(config, train.regularise)
        freeze_by(model, recipe.init, train.seed)
        learner = Learner(model.train(), train, init=recipe.init)
        learner.set_precision("bfloat16" if train.precision == "bfloat16" else "float32", compiled=False)
        if train.choose != "last":
            learner.keep_best()
        weights, saved = held.count.now, _Count({id(one.untyped_storage()) for one in model.parameters()})
        with saved_tensors_hooks(saved.add, lambda tensor: tensor):
            batch = _batch(recipe.train.batch_size, size, config)
            learner.gradients(1, batch, progress=1.0)  # by then all that ever learns does
        gradients = sum(one.grad.nbytes for one in model.parameters() if one.grad is not None)
        there_and_back = held.count.most
        learner.update(1, share=1.0)
        optimizer = sum(tensor.nbytes for tensor in learner.optimizers.tensors().values())
        # From the second step on the optimizer remembers.
        return MemoryForecast(
            weights, gradients, optimizer, saved.most, max(there_and_back + optimizer, held.count.most)
        )


def choose_shards(
    recipe: Recipe,
    model: Model,
    processes: Processes,
    learns_by: type[Objective],
    before: Choices | None = None,
) -> tuple[bool, str]:
    """Whether several processes share the model out, and a sentence where that was not asked for: `auto` does so where
    a step with the whole model would not fit. A run that goes on with as many processes stays with what it has chosen
    `before`."""
    if not processes.many or recipe.train.parallel != "auto":
        return processes.many and recipe.train.parallel == "shard", ""
    if why_not_shared(recipe, learns_by):
        return False, ""
    if before and before.processes == processes.world:
        return before.parallel == "shard", ""
    free = min(processes.gather(_free_memory(next(model.parameters()).device)))
    most = processes.decide(lambda: _most(recipe, model, processes.world, free))
    if most <= free:
        return False, ""
    return True, (
        f"A step with the whole model would take {most / 2**30:.1f} GiB in each process, and {free / 2**30:.1f} are "
        "free: they share the model out (train.parallel=shard)."
    )


def _most(recipe: Recipe, model: Model, processes: int, free: float) -> float:
    """What a step with the whole model takes, by its forecast and with what that leaves out. What could be shared out
    is all that is told where it is little, or where a forecast would run somebody's own code."""
    copies = COPIES * sum(parameter.nbytes for parameter in model.parameters())
    if copies < LITTLE * free or recipe.plugins or not model.config.has_classes:
        return copies
    share = recipe.changed({"train.batch_size": max(1, recipe.train.batch_size // processes)})
    return ALLOCATOR * forecast_memory(share, model.config).most + TORCH


def _free_memory(device: torch.device) -> float:
    """Bytes that a process can have: of a machine its share."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    limits = [_free_of_machine(), _free_of_group(Path("/sys/fs/cgroup"))]
    return min(limits) / int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _free_of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # of other systems nothing is known
        return math.inf
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)


def _free_of_group(folder: Path) -> float:
    """What the limit of a container leaves. Pages of files that were read, such as packs, give way."""
    try:
        limit, taken = (float((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return limit - taken + float(facts["inactive_file"]) + float(facts["active_file"])
    except (OSError, ValueError, KeyError):  # there is none: "max"
        return math.inf


def _batch(count: int, size: int, config: ModelConfig) -> Batch:
    """The first `size` of so many pictures."""
    labels, images = torch.zeros(size, dtype=torch.int64), torch.empty(count, config.channels, *config.height_width)
    return Batch(images[:size], labels, np.arange(size), labels)


class _Count:
    """Bytes of tensors for as long as they live: now, and the most at once. Some storages are `known` and left out."""

    def __init__(self, known: set[int]) -> None:
        self.now = self.most = 0
        self.known = known  # by id

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in self.known:
            self.known.add(id(storage))
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._forget, id(storage), storage.nbytes())
        return tensor

    def _forget(self, identity: int, size: int) -> None:
        self.known.discard(identity)
        self.now -= size


class _Held(TorchDispatchMode):
    """Counts every tensor that torch makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = _Count(set())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.count.add(leaf)
        return result


class _Shapes(FakeTensorMode):
    """Tensors without numbers, whose copies are of the same kind."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Shapes":
        return self


@contextmanager
def _without_numbers() -> Iterator[_Held]:
    """Within it tensors have shapes and no numbers, and what they would take is counted."""
    with warnings.catch_warnings(), torch.random.fork_rng(), _Shapes(), _Held() as held:
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by torch, when it copies one
        yield held
