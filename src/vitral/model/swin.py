"""The Swin Transformer: attention inside of windows, which shift ("Swin Transformer: Hierarchical Vision Transformer
using Shifted Windows", Liu et al., 2021; arXiv:2103.14030).

In a ViT every token looks at every other: twice the side of an image is four times the tokens and sixteen times the
pairs. Here a token looks only at those of its own window, M × M of them, whatever the size of the image. For a map of
h × w tokens of width C, the paper's section 3.2 counts the multiplications of attention,

    Ω(MSA)   = 4hwC² + 2(hw)²C    (1)   q, k, v and proj; then scores and sums, all with all: the square of hw
    Ω(W-MSA) = 4hwC² + 2M²hwC     (2)   the same, each with M² only: as many as hw

Windows alone would never learn of each other. So every second block cuts the map elsewhere, half a window further on,
and what were neighbours across an edge meet inside one window:

      block l: cut here       block l + 1: half a window further on       rolled: whole windows again
     +-------+-------+        +---+-------+---+                           +-------+-------+
     | 0   0 | 1   1 |        | a | b   b | c |                           | e   e | f : d |
     | 0   0 | 1   1 |        +---+-------+---+                           | e   e | f : d |
     +-------+-------+        | d | e   e | f |                           +-------+-------+
     | 2   2 | 3   3 |        | d | e   e | f |                           | h   h | i : g |
     | 2   2 | 3   3 |        +---+-------+---+                           | b   b | c : a |
     +-------+-------+        | g | h   h | i |                           +-------+-------+
                              +---+-------+---+

At the borders that leaves pieces of windows. Instead of padding each, the map is rolled up and to the left by half a
window (rounded down), so that what leaves at the top comes in again at the bottom: then the plain cut gives whole
windows once more. Some hold pieces from opposite sides of the image (f and d; h and b; i, g, c and a), and a mask keeps
these from seeing each other. After attention the map is rolled back. Two blocks in a row, with z for the tokens, are
the paper's

    ẑˡ   = W-MSA(LN(zˡ⁻¹)) + zˡ⁻¹      zˡ   = MLP(LN(ẑˡ)) + ẑˡ        (3)
    ẑˡ⁺¹ = SW-MSA(LN(zˡ)) + zˡ         zˡ⁺¹ = MLP(LN(ẑˡ⁺¹)) + ẑˡ⁺¹
    Attention(Q, K, V) = SoftMax(Q Kᵀ / √d + B) V                     (4)

B is a learned number, one for each head, for the way from key to query, down and across, with its sign (called
distance below): nothing else tells where in a window a token is. Between two stages each square of 2 × 2 tokens becomes
one of twice the width, so that a window sees twice as far: 4, 8, 16 and 32 pixels a token, as in a CNN. Of an image of
224 pixels Swin-T has maps of 56, 28, 14 and 7 tokens a side, in windows of 7: 64, 16, 4 of them, and 1. That one is the
whole map and has nowhere to shift: there all blocks are alike.

Shapes: B images, C channels, H × W the map of a stage (in tokens; in pixels for images), D width of a token there,
h × w a window (M × M, or less where the map is smaller), N windows, K = h · w tokens in one, d = D / heads, T tokens
of the last map, P pixels a side of a patch. In (1) and (2), as in the paper, h × w is the map and C the width; in (4)
K are keys and B is the bias.

Read it from top to bottom: how a map is cut into windows, attention in them, block, merging, model; then version 2
("Swin Transformer V2: Scaling Up Capacity and Resolution", Liu et al., 2022; arXiv:2111.09883), as far as it differs.
Parameters have the names that timm gives them, but for `stages`, which are its layers.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass
from math import log
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from vitral.errors import DataError, RecipeError
from vitral.model.attend import attend
from vitral.model.config import Regularise
from vitral.model.heads import linear_head
from vitral.model.interface import Layer, Model, layer_weights
from vitral.model.mlps import ACTIVATIONS
from vitral.model.norms import Drop, KeylessBias
from vitral.model.positions import at_distances
from vitral.model.stems import check_channels
from vitral.model.swin_config import Pair, SwinConfig

EPS = 1e-5  # added to the variance in every norm, as PyTorch's own
APART = -100.0  # added to the score of a pair that should not see each other, as in the authors' code: e⁻¹⁰⁰ is left


@dataclass(frozen=True)
class Windows:
    """How the map of a stage is cut into windows, and put together again."""

    grid: Pair  # (H, W)
    size: Pair  # (h, w)
    shift: Pair = (0, 0)  # by how many tokens the map is rolled, up and to the left
    pad_first: bool = False  # pad, then roll, as transformers; False: roll, then pad, as timm

    @property
    def padded(self) -> Pair:
        """The map with zeros below and to the right, so that windows divide it. Tokens attend to these zeros, as in
        all libraries; at the sizes that weights were trained at there are none."""
        (H, W), (h, w) = self.grid, self.size
        return -(-H // h) * h, -(-W // w) * w

    def cut(self, x: Tensor) -> Tensor:  # (B, H, W, D) → (B, N, K, D)
        """The tokens window by window, and inside of one row by row."""
        x = self._roll(self._pad(x)) if self.pad_first else self._pad(self._roll(x))
        h, w = self.size
        x = x.unflatten(2, (-1, w)).unflatten(1, (-1, h))  # (B, rows of windows, h, windows in a row, w, D)
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def join(self, windows: Tensor) -> Tensor:  # (B, N, K, D) → (B, H, W, D)
        """What `cut` took apart, without the padding."""
        (H, W), (h, w), (padded, _) = self.grid, self.size, self.padded
        x = windows.unflatten(2, (h, w)).unflatten(1, (padded // h, -1)).transpose(2, 3)
        x = x.flatten(3, 4).flatten(1, 2)  # the padded map
        return self._back(x)[:, :H, :W] if self.pad_first else self._back(x[:, :H, :W])

    def mask(self, device: torch.device) -> Tensor | None:  # → (N, 1, K, K)
        """What is added to scores, so that tokens from opposite sides of the image do not see each other: 0, or APART.
        None where nothing was rolled. The seam is put `shift` before the end of the padded map, as in the libraries.
        There it is, unless a rolled map was padded (timm): then it lies earlier, and tokens between see strangers."""
        if self.shift == (0, 0):
            return None
        # After the roll the last window of each axis holds two pieces: up to the seam, and beyond it.
        down, across = (
            (torch.arange(side, device=device) >= side - shift).float()
            for side, shift in zip(self.padded, self.shift, strict=True)
        )
        pieces = (2 * down[:, None] + across)[None, :, :, None]  # (1, rows, columns, 1): 0 to 3
        pieces = Windows(self.padded, self.size).cut(pieces)[0, :, None, :, 0]  # (N, 1, K)
        return APART * (pieces[..., None, :] != pieces[..., None]).float()

    def _pad(self, x: Tensor) -> Tensor:
        (H, W), (padded_height, padded_width) = self.grid, self.padded
        return pad(x, (0, 0, 0, padded_width - W, 0, padded_height - H))

    def _roll(self, x: Tensor) -> Tensor:
        down, across = self.shift
        return x if self.shift == (0, 0) else x.roll((-down, -across), (1, 2))

    def _back(self, x: Tensor) -> Tensor:
        return x if self.shift == (0, 0) else x.roll(self.shift, (1, 2))


class WindowAttention(nn.Module):
    """Multi-head self-attention as in vit.py, among the tokens of each window: (4)."""

    def __init__(self, config: SwinConfig, regularise: Regularise, stage: int) -> None:
        super().__init__()
        D, self.heads = config.widths[stage], config.heads[stage]
        self.dropout = regularise.attention_dropout
        self.make_scores(config, stage, D)
        self.proj = nn.Linear(D, D)

    def make_scores(self, config: SwinConfig, stage: int, D: int) -> None:
        self.qkv = nn.Linear(D, 3 * D, bias=config.bias)
        self.window, _ = config.windowing(stage, config.grids[stage])  # the window that the table is made for
        (h, w), heads = self.window, self.heads
        # A row for each distance that two tokens of a window can have, and a number in it for each head.
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * h - 1) * (2 * w - 1), heads))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, K, D) → each (B, N, heads, K, d). Queries are as long as scores need them: already divided by √d."""
        q, k, v = self.by_head(self.qkv(x))
        return q * q.shape[-1] ** -0.5, k, v

    def by_head(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (B, N, K, 3D) → each (B, N, heads, K, d)
        q, k, v = qkv.unflatten(3, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5).unbind(0)
        return q, k, v

    def table(self, window: Pair) -> Tensor:  # → ((2h − 1)(2w − 1), heads)
        """B for each distance in a window of this size; interpolated where the table was made for another."""
        return at_distances(self.relative_position_bias_table, self.window, window)

    def bias(self, windows: Windows) -> Tensor:  # → (1 or N, heads, K, K)
        """B of (4) for each pair of tokens; with the mask, where windows are shifted."""
        table = self.table(windows.size)
        table = table[pairs(windows.size, table.device)].permute(2, 0, 1)[None]  # (1, heads, K, K)
        mask = windows.mask(table.device)
        return table if mask is None else table + mask

    def map(self, x: Tensor, windows: Windows) -> Tensor:  # (B, N, K, D) → (B, N, heads, K, K)
        """How much each token takes from each token of its window, for those who want to see it; a row sums to 1."""
        q, k, _ = self.queries_keys_values(x)
        return (q @ k.mT + self.bias(windows)).softmax(dim=-1)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # (B, N, K, D) → (B, N, K, D)
        N, heads = x.shape[1], self.heads
        q, k, v = (each.flatten(1, 2) for each in self.queries_keys_values(x))  # (B, N · heads, K, d)
        bias = self.bias(windows).expand(N, -1, -1, -1).flatten(0, 1)  # (N · heads, K, K)
        dropout = self.dropout if self.training else 0.0
        taken = attend(q, k, v, bias[None].to(q.dtype), dropout, scale=1.0)
        return self.proj(taken.unflatten(1, (N, heads)).transpose(2, 3).flatten(3))  # the heads side by side, mixed


def pairs(window: Pair, device: torch.device) -> Tensor:  # → (K, K)
    """For each query and key of a window the row of the table that has their distance."""
    h, w = window
    rows, columns = (place.flatten() for place in torch.meshgrid(
        torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij"
    ))  # fmt: skip
    down, across = rows[:, None] - rows, columns[:, None] - columns  # (K, K): query − key; down from 1 − h to h − 1
    return (down + h - 1) * (2 * w - 1) + across + w - 1


class Block(nn.Module):
    """Tokens of a window exchange what they know, then each works on it alone: a line of (3)."""

    attention_class: ClassVar[type[WindowAttention]] = WindowAttention

    def __init__(self, config: SwinConfig, regularise: Regularise, stage: int, number: int) -> None:
        super().__init__()
        D = config.widths[stage]
        hidden = round(D * config.mlp.ratio)
        self.norm1 = nn.LayerNorm(D, eps=EPS)
        self.attn = self.attention_class(config, regularise, stage)
        self.norm2 = nn.LayerNorm(D, eps=EPS)
        act = ACTIVATIONS[config.mlp.kind]()
        self.mlp = nn.Sequential(OrderedDict(fc1=nn.Linear(D, hidden), act=act, fc2=nn.Linear(hidden, D)))
        self.drop = Drop(config, regularise, number)

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention sees of the tokens."""
        return self.norm1(x)

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # (B, H, W, D) → (B, H, W, D)
        x = self.drop(windows.join(self.attn(windows.cut(self.norm1(x)), windows))) + x  # (3)
        return self.drop(self.mlp(self.norm2(x))) + x


class Merging(nn.Module):
    """Each square of 2 × 2 tokens becomes one of twice the width. A last odd row or column gets zeros beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width, eps=EPS)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, D) → (B, H/2, W/2, 2D)
        return self.reduction(self.norm(self.squares(x)))

    @staticmethod
    def squares(x: Tensor) -> Tensor:  # (B, H, W, D) → (B, H/2, W/2, 4D)
        """The four of a square side by side, column by column."""
        x = pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        return torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=-1)


# Version 2


class CosineAttention(WindowAttention):
    """Scores are cosines, cos(q, k) / τ + B, so that no pair can outshout the others by its length; τ is learned for
    each head, and at least 0.01. B is no table: a small MLP computes it from the distance, so that it is there for
    windows of any size, and a sigmoid keeps it between 0 and 16.

    Keys have no bias. Distances, of which 8 is the edge of the window trained with, go in as sign(Δ) log₈(1 + |Δ|): a
    window twice as large is then not twice as far."""

    def make_scores(self, config: SwinConfig, stage: int, D: int) -> None:
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.qv_bias = KeylessBias(D) if config.bias else nn.Identity()
        self.logit_scale = nn.Parameter(torch.empty(self.heads, 1, 1))  # log 1/τ
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, self.heads, bias=False))
        self.trained = config.trained_windows[stage] if config.trained_windows else 0

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.by_head(self.qv_bias(self.qkv(x)))
        scale = self.logit_scale.clamp(max=log(100)).exp()
        return normalize(q, dim=-1) * scale, normalize(k, dim=-1), v

    def table(self, window: Pair) -> Tensor:  # → ((2h − 1)(2w − 1), heads)
        device = self.logit_scale.device
        down, across = (  # from −8 to 8, where the window is the one it was trained with
            torch.arange(1.0 - side, side, device=device) * 8 / max(1, (self.trained or side) - 1) for side in window
        )
        far = torch.cartesian_prod(down, across)  # ((2h − 1)(2w − 1), 2)
        far = far.sign() * (1 + far.abs()).log2() / log(8, 2)
        return 16 * self.cpb_mlp(far.to(self.logit_scale.dtype)).sigmoid()


class PostNormBlock(Block):
    """Norms stand at the end of a branch: what a block adds does not grow with what it was given."""

    attention_class = CosineAttention

    def attention_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor, windows: Windows) -> Tensor:  # (B, H, W, D) → (B, H, W, D)
        x = self.drop(self.norm1(windows.join(self.attn(windows.cut(x), windows)))) + x
        return self.drop(self.norm2(self.mlp(x))) + x


class PostNormMerging(Merging):
    """Its norm, too, stands at the end."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.LayerNorm(2 * width, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, W, D) → (B, H/2, W/2, 2D)
        return self.norm(self.reduction(self.squares(x)))


# The whole


class Embedding(nn.Module):
    """Each patch becomes a token by one matrix, as in a ViT; and a norm. What is left at the borders of an image that
    patches do not divide is dropped, as in timm, or padded with zeros, as in transformers."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        check_channels(config)
        P, D = config.patch_size, config.width
        self.patch_size, self.pads = P, config.borders == "transformers"
        self.proj = nn.Conv2d(config.channels, D, kernel_size=P, stride=P)
        self.norm = nn.LayerNorm(D, eps=EPS)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) in pixels → (B, H, W, D) in tokens
        if self.pads:
            images = pad(images, (0, -images.shape[3] % self.patch_size, 0, -images.shape[2] % self.patch_size))
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


class Stage(nn.Module):
    """Merging, except in the first stage, and then blocks, of which every second one is shifted."""

    def __init__(self, config: SwinConfig, regularise: Regularise, stage: int) -> None:
        super().__init__()
        self.config, self.stage = config, stage
        block, merging = (Block, Merging) if config.version == 1 else (PostNormBlock, PostNormMerging)
        self.downsample = merging(config.widths[stage - 1]) if stage else nn.Identity()
        first = sum(config.depths[:stage])
        self.blocks = nn.ModuleList(block(config, regularise, stage, first + n) for n in range(config.depths[stage]))

    def each(self, grid: Pair) -> list[tuple[Block, Windows]]:
        """The blocks, each with its windows on a map of this grid: W-MSA, SW-MSA, W-MSA, …; all W-MSA where one window
        is the whole map."""
        size, shift = self.config.windowing(self.stage, grid)
        pad_first = self.config.borders == "transformers"
        plain, shifted = Windows(grid, size, (0, 0), pad_first), Windows(grid, size, shift, pad_first)
        return [(block, shifted if n % 2 else plain) for n, block in enumerate(self.blocks)]  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:  # (B, 2H, 2W, D/2) → (B, H, W, D)
        x = self.downsample(x)
        for block, windows in self.each((x.shape[1], x.shape[2])):
            x = block(x, windows)
        return x


class Swin(Model):
    """A Swin Transformer, described by its config and nothing else. It takes images of any size, square or not.

    >>> model = Swin(SwinConfig(image_size=32, patch_size=2, width=24, depths=(2, 2), heads=(2, 4), classes=10))
    >>> model(torch.zeros(1, 3, 32, 48)).shape
    torch.Size([1, 10])
    """

    config: SwinConfig

    attends, any_size = True, True

    def __init__(self, config: SwinConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.regularise = regularise = regularise or Regularise()
        self.config = config
        self.patch_embed = Embedding(config)
        self.pos_drop = nn.Dropout(regularise.dropout)
        self.stages = nn.ModuleList(Stage(config, regularise, stage) for stage in range(len(config.depths)))
        self.norm = nn.LayerNorm(config.widths[-1], eps=EPS)
        self.head = linear_head(config, config.widths[-1]) if config.has_classes else nn.Identity()
        self.initialise()

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, T, D)
        """The tokens of the last map, row by row: for Swin-T at 224 pixels (B, 49, 768). There is no class token; the
        head sees the mean."""
        if keep is not None:
            raise RecipeError("A Swin Transformer looks at whole windows: no patch can be left out.")
        self.grid_of(images)
        x = self.pos_drop(self.patch_embed(images))  # (B, H, W, D) of the first stage
        for stage in self.stages:
            x = stage(x)
        return self.norm(x).flatten(1, 2)

    def grid_of(self, images: Tensor) -> Pair:
        """The last map for these images, (down, across). Any size will do that has a patch."""
        _, channels, height, width = images.shape
        if channels != self.config.channels:
            raise DataError(f"The images have {channels} channels, and the model takes {self.config.channels}.")
        if min(height, width) < self.config.patch_size:
            raise DataError(f"Images of {height}×{width} have no room for a patch of {self.config.patch_size} pixels.")
        return self.config.grids_of((height, width))[-1]

    def at(self, image_size: int | tuple[int, int]) -> Self:
        """A copy of the model made for another image size. Only where a map is smaller than a window, or is no longer,
        tables of distances change."""
        config = type(self.config).read({**self.config.write(), "image_size": image_size}, "model.")
        state = self.state_dict()
        for name, attention in self.named_modules():
            if type(attention) is WindowAttention:  # version 2 has no tables
                stage = int(name.split(".")[1])  # stages.N.blocks.…
                window, _ = config.windowing(stage, config.grids[stage])
                state[f"{name}.relative_position_bias_table"] = attention.table(window).detach()
        return self.copy_with(config, state)

    def layers(self) -> list[Layer]:
        """The embedding, then block by block through all stages, each merging with the block after it."""
        inside: dict[int, dict[str, nn.Parameter]] = {}
        first = [sum(self.config.depths[:stage]) for stage in range(len(self.stages))]
        for name, parameter in self.named_parameters():
            place = re.match(r"stages\.(\d+)\.(?:blocks\.(\d+)|downsample)\.", name)
            depth = 1 + first[int(place[1])] + int(place[2] or 0) if place else 0
            top = {"norm": self.config.depth + 1, "head": self.config.depth + 2}.get(name.partition(".")[0])
            inside.setdefault(top or depth, {})[name] = parameter
        names = {0: "embedding", self.config.depth + 1: "norm", self.config.depth + 2: "head"}
        return [
            Layer(
                names.get(depth, f"blocks.{depth - 1}"),
                min(depth, self.config.depth + 1),
                inside[depth],
                "head" if names.get(depth) == "head" else "trunk",
            )
            for depth in sorted(inside)
        ]

    def matrices(self) -> dict[str, int]:
        """Those of blocks and mergings, of which q, k and v lie in one."""
        inside = [name for name in layer_weights(self) if name.startswith("stages.") and ".cpb_mlp." not in name]
        return {name: 3 if name.endswith("qkv.weight") else 1 for name in inside}

    def step_words(self) -> dict[str, str]:
        blocks, cosine = "stages.*.blocks.*", self.config.version == 2
        return {
            "patch_embed.proj": "cut into patches, each times E",
            "stages.*.downsample.reduction": "each 2 × 2 tokens become one",
            f"{blocks}.attn.qkv": "queries, keys, values, by window",
            f"{blocks}.attn.relative_position_bias_table": "B, a number for each distance",
            f"{blocks}.attn.qv_bias": "a bias of queries and values",
            f"{blocks}.attn.logit_scale": "log 1/τ of each head",
            f"{blocks}.attn.cpb_mlp.*": "B, computed from distances",
            f"{blocks}.attn": f"in windows: softmax({'cos(q, k) / τ' if cosine else 'q kᵀ / √d'} + B) v",
            f"{blocks}.attn.proj": "heads mixed; added to the tokens",
            f"{blocks}.mlp.fc1": f"up, then {self.config.mlp.kind}",
            f"{blocks}.mlp.fc2": "down; added to the tokens",
            "pool": "what the head sees: mean",
            "head": "a logit per class",
        }

    @torch.no_grad()
    def initialise(self) -> None:
        """As in the authors' code: matrices and tables N(0, 0.02²), biases zero; norms start as the identity, or at
        zero where they end a branch, so that a block adds nothing at first. The head starts at zero here, as in vit.py:
        no class is preferred before the first step."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or name.startswith("head"):
                nn.init.zeros_(parameter)
            elif name.endswith("logit_scale"):
                nn.init.constant_(parameter, log(10))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        for block in self.modules():
            if isinstance(block, PostNormBlock):
                nn.init.zeros_(block.norm1.weight)
                nn.init.zeros_(block.norm2.weight)
