"""THE definition of how a picture becomes the model's input. It is stored with the weights.

Two stages: `resized` (a picture → uint8, small) and `normalise` (uint8 → float). Training, evaluation and prediction
use both; training puts its augmentation between them, and that is the only difference.
"""

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, StrictInt, model_validator
from torch import Tensor

from vitral.data.config import Interpolation, Resize
from vitral.data.decode import Picture, decode
from vitral.settings import Settings


class Preprocess(Settings):
    """How a picture becomes the model's input.

    >>> preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.25,))
    >>> preprocess(np.full((20, 30), 255, np.uint8)).shape
    torch.Size([1, 8, 8])
    """

    image_size: tuple[StrictInt, StrictInt]
    channels: StrictInt
    background: StrictInt = Field(default=0, ge=0, le=255)
    resize: Resize = Resize()
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.channels not in (1, 3):
            raise ValueError(
                f"preprocess.channels is {self.channels}: pictures become 1 (grey) or 3 (colour) channels."
            )
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"preprocess.mean and preprocess.std need {self.channels} numbers, one a channel.")
        if min(self.std) <= 0:
            raise ValueError("preprocess.std has a number that is not above 0.")
        if not all(1 <= side <= 8_192 for side in self.image_size):
            raise ValueError(f"preprocess.image_size {self.image_size} is not between 1 and 8,192 pixels a side.")
        return self

    def __call__(self, picture: Picture) -> Tensor:
        """A picture as the model sees it: (C, H, W)."""
        return self.normalise(torch.from_numpy(self.resized(picture)))

    def resized(self, picture: Picture) -> NDArray[np.uint8]:
        """First stage: uint8, (C, H, W)."""
        image = self._in_channels(decode(picture))
        height, width = self.image_size
        if image.size != (width, height):
            # The box is exact to fractions of a pixel: no rounded size in between, no off-by-one at the border.
            scale = min(image.width / width, image.height / height)
            left, top = max(0.0, image.width - width * scale) / 2, max(0.0, image.height - height * scale) / 2
            box = (left, top, image.width - left, image.height - top)
            image = image.resize((width, height), Image.Resampling[self.interpolation.upper()], box=box)
        pixels = np.array(image)  # (H, W) or (H, W, 3)
        return np.ascontiguousarray(pixels.reshape(height, width, self.channels).transpose(2, 0, 1))

    def normalise(self, images: Tensor) -> Tensor:  # (…, C, H, W) of 0 to 255 → the same, float
        """Second stage: (pixel / 255 − mean) / std."""
        mean, std = (torch.tensor(numbers, device=images.device)[:, None, None] for numbers in (self.mean, self.std))
        return (images.to(mean.dtype) / 255 - mean) / std

    def _in_channels(self, image: Image.Image) -> Image.Image:
        if image.mode in ("LA", "RGBA"):
            behind = Image.new("RGBA", image.size, (self.background,) * 3 + (255,))
            image = Image.alpha_composite(behind, image.convert("RGBA"))
        return image.convert("L" if self.channels == 1 else "RGB")
