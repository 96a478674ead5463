"""Blocks of PyTorch's own, which multiply by their matrices without calling the layers that hold them."""

from torch import Tensor, nn

from vitral.model.config import ModelConfig, Regularise
from vitral.model.interface import Model


class EncoderConfig(ModelConfig):
    image_size: int = 8
    channels: int = 3
    classes: int = 10

    @property
    def stride(self) -> int:
        return 2


class Encoder(Model):
    config: EncoderConfig

    def __init__(self, config: EncoderConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Conv2d(config.channels, 16, 2, 2)
        self.blocks = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True))
        self.head = nn.Linear(16, config.classes)

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        tokens: Tensor = self.blocks(self.embed(images).flatten(2).transpose(1, 2))
        return tokens
