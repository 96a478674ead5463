"""BiT's ResNet and the paper's hybrids: everybody's outputs, everybody's counts, and what only they do."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import conv2d

from conftest import FIXTURES, stopped, vit, with_groups
from test_resume import assert_same
from vitral import RecipeError, WeightsError, load_pretrained, train
from vitral.cli import vitral
from vitral.data.config import Scale
from vitral.data.preprocess import Preprocess
from vitral.deploy.convert import convert
from vitral.model import build
from vitral.model.config import ModelConfig, Regularise, Stem, ViTConfig
from vitral.model.resnet import Conv, ResNet, SameConv
from vitral.model.resnet_config import ResNetConfig
from vitral.recipe import Recipe
from vitral.recipes.choose import choose
from vitral.training.config import Train
from vitral.training.learner import Learner
from vitral.weights.own import Weights

RESNETS = ("timm_resnetv2", "timm_resnetv2_gn32", "hf_bit")
HYBRIDS = ("timm_hybrid_s16", "timm_hybrid_s32")
SMALL = ResNetConfig(image_size=32, depths=(1, 2), widths=(8, 16, 32), groups=4, classes=5)
HYBRID = ViTConfig(
    image_size=32, patch_size=8, width=16, depth=2, heads=2, classes=5,
    stem=Stem(kind="resnet", depths=(1, 1), widths=(8, 16, 32), groups=4),
)  # fmt: skip
BOTH = pytest.mark.parametrize("config", [SMALL, HYBRID], ids=["resnet", "hybrid"])


def resnet(model: object) -> ResNet:
    assert isinstance(model, ResNet)
    return model


def about(name: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((FIXTURES / name / "about.json").read_text())
    return known


def cases(names: tuple[str, ...]) -> list[tuple[str, tuple[int, int]]]:
    return [(name, (height, width)) for name in names for height, width in about(name)["sizes"]]


@pytest.mark.parametrize(("name", "size"), cases(RESNETS), ids=str)
@torch.inference_mode()
def test_a_resnet_gives_what_its_library_gives_at_every_size(name: str, size: tuple[int, int]) -> None:
    """Outputs within 1e-5; maps, whose numbers are up to 50, within 1e-5 of their largest: ours in float64 are up
    to 2.5e-5 from what the libraries say in float32. Also where no stride divides the size."""
    known, word = load_file(FIXTURES / name / "io.safetensors"), f"{size[0]}x{size[1]}"
    for pretrained in (load_pretrained(FIXTURES / name), load_pretrained(FIXTURES / name, image_size=size)):
        model, images = resnet(pretrained.model), known[f"image_{word}"]
        tokens = model.features(images)
        found = {"embedded": model.stem(images), "features": model.map(images), "logits": model(images)}
        found["pooled"] = model.pool(tokens)
        compared = [key for key in found if f"{key}_{word}" in known]
        assert {"logits", "pooled"} <= {*compared}
        for key in compared:
            expected = known[f"{key}_{word}"].view_as(found[key])
            largest = 1.0 if key in ("logits", "pooled") else expected.abs().max().item()
            torch.testing.assert_close(found[key], expected, rtol=0, atol=1e-5 * largest)
        down, across = model.grid_of(images)
        torch.testing.assert_close(tokens.unflatten(1, (down, across)).permute(0, 3, 1, 2), found["features"])


@pytest.mark.parametrize(("name", "size"), cases(HYBRIDS), ids=str)
@torch.inference_mode()
def test_a_hybrid_gives_what_timm_gives_at_every_size(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Within 2e-5, from the ResNet's last map to the logits; also where no stride divides the size."""
    folder, word = with_groups(name, tmp_path), "x".join(map(str, size))
    known = load_file(FIXTURES / name / "io.safetensors")
    for pretrained in (load_pretrained(folder), load_pretrained(folder, image_size=size)):
        model, images = vit(pretrained.model), known[f"image_{word}"]
        tokens = model.features(images)
        found = {
            "backbone": model.get_submodule("patch_embed.backbone")(images),
            "embedded": model.embed(images),
            "tokens": tokens,
        }
        found |= {"pooled": model.pool(tokens), "logits": model(images)}
        for key, mine in found.items():
            torch.testing.assert_close(mine, known[f"{key}_{word}"], rtol=0, atol=2e-5)
        assert model.grid_of(images) == tuple(about(name)["grids"][word])


@torch.inference_mode()
def test_googles_files_give_what_googles_code_gives(tmp_path: Path) -> None:
    """Their BiT adds 1e-10 to a variance, and so do we. Of their hybrid we follow timm: see google.py."""
    known = load_file(FIXTURES / "timm_resnetv2" / "io.safetensors")
    facts = about("timm_resnetv2")
    del facts["weight_eps"]
    shutil.copy(FIXTURES / "timm_resnetv2" / "model.npz", tmp_path)
    (tmp_path / "about.json").write_text(json.dumps(facts))
    bit = load_pretrained(tmp_path)
    assert bit.loaded is not None and bit.loaded.family == "Google BiT"
    for height, width in facts["sizes"]:
        logits = bit.model(known[f"image_{height}x{width}"])
        torch.testing.assert_close(logits, known[f"google_logits_{height}x{width}"], rtol=0, atol=1e-5)
    hybrid = load_pretrained(with_groups("timm_hybrid_s16", tmp_path / "hybrid", "model.npz"))
    known = load_file(FIXTURES / "timm_hybrid_s16" / "io.safetensors")
    for word in ("48x48", "32x48", "37x59"):
        torch.testing.assert_close(hybrid.model(known[f"image_{word}"]), known[f"logits_{word}"], rtol=0, atol=2e-5)


def test_without_a_word_on_groups_a_hybrid_of_others_is_not_guessed() -> None:
    with pytest.raises(WeightsError, match=r"groups 32 does not divide .* write them into an about.json"):
        load_pretrained(FIXTURES / "timm_hybrid_s16")


@pytest.mark.parametrize(
    ("name", "count"),
    {
        "R50x1": 25_549_352,
        "R50x2": 97_988_712,
        "R101x1": 44_541_480,
        "R152x1": 60_185_128,
        "R152x2": 236_335_208,
        "R50+B/16": 98_659_112,
        "R50+B/32": 110_945_832,
        "R50+L/16": 316_483_624,
        "R50+L/32": 328_994_856,
    }.items(),
)
def test_the_models_of_table_3_have_as_many_parameters_as_elsewhere(name: str, count: int) -> None:
    """As timm counts its own of these names, at 224 pixels and with 1,000 classes."""
    config: ModelConfig = ViTConfig.named(name) if "/" in name else ResNetConfig.named(name)
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in build(config).parameters()) == count


@pytest.mark.parametrize("name", ["R50", "R50x5", "R51x1", "x1", "R50+B/14", "R99+B/16", "R50+Q/16", "R+B/16", "RB/16"])
def test_a_size_that_is_none_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(RecipeError, match="There is no size"):
        (ViTConfig if "/" in name else ResNetConfig).named(name)


def test_filters_that_are_shifted_and_scaled_are_the_same_filters() -> None:
    conv, images = Conv(3, 8, 3, stride=2), torch.randn(2, 3, 15, 12)
    before = conv(images)
    with torch.no_grad():
        conv.weight.mul_(7).add_(0.3)
    torch.testing.assert_close(conv(images), before, rtol=1e-4, atol=1e-5)
    filters = conv.standardised().flatten(1)
    torch.testing.assert_close(filters.mean(1), torch.zeros(8), rtol=0, atol=1e-6)
    torch.testing.assert_close(filters.var(1, correction=0), torch.ones(8), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [5, 8, 11])
def test_the_same_border_gives_as_many_places_as_strides_fit_in(size: int, stride: int, side: int) -> None:
    """And puts the odd row and column of zeros below and right."""
    conv, images = SameConv(2, 4, size, stride), torch.randn(1, 2, side, side)
    out = conv(images)
    places = -(-side // stride)
    assert out.shape == (1, 4, places, places)
    missing = max(0, (places - 1) * stride + size - side)
    by_hand = torch.zeros(1, 2, side + missing, side + missing)
    by_hand[:, :, missing // 2 : missing // 2 + side, missing // 2 : missing // 2 + side] = images
    torch.testing.assert_close(out, conv2d(by_hand, conv.standardised(), None, stride))


def test_a_picture_that_moves_by_whole_cells_moves_the_map() -> None:
    """What a convolution is for: the same thing elsewhere is the same answer elsewhere. GroupNorm sees all places, so
    that the picture moves inside of a wide empty border; in float64, since a norm enlarges small numbers."""
    model = ResNet(SMALL).eval().double()
    images = torch.zeros(1, 3, 128, 128, dtype=torch.float64)
    images[:, :, 56:64, 56:64] = torch.randn(3, 8, 8)
    moved = images.roll((SMALL.cell * 2, -SMALL.cell), dims=(2, 3))
    there = model.map(images).roll((2, -1), dims=(2, 3))
    torch.testing.assert_close(model.map(moved)[:, :, 4:-4, 4:-4], there[:, :, 4:-4, 4:-4], rtol=0, atol=1e-12)


@BOTH
def test_every_parameter_learns_and_is_in_one_layer(config: ModelConfig) -> None:
    model = build(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert [name for name, one in model.named_parameters() if one.grad is None or not one.grad.any()] == []
    layers = model.layers()
    names = [name for layer in layers for name in layer.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert [layer.depth for layer in layers] == sorted(layer.depth for layer in layers)
    assert max(layer.depth for layer in layers) - 1 == config.block_count


@BOTH
def test_one_step_on_the_meta_device(config: ModelConfig) -> None:
    from vitral.data.batches import Batch

    with torch.device("meta"):
        learner = Learner(build(config).train(), Train())
        labels = torch.tensor([1, 2])
        batch = Batch(torch.randn(2, 3, 32, 32), labels, torch.arange(2, device="cpu").numpy(), labels)
    loss, _ = learner.gradients(1, batch, 0.0)
    assert loss.shape == () and all(one.grad is not None for one in learner.model.parameters())


@BOTH
def test_an_exported_model_gives_the_same(config: ModelConfig) -> None:
    model, images = build(config).eval(), torch.randn(2, 3, 32, 32)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), model(images))


@BOTH
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's inductor, of torch's own code
def test_a_compiled_model_gives_the_same(config: ModelConfig) -> None:
    model, images = build(config).eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model)(images), model(images), rtol=1e-4, atol=1e-5)


@BOTH
def test_a_copy_for_another_size_gives_the_same_there(config: ModelConfig) -> None:
    """Of a hybrid with its positions resampled once; and 45×37 pixels are as good as 32×32."""
    model, images = build(config).eval(), torch.randn(1, 3, 45, 37)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    there = model.at((45, 37))
    assert there.config.height_width == (45, 37)
    torch.testing.assert_close(there(images), model(images))


def test_a_block_is_left_out_in_training_alone() -> None:
    model = ResNet(SMALL, Regularise(stochastic_depth=0.9))
    images = torch.randn(64, 3, 32, 32)
    assert [block.drop for stage in model.stages for block in stage.blocks] == [0, 0.45, 0.9]  # type: ignore[union-attr]
    assert not torch.equal(model.train().features(images), model.features(images))
    assert torch.equal(model.eval().features(images), model.features(images))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"depths": (1, 1), "widths": (32, 64)}, "widths has 2 numbers, and model.depths 2"),
        ({"widths": (64, 100, 200, 400, 800)}, "groups 32 does not divide .* inside a block|Inside a block"),
        ({"depths": ()}, "depths"),
        ({"groups": 48}, "groups 48 does not divide"),
        ({"image_size": 0}, "not between 1 and 65,536"),
        ({"head": "none"}, "model.head none has no classes"),
    ],
    ids=str,
)
def test_a_resnet_that_cannot_be_is_refused_in_a_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        ResNetConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stem": {"kind": "resnet"}, "patch_size": 8}, "3 stages makes one place of 16 pixels"),
        ({"stem": {"kind": "resnet", "channels": 32}}, "channels does not go with it"),
        ({"stem": {"kind": "linear", "depths": [1, 1]}}, "linear is no ResNet"),
        ({"stem": {"kind": "resnet", "widths": [64]}}, "model.stem.widths has 1 numbers"),
    ],
    ids=str,
)
def test_a_hybrid_that_cannot_be_is_refused_in_a_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        ViTConfig.read(settings, "model.")


def test_what_a_resnet_does_not_do_is_said() -> None:
    with pytest.raises(RecipeError, match="A ResNet drops whole branches alone"):
        ResNet(SMALL, Regularise(dropout=0.1))
    with pytest.raises(RecipeError, match="cannot leave patches out"):
        ResNet(SMALL).features(torch.zeros(1, 3, 32, 32), torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(RecipeError, match="model.classes is 0"):
        ResNet(SMALL.model_copy(update={"classes": 0}))


def test_a_hybrid_can_leave_patches_out() -> None:
    model, images = build(HYBRID).eval(), torch.randn(2, 3, 32, 32)
    kept = torch.arange(16).expand(2, -1)
    torch.testing.assert_close(model.features(images, kept), model.features(images))
    assert model.features(images, kept[:, :3]).shape[1] == 4


def test_a_first_layer_for_grey_is_told_to_be_another() -> None:
    """Filters that are standardised anew lose the scale that they had beside each other."""
    for name, channels in (("hf_bit", 1), ("timm_resnetv2", 6)):
        adapted = load_pretrained(FIXTURES / name, channels=channels)
        assert adapted.model(torch.zeros(1, channels, 40, 40)).shape == (1, 10)
        assert adapted.loaded is not None
        assert "filters are standardised anew" in dict(adapted.loaded.rows)["adapted"]


BIT: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [32, 64], "depths": [1, 2], "num_groups": 4}


def live(name: str, **settings: Any) -> Any:
    """A model of transformers, all of whose numbers are random."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    kind = getattr(transformers, name)
    theirs = kind(kind.config_class(**BIT | settings)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return theirs


@pytest.mark.filterwarnings("ignore")  # theirs are not ours
@pytest.mark.parametrize(
    "settings", [{"num_labels": 5}, {"num_labels": 3, "num_channels": 1, "num_groups": 2}], ids=str
)
@torch.inference_mode()
def test_bit_of_transformers_gives_the_same_from_memory_and_from_its_folder(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    theirs = live("BitForImageClassification", **settings)
    theirs.save_pretrained(tmp_path)
    for source in (theirs, tmp_path):
        ours = load_pretrained(source)
        for size in ((64, 64), (33, 70)):
            images = torch.randn(2, settings.get("num_channels", 3), *size)
            torch.testing.assert_close(ours.model(images), theirs(pixel_values=images).logits, rtol=0, atol=1e-5)
    assert ours.model.config.classes == settings["num_labels"]


@pytest.mark.filterwarnings("ignore")
@torch.inference_mode()
def test_bit_without_a_classifier_gives_the_same_map() -> None:
    theirs, images = live("BitModel"), torch.randn(1, 3, 48, 64)
    ours = load_pretrained(theirs)
    assert not ours.model.config.has_classes and ours.loaded is not None and "compared" in dict(ours.loaded.rows)
    expected = theirs(pixel_values=images)
    torch.testing.assert_close(resnet(ours.model).map(images), expected.last_hidden_state, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.model(images), expected.pooler_output.flatten(1), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("BitForImageClassification", {"layer_type": "bottleneck"}, "bottleneck as layer_type"),
        ("BitForImageClassification", {"global_padding": "SAME"}, "padding as in TensorFlow"),
        ("BitForImageClassification", {"hidden_act": "gelu"}, "gelu as hidden_act"),
        ("BitForImageClassification", {"output_stride": 8, "depths": [1, 1, 1, 1], "hidden_sizes": [32] * 4}, "stride"),
        ("BitBackbone", {}, "maps of its stages"),
    ],
    ids=str,
)
def test_what_transformers_makes_of_bit_otherwise_is_refused(
    name: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    theirs = live(name, **settings)
    theirs.save_pretrained(tmp_path)
    for source in (theirs, tmp_path):
        if source is theirs and name == "BitBackbone":  # in memory there is a BitModel in it, which we have
            continue
        with pytest.raises(WeightsError, match=words):
            load_pretrained(source)


# ---- in the other rooms

ON_DIGITS = {
    "resnet": {"kind": "resnet", "depths": [1, 1], "widths": [8, 16, 32], "groups": 4, "stem": "3x3"},
    "hybrid": {
        "patch_size": 8, "width": 16, "depth": 2, "heads": 2,
        "stem": {"kind": "resnet", "depths": [1, 1], "widths": [8, 16, 32], "groups": 4},
    },
}  # fmt: skip


def on_digits(kind: str) -> Recipe:
    model = {"image_size": 8, "channels": 0, "classes": 0, **ON_DIGITS[kind]}
    return Recipe.read({"model": model, "data": {"source": "digits"}, "train": {"epochs": 2, "batch_size": 128}})


@pytest.mark.parametrize("kind", ON_DIGITS)
def test_stopped_and_resumed_it_is_the_same_to_the_bit(kind: str, tmp_path: Path) -> None:
    whole = train(on_digits(kind), out=tmp_path / "whole")
    resumed = train(out=stopped(on_digits(kind), tmp_path / "run", after=10), resume=True)
    assert_same(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_DIGITS)
def test_every_command_takes_it_or_says_why_not(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(on_digits(kind), out="run")
    Image.new("L", (20, 12), 90).save("grey.png")
    for words in (
        "evaluate run", "predict run grey.png", "look run grey.png --out maps", "look run --model --out model",
        "probe run digits --out probe", "embed run digits --out vectors", "shapes run", "shapes run --draw run.svg",
        "show run", "train digits init.weights=run init.mode=gentle train.epochs=1 train.baseline=false --out tuned",
        "compare run tuned",
    ):  # fmt: skip
        told = CliRunner().invoke(vitral, words.split())
        if kind == "resnet" and words.startswith("look"):
            assert "has no attention to look at" in str(told.exception)
        else:
            assert told.exit_code == 0, f"{words}: {told.output} {told.exception!r}"


def test_a_kind_that_sees_all_patches_is_trained_on_a_folder_without_a_word_on_patches() -> None:
    assert choose("digits", {"model.kind": "resnet"}).recipe.train.patches.kind == "fixed"
    assert choose("digits").recipe.train.patches.kind == "rising"


# ---- to other libraries

NARROW: dict[str, Any] = {"image_size": 64, "widths": (32, 128, 128, 256, 256), "classes": 4}
HYBRID_50 = ViTConfig.read({**ViTConfig.named("R50+B/16", 64, classes=4).write(), "width": 32, "depth": 1, "heads": 2})


def random_weights(config: ModelConfig) -> Weights:
    """A model all of whose numbers are random."""
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    grey = (0.5,) * config.channels
    resize = Scale(kind="stretch")
    preprocess = Preprocess(
        image_size=config.height_width, channels=config.channels, resize=resize, mean=grey, std=grey
    )
    return Weights(model, preprocess, tuple("abcd")[: config.classes])


@pytest.mark.parametrize(
    ("config", "to"),
    [
        *((ResNetConfig(**NARROW), to) for to in ("hf", "timm", "npz")),
        (ResNetConfig(**NARROW | {"image_size": (64, 96), "head": "none", "classes": 0}), "timm"),
        (ResNetConfig(**NARROW, channels=1, weight_eps=1e-10), "npz"),
        (HYBRID_50, "timm"),
        (HYBRID_50, "npz"),
    ],
    ids=["resnet-hf", "resnet-timm", "resnet-npz", "without-head", "grey-google", "hybrid-timm", "hybrid-npz"],
)
@torch.inference_mode()
def test_converted_and_loaded_again_it_gives_the_same(config: ModelConfig, to: str, tmp_path: Path) -> None:
    weights = random_weights(config)
    folder = convert(weights, to, tmp_path / "out")
    again = load_pretrained(folder)
    images = torch.randn(2, config.channels, *config.height_width)
    assert torch.equal(again.model(images), weights.model(images))
    assert again.model.config == config and again.class_names == weights.class_names
    what = "A ResNet for pictures" if config.kind == "resnet" else "A Vision Transformer for pictures"
    assert what in (folder / "README.md").read_text()


@pytest.mark.filterwarnings("ignore")  # theirs are not ours
@torch.inference_mode()
def test_transformers_answers_the_same(tmp_path: Path) -> None:
    """In float64: fifty random layers enlarge what float32 rounds to 7e-5 of the largest number."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    ours = random_weights(ResNetConfig(**NARROW))
    folder = convert(ours, "hf", tmp_path / "hf")
    theirs, told = transformers.AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values())
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    expected = theirs.eval().double()(pixel_values=images).logits
    torch.testing.assert_close(ours.model.double()(images), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("config", "to", "words"),
    [
        (SMALL, "timm", "its model.depths is (1, 2), and would have to be (3, 4, 6, 3) or"),
        (ResNetConfig(**NARROW | {"groups": 16}), "timm", "its model.groups is 16, and would have to be 32"),
        (ResNetConfig(**NARROW | {"groups": 16}), "npz", "its model.groups is 16, and would have to be 32"),
        (ResNetConfig(**NARROW, channels=1), "hf", "its model.channels is 1, and would have to be 3"),
        (ResNetConfig(**NARROW, stem="3x3"), "hf", "its model.stem is 3x3, and would have to be 7x7"),
        (SMALL, "hf", "multiples of 8, and of its model.widths 16 would become another"),
        (SMALL, "torchvision", "There is no way to write a resnet for torchvision: choose hf or timm or npz"),
        (HYBRID, "timm", "would have to be that of vit_base_r50_s16_224 or"),
        (HYBRID, "npz", "its model.stem.groups is 4, and would have to be 32"),
        (HYBRID, "hf", "its model.stem is resnet, and would have to be linear"),
    ],
    ids=str,
)
def test_what_another_library_cannot_hold_is_refused(config: ModelConfig, to: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=re.escape(words)):
        convert(random_weights(config.model_copy(update={"classes": 4})), to, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_deep_resnet_in_memory_is_told_from_another_model_by_more_than_what_rounds() -> None:
    """152 random layers differ by 1e-4 of the largest number in float32, and by 3e-13 in float64; with an epsilon of
    1e-3 in the norms by 1.6e-4 and 7e-5."""
    deep = {"depths": [3, 8, 36, 3], "hidden_sizes": [128, 128, 256, 256], "embedding_size": 32, "num_groups": 32}
    theirs = live("BitForImageClassification", num_labels=4, **deep)
    assert load_pretrained(theirs).loaded is not None
    for norm in theirs.modules():
        if isinstance(norm, torch.nn.GroupNorm):
            norm.eps = 1e-3
    with pytest.raises(WeightsError, match="gives other outputs"):
        load_pretrained(theirs)
