"""The values of the first block are mixed into those of the later ones (Zhou et al. 2024, 2410.17897): half and half at
first, in learned shares."""

from typing import Any

import torch
from torch import Tensor, nn

from vitral.model.attend import attend
from vitral.model.config import Regularise, ViTConfig
from vitral.model.vit import Attention, Block, ViT


class ValueSkipAttention(Attention):
    def __init__(self, config: ViTConfig, regularise: Regularise) -> None:
        super().__init__(config, regularise)
        self.share = nn.Parameter(torch.tensor(0.5))  # of the first block's values

    def forward(self, x: Tensor, first: int | None = None, rotation: Any = None) -> Tensor:
        q, k, v = self.queries_keys_values(x)
        rotation.append(v)  # the first block leaves its values there
        taken = attend(q[:, :, :first], k, v.lerp(rotation[0], self.share.to(v.dtype)))
        return self.proj(taken.transpose(1, 2).flatten(2))


class ValueSkipBlock(Block):
    def __init__(self, config: ViTConfig, regularise: Regularise, number: int) -> None:
        super().__init__(config, regularise, number)
        self.attn = ValueSkipAttention(config, regularise)


class ValueSkip(ViT):
    """What blocks get beside the tokens is the list of the values so far."""

    config: ViTConfig
    splits = False
    block_class = ValueSkipBlock

    def rotation(self, images: Tensor, keep: Tensor | None = None) -> Any:
        return []
