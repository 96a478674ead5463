"""What the heads see: one function for each word that `pool` can be in a config. Each gives a tensor per classifier."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from vitral.model.config import ViTConfig
from vitral.model.mlps import MLPS
from vitral.model.norms import norm


def class_token(tokens: Tensor, config: ViTConfig) -> list[Tensor]:  # (B, T, D) → each (B, D)
    """The class token, and the distillation token where there is one; of a token per task, all side by side."""
    each = config.read_out // len(config.classifiers)
    return [tokens[:, place : place + each].flatten(1) for place in range(0, config.read_out, each)]


def mean(tokens: Tensor, config: ViTConfig) -> list[Tensor]:  # (B, T, D) → (B, D)
    """The mean of the patches; class token and registers are left out, unless of `all_tokens`."""
    return [tokens[:, config.pooled_from :].mean(dim=1)]


def class_mean(tokens: Tensor, config: ViTConfig) -> list[Tensor]:  # (B, T, D) → (B, 2D)
    """The class token and the mean of the patches, side by side (DINOv2's classifier)."""
    return [torch.cat([*class_token(tokens, config), *mean(tokens, config)], dim=1)]


class AttentionPool(nn.Module):
    """A learned query asks the patches, with heads as in a block, and an MLP works on what it took (Lee et al. 2019;
    the head of SigLIP)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        D = config.width
        self.first, self.heads = config.pooled_from, config.heads
        self.latent = nn.Parameter(torch.empty(1, 1, D))
        self.q, self.kv, self.proj = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)
        self.norm = norm(config, D)
        self.mlp = MLPS[config.mlp.kind](config)

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T, D) → (B, 1, D)
        asked = tokens[:, self.first :]  # class token and registers are left out
        q = self.q(self.latent).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (1, heads, 1, D/heads)
        k, v = self.kv(asked).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, heads, N, D/heads)
        taken = scaled_dot_product_attention(q.expand(k.shape[0], -1, -1, -1), k, v)  # (B, heads, 1, D/heads)
        token = self.proj(taken.transpose(1, 2).flatten(2))
        return token + self.mlp(self.norm(token))


def attention_pool(config: ViTConfig) -> nn.Module:
    """What makes one token of all, where attention pools; else nothing."""
    return AttentionPool(config) if config.pool.kind == "map" else nn.Identity()


def only_token(tokens: Tensor, config: ViTConfig) -> list[Tensor]:  # (B, 1, D) → (B, D)
    """The one that `attention_pool` made of all."""
    return [tokens[:, 0]]


POOLS: dict[str, Callable[[Tensor, ViTConfig], list[Tensor]]] = {
    "class": class_token,
    "mean": mean,
    "class-mean": class_mean,
    "map": only_token,
}
POOLED_WIDTHS = {"class": 1, "mean": 1, "class-mean": 2, "map": 1}  # times the width of a token
