"""Settings: what can be said, and what is answered to what cannot."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from vitral import RecipeError, ViTConfig
from vitral.model.config import SIZES, Blocks, Mlp


def test_the_default_is_the_papers_base_model() -> None:
    assert ViTConfig() == ViTConfig.named("B/16")
    assert ViTConfig().mlp_size == 3072


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"widht": 3}, "There is no setting widht. Did you mean width?"),
        ({"width": "wide"}, 'width is "wide", and should be a whole number.'),
        ({"depth": 0}, "depth is 0, and should be at least 1."),
        ({"depth": 10**9}, "depth is 1000000000, and should be at most 1000."),
        ({"heads": 7}, "model.heads 7 does not divide model.width 768"),
        ({"patch_size": 15}, "model.patch_size 15 does not divide model.image_size 224. 1, 2, 4, 7, 8, 14, 16"),
        (
            {"patch_size": 16, "image_size": 330},
            "model.patch_size 16 does not divide model.image_size 330. 1, 2, 3, 5, 6, 10, …, 55, 66, 110, 165, 330 do. "
            "Set model.patch_size=… or choose another model.image_size, such as 320 or 336.",
        ),
        (
            {"patch_size": 16, "image_size": 10},
            "model.patch_size 16 does not divide model.image_size 10. 1, 2, 5, 10 do. "
            "Set model.patch_size=… or choose another model.image_size, such as 16.",
        ),
        ({"image_size": "big"}, 'image_size is "big", and should be a whole number or a list.'),
        ({"image_size": (224, -16)}, "model.image_size -16 is not between 1 and 65,536"),
        ({"mlp": "relu"}, 'mlp.kind is "relu", and should be "gelu", "gelu-tanh", "gelu-quick" or "swiglu".'),
        ({"tokens": "none"}, "model.pool class needs a class token: set model.pool=mean, or model.tokens=class."),
        ({"tokens": "distilled", "pool": "mean"}, "model.tokens distilled reads out both its tokens"),
        ({"positions": "sincos-2d", "width": 6, "heads": 1}, "model.positions sincos-2d needs a model.width that 4"),
        ({"positions": {"kind": "none", "std": 0.5}}, "model.positions none has no table to learn"),
        ({"stem": "conv", "patch_size": 14}, "model.stem conv needs a model.patch_size that is a power of 2, not 14."),
        ({"stem": {"kind": "linear", "channels": 5}}, "model.stem linear has no convolutions"),
        ({"positions": {"kind": "none", "class_token": False}}, "model.positions none gives the class token no place"),
        ({"image_size": (16,)}, "image_size is missing, or has too few numbers."),
        ({"stem": {"kind": "linear", "bias": 1}}, "stem.bias is 1, and should be true or false."),
        (
            {"blocks": {"start": "torch", "init_std": 0.1}},
            "model.blocks.start torch has PyTorch's own matrices: leave init_std out.",
        ),
        ({"head": "none"}, "model.head none has no classes: set model.classes=0."),
        ({"mlp": {"kind": "gelu", "ratoi": 3}}, "There is no setting mlp.ratoi. Did you mean mlp.ratio?"),
        ({"mlp": {"ratio": 1e-9}}, "model.mlp.ratio 1e-09 of model.width 768 leaves nothing."),
        ({"depth": True}, "depth is true, and should be a whole number."),
        ({"image_size": (8, 8, 8)}, "image_size is [8, 8, 8], and should be a whole number or a list of 2 numbers."),
        ({"mlp": 4}, "mlp is 4, and should be a word or a table."),
        (
            {"kind": "swim"},
            "model.kind is swim, and should be vit, mu, owen, pulfer, bourke, resnet, swin, or a class in a",
        ),
    ],
)
def test_a_wrong_setting_answers_with_a_sentence(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecipeError) as told:
        ViTConfig(**wrong)  # type: ignore[arg-type]
    assert str(told.value).startswith(sentence)


def test_the_nearest_size_is_named_whatever_the_case() -> None:
    with pytest.raises(RecipeError, match="Did you mean B/16?"):
        ViTConfig.named("b/16")


@pytest.mark.parametrize("name", ["B16", "X/16", "B/", "B/big", ""])
def test_an_unknown_size_names_one_that_is_known(name: str) -> None:
    with pytest.raises(RecipeError, match="There is no size"):
        ViTConfig.named(name)


@given(
    patch=st.integers(1, 32),
    grid=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    heads=st.integers(1, 8),
    head_width=st.integers(1, 64),
    ratio=st.floats(1, 8),
    size=st.sampled_from(sorted(SIZES)),
)
def test_what_is_written_is_read_back_equal(
    patch: int, grid: tuple[int, int], heads: int, head_width: int, ratio: float, size: str
) -> None:
    config = ViTConfig(
        image_size=(patch * grid[0], patch * grid[1]),
        patch_size=patch,
        width=heads * head_width,
        heads=heads,
        mlp=Mlp(ratio=ratio),
    )
    assert ViTConfig.read(config.write()) == config
    assert config.grid == grid
    named = ViTConfig.named(f"{size}/{patch}", image_size=config.height_width)
    assert ViTConfig.read(named.write()) == named


def test_a_part_is_a_word_or_a_table() -> None:
    word, table = ViTConfig.read({"mlp": "gelu"}), ViTConfig.read({"mlp": {"kind": "gelu", "ratio": 4.0}})
    assert word == table == ViTConfig()
    assert table.write()["mlp"] == "gelu"
    assert ViTConfig(mlp=Mlp(ratio=3)).write()["mlp"] == {"kind": "gelu", "ratio": 3.0}


def test_what_an_older_version_can_run_it_can_read() -> None:
    """A setting that came later is written only where it is used."""
    older = ViTConfig(blocks=Blocks(norm_eps=1e-5)).write()
    assert set(older["blocks"]) == {"kind", "norm_eps", "first_norm", "layer_scale", "init_std"}
    newer = ViTConfig(blocks=Blocks(start="torch"))
    assert newer.write()["blocks"]["start"] == "torch" and ViTConfig.read(newer.write()) == newer


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        ViTConfig().width = 3
