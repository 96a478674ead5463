"""The small parts that every block has or has not: norms, LayerScale, a bias without that of keys, and what is left
out at random in training."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from vitral.model.config import Regularise, ViTConfig
from vitral.model.swin_config import SwinConfig

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


def norm(config: ViTConfig, width: int, there: bool = True) -> nn.Module:
    """A norm, or nothing."""
    return NORMS[config.blocks.norm](width, eps=config.blocks.norm_eps) if there else nn.Identity()


def fill_matrix(matrix: Tensor, config: ViTConfig) -> None:
    """The first values of a matrix: Xavier-uniform, or N(0, init_std²)."""
    if config.blocks.init_std:
        nn.init.normal_(matrix, std=config.blocks.init_std)
    else:
        nn.init.xavier_uniform_(matrix)


class LayerScale(nn.Module):
    """A learned factor for each number of a branch, small at first (Touvron et al. 2021)."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma.to(x.dtype)  # else a branch in bfloat16 would become float32, and all tokens after it


def layer_scale(config: ViTConfig) -> nn.Module:
    """LayerScale, or nothing."""
    start = config.blocks.layer_scale
    return LayerScale(config.width, start) if start else nn.Identity()


class KeylessBias(nn.Module):
    """A bias for queries and values, and none for keys. One of keys adds the same number to a whole row of scores, and
    softmax does not see that; where keys are turned by place it would, and DINOv3 leaves it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.zeros(width))
        self.v = nn.Parameter(torch.zeros(width))

    def forward(self, qkv: Tensor) -> Tensor:  # (B, T, 3D) → (B, T, 3D)
        return qkv + torch.cat([self.q, torch.zeros_like(self.q), self.v])


def keyless_bias(config: ViTConfig) -> nn.Module:
    """A bias for queries and values alone, or nothing."""
    return KeylessBias(config.width) if config.attention.bias == "query-value" else nn.Identity()


class Drop(nn.Module):
    """Dropout, and stochastic depth: now and then a branch is left out for a whole image (Huang et al. 2016).

    The deeper the block, the more often. In evaluation nothing is left out.
    """

    def __init__(self, config: ViTConfig | SwinConfig, regularise: Regularise, block: int) -> None:
        super().__init__()
        self.dropout = regularise.dropout
        self.depth = regularise.stochastic_depth * block / max(1, config.depth - 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) or (B, H, W, D) → as x
        x = dropout(x, self.dropout, self.training)
        if not self.training or self.depth == 0:  # no product with ones in the hot path
            return x
        return x * dropout(x.new_ones(x.shape[0], *[1] * (x.ndim - 1)), self.depth)
