"""Depthwise 3×3 convolutions among the tokens of a block: inside the MLP (as in LocalViT 2104.05707 and DHVT
2210.05958) or on the shortcut (CPVT 2102.10882). They start at zero, so that the model starts as the ViT that it is
without them.

While patches are left out, those that are there see zeros in the places of the others.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitral.model.config import Regularise, ViTConfig
from vitral.model.vit import Block, ViT

Places = tuple[tuple[int, int], Tensor | None]  # the grid, and the numbers of the patches that are there; None: all


class Near(nn.Module):
    """A 3×3 filter for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.zeros(channels, 1, 3, 3))

    def forward(self, x: Tensor, places: Places) -> Tensor:  # (B, T, C) → (B, T, C)
        (down, across), keep = places
        if keep is None:
            return self.on_map(x.unflatten(1, (down, across))).flatten(1, 2)
        rows = keep[:, :, None].expand(-1, -1, x.shape[2])
        whole = x.new_zeros(len(x), down * across, x.shape[2]).scatter(1, rows, x)
        return self.on_map(whole.unflatten(1, (down, across))).flatten(1, 2).gather(1, rows)

    def on_map(self, x: Tensor) -> Tensor:  # (B, h, w, C) → (B, h, w, C)
        x = x.permute(0, 3, 1, 2)  # in memory channels stay last
        filters = self.filters.to(x.dtype)
        return nn.functional.conv2d(x, filters, padding=1, groups=len(filters)).permute(0, 2, 3, 1)


class InMlpBlock(Block):
    """Between the two layers of the MLP, before the GELU."""

    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.near = Near(config.mlp_size)

    def forward(self, tokens: Tensor, first: int | None = None, rotation: Any = None) -> Tensor:
        tokens = self.drop(self.ls1(self.attn(self.norm1(tokens)))) + tokens
        hidden = self.mlp.fc1(self.norm2(tokens))
        hidden = self.mlp.act(hidden + self.near(hidden, rotation))
        return self.drop(self.ls2(self.mlp.fc2(hidden))) + tokens


class ShortcutBlock(Block):
    """Before the block, added to its tokens: what attention and MLP are added to has seen its neighbours."""

    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.near = Near(config.width)

    def forward(self, tokens: Tensor, first: int | None = None, rotation: Any = None) -> Tensor:
        return super().forward(tokens + self.near(tokens, rotation))


class NearViT(ViT):
    """A ViT without extra tokens. What blocks get beside the tokens is where these stand."""

    splits = False

    def rotation(self, images: Tensor, keep: Tensor | None = None) -> Any:
        return self.grid_of(images), keep

    @torch.no_grad()
    def initialise(self) -> None:
        super().initialise()
        for block in self.blocks:
            block.near.filters.zero_()


class InMlp(NearViT):
    config: ViTConfig
    block_class = InMlpBlock


class OnShortcut(NearViT):
    config: ViTConfig
    block_class = ShortcutBlock
