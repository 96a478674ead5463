"""Every reading has its figure: a PNG in the common style, of what was found, for any kind of model and picture."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from conftest import slowly
from vitral import ViT, ViTConfig
from vitral.look import plots, readings
from vitral.look.figures import DARK, LIGHT
from vitral.look.maps import layout_of

FIGURES = ["filters", "positions", "distances", "sine_table", "resampling", "patches", "depth", "colours", "top_mass"]
MODELS: dict[str, dict[str, Any]] = {
    "grey": {"channels": 1},
    "wide": {"image_size": [8, 24], "tokens": {"kind": "class", "registers": 3}},
    "bands": {"channels": 5, "tokens": "none", "pool": "mean", "stem": {"kind": "conv", "channels": 8}},
    "large": {"image_size": 64, "tokens": "distilled"},
}


def draw(figure: str, kind: str, *, dark: bool = False, seed: int = 0) -> NDArray[np.uint8]:  # → (H, W, 3)
    """A figure of a random model and random pictures, as pixels."""
    torch.manual_seed(seed)
    shape = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 3, "heads": 2, "classes": 5}
    model = ViT(ViTConfig.model_validate(shape | MODELS[kind])).eval()
    config = model.config
    pixels = torch.randint(0, 256, (2, config.channels, *config.height_width), dtype=torch.uint8)
    images, arrays = pixels / 255 - 0.5, pixels.numpy()
    down, across = config.grid
    cases = [readings.resampled_positions(model, grid) for grid in (config.grid, (2 * down, 2 * across), (3, 7))]
    with torch.no_grad():
        tokens = model.embed(images)[0]
    given: dict[str, tuple[Any, ...]] = {
        "filters": (readings.first_filters(model),),
        "positions": (readings.position_similarity(model),),
        "distances": (readings.attention_distance(model, images),),
        "sine_table": (readings.sine_table(20 + seed, 30),),
        "resampling": (cases,),
        "patches": (arrays[0], layout_of(model, images), tokens),
        "depth": (readings.tokens_through_depth(model, images),),
        "colours": (arrays, readings.feature_colours(readings.patch_features(model, images))),
        "top_mass": (arrays, readings.class_token_map(model, images)),
    }
    file = BytesIO()
    getattr(plots, f"draw_{figure}")(file, *given[figure], dark=dark)
    with Image.open(file) as png:
        assert png.format == "PNG"
        return np.asarray(png.convert("RGB"))


def test_every_figure_is_tested() -> None:
    assert sorted(name for name in vars(plots) if name.startswith("draw_")) == sorted(
        f"draw_{name}" for name in FIGURES
    )


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("kind", ["wide", *slowly("grey", "bands", "large")])
def test_it_is_drawn_for_any_model(figure: str, kind: str) -> None:
    """On the light ground, with letters, and with marks that are neither."""
    shown = draw(figure, kind)
    assert min(shown.shape[:2]) > 200 and max(shown.shape[:2]) < 2400
    assert shown[0, 0].tolist() == [int(LIGHT.ground[at : at + 2], 16) for at in (1, 3, 5)]
    values = shown.astype(int)
    assert (values.sum(axis=2) < 200).any() and (shown[shown.shape[0] // 3 :] != 255).any(axis=2).mean() > 0.003


@pytest.mark.parametrize("figure", ["distances", *slowly(*sorted(set(FIGURES) - {"distances"}))])
def test_the_dark_one_has_a_dark_ground_and_the_same_size(figure: str) -> None:
    light, dark = draw(figure, "wide"), draw(figure, "wide", dark=True)
    assert light.shape == dark.shape
    assert dark[0, 0].tolist() == [int(DARK.ground[at : at + 2], 16) for at in (1, 3, 5)]
    assert dark.mean() < light.mean()


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["top_mass", *slowly(*sorted(set(FIGURES) - {"top_mass"}))])
def test_other_numbers_give_another_figure(figure: str) -> None:
    first, again, other = draw(figure, "grey"), draw(figure, "grey"), draw(figure, "grey", seed=1)
    assert np.array_equal(first, again)
    assert first.shape != other.shape or not np.array_equal(first, other)


def test_a_cut_picture_shows_its_pixels() -> None:
    """The patches of a red and green picture are red and green, and nothing is blurred between them."""
    picture = np.zeros((3, 16, 16), dtype=np.uint8)
    picture[0, :, :8] = 255
    picture[1, :, 8:] = 255
    model = ViT(ViTConfig(image_size=16, patch_size=4, width=16, depth=1, heads=2, classes=3))
    file = BytesIO()
    tokens = torch.zeros(17, 16)
    plots.draw_patches(file, picture, layout_of(model, 16), tokens)
    with Image.open(file) as png:
        shown = np.asarray(png.convert("RGB")).reshape(-1, 3)
    red, green = ((shown == colour).all(axis=1).sum() for colour in ((255, 0, 0), (0, 255, 0)))
    assert red == pytest.approx(green, rel=0.05) and red > 10_000
