"""Bytes, arrays or Pillow pictures become an 8-bit Pillow picture in mode L, LA, RGB or RGBA: safely, the right way up.

What a picture looks like decides what comes out, not how it was stored: EXIF rotation is applied, 16 bits are scaled
to 8 and never clipped, palettes are looked up, CMYK is converted, of an animation the first frame is taken.
"""

import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from vitral.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # an allow-list: Pillow has readers that few have tested
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MOST_PIXELS = 250_000_000  # Pillow warns at 89 million; a large scan is fine, a bomb of 20,000 × 20,000 is not

# What Pillow raises for a damaged file depends on the format and on where it is damaged.
DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

Picture = str | Path | Image.Image | NDArray[Any]


def decode(picture: Picture) -> Image.Image:
    """A path, a Pillow picture or an array (H, W) or (H, W, 1, 3 or 4), as 8 bits a channel and the right way up."""
    if isinstance(picture, str | Path):
        return _from_file(Path(picture))
    if isinstance(picture, Image.Image):
        try:
            return _upright_8_bit(picture, "The picture")
        except DAMAGE as error:
            raise DataError(f"The picture is damaged and cannot be read ({error}).") from None
    if isinstance(picture, np.ndarray):
        return _from_array(picture)
    raise DataError(f"A {type(picture).__name__} is not a picture. Give a path, a Pillow picture or a NumPy array.")


def _from_file(path: Path) -> Image.Image:
    try:
        with path.open("rb") as file, _opened(file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise DataError(
                    f"{path} has {image.width:,} × {image.height:,} pixels. "
                    f"More than {MOST_PIXELS // 10**6} million are not opened: they could fill the memory."
                )
            return _upright_8_bit(image, str(path))
    except FileNotFoundError:
        raise DataError(f"{path} is not there.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, and one picture was expected.") from None
    except PermissionError:
        raise DataError(f"{path} may not be read by this user.") from None
    except UnidentifiedImageError:
        raise DataError(f"{path} is not a picture that Vitral reads ({', '.join(FORMATS)}).") from None
    except DAMAGE as error:
        raise DataError(f"{path} is damaged and cannot be read as a picture ({error}).") from None


def _opened(file: BinaryIO) -> Image.Image:
    """As Image.open does it, with our list of formats; Pillow's limit of pixels is lower than ours, and a global."""
    Image.preinit()
    Image.init()
    prefix = file.read(16)
    for name in FORMATS:
        reader, accepts = Image.OPEN[name]
        if accepts is None or accepts(prefix) is True:
            file.seek(0)
            try:
                return reader(file, "")
            except SyntaxError:  # Pillow's word for: not one of mine after all
                continue
    raise UnidentifiedImageError


def _from_array(array: NDArray[Any]) -> Image.Image:
    shape_is_right = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if array.dtype not in (np.uint8, np.uint16) or not shape_is_right or array.size == 0:
        raise DataError(
            f"An array of {array.dtype} and shape {array.shape} is not a picture. "
            "Give uint8 (0 to 255) or uint16 (0 to 65,535), shaped (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)."
        )
    if array.dtype == np.uint16:
        array = _scale_16_to_8(array)
    return Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2:] == (1,) else array))


def _upright_8_bit(image: Image.Image, name: str) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # I;16 and its byte orders; and I, whole numbers of 32 bits
        values = np.asarray(image)
        if image.mode == "I" and 0 <= values.min() and values.max() <= 255:
            return Image.fromarray(values.astype(np.uint8))
        if values.min() < 0 or values.max() > 65_535:
            raise DataError(f"{name} has values from {values.min()} to {values.max()}: only 8 and 16 bits are read.")
        return Image.fromarray(_scale_16_to_8(values))
    if image.mode == "F":
        raise DataError(f"{name} holds decimal numbers, and nobody says what is white: only 8 and 16 bits are read.")
    if image.has_transparency_data:
        return image.convert("LA" if image.mode in ("1", "L", "LA") else "RGBA")
    if image.mode in ("1", "L"):
        return image.convert("L")
    return image.convert("RGB")


def _scale_16_to_8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The high byte, which is what Pillow itself gives for 16-bit colour: 65,535 becomes 255, nothing is clipped."""
    return (values.astype(np.uint32) >> 8).astype(np.uint8)
