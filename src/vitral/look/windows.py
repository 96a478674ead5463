"""What a Swin Transformer looked at: attention inside of windows, put back on the picture.

A token takes only from its own window, and from stage to stage four tokens become one. So each block has a map of its
own size, and what is followed from the answer down to the first block goes through windows and mergings: where a token
of a later stage took something, each of the four that it was merged from has a quarter of that.

The readings have the names and the meaning of those in readings.py, which hands a Swin over to them. Their maps are
over the places of the last map, (B, down, across), each as large as `config.cell` pixels: finer ones are summed.

Shapes: B images, H × W the tokens of a block's map, N windows, K tokens in one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from vitral.look.maps import Some, blocks_of, eval_mode
from vitral.model.swin import Block, Swin, Windows


class Step(NamedTuple):
    """A block, its windows, and the tokens that it gets."""

    block: Block
    windows: Windows
    tokens: Tensor  # (B, H, W, D)

    def shares(self) -> Tensor:  # → (B, N, heads, K, K)
        """What each token takes from each of its window; a row sums to 1."""
        return self.block.attn.map(self.windows.cut(self.block.attention_input(self.tokens)), self.windows).float()

    def taken(self, shares: Tensor, row: Tensor) -> Tensor:  # (B, N, K, K), (B, H, W) → (B, H, W)
        """What tokens with these weights take from each. What goes to the padding of windows is left out."""
        asks = self.windows.cut(row[..., None])[..., 0]  # (B, N, K)
        return self.windows.join(torch.einsum("bnq,bnqk->bnk", asks, shares)[..., None])[..., 0]


def window_maps(model: Swin, images: Tensor, block: int = -1) -> Tensor:  # → (B, heads, H, W, H, W)
    """What each token takes from each of the map in one block, by place: 0 outside of its window.

    A row sums to 1, but for what goes to the padding of windows that do not divide the map.

    >>> from vitral.model.swin_config import SwinConfig
    >>> model = Swin(SwinConfig(image_size=16, patch_size=2, width=8, depths=(2,), heads=(2,), window=4, classes=3))
    >>> maps = window_maps(model, torch.zeros(1, 3, 16, 16), block=0)
    >>> maps.shape, (maps[0, 0, 0, 7] > 0).nonzero()[0].tolist()  # a token of the second window, from its first on
    (torch.Size([1, 2, 8, 8, 8, 8]), [0, 4])
    """
    [number] = blocks_of(model, block)
    with eval_mode(model):
        step = _steps(model, images)[0][number]
        H, W = step.windows.grid
        maps = _by_place(step, torch.arange(H * W, device=images.device).view(H, W))
    return maps.unflatten(3, (H, W)).unflatten(2, (H, W))


def each_block(model: Swin, images: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The number of a block and its maps, (B, heads, N, N), from the first block to the last: what each place of the
    last map takes from each, as the mean of the tokens that are merged there, and all that they take together."""
    with eval_mode(model):
        steps, _ = _steps(model, images)
    for number, step in enumerate(steps):
        with eval_mode(model):
            maps = _by_place(step, _places(step.windows.grid, model.grid_of(images)).to(images.device))
        yield number, maps


def _by_place(step: Step, places: Tensor) -> Tensor:  # (H, W) → (B, heads, N, N)
    """What tokens at each of N places take from those at each; the mean of those who ask, the sum of what they take."""
    count = int(places.max()) + 1
    cut = step.windows.cut(places[None, :, :, None] + 1)[0, :, :, 0]  # (N, K); 0 is padding
    pairs = cut[:, :, None] * (count + 1) + cut[:, None]  # (N, K, K)
    shares = step.shares().transpose(1, 2).flatten(2)  # (B, heads, N · K · K)
    maps = shares.new_zeros(*shares.shape[:2], (count + 1) ** 2).index_add_(2, pairs.flatten(), shares)
    maps = maps.unflatten(2, (count + 1, count + 1))[:, :, 1:, 1:]
    return maps / places.flatten().bincount(minlength=count)[:, None]


def _places(grid: tuple[int, int], last: tuple[int, int]) -> Tensor:  # → (H, W)
    """The place of the last map, by its number, that each token of such a map is merged into."""
    merged = 1
    while tuple(-(-side // merged) for side in grid) != last:
        merged *= 2
    rows, columns = (torch.arange(side) // merged for side in grid)
    return rows[:, None] * last[1] + columns


def answer_by_block(model: Swin, images: Tensor, blocks: Some = -1) -> dict[int, Tensor]:
    """What the answer, the mean of all tokens, takes from each place, for each head of these blocks: (B, heads, down,
    across)."""
    with eval_mode(model):
        steps, _ = _steps(model, images)
        return {number: _by_head(model, images, steps[number]) for number in blocks_of(model, blocks)}


def _by_head(model: Swin, images: Tensor, step: Step) -> Tensor:  # → (B, heads, down, across)
    shares, row = step.shares(), _even(images, step.windows.grid)
    heads = [_over_places(model, images, step.taken(head, row)) for head in shares.unbind(2)]
    return torch.stack(heads, dim=1)


def mean_attention(model: Swin, images: Tensor) -> Tensor:  # → (B, down, across)
    """The mean of all blocks, and of all heads in each."""
    with eval_mode(model):
        each = [_by_head(model, images, step).mean(dim=1) for step in _steps(model, images)[0]]
    return torch.stack(each).mean(dim=0)


def rollout(model: Swin, images: Tensor) -> Tensor:  # → (B, down, across)
    """Attention, the mean of all heads, followed through all blocks and mergings, half of each step through the
    residual."""
    with eval_mode(model):
        row = _even(images, model.grid_of(images))
        for step in reversed(_steps(model, images)[0]):
            row = _spread(row, step.windows.grid)
            row = (row + step.taken(step.shares().mean(dim=2), row)) / 2
    return _over_places(model, images, row)


def class_attention(
    model: Swin, images: Tensor, classes: Tensor | None, of_number: bool
) -> Tensor:  # → (B, down, across)
    """Attention, weighted by how much more of it would raise the logit, followed through all blocks and mergings."""
    row = start = _even(images, model.grid_of(images))
    for step, gradient in reversed(_gradients(model, images, classes, of_number)):
        row, start = (_spread(one, step.windows.grid) for one in (row, start))
        with eval_mode(model):
            row = row + step.taken(_relevance(step, gradient), row)
    return _over_places(model, images, row - start)


def _gradients(model: Swin, images: Tensor, classes: Tensor | None, of_number: bool) -> list[tuple[Step, Tensor]]:
    """Each step with the gradient of the logit by its A V, the heads side by side, (B, N, K, D)."""
    head_outputs: list[Tensor] = []  # A V: what `proj` gets
    hooks = [
        block.attn.proj.register_forward_pre_hook(lambda _, args: head_outputs.append(args[0]))
        for block in model.modules()
        if isinstance(block, Block)
    ]
    try:
        with eval_mode(model, gradient=True):
            steps, x = _steps(model, images, gradient=True)
            [logits] = model.logits(model.norm(x).flatten(1, 2))
            targets = logits.argmax(dim=1) if classes is None else classes.to(logits.device)
            explained = logits.gather(1, targets[:, None])
            gradients = torch.autograd.grad((explained.abs() if of_number else explained).sum(), head_outputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [(step._replace(tokens=step.tokens.detach()), one) for step, one in zip(steps, gradients, strict=True)]


def _relevance(step: Step, gradient: Tensor) -> Tensor:  # (B, N, K, D) → (B, N, K, K)
    """The positive part of A ∘ ∂logit/∂A, mean over heads, as in readings.py."""
    attention = step.block.attn
    _, _, values = attention.queries_keys_values(step.windows.cut(step.block.attention_input(step.tokens)))
    by_head = gradient.unflatten(3, (attention.heads, -1)).transpose(2, 3)  # (B, N, heads, K, d)
    return step.shares().mul_(by_head @ values.mT).relu_().mean(dim=2)


def _steps(model: Swin, images: Tensor, gradient: bool = False) -> tuple[list[Step], Tensor]:
    """All blocks with what they get, and what the last one gives, (B, H, W, D)."""
    model.grid_of(images)
    steps: list[Step] = []
    x = model.patch_embed(images)  # (B, H, W, D)
    if gradient:
        x = x.detach().requires_grad_()  # the weights may be frozen
    for stage in model.stages:
        x = stage.downsample(x)  # type: ignore[operator]
        for block, windows in stage.each((x.shape[1], x.shape[2])):  # type: ignore[operator]
            steps.append(Step(block, windows, x))
            x = block(x, windows)
    return steps, x


def _even(images: Tensor, grid: Sequence[int]) -> Tensor:  # → (B, H, W)
    """All tokens alike, 1 in sum: the answer is read from their mean."""
    H, W = grid
    return torch.full((len(images), H, W), 1 / (H * W), device=images.device)


def _spread(row: Tensor, grid: tuple[int, int]) -> Tensor:  # (B, h, w) → (B, H, W)
    """What a merged token has, in equal parts to those that it was merged from; as it is on a map of its own size."""
    H, W = grid
    if row.shape[1:] == (H, W):
        return row
    parts = _sum_squares(row.new_ones(1, H, W))  # 4; at an odd border 2 or 1
    return (row / parts).repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)[:, :H, :W]


def _over_places(model: Swin, images: Tensor, row: Tensor) -> Tensor:  # (B, H, W) → (B, down, across)
    """A map of any stage, summed over the places of the last map."""
    while row.shape[1:] != model.grid_of(images):
        row = _sum_squares(row)
    return row


def _sum_squares(row: Tensor) -> Tensor:  # (B, H, W) → (B, H/2, W/2)
    return avg_pool2d(row[:, None], 2, ceil_mode=True, divisor_override=1)[:, 0]
