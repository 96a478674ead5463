"""How an image becomes a token a patch: one class for each word that `stem` can be in a config."""

from torch import Tensor, nn

from vitral.errors import RecipeError
from vitral.model.config import ViTConfig


class Linear(nn.Module):
    """Each patch becomes a token by one matrix E. A convolution whose stride is its size does just that: it cuts,
    flattens and multiplies. (`patchify` in patches.py cuts by hand; a test shows that both ways are equal.)"""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        _channels_known(config)
        P, bias = config.patch_size, config.stem.bias
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=P, stride=P, bias=bias)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        return self.proj(images).flatten(2).transpose(1, 2)  # the grid (B, D, H/P, W/P), read row by row


class Conv(nn.Module):
    """3×3 convolutions that halve the image until a pixel is a patch, with GELUs between, then the matrix."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        _channels_known(config)
        halvings, channels = config.patch_size.bit_length() - 1, config.stem.channels
        self.convs = nn.Sequential()
        for step in range(halvings):
            takes = config.channels if step == 0 else channels
            self.convs.append(nn.Conv2d(takes, channels, kernel_size=3, stride=2, padding=1))
            self.convs.append(nn.GELU())
        self.proj = nn.Conv2d(channels, config.width, kernel_size=1, bias=config.stem.bias)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        return self.proj(self.convs(images)).flatten(2).transpose(1, 2)


def _channels_known(config: ViTConfig) -> None:
    if config.channels == 0:
        raise RecipeError(
            "model.channels is 0, which in a recipe means: as the data has. "
            "A model by itself has no data: give it, as in ViTConfig(channels=3)."
        )


STEMS: dict[str, type[Linear] | type[Conv]] = {"linear": Linear, "conv": Conv}
