"""Pictures become batches: the same every time, whatever they were stored as."""

import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from numpy.typing import NDArray
from PIL import Image

from vitral import DataError, Preprocess, RecipeError
from vitral.data.augment import affine_matrices, augment
from vitral.data.batches import Batches
from vitral.data.config import Augment, Data
from vitral.data.decode import decode
from vitral.data.pack import pack
from vitral.data.randomness import permutation, uniform
from vitral.data.sources import open_source

GREY = Preprocess(image_size=(8, 8), channels=1, mean=(0.0,), std=(1.0,))
COLOUR = Preprocess(image_size=(8, 8), channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)


# Randomness


def test_random_numbers_have_not_changed() -> None:
    """Golden. If they move, the order and augmentation of every run moves with them."""
    drawn = uniform(7, "affine", epoch=7, samples=[1234], copy=1, view=2, draws=3)
    assert drawn.tolist() == [[0.1479277344280594, 0.7948646873724388, 0.4909325174113204]]
    assert permutation(3, "order", epoch=2, count=8).tolist() == [3, 4, 6, 7, 5, 1, 0, 2]


def test_the_hash_is_splitmix64_chained_over_the_key() -> None:
    """A literal version in Python's own whole numbers."""
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    state = 0
    for value in (2**63 - 1, zlib.crc32(b"purpose"), 7, 1234, 1, 2, 5):
        state = mix((state + 0x9E3779B97F4A7C15 * (value + 1)) & mask)
    drawn = uniform(2**63 - 1, "purpose", epoch=7, samples=[1234], copy=1, view=2, draws=6)
    assert drawn[0, 5] == (state >> 11) / 2**53


@given(seed=st.integers(0, 2**63 - 1), samples=st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_a_samples_numbers_do_not_depend_on_its_company(seed: int, samples: list[int]) -> None:
    together = uniform(seed, "x", epoch=5, samples=samples, draws=4)
    alone = np.concatenate([uniform(seed, "x", epoch=5, samples=[sample], draws=4) for sample in samples])
    assert np.array_equal(together, alone)
    assert np.array_equal(uniform(seed, "x", epoch=5, samples=samples, draws=2), together[:, :2])


def test_random_numbers_are_evenly_spread_and_unrelated() -> None:
    drawn = uniform(0, "even", samples=np.arange(200_000), draws=2)
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    assert ((counts - 4000) ** 2 / 4000).sum() < 149  # chi-square with 99 degrees of freedom: 0.999 quantile 148.2
    others = [
        uniform(1, "even", samples=np.arange(200_000))[:, 0],
        uniform(0, "odd", samples=np.arange(200_000))[:, 0],
        uniform(0, "even", epoch=1, samples=np.arange(200_000))[:, 0],
        drawn[:, 1],
        np.roll(drawn[:, 0], 1),
    ]
    for other in others:
        assert abs(np.corrcoef(drawn[:, 0], other)[0, 1]) < 0.01


# Digits


def test_digits_are_split_by_class_and_the_same_for_ever() -> None:
    index = open_source(Data(source="digits"))
    assert {split: len(index.of(split)) for split in ("train", "validation", "test")} == {
        "train": 1078,
        "validation": 359,
        "test": 360,
    }
    assert pack(index, GREY, Path()).sha256 == "65ab3419832881f9348258c5b261b73efeb43499f9dc03416a54afef6c10a4cc"
    for split in ("validation", "test"):
        assert np.bincount(index.labels[index.of(split)]).min() >= 34


def test_an_unknown_source_says_what_is_known() -> None:
    with pytest.raises(RecipeError, match="There is no folder, file or named set dgits. Did you mean digits?"):
        open_source(Data(source="dgits"))
    with pytest.raises(RecipeError, match="data.source is not given"):
        open_source(Data())


# Decoding: what a picture looks like decides, not how it was stored


@pytest.fixture
def photo() -> NDArray[np.uint8]:
    """Something with a top, a bottom, a left and a right: (12, 16, 3)."""
    rows, columns = np.mgrid[0:12, 0:16]
    return np.stack([rows * 20, columns * 15, 255 - rows * 10], axis=2).astype(np.uint8)


def saved(tmp_path: Path, image: Image.Image, name: str, **options: Any) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


def test_all_eight_exif_rotations_give_one_picture(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    for orientation, operation in undo.items():
        stored = Image.fromarray(photo)
        stored = stored.transpose(operation) if operation is not None else stored
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = saved(tmp_path, stored, f"{orientation}.png", exif=exif)
        assert np.array_equal(np.asarray(decode(path)), photo), orientation


@pytest.mark.parametrize("ending", ["png", "bmp", "tiff", "webp"])
def test_lossless_formats_give_the_same_pixels(tmp_path: Path, photo: NDArray[np.uint8], ending: str) -> None:
    options: Any = {"lossless": True} if ending == "webp" else {}
    assert np.array_equal(np.asarray(decode(saved(tmp_path, Image.fromarray(photo), f"x.{ending}", **options))), photo)


def test_16_bits_are_scaled_and_never_clipped(tmp_path: Path) -> None:
    deep = np.linspace(0, 65_535, 64, dtype=np.uint16).reshape(8, 8)
    expected = (deep // 256).astype(np.uint8)
    assert expected.max() == 255 and len(np.unique(expected)) == 64
    assert np.array_equal(np.asarray(decode(saved(tmp_path, Image.fromarray(deep), "deep.png"))), expected)
    assert np.array_equal(np.asarray(decode(saved(tmp_path, Image.fromarray(deep), "deep.tiff"))), expected)
    assert np.array_equal(np.asarray(decode(deep)), expected)


def test_transparent_pixels_get_the_stated_background(tmp_path: Path) -> None:
    glass = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    for background in (0, 255):
        preprocess = COLOUR.model_copy(update={"background": background})
        assert (preprocess.resized(saved(tmp_path, glass, "glass.png")) == background).all()
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    path = saved(tmp_path, palette, "palette.png", transparency=0)
    assert (COLOUR.resized(path) == 0).all()
    assert COLOUR.resized(saved(tmp_path, palette, "opaque.png"))[:, 0, 0].tolist() == [10, 20, 30]
    half = Image.new("LA", (8, 8), (200, 128))
    assert abs(int(GREY.resized(saved(tmp_path, half, "half.png"))[0, 0, 0]) - 100) <= 1


def test_cmyk_grey_black_and_white_and_animations_are_read(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    cmyk = saved(tmp_path, Image.fromarray(photo).convert("CMYK"), "cmyk.jpg", quality=100)
    assert np.abs(np.asarray(decode(cmyk)).astype(int) - photo).mean() < 4
    bilevel = saved(tmp_path, Image.fromarray(photo).convert("1"), "bilevel.png")
    assert set(np.unique(np.asarray(decode(bilevel)))) <= {0, 255}
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    animation = saved(tmp_path, frames[0], "animation.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(decode(animation))[0, 0].tolist() == [255, 0, 0]


def test_arrays_pillow_pictures_and_files_give_the_same_input(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    path = saved(tmp_path, Image.fromarray(photo), "photo.png")
    expected = COLOUR(path)
    assert torch.equal(COLOUR(str(path)), expected)
    assert torch.equal(COLOUR(photo), expected)
    assert torch.equal(COLOUR(Image.fromarray(photo)), expected)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((8, 8)), "float64 and shape"),
        (np.zeros((8, 8, 600), np.uint8), "has 600 channels"),
        (np.zeros((8, 8, 2, 2), np.uint8), r"shape \(8, 8, 2, 2\)"),
        (np.zeros((0, 8), np.uint8), r"shape \(0, 8\)"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(array: NDArray[np.uint8], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        decode(array)


def test_files_that_are_no_pictures_are_named(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    buffer = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(buffer, "JPEG")
    files = {
        "text.jpg": (b"not a picture", "is not a picture that Vitral reads"),
        "empty.png": (b"", "is empty"),
        "cut.jpg": (buffer.getvalue()[:900], "is damaged and cannot be read"),
        "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not a picture that Vitral reads"),
    }
    for name, (content, sentence) in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=sentence) as told:
            decode(tmp_path / name)
        assert name in str(told.value)
    with pytest.raises(DataError, match="is a folder"):
        decode(tmp_path)
    with pytest.raises(DataError, match="is not there"):
        decode(tmp_path / "missing.png")
    with pytest.raises(DataError, match="holds decimal numbers"):
        decode(saved(tmp_path, Image.fromarray(np.zeros((4, 4), np.float32)), "float.tiff"))


def test_a_bomb_is_not_opened_and_a_large_scan_is(tmp_path: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    with pytest.raises(DataError, match="20,000 × 20,000 pixels. More than 250 million are not opened"):
        decode(tmp_path / "bomb.png")
    Image.new("1", (15_000, 13_000)).save(tmp_path / "scan.png")  # more than Pillow itself would open
    assert decode(tmp_path / "scan.png").size == (15_000, 13_000)


def test_decoding_in_threads_leaves_the_process_as_it_was(tmp_path: Path, photo: NDArray[np.uint8]) -> None:
    path = saved(tmp_path, Image.fromarray(photo), "photo.png")
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(decode, [path] * 400))) == 400
    assert warnings.filters == before


def test_a_pillow_picture_that_is_cut_off_is_told(photo: NDArray[np.uint8]) -> None:
    buffer = BytesIO()
    Image.fromarray(photo).save(buffer, "JPEG")
    with pytest.raises(DataError, match="is damaged"):
        decode(Image.open(BytesIO(buffer.getvalue()[:-30])))
    for values in ([[0, 70_000]], [[0, 200]]):  # what they mean must not depend on the other pictures' values
        with pytest.raises(DataError, match="whole numbers of 32 bits"):
            decode(Image.fromarray(np.array(values, np.int32)))


# Preprocessing


def test_a_picture_of_the_right_size_is_not_touched(seven: NDArray[np.uint8]) -> None:
    assert np.array_equal(GREY.resized(seven)[0], seven)


sides = st.integers(1, 60)


@given(height=sides, width=sides, out=st.tuples(sides, sides))
@example(height=225, width=225, out=(224, 224))  # once a box offset of −1e-14
@settings(max_examples=200)
def test_crop_takes_the_largest_centred_part(height: int, width: int, out: tuple[int, int]) -> None:
    """A ramp cut at the centre stays a ramp with the same middle, whatever the sizes."""
    ramp = np.broadcast_to(np.linspace(0, 240, width), (height, width)).round().astype(np.uint8)
    resized = GREY.model_copy(update={"image_size": out}).resized(np.ascontiguousarray(ramp))
    assert resized.shape == (1, *out)
    assert abs(float(resized.mean()) - float(ramp.mean())) < 4 + 240 / min(width, out[1])


def test_normalise_is_pixel_over_255_minus_mean_over_std() -> None:
    preprocess = Preprocess(image_size=(1, 1), channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    out = preprocess(np.array([[[0, 51, 255]]], np.uint8))
    torch.testing.assert_close(out[:, 0, 0], torch.tensor([-0.2, 0.0, 0.35]))


def test_a_preprocessing_that_cannot_be_is_refused() -> None:
    for wrong in ({"mean": (0.5,)}, {"std": (1.0, 0.0, 1.0)}, {"channels": 0}, {"image_size": (0, 8)}):
        with pytest.raises(RecipeError):
            Preprocess.read({**COLOUR.write(), **wrong})


# Augmentation and batches


def affine(images: torch.Tensor, **how: Any) -> torch.Tensor:
    """One picture moved by exactly this much, through the matrices that augmentation uses."""
    given = {"angle": 0.0, "zoom": 1.0, "slant": 0.0, "shift": (0.0, 0.0)} | how
    matrices = affine_matrices(
        angle=np.array([given["angle"]], float),
        zoom=np.array([given["zoom"]], float),
        slant=np.array([given["slant"]], float),
        shift=np.array([given["shift"]], float).T,
        aspect=images.shape[-1] / images.shape[-2],
    )
    grid = torch.nn.functional.affine_grid(torch.from_numpy(matrices).float(), list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def test_geometry_is_as_the_schema_says() -> None:
    images = torch.rand(1, 1, 8, 8)
    torch.testing.assert_close(affine(images), images)
    quarter = affine(images, angle=np.pi / 2)  # clockwise, as one sees it
    torch.testing.assert_close(quarter, images.rot90(-1, dims=(2, 3)), rtol=0, atol=1e-5)
    moved = affine(images, shift=(0.25, 0.5))  # across by 2 of 8, down by 4 of 8
    torch.testing.assert_close(moved[:, :, 4:, 2:], images[:, :, :4, :-2], rtol=0, atol=1e-5)
    assert not moved[:, :, :4].any()
    dot = torch.zeros(1, 1, 9, 9)
    dot[0, 0, 4, 7] = 1  # 3 to the right of the centre
    assert affine(dot, zoom=4 / 3)[0, 0, 4, 8] > 0.5  # now 4 to the right
    dot = torch.zeros(1, 1, 9, 9)
    dot[0, 0, 7, 4] = 1  # 3 below the centre
    assert affine(dot, slant=1.0)[0, 0, 7, 7] > 0.99  # a row 3 down moves 3 across
    wide = torch.zeros(1, 1, 4, 8)
    wide[0, 0, 1:3, 5:7] = 1  # a square right of the centre turns into a square below it: pixels stay square
    turned = affine(wide, angle=np.pi / 2)
    assert turned[0, 0, 3, 3:5].min() > 0.99


def test_what_comes_in_from_outside_is_the_background() -> None:
    images = torch.full((4, 1, 8, 8), 200, dtype=torch.uint8)
    how = Augment(shift=1.0)
    out = augment(images, how, size=(8, 8), seed=0, epoch=0, samples=np.arange(4), background=255)
    assert out.min() >= 200 - 1e-3 and out.max() > 254


def test_no_augmentation_changes_nothing() -> None:
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(augment(images, Augment(), size=(8, 8), seed=0, epoch=0, samples=np.arange(4)), images.float())


def batches(batch_size: int = 64, seed: int = 0) -> Batches:
    how = Augment(rotate=10, zoom=0.1, shear=5, shift=0.1)
    return Batches(pack(open_source(Data(source="digits")), GREY, Path()), GREY, how, batch_size, seed)


def test_batches_start_at_any_step_with_the_same_bits() -> None:
    stream = batches().starting_at(1)
    from_the_start = dict(next(stream) for _ in range(40))
    for first in (1, 16, 17, 33):
        step, batch = next(batches().starting_at(first))
        assert step == first
        assert torch.equal(batch.images, from_the_start[first].images)
        assert torch.equal(batch.labels, from_the_start[first].labels)


def test_a_sample_looks_the_same_whatever_the_batch_size() -> None:
    def seen(batch_size: int) -> dict[int, torch.Tensor]:
        made = batches(batch_size)
        stream = made.starting_at(made.steps_per_epoch * 7 + 1)  # epoch 7
        found = [next(stream)[1] for _ in range(made.steps_per_epoch)]
        return {int(s): image for b in found for s, image in zip(b.samples, b.images, strict=True)}

    small, large = seen(49), seen(77)
    assert len(small) == len(large) == 1078
    assert all(torch.equal(small[sample], large[sample]) for sample in small)


def test_each_epoch_has_each_picture_once_in_a_new_order() -> None:
    made = batches(77)
    stream = made.starting_at(1)
    epochs = [np.concatenate([next(stream)[1].samples for _ in range(14)]) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(made.samples)
    assert not np.array_equal(epochs[0], epochs[1])
    _, other_seed = next(batches(77, seed=1).starting_at(1))
    assert not np.array_equal(epochs[0][:77], other_seed.samples)


def test_a_set_smaller_than_a_batch_is_one_batch() -> None:
    made = batches(5000)
    assert made.steps_per_epoch == 1
    assert len(next(made.starting_at(1))[1].labels) == 1078
