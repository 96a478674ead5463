"""How an image becomes one token per patch: one class for each word that `stem` can be in a config."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, pad

from vitral.errors import RecipeError
from vitral.model.config import ModelConfig, ViTConfig
from vitral.model.norms import norm
from vitral.model.resnet import Backbone


class PatchStem(nn.Module):
    """What all stems share. Most learn all that they are, and look at no picture before the first step."""

    def fit(self, images: Tensor) -> None:  # (B, C, H, W)
        """Measure what is not learned, on images as the model will see them."""
        return

    def refit_norms(self, batches: Iterable[Tensor]) -> None:  # each (B, C, H, W)
        """Measure the means and variances of BatchNorms anew, as the weights are now."""
        return


class Linear(PatchStem):
    """Each patch becomes a token by one matrix E. A convolution whose stride is its size does just that: it cuts,
    flattens and multiplies. (`patchify` in patches.py cuts by hand; a test shows that both ways are equal.)"""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        check_channels(config)
        P, bias = config.patch_size, config.stem.bias
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=P, stride=P, bias=bias)
        self.norm = norm(config, config.width, there=config.stem.norm)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        return self.norm(self.proj(images).flatten(2).transpose(1, 2))  # the grid (B, D, H/P, W/P), read row by row


class Conv(PatchStem):
    """3×3 convolutions that halve the image until a pixel is a patch, with GELUs between, then the matrix."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        check_channels(config)
        halvings, channels = config.patch_size.bit_length() - 1, config.stem.channels
        self.convs = nn.Sequential()
        for step in range(halvings):
            takes = config.channels if step == 0 else channels
            self.convs.append(nn.Conv2d(takes, channels, kernel_size=3, stride=2, padding=1))
            self.convs.append(nn.GELU())
        self.proj = nn.Conv2d(channels, config.width, kernel_size=1, bias=config.stem.bias)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        return self.proj(self.convs(images)).flatten(2).transpose(1, 2)


class Whitened(PatchStem):
    """A first layer that is measured instead of learned, then 3×3 convolutions, each with a pool that halves the image.

    The first layer takes 2×2 pixels apart into their principal components, all scaled to equal size: neighbours on a
    photograph are nearly the same, and what tells them apart would else be learned last. Components come with both
    signs, for a GELU keeps one only. (Jordan 2024, "94 % on CIFAR-10 in 3.29 seconds", where this is the largest gain.)
    """

    whiten: Tensor  # (8C, C, 2, 2)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        check_channels(config)
        values = 4 * config.channels
        self.register_buffer("whiten", torch.eye(values).view(values, -1, 2, 2).repeat(2, 1, 1, 1))
        self.whiten[values:] *= -1
        halvings = config.patch_size.bit_length() - 1
        sizes = [2 * values, *[config.stem.channels] * (halvings - 1), config.width]
        self.convs = nn.Sequential()
        for takes, gives in zip(sizes, sizes[1:], strict=False):
            self.convs.append(nn.Conv2d(takes, gives, kernel_size=3, padding=1, bias=False))  # BatchNorm has one
            self.convs.append(nn.MaxPool2d(2))
            self.convs.append(nn.BatchNorm2d(gives))
            self.convs.append(nn.GELU("tanh"))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:  # (B, C, H, W)
        """Find the principal components of 2×2 pixels."""
        pixels = images.to(self.whiten.dtype).unfold(2, 2, 1).unfold(3, 2, 1)  # (B, C, H − 1, W − 1, 2, 2)
        values = pixels.permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1).double()  # (n, 4C)
        sizes, components = torch.linalg.eigh(values.T @ values / len(values))  # a column each
        whitened = (components / (sizes + 5e-4).sqrt()).T.reshape(-1, *self.whiten.shape[1:])
        self.whiten.copy_(torch.cat([whitened, -whitened]))

    @torch.no_grad()
    def refit_norms(self, batches: Iterable[Tensor]) -> None:  # each (B, C, H, W)
        norms, training = [layer for layer in self.convs if isinstance(layer, nn.BatchNorm2d)], self.training
        for layer in norms:
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over all batches
        self.train()
        for images in batches:
            self(images)
        self.train(training)
        for layer in norms:
            layer.momentum = 0.1

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        # A pixel's channels side by side in memory: pools and convolutions are a third faster, and so are small steps.
        padded = pad(images, (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last)
        apart = gelu(conv2d(padded, self.whiten), approximate="tanh")  # (B, 8C, H, W)
        return self.convs(apart).flatten(2).transpose(1, 2)


class Hybrid(PatchStem):
    """The places of a ResNet's last map are the patches (the paper's hybrids): each becomes a token by one matrix."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        check_channels(config)
        self.backbone = Backbone(config.channels, config.stem)
        side = config.patch_size // config.stem.stride  # places of the map; 1 in the paper
        self.proj = nn.Conv2d(self.backbone.widths[-1], config.width, side, stride=side, bias=config.stem.bias)
        self.side = side

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        x = self.backbone(images)  # (B, channels, h, w)
        return self.proj(x).flatten(2).transpose(1, 2)


def check_channels(config: ModelConfig) -> None:
    """Refuse a model by itself of which nobody said how many channels images have."""
    if config.channels == 0:
        raise RecipeError(
            "model.channels is 0, which in a recipe means: as the data has. "
            f"A model by itself has no data: give it, as in {type(config).__name__}(channels=3)."
        )


STEMS: dict[str, type[PatchStem]] = {"linear": Linear, "conv": Conv, "whitened": Whitened, "resnet": Hybrid}
