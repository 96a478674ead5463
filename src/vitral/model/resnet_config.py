"""What a ResNet is: its words and settings, validated. Imports no torch."""

from typing import Literal, Self

from pydantic import Field, StrictInt, model_validator

from vitral.errors import RecipeError
from vitral.model.config import Depths, ImageSize, ModelConfig, Widths, check_resnet, resnet_widths
from vitral.settings import unknown


class ResNetConfig(ModelConfig):
    """A ResNet as BiT has it, in one frozen object; `ResNetConfig()` is R50x1.

    >>> ResNetConfig(depths=(2, 2)).all_widths
    (64, 256, 512)
    """

    kind: Literal["resnet"] = Field(default="resnet", description="the architecture: resnet, as in BiT")
    image_size: ImageSize = Field(default=224, description="pixels a side, or [height, width]; any will do")
    channels: StrictInt = Field(
        default=3, ge=0, le=1024, description="C: 1 grey, 3 colour; 0 in a recipe: as the data has"
    )
    depths: Depths = Field(default=(3, 4, 6, 3), min_length=1, description="how many blocks each stage has")
    widths: Widths = Field(
        default=(), description="channels after the stem and after each stage; []: 64, 256, 512, 1024, 2048"
    )
    stem: Literal["7x7", "3x3"] = Field(
        default="7x7", description="7x7 of stride 2, then a max pool; or 3x3, for pictures of about 32 pixels"
    )
    groups: StrictInt = Field(default=32, ge=1, description="of channels in every GroupNorm; divides all widths")
    weight_eps: float = Field(default=1e-8, gt=0, lt=1, description="added to the variance of a filter")
    classes: StrictInt = Field(
        default=1000, ge=0, le=10_000_000, description="how many; 0 in a recipe: as the data has"
    )
    head: Literal["linear", "none"] = Field(default="linear", description="linear or none")

    @classmethod
    def named(cls, name: str, image_size: int | tuple[int, int] = 224, channels: int = 3, classes: int = 1000) -> Self:
        """A ResNet of the paper's table 3, and its like: so many layers, x, so many times as wide.

        >>> ResNetConfig.named("R50x1") == ResNetConfig()
        True
        """
        layers, _, times = name.removeprefix("R").partition("x")
        if not name.startswith("R") or layers not in LAYERS or times not in ("1", "2", "3", "4"):
            raise RecipeError(unknown(name, list(RESNETS), "size"))
        widths = tuple(int(times) * width for width in resnet_widths(LAYERS[layers], ())) if times != "1" else ()
        return cls(image_size=image_size, channels=channels, classes=classes, depths=LAYERS[layers], widths=widths)

    @property
    def all_widths(self) -> tuple[int, ...]:
        """Channels after the stem and after each stage."""
        return resnet_widths(self.depths, self.widths)

    @property
    def cell(self) -> int:
        return (4 if self.stem == "7x7" else 1) * 2 ** (len(self.depths) - 1)

    @property
    def block_count(self) -> int:
        return sum(self.depths)

    @property
    def has_classes(self) -> bool:
        return self.head == "linear"

    @property
    def words(self) -> str:
        layers = 2 + 3 * self.block_count  # the stem, three convolutions a block, the head
        return f"ResNet of {layers} layers, {self.all_widths[-1]} channels at the end"

    def with_classes(self, classes: int) -> Self:
        return type(self).read({**self.write(), "classes": classes, "head": "linear"}, "model.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for side in self.height_width:
            if not 1 <= side <= 65_536:
                raise ValueError(f"model.image_size {side} is not between 1 and 65,536 pixels.")
        check_resnet("model", self.depths, self.widths, self.groups)
        if self.head == "none" and self.classes:
            raise ValueError("model.head none has no classes: set model.classes=0.")
        return self


LAYERS = {"26": (2, 2, 2, 2), "50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
RESNETS = ("R50x1", "R50x2", "R101x1", "R152x1", "R152x2")  # of table 3
