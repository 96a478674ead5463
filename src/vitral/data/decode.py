"""Bytes, files, arrays or Pillow pictures become 8 bits per channel: safely, the right way up.

What a picture looks like decides what comes out, not how it was stored: EXIF rotation is applied, 16 bits are scaled
to 8 and never clipped, palettes are looked up, CMYK is converted, of an animation the first frame is taken. What comes
out is a Pillow picture in mode L, LA, RGB or RGBA; or an array (H, W, bands) where the channels are no colours.

AVIF is read where this Pillow has it, HEIC where pillow-heif is installed (the extra `heif`).
"""

import logging
import math
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitral.data.config import Profile
from vitral.errors import DataError

if TYPE_CHECKING:
    from PIL import ImageCms

HAS_AVIF, HAS_HEIF = find_spec("PIL._avif") is not None, find_spec("pillow_heif") is not None
HEIF_ENDINGS = (".heic", ".heif", ".hif")
# An allow-list: Pillow has readers that few have tested.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", *(["AVIF"] if HAS_AVIF else []))
ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".npy"),
    *([".avif"] if HAS_AVIF else []),
    *(HEIF_ENDINGS if HAS_HEIF else []),
)
NEEDS_HEIF = "HEIC, as telephones take them, is read with one package more: pip install 'vitral[heif]'."
MOST_PIXELS = 250_000_000  # Pillow warns at 89 million; a large scan is fine, a bomb of 20,000 × 20,000 is not
MOST_BYTES = 2**30  # of one file
MOST_CHANNELS = 512
MOST_VALUES = 4 * MOST_PIXELS  # of one picture, all its channels together
# A decoder in C cannot be stopped: what makes it slow is refused before it starts (docs/decisions/0018 has the times).
MOST_SCANS = 100  # of a JPEG: encoders write about ten, and libtiff takes as many
MOST_SCANNED = 20 * MOST_PIXELS  # as each scan goes over all pixels again
MOST_EXPANDED = 2**30  # bytes of a TIFF's values: 150 megapixels in colour of 16 bits are 0.9 GiB
MOST_TILES = 100_000  # of a TIFF, and strips
MOST_RUNS = 10_000_000  # pixels of a BMP in run lengths, which Pillow expands in Python

Picture = bytes | str | Path | Image.Image | NDArray[Any]
Decoded = Image.Image | NDArray[np.uint8]

_EXTRA, _PHOTOMETRIC, _BITS, _TILE_WIDTH, _TILE_HEIGHT = 338, 262, 258, 322, 323  # tags of TIFF
_STRIP_SIZES, _TILE_SIZES = 279, 325
_CMYK = 5
_HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}  # brands of ISO 23008-12
for _library in ("PIL", "tifffile"):  # else what they think of a damaged file would go to stderr
    logging.getLogger(_library).addHandler(logging.NullHandler())
_MARKER = re.compile(rb"\xff([^\x00\xff\x01\xd0-\xd8])")  # of JPEG: those that have a header, and the end


@dataclass(frozen=True)
class PictureFacts:
    """How a picture is stored."""

    format: str
    width: int  # as stored, before any rotation
    height: int
    mode: str  # Pillow's word, or "bands"
    bits: int  # per channel
    channels: int  # transparency is not counted
    orientation: int = 1  # EXIF: 1 is upright
    animated: bool = False  # has further frames or pages
    seconds: float = field(default=0.0, compare=False)  # that a core took to decode it


def decode(
    picture: Picture,
    *,
    name: str = "The picture",
    at_least: tuple[int, int] | None = None,
    profile: Profile = "ignore",
) -> Decoded:
    """A path, the bytes of a file, a Pillow picture or an array (H, W) or (H, W, channels) → 8 bits per channel.

    With `at_least` (height, width as one sees it) a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size: never below.
    With `profile` "srgb" the levels are those of sRGB, whatever colours the file counts in.
    """
    return decode_with_facts(picture, name=name, at_least=at_least, profile=profile)[0]


def decode_with_facts(
    picture: Picture,
    *,
    name: str = "The picture",
    at_least: tuple[int, int] | None = None,
    profile: Profile = "ignore",
) -> tuple[Decoded, PictureFacts]:
    """What `decode` returns, and how the picture was stored."""
    started_at = time.thread_time()
    decoded, facts = _decode(picture, name, at_least, profile)
    return decoded, replace(facts, seconds=time.thread_time() - started_at)


def _decode(
    picture: Picture, name: str, at_least: tuple[int, int] | None, profile: Profile
) -> tuple[Decoded, PictureFacts]:
    if isinstance(picture, str | Path):
        name, picture = str(picture), read_file(Path(picture))
    if isinstance(picture, bytes) and not picture:
        raise DataError(f"{name} is empty.")
    try:
        if isinstance(picture, bytes):
            return _from_bytes(picture, name, at_least, profile)
        if isinstance(picture, Image.Image):
            return _upright_8_bit(picture, name, profile), _facts(picture)
        if isinstance(picture, np.ndarray):
            return _from_array(picture, name)
    except UnidentifiedImageError:
        raise DataError(f"{name} is not a picture that Vitral reads ({', '.join(FORMATS)}, HEIC, .npy).") from None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # what Pillow raises depends on the format and on where the file is damaged: anything
        raise DataError(f"{name} is damaged and cannot be read as a picture ({error}).") from None
    raise DataError(f"A {type(picture).__name__} is not a picture. Give a path, a Pillow picture or a NumPy array.")


def describe(content: bytes | NDArray[np.uint8], name: str = "The picture") -> PictureFacts:
    """How a picture is stored; of a file in a usual format only the head is read."""
    if isinstance(content, bytes):
        try:
            with _open_image(content) as image:
                if not _is_bands(image):
                    return _facts(image)
        except Exception:  # damaged, or a TIFF of bands, or an array: decoding tells
            pass
    return decode_with_facts(content, name=name)[1]


def size_of(content: bytes) -> tuple[int, int] | None:
    """Width and height as the head of a file tells them, before anything is decoded. None: decoding tells."""
    try:
        with _open_image(content) as image:
            return image.size
    except Exception:  # as in `describe`
        return None


def read_file(path: Path, name: str = "") -> bytes:
    """The bytes of a file that should be a picture; a `DataError` says why, if it cannot be read."""
    name = name or str(path)
    # Four calls of the system and no more: after each, threads that decode beside this one compete for Python's lock.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # the last: a pipe is not waited for
        try:
            status = os.fstat(file)
            if status.st_size > MOST_BYTES:
                raise DataError(f"{name} has more than {MOST_BYTES // 2**20} MiB, which is too much for one picture.")
            content = os.read(file, status.st_size) if stat.S_ISREG(status.st_mode) else b""
            while 0 < len(content) < status.st_size and (more := os.read(file, status.st_size - len(content))):
                content += more  # over a network a file may come in pieces
        finally:
            os.close(file)
    except FileNotFoundError:
        raise DataError(f"{name} is not there.") from None
    except PermissionError:
        raise DataError(f"{name} may not be read by this user.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{name} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    if stat.S_ISDIR(status.st_mode):
        raise DataError(f"{name} is a folder, and one picture was expected.")
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{name} is not a file.")
    if len(content) < status.st_size:
        raise DataError(f"{name} changed while it was read.")
    return content


def _from_bytes(
    content: bytes, name: str, at_least: tuple[int, int] | None, profile: Profile
) -> tuple[Decoded, PictureFacts]:
    if content.startswith(b"\x93NUMPY"):
        return _from_npy(content, name)
    if _brands(content) & _HEIC and not HAS_HEIF:
        raise DataError(f"{name} cannot be read here. {NEEDS_HEIF}")
    try:
        image = _open_image(content)
    except UnidentifiedImageError:
        if content[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return _from_bands(content, name)
        raise
    with image:
        _check_size(image.width, image.height, name)
        _check_effort(image, content, name)
        if _is_bands(image):
            return _from_bands(content, name)
        facts = _facts(image)
        if at_least is not None and image.format == "JPEG":
            height, width = at_least
            image.draft(None, (height, width) if facts.orientation >= 5 else (width, height))
        return _upright_8_bit(image, name, profile), facts


def _open_image(content: bytes) -> Image.Image:
    """Image.open with our list of formats; Pillow's limit of pixels is lower than ours, and a global."""
    if _brands(content) & _HEIC:
        from pillow_heif import HeifImageFile

        reader: Callable[..., Image.Image] = HeifImageFile
        return reader(BytesIO(content))
    Image.preinit()
    Image.init()
    prefix = content[:16]
    for name in FORMATS:
        reader, accepts = Image.OPEN[name]
        if accepts is None or accepts(prefix) is True:
            try:
                return reader(BytesIO(content), "")
            except SyntaxError:  # Pillow's word for: not one of mine after all
                continue
    raise UnidentifiedImageError


def _brands(content: bytes) -> set[bytes]:
    """The words by which a file of the family of HEIF and AVIF says what it is: one, and those it also goes by."""
    if content[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(content[:4]), 128)
    return {content[place : place + 4] for place in (8, *range(16, end, 4))}


def _check_size(width: int, height: int, name: str) -> None:
    if width * height > MOST_PIXELS:
        raise DataError(
            f"{name} has {width:,} × {height:,} pixels. "
            f"More than {MOST_PIXELS // 10**6} million are not opened: they could fill the memory."
        )


def _check_effort(image: Image.Image, content: bytes, name: str) -> None:
    """Refuse a small file that asks for minutes of work or gigabytes of memory."""
    if content.startswith(b"\xff\xd8"):
        _check_scans(content, min(MOST_SCANS, MOST_SCANNED // (image.width * image.height)), name)
    tiles: Sequence[Any] = getattr(image, "tile", ())
    if tiles and tiles[0][0] == "bmp_rle" and image.width * image.height > MOST_RUNS:
        raise DataError(
            f"{name} is a BMP in run lengths of more than {MOST_RUNS // 10**6} million pixels, which takes too long. "
            "Save it as PNG."
        )
    if image.format == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        sizes = tags.get(_STRIP_SIZES) or tags.get(_TILE_SIZES) or ()
        _check_tiles(max(len(tiles), len(sizes)), name)
        _check_size(int(tags.get(_TILE_WIDTH, 1)), int(tags.get(_TILE_HEIGHT, 1)), f"A tile of {name}")
        if sizes and not any(sizes):
            raise DataError(f"{name} is a TIFF in which no pixels are stored.")


def _check_tiles(count: int, name: str) -> None:
    if count > MOST_TILES:
        raise DataError(f"{name} is a TIFF of {count:,} tiles or strips: more than {MOST_TILES:,} are not read.")


def _check_scans(content: bytes, most: int, name: str) -> None:
    """Markers of a JPEG are only walked through where the two bytes of a scan are there often: behind the picture, or
    in its thumbnail, they mean nothing."""
    if content.count(b"\xff\xda") <= most:
        return
    scans, place = 0, 2
    while (marker := _MARKER.search(content, place)) and marker[1] != b"\xd9":  # the end
        scans += marker[1] == b"\xda"
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])  # the length of its header
    if scans > most:
        raise DataError(f"{name} is a JPEG of {scans:,} scans, made to be slow: of its size up to {most} are read.")


def _facts(image: Image.Image) -> PictureFacts:
    bits = {"1": 1, "I": 32, "F": 32}.get(image.mode, 16 if image.mode.startswith("I;16") else 8)
    if image.format == "PNG" and image.mode in ("RGB", "RGBA", "LA") and _rawmode(image).endswith(";16B"):
        bits = 16  # Pillow gives the high bytes
    if image.format == "HEIF":
        bits = image.info["bit_depth"]  # Pillow gets 8 of them
    if image.format == "TIFF":
        bits = max(image.tag_v2.get(_BITS, (bits,)))  # type: ignore[attr-defined]
    grey = image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I")
    return PictureFacts(
        format=image.format or "Pillow",
        width=image.width,
        height=image.height,
        mode=image.mode,
        bits=bits,
        channels=1 if grey else 3,
        orientation=_orientation(image),
        animated=getattr(image, "is_animated", False),  # not n_frames, which would walk through all of them
    )


def _orientation(image: Image.Image) -> int:
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1) if image.format else 1
    return orientation if orientation in range(2, 9) else 1  # some cameras write 0


def _rawmode(image: Image.Image) -> str:
    tiles = getattr(image, "tile", ())
    return str(tiles[0][3]) if tiles else ""


def _upright_8_bit(image: Image.Image, name: str, profile: Profile) -> Image.Image:
    image.load()
    colours = image.info.get("icc_profile") if profile == "srgb" else None
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return _in_srgb(Image.fromarray(_scale_16_to_8(np.asarray(image))), colours)
    if image.mode.startswith("I"):
        raise DataError(
            f"{name} holds whole numbers of 32 bits or with a sign, and nobody says what is white: "
            "only 8 and 16 bits are read."
        )
    if image.mode == "F":
        raise DataError(f"{name} holds decimal numbers, and nobody says what is white: only 8 and 16 bits are read.")
    if image.mode in ("La", "RGBa"):  # colours that are multiplied by their transparency
        image = image.convert(image.mode.upper())
    if image.mode == "CMYK":
        image, colours = _in_srgb(image, colours), None
    if image.has_transparency_data:
        return _in_srgb(in_mode(image, "LA" if image.mode in ("1", "L", "LA") else "RGBA"), colours)
    return _in_srgb(in_mode(image, "L" if image.mode in ("1", "L") else "RGB"), colours)


def _in_srgb(image: Image.Image, colours: bytes | None) -> Image.Image:
    """The image in the colours of sRGB; a profile that is damaged, or made for another kind of picture, is ignored."""
    if colours is None or (transform := _to_srgb(colours, image.mode)) is None:
        return image
    if image.mode in ("LA", "RGBA"):
        changed = _in_srgb(image.convert(image.mode[:-1]), colours)
        changed.putalpha(image.getchannel("A"))
        return changed
    if image.mode == "L":
        return transform.apply(image).convert("L")
    return transform.apply(image)


@lru_cache(maxsize=16)
def _to_srgb(colours: bytes, mode: str) -> "ImageCms.ImageCmsTransform | None":
    """What changes pictures of a mode from the colours of a profile; None where nothing does."""
    from PIL import ImageCms

    try:
        return ImageCms.buildTransform(
            BytesIO(colours),
            ImageCms.createProfile("sRGB"),
            mode.removesuffix("A"),
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION | ImageCms.Flags.NOCACHE,  # the latter for several threads at once
        )
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        return None


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """The image in this mode: itself if it has it already, where Pillow would copy it."""
    return image if image.mode == mode else image.convert(mode)


def _is_bands(image: Image.Image) -> bool:
    """A TIFF whose further channels are neither colour nor transparency: Pillow would drop them without a word."""
    if image.format != "TIFF":
        return False
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    extra = tags.get(_EXTRA, ())
    return 0 in (extra if isinstance(extra, tuple) else (extra,)) and tags.get(_PHOTOMETRIC) != _CMYK


def _from_bands(content: bytes, name: str) -> tuple[Decoded, PictureFacts]:
    import tifffile  # 0.15 s that a folder of JPEGs does without

    try:
        with tifffile.TiffFile(BytesIO(content)) as file:
            page = file.pages.first
            _check_array((page.imagelength, page.imagewidth, page.samplesperpixel), np.dtype(page.dtype), name)
            _check_tiles(len(page.dataoffsets), name)
            if page.nbytes > MOST_EXPANDED:
                raise DataError(f"{name} expands to {page.nbytes / 2**30:.1f} GiB: it could fill the memory.")
            values = page.asarray(maxworkers=1)
            planar = page.axes.startswith("S")
    except DataError:
        raise
    except Exception as error:  # tifffile raises what its many decoders raise
        raise DataError(f"{name} is a TIFF that cannot be read ({error}).") from None
    if planar:
        values = np.moveaxis(values, 0, -1)  # (bands, H, W) → (H, W, bands)
    return _from_array(values, name) if values.ndim == 2 or values.shape[2] in (1, 3) else _bands(values, name, "TIFF")


def _from_npy(content: bytes, name: str) -> tuple[Decoded, PictureFacts]:
    file = BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    _check_array(shape, dtype, name)
    if math.prod(shape) * dtype.itemsize > len(content):  # before anything of that size is made
        raise DataError(f"{name} is cut off: an array of shape {shape} is longer.")
    values = np.load(BytesIO(content), allow_pickle=False)
    if values.ndim == 3 and values.shape[2] not in (1, 3):
        return _bands(values, name, "NPY")
    return _from_array(values, name)


def _bands(values: NDArray[Any], name: str, kind: str) -> tuple[NDArray[np.uint8], PictureFacts]:
    """(H, W, bands) of 8 or 16 bits → the same of 8 bits, and how it was stored."""
    _check_array(values.shape, values.dtype, name)
    height, width, channels = values.shape
    facts = PictureFacts(kind, width, height, "bands", 8 * values.dtype.itemsize, channels)
    values = _scale_16_to_8(values) if values.dtype == np.uint16 else values
    return np.ascontiguousarray(values), facts


def _from_array(array: NDArray[Any], name: str) -> tuple[Decoded, PictureFacts]:
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4):
        return _bands(array, name, "array")
    _check_array(array.shape, array.dtype, name)
    channels = 1 if array.ndim == 2 or array.shape[2] == 1 else 3
    facts = PictureFacts("array", array.shape[1], array.shape[0], "", 8 * array.dtype.itemsize, channels)
    if array.dtype == np.uint16:
        array = _scale_16_to_8(array)
    return Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2:] == (1,) else array)), facts


def _check_array(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if dtype not in (np.uint8, np.uint16) or len(shape) not in (2, 3) or min(shape) < 1:
        raise DataError(
            f"{name} is an array of {dtype} and shape {shape}, which is not a picture. "
            "Give uint8 (0 to 255) or uint16 (0 to 65,535), shaped (H, W) or (H, W, channels)."
        )
    _check_size(shape[1], shape[0], name)
    _check_channels(shape[2] if len(shape) == 3 else 1, shape[1] * shape[0], name)


def _check_channels(channels: int, pixels: int, name: str) -> None:
    if channels > MOST_CHANNELS:
        raise DataError(f"{name} has {channels} channels (the last axis): more than {MOST_CHANNELS} are not read.")
    if channels * pixels > MOST_VALUES:
        raise DataError(f"{name} has {channels} channels of {pixels:,} pixels: so many could fill the memory.")


def _scale_16_to_8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The high byte, which is what Pillow itself gives for 16-bit colour: 65,535 becomes 255, nothing is clipped."""
    high = np.empty(values.shape, np.uint8)
    np.right_shift(values, 8, out=high, casting="unsafe")  # without a copy in between, which may be a gigabyte
    return high
