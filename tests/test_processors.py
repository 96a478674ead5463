"""The pixels of other libraries: the same, to the bit, from the settings that stand beside their weights."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from vitral import DataError, Preprocess, RecipeError, WeightsError
from vitral.data.batches import Batches, in_order
from vitral.data.config import AsItIs, Augment, Data, Resize, Scale
from vitral.data.pack import pack
from vitral.data.sources import open_source
from vitral.weights.processors import read_processor, read_timm, write_processor

FIXTURES = Path(__file__).parent / "fixtures"
PIXELS = FIXTURES / "hf_pixels"
SETTINGS = sorted(path.stem for path in PIXELS.glob("*.json") if path.stem != "about")
FOLDERS = sorted(path.parent.name for path in FIXTURES.glob("hf_*/preprocessor_config.json"))
PICTURES = ("picture_a", "picture_b")


def table(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), np.uint8))


def colour(size: tuple[int, int], resize: Any, **others: Any) -> Preprocess:
    return Preprocess(image_size=size, channels=3, resize=resize, mean=(0.5,) * 3, std=(0.25,) * 3, **others)


# What transformers gives


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_pixels_are_those_of_transformers(setting: str, picture: str) -> None:
    found = read_processor(table(PIXELS / f"{setting}.json"), (48, 48))(PIXELS / f"{picture}.png")
    if setting == "vit_bilinear_upscale_110x140":
        found = found[:, ::2, ::2]  # the fixture keeps every other pixel, to save room
    assert torch.equal(found, load_file(PIXELS / "io.safetensors")[f"{setting}_pixel_values_{picture}"])


def test_there_are_seven_settings_and_many_folders() -> None:
    assert len(SETTINGS) == 7 and len(FOLDERS) >= 9


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_pixels_are_those_beside_the_weights(folder: str, picture: str) -> None:
    preprocess = read_processor(table(FIXTURES / folder / "preprocessor_config.json"), (16, 16))
    expected = load_file(FIXTURES / folder / "io.safetensors")[f"pixel_values_{picture}"]  # (1, 3, H, W)
    pixels = preprocess(FIXTURES / folder / f"{picture}.png")[None]
    if folder == "hf_dinov3":  # scaled in floats by torchvision: ours is its nearest in 8 bits
        torch.testing.assert_close(pixels, expected, rtol=0, atol=1 / 255 / min(preprocess.std))
    else:
        assert torch.equal(pixels, expected)


def as_transformers_normalises(image: np.ndarray[Any, Any], mean: list[float], std: list[float]) -> Tensor:
    """In float64 by 1/255, then float32: two roundings, where we have one."""
    rescaled = (image.astype(np.float64) * (1 / 255)).astype(np.float32)
    return torch.from_numpy((rescaled - np.array(mean, np.float32)) / np.array(std, np.float32)).permute(2, 0, 1)


@given(mean=st.floats(0, 1), std=st.floats(0.01, 1))
def test_every_level_is_normalised_as_transformers_does(mean: float, std: float) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    preprocess = Preprocess(image_size=(16, 16), channels=1, resize=AsItIs(), mean=(mean,), std=(std,))
    assert torch.equal(preprocess(levels), as_transformers_normalises(levels, [mean], [std]))


@given(height=st.integers(3, 60), width=st.integers(3, 60), edge=st.integers(4, 30), seen=st.integers(4, 30))
def test_any_picture_is_cut_as_transformers_does(height: int, width: int, edge: int, seen: int) -> None:
    """Word for word: `int(edge * long / short)`, a crop from `(size - crop) // 2`, zeros outside."""
    picture = noise(height, width)
    short, long = sorted((height, width))
    longer = int(edge * long / short)
    scaled = np.asarray(picture.resize((edge, longer) if width <= height else (longer, edge), Image.Resampling.BICUBIC))
    expected = np.zeros((seen, seen, 3), np.uint8)
    for row in range(seen):
        for column in range(seen):
            y, x = row + (scaled.shape[0] - seen) // 2, column + (scaled.shape[1] - seen) // 2
            if 0 <= y < scaled.shape[0] and 0 <= x < scaled.shape[1]:
                expected[row, column] = scaled[y, x]
    values = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": edge}, "crop_size": seen}
    assert np.array_equal(read_processor(values, (1, 1)).resized(picture), expected.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("values", "resize", "size"),
    [
        ({}, "stretch", (224, 224)),
        ({"size": 96}, "stretch", (96, 96)),
        ({"feature_extractor_type": "ViTFeatureExtractor", "size": [24, 32]}, "stretch", (24, 32)),
        ({"image_processor_type": "DeiTImageProcessor"}, {"kind": "stretch", "share": 0.875}, (224, 224)),
        ({"feature_extractor_type": "DeiTFeatureExtractor", "size": 64, "crop_size": 64}, "stretch", (64, 64)),
        ({"image_processor_type": "CLIPImageProcessor", "size": 224, "crop_size": 224}, "shortest", (224, 224)),
        (
            {"image_processor_type": "BitImageProcessorFast", "size": 256},
            Scale(kind="shortest", share=0.875),
            (224, 224),
        ),
        ({"image_processor_type": "SiglipImageProcessor"}, "stretch", (224, 224)),
        ({"image_processor_type": "ConvNextImageProcessor"}, "stretch", (384, 384)),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": 224},
            Scale(kind="shortest", share=0.875),
            (224, 224),
        ),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 96, "crop_pct": 1}, "shortest", (96, 96)),
        ({"do_resize": False, "do_center_crop": None}, "none", (32, 48)),
    ],
)
def test_processors_are_understood(values: dict[str, Any], resize: Any, size: tuple[int, int]) -> None:
    found = read_processor(values, (32, 48))
    assert found.image_size == size
    assert found.resize == colour(size, resize).resize


def test_what_is_left_out_has_the_default_of_its_class() -> None:
    vit, clip = read_processor({}, (1, 1)), read_processor({"image_processor_type": "CLIPImageProcessor"}, (1, 1))
    assert (vit.interpolation, clip.interpolation) == ("bilinear", "bicubic")
    assert (vit.mean, clip.mean[0], clip.background) == ((0.5,) * 3, 0.48145466, 255)
    plain = read_processor({"do_normalize": False}, (1, 1))
    assert (plain.mean, plain.std) == ((0.0,) * 3, (1.0,) * 3)
    assert read_processor({"image_mean": [0.1], "image_std": [0.3]}, (1, 1)).channels == 1


def test_filters_are_those_of_pillow() -> None:
    names = [read_processor({"resample": number}, (1, 1)).interpolation for number in range(6)]
    assert names == ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]


# What timm gives


def as_timm_does(values: Mapping[str, Any], picture: Image.Image) -> Tensor:
    """`transforms_imagenet_eval` and torchvision's Resize, CenterCrop, ToTensor and Normalize, word for word."""
    _, height, width = values["input_size"]
    resampling = Image.Resampling[values["interpolation"].upper()]
    tall, wide = math.floor(height / values["crop_pct"]), math.floor(width / values["crop_pct"])
    if values["crop_mode"] == "center":
        short, long = sorted(picture.size)
        longer = int(tall * long / short)
        tall, wide = (longer, tall) if picture.width <= picture.height else (tall, longer)
    picture = picture.resize((wide, tall), resampling)
    if width > wide or height > tall:
        left, top = max(0, width - wide) // 2, max(0, height - tall) // 2
        padded = Image.new(picture.mode, (max(width, wide), max(height, tall)))
        padded.paste(picture, (left, top))
        picture = padded
    top, left = int(round((picture.height - height) / 2.0)), int(round((picture.width - width) / 2.0))
    pixels = torch.from_numpy(np.array(picture.crop((left, top, left + width, top + height)))).permute(2, 0, 1)
    mean, std = torch.tensor(values["mean"])[:, None, None], torch.tensor(values["std"])[:, None, None]
    return pixels.float().div(255).sub_(mean).div_(std)


@given(
    height=st.integers(5, 90),
    width=st.integers(5, 90),
    side=st.integers(8, 40),
    crop_pct=st.sampled_from([0.875, 0.9, 0.95, 0.965, 1.0, 1.1]),
    crop_mode=st.sampled_from(["center", "squash"]),
)
def test_pixels_are_those_of_timm(height: int, width: int, side: int, crop_pct: float, crop_mode: str) -> None:
    values = {
        "input_size": [3, side, side],
        "interpolation": "bicubic",
        "crop_pct": crop_pct,
        "crop_mode": crop_mode,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
    picture = noise(height, width)
    assert torch.equal(read_timm(values)(picture), as_timm_does(values, picture))


def test_timm_squashes_to_any_shape() -> None:
    values = {"input_size": (3, 20, 36), "crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bilinear"}
    values |= {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    assert torch.equal(read_timm(values)(noise(50, 40)), as_timm_does(values, noise(50, 40)))
    assert read_timm(values).write()["resize"] == "stretch"  # there is no margin to round


def test_an_empty_config_of_timm_means_its_defaults() -> None:
    found = read_timm({"url": "", "crop_pct": None, "architecture": "vit_tiny_patch16_224"})
    assert found.image_size == (224, 224) and found.mean == (0.485, 0.456, 0.406)
    assert found.resize == Scale(kind="shortest", share=0.875, rounding="even")


# What is written for transformers


@pytest.mark.parametrize("setting", SETTINGS)
def test_written_and_read_again_it_is_the_same(setting: str) -> None:
    read = read_processor(table(PIXELS / f"{setting}.json"), (48, 48))
    again = read_processor(json.loads(json.dumps(write_processor(read))), (48, 48))
    assert again == read.model_copy(update={"background": 255})  # transformers puts colour pictures on white


@pytest.mark.parametrize(
    ("resize", "name", "size"),
    [
        ("stretch", "ViTImageProcessor", {"height": 32, "width": 48}),
        ({"kind": "stretch", "share": 0.8}, "DeiTImageProcessor", {"height": 40, "width": 60}),
        ("shortest", "BitImageProcessor", {"shortest_edge": 32}),
        ({"kind": "shortest", "share": 0.8, "rounding": "even"}, "BitImageProcessor", {"shortest_edge": 40}),
        ("none", "ViTImageProcessor", {"height": 32, "width": 48}),
    ],
)
def test_each_kind_has_its_processor(resize: Any, name: str, size: dict[str, int]) -> None:
    written = write_processor(colour((32, 48), resize, interpolation="lanczos"))
    assert (written["image_processor_type"], written["size"], written["resample"]) == (name, size, 1)
    assert written["do_resize"] == (resize != "none")
    if "share" in resize:
        assert written["crop_size"] == {"height": 32, "width": 48}


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_our_own_crop_of_a_square_has_a_near_one(share: float) -> None:
    ours = colour((48, 48), Resize(share=share))
    near = read_processor(write_processor(ours), (48, 48))
    assert near.resize == Scale(kind="shortest", share=near.resize.share)  # type: ignore[union-attr]
    # A slope of 2 levels a pixel tells how far aside it lies: less than a pixel of the output.
    slope = np.broadcast_to(np.arange(0, 120, dtype=np.uint8)[None, :, None] * 2, (77, 120, 3))
    apart = ours.resized(np.ascontiguousarray(slope)).astype(int) - near.resized(np.ascontiguousarray(slope))
    assert np.abs(apart).max() <= 2 * 77 / 48 + 1


def test_what_transformers_cannot_do_is_not_written() -> None:
    with pytest.raises(WeightsError, match="cannot crop a picture to the shape 32 × 48"):
        write_processor(colour((32, 48), "crop"))
    bands = Preprocess(image_size=(8, 8), channels=4, resize=Scale(), mean=(0.0,) * 4, std=(1.0,) * 4)
    with pytest.raises(WeightsError, match="4 bands"):
        write_processor(bands)


# What cannot be


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"image_processor_type": "ViltImageProcessorFast"},
            "ViltImageProcessorFast is not .* knows ViTImage",
        ),
        ({"rescale_factor": 1 / 127.5}, "multiplies pixels by 0.00784.*only by 1/255"),
        ({"do_rescale": False}, "multiplies pixels by 1,"),
        ({"do_pad": True}, "do_pad"),
        ({"size": {"shortest_edge": 24}}, "many sizes"),
        ({"size": {"shortest_edge": 24, "longest_edge": 48}}, "size is .* should have height and width"),
        ({"size": {"height": 24, "width": "24"}}, "size is '24', and should be a whole number"),
        ({"size": 0}, "size is 0"),
        ({"size": True}, "size is True"),
        ({"size": "224"}, "size is '224'"),
        ({"size": 9000}, "size is 9000"),
        ({"do_resize": False, "do_center_crop": True}, "has not resized"),
        ({"do_center_crop": True, "crop_size": {"height": 8, "width": 8}, "size": {"height": 9, "width": 12}}, "8 × 8"),
        ({"do_center_crop": True, "crop_size": 8, "size": 200}, "8 × 8 pixels out of 200 × 200"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": {"height": 9, "width": 9}}, "shortest_edge"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 96, "crop_pct": 0}, "crop_pct is 0"),
        ({"resample": 6}, r"resample is 6, and should be one of 0 \(nearest\)"),
        ({"resample": "bicubic"}, "resample is 'bicubic'"),
        ({"image_mean": 0.5}, "image_mean is 0.5, and should be a list"),
        ({"image_mean": [0.5, 0.5]}, "one a channel"),
        ({"image_std": [0.5, 0.5, 0.0]}, "not above 0"),
        ({"image_std": [0.5, 0.5, math.inf]}, "cannot be"),
        ({"image_mean": [0.5, 0.5, 10**400]}, "cannot be"),
    ],
)
def test_a_processor_that_cannot_be_held_is_answered_by_a_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        read_processor(values, (16, 16))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"crop_mode": "border"}, "crop_mode is 'border'"),
        ({"input_size": [3, 24, 40]}, "24 × 40"),
        ({"input_size": [3, 7, 40], "crop_mode": "squash"}, "7 × 40 pixels out of 8 × 45"),
        ({"input_size": 224}, "input_size is 224"),
        ({"input_size": [3, 224]}, r"input_size is \[3, 224\]"),
        ({"input_size": [3, 4, 4], "crop_pct": 50}, "4 × 4 pixels out of 0 × 0"),
        ({"crop_pct": "0.9"}, "crop_pct is '0.9'"),
        ({"crop_pct": -1}, "crop_pct is -1"),
        ({"interpolation": "random"}, "interpolation is 'random'"),
        ({"interpolation": ["bicubic"]}, "interpolation is"),
        ({"input_size": [1, 16, 16]}, "need 1 numbers"),
        ({"mean": "0.5"}, "mean is '0.5'"),
    ],
)
def test_a_config_of_timm_that_cannot_be_held_is_answered_by_a_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        read_timm(values)


@pytest.mark.parametrize("values", [[], "ViTImageProcessor", None])
def test_no_table_is_answered_by_a_sentence(values: Any) -> None:
    with pytest.raises(WeightsError, match="table"):
        read_processor(values, (16, 16))
    with pytest.raises(WeightsError, match="table"):
        read_timm(values)


def test_pictures_that_cannot_be_resized_so_are_answered_by_a_sentence() -> None:
    assert np.array_equal(colour((9, 7), "none").resized(noise(9, 7)), np.asarray(noise(9, 7)).transpose(2, 0, 1))
    with pytest.raises(DataError, match="has 7 × 9 pixels, and the model takes 9 × 7"):
        colour((9, 7), "none").resized(noise(7, 9))
    # A thread of a picture would become 3 GB on the way to 8,000 pixels.
    with pytest.raises(DataError, match="too large"):
        colour((8_000, 8_000), "shortest").resized(Image.new("RGB", (50, 1)))


@pytest.mark.parametrize(
    ("resize", "words"),
    [
        ("squeeze", '"squeeze", and should be .*"crop"'),
        ({"kind": "stretch", "share": 0.01}, "resize.share is 0.01, and should be at least 0.1"),
        ({"kind": "crop", "share": 1.5}, "resize.share is 1.5, and should be at most 1"),
        ({"kind": "crop", "rounding": "even"}, "rounding does not go with the kind"),
        ({"kind": "none", "share": 0.9}, "share does not go with the kind"),
        ({"kind": "shortest", "rounding": "up"}, 'rounding is "up", and should be "down" or "even"'),
    ],
)
def test_words_of_resize_that_do_not_exist(resize: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        colour((8, 8), resize)
    with pytest.raises(RecipeError, match=words):
        Data(resize=resize)


# Stored, packed, trained with


@pytest.mark.parametrize(
    ("resize", "stored"),
    [
        ("crop", "crop"),
        (Resize(share=0.875), {"kind": "crop", "share": 0.875}),
        ("stretch", "stretch"),
        ("shortest", "shortest"),
        (Scale(kind="shortest", share=0.875), {"kind": "shortest", "share": 0.875, "rounding": "down"}),
        (AsItIs(), "none"),
    ],
)
def test_settings_are_stored_as_short_as_they_can_be(resize: Any, stored: Any) -> None:
    preprocess = colour((8, 8), resize)
    assert preprocess.write()["resize"] == stored
    assert Preprocess.read(preprocess.write()) == preprocess
    assert Data.read(Data(resize=resize).write()).resize == preprocess.resize


def test_packs_that_were_made_before_are_found_again() -> None:
    """As the first Vitral named them: a pack of `crop` says neither its share nor how it rounds."""
    asked = {"channels": 3, "background": 0, "interpolation": "bicubic", "jpeg": "full", "size": [16, 16]}
    asked |= {"resize": "crop", "by": [1, PIL.__version__]}
    stage = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    assert colour((16, 16), "crop").stage == colour((14, 14), Resize(share=0.875)).stage == stage
    others = [colour((16, 16), resize).stage for resize in ("stretch", "shortest", "none")]
    others += [colour((16, 16), {"kind": "shortest", "share": 0.9, "rounding": way}).stage for way in ("down", "even")]
    assert len({stage, *others}) == 6


@pytest.mark.parametrize(
    "resize",
    ["stretch", "shortest", {"kind": "shortest", "share": 0.9, "rounding": "even"}, {"kind": "stretch", "share": 1.2}],
)
def test_packs_hold_what_the_model_sees(tmp_path: Path, resize: Any) -> None:
    for number in range(8):
        path = tmp_path / "pictures" / ("cats", "dogs")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise(30 + 3 * number, 50 - 2 * number).save(path)
    index = open_source(Data(source=str(tmp_path / "pictures"), validation=0.25))
    preprocess = colour((16, 12), resize)
    made = pack(index, preprocess, tmp_path)
    assert made.images.shape == (8, 3, 16, 12)
    for batch in in_order(made, np.arange(8), preprocess):
        for image, number in zip(batch.images, batch.samples, strict=True):
            assert torch.equal(image, preprocess(tmp_path / "pictures" / index.samples[number]))
    plain = Batches(made, preprocess, Augment(), batch_size=4, seed=0, workers=0)
    _, batch = next(plain.starting_at(1))
    for image, number in zip(batch.images, batch.samples, strict=True):
        assert torch.equal(image, preprocess(tmp_path / "pictures" / index.samples[number]))
    changed = Batches(made, preprocess, Augment(crop=0.5, flip="random"), batch_size=4, seed=0, workers=0)
    assert next(changed.starting_at(1))[1].images.shape == (4, 3, 16, 12)


def test_pictures_of_bands_are_scaled_likewise() -> None:
    bands = np.random.default_rng(0).integers(0, 256, (30, 20, 5), np.uint8)
    five = Preprocess(image_size=(8, 8), channels=5, resize=Scale(kind="shortest"), mean=(0.0,) * 5, std=(1.0,) * 5)
    grey = five.model_copy(update={"channels": 1, "mean": (0.0,), "std": (1.0,)})
    alone = [grey.resized(np.ascontiguousarray(bands[:, :, band]))[0] for band in range(5)]
    assert np.array_equal(five.resized(bands), np.stack(alone))


def test_large_jpegs_are_decoded_at_twice_the_scaled_size(tmp_path: Path) -> None:
    large = noise(40, 50).resize((1000, 800))
    large.save(tmp_path / "large.jpg", quality=95)
    for resize in ("stretch", {"kind": "shortest", "share": 0.5}):
        full, scaled = (colour((48, 48), resize, jpeg=how) for how in ("full", "scaled"))
        assert scaled.at_least == ((96, 96) if resize == "stretch" else (192, 192))
        apart = full.resized(tmp_path / "large.jpg").astype(int) - scaled.resized(tmp_path / "large.jpg")
        assert 0 < np.abs(apart).mean() < 4
    assert colour((800, 1000), "none", jpeg="scaled").resized(tmp_path / "large.jpg").shape == (3, 800, 1000)
