"""The teacher's architecture as a model that learns from nothing: a kind of one's own (docs/own.md).

    vitral train cifar10 model.kind=benchmarks/resnet.py:CifarResNet train.optimizer=sgd train.patches=fixed

The ResNet of He et al. 2016 for CIFAR (arXiv:1512.03385): three stages of `stage` blocks each, with 16, 32 and 64
channels. With 3 it is their ResNet-20, with 9 the ResNet-56 that teaches in `cifar10-distilled`.
"""

from torch import Tensor, nn
from torch.nn.functional import relu

from vitral.model.cifar_resnet import BasicBlock
from vitral.model.config import ImageSize, ModelConfig, Regularise
from vitral.model.interface import Model


class CifarResNetConfig(ModelConfig):
    image_size: ImageSize = 32
    channels: int = 3
    classes: int = 10
    stage: int = 3  # blocks in each of the three stages

    @property
    def stride(self) -> int:
        return 4


class CifarResNet(Model):
    config: CifarResNetConfig

    def __init__(self, config: CifarResNetConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv2d(config.channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        gives = [16] * config.stage + [32] * config.stage + [64] * config.stage
        takes = [16, *gives]
        self.blocks = nn.Sequential(
            *(BasicBlock(a, b, stride=b // a) for a, b in zip(takes, gives, strict=False))  # the size halves, once each
        )
        self.head = nn.Linear(64, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al. 2015, arXiv:1502.01852
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, H/4·W/4, 64)
        x = self.blocks(relu(self.bn1(self.conv1(images))))  # (B, 64, H/4, W/4)
        return x.flatten(2).transpose(1, 2)
