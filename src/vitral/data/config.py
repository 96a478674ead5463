"""The settings of the data, validated. Imports no torch."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from vitral.plugin import is_plugin
from vitral.settings import Part, Settings, as_table

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]  # Pillow's names
Jpeg = Literal["full", "scaled"]
Profile = Literal["ignore", "srgb"]
Rounding = Literal["down", "even"]
Share = Annotated[float, Field(ge=0, le=1)]


class Resize(Part):
    """`crop`: the largest centred rectangle with the shape of the output, scaled to it.

    With a share below 1 the scaled picture is larger, and the model sees the centre of it: this share of each side.
    Training may crop from all of it.
    """

    kind: Literal["crop"] = "crop"
    share: float = Field(default=1.0, ge=0.25, le=1)


class Scale(Part):
    """As other libraries do it: all of the picture is scaled to whole pixels, then the centre is cut out.

    `stretch`: to the height and width of the output, whatever its shape was; `shortest`: its shorter side to the
    shorter one of the output. With a share below 1 it is scaled to more, and the model sees this share of each side;
    with one above 1 it is scaled to less, and zeros are put around it.
    """

    kind: Literal["stretch", "shortest"] = "stretch"
    share: float = Field(default=1.0, ge=0.1, le=10)
    rounding: Rounding = "down"  # of half an odd margin: transformers', or torchvision's and timm's


class Pad(Part):
    """`pad`: all of the picture in its shape, its longer side to the output's, in the middle of `background`."""

    kind: Literal["pad"] = "pad"


class AsItIs(Part):
    """`none`: a picture must have the size already."""

    kind: Literal["none"] = "none"


AnyResize = Annotated[Resize | Scale | Pad | AsItIs, Field(discriminator="kind"), BeforeValidator(as_table)]


class Policy(Part):
    """`three`: DeiT III's 3-Augment; `trivial`: TrivialAugment."""

    kind: Literal["none", "three", "trivial"] = "none"


class RandAugment(Part):
    """Some operations out of fourteen, in a random order, each as strong as `magnitude` says (0 to 30)."""

    kind: Literal["rand"] = "rand"
    operations: StrictInt = Field(default=2, ge=1, le=8)
    magnitude: float = Field(default=9.0, ge=0, le=30)


class Augment(Settings):
    """How training pictures are changed, each time anew. All geometry is one resampling."""

    crop: Share = Field(default=0.0, description="a random part of at least this share of the area; 0: all of it")
    crop_most: Share = Field(
        default=1.0,
        exclude_if=lambda share: share == 1.0,  # it came after format 1
        description="and of at most this share",
    )
    rotate: float = Field(
        default=0.0, ge=0, le=180, description="training pictures are turned by up to this many degrees"
    )
    zoom: float = Field(default=0.0, ge=0, lt=1, description="scaled by up to this share")
    shear: float = Field(default=0.0, ge=0, lt=90, description="slanted by up to this many degrees")
    shift: float = Field(default=0.0, ge=0, le=1, description="moved by up to this share of the side, down and across")
    pad: StrictInt = Field(default=0, ge=0, le=4096, description="moved by up to this many whole pixels")
    flip: Literal["none", "random", "alternating"] = Field(
        default="none", description="left to right: at random, or every other epoch"
    )
    outside: Literal["background", "mirror"] = Field(default="background", description="what comes in from outside")
    brightness: Share = Field(default=0.0, description="brightness changes by up to this share")
    contrast: Share = Field(default=0.0, description="contrast, likewise")
    saturation: Share = Field(default=0.0, description="saturation, likewise")
    hue: float = Field(default=0.0, ge=0, le=0.5, description="hue turns by up to this share of the circle")
    grayscale: Share = Field(default=0.0, description="share of the pictures that lose their colour")
    solarize: Share = Field(default=0.0, description="share of the pictures whose bright half is inverted")
    blur: Share = Field(default=0.0, description="share of the pictures that are blurred")
    policy: Annotated[Policy | RandAugment, Field(discriminator="kind"), BeforeValidator(as_table)] = Field(
        default=Policy(), description="none, three (3-Augment), rand (RandAugment) or trivial (TrivialAugment)"
    )
    erase: Share = Field(default=0.0, description="share of the pictures that have a rectangle replaced by noise")
    mixup: float = Field(default=0.0, ge=0, le=10, description="blend with another: alpha of the Beta distribution")
    cutmix: float = Field(default=0.0, ge=0, le=10, description="or paste a part of another: alpha")
    repeats: StrictInt = Field(default=1, ge=1, le=16, description="copies of each picture in a batch")
    own: str = Field(
        default="none",
        exclude_if=lambda own: own == "none",  # it came after format 1
        description="and then a function in a Python file of your own: mine.py:noise",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.own != "none" and not is_plugin(self.own):
            raise ValueError(
                f"data.augment.own is {self.own}, and should be none, or a function in a Python file: mine.py:noise."
            )
        if self.crop > self.crop_most or (self.crop == 0 and self.crop_most < 1):
            raise ValueError(
                f"data.augment.crop_most is {self.crop_most:g}, and data.augment.crop {self.crop:g}: a part has at "
                "least the one share of the picture and at most the other, and crop=0 takes no part."
            )
        return self


class Data(Settings):
    """The table `[data]` of a recipe."""

    source: str = Field(
        default="ask",
        description="a folder, a CSV or JSONL file, a zip or tar, shards:FOLDER, or a named set (vitral fetch)",
    )
    target: str = Field(
        default="auto",
        exclude_if=lambda target: target == "auto",  # it came after format 1
        description="what is learnt: class, labels (several a picture), a column of the table, or several: digit,high",
    )
    directory: str = Field(
        default="auto",
        description="where named sets and packs are, torchvision's too; auto: VITRAL_DATA, or the user's cache",
    )
    cache: str = Field(
        default="auto",
        exclude_if=lambda cache: cache == "auto",  # it came after format 1
        description="bytes on disk for shards that lie elsewhere: 20GB, or none; auto: VITRAL_CACHE, or 32GB at most",
    )
    validation: Share | Literal["auto"] = Field(
        default="auto", description="share of train held out; auto: 0.1 where there is none, 0 for official sets"
    )
    group_by: str = Field(
        default="none", description="pictures of one group stay on one side: a pattern for the path, or a column"
    )
    split_seed: StrictInt = Field(default=0, ge=0, le=2**63 - 1, description="behind the splits that are made")
    labelled: float = Field(
        default=1.0,
        gt=0,
        le=1,
        exclude_if=lambda share: share == 1.0,  # it came after format 1
        description="share of the pictures to learn from whose labels are known; vitral pretrain learns from all",
    )
    shards: Literal["stream", "pack"] = Field(
        default="stream",
        exclude_if=lambda how: how == "stream",  # it came after format 1
        description="of shards: pictures are decoded as they are asked for, or packed once, where a disk can hold that",
    )
    window: StrictInt = Field(
        default=64,
        ge=1,
        exclude_if=lambda window: window == 64,  # it came after format 1
        description="of shards: pictures are mixed within so many runs of 4 MiB, taken from everywhere",
    )
    sampling: Literal["all", "balanced"] = Field(
        default="all", description="an epoch has every picture once, or every class equally often"
    )
    background: StrictInt = Field(
        default=0, ge=0, le=255, description="grey level behind transparent pixels, 0 is black"
    )
    resize: AnyResize = Field(
        default=Scale(),
        description="stretch: all of the picture, as every library can do it; or shortest, pad, crop, none",
    )
    interpolation: Interpolation = Field(default="bicubic", description="Pillow's filter: box, bilinear, bicubic, …")
    jpeg: Jpeg = Field(
        default="full", description="scaled: large JPEGs are decoded at 1/2, 1/4 or 1/8, at least twice the size needed"
    )
    profile: Profile = Field(
        default="ignore",
        exclude_if=lambda profile: profile == "ignore",  # it came after format 1
        description="srgb: colours as the file's ICC profile means them, such as a telephone's Display P3",
    )
    mean: tuple[float, ...] | Literal["auto"] = Field(
        default="auto", description="one number a channel; auto: measured on the training pictures"
    )
    std: tuple[Annotated[float, Field(gt=0)], ...] | Literal["auto"] = Field(default="auto", description="likewise")
    augment: Augment = Augment()
