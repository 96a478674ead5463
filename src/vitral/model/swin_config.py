"""What a Swin Transformer is: its settings, validated. Imports no torch; the model is in swin.py."""

from typing import Literal, Self

from pydantic import Field, StrictBool, StrictInt, model_validator

from vitral.errors import RecipeError
from vitral.model.config import ImageSize, Mlp, ModelConfig
from vitral.settings import unknown

Pair = tuple[int, int]  # (down, across)


class SwinConfig(ModelConfig):
    """A Swin Transformer in one frozen object; by default Swin-T at 224 pixels.

    >>> SwinConfig().grids
    ((56, 56), (28, 28), (14, 14), (7, 7))
    """

    kind: Literal["swin"] = Field(default="swin", description="the architecture")
    image_size: ImageSize = Field(default=224, description="pixels a side, or [height, width]")
    patch_size: StrictInt = Field(default=4, ge=1, le=1024, description="P: pixels a side of a patch")
    channels: StrictInt = Field(
        default=3, ge=0, le=1024, description="C: 1 grey, 3 colour; 0 in a recipe: as the data has"
    )
    width: StrictInt = Field(
        default=96, ge=1, le=65_536, description="D: the size of a token in the first stage; it doubles with each"
    )
    depths: tuple[StrictInt, ...] = Field(
        default=(2, 2, 6, 2), min_length=1, max_length=8, description="how many blocks each stage has"
    )
    heads: tuple[StrictInt, ...] = Field(
        default=(3, 6, 12, 24), min_length=1, max_length=8, description="heads of attention in each stage"
    )
    window: StrictInt | tuple[StrictInt, ...] = Field(
        default=7, description="M: tokens a side of a window; or a number for each stage"
    )
    classes: StrictInt = Field(
        default=1000, ge=0, le=10_000_000, description="how many; 0 in a recipe: as the data has"
    )
    mlp: Mlp = Field(default=Mlp(), description="gelu, gelu-tanh or gelu-quick; ratio = 4.0")
    bias: StrictBool = Field(default=True, description="of queries, keys and values; in version 2 keys have none")
    version: Literal[1, 2] = Field(
        default=1, description="2: attention by cosine, a bias computed from distances, and norms after (Swin V2)"
    )
    trained_windows: tuple[StrictInt, ...] = Field(
        default=(), description="of version 2: the windows that its distances are measured by; []: its own"
    )
    borders: Literal["timm", "transformers"] = Field(
        default="timm", description="how windows fit a map that they do not divide: as these libraries do it"
    )

    head: Literal["linear", "none"] = Field(default="linear", description="linear or none")

    @classmethod
    def named(cls, name: str, image_size: ImageSize = 224, channels: int = 3, classes: int = 1000) -> Self:
        """A size of the paper: T, S, B or L.

        >>> SwinConfig.named("T") == SwinConfig()
        True
        """
        if name not in SIZES:
            raise RecipeError(unknown(name, list(SIZES), "size"))
        width, depths, heads = SIZES[name]
        return cls(image_size=image_size, channels=channels, classes=classes, width=width, depths=depths, heads=heads)

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return sum(self.depths)

    @property
    def windows(self) -> tuple[int, ...]:
        """M of each stage."""
        return (self.window,) * len(self.depths) if isinstance(self.window, int) else self.window

    @property
    def widths(self) -> tuple[int, ...]:
        """The size of a token in each stage."""
        return tuple(self.width * 2**stage for stage in range(len(self.depths)))

    @property
    def grids(self) -> tuple[Pair, ...]:
        """The map of each stage, for images of `image_size`."""
        return self.grids_of(self.height_width)

    def grids_of(self, height_width: Pair) -> tuple[Pair, ...]:
        """The map of each stage for images of this size: patches, then half as many each way, rounded up."""
        up = self.borders == "transformers"  # which pads an image to whole patches; timm drops what is left
        first = [-(-side // self.patch_size) if up else side // self.patch_size for side in height_width]
        down, across = ([-(-side // 2**stage) for stage in range(len(self.depths))] for side in first)
        return tuple(zip(down, across, strict=True))

    @property
    def cell(self) -> int:
        return self.patch_size * 2 ** (len(self.depths) - 1)

    def windowing(self, stage: int, grid: Pair) -> tuple[Pair, Pair]:
        """The window of a stage on a map of this grid, and by how much it shifts in every second block; each
        (down, across). A window is no larger than the map, and one that is as large has nowhere to shift."""
        M, sides = self.windows[stage], grid
        if self.borders == "transformers":  # which takes one side for both: the smaller one, or that of its own size
            side = self.grids[stage][0] if self.version == 2 else min(grid)
            sides = (side, side)
        down, across = sides
        return (min(M, down), min(M, across)), (M // 2 * (down > M), M // 2 * (across > M))

    @property
    def divides(self) -> bool:
        """Whether patches and windows divide an image of `image_size`, so that `borders` makes no difference there."""
        others = [self.model_copy(update={"borders": borders}) for borders in ("timm", "transformers")]
        if any(side % self.patch_size for side in self.height_width):
            return False
        for stage, grid in enumerate(self.grids):
            (size, shift), other = (one.windowing(stage, grid) for one in others)
            if (size, shift) != other or any(side % part for side, part in zip(grid, size, strict=True)):
                return False
        return True

    @property
    def block_count(self) -> int:
        return self.depth

    @property
    def words(self) -> str:
        blocks, version = " + ".join(map(str, self.depths)), " V2" if self.version == 2 else ""
        windows = ", ".join(f"{M}×{M}" for M in dict.fromkeys(self.windows))
        widths = " to ".join(map(str, dict.fromkeys((self.widths[0], self.widths[-1]))))
        return f"Swin Transformer{version}, {blocks} blocks of width {widths}, windows of {windows}"

    @property
    def has_classes(self) -> bool:
        return self.head == "linear"

    def with_classes(self, classes: int) -> Self:
        return type(self).read({**self.write(), "classes": classes, "head": "linear"}, "model.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        stages = len(self.depths)
        if len(self.heads) != stages or any(count < 1 for count in (*self.depths, *self.heads)):
            raise ValueError(
                f"model.heads and model.depths take a number from 1 for each stage, and depths has {stages}."
            )
        if len(self.windows) != stages or not all(1 <= window <= 1024 for window in self.windows):
            raise ValueError(f"model.window is a number from 1 to 1,024, or one for each of {stages} stages.")
        for side in self.height_width:
            if not self.patch_size <= side <= 65_536:
                raise ValueError(
                    f"model.image_size {side} is not between model.patch_size {self.patch_size} and 65,536 pixels."
                )
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads:
                raise ValueError(
                    f"model.heads {heads} does not divide the width {width} of its stage: choose others, or another "
                    "model.width."
                )
            if round(width * self.mlp.ratio) < 1:
                raise ValueError(f"model.mlp.ratio {self.mlp.ratio} of the width {width} leaves nothing.")
        if self.head == "none" and self.classes:
            raise ValueError("model.head none has no classes: set model.classes=0.")
        if self.mlp.kind == "swiglu":
            raise ValueError("model.mlp swiglu is none of a Swin: set model.mlp=gelu.")
        if self.trained_windows and (self.version == 1 or len(self.trained_windows) != stages):
            raise ValueError(f"model.trained_windows is of version 2, with a number for each of {stages} stages.")
        return self


# name: width, depths, heads, as in the paper's section 3.3
SIZES = {
    "T": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "S": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "B": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "L": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}
SWINS = tuple(f"swin-{size}" for size in SIZES)  # where T alone would say too little
