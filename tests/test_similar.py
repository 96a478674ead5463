"""Copies of photographs are found, whatever was done to them, and pictures that only look alike are left alone."""

import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from vitral.data.similar import SIDE, Pair, near_duplicates, thumbnail
from vitral.progress import Progress

PLANTED = 50  # of each defect


def saved(image: Image.Image, quality: int = 95) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def resized(image: Image.Image, draw: random.Random) -> Image.Image:
    scale = draw.uniform(0.3, 0.8)
    return saved(image.resize((round(image.width * scale), round(image.height * scale))))


def recompressed(image: Image.Image, draw: random.Random) -> Image.Image:
    return saved(image, draw.randint(30, 70))


def mirrored(image: Image.Image, draw: random.Random) -> Image.Image:
    return saved(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))


def cropped(image: Image.Image, draw: random.Random) -> Image.Image:
    width, height = round(0.95 * image.width), round(0.95 * image.height)
    left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
    return saved(image.crop((left, top, left + width, top + height)))


DEFECTS = {resized: 0.95, recompressed: 0.95, mirrored: 0.95, cropped: 0.80}  # with the share that must be found


@pytest.fixture(scope="module")
def clouds() -> list[Image.Image]:
    """Coloured noise with the spectrum of photographs: the amplitude falls with the frequency."""
    frequency = np.hypot(np.fft.fftfreq(128)[:, None], np.fft.rfftfreq(128)).clip(1 / 128)  # (128, 65)
    noise = np.fft.rfft2(np.random.default_rng(0).normal(size=(150, 3, 128, 128)))
    waves = np.fft.irfft2(noise / frequency)  # (150, 3, 128, 128)
    pixels = (128 + 40 * waves / waves.std(axis=(2, 3), keepdims=True)).clip(0, 255).astype(np.uint8)
    return [Image.fromarray(picture) for picture in pixels.transpose(0, 2, 3, 1)]


def stacked(images: list[Image.Image]) -> NDArray[np.uint8]:
    return np.stack([thumbnail(image) for image in images])


def places(pairs: list[Pair]) -> set[tuple[int, int, bool]]:
    return {(pair.first, pair.second, pair.flipped) for pair in pairs}


def assert_copies_are_found(images: list[Image.Image], seed: int) -> None:
    draw = random.Random(seed)
    planted = [(defect, place) for defect in DEFECTS for place in draw.sample(range(len(images)), PLANTED)]
    copies = [defect(images[place], draw) for defect, place in planted]
    original = [*range(len(images)), *(place for _, place in planted)]
    found = places(near_duplicates(stacked(images + copies)))

    for defect, share in DEFECTS.items():
        wanted = {
            (place, len(images) + copy, defect is mirrored) for copy, (of, place) in enumerate(planted) if of is defect
        }
        assert len(wanted & found) >= share * PLANTED, defect.__name__
    strangers = {
        original[place]
        for first, second, _ in found
        if original[first] != original[second]
        for place in (first, second)
    }
    assert len(strangers) <= 0.01 * len(images)


def test_copies_are_found(clouds: list[Image.Image]) -> None:
    assert_copies_are_found(clouds, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["imagenette-mini", "food", "ants-bees"])
def test_copies_in_a_real_set_are_found(name: str, large_data: Callable[[str], Path]) -> None:
    files = sorted(path for path in large_data(name).glob("*/*/*") if path.is_file())[::2]
    assert_copies_are_found([Image.open(path).convert("RGB") for path in files], seed=1)


def test_handwritten_digits_that_look_alike_are_no_copies() -> None:
    images = [Image.fromarray((digit * 15.9).astype(np.uint8)) for digit in load_digits().images[:600]]
    flagged = {place for pair in near_duplicates(stacked(images)) for place in (pair.first, pair.second)}
    assert len(flagged) < 0.01 * len(images)


def test_an_exact_copy_is_always_found() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 3, SIDE, SIDE), np.uint8)
    noise[0] = 0
    found = near_duplicates(np.concatenate([noise, noise]))
    assert {(n, n + 20) for n in range(20)} <= {(pair.first, pair.second) for pair in found if pair.similarity == 1}


def test_the_order_of_the_pictures_does_not_matter(clouds: list[Image.Image]) -> None:
    draw = random.Random(0)
    pictures = stacked(
        clouds + [cropped(cloud, draw) for cloud in clouds[::2]] + [mirrored(cloud, draw) for cloud in clouds]
    )
    order = np.random.default_rng(0).permutation(len(pictures))
    shuffled = near_duplicates(pictures[order])
    back = {(*sorted((int(order[p.first]), int(order[p.second]))), p.flipped) for p in shuffled}
    assert back == places(near_duplicates(pictures))


def test_pictures_of_one_colour_are_copies_only_of_the_same_colour() -> None:
    colours = np.array([0, 255, 7, 8, 7], np.uint8)
    pictures = np.broadcast_to(colours[:, None, None, None], (5, 3, SIDE, SIDE))
    assert near_duplicates(pictures) == [Pair(2, 4, 1.0, False)]


def test_the_same_shape_in_another_colour_is_another_picture() -> None:
    shape = np.random.default_rng(0).integers(0, 100, (SIDE, SIDE), np.uint8)
    plain = np.stack([shape, shape, shape])
    assert near_duplicates(np.stack([plain, plain + np.array([100, 0, 0], np.uint8)[:, None, None]])) == []


@pytest.mark.parametrize("count", [0, 1])
def test_few_pictures_have_no_copies(count: int) -> None:
    assert near_duplicates(np.zeros((count, 3, SIDE, SIDE), np.uint8)) == []


def test_progress_ends_with_all_pictures() -> None:
    stages: list[Progress] = []
    noise = np.random.default_rng(0).integers(0, 256, (1100, 3, SIDE, SIDE), np.uint8)
    near_duplicates(np.concatenate([noise, noise[:5, :, :, ::-1]]), stages.append)
    assert stages[0] == Progress(0, 1105, "comparing them") and Progress(1105, 1105, "comparing them") in stages
    assert stages[-1].doing == "those alike" and stages[-1].done == stages[-1].total >= 5


def test_what_transparent_pixels_hide_does_not_count() -> None:
    clear = [Image.new("RGBA", (40, 40), (level, 0, 0, 0)) for level in (0, 255)]
    assert (thumbnail(clear[0]) == thumbnail(clear[1])).all()
    assert thumbnail(Image.new("LA", (40, 40), (0, 255))).shape == (3, SIDE, SIDE)


def test_an_index_finds_what_comparing_each_with_each_finds(clouds: list[Image.Image]) -> None:
    pytest.importorskip("usearch", reason="usearch is not installed (pip install 'vitral[test]')")
    draw = random.Random(3)
    copies = [defect(image, draw) for image in clouds for defect in DEFECTS]
    thumbnails = stacked(clouds + copies)
    wanted, found = (places(near_duplicates(thumbnails, by_index=by_index)) for by_index in (False, True))
    assert (
        len(wanted) > 1000 and len(wanted & found) >= 0.98 * len(wanted) and len(found - wanted) <= 0.01 * len(wanted)
    )
    assert places(near_duplicates(thumbnails, by_index=True)) == found  # the same each time
    some = np.arange(0, len(thumbnails), 3)
    among_some = places(near_duplicates(thumbnails, numbers=some))
    assert among_some and {place for first, second, _ in among_some for place in (first, second)} <= set(some.tolist())
