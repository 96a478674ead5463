"""Positions are added in every block, each time behind a norm of their own (LaPE: Yu et al. 2022, 2212.05262)."""

from typing import Any

from torch import Tensor

from vitral.model.config import Regularise, ViTConfig
from vitral.model.norms import norm
from vitral.model.patches import select_patches
from vitral.model.vit import Block, ViT


class OwnPositionsBlock(Block):
    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.norm_positions = norm(config, config.width)

    def forward(self, tokens: Tensor, first: int | None = None, rotation: Any = None) -> Tensor:
        seen = self.norm1(tokens)
        seen = seen + self.norm_positions(rotation).to(seen.dtype)
        tokens = self.drop(self.ls1(self.attn(seen, first))) + tokens[:, :first]
        return self.drop(self.ls2(self.mlp(self.norm2(tokens)))) + tokens


class OwnPositions(ViT):
    """What blocks get beside the tokens is the positions of these."""

    config: ViTConfig
    splits = False
    block_class = OwnPositionsBlock

    def embed(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, T, D)
        tokens = self.patch_embed(images)
        return self.norm_pre(tokens if keep is None else select_patches(tokens, keep, self.config))

    def rotation(self, images: Tensor, keep: Tensor | None = None) -> Any:  # → (1 or B, T, D)
        positions = self.positions(self.pos_embed, self.grid_of(images))
        return positions if keep is None else select_patches(positions.expand(len(keep), -1, -1), keep, self.config)
