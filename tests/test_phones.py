"""What telephones and scanners bring: HEIC and AVIF, profiles of colour, oblong pictures, videos and PDFs."""

import struct
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageCms

from vitral.data.config import Data, Profile
from vitral.data.decode import decode, decode_with_facts, describe
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_source
from vitral.errors import DataError, WeightsError
from vitral.weights.processors import read_timm, write_processor

pillow_heif.register_heif_opener()  # lets Pillow write them, too; Vitral reads without it
KINDS: dict[str, dict[str, Any]] = {
    "AVIF": {"quality": 95, "speed": 10, "subsampling": "4:4:4"},
    "HEIF": {"quality": 95, "chroma": 444},
}


def waves(height: int = 48, width: int = 64) -> Image.Image:
    """A smooth picture whose four corners differ: every codec keeps it to a few levels."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green = 255 * rows / height, 255 * columns / width
    return Image.fromarray(np.stack([red, green, (red + green) / 2], axis=2).astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **{**KINDS.get(kind, {}), **options})
    return file.getvalue()


def distance(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max())


@pytest.mark.parametrize("kind", KINDS)
def test_a_telephones_picture_is_read_upright(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = saved(waves(), kind, exif=exif.tobytes())  # of which both make a rotation of the container's own
    assert b"irot" in content
    decoded, facts = decode_with_facts(content)
    assert isinstance(decoded, Image.Image) and decoded.size == (48, 64)
    assert distance(decoded, waves().transpose(Image.Transpose.ROTATE_270)) < 12
    seen = describe(content)
    assert (facts.format, facts.bits, facts.channels) == (kind, 8, 3)
    as_seen = (seen.height, seen.width) if seen.orientation > 4 else (seen.width, seen.height)
    assert as_seen == (48, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_transparency_and_grey_survive_the_formats_of_telephones(kind: str) -> None:
    clear = waves().convert("RGBA")
    clear.putalpha(Image.new("L", clear.size, 128))
    decoded = decode(saved(clear, kind))
    assert isinstance(decoded, Image.Image) and decoded.mode == "RGBA"
    assert abs(int(np.asarray(decoded)[0, 0, 3]) - 128) <= 2
    grey = decode(saved(waves().convert("L"), kind))
    assert isinstance(grey, Image.Image) and distance(grey.convert("L"), waves().convert("L")) < 12


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_only_declared_does_not_fill_the_memory(kind: str) -> None:
    content = saved(waves(), kind)
    place = content.index(b"ispe") + 8
    for side in (15, 15_999, 40_000, 2**31):
        claimed = content[:place] + side.to_bytes(4) * 2 + content[place + 8 :]
        try:
            decoded = decode(claimed)
        except DataError:
            continue
        assert isinstance(decoded, Image.Image) and decoded.width * decoded.height <= 64 * 64


@pytest.mark.parametrize("kind", KINDS)
def test_a_telephones_picture_that_is_cut_off_is_named(kind: str) -> None:
    content = saved(waves(), kind)
    for length in (11, 40, len(content) // 2, len(content) - 40):
        with pytest.raises(DataError, match=r"^IMG_1 (is damaged|is not a picture)"):
            decode(content[:length], name="IMG_1")


def test_without_the_extra_a_heic_names_it_and_is_passed_over(tmp_path: Path) -> None:
    for label in ("ash", "oak"):
        (tmp_path / label).mkdir()
        for number in range(4):
            waves().save(tmp_path / label / f"{number}.png")
    (tmp_path / "oak" / "IMG_1.HEIC").write_bytes(saved(waves(), "HEIF"))
    program = f"""
import sys
sys.modules["pillow_heif"] = None
from vitral.data.config import Data, Profile
from vitral.data.decode import decode
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_source
from vitral.errors import DataError, WeightsError
from vitral.weights.processors import read_timm, write_processor
index = open_source(Data(source={str(tmp_path)!r}))
print(len(index.samples), *index.notes, sep="|")
try:
    decode({str(tmp_path / "oak" / "IMG_1.HEIC")!r})
except DataError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    notes, refusal = told.splitlines()
    assert notes.startswith("8|") and "oak/IMG_1.HEIC" in notes and "pip install 'vitral[heif]'" in notes
    assert "IMG_1.HEIC cannot be read here. " in refusal and "pip install 'vitral[heif]'" in refusal
    assert len(open_source(Data(source=str(tmp_path))).samples) == 9


def test_videos_and_documents_are_passed_over_by_their_kind(tmp_path: Path) -> None:
    for label in ("ash", "oak"):
        (tmp_path / label).mkdir()
        for number in range(4):
            waves().save(tmp_path / label / f"{number}.png")
    for name in ("ash/walk.MOV", "oak/a.mp4", "oak/scan.pdf", "oak/list.txt"):
        (tmp_path / name).write_bytes(b"x")
    notes = open_source(Data(source=str(tmp_path))).notes
    assert "2 videos are passed over: ash/walk.MOV, oak/a.mp4. " in notes[0]
    assert "1 document is passed over: oak/scan.pdf. To learn from their pages, save each as PNG." in notes[1]
    assert notes[2] == "Files that are no pictures by their ending are passed over: 1 .txt."


# Oblong pictures


def padded(size: tuple[int, int], **others: Any) -> Preprocess:
    return Preprocess(image_size=size, channels=3, resize="pad", mean=(0.5,) * 3, std=(0.5,) * 3, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(("height", "width"), [(30, 60), (60, 30), (21, 9), (7, 100), (16, 16), (1, 90)])
def test_pad_shows_all_of_a_picture_in_its_shape(height: int, width: int) -> None:
    """As timm's ResizeKeepRatio(longest=1) and CenterCropOrPad have it, word for word."""
    picture, out = waves(height, width), (24, 32)
    ratio = max(height / out[0], width / out[1])
    tall, wide = (max(1, round(side / ratio)) for side in (height, width))
    top, left = (out[0] - tall) // 2, (out[1] - wide) // 2
    expected = Image.new("RGB", (out[1], out[0]), (7, 7, 7))
    expected.paste(picture.resize((wide, tall), Image.Resampling.BICUBIC), (left, top))
    assert np.array_equal(padded(out, background=7).resized(picture), np.asarray(expected).transpose(2, 0, 1))
    assert max(tall / out[0], wide / out[1]) == 1


def test_pad_is_stored_in_a_word_and_arrives_where_a_library_can_do_it() -> None:
    ours = padded((16, 16), background=128)
    assert ours.write()["resize"] == "pad" and ours.stage != padded((16, 16)).stage
    theirs = {"input_size": [3, 16, 16], "crop_mode": "border", "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert read_timm(theirs) == ours
    with pytest.raises(WeightsError, match="data.resize=pad"):
        write_processor(ours)


# Profiles of colour

P3 = ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06))  # x and y of its red, green and blue, as telephones take them


def icc(primaries: tuple[tuple[float, float], ...] = (), power: float = 2.4) -> bytes:
    """An ICC profile of version 2: colours with the curve of sRGB; or without primaries grey, with a power alone."""

    def number(values: Any) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65_536)) for value in values)

    def xyz(x: float, y: float) -> Any:
        return np.array([x / y, 1, (1 - x - y) / y])

    d50, d65 = np.array([0.9642, 1, 0.8249]), xyz(0.3127, 0.3290)
    steps = np.linspace(0, 1, 1024)
    levels = np.where(steps <= 0.04045, steps / 12.92, ((steps + 0.055) / 1.055) ** 2.4) if primaries else steps**power
    curve = b"curv" + bytes(4) + struct.pack(">I", 1024) + (65_535 * levels).round().astype(">u2").tobytes()
    tags = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", 5) + b"wide\0" + bytes(78),
        b"cprt": b"text" + bytes(4) + b"none\0",
        b"wtpt": b"XYZ " + bytes(4) + number(d50),
    }
    if primaries:
        columns = np.stack([xyz(*primary) for primary in primaries], axis=1)
        columns = columns * np.linalg.solve(columns, d65)
        cones = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])  # Bradford
        columns = np.linalg.inv(cones) @ np.diag(cones @ d50 / (cones @ d65)) @ cones @ columns
        for name, column in zip((b"r", b"g", b"b"), columns.T, strict=True):
            tags |= {name + b"XYZ": b"XYZ " + bytes(4) + number(column), name + b"TRC": curve}
    else:
        tags[b"kTRC"] = curve
    start, table, body = 132 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, content in tags.items():
        table += name + struct.pack(">II", start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    kind = b"mntrRGB XYZ " if primaries else b"mntrGRAYXYZ "
    head = struct.pack(">I", start + len(body)) + b"lcms\2\x10\0\0" + kind + bytes(12) + b"acsp" + bytes(28)
    return (head + number(d50)).ljust(128, b"\0") + table + body


WORDS: tuple[Profile, ...] = ("srgb", "ignore")


def in_p3(image: Image.Image) -> Image.Image:
    return ImageCms.profileToProfile(image, ImageCms.createProfile("sRGB"), BytesIO(icc(P3)), outputMode="RGB")  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP", *KINDS])
def test_a_wide_photograph_and_its_srgb_copy_give_nearly_the_same_pixels(kind: str) -> None:
    options: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    exact = options.get(kind, {})
    content = saved(in_p3(waves()), kind, icc_profile=icc(P3), **exact)
    srgb, ignored = (np.asarray(decode(content, profile=word)) - np.asarray(waves(), int) for word in WORDS)
    assert np.abs(srgb).mean() < 2 and np.abs(ignored).mean() > 6
    if kind in ("PNG", "TIFF", "WEBP"):  # the others lose something themselves
        assert np.abs(srgb).max() <= 8  # twice rounded, where one colour is dark
    assert np.array_equal(np.asarray(decode(content)), np.asarray(Image.open(BytesIO(content)).convert("RGB")))


def test_transparent_grey_and_deep_pictures_have_profiles_too() -> None:
    clear = in_p3(waves())
    clear.putalpha(Image.new("L", clear.size, 77))
    decoded = np.asarray(decode(saved(clear, "PNG", icc_profile=icc(P3)), profile="srgb"))
    assert distance(decoded[:, :, :3], waves()) <= 8 and np.all(decoded[:, :, 3] == 77)
    linear = saved(Image.new("L", (4, 4), 128), "PNG", icc_profile=icc(power=1.0))
    grey = decode(linear, profile="srgb")
    assert isinstance(grey, Image.Image) and grey.mode == "L"
    assert distance(grey, 188) <= 1  # half of the light is at 188 of sRGB
    deep = Image.fromarray(np.full((4, 4), 128 * 257, np.uint16))
    assert distance(decode(saved(deep, "PNG", icc_profile=icc(power=1.0)), profile="srgb"), 188) <= 1


@pytest.mark.parametrize("broken", [b"", b"x" * 500, icc(P3)[:200], icc(P3)[:128] + b"\xff" * 400, icc(power=2.2)])
def test_a_profile_that_is_broken_or_for_other_pictures_is_ignored(broken: bytes) -> None:
    content = saved(waves(), "PNG", icc_profile=broken)
    assert np.array_equal(np.asarray(decode(content, profile="srgb")), np.asarray(waves()))
    for mode in ("CMYK", "L"):
        content = saved(waves().convert(mode), "JPEG", icc_profile=icc(P3))
        assert np.array_equal(np.asarray(decode(content, profile="srgb")), np.asarray(decode(content)))


def test_the_setting_is_stored_where_it_is_set_and_packs_keep_their_names() -> None:
    plain, srgb = padded((16, 16)), padded((16, 16), profile="srgb")
    assert "profile" not in plain.write() and srgb.write()["profile"] == "srgb"
    assert plain.stage != srgb.stage and Preprocess.read(srgb.write()) == srgb
    wide = saved(in_p3(waves()), "PNG", icc_profile=icc(P3))
    assert (
        distance(srgb.resized(wide), srgb.resized(waves())) <= 4 < distance(plain.resized(wide), plain.resized(waves()))
    )
