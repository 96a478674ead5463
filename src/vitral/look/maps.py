"""Attention maps: the softmax weights of any blocks, heads and tokens, one block at a time.

The model computes them as it always does (`Attention.map`); nothing in it changes, and nothing has to be switched on.
Dropout would make a map random, so a model in training is put into evaluation mode for the map, and back after it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn

from vitral.errors import RecipeError
from vitral.model.interface import Model
from vitral.model.pools import POOLS
from vitral.model.positions import Rotation
from vitral.model.swin import Swin
from vitral.model.vit import Block, ViT
from vitral.weights.own import Weights
from vitral.weights.pretrained import load_pretrained

Some = int | Sequence[int] | Literal["all"]
Queries = Literal["class", "answer", "patches", "all"] | int | Sequence[int]


@dataclass(frozen=True)
class TokenLayout:
    """The layout of the tokens of an image: first the extra ones, then the patches in reading order."""

    extra: tuple[str, ...]  # ("class", "register 1", …)
    grid: tuple[int, int]  # patches (down, across)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tokens; a patch has the numbers of its row and column."""
        down, across = self.grid
        return (*self.extra, *(f"patch {row}, {column}" for row in range(down) for column in range(across)))

    @property
    def patches(self) -> slice:
        """Where the patches are among the tokens."""
        return slice(len(self.extra), len(self.extra) + self.grid[0] * self.grid[1])


def as_attending(model: Model) -> ViT | Swin:
    """The model, if maps of it can be read; a RecipeError for one without attention."""
    return model if isinstance(model, Swin) else as_vit(model)


def as_vit(model: Model) -> ViT:
    """The model, if it is a ViT, whose tokens are one sequence; a RecipeError for others."""
    if isinstance(model, Swin):
        raise RecipeError(
            "In a Swin Transformer a token attends to its own window, and each stage has another number of tokens: "
            "vitral.look.windows.window_maps has the maps of a block."
        )
    if not isinstance(model, ViT):
        raise RecipeError(f"A model of kind {model.config.kind} has no attention to look at.")
    if model.config.pool.kind == "map":
        raise RecipeError(
            "This model reads its answer by an attention above the blocks (model.pool map), which no map here shows "
            "yet: it can be trained, asked and measured, and not looked into."
        )
    return model


def layout_of(model: ViT | Swin, images_or_size: Tensor | int | tuple[int, int]) -> TokenLayout:
    """The layout of the tokens of such images. A size is in pixels: of a square, or (height, width).

    >>> from vitral.model.config import ViTConfig
    >>> layout_of(ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3)), (4, 8)).names
    ('class', 'patch 0, 0', 'patch 0, 1')
    """
    images = images_or_size
    if not isinstance(images, Tensor):
        height, width = (images, images) if isinstance(images, int) else images
        images = torch.empty(0, model.config.channels, height, width)
    if isinstance(model, Swin):
        return TokenLayout((), model.grid_of(images))
    tasks = [f"task {number + 1}" for number in range(len(model.config.tokens.outputs))]
    names = {"cls_token": tasks or ["class"], "dist_token": ["distillation"]}
    names["reg_token"] = [f"register {number + 1}" for number in range(model.config.tokens.registers)]
    return TokenLayout(
        tuple(name for token in model.config.extra_tokens for name in names[token]), model.grid_of(images)
    )


@dataclass(frozen=True)
class Maps:
    """Rows of softmax weights, with the blocks, heads and query tokens that they belong to."""

    shares: Tensor  # (B, blocks, heads, queries, T); each row sums to 1
    blocks: tuple[int, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]  # the numbers of the query tokens
    layout: TokenLayout

    def over_patches(self) -> Tensor:  # (B, blocks, heads, queries, down, across)
        """The shares of the patches as pictures. What went to class token and registers is left out, so that a picture
        sums to 1 at most."""
        return self.shares[..., self.layout.patches].unflatten(-1, self.layout.grid)


def attention_maps(
    model: Model | Weights | nn.Module,
    images: Tensor,
    *,
    blocks: Some = -1,
    heads: Some = "all",
    queries: Queries = "class",
) -> Maps:
    """The attention of these blocks, heads and query tokens, in the order in which they are named. `model` may also be
    Weights, or a module of timm or transformers.

    Numbers start at 0, and negative ones count from the end. Token 0 is the class token, where there is one. "answer"
    are the tokens that the answer is read from: the class token, both of a distilled model, or the patches where their
    mean is read.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> maps = attention_maps(model, torch.zeros(1, 3, 8, 8), blocks="all")
    >>> maps.shares.shape, maps.over_patches().shape
    (torch.Size([1, 2, 2, 1, 5]), torch.Size([1, 2, 2, 1, 2, 2]))
    """
    if isinstance(model, Weights):
        model = model.model
    vit = as_vit(model if isinstance(model, Model) else load_pretrained(model).model)
    which = blocks_of(vit, blocks)
    by_block = dict(each_block(vit, images, blocks=which, heads=heads, queries=queries))
    return Maps(
        torch.stack([by_block[number] for number in which], dim=1),
        which,
        _numbers(heads, vit.config.heads, "head"),
        queries_of(vit, images, queries),
        layout_of(vit, images),
    )


def each_block(
    model: ViT, images: Tensor, *, blocks: Some = "all", heads: Some = "all", queries: Queries = "all"
) -> Iterator[tuple[int, Tensor]]:
    """The number of a block and its maps, (B, heads, queries, T), from the first block to the last.

    One block's maps are in memory at a time, unless the caller keeps them: a 1,024-pixel picture has 4,097 tokens in
    patches of 16, and a map of each head has 67 MB.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> [(number, tuple(maps.shape)) for number, maps in each_block(model, torch.zeros(1, 3, 8, 8), heads=0)]
    [(0, (1, 1, 5, 5)), (1, (1, 1, 5, 5))]
    """
    # Checked here and not in the generator: a mistake raises at once, not at the first step.
    numbers = set(blocks_of(model, blocks))
    head_numbers, query_numbers = _numbers(heads, model.config.heads, "head"), queries_of(model, images, queries)
    return _each(model, images, numbers, head_numbers, query_numbers)


def _each(
    model: ViT, images: Tensor, blocks: set[int], heads: Sequence[int], queries: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    # Between two blocks the caller runs: there the model is in the mode that the caller left it in.
    with eval_mode(model):
        tokens, rotation = model.embed(images), model.rotation(images)
    for number in range(max(blocks) + 1):
        block: Block = model.blocks[number]  # type: ignore[assignment]
        if number in blocks:
            # No name holds the map here: beside the next one it would be memory twice.
            yield number, _rows(_map(model, block, tokens, rotation), heads, queries)
        if number < max(blocks):
            with eval_mode(model):
                tokens = block(tokens, rotation=rotation)


def _map(model: ViT, block: Block, tokens: Tensor, rotation: Rotation) -> Tensor:  # → (B, heads, T, T)
    with eval_mode(model):
        return block.attn.map(block.norm1(tokens), rotation)


def _rows(shares: Tensor, heads: Sequence[int], queries: Sequence[int]) -> Tensor:  # of (B, heads, T, T)
    # All in their order is the usual case, and needs no copy; of few rows, the other heads are soon gone.
    if tuple(queries) != tuple(range(shares.shape[2])):
        shares = shares[:, :, list(queries)]
    return shares if tuple(heads) == tuple(range(shares.shape[1])) else shares[:, list(heads)]


@contextmanager
def eval_mode(model: nn.Module, gradient: bool = False) -> Iterator[None]:
    """The model in evaluation mode, without gradients unless `gradient`; afterwards every module is as it was."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(gradient):
            yield
    finally:
        for part in training:
            part.training = True


def _numbers(some: Some, count: int, what: str, whose: str = "the model") -> tuple[int, ...]:
    """The numbers, from 0, that `some` names out of `count`."""
    if isinstance(some, str) and some == "all":
        return tuple(range(count))
    numbers = (some,) if isinstance(some, int) else some
    if isinstance(numbers, str) or not len(numbers):
        raise RecipeError(f'{some!r} names no {what}: give a number, several, or "all".')
    for number in numbers:
        if not -count <= number < count:
            has = f"{count}, numbered 0 to {count - 1}" if count > 1 else "one, number 0"
            raise RecipeError(f"There is no {what} {number}: {whose} has {has}.")
    return tuple(int(number) % count for number in numbers)


def readout_weights(model: ViT, layout: TokenLayout, output: int | None = None) -> Tensor:  # → (T,)
    """The weight of each token in the input of the classifiers, which sum to 1: all on the class token, in the paper.
    Where each task has a token of its own, the mean of these; with the number of an `output`, that of its task.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=1, heads=2, classes=3, pool="class-mean"))
    >>> readout_weights(model, layout_of(model, 8)).tolist()
    [0.5, 0.125, 0.125, 0.125, 0.125]
    """
    as_vit(model)
    outputs = model.config.tokens.outputs
    if outputs and output is not None:
        weights = torch.zeros(layout.patches.stop)
        weights[bisect_right(list(accumulate(outputs)), output)] = 1
        return weights
    with torch.inference_mode(False), torch.enable_grad():
        tokens = torch.zeros(1, layout.patches.stop, 1, requires_grad=True)
        # Each view is a weighted sum of tokens: its gradient is the weights.
        views = POOLS[model.config.pool.kind](tokens, model.config)
        return torch.autograd.grad(torch.stack([view.mean() for view in views]).mean(), tokens)[0][0, :, 0]


def blocks_of(model: ViT | Swin, blocks: Some) -> tuple[int, ...]:
    """The numbers, from 0, of the blocks that `blocks` names."""
    return _numbers(blocks, model.config.depth, "block")


def queries_of(model: ViT, images: Tensor, queries: Queries) -> tuple[int, ...]:
    """The numbers, from 0, of the tokens that `queries` names."""
    layout = layout_of(model, images)
    tokens = range(layout.patches.stop)
    if queries == "class" and model.config.tokens.outputs:
        raise RecipeError(
            'This model has a token for each task, and no class token: give queries="answer", for all of them, or '
            "token numbers, from 0."
        )
    if queries == "class" and "class" not in layout.extra:
        raise RecipeError('This model has no class token that could ask: give queries="patches", or token numbers.')
    by_word = {
        "class": tokens[:1],
        "answer": readout_weights(model, layout).nonzero()[:, 0].tolist(),
        "patches": tokens[layout.patches],
        "all": tokens,
    }
    if not isinstance(queries, str):
        return _numbers(queries, len(tokens), "token", "such a picture")
    if queries not in by_word:
        raise RecipeError(f"queries is {queries!r}: it takes token numbers, or one of {', '.join(by_word)}.")
    return tuple(by_word[queries])
