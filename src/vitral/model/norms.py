"""The small parts that every block has or has not: norms, LayerScale, and what is left out at random in training."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from vitral.model.config import Regularise, ViTConfig


def norm(config: ViTConfig, width: int, there: bool = True) -> nn.Module:
    """A LayerNorm, or nothing."""
    return nn.LayerNorm(width, eps=config.blocks.norm_eps) if there else nn.Identity()


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
        return x * self.gamma


def layer_scale(config: ViTConfig) -> nn.Module:
    """LayerScale, or nothing."""
    start = config.blocks.layer_scale
    return LayerScale(config.width, start) if start else nn.Identity()


class Drop(nn.Module):
    """Dropout, and stochastic depth: now and then a branch is left out for a whole image (Huang et al. 2016).

    The deeper the block, the more often. In evaluation nothing is left out.
    """

    def __init__(self, config: ViTConfig, regularise: Regularise, block: int) -> None:
        super().__init__()
        self.dropout = regularise.dropout
        self.depth = regularise.stochastic_depth * block / max(1, config.depth - 1)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        x = dropout(x, self.dropout, self.training)
        if not self.training or self.depth == 0:  # no product with ones in the hot path
            return x
        return x * dropout(x.new_ones(x.shape[0], 1, 1), self.depth)
