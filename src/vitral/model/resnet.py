"""The ResNet of the paper's comparison: BiT, "Big Transfer" (Kolesnikov et al. 2020; arXiv:1912.11370).

Images (B, C, H, W) come in, logits (B, classes) go out. In between stands a map, (B, channels, h, w), that becomes
smaller and deeper: a stem, then stages of blocks, each stage but the first of half the height and width. A block adds
what three convolutions find to what was there (He et al. 2016; arXiv:1603.05027):

    x ← x + F(x)        F = conv₁ₓ₁ · relu · norm · conv₃ₓ₃ · relu · norm · conv₁ₓ₁ · relu · norm

BiT differs from the first ResNets in two things, so that batches may be small and weights transfer: GroupNorm in place
of BatchNorm (Wu & He 2018), which compares the channels of one image and never images; and weight standardisation (Qiao
et al. 2019; arXiv:1903.10520), where each filter w is used as

    ŵ = (w − mean(w)) / √(var(w) + ε)

At the end of the file is `Backbone`, what stands before a ViT in the paper's hybrids: the same convolutions with the
norm and ReLU after, not before. Parameters have the names that timm gives them.

Shapes: B images in a batch, C channels of an image, H, W its height and width; h, w those of a map; D its channels.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout, max_pool2d, pad, relu

from vitral.errors import RecipeError
from vitral.model.config import Regularise, Stem, resnet_widths
from vitral.model.interface import Layer, Model, PartOfModel, layer_weights
from vitral.model.resnet_config import ResNetConfig


class Conv(nn.Conv2d):
    """A convolution with standardised filters: what is stored is w, what is used is ŵ."""

    def __init__(self, takes: int, gives: int, size: int, stride: int = 1, eps: float = 1e-8) -> None:
        super().__init__(takes, gives, size, stride, padding=(size - 1) // 2, bias=False)
        self.eps = eps

    def standardised(self) -> Tensor:  # (gives, takes, size, size)
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        return (self.weight - mean) * (variance + self.eps).rsqrt()

    def forward(self, x: Tensor) -> Tensor:  # (B, takes, h, w) → (B, gives, h/stride, w/stride)
        return conv2d(x, self.standardised(), None, self.stride, self.padding)


class Shortcut(nn.Module):
    """Around a block that changes the shape goes a 1×1 convolution."""

    def __init__(self, takes: int, gives: int, stride: int, eps: float) -> None:
        super().__init__()
        self.conv = Conv(takes, gives, 1, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Block(nn.Module):
    """Down to a quarter of the channels, 3×3 there, and up again; norm and ReLU stand before each convolution."""

    def __init__(self, takes: int, gives: int, stride: int, first: bool, drop: float, config: ResNetConfig) -> None:
        super().__init__()
        inner, groups, eps = gives // 4, config.groups, config.weight_eps
        self.norm1 = nn.GroupNorm(groups, takes)
        self.conv1 = Conv(takes, inner, 1, eps=eps)
        self.norm2 = nn.GroupNorm(groups, inner)
        self.conv2 = Conv(inner, inner, 3, stride, eps)
        self.norm3 = nn.GroupNorm(groups, inner)
        self.conv3 = Conv(inner, gives, 1, eps=eps)
        self.downsample = Shortcut(takes, gives, stride, eps) if first else None
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:  # (B, takes, h, w) → (B, gives, h/stride, w/stride)
        normed = relu(self.norm1(x))
        around = x if self.downsample is None else self.downsample(normed)
        inner = self.conv1(normed)
        inner = self.conv2(relu(self.norm2(inner)))
        return around + self._sometimes(self.conv3(relu(self.norm3(inner))))

    def _sometimes(self, branch: Tensor) -> Tensor:
        """Stochastic depth: now and then a branch is left out for a whole image (Huang et al. 2016)."""
        if not self.training or self.drop == 0:
            return branch
        return branch * dropout(branch.new_ones(len(branch), 1, 1, 1), self.drop)


class LargeStem(nn.Module):
    """For photographs: 7×7 pixels at every second place, then the largest of 3×3 at every second: a sixteenth of the
    places is left. The border is zeros, which the pool sees."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.conv = Conv(config.channels, config.all_widths[0], 7, stride=2, eps=config.weight_eps)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, D, H/4, W/4)
        return max_pool2d(pad(self.conv(images), (1, 1, 1, 1)), 3, stride=2)


class SmallStem(nn.Module):
    """For pictures of about 32 pixels: one 3×3 convolution, and every place stays."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.conv = Conv(config.channels, config.all_widths[0], 3, eps=config.weight_eps)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, D, H, W)
        return self.conv(images)


STEMS: dict[str, type[LargeStem] | type[SmallStem]] = {"7x7": LargeStem, "3x3": SmallStem}


class Stage(nn.Module):
    """Blocks at one scale; the first halves height and width, but not in the first stage."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class ResNet(Model):
    """A ResNet, described by its config and nothing else.

    >>> model = ResNet(ResNetConfig(image_size=64, depths=(1, 1), widths=(32, 128, 256), classes=10))
    >>> model(torch.zeros(1, 3, 64, 64)).shape, model.features(torch.zeros(1, 3, 64, 96)).shape
    (torch.Size([1, 10]), torch.Size([1, 96, 256]))
    """

    config: ResNetConfig

    any_size = True

    def __init__(self, config: ResNetConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.config, self.regularise = config, regularise or Regularise()
        _check(config, self.regularise)
        stem, *stages = config.all_widths
        count, most = config.block_count, self.regularise.stochastic_depth
        drops = [most * number / max(1, count - 1) for number in range(count)]
        self.stem = STEMS[config.stem](config)
        self.stages = nn.Sequential()
        for number, (depth, takes, gives) in enumerate(zip(config.depths, (stem, *stages), stages, strict=False)):
            place = sum(config.depths[:number])
            first = Block(takes, gives, 1 if number == 0 else 2, True, drops[place], config)
            rest = (Block(gives, gives, 1, False, drops[place + n], config) for n in range(1, depth))
            self.stages.append(Stage([first, *rest]))
        self.norm = nn.GroupNorm(config.groups, stages[-1])
        self.head = nn.Linear(stages[-1], config.classes) if config.has_classes else nn.Identity()
        self.initialise()

    def map(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, D, h, w)
        """The last map, after its norm and ReLU."""
        self.grid_of(images)
        # A place's channels side by side in memory: convolutions take two thirds of the time.
        images = images.contiguous(memory_format=torch.channels_last)
        return relu(self.norm(self.stages(self.stem(images))))

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, h·w, D)
        """The places of the last map, row by row."""
        if keep is not None:
            raise RecipeError("A ResNet cannot leave patches out: its convolutions look at neighbours.")
        return self.map(images).flatten(2).transpose(1, 2)

    # What the head sees is the mean of all places, as `Model.views` has it.

    def at(self, image_size: int | tuple[int, int]) -> Self:
        """A copy of the model made for another image size: nothing in it belongs to a place."""
        config = type(self.config).read({**self.config.write(), "image_size": image_size}, "model.")
        return self.copy_with(config, self.state_dict())

    def layers(self) -> list[Layer]:
        """The stem, block after block, and what stands above them."""
        modules: list[tuple[str, nn.Module]] = [("stem", self.stem)]
        for number, stage in enumerate(self.stages):
            modules += [(f"stages.{number}.blocks.{n}", block) for n, block in enumerate(stage.blocks)]  # type: ignore[arg-type]
        top = len(modules)
        parts: list[tuple[str, int, nn.Module, PartOfModel]] = [
            *((name, depth, module, "trunk") for depth, (name, module) in enumerate(modules)),
            ("norm", top, self.norm, "trunk"),
            ("head", top, self.head, "head"),
        ]
        layers = (
            Layer(name, depth, {f"{name}.{inner}": one for inner, one in module.named_parameters()}, part)
            for name, depth, module, part in parts
        )
        return [layer for layer in layers if layer.parameters]

    def matrices(self) -> dict[str, int]:
        """The convolutions of the blocks."""
        return {name: 1 for name in layer_weights(self) if name.startswith("stages.")}

    def step_words(self) -> dict[str, str]:
        pools = self.config.stem == "7x7"
        return {
            "stem": "7×7, then the largest of 3×3" if pools else "3×3 neighbours",
            "stages.*.blocks.*.conv1": "down to a quarter of the channels",
            "stages.*.blocks.*.conv2": "3×3 neighbours",
            "stages.*.blocks.*.conv3": "up again; added to the map",
            "stages.*.blocks.*.downsample": "around the block",
            "norm": "of the last map, then ReLU",
            "pool": "what the head sees: the mean of all places",
            "head": "a logit per class",
        }

    @torch.no_grad()
    def initialise(self) -> None:
        """Filters N(0, 1/fan-in), of which standardisation keeps the direction; norms start as the identity, and the
        head at zero: no class is preferred before the first step."""
        for name in layer_weights(self):
            parameter = self.get_parameter(name)
            if name != "head.weight":
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)


def _check(config: ResNetConfig, regularise: Regularise) -> None:
    if config.channels == 0 or (config.classes == 0 and config.has_classes):
        raise RecipeError(
            f"model.{'classes' if config.channels else 'channels'} is 0, which in a recipe means: as the data has. A "
            "model by itself has no data: give it, as in ResNetConfig(channels=3, classes=10), or model.head=none."
        )
    if regularise.dropout or regularise.attention_dropout:
        raise RecipeError(
            "A ResNet drops whole branches alone: set train.regularise.stochastic_depth, and leave dropout and "
            "attention_dropout at 0."
        )


# What stands before a ViT in the paper's hybrids


class SameConv(Conv):
    """The same convolution with TensorFlow's border: as many places come out as strides fit in, rounded up, and what is
    missing for that is zeros, the smaller half of them above and left."""

    def forward(self, x: Tensor) -> Tensor:
        (size, _), (stride, _) = self.kernel_size, self.stride
        return conv2d(pad(x, same_border(x, size, stride)), self.standardised(), None, self.stride)


def same_border(x: Tensor, size: int, stride: int) -> tuple[int, int, int, int]:
    """How many places are missing left, right, above and below."""
    height, width = (max(0, (-(-side // stride) - 1) * stride + size - side) for side in x.shape[2:])
    return width // 2, width - width // 2, height // 2, height - height // 2


class NormedShortcut(nn.Module):
    """Around a block that changes the shape goes a 1×1 convolution, and a norm."""

    def __init__(self, takes: int, gives: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv = SameConv(takes, gives, 1, stride)
        self.norm = nn.GroupNorm(groups, gives)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class PostBlock(nn.Module):
    """The block of the hybrids: norms stand after the convolutions, and a ReLU after the sum."""

    def __init__(self, takes: int, gives: int, stride: int, first: bool, groups: int) -> None:
        super().__init__()
        inner = gives // 4
        self.conv1, self.norm1 = SameConv(takes, inner, 1), nn.GroupNorm(groups, inner)
        self.conv2, self.norm2 = SameConv(inner, inner, 3, stride), nn.GroupNorm(groups, inner)
        self.conv3, self.norm3 = SameConv(inner, gives, 1), nn.GroupNorm(groups, gives)
        self.downsample = NormedShortcut(takes, gives, stride, groups) if first else None
        nn.init.zeros_(self.norm3.weight)  # each block begins as what goes around it

    def forward(self, x: Tensor) -> Tensor:  # (B, takes, h, w) → (B, gives, h/stride, w/stride)
        around = x if self.downsample is None else self.downsample(x)
        inner = relu(self.norm1(self.conv1(x)))
        inner = relu(self.norm2(self.conv2(inner)))
        return relu(around + self.norm3(self.conv3(inner)))


class NormedStem(nn.Module):
    """7×7 pixels at every second place, norm and ReLU, then the largest of 3×3 at every second."""

    def __init__(self, channels: int, width: int, groups: int) -> None:
        super().__init__()
        self.conv = SameConv(channels, width, 7, stride=2)
        self.norm = nn.GroupNorm(groups, width)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, D, H/4, W/4)
        x = relu(self.norm(self.conv(images)))
        return max_pool2d(pad(x, same_border(x, 3, 2)), 3, stride=2)  # zeros: nothing is smaller after a ReLU


class Backbone(nn.Module):
    """The ResNet of a hybrid: the map of its last stage, where each place will be a token."""

    def __init__(self, channels: int, config: Stem) -> None:
        super().__init__()
        stem, *stages = self.widths = resnet_widths(config.depths, config.widths)
        self.stem = NormedStem(channels, stem, config.groups)
        self.stages = nn.Sequential()
        for number, (depth, takes, gives) in enumerate(zip(config.depths, (stem, *stages), stages, strict=False)):
            first = PostBlock(takes, gives, 1 if number == 0 else 2, True, config.groups)
            rest = (PostBlock(gives, gives, 1, False, config.groups) for _ in range(1, depth))
            self.stages.append(Stage([first, *rest]))

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, D, h, w)
        return self.stages(self.stem(images))
