"""A hostile folder: each file gives the right pixels or is named with a reason. Nothing crashes, nothing hangs."""

import io
import os
import pickle
import resource
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from vitral import DataError, Preprocess
from vitral.data.config import Data
from vitral.data.decode import PictureFacts, decode, decode_with_facts
from vitral.data.pack import Pack, pack
from vitral.data.sources import open_source
from vitral.data.sources.layout import display_name
from vitral.look.sheets import Section, Tile, write_sheet

pytestmark = pytest.mark.timeout(60)

Array = NDArray[np.uint8]

SIDE, BACKGROUND, GOOD = 8, 90, 200
SEEN = Preprocess(
    image_size=(SIDE, SIDE), channels=3, background=BACKGROUND, jpeg="scaled", mean=(0.0,) * 3, std=(1.0,) * 3
)
NO_PICTURE = "is not a picture that Vitral reads (JPEG, PNG, WEBP, BMP, GIF, TIFF, AVIF, HEIC, .npy)."
NO_ARRAY = "Give uint8 (0 to 255) or uint16 (0 to 65,535), shaped (H, W) or (H, W, channels)."
DAMAGED = "is damaged and cannot be read as a picture"
NOBODY = 65_534

# Something with a top, a bottom, a left and a right.
ROWS, COLUMNS = np.mgrid[0:SIDE, 0:SIDE]
PHOTO: Array = np.stack([ROWS * 30, COLUMNS * 30, 255 - ROWS * 20], axis=2).astype(np.uint8)


def opened(source: Path) -> Any:
    return open_source(Data(source=str(source)))


def packed(source: Path, preprocess: Preprocess = SEEN) -> Pack:
    return pack(opened(source), preprocess, source.parent / "cache")


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def array_file(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def array_head(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    """A .npy that claims to be large, and is not."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": kind, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def tiff_of_bands(bands: int) -> bytes:
    buffer = io.BytesIO()
    values = np.arange(SIDE * SIDE * bands, dtype=np.uint8).reshape(SIDE, SIDE, bands)
    tifffile.imwrite(buffer, values, photometric="minisblack", planarconfig="contig")
    return buffer.getvalue()


def png(width: int, height: int, bits: int, kind: int, rows: bytes) -> bytes:
    """A PNG by hand: Pillow writes no 16-bit colour. Kind 0 is grey, 2 is colour."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def deep(values: NDArray[Any]) -> bytes:
    """The rows of a 16-bit PNG, each after the byte that says: no filter. The low bytes are noise."""
    words = (values.astype(np.uint16) << 8 | np.random.default_rng(0).integers(0, 256, values.shape)).astype(">u2")
    return b"".join(b"\0" + row.tobytes() for row in words)


def turned(orientation: int) -> bytes:
    """The photo, stored so that it is upright after the EXIF rotation."""
    how = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(PHOTO)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image.transpose(how[orientation]) if orientation in how else image, exif=exif)


def with_transparency() -> tuple[bytes, Array]:
    """A palette of three colours, the first of which is transparent; and what should be seen."""
    places = (ROWS + COLUMNS) % 3
    image = Image.fromarray(places.astype(np.uint8)).convert("P")
    image.putpalette([255, 0, 0, 0, 200, 0, 10, 20, 250])
    colours = np.array([(BACKGROUND,) * 3, (0, 200, 0), (10, 20, 250)], np.uint8)
    return saved(image, transparency=0), colours[places]


def plain(*colour: int) -> Array:
    return np.full((SIDE, SIDE, 3), colour, np.uint8)


def two_frames() -> bytes:
    red, blue = (Image.fromarray(plain(*colour)).quantize(2) for colour in ((255, 0, 0), (0, 0, 255)))
    return saved(red, "GIF", save_all=True, append_images=[blue], duration=10)


class Spring:
    """Unpickled, it would leave a file behind."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.trap),)


RIGHT: dict[str, tuple[bytes, Array, int]] = {  # content, what is seen, how far a level may be off
    "one pixel.png": (saved(Image.new("RGB", (1, 1), (7, 8, 9))), plain(7, 8, 9), 0),
    "cmyk.jpg": (
        saved(Image.fromarray(plain(200, 60, 30)).convert("CMYK"), "JPEG", quality=100),
        plain(200, 60, 30),
        4,
    ),
    "deep grey.png": (png(SIDE, SIDE, 16, 0, deep(PHOTO[:, :, 0])), PHOTO[:, :, :1].repeat(3, axis=2), 0),
    "deep colour.png": (png(SIDE, SIDE, 16, 2, deep(PHOTO)), PHOTO, 0),
    "palette.png": (*with_transparency(), 0),
    "animated.gif": (two_frames(), plain(255, 0, 0), 0),
    "new\nline.png": (saved(Image.fromarray(PHOTO)), PHOTO, 0),
    "<script>alert(1)</script>.png": (
        saved(Image.fromarray(PHOTO)),
        PHOTO,
        0,
    ),  # the slash makes it a folder and a file
    "colours.npy": (array_file(PHOTO), PHOTO, 0),
    **{f"turned {orientation}.png": (turned(orientation), PHOTO, 0) for orientation in range(1, 9)},
}

LEFT_OUT: dict[str, tuple[bytes, str]] = {
    "empty.jpg": (b"", "is empty."),
    "text.jpg": (b"This is a text.\n", NO_PICTURE),
    "bomb.png": (
        png(20_000, 20_000, 1, 0, bytes(2_501 * 20_000)),
        "has 20,000 × 20,000 pixels. More than 250 million are not opened: they could fill the memory.",
    ),
    "two bands.tif": (tiff_of_bands(2), "has 2 channels, and the model takes 3."),
    "five bands.tif": (tiff_of_bands(5), "has 5 channels, and the model takes 3."),
    "pickle.npy": (pickle.dumps([1, 2]), NO_PICTURE),
    "float.npy": (
        array_file(np.ones((8, 8))),
        f"is an array of float64 and shape (8, 8), which is not a picture. {NO_ARRAY}",
    ),
    "nothing.npy": (
        array_file(np.zeros((0, 8), np.uint8)),
        f"is an array of uint8 and shape (0, 8), which is not a picture. {NO_ARRAY}",
    ),
    "claims.npy": (array_head((9_000, 9_000, 3)), "is cut off: an array of shape (9000, 9000, 3) is longer."),
    "claims more.npy": (
        array_head((15_000, 15_000, 512)),
        "has 512 channels of 225,000,000 pixels: so many could fill the memory.",
    ),
    "one axis.npy": (
        array_head((10**13,)),
        f"is an array of uint8 and shape (10000000000000,), which is not a picture. {NO_ARRAY}",
    ),
    "half a head.npy": (array_file(PHOTO).replace(b"), }", b"    "), f"{DAMAGED} ("),
    "cut.jpg": (saved(Image.effect_noise((64, 64), 80), "JPEG")[:900], f"{DAMAGED} (image file is truncated"),
    "cut.png": (saved(Image.effect_noise((64, 64), 80))[:900], f"{DAMAGED} (image file is truncated"),
}

# Not files with a content: made by hand below.
SPECIAL = {
    "dangling.png": "is not there.",
    "loop.png": "cannot be read (Too many levels of symbolic links).",
    "pipe.jpg": "is not a file.",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it, among enough good pictures."""
    folder = tmp_path_factory.mktemp("hostile") / "set"
    (folder / "fine").mkdir(parents=True)
    (folder / "single").mkdir()
    (folder / "odd").mkdir()
    for number in range(GOOD):
        Image.fromarray(PHOTO + np.uint8(number)).save(folder / "fine" / f"{number:03}.png")
    Image.fromarray(PHOTO).save(folder / "single" / "1.png")
    contents = {name: row[0] for name, row in RIGHT.items()} | {name: row[0] for name, row in LEFT_OUT.items()}
    for name, content in contents.items():
        path = folder / "odd" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    trapped = np.array([Spring(folder.parent / "trap")], dtype=object)
    (folder / "odd" / "trap.npy").write_bytes(array_file(trapped))
    (folder / "odd" / "dangling.png").symlink_to("nowhere")
    (folder / "odd" / "loop.png").symlink_to("loop.png")
    (folder / "odd" / "again").symlink_to("..")
    os.mkfifo(folder / "odd" / "pipe.jpg")
    return folder


@pytest.fixture(scope="module")
def made(hostile: Path) -> Pack:
    return packed(hostile)


def number_of(made: Pack, name: str) -> int:
    return list(made.index.samples).index(f"odd/{name}")


@pytest.mark.parametrize("name", RIGHT)
def test_a_strange_file_gives_the_right_pixels(made: Pack, name: str) -> None:
    number = number_of(made, name)
    _, expected, off = RIGHT[name]
    assert number not in made.left_out
    found = made.images[number].transpose(1, 2, 0).astype(int)
    assert np.abs(found - expected).max() <= off


def test_the_eight_rotations_are_one_tensor(hostile: Path) -> None:
    tensors = [SEEN(hostile / "odd" / f"turned {orientation}.png") for orientation in range(1, 9)]
    assert all(tensor.equal(tensors[0]) for tensor in tensors)
    assert len({(hostile / "odd" / f"turned {orientation}.png").read_bytes() for orientation in range(1, 9)}) == 8


@pytest.mark.parametrize("name", [*LEFT_OUT, *SPECIAL])
def test_a_file_that_is_no_picture_is_left_out_with_a_sentence(made: Pack, name: str) -> None:
    sentence = made.left_out[number_of(made, name)]
    expected = LEFT_OUT[name][1] if name in LEFT_OUT else SPECIAL[name]
    assert sentence == f"odd/{name} {expected}" or (
        expected[-1] != "." and sentence.startswith(f"odd/{name} {expected}") and sentence.endswith(").")
    )


def test_a_pickle_is_refused_and_not_executed(hostile: Path, made: Pack) -> None:
    assert made.left_out[number_of(made, "trap.npy")] == (
        f"odd/trap.npy is an array of object and shape (1,), which is not a picture. {NO_ARRAY}"
    )
    assert not (hostile.parent / "trap").exists()
    np.load(hostile / "odd" / "trap.npy", allow_pickle=True)
    assert (hostile.parent / "trap").exists()  # it would have
    (hostile.parent / "trap").rmdir()


def test_nothing_else_is_left_out_and_the_good_ones_are_what_they_were(hostile: Path, made: Pack) -> None:
    assert len(made.left_out) == len(LEFT_OUT) + len(SPECIAL) + 1
    assert len(made.index.samples) == GOOD + 1 + len(RIGHT) + len(made.left_out)
    for number, sample in enumerate(made.index.samples):
        if sample.startswith("fine/"):
            assert np.array_equal(made.images[number], (PHOTO + np.uint8(int(sample[5:8]))).transpose(2, 0, 1))
    assert not made.images[sorted(made.left_out)].any()
    readable = [sample for sample, _, _ in made.rows()]
    assert len(readable) == len(made.index.samples) - len(made.left_out)
    assert [row[3] for row in made.left_out_rows()] == [made.left_out[number] for number in sorted(made.left_out)]


def test_a_folder_that_contains_itself_is_entered_once(made: Pack) -> None:
    note = "The link odd/again leads back to a folder above it, and was not followed."
    assert note in made.index.notes
    assert not [sample for sample in made.index.samples if "again" in sample]


def test_the_only_picture_of_a_class_is_learnt(made: Pack) -> None:
    assert ("single/1.png", "single", "train") in list(made.rows())


def test_the_check_names_every_unreadable_file(hostile: Path, made: Pack) -> None:
    from vitral.data.check import check

    report = check(opened(hostile))
    [finding] = [finding for finding in report.findings if finding.kind == "unreadable"]
    readable_bands = {number_of(made, "two bands.tif"), number_of(made, "five bands.tif")}
    assert {number for (number,) in finding.samples} == set(made.left_out) - readable_bands
    assert finding.serious
    for (number,) in finding.samples:
        assert report.checks[number].error == made.left_out[number]


def test_a_picture_of_200_megapixels_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scan.jpg"
    Image.new("L", (16_000, 12_500), 150).save(path, quality=5)
    found = SEEN.resized(path)
    assert found.shape == (3, SIDE, SIDE) and np.abs(found.astype(int) - 150).max() <= 4


# Channels that are no colours


def test_arrays_of_four_channels_are_bands(tmp_path: Path) -> None:
    source = tmp_path / "set"
    values = np.random.default_rng(0).integers(0, 256, (40, SIDE, SIDE, 4), dtype=np.uint8)
    for number, array in enumerate(values):
        folder = source / ("water" if number % 2 else "land")
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number:02}.npy", array)
    np.save(source / "land" / "stray.npy", values[0, :, :, :3])
    index = opened(source)
    assert index.channels == 4
    made = pack(index, Preprocess(image_size=(SIDE, SIDE), channels=4, mean=(0.0,) * 4, std=(1.0,) * 4), tmp_path)
    assert list(made.left_out.values()) == ["land/stray.npy has 3 channels, and the model takes 4."]
    for number, sample in enumerate(index.samples):
        if number not in made.left_out:
            assert np.array_equal(made.images[number], values[int(sample[-6:-4])].transpose(2, 0, 1))


# How many may be missing


@pytest.mark.parametrize(("good", "bad"), [(3, 3), (12, 10), (189, 21)])
def test_up_to_ten_or_a_tenth_may_be_unreadable(tmp_path: Path, good: int, bad: int) -> None:
    source = tmp_path / "set"
    for label in "ab":
        (source / label).mkdir(parents=True)
    for number in range(good):
        Image.fromarray(PHOTO + np.uint8(number)).save(source / "ab"[number % 2] / f"{number:03}.png")
    for number in range(bad):
        (source / "a" / f"x{number:02}.png").write_bytes(b"nonsense")
    assert len(packed(source).left_out) == bad
    (source / "a" / f"x{bad:02}.png").write_bytes(b"nonsense")
    with pytest.raises(DataError) as caught:
        packed(source)
    assert str(caught.value) == (
        f"{bad + 1} of {good + bad + 1} pictures cannot be read and are left out: a/x00.png {NO_PICTURE} "
        f"That is too many: `vitral check {source}` names them all."
    )


def test_a_folder_without_one_readable_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "1.png").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="^1 of 1 pictures cannot be read and is left out: a/1.png is not a picture"):
        packed(tmp_path / "set")


# What this user may not read


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything, so for a while we are somebody who may not."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def for_everybody() -> Iterator[Path]:
    """Two classes of pictures, in a folder that another user may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can become a user who may not read a file")
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "set"
        for label in "ab":
            (source / label).mkdir(parents=True)
            for number in range(6):
                Image.fromarray(PHOTO + np.uint8(number)).save(source / label / f"{number}.png")
        (Path(place) / "cache").mkdir()
        (Path(place) / "cache").chmod(0o777)
        Path(place).chmod(0o755)
        table = Path(place) / "list.csv"
        table.write_text("path,label\n" + "".join(f"set/{c}/{n}.png,{c}\n" for c in "ab" for n in range(6)))
        # What Python loads late is loaded now: those files may be root's too.
        pack(opened(source), SEEN, Path(place) / "root's cache")
        opened(table)
        yield source


def test_a_file_that_may_not_be_read_is_named_until_it_may(for_everybody: Path) -> None:
    secret = for_everybody / "a" / "3.png"
    secret.chmod(0)
    with as_nobody():
        assert packed(for_everybody).left_out == {3: "a/3.png may not be read by this user."}
    secret.chmod(0o644)
    with as_nobody():
        assert packed(for_everybody).left_out == {}


def test_a_folder_that_may_not_be_entered_is_named(for_everybody: Path) -> None:
    (for_everybody / "a").chmod(0)
    with as_nobody():
        index = opened(for_everybody)
    assert index.notes[0] == "The folder a/ could not be entered (Permission denied)."
    assert index.class_names == ("b",)
    for_everybody.chmod(0)
    with as_nobody(), pytest.raises(DataError) as caught:
        opened(for_everybody)
    assert str(caught.value) == f"The folder {for_everybody} cannot be entered (Permission denied)."
    for_everybody.chmod(0o755)


def test_a_table_names_what_lies_in_a_folder_that_may_not_be_entered(for_everybody: Path) -> None:
    (for_everybody / "a").chmod(0)
    with as_nobody():
        found = packed(for_everybody.parent / "list.csv").left_out
    assert found == {number: f"set/a/{number}.png may not be read by this user." for number in range(6)}


# Small files that ask for much work


def many_scans(side: int, scans: int, colour: str = "L") -> bytes:
    """A progressive JPEG whose last scan is there again and again."""
    content = saved(Image.new(colour, (side, side), "gray"), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * (1 + scans - content.count(b"\xff\xda")) + content[-2:]


def tiff(width: int, height: int, samples: int, bits: int, strips: int, kind: int = 1, tile: int = 0) -> bytes:
    """A TIFF of bands, compressed by deflate, whose strips or tiles are empty. Kind 1: whole numbers, 3: others."""
    fields = {
        **{256: [width], 257: [height], 258: [bits] * samples, 259: [8], 262: [1], 277: [samples]},
        **({322: [tile], 323: [tile]} if tile else {278: [-(-height // strips)]}),
        **{324 if tile else 273: [0] * strips, 325 if tile else 279: [0] * strips},
        **{338: [0] * (samples - 1), 339: [kind] * samples},
    }
    fields = {tag: values for tag, values in sorted(fields.items()) if values}
    rows, values_of = b"", b""
    for tag, values in fields.items():
        raw = struct.pack(f"<{len(values)}I", *values)
        place = 8 + 2 + 12 * len(fields) + 4 + len(values_of)
        rows += struct.pack("<HHI", tag, 4, len(values)) + (raw if len(raw) == 4 else struct.pack("<I", place))
        values_of += raw if len(raw) > 4 else b""
    return struct.pack("<2sHIH", b"II", 42, 8, len(fields)) + rows + bytes(4) + values_of


def run_lengths(width: int, height: int) -> bytes:
    """A BMP of 8 bits in run lengths, of which each line ends at once."""
    runs, palette = b"\0\0" * height, bytes(1024)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return struct.pack("<2sIHHI", b"BM", 1078 + len(runs), 0, 0, 1078) + head + palette + runs


def many_frames(count: int) -> bytes:
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\2\2D\1\0"
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + frame * count + b"\x3b"


SLOW: dict[str, tuple[Callable[[], bytes], str]] = {
    "many scans": (lambda: many_scans(4_000, 10_000), "is a JPEG of 10,000 scans, made to be slow: of its size up to"),
    "large scans": (lambda: many_scans(7_500, 95), "is a JPEG of 95 scans, made to be slow: of its size up to 88"),
    "deep bands": (lambda: tiff(12_000, 12_000, 4, 16, 100), "expands to 1.1 GiB: it could fill the memory."),
    "double bands": (lambda: tiff(15_000, 15_000, 4, 64, 100, kind=3), "is an array of float64 and shape"),
    "tiny tiles": (lambda: tiff(6_400, 6_400, 2, 8, 160_000, tile=16), "is a TIFF of 160,000 tiles or strips"),
    "a huge tile": (lambda: tiff(16, 16, 1, 8, 1, tile=65_520), "A tile of x has 65,520 × 65,520 pixels."),
    "run lengths": (lambda: run_lengths(15_000, 15_000), "is a BMP in run lengths of more than 10 million pixels"),
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_small_file_that_asks_for_much_work_is_refused_before_it_is_begun(kind: str) -> None:
    make, sentence = SLOW[kind]
    content = make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_at = time.process_time()
    with pytest.raises(DataError) as caught:
        decode(content, name="x")
    assert sentence in str(caught.value)
    assert len(content) < 5e6 and time.process_time() - started_at < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KiB: less than any of them would take


def test_frames_that_nobody_looks_at_are_not_counted() -> None:
    started_at = time.process_time()
    _, facts = decode_with_facts(many_frames(200_000))
    assert facts.animated and facts.seconds > 0 and time.process_time() - started_at < 1


@pytest.mark.parametrize(("side", "scans"), [(64, 20), (64, 100), (3_000, 20)])
def test_a_jpeg_of_as_many_scans_as_encoders_write_is_read(side: int, scans: int) -> None:
    image = decode(many_scans(side, scans))
    assert isinstance(image, Image.Image) and image.size == (side, side)


def test_what_only_looks_like_scans_is_not_counted() -> None:
    """A film behind the picture, as telephones write it; a thumbnail in its EXIF."""
    exif = Image.Exif()
    exif[0x010E] = "\xff\xda" * 200
    content = saved(Image.new("RGB", (64, 64), "red"), "JPEG", exif=exif) + b"\xff\xda" * 500
    assert decode(content.replace("\xff\xda".encode(), b"\xff\xda" * 2)).size == (64, 64)


@pytest.mark.slow
def test_large_pictures_of_real_cameras_are_read() -> None:
    """100 megapixels as a progressive JPEG of 10 scans, and 60 in 16 bits a channel as a TIFF."""
    noise = Image.effect_noise((1_160, 870), 60).resize((11_600, 8_700))
    film = decode(saved(Image.merge("RGB", [noise] * 3), "JPEG", progressive=True))
    assert isinstance(film, Image.Image) and film.size == (11_600, 8_700)
    buffer = io.BytesIO()
    levels = np.asarray(noise)[:6_300, :9_500, None].repeat(3, axis=2).astype(np.uint16)
    tifffile.imwrite(buffer, levels << 8, photometric="rgb")
    deep, facts = decode_with_facts(buffer.getvalue())
    assert isinstance(deep, Image.Image) and deep.size == (9_500, 6_300) and facts.bits == 16


def test_a_picture_that_took_long_is_named_by_the_check(hostile: Path) -> None:
    from vitral.data.findings import SLOW as SECONDS
    from vitral.data.findings import PictureCheck, findings

    index = opened(hostile)
    facts = [PictureFacts("PNG", 8, 8, "RGB", 8, 3, seconds=SECONDS + (n == 5)) for n in range(len(index.samples))]
    checks = [PictureCheck(bytes([n % 256, n // 256]), one) for n, one in enumerate(facts)]
    [slow] = [one for one in findings(index, checks, []) if one.kind == "slow"]
    assert slow.samples == [(5,)] and slow.what == "Slow to read, more than 2 seconds each: 1 picture."


def test_a_tiff_in_which_no_pixels_are_stored_is_no_black_picture() -> None:
    """Two strips of no bytes: libtiff would give zeros."""
    entries = [  # tag, type (3: 16 bits, 4: 32), count, value or place
        (256, 3, 1, 4),
        (257, 3, 1, 2),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, 2, 134),
        (277, 3, 1, 1),
        (278, 3, 1, 1),
        (279, 4, 2, 142),
    ]
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    header = b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", 0)
    assert 134 - len(header) >= 0
    content = header.ljust(134, b"\0") + struct.pack("<II", 8, 8) + struct.pack("<II", 0, 0)
    with pytest.raises(DataError, match="a TIFF in which no pixels are stored"):
        decode(content)


def test_half_a_sign_in_a_table_has_a_name_that_can_be_written() -> None:
    assert display_name("\ud800é.png").encode() == "\\ud800é.png".encode()
    assert display_name("caf\udce9") == "caf\\xe9"  # bytes of a disk that are no text


def test_a_name_of_a_hundred_thousand_letters_is_drawn_as_its_end(tmp_path: Path) -> None:
    """Letter by letter that would take minutes."""
    tile = Tile(Image.new("RGB", (8, 8)), "n" * 100_000, "train, " + "x" * 100_000)
    write_sheet(tmp_path / "sheet.png", "c" * 100_000, "A class.", [Section("", "", [[tile]])])
    assert (tmp_path / "sheet.png").is_file()
