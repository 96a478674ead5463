"""Recipes: what can be asked, by Python, TOML and key=value alike."""

import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from conftest import quick_digits, vit_config
from vitral import Recipe, RecipeError, ViTConfig
from vitral.data.config import Augment, Data
from vitral.recipe import Positions, parse_setting
from vitral.recipes import RECIPES, find_recipe
from vitral.settings import ELSEWHERE, names, unknown
from vitral.training.config import AdamW, Muon, Schedule, Train

shares = st.floats(0, 0.9)
recipes = st.builds(
    Recipe,
    model=st.builds(ViTConfig, depth=st.integers(1, 40), classes=st.integers(0, 1000), channels=st.integers(0, 3)),
    data=st.builds(
        Data,
        source=st.text(max_size=20),
        background=st.integers(0, 255),
        interpolation=st.sampled_from(["box", "bicubic"]),
        augment=st.builds(Augment, rotate=st.floats(0, 180), zoom=shares, shear=shares, shift=shares),
    ),
    train=st.builds(
        Train,
        seed=st.integers(0, 2**63 - 1),
        epochs=st.integers(1, 10**6),
        optimizer=st.one_of(
            st.builds(AdamW, learning_rate=st.floats(1e-8, 1), betas=st.tuples(shares, shares)),
            st.builds(Muon, learning_rate=st.floats(1e-8, 1), weight_decay=shares),
        ),
        schedule=st.builds(Schedule, kind=st.sampled_from(["cosine", "linear", "constant"])),
        ema=shares,
    ),
)


@given(recipe=recipes)
@settings(max_examples=50)
def test_a_recipe_written_to_toml_and_read_back_is_equal(recipe: Recipe) -> None:
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@pytest.mark.parametrize("name", RECIPES)
def test_every_named_recipe_survives_toml_and_has_a_comment_on_each_setting(name: str) -> None:
    text = RECIPES[name].to_toml()
    assert Recipe.from_toml(text) == RECIPES[name]
    lines = [line for line in text.splitlines() if " = " in line and not line.startswith("format")]
    assert [line for line in lines if " # " not in line] == []
    assert find_recipe(name) == RECIPES[name]


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("train.epochs=5", "train.epochs", 5),
        ("train.optimizer=muon", "train.optimizer", "muon"),
        ('data.source="my pictures"', "data.source", "my pictures"),
        ("data.source=my pictures", "data.source", "my pictures"),
        ("model.image_size=[32, 64]", "model.image_size", [32, 64]),
        ("model.mlp={kind = 'gelu', ratio = 3.0}", "model.mlp", {"kind": "gelu", "ratio": 3.0}),
        ("data.source=a=b", "data.source", "a=b"),
    ],
)
def test_a_value_is_read_as_toml_else_it_is_a_string(setting: str, name: str, value: object) -> None:
    assert parse_setting(setting) == (name, value)


def changed(*settings: str) -> Recipe:
    return quick_digits().changed(dict(parse_setting(setting) for setting in settings))


def test_settings_change_what_they_name_and_nothing_else() -> None:
    assert changed("train.epochs=7").train == quick_digits().train.model_copy(update={"epochs": 7})
    assert changed("train.optimizer=adamw").train.optimizer == AdamW()
    both = changed("train.optimizer=adamw", "train.optimizer.learning_rate=0.5")
    assert both.train.optimizer == AdamW(learning_rate=0.5)
    assert vit_config(changed("model.mlp.ratio=3").model).mlp_size == 48
    assert changed() == quick_digits()


OWN_STD = "model.positions={kind = 'learned', std = 0.5}"


def test_a_part_that_is_named_by_the_kind_it_has_keeps_its_settings() -> None:
    recipe = changed(OWN_STD, "train.optimizer.momentum=0.8")
    for same in ("model.positions", "model.positions.kind"):
        assert recipe.changed({same: "learned", "train.optimizer": "muon"}) == recipe
        assert recipe.dropped({same: "learned", "train.optimizer": "muon"}) == ()


def test_another_kind_starts_from_its_defaults_and_what_is_dropped_is_told() -> None:
    recipe = Recipe(train=Train(optimizer=Muon(learning_rate=0.5, momentum=0.8))).changed(
        dict([parse_setting(OWN_STD)])
    )
    settings = {"train.optimizer.learning_rate": 0.1, "train.optimizer": "adamw", "model.positions.kind": "sincos-2d"}
    after = recipe.changed(settings)
    assert after.train.optimizer == AdamW(learning_rate=0.1)  # in whatever order they are written
    assert vit_config(after.model).positions == Positions(kind="sincos-2d")
    assert recipe.dropped(settings) == (
        "model.positions is sincos-2d now, and what was set for learned is dropped: std=0.5.",
        "train.optimizer is adamw now, and what was set for muon is dropped: momentum=0.8.",
    )
    assert recipe.dropped({"teacher.kind": "soft"}) == ()  # not a part: a setting like others


def test_every_word_of_other_libraries_means_a_setting_that_there_is() -> None:
    assert set(ELSEWHERE.values()) - set(names(Recipe)) == set()
    assert set(ELSEWHERE) & {name.rpartition(".")[2] for name in names(Recipe)} == set()


TUTORIALS_WORDS = (
    "img_size in_chans embed_dim num_heads mlp_ratio num_classes lr "  # Mu
    "num_channels hidden_size intermediate_size num_attention_heads num_hidden_layers kqv_bias "  # Owen
    "chw n_patches n_blocks hidden_d n_heads out_d N_EPOCHS LR "  # Pulfer
    "embedding_dim num_transformer_layers mlp_size mlp_dropout attn_dropout"  # Bourke
).split()


@pytest.mark.parametrize("word", TUTORIALS_WORDS)
def test_a_word_of_a_tutorial_finds_its_setting(word: str) -> None:
    assert unknown(word, list(names(Recipe))).endswith(f"Did you mean {ELSEWHERE[word.lower()]}?")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("train.lr=1", "There is no setting train.lr. Did you mean train.optimizer.learning_rate?"),
        ("train.loss=1", "There is no setting train.loss. Did you mean train.objective?"),
        ("train.optimizer.lr=1", "There is no setting train.optimizer.lr. Did you mean train.optimizer.learning_rate?"),
        ("weight_decay=1", "There is no setting weight_decay. Did you mean train.optimizer.weight_decay?"),
        ("model.dropout=1", "There is no setting model.dropout. Did you mean train.regularise.dropout?"),
        ("img_size=1", "There is no setting img_size. Did you mean model.image_size?"),
        ("train.epohcs=3", "There is no setting train.epohcs. Did you mean train.epochs?"),
        ("epochs=3", "There is no setting epochs. Did you mean train.epochs?"),
        ("image_size=64", "There is no setting image_size. Did you mean model.image_size?"),
        ("trian.epochs=3", "There is no setting trian.epochs. Did you mean train.epochs?"),
        ("train.epochs=many", 'train.epochs is "many", and should be a whole number.'),
        ("train.epochs=0", "train.epochs is 0, and should be at least 1."),
        ("train.epochs=2.5", "train.epochs is 2.5, and should be a whole number."),
        ("train.epochs", "train.epochs is not a setting: write name=value"),
        ("train.optimizer=mun", 'train.optimizer is "mun", and should be "adamw" or "adam" or "sgd" or "muon".'),
        ("train.schedule=sine", 'train.schedule.kind is "sine", and should be "cosine", "linear" or "constant".'),
        ("train.warmup=nan", "train.warmup is NaN, and should be a finite number."),
        ("train.warmup=2", "train.warmup is 2, and should be at most 1.0."),
        ("train=3", "train is 3, and should be a word or a table."),
        ("model=vit", 'model is "vit", and should be a table.'),
        ("train.epochs=true", "train.epochs is true, and should be a whole number."),
        ("train.optimizer={learning_rate = 1.0}", "train.optimizer is"),
        ("train.optimizer={kind = 'adamw', betas = [0.9, 2.0]}", "train.optimizer.betas is 2.0, and should be less"),
        ("data.augment.rotate=400", "data.augment.rotate is 400, and should be at most 180.0."),
        ("train.optimizer.betas=[0.9]", "train.optimizer.betas does not go with the kind"),
        ("model.patch_size=3", "model.patch_size 3 does not divide model.image_size 8. 1, 2, 4, 8 do."),
    ],
)
def test_a_wrong_setting_answers_with_a_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as told:
        changed(setting)
    assert str(told.value).startswith(sentence)


def test_too_few_numbers_are_told() -> None:
    with pytest.raises(RecipeError, match="train.optimizer.betas"):
        changed("train.optimizer=adamw", "train.optimizer.betas=[0.9]")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("format = 2", "has format 2, and this Vitral reads up to 1. It was made by a later version: upgrade"),
        ("format = 'one'", "has the format 'one'"),
        ("[train]\nepohcs = 3", "There is no setting train.epohcs. Did you mean train.epochs?"),
        ("[trian]", "There is no setting trian. Did you mean train?"),
        ("train = [", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(RecipeError, match=re.escape(sentence)) as told:
        find_recipe(str(tmp_path / "mine.toml"))
    assert "mine.toml" in str(told.value)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="There is no recipe or folder digts. Did you mean digits?"):
        find_recipe("digts")
    with pytest.raises(RecipeError, match="cannot be read as a recipe"):
        find_recipe("missing.toml")


def test_every_setting_of_the_schema_page_exists_and_every_setting_is_there() -> None:
    page = (Path(__file__).parents[1] / "docs" / "schema.md").read_text()
    model = page[page.index("### model") : page.index("### preprocess")]
    told = {f"model.{name}" for name in re.findall(r"^\| `(\w+)` \| (?:int|str|part|float|bool|list)", model, re.M)}
    rows = re.findall(r"^\| (`(?:data|init|teacher|train|reported)\.[^|]+) \|", page, re.M)
    told |= {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    # The settings of a part stand in the row of the part.
    depth = {
        name: name.removeprefix("data.augment").removeprefix("train.regularise").count(".") for name in names(Recipe)
    }
    known = {name for name in depth if depth[name] == 1}
    parts = {name for name in depth if depth[name] == 2}
    assert told == known
    assert [name for name in parts if f"`{name.rpartition('.')[2]}`" not in page and not name.endswith(".kind")] == []


def test_a_file_that_says_format_1_and_no_resize_keeps_what_that_meant() -> None:
    """Before `stretch` was the default, leaving it out meant `crop`; what Vitral writes is complete."""
    text = '[data]\nsource = "digits"\n'
    assert Recipe.from_toml(text).data.resize.kind == Recipe().data.resize.kind == "stretch"
    for stored in ("format = 1\n", f"format = 1\n{text}"):
        assert Recipe.from_toml(stored).data.resize.kind == "crop"
    recipe = Recipe(data=Data(source="digits"))
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_settings_that_are_given_stay_as_they_are() -> None:
    given = {"train.optimizer": {"kind": "adamw"}, "train.optimizer.learning_rate": 0.5}
    assert Recipe().changed(given).train.optimizer.write()["learning_rate"] == 0.5
    assert given["train.optimizer"] == {"kind": "adamw"}
