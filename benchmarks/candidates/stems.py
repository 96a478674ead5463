"""Whitened stems that see fewer places: in bfloat16 products are quick, and what is no product goes by the number of
places. At 32×32 of them the stem of the ViT takes about a third of a step (step_parts.py)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, max_pool2d, pad

from vitral.model.config import Regularise, ViTConfig
from vitral.model.stems import Whitened
from vitral.model.vit import ViT


class PooledStem(Whitened):
    """What the measured layer gives is pooled at once, and not after the first convolution."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.convs[1] = nn.Identity()  # the first pool

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        padded = pad(images, (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last)
        apart = gelu(max_pool2d(conv2d(padded, self.whiten), 2), approximate="tanh")  # (B, 8C, H/2, W/2)
        return self.convs(apart).flatten(2).transpose(1, 2)


class StridedStem(PooledStem):
    """The measured layer itself has a stride of 2: each square of 2×2 pixels is seen once."""

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        images = images.contiguous(memory_format=torch.channels_last)
        apart = gelu(conv2d(images, self.whiten, stride=2), approximate="tanh")  # (B, 8C, H/2, W/2)
        return self.convs(apart).flatten(2).transpose(1, 2)


class OtherStem(ViT):
    config: ViTConfig
    stem_class: type[Whitened]

    def __init__(self, config: ViTConfig, regularise: Regularise | None = None) -> None:
        super().__init__(config, regularise)
        stem = self.stem_class(config)
        stem.load_state_dict(self.patch_embed.state_dict())
        self.patch_embed = stem


class Pooled(OtherStem):
    config: ViTConfig
    stem_class = PooledStem


class Strided(OtherStem):
    config: ViTConfig
    stem_class = StridedStem
