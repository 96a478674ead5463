"""A model is drawn with its real numbers, in words that stand apart, for any config."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from PIL import Image

from conftest import slowly
from test_shapes import OwnConfig
from vitral import ViTConfig
from vitral.cli.shapes import command
from vitral.look.architecture import architecture
from vitral.look.drawing import Drawing, Text
from vitral.look.figures import DARK, LIGHT
from vitral.model.config import ModelConfig
from vitral.model.shapes import on_meta, shapes
from vitral.recipes import RECIPES

SMALL = {"image_size": 32, "patch_size": 4, "width": 64, "depth": 3, "heads": 4, "classes": 10}
RICH: dict[str, Any] = {
    "tokens": {"kind": "distilled", "registers": 4},
    "mlp": "swiglu",
    "attention": {"qk_norm": True, "bias": False},
    "blocks": {"layer_scale": 1e-5, "first_norm": True},
    "head": "mlp",
}
NO_CLASS = {"tokens": {"kind": "none", "registers": 16}, "pool": {"kind": "mean", "norm": "after"}}
PARTS: list[dict[str, Any]] = [
    {},
    RICH,
    {**RICH, "positions": "learned-2d", "width": 1024, "heads": 16, "depth": 24, "classes": 21_843},
    {"image_size": [32, 128], "stem": "conv", "positions": "relative", "depth": 1},
    {"stem": "whitened", "pool": {"kind": "class-mean", "norm": "none"}, "positions": "sincos-2d"},
    {**NO_CLASS, "positions": {"kind": "learned", "class_token": False}, "head": "hidden", "classes": 0},
    {"tokens": "none", "pool": "mean", "positions": "none", "head": "none", "classes": 0, "channels": 1},
    {"image_size": 4, "heads": 1, "classes": 1, "positions": "sincos-1d"},
    {"image_size": 8, "heads": 64},
    {"tokens": {"kind": "tasks", "outputs": [10, 2], "registers": 4}, "classes": 12},
    {"tokens": {"kind": "tasks", "outputs": [2] * 30}, "classes": 60, "positions": "rotary"},
    {"image_size": 64, "patch_size": 16, "stem": {"kind": "resnet", "depths": [1, 2, 1]}, "pool": "map"},
    {"image_size": [512, 16], "patch_size": 8, "width": 1280, "heads": 16, "depth": 32, "classes": 100_000},
]
NAMED = {name: ViTConfig.named(name) for name in ("Ti/16", "B/16", "L/32", "H/14")}
CONFIGS: dict[str, ModelConfig] = {
    **NAMED,
    **{f"parts {number}": ViTConfig.model_validate(SMALL | parts) for number, parts in enumerate(PARTS)},
    "somebody's own": OwnConfig(),
}


def of_recipe(name: str) -> ModelConfig:
    """The config of a recipe; what the data would say is made up."""
    model = RECIPES[name].model
    config = model.write()
    missing = {key: 3 for key in ("channels", "classes") if config.get(key) == 0 and config.get("head") != "none"}
    return type(model).read({**config, **missing}, "model.")


def texts_of(drawing: Drawing) -> list[Text]:
    return [mark for mark in drawing.marks if isinstance(mark, Text)]


def compare_numbers(config: ModelConfig, drawing: Drawing) -> None:
    """All numbers of parameters in the drawing are those of `shapes`, and of the model itself."""
    root = ElementTree.fromstring(drawing.svg())
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words == [text.words for text in texts_of(drawing)]
    model, _ = on_meta(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert f"{total:,}" in words and f"{total:,} parameters" in drawing.description
    if not isinstance(config, ViTConfig):
        inside = {row.name.rpartition("*.") if row.times > 1 else ("", "", row.name) for row in shapes(config)}
        assert {name for *_, name in inside} | {f"{shared}*" for shared, *_ in inside if shared} <= set(words)
        return
    (height, width), (down, across) = config.height_width, config.grid
    tokens = down * across + config.extra
    for told in (
        f"Image {height} × {width} × {config.channels}",
        f"{tokens} × {config.width}",
        f"Encoder × {config.depth}",
        f"softmax(q kᵀ / √{config.width // config.heads}): {tokens} × {tokens}",
    ):
        assert told in words
    # The numbers at the right of the model add up, and so do those of a block.
    ends = {side: [t for t in texts_of(drawing) if t.anchor == "end" and t.x == side] for side in (652.0, 1028.0)}
    values = {side: [int(t.words.split("× ")[-1].replace(",", "")) for t in found if re.fullmatch(r"[\d,× ]+", t.words)]
              for side, found in ends.items()}  # fmt: skip
    assert sum(values[652.0]) == 2 * total  # the parts, and their sum
    block = sum(p.numel() for name, p in model.named_parameters() if name.startswith("blocks.0."))
    assert values[1028.0][0] == block and sum(values[1028.0]) == 2 * block


def check_room(drawing: Drawing) -> None:
    """No words leave the drawing or touch others, in the widest font."""
    boxes = [(t.left, t.y - 0.8 * t.size, t.left + t.width, t.y + 0.2 * t.size, t.words) for t in texts_of(drawing)]
    for left, top, right, bottom, words in boxes:
        assert 12 <= left and right <= drawing.width - 12 and 12 <= top and bottom <= drawing.height - 8, words
    for one, other in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    assert min(t.size for t in texts_of(drawing)) >= 9


DEEP = ["L/32", "H/14", "parts 2", "parts 12"]


@pytest.mark.parametrize("name", [*(name for name in CONFIGS if name not in DEEP), *slowly(*DEEP)])
def test_the_numbers_are_those_of_the_model_and_words_stand_apart(name: str) -> None:
    drawing = architecture(CONFIGS[name], f"{name} & <more>")
    compare_numbers(CONFIGS[name], drawing)
    check_room(drawing)
    assert texts_of(drawing)[0].words == f"{name} & <more>"


LARGE = [name for name in RECIPES if name.startswith("paper")]


@pytest.mark.parametrize("name", [*(name for name in RECIPES if name not in LARGE), *slowly(*LARGE)])
def test_every_recipe_is_drawn(name: str) -> None:
    config = of_recipe(name)
    drawing = architecture(config, name)
    compare_numbers(config, drawing)
    check_room(drawing)


def test_parts_are_called_by_their_words() -> None:
    words = " ".join(text.words for text in texts_of(architecture(ViTConfig.model_validate(SMALL | RICH), "rich")))
    for part in ("distilled", "4 registers", "swiglu", "qk_norm", "LayerScale", "Distilled head", "Hidden layer"):
        assert part in words
    white = ViTConfig.model_validate(SMALL | {"stem": "whitened", "positions": "sincos-2d", "pool": "mean"})
    words = " ".join(text.words for text in texts_of(architecture(white, "white")))
    assert "Stem: whitened" in words and "sincos-2d positions" in words and "mean of 64 patches" in words


def test_tasks_have_tokens_places_and_heads_of_their_own() -> None:
    two = ViTConfig.model_validate(SMALL | {"tokens": {"kind": "tasks", "outputs": [10, 2]}, "classes": 12})
    words = [text.words for text in texts_of(architecture(two, "two"))]
    told = ("2 tasks", "0–1", "task tokens", "read: each task’s token", "64 → 10, 2", "12 outputs of 2 tasks")
    assert set(told) <= set(words)
    assert not any(wrong in word for wrong in ("distilled", "class") for word in words)


def test_equation_4_is_marked_where_there_is_a_norm() -> None:
    for norm, marked in (("before", True), ("after", True), ("none", False)):
        config = ViTConfig.model_validate(SMALL | {"pool": {"kind": "mean", "norm": norm}})
        words = [text.words for text in texts_of(architecture(config, "small"))]
        assert any(text.endswith("\u2003(4)") for text in words) == marked
        assert any("(1) to (4)" in text for text in words) == marked


def test_it_follows_the_theme_and_tells_those_who_do_not_see_it() -> None:
    svg = architecture(ViTConfig(), "B/16").svg()
    light, dark = svg.split("@media (prefers-color-scheme: dark)")
    assert LIGHT.ground in light and DARK.ground not in light and DARK.ground in dark
    assert 'role="img"' in svg and "<title " in svg and "86,567,656 parameters.</desc>" in svg
    assert not any(
        word in svg.removeprefix('<svg xmlns="http://www.w3.org/2000/svg"') for word in ("http", "url(", "@import")
    )


def test_the_command_writes_svg_and_png_and_no_other(tmp_path: Path) -> None:
    for name in ("model.svg", "deeper/model.png"):
        done = CliRunner().invoke(command, ["digits", "--draw", str(tmp_path / name)], catch_exceptions=False)
        assert done.exit_code == 0 and f"Look at {tmp_path / name}" in done.output and "202,186" in done.output
    assert "202,186" in (tmp_path / "model.svg").read_text(encoding="utf-8")
    with Image.open(tmp_path / "deeper" / "model.png") as png:
        assert png.width == 2200
    done = CliRunner().invoke(command, ["digits", "--draw", str(tmp_path / "nowhere" / "model.gif")])
    assert not (tmp_path / "nowhere").exists()
    assert "model.gif is no name for a drawing: it ends with .svg or .png." in str(done.exception)


def test_the_picture_of_the_docs_is_what_the_command_draws() -> None:
    stored = Path(__file__).parents[1] / "docs" / "pictures" / "vit-b16.svg"
    assert stored.read_text(encoding="utf-8") == architecture(ViTConfig(), "ViT-B/16").svg()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["B/16", "parts 2", "parts 6"])
def test_in_a_browser_no_words_touch(browser: Any, name: str) -> None:
    page = browser.new_page()
    page.set_content(architecture(CONFIGS[name], name).svg())
    boxes = page.evaluate(
        "[...document.querySelectorAll('text')].map(t => {const b = t.getBBox();"
        " return [b.x, b.y + 0.15 * b.height, b.x + b.width, b.y + 0.9 * b.height, t.textContent]})"
    )
    page.close()
    assert len(boxes) > 30 and all(12 <= box[0] and box[2] <= 1088 for box in boxes)
    for one, other in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)
    assert not re.search(r"\bNaN\b", " ".join(box[4] for box in boxes))
