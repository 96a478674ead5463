"""A model that ends its process on a white picture, and takes its time on a grey one."""

import os
import signal
import time

from torch import Tensor, nn

from vitral.model.config import ImageSize, ModelConfig, Regularise
from vitral.model.interface import Model


class MortalConfig(ModelConfig):
    image_size: ImageSize = 8
    channels: int = 1
    classes: int = 10

    @property
    def stride(self) -> int:
        return 1


class Mortal(Model):
    config: MortalConfig

    def __init__(self, config: MortalConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.config = config
        size = config.image_size if isinstance(config.image_size, tuple) else (config.image_size,) * 2
        self.blocks = nn.Sequential(nn.Flatten(), nn.Linear(config.channels * size[0] * size[1], 16), nn.GELU())
        self.head = nn.Linear(16, config.classes)

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, 1, D)
        alike = images.flatten(1).amax(dim=1) == images.flatten(1).amin(dim=1)  # (B,) all pixels of a picture
        level = images.flatten(1).mean(dim=1)
        if (alike & (level > 1)).any():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05 * int((alike & (level > 0)).sum()))
        tokens: Tensor = self.blocks(images)[:, None]
        return tokens
