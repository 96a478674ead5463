"""Blocks that do not learn: what they make of the training pictures is computed once, and kept.

Without augmentation, or with a fixed number of views of each picture, a frozen block gives the same tokens in every
epoch. They are kept in memory, and a step costs what the blocks above them cost; under a head alone, next to nothing.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.batches import Batch, Batches, in_order
from vitral.data.config import Augment
from vitral.data.pack import Progress
from vitral.inference import Outputs, answers
from vitral.model.pools import POOLED_WIDTHS
from vitral.model.vit import ViT
from vitral.recipe import Recipe
from vitral.training.config import Fixed

MOST = 2**30  # bytes, that are kept
EACH = 64  # pictures at a time


def freeze(model: ViT, blocks: int, trunk: bool) -> None:
    """The embedding and the first blocks stay as they are; or the whole trunk, and only what stands above it learns."""
    above = ("head", "pre_logits") if trunk else ("head", "pre_logits", "norm.", "fc_norm")
    for name, parameter in model.named_parameters():
        first, number, *_ = f"{name}.".split(".")
        learns = name.startswith(above) or (first == "blocks" and int(number) >= blocks and not trunk)
        parameter.requires_grad_(learns or (blocks == 0 and not trunk))


@dataclass(frozen=True, kw_only=True)
class CachedFeatures(Batches):
    """Batches whose images are the tokens that frozen blocks made of them."""

    tokens: list[Tensor]  # one a view, (training pictures, …)
    validation: Tensor  # (validation pictures, …)
    rows: NDArray[np.int64]  # (samples,) where a sample is in these
    blocks: int
    seen: bool  # whether they are what the classifiers see, and no longer tokens

    def _batch(self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int) -> Batch:
        labels = torch.from_numpy(self.pack.index.labels[samples])
        tokens = self.tokens[epoch % len(self.tokens)][torch.from_numpy(self.rows[samples])]
        return Batch(tokens, labels, samples, labels)

    def forward(self, model: ViT, tokens: Tensor) -> Tensor:  # → (B, classes)
        """The rest of the model."""
        return _classified(model, self._views(model, tokens))

    def _views(self, model: ViT, tokens: Tensor) -> Tensor:  # → (B, classifiers, F)
        """What each classifier sees."""
        if self.seen:
            return tokens
        for block in model.blocks[self.blocks : -1]:
            tokens = block(tokens)
        if self.blocks < model.config.depth:
            tokens = model.blocks[-1](tokens, model.config.tokens_seen)
        return torch.stack(model.views(model.norm(tokens)), dim=1)

    @torch.no_grad()
    def answers(self, model: ViT, numbers: NDArray[np.int64]) -> Outputs:
        """What `answers` gives for pictures of train or of validation, without looking at them again."""
        model.eval()
        validates = np.isin(numbers, self.pack.of("validation")).all()
        if not validates and self.augment != Augment():  # they were looked at otherwise
            return answers(model, self.pack, numbers, self.preprocess)
        assert validates or np.isin(numbers, self.samples).all()
        tokens, rows = self.validation if validates else self.tokens[0], torch.from_numpy(self.rows[numbers])
        views = torch.cat([self._views(model, tokens[some]) for some in rows.split(EACH)])
        labels = torch.from_numpy(self.pack.index.labels[numbers])
        return Outputs(_classified(model, views).float().cpu(), labels, views.mean(dim=1).float().cpu())


def cache_features(
    batches: Batches, model: ViT, recipe: Recipe, blocks: int
) -> Generator[Progress, None, CachedFeatures | None]:
    """The frozen blocks' tokens of all pictures, which may take minutes: it tells. None where they would be others each
    time, or too many."""
    augment, train, views = recipe.data.augment, recipe.train, recipe.init.views
    same = augment == Augment() or (views and not augment.mixup and not augment.cutmix and augment.repeats == 1)
    still = isinstance(train.patches, Fixed) and isinstance(train.image_size, Fixed)
    plain = train.regularise == type(train.regularise)() and recipe.data.sampling == "all"
    if not (blocks and same and still and plain) or recipe.init.thaw:
        return None
    (down, across), seen = model.config.grid, recipe.init.mode == "probe"
    views_seen = len(model.config.classifiers) * POOLED_WIDTHS[model.config.pool.kind]
    size = model.config.width * 4 * (views_seen if seen else down * across + model.config.extra)
    count = len(batches.samples) * max(1, views) + len(batches.pack.of("validation"))
    if size * count > MOST:
        return None
    validation = in_order(batches.pack, batches.pack.of("validation"), batches.preprocess, EACH)
    sets = [*(_view(batches, epoch) for epoch in range(max(1, views))), (batch.images for batch in validation)]
    done, found = 0, []
    for images in sets:
        parts = [torch.empty(0)]
        for some in images:
            parts.append(_tokens(model, blocks, seen, some))
            done += len(some)
            yield Progress(done, count, doing="what does not learn looks at the pictures, once")
        found.append(torch.cat(parts[1:] or parts))
    *train_tokens, validation_tokens = found
    rows = np.zeros(len(batches.pack.index.samples), np.int64)
    for numbers in (batches.samples, batches.pack.of("validation")):
        rows[numbers] = np.arange(len(numbers))
    asked = {one.name: getattr(batches, one.name) for one in fields(batches)}
    return CachedFeatures(
        **asked | {"workers": 0},
        tokens=train_tokens,
        validation=validation_tokens,
        rows=rows,
        blocks=blocks,
        seen=seen,
    )


def _view(batches: Batches, epoch: int) -> Iterator[Tensor]:
    """The training pictures in order, as they are seen in that epoch."""
    for start in range(0, len(batches.samples), EACH):
        samples = batches.samples[start : start + EACH]
        yield replace(batches, workers=0)._batch(samples, np.zeros_like(samples), epoch).images


def _classified(model: ViT, views: Tensor) -> Tensor:  # (B, classifiers, F) → (B, classes)
    seen = zip(model.config.classifiers, views.unbind(1), strict=True)
    return torch.stack([getattr(model, name)(model.pre_logits(view)) for name, view in seen]).mean(dim=0)


@torch.no_grad()
def _tokens(model: ViT, blocks: int, seen: bool, images: Tensor) -> Tensor:
    """What `forward` goes on from."""
    model.eval()
    tokens = model.embed(images.to(next(model.parameters())))
    for block in model.blocks[:blocks]:
        tokens = block(tokens)
    if seen:
        tokens = torch.stack(model.views(model.norm(tokens)), dim=1)
    model.train()
    return tokens
