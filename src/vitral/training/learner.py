"""What learns: the model, its average and its optimizers; one step of it; and all that an exact resume needs."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.utils import clip_grad_norm_

from vitral.data.batches import Batch, Batches
from vitral.data.randomness import uniform
from vitral.model.stems import Whitened
from vitral.model.vit import ViT
from vitral.training.averages import Average
from vitral.training.config import Fixed, Init, Ramp, Train
from vitral.training.feature_cache import freeze
from vitral.training.objectives.distillation import FeatureDistillation, Lesson, StudentOutput
from vitral.training.optimizers import make_optimizers

Rest = Callable[[ViT, Tensor], Tensor]

GENTLE = 0.75  # of the next block's rate
SETTLING = 8  # batches that BatchNorms are measured on in the end


class Learner:
    """A model in training."""

    def __init__(
        self,
        model: ViT,
        train: Train,
        class_weights: Tensor | None,
        init: Init | None = None,
        rest: Rest | None = None,
        lesson: Lesson | None = None,
    ) -> None:
        """`rest`: what is left of the model where batches hold the tokens of its frozen blocks; `lesson`: a teacher."""
        self.model, self.train, self.class_weights, self.rest = model, train, class_weights, rest
        self.init, self.lesson = init or Init(), lesson
        self.average = Average(model, train.ema)
        gentle = {"layer_decay": train.layer_decay * GENTLE} if self.init.mode == "gentle" else {}
        self.optimizers = make_optimizers(model, train.model_copy(update=gentle), later=self.init.thaw > 0)
        self.best: dict[str, Tensor] = {}  # the weights of the best epoch, where `choose` asks for them
        self.device = next(model.parameters()).device
        self.set_precision(precision="float32", compiled=False)

    def set_precision(self, precision: str, compiled: bool) -> None:
        """How to compute from now on."""
        self.precision, self.compiled = precision, compiled
        self.forward: Callable[..., Tensor] = torch.compile(self.model, dynamic=False) if compiled else self.model
        if self.rest:
            self.forward = partial(self.rest, self.model)

    def copy(self) -> "Learner":
        """One to try something out with. It begins anew, from the same weights."""
        copied = Learner(deepcopy(self.model), self.train, self.class_weights, self.init, self.rest, self.lesson)
        copied.set_precision(self.precision, self.compiled)
        return copied

    def gradients(self, step: int, batch: Batch, progress: float) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the share that was right, both (); the gradients are in the model.

        `progress`, 0 to 1, says how far the training is: at first it may look at fewer patches or smaller pictures.
        """
        self._thaw(progress)
        self.model.patch_embed.train(_learns(self.model.patch_embed))  # else what a BatchNorm remembers stays, too
        self.buffers = [buffer.clone() for buffer in self.model.buffers()]  # as they were: see `discard`
        count, parts = len(batch.labels), self.train.accumulate
        loss, right = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for part in range(parts):
            rows = slice(count * part // parts, count * (part + 1) // parts)
            if rows.start == rows.stop:
                continue
            images = self._sized(batch.images[rows].to(self.device), progress)
            keep = self._kept(images, batch.samples[rows], step, progress)
            short = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()
            with _reseeded(self.train, step, part), short:
                heads, patches = self._heads(images, keep)
            heads = [one.to(images.dtype) for one in heads]
            logits = torch.stack(heads).mean(dim=0)
            mean = cross_entropy(
                logits if self.lesson is None else heads[0],
                batch.targets[rows].to(self.device),
                weight=self.class_weights,
                label_smoothing=self.train.label_smoothing,
            )
            if self.lesson:  # the class token learns from the label, another one or the patches from the teacher
                pupil = StudentOutput(heads[-1], patches.to(images.dtype), keep, self.model.grid_of(images))
                weight = self.lesson.asked.weight
                mean = (1 - weight) * mean + weight * self.lesson.loss(batch, rows, pupil)
            share = len(logits) / count
            (mean * share).backward()
            loss += mean.detach() * share
            right += (logits.detach().argmax(dim=1) == batch.labels[rows].to(self.device)).sum() / count
        return loss, right

    def discard(self) -> None:
        """The last gradients, and what a BatchNorm remembers of that batch."""
        self.optimizers.zero_grad()
        for buffer, before in zip(self.model.buffers(), self.buffers, strict=True):
            buffer.copy_(before)

    def refit_norms(self, batches: Batches, after: int, progress: float) -> None:
        """Measure what BatchNorms remember anew, for the weights of the result: after few steps, or with averaged
        weights, it is not what these weights make of the pictures."""
        self._thaw(progress)  # a run that goes on after its last step takes no other, and nothing has thawed yet
        stem = self.average.model.patch_embed
        if isinstance(stem, Whitened) and _learns(self.model.patch_embed):
            stream = batches.starting_at(after + 1)
            stem.settle(batch.images.to(self.device) for _, batch in islice(stream, SETTLING))
            stream.close()

    def update(self, step: int, share: float) -> None:
        """The gradients become a step, at this share of the full learning rate."""
        if self.train.clip:
            clip_grad_norm_(self.model.parameters(), self.train.clip)
        self.optimizers.set_share(share)
        self.optimizers.step()
        self.optimizers.zero_grad()
        self.average.update(step)

    def patches_seen(self, progress: float) -> float:
        """The share of the patches that is looked at by then."""
        return _share(self.train.patches, progress) * _share(self.train.image_size, progress) ** 2

    def keep_best(self) -> None:
        """These weights are the best so far."""
        self.best = {name: tensor.clone() for name, tensor in self.average.model.state_dict().items()}

    def result(self) -> ViT:
        """The model to use."""
        if self.best:
            self.average.model.load_state_dict(self.best)
        return self.average.model

    def tensors(self) -> dict[str, Tensor]:
        """Everything, by name."""
        groups = {"model": self.model.state_dict(), "optimizer": self.optimizers.tensors(), "best": self.best}
        if self.average.model is not self.model:
            groups["average"] = self.average.model.state_dict()
        return {f"{group}.{name}": tensor for group, some in groups.items() for name, tensor in some.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `tensors` gave."""
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "best": {}, "average": {}}
        for name, tensor in tensors.items():
            group, _, rest = name.partition(".")
            groups[group][rest] = tensor.to(self.device) if group != "optimizer" else tensor
        self.model.load_state_dict(groups["model"])
        if self.average.model is not self.model:
            self.average.model.load_state_dict(groups["average"])
        self.optimizers.restore(groups["optimizer"])
        self.best = groups["best"]

    def _heads(self, images: Tensor, keep: Tensor | None) -> tuple[Sequence[Tensor], Tensor]:
        """The logits, (B, classes) each: with a teacher those of each classifier, else their mean; and the tokens of
        the patches, (B, K, D), if the teacher speaks of them."""
        if self.lesson:
            seen = None if isinstance(self.lesson, FeatureDistillation) else self.model.config.tokens_seen
            tokens = self.model.features(images, keep, seen)
            return self.model.logits(tokens), tokens[:, self.model.config.extra :]
        return [self.forward(images) if self.rest else self.forward(images, keep)], images

    def _thaw(self, progress: float) -> None:
        """Frozen blocks begin to learn one after another, the last one first, and the embedding in the end."""
        if not self.init.thaw:
            return
        share = max(0.0, 1 - progress / self.init.thaw)
        freeze(self.model, math.ceil(self.init.freeze * share), trunk=False)

    def _sized(self, images: Tensor, progress: float) -> Tensor:  # (B, C, H, W) → (B, C, H', W')
        share = _share(self.train.image_size, progress)
        if share == 1:
            return images
        patch = self.model.config.patch_size
        size = [max(patch, round(side * share / patch) * patch) for side in images.shape[2:]]
        return interpolate(images, size, mode="bilinear", antialias=True)

    def _kept(self, images: Tensor, samples: NDArray[np.int64], step: int, progress: float) -> Tensor | None:
        """(B, K): the patches that are looked at, another random choice for each picture; None: all."""
        share = _share(self.train.patches, progress)
        if share == 1:
            return None
        down, across = self.model.grid_of(images)
        drawn = uniform(self.train.seed, "patches", epoch=step, samples=samples, draws=down * across)
        chosen = np.sort(np.argsort(drawn, axis=1)[:, : max(1, round(share * down * across))], axis=1)
        return torch.from_numpy(chosen).to(self.device)


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _share(course: Ramp, progress: float) -> float:
    if isinstance(course, Fixed):
        return 1.0
    return min(1.0, course.start + (1 - course.start) * progress / course.until)


@contextmanager
def _reseeded(train: Train, step: int, part: int) -> Iterator[None]:
    """Dropout draws from torch's own random numbers: here they follow from seed, step and part, and from nothing else.

    The caller's are left as they were.
    """
    if train.regularise == type(train.regularise)():
        yield
        return
    before = torch.get_rng_state()
    torch.manual_seed(int(uniform(train.seed, "model", epoch=step, samples=[part])[0, 0] * 2**53))
    try:
        yield
    finally:
        torch.set_rng_state(before)
