"""8×8 tokens become 4×4 after some blocks: a matrix makes one of four, and starts as their mean. What follows costs a
quarter, so that there may be more of it."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.model.config import Regularise, ViTConfig
from vitral.model.vit import Block, ViT


class MergedConfig(ViTConfig):
    merge_after: int = Field(default=2, ge=1, description="blocks that see all tokens")


class Merge(nn.Linear):
    def __init__(self, width: int) -> None:
        super().__init__(4 * width, width, bias=False)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:  # type: ignore[override]  # (B, N, D) → (B, N/4, D)
        x = x.unflatten(1, (grid[0] // 2, 2, grid[1] // 2, 2)).transpose(2, 3)  # (B, h/2, w/2, 2, 2, D)
        return super().forward(x.flatten(3).flatten(1, 2))


class MergedBlock(Block):
    def __init__(self, config: MergedConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.merge = Merge(config.width) if number == config.merge_after else None

    def forward(self, tokens: Tensor, first: int | None = None, rotation: Any = None) -> Tensor:
        return super().forward(self.merge(tokens, rotation) if self.merge else tokens)


class Merged(ViT):
    """Without extra tokens; all patches are looked at."""

    config: MergedConfig
    drops_patches = splits = False
    block_class = MergedBlock

    def rotation(self, images: Tensor, keep: Tensor | None = None) -> Any:
        return self.grid_of(images)

    @torch.no_grad()
    def initialise(self) -> None:
        super().initialise()
        for block in self.blocks:
            if block.merge:
                block.merge.weight.copy_(torch.eye(self.config.width).repeat(1, 4) / 4)
