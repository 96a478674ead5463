"""Weights leave: what others load gives the same answers, what they cannot hold is refused, and no pickle runs."""

import argparse
import ast
import importlib.util
import itertools
import json
import math
import pickle
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, event, given, settings
from PIL import Image
from safetensors.torch import load_file, save_file

from conftest import FIXTURES, FORMAT_1
from test_pretrained import MODELS
from vitral import Classifier, Preprocess, Run, ViT, ViTConfig, WeightsError, load_pretrained, train
from vitral.cli import main
from vitral.deploy.convert import WRITERS, convert
from vitral.deploy.trial import Trial, try_pictures
from vitral.inference import Inference
from vitral.recipe import Data, Recipe, Scale
from vitral.recipes.choose import choose
from vitral.weights import timm
from vitral.weights.calibration import Calibration
from vitral.weights.own import Weights, write_weights
from vitral.weights.pickles import convert_pickle
from vitral.weights.processors import read_timm
from vitral.weights.stored import PICKLES

SMALL = ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2, classes=3)
# Of each target, the fixtures that it cannot hold, and the setting that the sentence must name.
REFUSED: dict[str, dict[str, str]] = {
    "hf": {
        "google_npz_prelogits": "model.head",
        "timm_aimv2": "model.stem.norm",
        "timm_dinov3": "model.pool",
        "timm_dinov3_swiglu": "model.head",
        "timm_vit_clip": "model.blocks.first_norm",
        "timm_vit_gap": "model.pool.norm",
        "timm_vit_qknorm": "model.attention.qk_norm",
        "timm_vit_rect": "24 × 40",
        "timm_vit_reg4_gap": "model.tokens.registers",
        "timm_vit_swiglu": "model.mlp.ratio",
        "torchvision_vit_representation": "model.head",
    },
    "timm": {
        "google_npz_prelogits": "model.head",
        "hf_dinov2": "model.pool",
        "hf_dinov2_swiglu": "model.pool",
        "hf_dinov2_with_registers": "model.pool",
        "hf_vit_model": "model.head",
        "timm_aimv2": "model.stem.norm",
        "torchvision_vit_representation": "model.head",
    },
    "torchvision": {
        "bigvision_npz": "model.tokens",
        "dino_reference": "model.head",
        "dinov2_reference": "model.head",
        "dinov2_reg_reference": "model.tokens.registers",
        "dinov2_swiglu_reference": "model.mlp",
        "hf_deit": "model.tokens",
        "hf_dinov2": "model.pool",
        "hf_dinov2_swiglu": "model.mlp",
        "hf_dinov2_with_registers": "model.tokens.registers",
        "hf_dinov3": "model.tokens.registers",
        "hf_dinov3_swiglu": "model.tokens.registers",
        "hf_ijepa": "model.tokens",
        "hf_mae": "model.head",
        "hf_vit_model": "model.head",
        "hf_vit_rect": "model.image_size",
        "mae_reference": "model.head",
        "timm_aimv2": "model.tokens",
        "timm_deit_distilled": "model.tokens",
        "timm_dinov3": "model.tokens.registers",
        "timm_dinov3_swiglu": "model.tokens.registers",
        "timm_vit_clip": "model.mlp",
        "timm_vit_gap": "model.pool",
        "timm_vit_gap_noclass": "model.tokens",
        "timm_vit_qknorm": "model.attention.qk_norm",
        "timm_vit_rect": "model.image_size",
        "timm_vit_reg2_embedded": "model.tokens.registers",
        "timm_vit_reg4_gap": "model.tokens",
        "timm_vit_reg4_layerscale": "model.tokens.registers",
        "timm_vit_swiglu": "model.mlp",
        "timm_vit_swiglu_packed": "model.mlp",
    },
    "npz": {
        "dinov2_reg_reference": "model.tokens.registers",
        "dinov2_swiglu_reference": "model.mlp",
        "hf_deit": "model.tokens",
        "hf_dinov2": "model.pool",
        "hf_dinov2_swiglu": "model.mlp",
        "hf_dinov2_with_registers": "model.tokens.registers",
        "hf_dinov3": "model.tokens.registers",
        "hf_dinov3_swiglu": "model.tokens.registers",
        "timm_aimv2": "model.stem.norm",
        "timm_deit_distilled": "model.tokens",
        "timm_dinov3": "model.tokens.registers",
        "timm_dinov3_swiglu": "model.tokens.registers",
        "timm_vit_clip": "model.mlp",
        "timm_vit_gap": "model.pool",
        "timm_vit_qknorm": "model.attention.qk_norm",
        "timm_vit_reg2_embedded": "model.tokens.registers",
        "timm_vit_reg4_gap": "model.tokens.registers",
        "timm_vit_reg4_layerscale": "model.tokens.registers",
        "timm_vit_swiglu": "model.mlp",
        "timm_vit_swiglu_packed": "model.mlp",
    },
}
HELD = [(name, to) for name in MODELS for to in WRITERS if name not in REFUSED[to]]


def shuffled(model: ViT) -> ViT:
    """Every parameter random, so that a part that was lost shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def weights(config: ViTConfig = SMALL, **preprocess: Any) -> Weights:
    ways = {"resize": "stretch", "mean": (0.4,) * config.channels, "std": (0.3,) * config.channels} | preprocess
    prepare = Preprocess(image_size=config.height_width, channels=config.channels, **ways)
    return Weights(shuffled(ViT(config)), prepare, tuple("ant bee cat".split())[: config.classes])


@pytest.fixture
def calibrated(tmp_path: Path, trained: Run) -> Path:
    """A run with a temperature, on grey pictures."""
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    known = Calibration.load(folder, trained.weights().model)
    assert known is not None
    Run(folder).finish(replace(known, temperature=torch.tensor(1.7)))
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """In colour and in grey, tall and square."""
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    made = {"square": noise, "grey": noise[:, :, 0], "tall": np.repeat(noise, 2, axis=0)}
    for name, pixels in made.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    return [tmp_path / f"{name}.png" for name in made]


@pytest.mark.parametrize(("name", "to"), HELD)
@torch.inference_mode()
def test_a_round_trip_gives_equal_outputs(name: str, to: str, tmp_path: Path) -> None:
    before = load_pretrained(FIXTURES / name)
    folder = convert(FIXTURES / name, to, tmp_path / "out")
    after = load_pretrained(folder)
    images = torch.randn(2, before.model.config.channels, *before.preprocess.image_size)
    found = after.model(images.expand(-1, after.model.config.channels, -1, -1))
    # LayerScale that was multiplied in, and grey that was spread over colours, round once more.
    changed = any(
        "LayerScale" in note or "grey" in note for note in json.loads((folder / "about.json").read_text())["notes"]
    )
    torch.testing.assert_close(found, before.model(images), rtol=0, atol=3e-6 if changed else 1e-6)
    assert after.class_names == before.class_names
    new = [words for what, words in after.loaded.rows if what == "new"] if after.loaded else ["?"]
    assert not new


@pytest.mark.parametrize(("name", "to"), [(name, to) for to in REFUSED for name in REFUSED[to]])
def test_what_a_target_cannot_hold_is_refused_by_name(name: str, to: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=REFUSED[to][name]):
        convert(FIXTURES / name, to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", WRITERS)
@pytest.mark.parametrize(
    ("settings", "named"),
    [({"positions": "relative"}, "model.positions is relative"), ({"stem": "whitened"}, "model.stem is whitened")],
)
def test_parts_that_nobody_has_are_refused(to: str, settings: dict[str, str], named: str, tmp_path: Path) -> None:
    config = ViTConfig.read({**SMALL.write(), **settings})
    with pytest.raises(WeightsError, match=named):
        convert(weights(config), to, tmp_path / "out")


@pytest.mark.parametrize(
    "settings",
    [
        {"tokens": "none", "pool": "map"},
        {"pool": {"kind": "map", "norm": "after"}},
        {"pool": {"kind": "map", "all_tokens": True}},
        {"blocks": {"norm": "rms"}},
    ],
    ids=str,
)
def test_what_of_the_others_timm_alone_has_goes_there_and_back(settings: dict[str, Any], tmp_path: Path) -> None:
    before = weights(ViTConfig.read({**SMALL.write(), **settings}))
    after = load_pretrained(convert(before, "timm", tmp_path / "out")).model
    images = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(after(images), before.model(images), rtol=0, atol=1e-6)
    for to in ("hf", "torchvision", "npz"):
        with pytest.raises(WeightsError, match=r"its model\.(pool|blocks\.norm|tokens) is"):
            convert(before, to, tmp_path / to)


# What timm's arguments are called in the fixtures but have no influence, or are no JSON.
NOT_TOLD = {"dynamic_img_size", "num_classes", "mlp_layer", "norm_layer"}


@pytest.mark.parametrize("name", [name for name, to in HELD if name.startswith("timm_") and to == "timm"])
def test_timm_gets_back_its_own_tensors_and_arguments(name: str, tmp_path: Path) -> None:
    folder = convert(FIXTURES / name, "timm", tmp_path / "out")
    before, after = (load_file(one / "model.safetensors") for one in (FIXTURES / name, folder))
    told = json.loads((folder / "config.json").read_text())["model_args"]
    asked = json.loads((FIXTURES / name / "about.json").read_text())["arguments"]
    asked = {key: value for key, value in asked.items() if key not in NOT_TOLD}
    if "swiglu" in name:
        asked.pop("act_layer", None)
        asked["mlp_ratio"] = told["mlp_ratio"]  # rounded there
    if "init_values" in asked:
        asked["init_values"] = told["init_values"]  # what it started with, which weights do not tell
    defaults = {"mlp_ratio": 4.0, "embed_dim": 768, "patch_size": 16}
    if "dinov3" in name:  # of its arguments the name tells some; all others are told
        plain = {"in_chans": 3, "class_token": True, "global_pool": "avg", "swiglu_mlp": False, "swiglu_align_to": 0}
        told["swiglu_align_to"] *= asked.get("swiglu_align_to", 1)  # the hidden size is a multiple of it already
        asked = plain | {key: value for key, value in asked.items() if key in told}
    assert {**defaults, **told} == {**defaults, **asked}
    if name == "timm_vit_swiglu":  # gate and value lie apart there, and packed here
        return
    assert after.keys() == before.keys()
    for key in before:
        if name == "timm_vit_reg2_embedded" and key in ("reg_token", "pos_embed"):  # the places of registers moved
            continue
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["torchvision_vit", "torchvision_vit_representation"])
def test_torchvision_gets_back_its_own_tensors(name: str, tmp_path: Path) -> None:
    folder = convert(FIXTURES / name, "torchvision", tmp_path / "out")
    before, after = (load_file(one / "model.safetensors") for one in (FIXTURES / name, folder))
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    asked = json.loads((FIXTURES / name / "about.json").read_text())["arguments"]
    code = (folder / "classifier.py").read_text()
    assert all(f"{key}={value}," in code for key, value in asked.items() if value is not None)


def test_google_gets_back_its_own_arrays(tmp_path: Path) -> None:
    folder = convert(FIXTURES / "google_npz_prelogits", "npz", tmp_path / "out")
    with np.load(FIXTURES / "google_npz_prelogits" / "model.npz") as before, np.load(folder / "model.npz") as after:
        assert sorted(after.files) == sorted(before.files)
        assert all(np.array_equal(after[name], before[name]) for name in before.files)


@pytest.mark.parametrize("to", ["hf", "torchvision", "npz"])
@pytest.mark.parametrize(
    "settings",
    [
        {"positions": "sincos-1d"},
        {"positions": "sincos-2d"},
        {"positions": "learned-2d"},
        {"positions": "none"},
        {"positions": {"kind": "learned", "class_token": False}},
        {"stem": {"kind": "linear", "bias": False}},
        {"attention": {"kind": "softmax", "bias": False}},
        {"pool": {"kind": "class", "norm": "after"}},
        {"blocks": {"kind": "pre-norm", "layer_scale": 0.5, "norm_eps": 1e-5}},
        {"blocks": {"kind": "pre-norm", "layer_scale": 0.5, "bias": False}},
    ],
    ids=str,
)
@torch.inference_mode()
def test_parts_that_can_be_said_otherwise_keep_their_outputs(to: str, settings: dict[str, Any], tmp_path: Path) -> None:
    before = weights(ViTConfig.read({**SMALL.write(), **settings}))
    after = load_pretrained(convert(before, to, tmp_path / "out"))
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(after.model(images), before.model(images), rtol=0, atol=3e-6)


def test_a_run_goes_into_its_own_folder_with_a_card(calibrated: Path) -> None:
    folder = convert(calibrated, "hf", pictures=0)
    assert folder == calibrated / "hf"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "about.json",
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    card = (folder / "README.md").read_text()
    assert "temperature 1.7" in card and "On `digits`" in card and 'pipeline("image-classification"' in card
    with pytest.raises(WeightsError, match="not empty"):
        convert(calibrated, "hf")
    assert not list(calibrated.glob(".*.part"))


def test_the_card_tells_what_was_measured(tmp_path: Path) -> None:
    card = (convert(FORMAT_1, "hf", tmp_path / "out", pictures=0) / "README.md").read_text()
    assert "| Accuracy | 37.2% | 32.4% to 42.3% |" in card


def test_a_class_name_cannot_break_the_card(tmp_path: Path) -> None:
    evil = weights()
    names = ("---\nlicense: mit\n---", "<script>", "a|b\x1b]0;title\x07\u202e")
    evil = Weights(evil.model, evil.preprocess, names, {"licence": 'mine: "all"\n---'})
    folder = convert(evil, "hf", tmp_path / "out")
    header, _, body = (folder / "README.md").read_text().removeprefix("---\n").partition("\n---\n")
    assert "license: other\n" in header and "license: mit" not in header
    assert "<script>" not in body and body.replace("\n", "").isprintable()
    assert load_pretrained(folder).class_names == names


def test_whose_weights_a_run_started_from_stays_with_it(tmp_path: Path) -> None:
    """Its name and its licence, in the weights and in the card of whatever they become."""
    begun = convert(FIXTURES / "timm_vit", "timm", tmp_path / "begun")
    about = json.loads((begun / "about.json").read_text())
    (begun / "about.json").write_text(json.dumps(about | {"licence": "apache-2.0"}))
    random = np.random.default_rng(0)
    for name in ("dark", "bright"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            pixels = random.integers(0, 255, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    asked: dict[str, object] = {
        "init.weights": str(begun),
        "train.budget": "2steps",
        "train.batch_size": 4,
        "train.baseline": False,
    }
    run = train(choose(str(tmp_path / "pictures"), asked).recipe, out=tmp_path / "run")
    assert run.weights().about == {"origin": "begun", "licence": "apache-2.0"}
    card = (convert(run.folder, "hf", pictures=0) / "README.md").read_text()
    assert "It started from the weights `begun`." in card
    assert 'license: "apache-2.0"' in card
    again = choose(str(tmp_path / "pictures"), asked | {"init.weights": str(run.folder)}).recipe
    assert train(again, out=tmp_path / "again").weights().about == run.weights().about


def test_a_folder_that_one_stands_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = convert(FIXTURES / "timm_vit", "timm", tmp_path / "begun")
    monkeypatch.chdir(begun)
    assert convert(".", "npz") == tmp_path / "begun-npz"


def test_what_had_to_be_guessed_is_in_the_card(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "timm_vit" / "model.safetensors", tmp_path / "bare.safetensors")
    (tmp_path / "about.json").write_text('{"heads": 4}')
    card = (convert(tmp_path / "bare.safetensors", "timm") / "README.md").read_text()
    assert "as is usual for timm: norm_eps = 1e-06" in card and "Transparent pixels" in card


def test_weights_alone_go_beside_their_file(tmp_path: Path) -> None:
    write_weights(tmp_path / "mine.safetensors", weights())
    assert convert(tmp_path / "mine.safetensors", "npz") == tmp_path / "mine-npz"
    shutil.copytree(FIXTURES / "timm_vit", tmp_path / "theirs")
    assert convert(tmp_path / "theirs", "torchvision") == tmp_path / "theirs-torchvision"


def test_a_model_in_memory_needs_a_place_and_its_pictures() -> None:
    with pytest.raises(WeightsError, match="with out"):
        convert(weights(), "hf")
    with pytest.raises(WeightsError, match="how pictures are prepared"):
        convert(ViT(SMALL), "hf", "nowhere")


def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes | str) -> None:
        if path.name == "README.md":
            raise OSError(28, "No space left on device")
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    monkeypatch.setattr("vitral.deploy.convert.write_whole", full)
    with pytest.raises(WeightsError, match="No space left"):
        convert(weights(), "hf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("resize", "line"),
    [
        ("stretch", "transforms.Resize((16, 16), interpolation=transforms.InterpolationMode.BICUBIC)"),
        ({"kind": "stretch", "share": 0.8}, "transforms.Resize((20, 20), interp"),
        ({"kind": "shortest", "share": 0.8}, "transforms.Resize(20, interp"),
        ({"kind": "crop", "share": 0.8}, "transforms.Resize(20, interp"),
        ("none", "transforms.CenterCrop((16, 16))"),
    ],
)
def test_torchvision_gets_a_transform_and_the_names(resize: Any, line: str, tmp_path: Path) -> None:
    before = weights(resize=resize)
    names = ('"ant"\n', "b'ee", "\u00e9\U0001f41d")
    folder = convert(Weights(before.model, before.preprocess, names), "torchvision", tmp_path / "out")
    code = (folder / "classifier.py").read_text()
    assert line in code and ("Resize" in code) == (resize != "none")
    values = {
        statement.targets[0].id: statement.value
        for statement in ast.parse(code).body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    assert tuple(ast.literal_eval(values["class_names"])) == names
    assert {"model", "transform"} <= values.keys()
    assert "from classifier import class_names, model, transform" in (folder / "README.md").read_text()


def test_timm_scales_to_as_many_pixels_as_we_do() -> None:
    """It divides by crop_pct and rounds down: 64 / (64 / 93) is a little less than 93."""
    for side, margin in itertools.product((64, 96, 128, 192, 224, 384), range(200)):
        how = Scale(kind="stretch", share=side / (side + margin))
        preprocess = Preprocess(image_size=(side, side), channels=3, resize=how, mean=(0.5,) * 3, std=(0.5,) * 3)
        settings = timm.write_config(SMALL, {}, preprocess, (), architecture="", features=1)["pretrained_cfg"] | {
            "input_size": [3, side, side]
        }
        assert math.floor(side / settings["crop_pct"]) == side + margin
        again = read_timm(settings).resize
        assert isinstance(again, Scale) and again.share == pytest.approx(how.share)


# ---- tried in the library itself


@pytest.fixture(scope="module")
def oblong(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the default recipe, but for a small model, on photographs that are not square: 24 to test."""
    folder = tmp_path_factory.mktemp("oblong")
    random = np.random.default_rng(0)
    for split, name, number in itertools.product(("train", "test"), ("ants", "bees"), range(12)):
        path = folder / "pictures" / split / name / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = 50 + 3 * number, 131 - 5 * number
        small = Image.fromarray(random.integers(0, 256, (height // 4, width // 4, 3), np.uint8))
        small.resize((width, height), Image.Resampling.BICUBIC).save(path)
    recipe = Recipe(model=SMALL.model_copy(update={"classes": 0}), data=Data(source=str(folder / "pictures")))
    return train(recipe.changed({"train.budget": "2steps", "train.batch_size": 8}), out=folder / "run")


def trial_of(folder: Path) -> Trial:
    trial = Trial(**json.loads((folder / "about.json").read_text())["trial"])
    assert str(trial) in (folder / "README.md").read_text()
    return trial


@pytest.mark.parametrize(("to", "words"), [("npz", "Vitral does not run it"), ("timm", "not installed")])
def test_what_was_not_tried_is_told(
    to: str, words: str, oblong: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    trial = trial_of(convert(oblong.folder, to, tmp_path / "out"))
    assert words in str(trial) and not trial.is_different


@pytest.mark.parametrize("difference", [0.0051, math.nan])
def test_a_difference_that_can_be_seen_is_one_to_warn_of(difference: float) -> None:
    assert Trial("timm", 20, "test", difference).is_different and Trial("timm", 20, "test", 0.0, changed=1).is_different
    assert not Trial("timm", 20, "test", 0.005).is_different


def test_weights_without_a_run_are_not_tried(tmp_path: Path) -> None:
    assert "the weights have no run" in str(trial_of(convert(weights(), "hf", tmp_path / "out")))


@pytest.fixture
def broken_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text(
        "def create_model(*arguments, **settings):\n    raise RuntimeError('no\\nluck')\n"
    )
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("broken_timm")
def test_a_library_that_fails_is_a_warning(
    oblong: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["convert", str(oblong.folder), "--to", "timm", "--out", str(tmp_path / "out")])
    trial = trial_of(tmp_path / "out")
    assert trial.is_different and "failed: RuntimeError: no luck" in str(trial)
    assert f"Warning: {trial}" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "timm")


@pytest.mark.usefixtures("broken_timm")
def test_pictures_that_are_gone_are_told(oblong: Run, tmp_path: Path) -> None:
    shutil.copytree(oblong.folder, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("pictures", "elsewhere"))
    trial = trial_of(convert(tmp_path / "run", "timm", tmp_path / "out"))
    assert "the pictures of the run cannot be found" in str(trial) and not trial.is_different


@pytest.mark.usefixtures("broken_timm")
def test_one_damaged_picture_does_not_hide_the_others(oblong: Run, tmp_path: Path) -> None:
    shutil.copytree(oblong.folder, tmp_path / "run")
    pictures = Path(oblong.recipe.data.source)
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", pictures))
    with zipfile.ZipFile(archive) as file:
        damaged = next(entry for entry in file.infolist() if not entry.is_dir())
    content = bytearray(archive.read_bytes())
    content[damaged.header_offset + 30 + len(damaged.filename) + damaged.compress_size // 2] ^= 255
    archive.write_bytes(content)
    recipe = tmp_path / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(pictures), str(archive)))
    assert "failed: RuntimeError: no luck" in str(trial_of(convert(tmp_path / "run", "timm", tmp_path / "out")))


# ---- with the real library


@pytest.fixture(scope="module")
def transformers() -> Any:
    """Where it is missing, these tests skip and say so."""
    return pytest.importorskip("transformers", reason="transformers is not installed")


def of_pipeline(transformers: Any, folder: Path, picture: Path) -> dict[str, float]:
    ask = transformers.pipeline("image-classification", model=str(folder), device="cpu")
    return {row["label"]: row["score"] for row in ask(str(picture), top_k=1000)}


def assert_same(answers: dict[str, float], classifier: Classifier, picture: Path, apart: float = 1e-6) -> None:
    expected = dict(classifier.predict(picture).probabilities)
    assert answers.keys() == expected.keys()
    assert max(abs(answers[name] - expected[name]) for name in expected) <= apart


real = pytest.mark.filterwarnings("ignore")  # they are not ours


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, to in HELD if to == "hf" and load_pretrained(FIXTURES / name).model.config.classes]
)
def test_the_pipeline_gives_the_same_probabilities(
    name: str, transformers: Any, tmp_path: Path, pictures: list[Path]
) -> None:
    before = load_pretrained(FIXTURES / name)
    folder = convert(FIXTURES / name, "hf", tmp_path / "out")
    whole = before.preprocess.resize.kind == "stretch"  # else a picture that is not square is cut a little beside
    for picture in pictures if whole else pictures[:2]:
        # A grey model rounds the grey of a colour picture to 8 bits, which the first layer of this one does not.
        apart = 1e-3 if before.model.config.channels == 1 and picture.stem != "grey" else 1e-6
        assert_same(of_pipeline(transformers, folder, picture), Classifier(before), picture, apart)


@real
@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
def test_pictures_that_are_not_square_arrive_in_transformers(
    oblong: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the default recipe; and with what was the default before, a difference is seen and told."""
    main(["convert", str(oblong.folder), "--to", "hf", "--out", str(tmp_path / "out")])
    trial = trial_of(tmp_path / "out")
    assert trial.library.startswith("transformers ") and (trial.pictures, trial.split) == (20, "test")
    assert trial.difference <= 0.005 and trial.changed == 0
    said = capsys.readouterr()
    assert str(trial) in said.out and "Warning" not in said.err
    torch.manual_seed(0)
    for resize, is_different in (("stretch", False), ("crop", True), ({"kind": "shortest", "rounding": "even"}, True)):
        before = weights(resize=resize)  # its parameters are random, so that every pixel counts
        folder = convert(before, "hf", tmp_path / before.preprocess.resize.kind)
        loading = f'from transformers import pipeline\nask = pipeline("image-classification", model={str(folder)!r})'
        assert try_pictures("hf", folder, loading, Inference(before), oblong, 20).is_different == is_different


@real
@pytest.mark.slow
def test_the_pipeline_has_the_temperature_of_the_run(transformers: Any, calibrated: Path, pictures: list[Path]) -> None:
    folder = convert(calibrated, "hf")
    assert_same(of_pipeline(transformers, folder, pictures[1]), Classifier.load(calibrated), pictures[1])


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"image_size": [16, 24]},
        {"mlp": "gelu-tanh"},
        {"mlp": "gelu-quick"},
        {"attention": {"kind": "softmax", "bias": False}},
        {"tokens": {"kind": "class", "registers": 3}},
        {"pool": "class-mean"},
        {"pool": "mean", "blocks": {"kind": "pre-norm", "layer_scale": 0.5}},
        {"pool": "mean", "tokens": "none"},
        {"pool": "mean", "tokens": "none", "image_size": [16, 24]},
        {"tokens": "distilled", "image_size": [16, 24]},
        {"positions": "sincos-2d"},
    ],
    ids=str,
)
def test_every_kind_of_model_answers_the_same(
    settings: dict[str, Any], transformers: Any, tmp_path: Path, pictures: list[Path]
) -> None:
    before = weights(ViTConfig.read({**SMALL.write(), **settings}))
    folder = convert(before, "hf", tmp_path / "out")
    for picture in pictures:
        assert_same(of_pipeline(transformers, folder, picture), Classifier(before), picture)


@real
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dino_reference", "dinov2_reg_reference", "dinov2_swiglu_reference", "hf_vit_model"])
@torch.inference_mode()
def test_a_model_without_classes_gives_the_same_tokens(name: str, transformers: Any, tmp_path: Path) -> None:
    before = load_pretrained(FIXTURES / name)
    theirs = transformers.AutoModel.from_pretrained(convert(FIXTURES / name, "hf", tmp_path / "out")).eval()
    images = torch.randn(2, 3, *before.preprocess.image_size)
    answer = theirs(pixel_values=images)
    torch.testing.assert_close(answer.last_hidden_state, before.model.features(images), rtol=0, atol=1e-5)
    if name == "hf_vit_model":
        torch.testing.assert_close(answer.pooler_output, before.model(images), rtol=0, atol=1e-5)


@real
@pytest.mark.slow
def test_nothing_is_new_or_left_over_in_transformers(transformers: Any, tmp_path: Path) -> None:
    for name in ("timm_vit", "timm_deit_distilled", "hf_ijepa", "hf_dinov2", "hf_dinov2_with_registers"):
        folder = convert(FIXTURES / name, "hf", tmp_path / name)
        load = transformers.AutoModelForImageClassification.from_pretrained
        _, told = load(folder, output_loading_info=True)
        assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (name, told)


# ---- pickles


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def saved_by_torch(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def told(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(arg) for arg in args])
    assert left.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("ending", PICKLES)
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_no_pickle_runs_its_makers_code(
    ending: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, trap = tmp_path / f"model{ending}", tmp_path / "ran"
    content = {"model": {"w": torch.zeros(2)}, "evil": Evil(trap)}
    path.write_bytes(pickle.dumps(content)) if how == "pickle" else saved_by_torch(path, content)
    assert "is a pickle" in told(capsys, "convert", path)
    assert "is a pickle" in told(capsys, "convert", path, "--to", "hf")
    assert "was not opened" in told(capsys, "convert", path, "--i-trust-this-file")
    assert not trap.exists() and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz", "model.safetensors.index.json"])
def test_a_pickle_under_another_name_does_not_run_either(name: str, tmp_path: Path) -> None:
    path, trap = tmp_path / name, tmp_path / "ran"
    path.write_bytes(pickle.dumps(Evil(trap)))
    with pytest.raises(WeightsError):
        convert(path, "hf", tmp_path / "out")
    if name.endswith("npz"):
        np.savez(path, evil=np.array([Evil(trap)], dtype=object))
        with pytest.raises(WeightsError):
            convert(path, "hf", tmp_path / "out")
        assert zipfile.is_zipfile(path)
    assert not trap.exists()


@pytest.mark.parametrize("inside", [(), ("model",), ("state_dict",), ("teacher",), ("model", "state_dict"), ("ours",)])
def test_a_trusted_pickle_becomes_safetensors(
    inside: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(FIXTURES / "timm_vit" / "model.safetensors")
    content: Any = dict(tensors)
    for name in reversed(inside):
        content = {name: content, "epoch": 3, "args": argparse.Namespace(lr=0.1), "optimizer": {}}
    path = saved_by_torch(tmp_path / "file.pth", content)
    main(["convert", str(path), "--i-trust-this-file"])
    assert (".".join(inside) or "the file itself") in capsys.readouterr().out
    found = load_file(tmp_path / "file.safetensors")
    assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)
    with pytest.raises(WeightsError, match="there already"):
        convert_pickle(path)


def test_of_teacher_and_student_the_teacher_is_taken(tmp_path: Path) -> None:
    path = saved_by_torch(
        tmp_path / "dino.pth",
        {"student": {"w": torch.zeros(2)}, "teacher": {"w": torch.ones(2)}, "optimizer": {"a": 1}},
    )
    assert load_file(convert_pickle(path))["w"].tolist() == [1, 1]


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    path = saved_by_torch(tmp_path / "file.pt", {"a": shared, "b": shared[:3], "c": shared.view(2, 3).T})
    assert load_file(convert_pickle(path))["c"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {"a": {"b": {"c": 1}}, "d": {"e": 2}}])
def test_a_pickle_without_weights_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no table of tensors"):
        convert_pickle(saved_by_torch(tmp_path / "file.pth", content))


def test_a_whole_model_in_a_pickle_is_told(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pth")
    with pytest.raises(WeightsError, match=r"more than tensors, torch\.nn\.modules\.linear\.Linear, and was"):
        convert_pickle(tmp_path / "whole.pth")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut"])
def test_a_damaged_pickle_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.pth").write_bytes(content)
    with pytest.raises(WeightsError, match="file.pth is damaged"):
        convert_pickle(tmp_path / "file.pth")


# ---- the command


def test_the_command_says_where_and_what_changed(calibrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["convert", str(calibrated), "--to", "npz"])
    said = capsys.readouterr().out
    assert "temperature 1.7" in said and f"Written to {calibrated / 'npz'}" in said


@pytest.mark.parametrize("args", [["x"], ["x.safetensors", "--to", "hf", "--i-trust-this-file"], ["x", "--to", "jax"]])
def test_what_was_asked_wrongly_is_told(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["convert", *args])
    assert left.value.code == 2


def test_unknown_files_are_not_taken_for_weights(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(WeightsError, match="no model of a family that is known here"):
        convert(tmp_path / "x.safetensors", "hf", tmp_path / "out")


# ---- any model


@st.composite
def mostly_held(draw: st.DrawFn) -> ViTConfig:
    """A plain ViT of any size with some of the parts that other libraries have too, in whatever combination."""
    patch = draw(st.sampled_from([1, 2, 3, 4]))
    values = SMALL.write() | {
        "image_size": [patch * draw(st.integers(1, 4)), patch * draw(st.integers(1, 4))],
        "patch_size": patch,
        "channels": draw(st.sampled_from([1, 3, 4])),
        "width": draw(st.sampled_from([8, 12])),
        "heads": draw(st.sampled_from([1, 2, 4])),
        "classes": draw(st.integers(1, 3)),
    }
    parts: dict[str, list[Any]] = {
        "tokens": ["distilled", {"kind": "class", "registers": 2}],
        "positions": ["sincos-2d", {"kind": "learned", "class_token": False}],
        "attention": [{"kind": "softmax", "bias": False}, {"kind": "softmax", "qk_norm": True}],
        "mlp": ["gelu-tanh", "gelu-quick", {"kind": "swiglu", "ratio": 2.0}],
        "blocks": [{"kind": "pre-norm", "layer_scale": 0.3, "bias": False}, {"kind": "pre-norm", "norm_eps": 1e-3}],
        "pool": ["mean", "class-mean", {"kind": "mean", "norm": "after"}],
    }
    for name in draw(st.sets(st.sampled_from(sorted(parts)), max_size=2)):
        values[name] = draw(st.sampled_from(parts[name]))
    assume(values["tokens"] != "distilled" or values["pool"] == SMALL.write()["pool"])  # it reads out both its tokens
    return ViTConfig.read(values)


@pytest.mark.parametrize("size", [(4, 8), (8, 4), (4, 12)])
@pytest.mark.parametrize("positions", ["sincos-2d", {"kind": "learned", "class_token": False}])
def test_a_table_without_a_class_token_is_not_taken_for_a_square_with_one(
    size: tuple[int, int], positions: object, tmp_path: Path
) -> None:
    """Two rows may be two patches, or one patch and the class token: the size beside the weights says which."""
    values = {**SMALL.write(), "image_size": list(size), "patch_size": 4, "positions": positions}
    before = weights(ViTConfig.read(values))
    again = load_pretrained(convert(before, "timm", tmp_path / "out"))
    images = torch.randn(2, before.model.config.channels, *size)
    with torch.inference_mode():
        torch.testing.assert_close(again.model(images), before.model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@given(config=mostly_held(), to=st.sampled_from(sorted(WRITERS)), grid=st.tuples(st.integers(1, 5), st.integers(1, 5)))
@settings(max_examples=200)
def test_whatever_can_be_comes_back_the_same_or_is_refused_with_a_sentence(
    config: ViTConfig, to: str, grid: tuple[int, int]
) -> None:
    """Any layout of tokens, any channels, pictures that are not square: out, in again, and at another size."""
    torch.manual_seed(0)
    before = weights(config)
    with TemporaryDirectory() as folder:
        try:
            written = convert(before, to, Path(folder) / "out")
        except WeightsError as error:
            assert str(error).endswith(".") and list(Path(folder).iterdir()) == []
            event("refused")
            return
        event(f"written for {to}")
        again = load_pretrained(written)
        images = torch.randn(2, config.channels, *config.height_width)
        with torch.inference_mode():
            seen = images.expand(-1, again.model.config.channels, -1, -1)  # where grey is written as three colours
            torch.testing.assert_close(again.model(seen), before.model(images), rtol=1e-4, atol=1e-5)
        height, width = (config.patch_size * side for side in grid)
        other = load_pretrained(written, image_size=(height, width), channels=2, classes=7)
    assert other.model(torch.randn(1, 2, height, width)).shape == (1, 7)
