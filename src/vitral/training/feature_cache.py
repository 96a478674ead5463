"""A cache of what frozen layers make of the pictures: it is computed once.

Without augmentation, or with a fixed number of views of each picture, a frozen block gives the same tokens in every
epoch. They are kept in memory, and a step costs what the blocks above them cost; under a head alone, next to nothing.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.batches import Batch, Batches, in_order, labels_of
from vitral.data.config import Augment
from vitral.inference import Outputs, joined, outputs_of_pack
from vitral.model.interface import Model
from vitral.progress import Progress
from vitral.recipe import Recipe
from vitral.training.config import Fixed

MOST = 2**30  # bytes of the cache
EACH = 64  # pictures at a time
DOING = "what does not learn looks at the pictures, once"

HeldOut = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True)
class CachedFeatures(Batches):
    """Batches whose images are what the frozen layers made of them: tokens, (B, T, D), or what the classifiers see,
    (B, classifiers, F)."""

    train: list[Tensor]  # one per view, (training pictures, …)
    held_out: dict[HeldOut, Tensor]  # (validation pictures, …), and the same of test for its curve, where that fits
    place: NDArray[np.int64]  # (samples,): its row in one of them
    depth: int | None  # so many blocks are frozen; None: the whole trunk

    def _batch(self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int) -> Batch:
        labels = labels_of(self.pack, samples)
        tokens = self.train[epoch % len(self.train)][torch.from_numpy(self.place[samples])]
        return Batch(tokens, labels, samples, labels)

    def in_order(self, split: HeldOut) -> Iterator[Batch]:
        """The pictures of a split that is held out, in order."""
        numbers = self.pack.of(split)
        for start in range(0, len(numbers), EACH):
            samples = numbers[start : start + EACH]
            labels = labels_of(self.pack, samples)
            yield Batch(self.held_out[split][start : start + EACH], labels, samples, labels)

    def forward(self, model: Model, features: Tensor, keep: Tensor | None = None) -> Tensor:  # → (B, classes)
        """Logits: the rest of the model, from what is cached."""
        return torch.stack(model.classify(self._views(model, features))).mean(dim=0)

    def _views(self, model: Model, features: Tensor) -> Sequence[Tensor]:  # → each (B, F)
        if self.depth is None:
            return features.unbind(1)
        return model.views(model.head_tokens_from(features, self.depth))

    @torch.no_grad()
    def outputs(self, model: Model, numbers: NDArray[np.int64]) -> Outputs:
        """Logits and features for pictures of train or of validation, from what is cached where that is unaugmented."""
        model.eval()
        validates = np.isin(numbers, self.pack.of("validation")).all()
        if not validates and self.augment != Augment():  # what is cached is of augmented pictures
            return outputs_of_pack(model, self.pack, numbers, self.preprocess)
        assert validates or np.isin(numbers, self.samples).all()
        features, rows = self.held_out["validation"] if validates else self.train[0], self.place[numbers]
        return joined(self._outputs(model, features[some]) for some in torch.from_numpy(rows).split(EACH))

    def _outputs(self, model: Model, features: Tensor) -> Outputs:
        views = self._views(model, features)
        logits = torch.stack(model.classify(views)).mean(dim=0)
        return Outputs(logits.float().cpu(), torch.stack(list(views)).mean(dim=0).float().cpu())


def cache_features(
    batches: Batches, model: Model, recipe: Recipe, depth: int | None
) -> Generator[Progress, None, CachedFeatures | None]:
    """Compute what the frozen layers make of all pictures, which may take minutes. None where that is another in each
    epoch, or too large, or where the model cannot go on from there."""
    if not (_repeats(recipe) and (depth is None or model.splits)):
        return None
    views = max(1, recipe.init.views)
    held_out: dict[HeldOut, NDArray[np.int64]] = {"validation": batches.pack.of("validation")}
    count = len(batches.samples) * views + len(held_out["validation"])
    sizes = _frozen_features(model, depth, next(_view(batches, 0))[:1])
    most = MOST // (sizes.numel() * sizes.element_size())  # pictures
    if count > most:
        return None
    # Whether there is a cache does not hang on the test curve: it must not change the training.
    if recipe.train.test_curve and count + len(test := batches.pack.of("test")) <= most:
        held_out["test"], count = test, count + len(test)
    ways = [_view(batches, epoch) for epoch in range(views)]
    ways += [_unaugmented(batches, numbers) for numbers in held_out.values()]
    done, tables = 0, []
    yield Progress(done, count, DOING)
    for images in ways:
        parts = [sizes[:0]]
        for some in images:
            parts.append(_frozen_features(model, depth, some))
            done += len(some)
            yield Progress(done, count, DOING)
        tables.append(torch.cat(parts))
    place = np.zeros(len(batches.pack.index.samples), np.int64)
    for numbers in (batches.samples, *held_out.values()):
        place[numbers] = np.arange(len(numbers))
    settings = {one.name: getattr(batches, one.name) for one in fields(batches)}
    cached = dict(zip(held_out, tables[views:], strict=True))
    return CachedFeatures(**settings | {"workers": 0}, train=tables[:views], held_out=cached, place=place, depth=depth)


def _repeats(recipe: Recipe) -> bool:
    """Whether frozen layers see the same images in every epoch."""
    augment, train, views = recipe.data.augment, recipe.train, recipe.init.views
    same = augment == Augment() or (views and not augment.mixup and not augment.cutmix and augment.repeats == 1)
    still = isinstance(train.patches, Fixed) and isinstance(train.image_size, Fixed)
    plain = train.regularise == type(train.regularise)() and recipe.data.sampling == "all"
    return bool(same and still and plain) and not recipe.init.thaw


def _view(batches: Batches, epoch: int) -> Iterator[Tensor]:
    """The training pictures in order, augmented as in that epoch."""
    for start in range(0, len(batches.samples), EACH):
        samples = batches.samples[start : start + EACH]
        yield replace(batches, workers=0)._batch(samples, np.zeros_like(samples), epoch).images


def _unaugmented(batches: Batches, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
    """These pictures in order, as they are."""
    return (batch.images for batch in in_order(batches.pack, numbers, batches.preprocess, EACH))


@torch.no_grad()
def _frozen_features(model: Model, depth: int | None, images: Tensor) -> Tensor:
    """What `CachedFeatures.forward` goes on from: images after the frozen layers."""
    model.eval()
    images = images.to(next(model.parameters()))
    if depth is None:
        features = torch.stack(list(model.views(model.head_tokens(images))), dim=1)
    else:
        features = model.tokens_after(images, depth)
    model.train()
    return features
