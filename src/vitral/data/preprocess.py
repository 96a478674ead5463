"""THE definition of how a picture becomes the model's input. It is stored with the weights.

Three stages: `stored` (a picture → uint8, small: what a pack holds), `centre` (the part that the model sees) and
`normalise` (uint8 → float). Training, evaluation and prediction use all three; training puts its augmentation in the
place of `centre`, and that is the only difference.
"""

import hashlib
import json
from typing import Self

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, StrictInt, model_validator
from torch import Tensor

from vitral.data.config import AnyResize, AsItIs, Interpolation, Jpeg, Pad, Profile, Resize, Scale
from vitral.data.decode import MOST_CHANNELS, MOST_PIXELS, Decoded, Picture, decode, in_mode
from vitral.errors import DataError
from vitral.settings import Settings

STAGE = 1  # goes up when `stored` gives other pixels than before


class Preprocess(Settings):
    """How a picture becomes the model's input.

    >>> preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.25,))
    >>> preprocess(np.full((20, 30), 255, np.uint8)).shape
    torch.Size([1, 8, 8])
    """

    image_size: tuple[StrictInt, StrictInt]
    channels: StrictInt
    background: StrictInt = Field(default=0, ge=0, le=255)
    resize: AnyResize = Resize()
    interpolation: Interpolation = "bicubic"
    jpeg: Jpeg = "full"
    profile: Profile = Field(default="ignore", exclude_if=lambda profile: profile == "ignore")  # came after format 1
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise ValueError(f"preprocess.channels is {self.channels}, and should be 1 to {MOST_CHANNELS}.")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"preprocess.mean and preprocess.std need {self.channels} numbers, one a channel.")
        if min(self.std) <= 0:
            raise ValueError("preprocess.std has a number that is not above 0.")
        if not all(1 <= side <= 8_192 for side in self.image_size):
            raise ValueError(f"preprocess.image_size {self.image_size} is not between 1 and 8,192 pixels a side.")
        return self

    @property
    def stored_size(self) -> tuple[int, int]:
        """Height and width of what `stored` gives: the image size, or more where the model sees a share of it."""
        # Only `crop` keeps a margin. What `shortest` scales has another size for each picture, and a pack needs one for
        # all; and where timm's centre begins one pixel further, all that takes the centre of a pack would have to know.
        share = self.resize.share if isinstance(self.resize, Resize) else 1.0
        height, width = (round(side / share) for side in self.image_size)
        return height, width

    @property
    def stage(self) -> str:
        """A word that is the same wherever `stored` gives the same pixels."""
        settings = self.model_dump(mode="json", include={"channels", "background", "interpolation", "jpeg", "profile"})
        resize = self.resize.kind if isinstance(self.resize, Resize) else self.resize.write()
        settings |= {"size": self.stored_size, "resize": resize, "by": [STAGE, PIL.__version__]}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    def __call__(self, picture: Picture) -> Tensor:
        """A picture as the model sees it: (C, H, W)."""
        return self.normalise(torch.from_numpy(self.resized(picture)))

    def resized(self, picture: Picture) -> NDArray[np.uint8]:
        """The part that the model sees, in 8 bits: (C, H, W)."""
        return np.ascontiguousarray(self.centre(self.stored(picture)))

    def stored(self, picture: Picture, name: str = "The picture") -> NDArray[np.uint8]:
        """First stage: uint8, (C, stored height, stored width)."""
        return self.fitted(decode(picture, name=name, at_least=self.at_least, profile=self.profile), name)

    @property
    def at_least(self) -> tuple[int, int] | None:
        """How small a JPEG may be decoded: twice the size needed leaves the filter enough to work with."""
        if self.jpeg == "full" or isinstance(self.resize, AsItIs):
            return None
        height, width = self.edges(self.resize) if isinstance(self.resize, Scale) else self.stored_size
        return 2 * height, 2 * width

    def fitted(self, decoded: Decoded, name: str = "The picture") -> NDArray[np.uint8]:
        """A decoded picture in the channels and size of the model: uint8, (C, stored height, stored width)."""
        height, width = self.stored_size
        layers = [self._resized(layer, name) for layer in self._in_channels(decoded, name)]
        pixels = [np.asarray(layer).reshape(height, width, -1) for layer in layers]  # (H, W, 1 or 3) each
        return np.ascontiguousarray(np.concatenate(pixels, axis=2).transpose(2, 0, 1))

    def centre(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Second stage: (…, stored height, stored width) → (…, H, W), a view."""
        (height, width), (tall, wide) = self.image_size, images.shape[-2:]
        top, left = (tall - height) // 2, (wide - width) // 2
        return images[..., top : top + height, left : left + width]

    def normalise(self, images: Tensor) -> Tensor:  # (…, C, H, W) of 0 to 255 → the same, float
        """Last stage: (pixel / 255 − mean) / std."""
        mean, std = (torch.tensor(numbers, device=images.device)[:, None, None] for numbers in (self.mean, self.std))
        return (images.to(mean.dtype) / 255 - mean) / std

    def _resized(self, image: Image.Image, name: str) -> Image.Image:
        height, width = self.stored_size
        if isinstance(self.resize, Scale):
            return self._cut(self._scaled(image, self.resize, name), self.resize)
        if image.size == (width, height):
            return image
        if isinstance(self.resize, AsItIs):
            raise DataError(
                f"{name} has {image.height} × {image.width} pixels, and the model takes {height} × {width}: "
                "its preprocessing does not resize."
            )
        if isinstance(self.resize, Pad):
            return self._padded(image)
        # The box is exact to fractions of a pixel: no rounded size in between, no off-by-one at the border.
        scale = min(image.width / width, image.height / height)
        left, top = max(0.0, image.width - width * scale) / 2, max(0.0, image.height - height * scale) / 2
        box = (left, top, image.width - left, image.height - top)
        return image.resize((width, height), self._filter, box=box)

    def _scaled(self, image: Image.Image, how: Scale, name: str) -> Image.Image:
        """All of the picture, in the whole pixels that transformers and torchvision count."""
        height, width = self.edges(how)
        if how.kind == "shortest":
            short, long = sorted(image.size)
            longer = int(height * long / short)
            height, width = (longer, height) if image.height > image.width else (height, longer)
        if height * width > MOST_PIXELS:
            raise DataError(f"{name} is {image.height} × {image.width}, and {height} × {width} once scaled: too large.")
        return image.resize((width, height), self._filter)

    def _cut(self, scaled: Image.Image, how: Scale) -> Image.Image:
        """The centre; where the picture is smaller than that, Pillow's `crop` puts zeros around it, as others do."""
        height, width = self.image_size
        left, top = _half(scaled.width - width, how), _half(scaled.height - height, how)
        return scaled.crop((left, top, left + width, top + height))

    def _padded(self, image: Image.Image) -> Image.Image:
        """All of the picture, as timm's `border` has it: whole pixels, and of an odd margin the larger half behind."""
        height, width = self.image_size
        times = max(image.height / height, image.width / width)
        inner = max(1, round(image.width / times)), max(1, round(image.height / times))
        whole = Image.new(image.mode, (width, height), (self.background,) * len(image.getbands()))
        whole.paste(image.resize(inner, self._filter), ((width - inner[0]) // 2, (height - inner[1]) // 2))
        return whole

    def edges(self, how: Scale) -> tuple[int, int]:
        """Height and width that a picture is stretched to; or, twice, what its shorter side becomes."""
        sides = self.image_size if how.kind == "stretch" else (min(self.image_size),) * 2
        height, width = (max(1, round(side / how.share)) for side in sides)
        return height, width

    @property
    def _filter(self) -> Image.Resampling:
        return Image.Resampling[self.interpolation.upper()]

    def _in_channels(self, decoded: Decoded, name: str) -> list[Image.Image]:
        """One picture in grey or colour; or one in grey for each band."""
        if self.channels in (1, 3):
            if isinstance(decoded, Image.Image):
                return [self._in_colours(decoded)]
        else:
            bands = np.asarray(decoded)
            if bands.ndim == 3 and bands.shape[2] == self.channels:
                return [Image.fromarray(np.ascontiguousarray(bands[:, :, band])) for band in range(self.channels)]
        channels = len(decoded.getbands()) if isinstance(decoded, Image.Image) else decoded.shape[2]
        raise DataError(f"{name} has {channels} channels, and the model takes {self.channels}.")

    def _in_colours(self, image: Image.Image) -> Image.Image:
        if image.mode in ("LA", "RGBA"):
            behind = Image.new("RGBA", image.size, (self.background,) * 3 + (255,))
            image = Image.alpha_composite(behind, image.convert("RGBA"))
        return in_mode(image, "L" if self.channels == 1 else "RGB")


def _half(margin: int, how: Scale) -> int:
    """Where the centre begins. An odd margin is where the libraries differ; below 0 the picture is smaller."""
    if how.rounding == "down":
        return margin // 2
    return round(margin / 2) if margin > 0 else -(-margin // 2)
