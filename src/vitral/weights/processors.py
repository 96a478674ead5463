"""How other libraries turn a picture into pixels: read into our Preprocess, and written for transformers.

They scale with Pillow in 8 bits, cut out the centre and normalise in float32, and so do we: the same numbers, to the
bit. (What transformers calls Fast scales with torchvision instead, and gives numbers of its own; so does its processor
of DINOv3, which is read as its nearest with Pillow.) Only transparent pictures may differ: transformers 5 puts them on
white; earlier versions and timm drop the transparency.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from PIL import Image

from vitral.data.config import AnyResize, AsItIs, Interpolation, Pad, Resize, Rounding, Scale
from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError, WeightsError

_MOST = 8_192  # pixels per side
_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_DINOV3 = {"image_mean": _IMAGENET["mean"], "image_std": _IMAGENET["std"]}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_ALL = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}
_CENTRE = {"do_center_crop": True, "crop_size": 224}
# What a preprocessor_config.json that leaves a name out means by it: the class has the default.
_PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": _ALL | _HALF | {"resample": 2, "size": {"height": 224, "width": 224}},
    "DeiT": _ALL | _HALF | _CENTRE | {"resample": 3, "size": {"height": 256, "width": 256}},
    "Beit": _ALL | _HALF | {"resample": 3, "size": {"height": 224, "width": 224}, "crop_size": 224},
    "Siglip": _ALL | _HALF | {"resample": 3, "size": {"height": 224, "width": 224}, "do_convert_rgb": True},
    "Bit": _ALL | _CLIP | _CENTRE | {"resample": 3, "size": {"shortest_edge": 224}, "do_convert_rgb": True},
    "CLIP": _ALL | _CLIP | _CENTRE | {"resample": 3, "size": {"shortest_edge": 224}, "do_convert_rgb": True},
    "DINOv3ViT": _ALL | _DINOV3 | {"resample": 2, "size": {"height": 224, "width": 224}},
    "ConvNext": _ALL | _HALF | {"resample": 3, "size": {"shortest_edge": 384}, "crop_pct": 224 / 256},
}
_SQUARE = ("ViT", "DeiT", "Beit", "DINOv3ViT")  # to them a size of 224 is 224 × 224; to the others, the shorter side


def read_processor(values: Mapping[str, Any], image_size: tuple[int, int]) -> Preprocess:
    """The Preprocess of a preprocessor_config.json of transformers. `image_size` is the model's: it counts only where
    the processor does not resize.

    >>> read_processor({"image_processor_type": "BitImageProcessor", "size": 256}, (224, 224)).resize
    Scale(kind='shortest', share=0.875, rounding='down')
    """
    kind = _kind(values)
    settings = _PROCESSORS[kind] | {name: value for name, value in values.items() if value is not None}
    if not settings["do_rescale"] or settings["rescale_factor"] != 1 / 255:
        factor = settings["rescale_factor"] if settings["do_rescale"] else 1
        raise WeightsError(f"The image processor multiplies pixels by {factor!r}, and Vitral only by 1/255.")
    if settings.get("do_pad"):
        raise WeightsError("The image processor pads pictures to a size (do_pad), which Vitral does not.")
    resize, size = _resize(kind, settings, image_size)
    mean, std = (_numbers(settings[name], name) for name in ("image_mean", "image_std"))
    if not settings["do_normalize"]:
        mean, std = (0.0,) * len(mean), (1.0,) * len(mean)
    return _preprocess(
        image_size=size,
        channels=len(mean),
        background=255 if settings.get("do_convert_rgb") else 0,  # transformers puts transparent pictures on white
        resize=resize,
        interpolation=_filter(settings["resample"]),
        mean=mean,
        std=std,
    )


def read_timm(values: Mapping[str, Any], channels: int | None = None) -> Preprocess:
    """The Preprocess of timm's `pretrained_cfg` in evaluation: `input_size`, `interpolation`, `crop_pct`, `crop_mode`,
    `mean` and `std`. Other names in it say nothing about pixels.

    With the `channels` of a model that is there, what it does not fit is brought near: other channels get the mean of
    the means and stds, as in timm, and an oblong centre becomes `crop`, which lies less than a pixel aside.

    >>> read_timm({"input_size": [3, 224, 224], "crop_pct": 0.875}).resize
    Scale(kind='shortest', share=0.875, rounding='even')
    """
    if not isinstance(values, Mapping):
        raise WeightsError("timm's pretrained_cfg should be a table of named settings.")
    settings = {"input_size": [3, 224, 224], "interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "center"}
    settings |= _IMAGENET | {name: value for name, value in values.items() if value}  # timm: empty means the default
    if not isinstance(settings["input_size"], list | tuple) or len(settings["input_size"]) != 3:
        raise WeightsError(f"input_size is {settings['input_size']!r}, and should be [channels, height, width].")
    own, height, width = (_whole(number, "input_size") for number in settings["input_size"])
    mean, std = (_numbers(settings[name], name) for name in ("mean", "std"))
    if channels and len(mean) != channels:
        mean, std = ((sum(numbers) / len(numbers),) * channels for numbers in (mean, std))
    share = _share(settings["crop_pct"])
    oblong = height != width and settings["crop_mode"] == "center" and share <= 1
    if settings["interpolation"] not in get_args(Interpolation):
        known = ", ".join(get_args(Interpolation))
        raise WeightsError(f"interpolation is {settings['interpolation']!r}, and should be one of {known}.")
    # What timm's `border` puts beside a picture is the mean: for us it must be a grey.
    borders = settings["crop_mode"] == "border" and share == 1 and len({*mean}) == 1 and 0 <= mean[0] <= 1
    return _preprocess(
        image_size=(height, width),
        channels=channels or own,
        **({"background": round(255 * mean[0])} if borders else {}),
        resize=Pad()
        if borders
        else Resize(share=share)
        if channels and oblong
        else _timm_resize(settings["crop_mode"], share, (height, width)),
        interpolation=settings["interpolation"],
        mean=mean,
        std=std,
    )


def write_processor(preprocess: Preprocess) -> dict[str, Any]:
    """A preprocessor_config.json with which transformers (its Pillow processors) gives the same pixels.

    `stretch`, `shortest` and `none` are exact. Two things transformers cannot say, and the nearest is written: our
    `crop` of a square becomes `shortest`, which counts in whole pixels where we do not, and so lies less than a pixel
    aside; the rounding "even" becomes "down", and an odd margin may then move a picture by one pixel. A `crop` to
    another shape and `pad` have nothing near, and are refused. JPEGs are always decoded at full scale there.
    """
    if preprocess.channels not in (1, 3):
        raise WeightsError(
            f"transformers reads grey or colour pictures, and this model takes {preprocess.channels} bands."
        )
    (height, width), how = preprocess.image_size, preprocess.resize
    if isinstance(how, Pad):
        raise WeightsError(
            "transformers has no image processor that pads pictures as data.resize=pad does. "
            "Train with data.resize=stretch for a model that it can read."
        )
    name, output_size = "ViTImageProcessor", {"height": height, "width": width}
    size = output_size
    if isinstance(how, Resize):
        if height != width:
            raise WeightsError(
                f"transformers cannot crop a picture to the shape {height} × {width} before it scales it. "
                "Train with data.resize=stretch for a model that it can read."
            )
        how = Scale(kind="shortest", share=how.share)
    if isinstance(how, Scale):
        tall, wide = preprocess.edges(how)
        if how.kind == "shortest":
            name, size = "BitImageProcessor", {"shortest_edge": tall}
        elif (tall, wide) != (height, width):
            name, size = "DeiTImageProcessor", {"height": tall, "width": wide}
    return {
        "image_processor_type": name,
        "do_convert_rgb": preprocess.channels == 3,
        "do_resize": not isinstance(how, AsItIs),
        "size": size,
        "resample": Image.Resampling[preprocess.interpolation.upper()].value,
        **({} if name == "ViTImageProcessor" else {"do_center_crop": True, "crop_size": output_size}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }


def resized_to(preprocess: Preprocess) -> int | tuple[int, int] | None:
    """What torchvision's Resize takes: the shorter side, or height and width; None: it is not resized. Our `crop` of a
    square becomes the nearest, as in `write_processor`."""
    how = preprocess.resize
    if isinstance(how, AsItIs):
        return None
    if isinstance(how, Pad):
        raise WeightsError(
            "torchvision's Resize does not pad. Train with data.resize=stretch for a model that it can read."
        )
    if isinstance(how, Resize):
        how = Scale(kind="shortest", share=how.share)
    tall, wide = preprocess.edges(how)
    return tall if how.kind == "shortest" else (tall, wide)


def _kind(values: Mapping[str, Any]) -> str:
    """`ViT` of `ViTImageProcessor`, `ViTImageProcessorFast` or, as it was once called, `ViTFeatureExtractor`."""
    if not isinstance(values, Mapping):
        raise WeightsError("A preprocessor_config.json should be a table of named settings.")
    name = values.get("image_processor_type") or values.get("feature_extractor_type") or "ViTImageProcessor"
    kind = str(name).removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in _PROCESSORS:
        known = ", ".join(f"{one}ImageProcessor" for one in _PROCESSORS)
        raise WeightsError(f"{name} is not an image processor that Vitral knows. It knows {known}.")
    return kind


def _resize(kind: str, settings: dict[str, Any], image_size: tuple[int, int]) -> tuple[AnyResize, tuple[int, int]]:
    """How pictures are resized, and the height and width that come out."""
    crops = bool(settings.get("do_center_crop"))
    if not settings["do_resize"]:
        if crops:
            raise WeightsError("The image processor crops pictures that it has not resized, which Vitral does not.")
        return AsItIs(), image_size
    size = _size(settings["size"], "size", square=kind in _SQUARE)
    if kind == "ConvNext":
        if isinstance(size, tuple) or crops:
            raise WeightsError("A ConvNextImageProcessor should have a shortest_edge, and no crop of its own.")
        output_size = size, size
        # From 384 pixels on it stretches, as its class has it.
        return (Scale() if size >= 384 else _scaled(int(size / _share(settings["crop_pct"])), output_size)), output_size
    cut = _size(settings["crop_size"], "crop_size", square=True) if crops and "crop_size" in settings else size
    if isinstance(cut, int):
        raise WeightsError(
            "The image processor scales the shorter side and does not crop: pictures come out in many sizes, "
            "and Vitral needs one."
        )
    return _scaled(size, cut), cut


def _timm_resize(mode: Any, share: float, image_size: tuple[int, int]) -> Scale:
    height, width = (math.floor(side / share) for side in image_size)
    if mode == "squash":
        return _scaled((height, width), image_size, "even")
    if mode != "center":
        raise WeightsError(
            f"timm's crop_mode is {mode!r}, and Vitral has the like of center and squash, and of border where crop_pct "
            "is 1 and mean a grey."
        )
    if height != width:
        raise WeightsError(
            f"Vitral has no like of timm's crop_mode center for {image_size[0]} × {image_size[1]} pixels, only for a "
            "square. The nearest is a Preprocess with resize crop and crop_pct as its share."
        )
    return _scaled(height, image_size, "even")


def _scaled(to: tuple[int, int] | int, image_size: tuple[int, int], rounding: Rounding = "down") -> Scale:
    """Stretched to height and width, or the shorter side to a number, and the image size cut out of that."""
    if to == image_size:
        return Scale()
    kind: Literal["stretch", "shortest"] = "shortest" if isinstance(to, int) else "stretch"
    size = (to, to) if isinstance(to, int) else to
    sides = (min(image_size),) * 2 if isinstance(to, int) else image_size
    share = sides[0] / max(1, size[0])
    if not 0.1 <= share <= 10 or round(sides[1] / share) != size[1]:
        words = " × ".join(map(str, image_size)), " × ".join(map(str, size))
        raise WeightsError(f"To cut {words[0]} pixels out of {words[1]} is nothing that Vitral can do.")
    return Scale(kind=kind, share=share, rounding=rounding)


def _size(value: Any, name: str, *, square: bool) -> tuple[int, int] | int:
    """Height and width; or a number: the shorter side."""
    match value:
        case {"height": height, "width": width} | [height, width] if len(value) == 2:
            return _whole(height, name), _whole(width, name)
        case {"shortest_edge": edge} if len(value) == 1:
            return _whole(edge, name)
        case int():
            return (_whole(value, name),) * 2 if square else _whole(value, name)
    raise WeightsError(f"{name} is {value!r}, and should have height and width, or shortest_edge alone.")


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise WeightsError(f"{name} is {value!r}, and should be a whole number, 1 to {_MOST:,}.")
    return value


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 100:
        raise WeightsError(f"crop_pct is {value!r}, and should be a share of the side, such as 0.9.")
    return float(value)


def _numbers(value: Any, name: str) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or not value or not all(type(one) in (int, float) for one in value):
        raise WeightsError(f"{name} is {value!r}, and should be a list of numbers, one a channel.")
    return tuple(value)


def _filter(value: Any) -> Interpolation:
    """The filter of Pillow's number."""
    names: dict[int, Interpolation] = {Image.Resampling[name.upper()].value: name for name in get_args(Interpolation)}
    if type(value) is not int or value not in names:
        known = ", ".join(f"{number} ({name})" for number, name in sorted(names.items()))
        raise WeightsError(f"resample is {value!r}, and should be one of {known}.")
    return names[value]


def _preprocess(**settings: Any) -> Preprocess:
    try:
        return Preprocess(**settings)
    except RecipeError as error:
        raise WeightsError(f"The pixels that are asked for cannot be. {error}") from None
