"""Layers that do not learn: what they make of the pictures is computed once, and kept.

Without augmentation, or with a fixed number of views of each picture, a frozen block gives the same tokens in every
epoch. They are kept in memory, and a step costs what the blocks above them cost; under a head alone, next to nothing.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.batches import Batch, Batches, in_order
from vitral.data.config import Augment
from vitral.inference import Outputs, joined, outputs_of_pack
from vitral.model.interface import Model
from vitral.progress import Progress
from vitral.recipe import Recipe
from vitral.training.config import Fixed

MOST = 2**30  # bytes, that are kept
EACH = 64  # pictures at a time


@dataclass(frozen=True, kw_only=True)
class CachedFeatures(Batches):
    """Batches whose images are what the frozen layers made of them: tokens, (B, T, D), or what the classifiers see,
    (B, classifiers, F)."""

    train: list[Tensor]  # one per view, (training pictures, …)
    validation: Tensor  # (validation pictures, …)
    place: NDArray[np.int64]  # (samples,) where a sample is in these
    depth: int | None  # up to which layers are frozen; None: the whole trunk

    def _batch(self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int) -> Batch:
        labels = torch.from_numpy(self.pack.index.labels[samples])
        tokens = self.train[epoch % len(self.train)][torch.from_numpy(self.place[samples])]
        return Batch(tokens, labels, samples, labels)

    def in_validation(self) -> Iterator[Batch]:
        """The validation pictures, in order."""
        numbers = self.pack.of("validation")
        for start in range(0, len(numbers), EACH):
            samples = numbers[start : start + EACH]
            labels = torch.from_numpy(self.pack.index.labels[samples])
            yield Batch(self.validation[start : start + EACH], labels, samples, labels)

    def forward(self, model: Model, cached: Tensor, keep: Tensor | None = None) -> Tensor:  # → (B, classes)
        """The rest of the model."""
        return torch.stack(model.classify(self._views(model, cached))).mean(dim=0)

    def _views(self, model: Model, cached: Tensor) -> Sequence[Tensor]:  # → each (B, F)
        if self.depth is None:
            return cached.unbind(1)
        return model.views(model.head_tokens_from(cached, self.depth))

    @torch.no_grad()
    def outputs(self, model: Model, numbers: NDArray[np.int64]) -> Outputs:
        """For pictures of train or of validation, without looking at them again."""
        model.eval()
        validates = np.isin(numbers, self.pack.of("validation")).all()
        if not validates and self.augment != Augment():  # they were looked at otherwise
            return outputs_of_pack(model, self.pack, numbers, self.preprocess)
        assert validates or np.isin(numbers, self.samples).all()
        cached, rows = self.validation if validates else self.train[0], torch.from_numpy(self.place[numbers])
        return joined(self._outputs(model, cached[some]) for some in rows.split(EACH))

    def _outputs(self, model: Model, cached: Tensor) -> Outputs:
        views = self._views(model, cached)
        logits = torch.stack(model.classify(views)).mean(dim=0)
        return Outputs(logits.float().cpu(), torch.stack(list(views)).mean(dim=0).float().cpu())


def cache_features(
    batches: Batches, model: Model, recipe: Recipe, depth: int | None
) -> Generator[Progress, None, CachedFeatures | None]:
    """What the frozen layers make of all pictures, which may take minutes. None where that would be something else each
    time, or too much, or where the model cannot go on from there."""
    if not (_repeats(recipe) and (depth is None or model.splits)):
        return None
    views, validation = max(1, recipe.init.views), batches.pack.of("validation")
    count = len(batches.samples) * views + len(validation)
    sizes = _frozen(model, depth, next(_view(batches, 0))[:1])
    if sizes.numel() * sizes.element_size() * count > MOST:
        return None
    seen = (batch.images for batch in in_order(batches.pack, validation, batches.preprocess, EACH))
    done, caches = 0, []
    for images in (*(_view(batches, epoch) for epoch in range(views)), seen):
        parts = [sizes[:0]]
        for some in images:
            parts.append(_frozen(model, depth, some))
            done += len(some)
            yield Progress(done, count, "what does not learn looks at the pictures, once")
        caches.append(torch.cat(parts))
    place = np.zeros(len(batches.pack.index.samples), np.int64)
    for numbers in (batches.samples, validation):
        place[numbers] = np.arange(len(numbers))
    settings = {one.name: getattr(batches, one.name) for one in fields(batches)}
    return CachedFeatures(
        **settings | {"workers": 0}, train=caches[:-1], validation=caches[-1], place=place, depth=depth
    )


def _repeats(recipe: Recipe) -> bool:
    """Whether frozen layers would see the same in every epoch."""
    augment, train, views = recipe.data.augment, recipe.train, recipe.init.views
    same = augment == Augment() or (views and not augment.mixup and not augment.cutmix and augment.repeats == 1)
    still = isinstance(train.patches, Fixed) and isinstance(train.image_size, Fixed)
    plain = train.regularise == type(train.regularise)() and recipe.data.sampling == "all"
    return bool(same and still and plain) and not recipe.init.thaw


def _view(batches: Batches, epoch: int) -> Iterator[Tensor]:
    """The training pictures in order, as they are seen in that epoch."""
    for start in range(0, len(batches.samples), EACH):
        samples = batches.samples[start : start + EACH]
        yield replace(batches, workers=0)._batch(samples, np.zeros_like(samples), epoch).images


@torch.no_grad()
def _frozen(model: Model, depth: int | None, images: Tensor) -> Tensor:
    """What `forward` goes on from."""
    model.eval()
    images = images.to(next(model.parameters()))
    if depth is None:
        cached = torch.stack(list(model.views(model.head_tokens(images))), dim=1)
    else:
        cached = model.tokens_after(images, depth)
    model.train()
    return cached
