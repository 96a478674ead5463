"""Augmentation: each operation is what Pillow does, and what happens to a picture depends on that picture alone."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_sample_image
from torch import Tensor

from vitral.data.augment import augment, colour, mix, moved
from vitral.data.augment.draws import Draws
from vitral.data.augment.geometry import rectangle, resample
from vitral.data.augment.policies import OPERATIONS, RAND, WIDE, Range, Round
from vitral.data.config import Augment, Policy

CHINA = Image.fromarray(load_sample_image("china.jpg")).crop((180, 100, 276, 180))  # 96 wide, 80 high: roofs and sky


def tensor(image: Image.Image) -> Tensor:  # (1, C, H, W) of whole numbers
    return torch.from_numpy(np.array(image, np.float32)).reshape(image.height, image.width, -1).permute(2, 0, 1)[None]


def pictures(count: int, channels: int = 3, height: int = 12, width: int = 12) -> Tensor:  # (B, C, H, W) of uint8
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)


def augmented(images: Tensor, how: Augment, **given: Any) -> Tensor:
    """With everything that is not the matter of a test filled in."""
    usual: dict[str, Any] = {"size": tuple(images.shape[2:]), "seed": 0, "epoch": 0, "samples": np.arange(len(images))}
    return augment(images, how, **(usual | given))


# Against Pillow


def pillow_hue(image: Image.Image, turn: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.array(hue).astype(int) + round(turn * 255)) % 256
    return Image.merge("HSV", [Image.fromarray(turned.astype(np.uint8)), saturation, value]).convert("RGB")


# Ours, theirs, and how many levels they may be apart. Pillow cuts off the fraction that we keep: that is the 1. Where
# it rounds before, it is 1.5. Its hue has 256 steps, and its blur rounds six times.
PILLOW: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Image.Image], Image.Image], float]] = {
    "darker": (lambda x: colour.brightness(x, 0.4), lambda i: ImageEnhance.Brightness(i).enhance(0.4), 1),
    "brighter": (lambda x: colour.brightness(x, 1.7), lambda i: ImageEnhance.Brightness(i).enhance(1.7), 1),
    "less contrast": (lambda x: colour.contrast(x, 0.3), lambda i: ImageEnhance.Contrast(i).enhance(0.3), 1),
    "more contrast": (lambda x: colour.contrast(x, 1.9), lambda i: ImageEnhance.Contrast(i).enhance(1.9), 1),
    "less colour": (lambda x: colour.saturation(x, 0.2), lambda i: ImageEnhance.Color(i).enhance(0.2), 1.5),
    "more colour": (lambda x: colour.saturation(x, 1.8), lambda i: ImageEnhance.Color(i).enhance(1.8), 1.5),
    "smoother": (lambda x: colour.sharpness(x, 0.1), lambda i: ImageEnhance.Sharpness(i).enhance(0.1), 1.5),
    "sharper": (lambda x: colour.sharpness(x, 1.9), lambda i: ImageEnhance.Sharpness(i).enhance(1.9), 1.5),
    "grayscale": (colour.grayscale, lambda i: i.convert("L").convert("RGB"), 0.51),
    "solarize": (lambda x: colour.solarize(x, 128), lambda i: ImageOps.solarize(i, 128), 0),
    "solarize at 40": (lambda x: colour.solarize(x, 40), lambda i: ImageOps.solarize(i, 40), 0),
    "invert": (lambda x: colour.solarize(x, 0), ImageOps.invert, 0),
    "posterize to 4": (lambda x: colour.posterize(x, 4), lambda i: ImageOps.posterize(i, 4), 0),
    "posterize to 2": (lambda x: colour.posterize(x, 2), lambda i: ImageOps.posterize(i, 2), 0),
    "autocontrast": (colour.autocontrast, ImageOps.autocontrast, 1),
    "equalize": (colour.equalize, ImageOps.equalize, 0),
    "hue by 0.1": (lambda x: colour.hue(x, 0.1), lambda i: pillow_hue(i, 0.1), 4),
    "hue by -0.4": (lambda x: colour.hue(x, -0.4), lambda i: pillow_hue(i, -0.4), 4),
    "blur 0.4": (lambda x: colour.blur(x, 0.4), lambda i: i.filter(ImageFilter.GaussianBlur(0.4)), 3),
    "blur 1": (lambda x: colour.blur(x, 1.0), lambda i: i.filter(ImageFilter.GaussianBlur(1.0)), 3),
    "blur 2": (lambda x: colour.blur(x, 2.0), lambda i: i.filter(ImageFilter.GaussianBlur(2.0)), 3),
}


@pytest.mark.parametrize("name", PILLOW)
def test_colours_are_pillows(name: str) -> None:
    ours, theirs, most = PILLOW[name]
    apart = (ours(tensor(CHINA)) - tensor(theirs(CHINA))).abs()
    if name.startswith("blur"):  # Pillow goes on with the edge pixel after each of its three boxes, we before the first
        apart = apart[:, :, 6:-6, 6:-6]
    assert apart.max() <= most


@pytest.mark.parametrize("name", ["smoother", "more contrast", "autocontrast", "equalize", "posterize to 2", "invert"])
def test_one_channel_is_pillows_too(name: str) -> None:
    ours, theirs, most = PILLOW[name]
    grey = CHINA.convert("L")
    assert (ours(tensor(grey)) - tensor(theirs(grey))).abs().max() <= most


def pillow_affine(image: Image.Image, *coefficients: float) -> Tensor:
    return tensor(image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR))


def one_round(name: str, strength: float, full: Range = RAND, sign: float = 1.0) -> Round:
    return Round(np.array([OPERATIONS.index(name)]), np.array([strength]), np.array([sign]), full)


WIDTH, HEIGHT = CHINA.size
MOVES: dict[str, tuple[Round, Callable[[], Tensor]]] = {
    "shear_x": (one_round("shear_x", 1), lambda: pillow_affine(CHINA, 1, 0.3, 0, 0, 1, 0)),
    "shear_y": (one_round("shear_y", 1, sign=-1), lambda: pillow_affine(CHINA, 1, 0, 0, -0.3, 1, 0)),
    "shear wide": (one_round("shear_x", 1, WIDE), lambda: pillow_affine(CHINA, 1, 0.99, 0, 0, 1, 0)),
    "translate_x": (one_round("translate_x", 1), lambda: pillow_affine(CHINA, 1, 0, WIDTH * 150 / 331, 0, 1, 0)),
    "translate_y": (one_round("translate_y", 1), lambda: pillow_affine(CHINA, 1, 0, 0, 0, 1, HEIGHT * 150 / 331)),
    "translate wide": (one_round("translate_y", 1, WIDE, -1), lambda: pillow_affine(CHINA, 1, 0, 0, 0, 1, -32)),
    "rotate": (one_round("rotate", 1), lambda: tensor(CHINA.rotate(-30, Image.Resampling.BILINEAR))),
    "rotate wide": (one_round("rotate", 1, WIDE, -1), lambda: tensor(CHINA.rotate(135, Image.Resampling.BILINEAR))),
}


@pytest.mark.parametrize("name", MOVES)
def test_geometry_is_pillows(name: str) -> None:
    """To a level, but for the pixel at the border, which we blend with the outside and Pillow does not."""
    operation, theirs = MOVES[name]
    size = (HEIGHT, WIDTH)
    ours = resample(tensor(CHINA), operation.matrices(size), size)
    here = resample(torch.ones(1, 1, *size), operation.matrices(size), size) > 0.999
    assert here.float().mean() > 0.2
    assert ((ours - theirs()).abs() * here).max() <= 1.01


# What happens to a picture is its own affair

EVERYTHING = Augment(
    crop=0.3,
    rotate=10,
    zoom=0.1,
    shear=5,
    shift=0.1,
    pad=2,
    flip="random",
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.2,
    grayscale=0.3,
    solarize=0.3,
    blur=0.5,
    erase=0.5,
)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("policy", "outside"),
    [
        ("none", "mirror"),
        ("three", "background"),
        ("trivial", "mirror"),
        ({"kind": "rand", "operations": 3, "magnitude": 15}, "background"),
    ],
)
def test_neighbours_batch_size_and_threads_change_no_bit(
    policy: Any, outside: str, threads: Callable[[int], None]
) -> None:
    for images, size in ((pictures(64, 3, 13, 11), (12, 10)), (pictures(3, 3, 226, 224), (224, 224))):
        for how in (EVERYTHING, Augment(pad=3, flip="alternating", blur=1), Augment(rotate=30)):
            how = Augment.read(how.write() | {"policy": policy, "outside": outside})
            samples = 5 * np.arange(len(images))
            threads(2)
            whole = augmented(images, how, size=size, epoch=3, samples=samples, background=7)
            assert torch.get_num_threads() == 2
            order = np.random.default_rng(0).permutation(len(images))
            for count, each in ((1, 1), (2, 7), (1, 64)):
                threads(count)
                for start in range(0, len(images), each):
                    some = order[start : start + each]
                    part = augmented(images[some], how, size=size, epoch=3, samples=samples[some], background=7)
                    assert torch.equal(part, whole[some])


@pytest.mark.parametrize("policy", ["none", "three", "trivial", "rand"])
def test_pieces_change_no_bit(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(20, 3, 13, 11)
    for how in (EVERYTHING, Augment(pad=3, flip="random", erase=0.5)):
        how = Augment.read(how.write() | {"policy": policy})
        whole = augmented(images, how, size=(12, 10))
        for piece, large in ((1, 2**15), (3000, 2**15), (2**20, 1), (3000, 1)):
            with monkeypatch.context() as patch:
                patch.setattr("vitral.data.augment.PIECE", piece)
                patch.setattr("vitral.data.augment.change.LARGE", large)
                assert torch.equal(augmented(images, how, size=(12, 10)), whole)


def test_seed_epoch_sample_and_copy_each_change_the_picture() -> None:
    images = pictures(1).expand(6, -1, -1, -1)
    for how in (EVERYTHING, Augment(policy=Policy(kind="trivial"), crop=0.5), Augment(pad=4)):
        given: list[dict[str, Any]] = [{}, {"seed": 1}, {"epoch": 1}, {"samples": np.arange(6) + 6}, {"copies": 1}]
        seen = [augmented(images, how, **one) for one in given]
        assert len({one.numpy().tobytes() for one in seen}) == 5
        assert torch.equal(seen[-1], augmented(images, how, copies=np.ones(6, np.int64)))


def test_the_pictures_given_stay_as_they_are() -> None:
    images = pictures(4)
    before = images.clone()
    augmented(images, EVERYTHING)
    augmented(images, Augment(solarize=1, erase=1))
    assert torch.equal(images, before)


# Settings

ON: list[dict[str, Any]] = [
    {"crop": 0.5},
    {"rotate": 20},
    {"zoom": 0.3},
    {"shear": 20},
    {"shift": 0.3},
    {"pad": 3},
    {"flip": "random"},
    {"flip": "alternating"},
    {"brightness": 0.5},
    {"contrast": 0.5},
    {"saturation": 0.5},
    {"hue": 0.5},
    {"grayscale": 1},
    {"solarize": 1},
    {"blur": 1},
    {"policy": "three"},
    {"policy": "rand"},
    {"policy": "trivial"},
    {"erase": 1},
]


@pytest.mark.parametrize("how", ON, ids=str)
def test_each_setting_does_something(how: dict[str, Any]) -> None:
    images = pictures(16)
    changed = augmented(images, Augment.read(how))
    assert (changed != images.float()).flatten(1).any(1).sum() >= 5
    assert changed.dtype == torch.float32 and -1e-3 <= changed.min() and changed.max() <= 255 + 1e-3


def test_all_off_does_nothing() -> None:
    images = pictures(4, 5, 9, 7)
    assert torch.equal(augmented(images, Augment()), images.float())
    assert torch.equal(augmented(images, Augment(mixup=1, cutmix=1, repeats=4, outside="mirror")), images.float())
    assert torch.equal(augmented(images, Augment(), size=(6, 4)), images[:, :, 1:7, 1:5].float())


def test_a_turn_of_nothing_leaves_the_centre() -> None:
    """The resampled and the picked centre are the same pixels, even where the two sides differ by an odd number."""
    images = pictures(4, 3, 13, 12)
    resampled = augmented(images, Augment(rotate=1e-9), size=(8, 9))
    torch.testing.assert_close(resampled, augmented(images, Augment(), size=(8, 9)), rtol=0, atol=1e-3)


def test_a_crop_of_everything_is_the_picture() -> None:
    images = pictures(8)
    torch.testing.assert_close(augmented(images, Augment(crop=1)), images.float(), rtol=0, atol=1e-3)
    assert augmented(pictures(8, 3, 256, 256), Augment(crop=0.1), size=(224, 224)).shape == (8, 3, 224, 224)


def test_a_crop_sees_a_part_of_the_area_asked_for() -> None:
    """The stored picture holds its own coordinates, so the crop tells where it was."""
    across = torch.arange(256, dtype=torch.uint8).expand(256, 256)
    images = torch.stack([across, across.T]).expand(200, -1, -1, -1)
    seen = augmented(images, Augment(crop=0.2), size=(64, 64))
    width = (seen[:, 0, 0, 60] - seen[:, 0, 0, 3]) * 64 / 57 / 256
    height = (seen[:, 1, 60, 0] - seen[:, 1, 3, 0]) * 64 / 57 / 256
    area, aspect = width * height, width / height
    assert 0.19 < area.min() < 0.25 and 0.95 < area.max() < 1.01 and 0.55 < area.mean() < 0.65
    assert 0.74 < aspect.min() < 0.8 and 1.25 < aspect.max() < 1.35


def test_flips_alternate() -> None:
    images = pictures(32)
    how = Augment(flip="alternating")
    first, second, third = (augmented(images, how, epoch=epoch) for epoch in range(3))
    assert torch.equal(first, third) and torch.equal(first.flip(3), second)
    mirrored = (first != images.float()).flatten(1).any(1)
    assert 5 < mirrored.sum() < 27
    assert torch.equal(first[mirrored], images[mirrored].flip(3).float())


def test_whole_pixels_stay_what_they_are() -> None:
    images = pictures(64, 1, 5, 6) // 2
    for outside in ("background", "mirror"):
        moved = augmented(images, Augment.read({"pad": 2, "outside": outside}), background=200)
        ways: dict[str, Any] = {"mirror": {"mode": "reflect"}, "background": {"constant_values": 200}}
        wide = np.pad(images.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), **ways[outside])
        places = [
            [(y, x) for y in range(5) for x in range(5) if np.array_equal(old[0, y : y + 5, x : x + 6], new[0].numpy())]
            for old, new in zip(wide, moved, strict=True)
        ]
        assert all(len(found) == 1 for found in places)
        assert len({found[0] for found in places}) > 15  # of 25


def test_mirrored_outside_is_the_same_resampled_and_picked() -> None:
    images = pictures(16, 3, 9, 7)
    picked = augmented(images, Augment(pad=5, flip="random", outside="mirror"))
    resampled = augmented(images, Augment(pad=5, flip="random", outside="mirror", rotate=1e-9))
    torch.testing.assert_close(picked, resampled, rtol=0, atol=2e-3)


def test_erased_rectangles_are_of_the_area_asked_for() -> None:
    images = torch.zeros(300, 3, 64, 64, dtype=torch.uint8)
    seen = augmented(images, Augment(erase=0.5))
    gone = (seen > 0).any(1)  # noise is black in all three channels once in 16 million
    area = gone.float().mean((1, 2))
    assert 100 < (area > 0).sum() < 200
    assert 0.018 <= area[area > 0].min() < 0.04 and 0.3 < area.max() <= 0.35
    for one in gone[area > 0]:
        rows, columns = one.any(1).nonzero().ravel(), one.any(0).nonzero().ravel()
        assert one[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].float().mean() > 0.99
        assert 0.25 < len(columns) / len(rows) < 4
    noise = seen[seen > 0]
    assert abs(noise.mean() - 128) < 1 and torch.equal(noise, noise.round()) and noise.max() == 255


def test_a_rectangle_has_its_area_and_fits() -> None:
    area, shape = np.random.default_rng(0).uniform(0.001, 1, 1000), np.random.default_rng(1).uniform(size=1000)
    height, width = rectangle(area, shape, 4 / 3)
    np.testing.assert_allclose(height * width, area, rtol=1e-12)
    assert height.max() <= 1 and width.max() <= 1
    assert (width / height).min() > 0.749 and (width / height).max() < 1.334


# Policies


@pytest.mark.parametrize("name", OPERATIONS)
def test_at_strength_0_nothing_happens(name: str) -> None:
    """But for autocontrast and equalize, which have no strength."""
    images = pictures(1, 3, 16, 16).float() // 2
    before = images.clone()
    for full in (RAND, WIDE):
        operation = one_round(name, 0, full)
        assert np.array_equal(operation.matrices((16, 16))[0], np.eye(3))
        for change in operation.colours():
            change(images, slice(None))
        assert torch.equal(images, before) == (name not in ("autocontrast", "equalize"))


def test_every_operation_is_drawn_and_changes_pictures() -> None:
    images = pictures(400, 3, 17, 17)  # equalize needs more pixels than levels
    draws = Draws(0, 0, np.arange(400), np.zeros(400, np.int64))
    drawn = np.floor(draws("policy", 3)[0] * len(OPERATIONS)).astype(int)
    changed = (augmented(images, Augment(policy=Policy(kind="trivial"))) - images.float()).abs().flatten(1).amax(
        1
    ) > 0.01
    for number, name in enumerate(OPERATIONS):
        assert 10 < (drawn == number).sum() < 60
        assert changed[torch.from_numpy(drawn == number)].any() == (name != "identity")


def test_three_does_exactly_one_of_three() -> None:
    images = tensor(CHINA.resize((32, 32))).to(torch.uint8).expand(90, -1, -1, -1)
    seen = augmented(images, Augment(policy=Policy(kind="three")))
    grey = (seen == colour.grayscale(images.float())).flatten(1).all(1)
    solarized = (seen == colour.solarize(images.float(), 128)).flatten(1).all(1)
    blurred = ~grey & ~solarized
    assert grey.sum() > 15 and solarized.sum() > 15 and blurred.sum() > 15
    assert (seen[blurred] - images.float()[blurred]).abs().mean() > 1
    assert not (grey & solarized).any()


def test_more_or_fewer_channels_keep_their_colours() -> None:
    for channels in (1, 2, 5):
        images = pictures(8, channels)
        how = Augment(saturation=1, hue=0.5, grayscale=1)
        assert torch.equal(augmented(images, how), images.float())


# Mixing


def mixed(how: Augment, count: int = 64, side: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = pictures(count, 3, side, side).float(), torch.arange(count)
    return images, labels, *mix(images, labels, count, how, seed=0, epoch=0, samples=np.arange(count), copies=0)


def test_mixup_blends_labels_as_it_blends_pictures() -> None:
    images, labels, seen, targets = mixed(Augment(mixup=0.8))
    torch.testing.assert_close(targets.sum(1), torch.ones(64))
    own = targets[labels, labels].view(-1, 1, 1, 1)
    torch.testing.assert_close(seen, images * own + images.flip(0) * (1 - own), rtol=0, atol=1e-3)
    torch.testing.assert_close(targets[labels, labels.flip(0)], 1 - own.ravel())
    assert own.min() < 0.1 and own.max() > 0.9 and abs(own.mean() - 0.5) < 0.15
    odd = mixed(Augment(mixup=0.8), count=1)
    torch.testing.assert_close(odd[2], odd[0])


def test_cutmix_share_is_the_area_that_is_left() -> None:
    images, labels, seen, targets = mixed(Augment(cutmix=1))
    own, other = (seen == images).all(1), (seen == images.flip(0)).all(1)  # (B, H, W)
    assert (own | other).all()
    torch.testing.assert_close(own.float().mean((1, 2)), targets[labels, labels], rtol=0, atol=1e-6)
    assert targets[labels, labels].min() < 0.5 and targets[labels, labels].max() > 0.9
    torch.testing.assert_close(targets.sum(1), torch.ones(64))


def test_with_both_each_picture_gets_one() -> None:
    images, labels, seen, targets = mixed(Augment(mixup=1, cutmix=1))
    cut = ((seen == images) | (seen == images.flip(0))).flatten(1).all(1)
    assert 15 < cut.sum() < 50
    torch.testing.assert_close(targets.sum(1), torch.ones(64))
    alone = mix(images, labels, 64, Augment(), seed=0, epoch=0, samples=np.arange(64), copies=0)
    assert torch.equal(alone[0], images) and torch.equal(alone[1], torch.eye(64))


# Anything that may be asked for

shares = st.floats(0, 1)
policies = st.sampled_from(["none", "three", "trivial", "rand", {"kind": "rand", "operations": 8, "magnitude": 30}])
augments = st.fixed_dictionaries(
    {},
    optional={
        "crop": shares,
        "rotate": st.floats(0, 180),
        "zoom": st.floats(0, 0.99),
        "shear": st.floats(0, 89),
        "shift": shares,
        "pad": st.integers(0, 40),
        "flip": st.sampled_from(["none", "random", "alternating"]),
        "outside": st.sampled_from(["background", "mirror"]),
        "brightness": shares,
        "contrast": shares,
        "saturation": shares,
        "hue": st.floats(0, 0.5),
        "grayscale": shares,
        "solarize": shares,
        "blur": shares,
        "policy": policies,
        "erase": shares,
    },
)


@settings(max_examples=60)
@given(
    how=augments,
    channels=st.sampled_from([1, 3, 5]),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    larger=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    flat=st.booleans(),
)
def test_whatever_is_asked_for_is_a_picture(
    how: dict[str, Any], channels: int, size: tuple[int, int], larger: tuple[int, int], flat: bool
) -> None:
    images = pictures(5, channels, size[0] + larger[0], size[1] + larger[1])
    if flat:
        images[:] = 128
    seen = augmented(images, Augment.read(how), size=size, background=255)
    assert seen.shape == (5, channels, *size)
    assert seen.isfinite().all() and -1e-2 <= seen.min() and seen.max() <= 255 + 1e-2


def test_flat_pictures_stay_flat() -> None:
    """Resampling leaves 127.99999 of a 128. That must not become a step of a level, nor noise over the whole range."""
    images = torch.full((1, 3, 8, 8), 128.0) - torch.rand(1, 3, 8, 8) * 2e-5
    for flat in (lambda x: colour.posterize(x, 3), lambda x: colour.solarize(x, 128), colour.autocontrast):
        seen = flat(images.clone())
        assert (seen - seen[0, 0, 0, 0]).abs().max() < 0.01
    assert torch.equal(colour.equalize(images.clone()), images.round())


MIRROR = {"outside": "mirror"}


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ({"flip": "random"}, 32),
        ({"flip": "random", "pad": 4} | MIRROR, 24),
        ({"flip": "random", "pad": 3} | MIRROR, 32),
        ({"crop": 0.3, "flip": "random"} | MIRROR, 24),
        ({"rotate": 20, "shift": 0.1, "zoom": 0.1} | MIRROR, 24),
        ({"rotate": 20, "shift": 0.1, "zoom": 0.1} | MIRROR, 32),
    ],
)
def test_what_belongs_to_places_is_moved_with_them(asked: dict[str, Any], stored: int) -> None:
    """The picture itself, taken for a map, goes where the picture goes. Of one that is stored larger the map knows the
    centre alone: there the edges are left out."""
    how, samples, edge = Augment.read(asked), np.arange(16), (stored - 24) // 2
    images = pictures(16, height=stored, width=stored)
    centres = images[:, :, edge : edge + 24, edge : edge + 24].float()
    changed = augmented(images, how, size=(24, 24), epoch=1)
    maps = moved(centres, how, Draws(0, 1, samples, 0 * samples), stored_size=(stored, stored), size=(24, 24))
    inside = slice(8, 16) if edge else slice(0, 24)
    torch.testing.assert_close(maps[:, :, inside, inside], changed[:, :, inside, inside], rtol=0, atol=0.05)
