"""What each block does to a token by itself: one class for each word that `mlp` can be in a config."""

from torch import Tensor, nn

from vitral.model.config import ViTConfig


class Gelu(nn.Module):
    """Two layers with a GELU between them (the paper's section 3.1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_size)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(config.mlp_size, config.width)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        return self.fc2(self.act(self.fc1(x)))


MLPS = {"gelu": Gelu}
