"""Other functions in the place of the GELUs (by tanh) of a ViT behind a whitened stem."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from vitral.model.config import Regularise, ViTConfig
from vitral.model.stems import Whitened
from vitral.model.vit import ViT


class ReluSquared(nn.Module):
    """Primer: So et al. 2021."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


class Stem(Whitened):
    """The same with another function."""

    def __init__(self, config: ViTConfig, act: nn.Module) -> None:
        super().__init__(config)
        self.act = act
        for number, layer in enumerate(self.convs):
            if isinstance(layer, nn.GELU):
                self.convs[number] = act

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        padded = pad(images, (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last)
        return self.convs(self.act(conv2d(padded, self.whiten))).flatten(2).transpose(1, 2)


class Squared(ViT):
    """ReLU² in the MLPs."""

    config: ViTConfig

    def __init__(self, config: ViTConfig, regularise: Regularise | None = None) -> None:
        super().__init__(config, regularise)
        for block in self.blocks:
            block.mlp.act = ReluSquared()


class Everywhere(ViT):
    """One function in the MLPs and in the stem, which is the same otherwise."""

    config: ViTConfig
    act: type[nn.Module]

    def __init__(self, config: ViTConfig, regularise: Regularise | None = None) -> None:
        super().__init__(config, regularise)
        stem = Stem(config, self.act())
        stem.load_state_dict(self.patch_embed.state_dict())
        self.patch_embed = stem
        for block in self.blocks:
            block.mlp.act = self.act()


class Silu(Everywhere):
    config: ViTConfig
    act = nn.SiLU


class Erf(Everywhere):
    """GELU itself: torch computes it in a third of the time of the one by tanh."""

    config: ViTConfig
    act = nn.GELU
