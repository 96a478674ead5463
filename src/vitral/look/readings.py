"""Readings of a model as tensors: maps over the patches from attention, and what tokens, positions and filters are.

Images are normalised, (B, C, H, W). A map over the patches is (B, down, across), float32, and not scaled to a maximum.
`plots.py` has a figure for each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, pad

from vitral.errors import RecipeError
from vitral.look import windows
from vitral.look.maps import Some, TokenLayout, attention_maps, each_block, eval_mode, layout_of, readout_weights
from vitral.model.positions import Rotation, sincos_1d
from vitral.model.swin import Swin
from vitral.model.vit import Block, ViT

Fuse = Literal["mean", "max", "min"]
FUSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda shares: shares.mean(dim=1),
    "max": lambda shares: shares.amax(dim=1),
    "min": lambda shares: shares.amin(dim=1),
}


def class_token_map(model: ViT | Swin, images: Tensor, block: int = -1) -> Tensor:  # → (B, down, across)
    """The attention of the class token to each patch, in one block; the mean over heads.

    Where the answer is read from other tokens, the mean over those: of both in a distilled model, of the patches in
    one that pools their mean, half and half where class token and mean are read.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> class_token_map(model, torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 2, 2])
    """
    return answer_by_head(model, images, blocks=block).mean(dim=(1, 2))


def answer_by_head(
    model: ViT | Swin, images: Tensor, blocks: Some = -1, *, outputs: Tensor | None = None
) -> Tensor:  # → (B, blocks, heads, down, across)
    """The attention of the answer to each patch, for each head of these blocks: the mean over the tokens that it is
    read from, weighted by `readout_weights`. `outputs`, (B,), are those that are meant where tasks have their own."""
    return torch.stack(list(answer_by_block(model, images, blocks, outputs=outputs).values()), dim=1)


def answer_by_block(
    model: ViT | Swin, images: Tensor, blocks: Some = -1, *, outputs: Tensor | None = None
) -> dict[int, Tensor]:  # each (B, heads, down, across)
    """The same by the number of the block: the stages of a Swin have more and more heads."""
    if isinstance(model, Swin):
        return windows.answer_by_block(model, images, blocks)
    maps = attention_maps(model, images, blocks=blocks, queries="answer")
    weights = _readout(model, images, outputs)[:, 0, list(maps.queries)].to(maps.shares.device)
    by_block = torch.einsum("bkhqij,bq->bkhij", maps.over_patches().float(), weights)
    return dict(zip(maps.blocks, by_block.unbind(1), strict=True))


def mean_attention(model: ViT | Swin, images: Tensor) -> Tensor:  # → (B, down, across)
    """The attention of the answer to each patch, as the mean of all blocks and all their heads.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> mean_attention(model, torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 2, 2])
    """
    if isinstance(model, Swin):
        return windows.mean_attention(model, images)
    weights = readout_weights(model, layout_of(model, images)).to(images.device)
    asks = weights.nonzero()[:, 0]
    # One block's maps are in memory at a time: where the patches are read out, those are T × T for each head.
    rows = [
        torch.einsum("bhqt,q->bt", shares.float(), weights[asks]) / shares.shape[1]
        for _, shares in each_block(model, images, queries="answer")
    ]
    return _over_patches(model, images, torch.stack(rows).mean(dim=0)[:, None])


def rollout(
    model: ViT | Swin, images: Tensor, *, fuse: Fuse = "mean", discard: float = 0.0
) -> Tensor:  # → (B, down, across)
    """Attention followed from the answer down to the patches (Abnar and Zuidema 2020, arXiv:2005.00928).

    Heads are fused into one map per block; a residual adds as much of the token itself as attention adds of others, and
    rows are made to sum to 1 again; then the maps of all blocks are multiplied. `discard` puts that share of the
    smallest weights of each fused map to zero first.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> rollout(model, torch.zeros(1, 3, 8, 8), fuse="max", discard=0.5).shape
    torch.Size([1, 2, 2])
    """
    if fuse not in FUSIONS:
        raise RecipeError(f"fuse is {fuse!r}: heads are fused by mean, max or min.")
    if not 0 <= discard < 1:
        raise RecipeError(f"discard is {discard}: it takes a share from 0 up to, and not including, 1.")
    if isinstance(model, Swin):
        if (fuse, discard) != ("mean", 0.0):
            raise RecipeError("The heads of a Swin's windows are fused by mean, and nothing is discarded.")
        return windows.rollout(model, images)
    row, rotation = _readout(model, images), model.rotation(images)
    # From the last block down only one row is to be multiplied, and one block's maps are in memory at a time.
    for block, tokens in reversed(list(zip(_blocks(model), _states(model, images), strict=False))):
        with eval_mode(model):
            fused = FUSIONS[fuse](block.attn.map(block.norm1(tokens), rotation).float())  # (B, T, T)
        fused = _without_the_smallest(fused, discard)
        fused.diagonal(dim1=1, dim2=2).add_(1)
        row = row @ (fused / fused.sum(dim=2, keepdim=True))
    return _over_patches(model, images, row)


def _without_the_smallest(fused: Tensor, share: float) -> Tensor:  # (B, T, T) → (B, T, T)
    count = int(share * fused[0].numel())
    if count == 0:
        return fused
    smallest = fused.flatten(1).topk(count, dim=1, largest=False).indices
    return fused.flatten(1).scatter(1, smallest, 0.0).view_as(fused)


def class_attention(
    model: ViT | Swin, images: Tensor, classes: Tensor | None = None, *, of_number: bool = False
) -> Tensor:  # → (B, down, across)
    """The patches that speak for a class: attention, weighted by how much more of it would raise that class's logit,
    and followed through all blocks (Chefer, Gur and Wolf 2021, arXiv:2103.15679).

    `classes`, (B,), are the numbers of the classes; None: those that the model answers. Each block adds R ← R + Ā R, Ā
    the mean over heads of A ∘ ∂logit/∂A where that is positive. `of_number`: the output is a number, and what moved it
    away from the mean is shown, be it up or down.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> class_attention(model, torch.zeros(1, 3, 8, 8), torch.tensor([2])).shape
    torch.Size([1, 2, 2])
    """
    _check_classes(model, images, classes)
    if isinstance(model, Swin):
        return windows.class_attention(model, images, classes, of_number)
    row = start = _readout(model, images, classes)
    rotation = model.rotation(images)
    for block, tokens, gradient in reversed(_gradients(model, images, classes, of_number)):
        with eval_mode(model):
            row = row + row @ _relevance(block, tokens, gradient, rotation)
    # A patch that the answer is read from does not explain the answer by that alone.
    return _over_patches(model, images, row - start)


def _gradients(
    model: ViT, images: Tensor, classes: Tensor | None, of_number: bool
) -> list[tuple[Block, Tensor, Tensor]]:
    """Each block with the tokens it gets, and with the gradient of the logit by its A V, the heads side by side; both
    (B, T, D)."""
    inputs: list[Tensor] = []
    head_outputs: list[Tensor] = []  # A V, the heads side by side: what `proj` gets
    with eval_mode(model):
        tokens, rotation = model.embed(images), model.rotation(images)
    with eval_mode(model, gradient=True):
        tokens.requires_grad_()  # the weights may be frozen
        for block in _blocks(model):
            inputs.append(tokens.detach())
            hook = block.attn.proj.register_forward_pre_hook(lambda _, args: head_outputs.append(args[0]))
            try:
                tokens = block(tokens, rotation=rotation)
            finally:
                hook.remove()
        logits = torch.stack(model.logits(model.norm(tokens))).mean(dim=0)
        targets = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
        explained = logits.gather(1, targets[:, None])  # (B, 1)
        gradients = torch.autograd.grad((explained.abs() if of_number else explained).sum(), head_outputs)
    return list(zip(_blocks(model), inputs, gradients, strict=True))


def _relevance(  # (B, T, D), (B, T, D) → (B, T, T)
    block: Block, tokens: Tensor, gradient: Tensor, rotation: Rotation
) -> Tensor:
    """The positive part of A ∘ ∂logit/∂A, mean over heads. As the heads give A V, ∂/∂A = ∂/∂(A V) Vᵀ."""
    x = block.norm1(tokens)
    _, _, values = block.attn.queries_keys_values(x, rotation)  # (B, heads, T, D/heads)
    by_head = gradient.unflatten(2, (block.attn.heads, -1)).transpose(1, 2)
    attention = block.attn.map(x, rotation)  # changed in place, for it is large
    return attention.mul_(by_head @ values.mT).relu_().mean(dim=1).float()


def _check_classes(model: ViT | Swin, images: Tensor, classes: Tensor | None) -> None:
    count = model.config.classes
    if count == 0:
        raise RecipeError("This model has no classes that a map could speak for. Attention and rollout need none.")
    if classes is None:
        return
    if classes.shape != images.shape[:1] or classes.is_floating_point():
        raise RecipeError(f"classes has the shape {tuple(classes.shape)}: it takes one number for each image.")
    for number in classes.tolist():
        if not 0 <= number < count:
            raise RecipeError(f"There is no class {number}: the model has {count}, numbered 0 to {count - 1}.")


def _blocks(model: ViT) -> list[Block]:
    return list(model.blocks)  # type: ignore[arg-type]


def _states(model: ViT, images: Tensor) -> list[Tensor]:  # → each (B, T, D)
    """The tokens that each block gets, and those that the last one gives."""
    with eval_mode(model):
        states, rotation = [model.embed(images)], model.rotation(images)
        for block in model.blocks:
            states.append(block(states[-1], rotation=rotation))
    return states


def _readout(model: ViT, images: Tensor, outputs: Tensor | None = None) -> Tensor:  # → (B, 1, T)
    """`readout_weights` as one row per image: of these outputs, (B,), or of all."""
    layout = layout_of(model, images)
    if outputs is None:
        return readout_weights(model, layout).to(images.device).expand(len(images), 1, -1)
    return torch.stack([readout_weights(model, layout, output)[None] for output in outputs.tolist()]).to(images.device)


def _over_patches(model: ViT, images: Tensor, row: Tensor) -> Tensor:  # (B, 1, T) → (B, down, across)
    layout = layout_of(model, images)
    return row[:, 0, layout.patches].unflatten(1, layout.grid)


FOR_A_CLASS = "class-attention"  # the one method that needs classes

# What `--method` names.
METHODS: Mapping[str, Callable[[ViT | Swin, Tensor], Tensor]] = {
    "attention": class_token_map,
    "mean-attention": mean_attention,
    "rollout": rollout,
    FOR_A_CLASS: class_attention,
}


def attention_distance(model: ViT, images: Tensor) -> Tensor:  # → (blocks, heads)
    """How far heads look, in pixels: the mean distance between a patch and those it takes from, weighted by how much it
    takes (the paper's figure 7, right, and figure 11). What a patch takes from the class token or registers has no
    distance, and does not count."""
    layout, patch = layout_of(model, images), model.config.patch_size
    places = torch.cartesian_prod(*(torch.arange(side, device=images.device) for side in layout.grid)).float() * patch
    far = torch.cdist(places, places)  # (N, N)
    distances = []
    for _, shares in each_block(model, images, queries="patches"):
        among = shares[..., layout.patches].float()
        distances.append(((among * far).sum(dim=-1) / among.sum(dim=-1)).mean(dim=(0, 2)))
    return torch.stack(distances)


def top_mass(rows: Tensor, mass: float = 0.6) -> Tensor:  # (…, N) → (…, N), bool
    """A mask of the fewest patches whose values are at least the share `mass` of the sum of a row (DINO's figures,
    with 0.6).

    >>> top_mass(torch.tensor([0.1, 0.4, 0.2, 0.1])).tolist()
    [False, True, True, False]
    """
    if not 0 < mass <= 1:
        raise RecipeError(f"mass is {mass}: it takes a share above 0 and up to 1.")
    largest, order = rows.double().sort(dim=-1, descending=True, stable=True)
    share = largest.cumsum(dim=-1) / largest.sum(dim=-1, keepdim=True)
    # A patch is needed as long as those before it do not hold enough; rounding must not ask for one more.
    mask = share - largest / largest.sum(dim=-1, keepdim=True) < mass - 1e-9
    return torch.zeros_like(mask).scatter(-1, order, mask)


def patch_features(model: ViT | Swin, images: Tensor) -> Tensor:  # → (B, down, across, D)
    """The features of each patch after the last block and its norm."""
    layout = layout_of(model, images)
    with eval_mode(model):
        return model.features(images)[:, layout.patches].unflatten(1, layout.grid)


@dataclass(frozen=True)
class Colours:
    """Patches in colours, alike ones in the same colour, and the subject of each picture."""

    rgb: Tensor  # (B, down, across, 3), from 0 to 1
    subject: Tensor  # (B, down, across), bool: what stands out from the rest


def feature_colours(features: Tensor) -> Colours:  # (B, down, across, D)
    """Patches of all pictures in common colours, and the subject apart from its ground (DINOv2's figures).

    The first principal component parts the patches in two; the side that keeps away from the borders of the pictures is
    taken for the subject. The first three components among the patches of the subject are its red, green and blue, and
    the ground is black.
    """
    rows = normalize(features.float(), dim=-1)  # a few tokens can be very long, and would be all that is seen
    subject = _subject(_project(rows.flatten(0, 2), 1).view(rows.shape[:3]))
    rgb = torch.zeros(*rows.shape[:3], 3, device=rows.device)
    rgb[subject] = _colours(rows[subject])
    return Colours(rgb, subject)


def patch_colours(features: Tensor) -> Tensor:  # (B, down, across, D) → (B, down, across, 3)
    """All patches of all pictures in common colours, from 0 to 1: the first three principal components."""
    return _colours(normalize(features.float(), dim=-1).flatten(0, 2)).view(*features.shape[:3], 3)


def _colours(rows: Tensor) -> Tensor:  # (n, D) → (n, 3)
    low_to_high = _project(rows, 3)
    low, high = low_to_high.quantile(0.02, dim=0), low_to_high.quantile(0.98, dim=0)
    return ((low_to_high - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)


def _subject(component: Tensor) -> Tensor:  # (B, down, across) → bool
    """The patches on one side of Otsu's threshold, which leaves least spread on both sides: the side that has the
    smaller share of the borders."""
    values = component.flatten().double().sort().values
    count = torch.arange(1, len(values), device=values.device)
    below, above = values.cumsum(0)[:-1] / count, (values.sum() - values.cumsum(0)[:-1]) / (len(values) - count)
    between = count * (len(values) - count) * (above - below) ** 2
    if not len(between):  # one patch is all that there is
        return torch.ones_like(component, dtype=torch.bool)
    high = component > values[between.argmax()]
    border = torch.ones_like(high)
    border[:, 1:-1, 1:-1] = False
    side = high if high[border].float().mean() <= high.float().mean() else ~high
    # Some models keep notes in patches far from anything, often in the corners: a patch goes with its four neighbours
    # where none of them is on its side.
    around = pad(side.float(), (1, 1, 1, 1), value=torch.nan)
    cross = torch.stack([around[:, :-2, 1:-1], around[:, 2:, 1:-1], around[:, 1:-1, :-2], around[:, 1:-1, 2:]])
    agree = (cross == side).any(dim=0) | cross.isnan().all(dim=0)
    together = torch.where(agree, side, ~side)
    # Where nothing is left, the patches that stood out are the subject; where none did, all are.
    return together if together.any() else side if side.any() else torch.ones_like(side)


def _project(rows: Tensor, count: int) -> Tensor:  # (n, D) → (n, count)
    """The rows projected on the first principal components; columns of components that do not exist are zero."""
    projections = (rows - rows.mean(dim=0)) @ _components(rows, count).T
    return pad(projections, (0, count - projections.shape[1]))


def _components(rows: Tensor, count: int) -> Tensor:  # (n, D) → (count, D)
    """The first principal components, as far as there is spread. Their signs are arbitrary: the largest number of each
    is made positive."""
    _, spread, components = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    components = components[spread > 1e-6 * spread[0]]
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    return (components * largest.sign())[:count]


@dataclass(frozen=True)
class Depth:
    """How tokens change, from the embedding (row 0) through each block; means over the images."""

    length: Tensor  # (blocks + 1, T): √ of the sum of squares
    like_last: Tensor  # (blocks + 1, T): cosine with what the token is after the last block
    alike: Tensor  # (blocks + 1,): mean cosine between two patches
    layout: TokenLayout


def tokens_through_depth(model: ViT, images: Tensor) -> Depth:
    """How long tokens are, how near to what they become, and how alike the patches of a picture, block by block."""
    layout = layout_of(model, images)
    states = _states(model, images)
    alike = []
    for state in states:
        patches = normalize(state[:, layout.patches].float(), dim=-1)
        pairs = patches @ patches.mT  # (B, N, N)
        count = max(1, patches.shape[1] * (patches.shape[1] - 1))
        alike.append((pairs.sum(dim=(1, 2)) - pairs.diagonal(dim1=1, dim2=2).sum(dim=1)).mean() / count)
    length = torch.stack([state.float().norm(dim=-1).mean(dim=0) for state in states])
    like = [cosine_similarity(state.float(), states[-1].float(), dim=-1).mean(dim=0) for state in states]
    return Depth(length, torch.stack(like), torch.stack(alike), layout)


def position_similarity(model: ViT) -> Tensor:  # → (down, across, down, across)
    """How alike the positions of any two patches are, as a cosine (the paper's figure 7, middle)."""
    rows = normalize(_positions(model, model.config.grid), dim=-1)  # (down, across, D)
    return torch.einsum("ijd,kld->ijkl", rows, rows)


@dataclass(frozen=True)
class ResampledPositions:
    """A table of positions at its own grid and at another one, and how it is resampled."""

    own: Tensor  # (down, across, D)
    other: Tensor  # (down, across, D)
    how: str  # in words


def resampled_positions(model: ViT, grid: tuple[int, int]) -> ResampledPositions:
    """The positions of this model at another grid, (down, across). There are three cases: the same grid needs
    nothing; another size of the same shape is resampled alike both ways; another shape by a factor for each side."""
    if min(grid) < 1:
        raise RecipeError(f"A grid of {grid[0]}×{grid[1]} has no patches.")
    (down, across), (new_down, new_across), rule = model.config.grid, grid, model.config.positions
    if grid == (down, across):
        how = "the same grid: as it is"
    elif not rule.kind.startswith("learned"):
        how = "another grid: the waves have a value everywhere"
    elif new_down * across == new_across * down:
        how = f"another size: {rule.resample}, ×{new_down / down:.3g} both ways"
    else:
        how = f"another shape: {rule.resample}, ×{new_down / down:.3g} down, ×{new_across / across:.3g} across"
    return ResampledPositions(_positions(model, model.config.grid), _positions(model, grid), how)


ADDS_NOTHING = {
    "none": "it knows no positions",
    "relative": "its attention compares distances instead",
    "rotary": "its attention turns queries and keys instead",
}


def _positions(model: ViT, grid: tuple[int, int]) -> Tensor:  # → (down, across, D)
    kind = model.config.positions.kind
    if kind in ADDS_NOTHING:
        raise RecipeError(f"This model adds no positions to its tokens: {ADDS_NOTHING[kind]} (model.positions {kind}).")
    with eval_mode(model):
        table = model.positions(model.pos_embed, grid)[0].float()
    return table[model.config.extra :].unflatten(0, grid)


def first_filters(model: ViT | Swin, count: int = 28) -> Tensor:  # → (count, patch, patch, C)
    """The principal components of the filters of the first layer (the paper's figure 7, left).

    In a stem of convolutions a filter has the size of the first kernel. There are no more components than directions
    along which the filters differ.
    """
    # The first kernel of any stem is that of its first layer.
    filters = next(kernel for kernel in model.patch_embed.state_dict().values() if kernel.ndim == 4).float()
    return _components(filters.flatten(1), count).unflatten(1, filters.shape[1:]).permute(0, 2, 3, 1)


def sine_table(positions: int, width: int) -> Tensor:  # → (positions, width)
    """The fixed positions of Vaswani et al. 2017, of any size: sine and cosine in turn, of ever longer waves.

    >>> sine_table(100, 300).shape
    torch.Size([100, 300])
    """
    if positions < 1 or width < 2 or width % 2:
        raise RecipeError(f"A table of {positions}×{width}: it takes at least 1 position, and an even width.")
    return sincos_1d((positions, 1), width, 0).float()
