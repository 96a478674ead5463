"""An MLP-Mixer (Tolstikhin et al. 2021; arXiv:2105.01601) in a file of one's own."""

from torch import Tensor, nn
from torch.nn.functional import gelu

from vitral.model.config import ImageSize, ModelConfig, Regularise
from vitral.model.interface import Model


class MixerConfig(ModelConfig):
    """Its settings, as `model.width=64` sets them."""

    image_size: ImageSize = 32
    channels: int = 3
    classes: int = 10
    patch_size: int = 4
    width: int = 32
    depth: int = 2

    @property
    def stride(self) -> int:
        return self.patch_size


class Block(nn.Module):
    """Each channel is mixed over the patches, then each patch over the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.tokens_back = nn.Linear(patches, 2 * patches), nn.Linear(2 * patches, patches)
        self.channels, self.channels_back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D) → (B, N, D)
        x = x + self.tokens_back(gelu(self.tokens(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        return x + self.channels_back(gelu(self.channels(self.norm2(x))))


class Mixer(Model):
    """Patches, blocks, a norm and a head: the rest of the contract has defaults."""

    config: MixerConfig

    def __init__(self, config: MixerConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.config = config
        patch, (height, width) = config.patch_size, config.height_width
        self.embed = nn.Conv2d(config.channels, config.width, patch, patch)
        self.blocks = nn.Sequential(*(Block(height * width // patch**2, config.width) for _ in range(config.depth)))
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, config.classes)

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, N, D)
        return self.norm(self.blocks(self.embed(images).flatten(2).transpose(1, 2)))

    def matrices(self) -> dict[str, int]:
        return {name: 1 for name, p in self.named_parameters() if name.startswith("blocks.") and p.ndim == 2}
