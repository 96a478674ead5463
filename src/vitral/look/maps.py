"""What attention was."""

import torch
from torch import Tensor

from vitral.model.vit import Block, ViT


@torch.no_grad()
def attention_map(model: ViT, images: Tensor, block: int = -1) -> Tensor:  # (B, C, H, W) → (B, heads, T, T)
    """The attention of one block: row i tells how much token i took from each token. Nothing in the model changes.

    >>> from vitral.model.config import ViTConfig
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3))
    >>> attention_map(model, torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 2, 5, 5])
    """
    blocks: list[Block] = list(model.blocks)  # type: ignore[arg-type]
    looked_at = blocks[block]
    tokens = model.embed(images)
    for before in blocks[: blocks.index(looked_at)]:
        tokens = before(tokens)
    return looked_at.attn.map(looked_at.norm1(tokens))
