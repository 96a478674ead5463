"""What can be asked of the data: words and settings, validated. Imports no torch."""

from typing import Literal

from pydantic import Field, StrictInt

from vitral.settings import Part, Settings

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]  # Pillow's names


class Resize(Part):
    """`crop`: the largest centred rectangle with the shape of the output, scaled to it."""

    kind: Literal["crop"] = "crop"


class Augment(Settings):
    """How far each training picture may be changed, either way; all by one resampling."""

    rotate: float = Field(
        default=0.0, ge=0, le=180, description="training pictures are turned by up to this many degrees"
    )
    zoom: float = Field(default=0.0, ge=0, lt=1, description="scaled by up to this share")
    shear: float = Field(default=0.0, ge=0, lt=90, description="slanted by up to this many degrees")
    shift: float = Field(default=0.0, ge=0, le=1, description="moved by up to this share of the side, down and across")


class Data(Settings):
    """The table `[data]` of a recipe."""

    source: str = Field(default="ask", description="the pictures: digits")
    background: StrictInt = Field(
        default=0, ge=0, le=255, description="grey level behind transparent pixels, 0 is black"
    )
    resize: Resize = Field(default=Resize(), description="crop: the largest centred part that fits")
    interpolation: Interpolation = Field(default="bicubic", description="Pillow's filter: box, bilinear, bicubic, …")
    augment: Augment = Augment()
