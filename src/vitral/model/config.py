"""What a ViT is: every part's words and settings, validated. Imports no torch.

`ViTConfig()` is the paper's ViT-B/16. Config and weights together are the model, so they are stored together.
"""

from typing import Literal, Self

from pydantic import Field, StrictInt, model_validator

from vitral.errors import RecipeError
from vitral.settings import Part, Settings, unknown


class Positions(Part):
    """Where each token stands: `learned` is a table of one row a token, resampled for other grids."""

    kind: Literal["learned"] = "learned"
    std: float = Field(default=0.02, ge=0, description="spread of the numbers that the table starts with")


class Mlp(Part):
    """What each block does to a token by itself: `gelu` is two layers with erf-GELU between."""

    kind: Literal["gelu"] = "gelu"
    ratio: float = Field(default=4.0, gt=0, le=64, description="hidden size over width, rounded to a whole number")


class ViTConfig(Settings):
    """A Vision Transformer in one frozen object.

    >>> ViTConfig(image_size=32, patch_size=4).grid
    (8, 8)
    """

    kind: Literal["vit"] = Field(default="vit", description="the architecture")
    image_size: StrictInt | tuple[StrictInt, StrictInt] = Field(
        default=224, description="pixels a side, or [height, width]"
    )
    patch_size: StrictInt = Field(default=16, ge=1, description="P: pixels a side of a patch; divides image_size")
    channels: StrictInt = Field(
        default=3, ge=0, le=1024, description="C: 1 grey, 3 colour; 0 in a recipe: as the data has"
    )
    width: StrictInt = Field(default=768, ge=1, le=65_536, description="D: the size of a token")
    depth: StrictInt = Field(default=12, ge=1, le=1_000, description="L: the number of blocks")
    heads: StrictInt = Field(default=12, ge=1, description="heads of attention; divides width")
    classes: StrictInt = Field(
        default=1000, ge=0, le=10_000_000, description="how many; 0 in a recipe: as the data has"
    )
    positions: Positions = Field(
        default=Positions(), description="learned: a row a token; std: its spread at the start"
    )
    mlp: Mlp = Field(default=Mlp(), description="gelu, or {kind = 'gelu', ratio = 4.0}")

    @classmethod
    def named(cls, name: str, image_size: int | tuple[int, int] = 224, channels: int = 3, classes: int = 1000) -> Self:
        """A size of the paper's table 1 (and the two smaller ones that came later) with any patch.

        >>> ViTConfig.named("B/16") == ViTConfig()
        True
        """
        size, _, patch = name.partition("/")
        if size not in SIZES or not patch.isdecimal():
            raise RecipeError(unknown(name, [f"{known}/{p}" for known in SIZES for p in (16, 14, 32)], "size"))
        width, depth, heads = SIZES[size]
        return cls(
            image_size=image_size,
            patch_size=int(patch),
            channels=channels,
            width=width,
            depth=depth,
            heads=heads,
            classes=classes,
        )

    @property
    def height_width(self) -> tuple[int, int]:
        """The image size as (height, width)."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches: (down, across)."""
        height, width = self.height_width
        return height // self.patch_size, width // self.patch_size

    @property
    def mlp_size(self) -> int:
        """The hidden size of the MLP."""
        return round(self.width * self.mlp.ratio)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for side in self.height_width:
            if not 1 <= side <= 65_536:
                raise ValueError(f"model.image_size {side} is not between 1 and 65,536 pixels.")
            if side % self.patch_size:
                raise ValueError(
                    f"model.patch_size {self.patch_size} does not divide model.image_size {side}. "
                    f"{_divisors(side)} do. Set model.patch_size=… or choose another model.image_size."
                )
        if self.mlp_size < 1:
            raise ValueError(f"model.mlp.ratio {self.mlp.ratio} of model.width {self.width} leaves nothing.")
        if self.width % self.heads:
            raise ValueError(
                f"model.heads {self.heads} does not divide model.width {self.width}. "
                f"{_divisors(self.width)} do. Set model.heads=… or choose another model.width."
            )
        return self


# name: width, depth, heads. B, L and H are the paper's table 1; Ti and S are DeiT's.
SIZES = {
    "Ti": (192, 12, 3),
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}


def _divisors(number: int) -> str:
    divisors = [str(n) for n in range(1, number + 1) if number % n == 0]
    return ", ".join(divisors if len(divisors) <= 12 else [*divisors[:6], "…", *divisors[-5:]])
