"""Depthwise 3×3 convolutions among the tokens of a block: inside the MLP (as in LocalViT 2104.05707 and DHVT
2210.05958) or on the shortcut (CPVT 2102.10882). They start as the identity, so that the model starts as the ViT that
it is without them.

While patches are left out, those that are there see zeros in the places of the others.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitral.model.config import Regularise, ViTConfig
from vitral.model.vit import Block, ViT

Places = tuple[tuple[int, int], Tensor | None]  # the grid, and which places of the batch are there, (B · K,); None: all


class Near(nn.Module):
    """A 3×3 filter for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.zeros(channels, 1, 3, 3))

    def forward(self, x: Tensor, places: Places) -> Tensor:  # (B, T, C) → (B, T, C)
        (down, across), there = places
        if there is None:
            return self.on_map(x.unflatten(1, (down, across))).flatten(1, 2)
        whole = x.new_zeros(len(x) * down * across, x.shape[2]).index_copy(0, there, x.flatten(0, 1))
        seen = self.on_map(whole.unflatten(0, (len(x), down, across)))
        return seen.flatten(0, 2).index_select(0, there).view(x.shape)

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
        hidden = self.near(self.mlp.fc1(self.norm2(tokens)), rotation)
        return self.drop(self.ls2(self.mlp.fc2(self.mlp.act(hidden)))) + tokens


class ShortcutBlock(Block):
    """Before the block: what attention and MLP are added to has seen its neighbours."""

    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.near = Near(config.width)

    def forward(self, tokens: Tensor, first: int | None = None, rotation: Any = None) -> Tensor:
        return super().forward(self.near(tokens, rotation))


class NearViT(ViT):
    """A ViT without extra tokens. What blocks get beside the tokens is where these stand."""

    splits = False

    def rotation(self, images: Tensor, keep: Tensor | None = None) -> Any:
        down, across = self.grid_of(images)
        there = None if keep is None else (keep + down * across * torch.arange(len(keep))[:, None]).flatten()
        return (down, across), there

    @torch.no_grad()
    def initialise(self) -> None:
        super().initialise()
        for block in self.blocks:
            block.near.filters.zero_()[:, :, 1, 1] = 1.0


class InMlp(NearViT):
    config: ViTConfig
    block_class = InMlpBlock


class OnShortcut(NearViT):
    config: ViTConfig
    block_class = ShortcutBlock
