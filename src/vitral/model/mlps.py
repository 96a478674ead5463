"""What each block does to a token by itself: one class for each word that `mlp` can be in a config."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from vitral.model.config import ViTConfig


class QuickGelu(nn.Module):
    """x · sigmoid(1.702 x): OpenAI's CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": partial(nn.GELU, "tanh"),
    "gelu-quick": QuickGelu,
}


class Gelu(nn.Module):
    """Two layers with a GELU between them (the paper's section 3.1)."""

    def __init__(self, config: ViTConfig, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_size, bias)
        self.act = ACTIVATIONS[config.mlp.kind]()
        self.fc2 = nn.Linear(config.mlp_size, config.width, bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        return self.fc2(self.act(self.fc1(x)))


class SwiGlu(nn.Module):
    """One layer gives a gate and a value of the hidden size, packed, the gate first (Shazeer 2020; DINOv2)."""

    def __init__(self, config: ViTConfig, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, 2 * config.mlp_size, bias)
        self.fc2 = nn.Linear(config.mlp_size, config.width, bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(silu(gate) * value)


MLPS: dict[str, type[Gelu] | type[SwiGlu]] = {"gelu": Gelu, "gelu-tanh": Gelu, "gelu-quick": Gelu, "swiglu": SwiGlu}
