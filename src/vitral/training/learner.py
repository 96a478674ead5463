"""A model in training, with its average and its optimizers: one step of it, and all that an exact resume needs."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad_norm_

from vitral.data.batches import Batch, Batches
from vitral.data.randomness import uniform
from vitral.model.interface import Layer, Model
from vitral.plugin import is_plugin
from vitral.processes import Processes
from vitral.training.averages import Average
from vitral.training.checkpoint import Stored
from vitral.training.config import Fixed, Init, Ramp, Train
from vitral.training.freezing import freeze
from vitral.training.objectives import Objective
from vitral.training.objectives.classification import Classification
from vitral.training.optimizers import make_optimizers
from vitral.training.parallel import Replicas

if TYPE_CHECKING:
    from vitral.training.shards import Shards

Answer = TypeVar("Answer")
ForwardTail = Callable[..., Tensor]  # (model, features of frozen blocks) → (B, classes)

REFIT = 8  # batches that BatchNorms are measured on in the end


class Learner:
    """A model in training."""

    def __init__(
        self,
        model: Model,
        train: Train,
        objective: Objective | None = None,
        init: Init | None = None,
        forward_tail: ForwardTail | None = None,
        processes: Processes | None = None,
        shards: bool = False,
    ) -> None:
        """`forward_tail`: the rest of the model, where batches hold features of its frozen blocks and not images. Of
        several `processes` each has a learner, and they stay the same; with `shards` each has a share of the model."""
        self.model, self.train, self.forward_tail = model, train, forward_tail
        self.processes = processes or Processes()
        if train.recompute:
            model.recompute_blocks()
        self.objective, self.init = objective or Classification(), init or Init()
        self.device = next(model.parameters()).device
        self.objective.to(self.device)
        self.average = Average(model, train.ema)
        self.shards = self._share_out() if shards else None
        self.replicas = Replicas(model, self.objective) if self.processes.many and not shards else None
        self.optimizers = make_optimizers(
            model,
            train.optimizer,
            train.layer_decay * self.init.layer_decay,
            later=self.init.thaw > 0,
            extra=self.objective,
        )
        self.computing = False  # whether gradients are half done
        self.norms = _batch_norms(model)
        # Only what may draw from torch's own random numbers needs them seeded at every step.
        plain = train.regularise == type(train.regularise)() and not is_plugin(model.config.kind)
        self.draws = not plain or bool(self.objective.plugin)
        self.best: dict[str, Tensor] = {}  # the weights of the best epoch, where `choose` asks for them
        self.set_precision("float32", compiled=False)

    @property
    def layers(self) -> list[Layer]:
        """The layers of the model, and one with the parameters of its objective, where it has any."""
        layers, extra = self.model.layers(), dict(self.objective.named_parameters())
        return [*layers, Layer("objective", layers[-1].depth, extra, "head")] if extra else layers

    def set_precision(self, precision: str, compiled: bool) -> None:
        """Compute in this precision from now on, compiled or not."""
        self.precision, self.compiled = precision, compiled
        self.optimizers.set_precision(precision)
        self.forward: Any = torch.compile(self.model, dynamic=False) if compiled else self.model
        if self.forward_tail:
            self.forward = partial(self.forward_tail, self.model)

    def _share_out(self) -> "Shards":
        from vitral.training.shards import Shards  # FSDP2 takes seconds to load

        return Shards(self.model, self.average.model, self.objective, self.processes)

    @contextmanager
    def trial(self) -> Iterator["Learner"]:
        """A learner to try something out with, which leaves this one as it is. Where the model is shared out there is
        no room for a second one: then it is this one, and set back."""
        if not self.shards:
            yield self.copy()
            return
        weights = {name: tensor.clone() for name, tensor in self._weights().items()}
        states = {name: tensor.clone() for name, tensor in self.optimizers.tensors().items()}
        yield self
        for name, tensor in self._weights().items():
            tensor.copy_(weights[name])
        self.optimizers.restore(states)

    def copy(self) -> "Learner":
        """A learner to try something out with: the same weights, optimizers that begin anew."""
        learner = Learner(
            deepcopy(self.model), self.train, self.objective.copy(), self.init, self.forward_tail, self.processes
        )
        learner.set_precision(self.precision, self.compiled)
        return learner

    def gradients(self, step: int, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch and its figures, each (); the gradients are in the model. Of several processes each has a
        share of the batch, and all hear of the same loss and have the same gradients: those of the whole.

        `progress`, 0 to 1, says how far the training is: at first it may look at fewer patches or smaller pictures.
        """
        with self.processes.explaining():
            loss, figures = self._gradients(step, batch, progress)
            mean = self.processes.average({"loss": loss, **figures})
        self.computing = False
        return mean.pop("loss"), mean

    def _gradients(self, step: int, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        self._thaw(progress)
        for norm in self.norms:  # the running statistics of a frozen one stay, too
            norm.train(_learns(norm))
        self.buffers = [buffer.clone() for buffer in self._buffers()]  # as they were: see `discard`
        self.computing = True
        count, parts = len(batch.samples), self.train.accumulate
        loss, figures = torch.zeros((), device=self.device), dict[str, Tensor]()
        autocast = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()
        for part in range(parts):
            rows = slice(count * part // parts, count * (part + 1) // parts)
            if rows.start == rows.stop:
                continue
            view = self._view(batch.rows(rows), step, progress)
            with self._seeded(step, part, self.processes.rank), autocast:
                mean, named = self._loss(view, step, progress, averages=part == parts - 1)
            share = len(view.samples) / count
            (mean * share).backward()
            loss += mean.detach() * share
            for name, value in named.items():
                figures[name] = figures.get(name, 0.0) + value.detach() * share
        return loss, figures

    def _loss(self, batch: Batch, step: int, progress: float, averages: bool) -> tuple[Tensor, dict[str, Tensor]]:
        if together := self.shards or self.replicas:
            return together.loss(self.objective, self.forward, batch, step, progress, averages=averages)
        return self.objective.checked_loss(self.forward, batch, step, progress)

    def discard(self) -> None:
        """Forget the last gradients, and what BatchNorms remember of that batch."""
        self.optimizers.zero_grad()
        for buffer, before in zip(self._buffers(), self.buffers, strict=True):
            buffer.copy_(before)
        self.computing = False

    @property
    def refits_norms(self) -> bool:
        """Whether there are BatchNorms that learn."""
        return any(_learns(norm) for norm in self.norms)

    def refit_norms(self, batches: Batches, after: int, progress: float) -> None:
        """Measure the statistics of BatchNorms anew, for the weights of the result: after few steps, or with averaged
        weights, the running ones are not theirs."""
        self._thaw(progress)  # a run that goes on after its last step takes no other, and nothing has thawed yet
        if self.refits_norms:
            stream = batches.starting_at(after + 1)
            images = (batch.images.to(self.device) for _, batch in islice(stream, REFIT))
            self.ask(lambda: self.average.model.refit_norms(images))
            stream.close()

    def update(self, step: int, share: float) -> None:
        """The gradients become a step, at this share of the full learning rate."""
        if self.train.clip:
            clip_grad_norm_([*self.model.parameters(), *self.objective.parameters()], self.train.clip)
        self.optimizers.set_share(share)
        self.optimizers.step()
        self.optimizers.zero_grad()
        self.average.update(step)
        with self._seeded(step, self.train.accumulate):
            self.objective.after_step(self.model, step)

    def patches_seen(self, progress: float) -> float:
        """The share of the patches that the model looks at when so much of the training is done, 0 to 1."""
        return _ramp_share(self.train.patches, progress) * _ramp_share(self.train.image_size, progress) ** 2

    def keep_best(self) -> None:
        """Remember the weights as they are: the best so far."""
        self.best = {name: tensor.clone() for name, tensor in self.average.model.state_dict().items()}

    def ask(self, work: Callable[[], Answer]) -> Answer:
        """What `work` gives, which asks the model, its average or the objective for something. Where they are shared
        out, all processes have to do the same work together."""
        return self.shards.ask(work) if self.shards else work()

    def use_best(self) -> None:
        """The weights of the best epoch become the result, where they were remembered."""
        if self.best:
            self.average.model.load_state_dict(self.best)

    def result(self) -> Model:
        """The model to use. Where it is shared out, the first process has it whole, and the others without numbers."""
        return self.shards.gather(self.average.model) if self.shards else self.average.model

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by name."""
        return self._weights() | _named("optimizer", self.optimizers.tensors()) | _named("best", self.best)

    def restore(self, stored: Stored) -> None:
        """Take back what `tensors` gave."""
        average = self.average.model.state_dict()
        self.best = {name: torch.empty_like(average[name]) for name in stored.of("best")}
        states = self.optimizers.room(stored.of("optimizer"))
        stored.read_into(self._weights() | _named("optimizer", states) | _named("best", self.best))
        self.optimizers.restore(states)

    def _weights(self) -> dict[str, Tensor]:
        """The weights where they stand: of the model, the objective and the average."""
        modules = {"model": self.model, "objective": self.objective}
        if self.average.model is not self.model:
            modules["average"] = self.average.model
        every: dict[str, Tensor] = {}
        for group, module in modules.items():
            every |= _named(group, module.state_dict())
        return every

    def _seeded(self, step: int, part: int, rank: int = 0) -> AbstractContextManager[None]:
        return _seed_torch(self.train, step, part, rank) if self.draws else nullcontext()

    def _buffers(self) -> list[Tensor]:
        return [*self.model.buffers(), *self.objective.buffers()]

    def _view(self, batch: Batch, step: int, progress: float) -> Batch:
        """A batch as the model sees it at this step, on the device: perhaps smaller, perhaps not all patches."""
        images = batch.images.to(self.device)
        smaller = self._resize(images, progress)
        return replace(
            batch,
            images=smaller,
            labels=batch.labels.to(self.device),
            targets=batch.targets.to(self.device),
            more_views=tuple(view.to(self.device) for view in batch.more_views),
            full_size=batch.images,
            keep=self._sample_patches(smaller, batch.samples, step, progress),
        )

    def _thaw(self, progress: float) -> None:
        """Frozen blocks begin to learn one after another, the last one first, and the embedding in the end."""
        if not self.init.thaw:
            return
        share = max(0.0, 1 - progress / self.init.thaw)
        freeze(self.model, math.ceil(self.init.freeze * share))

    def _resize(self, images: Tensor, progress: float) -> Tensor:  # (B, C, H, W) → (B, C, H', W')
        share = _ramp_share(self.train.image_size, progress)
        if share == 1:
            return images
        stride = self.model.config.stride
        size = [max(stride, round(side * share / stride) * stride) for side in images.shape[2:]]
        return interpolate(images, size, mode="bilinear", antialias=True)

    def _sample_patches(self, images: Tensor, samples: NDArray[np.int64], step: int, progress: float) -> Tensor | None:
        """The patches that the model looks at, (B, K), another random choice for each picture; None: all."""
        share = _ramp_share(self.train.patches, progress)
        if share == 1:
            return None
        down, across = self.model.grid_of(images)
        noise = uniform(self.train.seed, "patches", epoch=step, samples=samples, draws=down * across)
        patches = np.sort(np.argsort(noise, axis=1)[:, : max(1, round(share * down * across))], axis=1)
        return torch.from_numpy(patches).to(self.device)


def _named(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{group}.{name}": tensor for name, tensor in tensors.items()}


def _learns(module: nn.Module) -> bool:
    """Whether any of its parameters does; a norm that has none is never frozen."""
    parameters = list(module.parameters())
    return not parameters or any(parameter.requires_grad for parameter in parameters)


def _batch_norms(model: Model) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _ramp_share(ramp: Ramp, progress: float) -> float:
    if isinstance(ramp, Fixed):
        return 1.0
    return min(1.0, ramp.start + (1 - ramp.start) * progress / ramp.until)


@contextmanager
def _seed_torch(train: Train, step: int, part: int, rank: int) -> Iterator[None]:
    """Torch's random numbers, which dropout draws from, follow here from seed, step, part and process alone.

    The caller's are left as they were.
    """
    before = torch.get_rng_state()
    torch.manual_seed(int(uniform(train.seed, "model", epoch=step, samples=[part], copy=rank)[0, 0] * 2**53))
    try:
        yield
    finally:
        torch.set_rng_state(before)
