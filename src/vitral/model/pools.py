"""What the heads see: one function for each word that `pool` can be in a config. Each gives a tensor per classifier."""

from collections.abc import Callable

import torch
from torch import Tensor

from vitral.model.config import ViTConfig


def class_token(tokens: Tensor, config: ViTConfig) -> list[Tensor]:  # (B, T, D) → each (B, D)
    """The class token, and the distillation token where there is one."""
    return [tokens[:, place] for place in range(config.read_out)]


def mean(tokens: Tensor, config: ViTConfig) -> list[Tensor]:  # (B, T, D) → (B, D)
    """The mean of the patches; class token and registers are left out."""
    return [tokens[:, config.extra :].mean(dim=1)]


def class_mean(tokens: Tensor, config: ViTConfig) -> list[Tensor]:  # (B, T, D) → (B, 2D)
    """The class token and the mean of the patches, side by side (DINOv2's classifier)."""
    return [torch.cat([*class_token(tokens, config), *mean(tokens, config)], dim=1)]


POOLS: dict[str, Callable[[Tensor, ViTConfig], list[Tensor]]] = {
    "class": class_token,
    "mean": mean,
    "class-mean": class_mean,
}
POOLED_WIDTHS = {"class": 1, "mean": 1, "class-mean": 2}  # times the width of a token
