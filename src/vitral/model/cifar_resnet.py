"""A CNN to learn from: the ResNet of He et al. 2016 for CIFAR. It teaches, and nothing here trains it; the ResNet that
learns is BiT's, in resnet.py.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vitral.errors import WeightsError


class BasicBlock(nn.Module):
    """Two convolutions, and around them what came in: of every second pixel, with zeros for new channels, where the
    shape changes."""

    def __init__(self, takes: int, gives: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(takes, gives, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(gives)
        self.conv2 = nn.Conv2d(gives, gives, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(gives)
        self.stride, self.more = stride, (gives - takes) // 2

    def forward(self, x: Tensor) -> Tensor:  # (B, takes, H, W) → (B, gives, H/stride, W/stride)
        around = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more, self.more))
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + around)


class CifarResNet(nn.Module):
    """Three stages of equally many blocks, with 16, 32 and 64 channels. It takes pixels from 0 to 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, blocks: int, classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for number, (takes, gives) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
            first = BasicBlock(takes, gives, stride=1 if number == 1 else 2)
            rest = (BasicBlock(gives, gives, stride=1) for _ in range(blocks - 1))
            self.add_module(f"layer{number}", nn.Sequential(first, *rest))
        self.linear = nn.Linear(64, classes)
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def features(self, images: Tensor) -> Tensor:  # → (B, 64, H/4, W/4)
        """The channels of the last stage at each place."""
        x = relu(self.bn1(self.conv1((images - self.mean) / self.std)))
        for number in (1, 2, 3):
            x = getattr(self, f"layer{number}")(x)
        return x

    def forward(self, images: Tensor) -> Tensor:  # → (B, classes)
        return self.linear(self.features(images).mean(dim=(2, 3)))


def is_cifar_resnet(tensors: Mapping[str, Tensor]) -> bool:
    """Whether tensors are those of a ResNet, by their names."""
    return {"conv1.weight", "layer3.0.conv1.weight", "linear.weight"} <= tensors.keys()


def cifar_resnet_of(tensors: Mapping[str, Tensor], mean: tuple[float, ...], std: tuple[float, ...]) -> CifarResNet:
    """The network that these tensors belong to."""
    blocks = 1 + max(int(match[1]) for name in tensors if (match := re.match(r"layer1\.(\d+)\.", name)))
    model = CifarResNet(blocks, len(tensors["linear.weight"]), mean, std)
    try:
        missing, extra = model.load_state_dict(dict(tensors), strict=False)
    except RuntimeError as error:
        raise WeightsError(f"The tensors are not those of a ResNet for CIFAR ({str(error).splitlines()[0]})") from None
    if extra or any(not name.endswith("num_batches_tracked") for name in missing):
        raise WeightsError(f"The tensors are not those of a ResNet for CIFAR: {(extra or missing)[0]}.")
    return _faster(model.eval())


def _faster(model: CifarResNet) -> CifarResNet:
    """The same answers sooner (240 pictures a second on one core became 410): each norm becomes part of the convolution
    before it, and channels lie side by side in memory."""
    for part in (model, *(block for block in model.modules() if isinstance(block, BasicBlock))):
        for conv, bn in (("conv1", "bn1"), ("conv2", "bn2")):
            if hasattr(part, conv):
                setattr(part, conv, fuse_conv_bn_eval(getattr(part, conv), getattr(part, bn)))
                setattr(part, bn, nn.Identity())
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
