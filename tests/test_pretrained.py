"""Everybody's weights: equal outputs at every size, and nothing silently skipped."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conftest import FIXTURES, vit
from vitral import Run, ViT, WeightsError, load_pretrained
from vitral.weights.pretrained import FAMILIES

REFUSED = {"vit_pytorch_lucidrains", "vit_pytorch_lucidrains_mean"}
NO_MODEL = {"hf_pixels", "sincos", "dino_head", "lejepa_sigreg"}
OTHER_KINDS = ("timm_resnetv2", "hf_bit", "timm_hybrid", "hf_swin", "timm_swin")  # in test_resnet.py and test_swin.py
MODELS = sorted(
    path.name
    for path in FIXTURES.iterdir()
    if path.name not in REFUSED | NO_MODEL and not path.name.startswith(OTHER_KINDS)
)


def sizes(name: str) -> list[tuple[int, int]]:
    about = json.loads((FIXTURES / name / "about.json").read_text())
    patch = about["patch_size"]
    return [(h, w) for h, w in about["sizes"] if not h % patch and not w % patch]


CASES = [(name, size) for name in MODELS for size in sizes(name)]


def outputs(model: ViT, images: Tensor) -> dict[str, Tensor]:
    """All that a reference tells, under its names."""
    last, before, rotation = model.blocks[-1], model.embed(images), model.rotation(images)
    for earlier in model.blocks[:-1]:
        before = earlier(before, rotation=rotation)
    tokens = model.features(images)
    found = {"embedded": model.embed(images), "tokens": tokens, "logits": model(images)}
    found["attention"] = last.attn.map(last.norm1(before), rotation)  # type: ignore[operator, union-attr]
    found["pooled"] = model(images) if model.config.head.kind == "hidden" else model.pool(tokens)
    if len(model.logits(tokens)) == 2:
        found["logits_class"], found["logits_distillation"] = model.logits(tokens)
    return found


@pytest.mark.parametrize(("name", "size"), CASES, ids=lambda one: one if isinstance(one, str) else f"{one[0]}x{one[1]}")
@torch.inference_mode()
def test_outputs_are_equal_at_every_size(name: str, size: tuple[int, int]) -> None:
    """Within 1e-5, through the model as it is, and through one that was made for the size."""
    known = load_file(FIXTURES / name / "io.safetensors")
    word = f"{size[0]}x{size[1]}"
    if name.endswith("mae_reference"):  # it speaks of masks only: nothing masked, the patches in its random order
        latent, order = known.pop("latent_mask0_16x16"), known["ids_restore_mask0_16x16"]
        patches = latent[:, 1:].gather(1, order[:, :, None].expand(-1, -1, latent.shape[2]))
        known["tokens_16x16"] = torch.cat([latent[:, :1], patches], dim=1)
    for pretrained in (load_pretrained(FIXTURES / name), load_pretrained(FIXTURES / name, image_size=size)):
        found = outputs(vit(pretrained.model), known[f"image_{word}"])
        if name == "hf_mae":  # with three quarters of the patches left out
            del found["attention"]
        if name == "hf_deit":  # it gives both tokens, and we their mean
            found["pooled"] = torch.cat(vit(pretrained.model).views(found["tokens"]), dim=1)
        compared = [key for key in found if f"{key}_{word}" in known]
        assert "tokens" in compared and ("logits" in compared) == bool(pretrained.model.config.classes)
        for key in compared:
            torch.testing.assert_close(found[key], known[f"{key}_{word}"].view_as(found[key]), rtol=0, atol=1e-5)


def test_what_became_of_each_tensor_is_told() -> None:
    found = load_pretrained(FIXTURES / "dinov2_reg_reference").loaded
    assert found is not None and found.family == "DINOv2 with registers"
    assert dict(found.rows) == {"loaded": "49 tensors, 43,808 numbers", "left over": "mask_token"}
    assert ("heads = 4", "about.json") in found.facts and "left over  mask_token" in str(found)
    notes = load_pretrained(FIXTURES / "dinov2_reg_reference").notes
    assert notes[0] == "Of the weights, left over: mask_token." and "as is usual for" in notes[1]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_layout_that_nobody_uses_is_refused_by_name(name: str) -> None:
    with pytest.raises(WeightsError, match="has the names of vit-pytorch"):
        load_pretrained(FIXTURES / name)


def test_other_names_of_the_same_weights_give_the_same_model(tmp_path: Path) -> None:
    others = {
        "hf_vit": "model_v5_names.safetensors",
        "hf_dinov3": "model_original_names.safetensors",  # with a bias of keys, and a mask that switches it off
        "hf_dinov3_swiglu": "model_original_names.safetensors",
    }
    pairs = [
        (load_pretrained(FIXTURES / name), load_pretrained(copied(name, tmp_path / name, file)))
        for name, file in others.items()
    ]
    wrapped = copied("timm_vit", tmp_path / "wrapped")
    tensors = load_file(wrapped / "model.safetensors")
    save_file({f"module.backbone.{key}": value for key, value in tensors.items()}, wrapped / "model.safetensors")
    for ours, theirs in (*pairs, (load_pretrained(FIXTURES / "timm_vit"), load_pretrained(wrapped))):
        assert ours.model.config == theirs.model.config
        for key, value in ours.model.state_dict().items():
            assert torch.equal(value, theirs.model.state_dict()[key])


@pytest.mark.parametrize("prefix", ["_orig_mod.", "0.", "module.", "model.", "timm_model.", "module._orig_mod."])
@pytest.mark.parametrize("name", ["timm_vit", "hf_vit", "torchvision_vit"])
def test_what_stands_before_all_names_is_taken_off_and_said(name: str, prefix: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    save_file({f"{prefix}{key}": value for key, value in tensors.items()}, folder / "model.safetensors")
    plain, wrapped = load_pretrained(FIXTURES / name), load_pretrained(folder)
    assert wrapped.model.config == plain.model.config
    for key, value in plain.model.state_dict().items():
        assert torch.equal(value, wrapped.model.state_dict()[key])
    assert wrapped.loaded is not None and plain.loaded is not None
    assert ("prefix", f"{prefix} was taken off all names") in wrapped.loaded.rows
    assert "prefix" not in dict(plain.loaded.rows)


def test_a_model_of_ours_is_ours_inside_of_another_too(trained: Run) -> None:
    for module in (trained.weights().model, nn.Sequential(trained.weights().model)):
        with pytest.raises(WeightsError, match="a model of Vitral already"):
            load_pretrained(module)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["blocks.0.in_proj.weight", "pos_embed", "patch_embed.proj.weight"], "parallel blocks"),  # timm's two kinds
        (["blocks.0.attns.0.attn.qkv.weight", "pos_embed", "patch_embed.proj.weight"], "parallel blocks"),
        (["blocks.0.attn.qkv.weight", "blocks.0.gamma_1", "patch_embed.proj.weight"], "rotary positions"),  # DINOv3
        (["blocks.0.attn.q_bias", "blocks.0.attn.relative_position_bias_table"], "BEiT"),
        (["features.1.0.attn.relative_position_bias_table", "features.0.0.weight"], "Swin Transformer"),
        (["stages.0.blocks.0.conv_dw.weight", "stem.0.weight"], "ConvNeXt"),
        (["features.1.0.layer_scale", "features.0.0.weight"], "ConvNeXt"),
        (["conv1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.running_mean"], "a CNN"),
        (["attn_pool.probe", "pos_embed", "patch_embed.proj.weight"], "pools by attention"),
        (["text_model.embeddings.token_embedding.weight", "text_model.final_layer_norm.weight"], "a model of text"),
        (["visual.transformer.resblocks.0.attn.in_proj_weight", "visual.conv1.weight"], "CLIP or SigLIP"),
        (["class_token", "conv_proj.conv_bn_relu_0.0.weight"], "a convolutional stem"),  # torchvision
        (["vit.layers.0.attention.q_proj.lora_A.default.weight", "vit.layernorm.bias"], "merge_and_unload"),
    ],
)
def test_an_architecture_that_we_have_not_is_called_by_its_name(names: list[str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({name: torch.zeros(2, 2) for name in names}, path)
    with pytest.raises(WeightsError, match=f"holds weights of .*{words}.*`vitral ls weights`"):
        load_pretrained(path)


def test_a_vit_inside_of_something_larger_is_told(tmp_path: Path) -> None:
    folder = copied("hf_vit", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    more = {f"encoder.{name}": tensor for name, tensor in tensors.items()} | {"decoder.weight": torch.zeros(2)}
    save_file(more, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"A ViT is only a part of it.* called encoder\..* and \d+ more"):
        load_pretrained(folder)


def copied(name: str, folder: Path, weights: str = "model.safetensors") -> Path:
    """A fixture that may be changed, with these weights as its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (FIXTURES / name).glob("*.json"):
        shutil.copy(path, folder)
    shutil.copy(FIXTURES / name / weights, folder / "model.safetensors")
    return folder


def test_weights_in_several_files(tmp_path: Path) -> None:
    folder = copied("timm_vit", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, folder / file)
    where = {name: file for file, some in parts.items() for name in some}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert load_pretrained(folder).model.config == load_pretrained(FIXTURES / "timm_vit").model.config
    index.write_text(json.dumps({"weight_map": where | {"head.bias": "../../etc/passwd"}}))
    with pytest.raises(WeightsError, match="files of the same folder"):
        load_pretrained(folder)
    index.write_text(json.dumps({"weight_map": where | {"head.bias": "c.safetensors"}}))
    with pytest.raises(WeightsError, match="is not there"):
        load_pretrained(folder)


def test_a_new_head_other_channels_and_another_size() -> None:
    before = load_pretrained(FIXTURES / "timm_vit")
    names = ("ant", "bee", "cat")
    found = load_pretrained(FIXTURES / "timm_vit", classes=names, channels=1, image_size=(48, 32))
    config = found.model.config
    assert (config.classes, config.channels, config.height_width) == (3, 1, (48, 32))
    assert found.class_names == names and found.preprocess.image_size == (48, 32) and found.preprocess.channels == 1
    assert found.loaded is not None
    told = dict(found.loaded.rows)
    assert told["new"] == "a head for 3 classes in place of 10"
    assert told["adapted"] == "the first layer from 3 to 1 channels"
    assert told["resampled"] == "positions from 4×4 to 6×4 patches, antialiased"
    grey = torch.rand(2, 1, 48, 32)
    with torch.inference_mode():
        ours, theirs = found.model.features(grey), before.model.features(grey.expand(-1, 3, -1, -1))
        assert float(found.model(grey).abs().max()) == 0  # the new head prefers nothing
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [2, 4, 6])
def test_more_channels_weigh_less(channels: int) -> None:
    """The colours in turn, each as much weaker as there are more of them."""
    before, after = load_pretrained(FIXTURES / "timm_vit"), load_pretrained(FIXTURES / "timm_vit", channels=channels)
    kernel = after.model.state_dict()["patch_embed.proj.weight"]
    assert kernel.shape[1] == channels and len(after.preprocess.mean) == channels
    had = before.model.state_dict()["patch_embed.proj.weight"]
    torch.testing.assert_close(kernel[:, 0] * channels, had[:, 0] * 3, rtol=0, atol=1e-6)


def test_our_own_weights_load_too(trained: Run) -> None:
    found = load_pretrained(trained.folder, classes=4)
    assert found.model.config.classes == 4 and found.loaded is not None and found.loaded.family == "Vitral"
    assert load_pretrained(trained.folder / "model.safetensors").class_names == tuple("0123456789")


def harmed(folder: Path, harm: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "blocks.1.attn.qkv.weight"
    match harm:
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "header":
            path.write_bytes((2**60).to_bytes(8, "little") + b"{" * 100)
        case "text":
            path.write_text("hello")
        case "dtype":
            save_file(tensors | {name: tensors[name].to(torch.int32)}, path)
        case "nan":
            save_file(tensors | {name: tensors[name] * float("nan")}, path)
        case "shape":
            save_file(tensors | {name: tensors[name][:-3].contiguous()}, path)
        case "no blocks":
            save_file({key: value for key, value in tensors.items() if not key.startswith("blocks.")}, path)
        case "config":
            (folder / "about.json").write_text("{")
        case "heads":
            (folder / "about.json").write_text('{"heads": 7}')
        case "pickle":
            path.rename(folder / "pytorch_model.bin")
        case "nothing":
            path.unlink()
        case "resnet":
            save_file({"conv1.weight": torch.zeros(4, 3, 3, 3)}, path)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("cut", "is damaged"),
        ("header", "is damaged"),
        ("text", "is damaged"),
        ("dtype", "holds int32, and weights are fractions"),
        ("nan", "numbers that are not finite"),
        ("shape", "blocks.1.attn.qkv.weight is 93×32, and the other tensors ask for 96×32"),
        ("no blocks", "is not one block"),
        ("config", "is not JSON"),
        ("heads", "does not divide"),
        ("pickle", "--i-trust-this-file"),
        ("nothing", "is no run, and has no model.safetensors"),
        ("resnet", "is no model of a family that is known here"),
    ],
)
def test_a_damaged_file_answers_with_a_sentence(tmp_path: Path, harm: str, told: str) -> None:
    folder = copied("timm_vit", tmp_path / "x")
    harmed(folder, harm)
    with pytest.raises(WeightsError, match=told):
        load_pretrained(folder)


@pytest.mark.parametrize("name", ["blocks.1.mlp.fc1.weight", "blocks.0.attn.proj.bias", "norm.bias"])
def test_a_tensor_of_the_trunk_that_is_missing_is_an_error(tmp_path: Path, name: str) -> None:
    folder = copied("timm_vit", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=f"a timm ViT of this shape needs: {name} is missing"):
        load_pretrained(folder)


def test_what_is_new_in_the_head_and_what_is_left_over_is_told(tmp_path: Path) -> None:
    folder = copied("timm_vit", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    del tensors["head.bias"]
    save_file(tensors | {"more": torch.zeros(3)}, folder / "model.safetensors")
    found = load_pretrained(folder).loaded
    assert found is not None and {("new", "head.bias"), ("left over", "more")} <= set(found.rows)


def test_an_npz_that_holds_objects_or_too_much_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", a=np.array([{"x": 1}], dtype=object))
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(10_000_000, np.uint8))
    for name, told in (("objects", "Object arrays cannot be loaded"), ("bomb", "would unpack to 10,000,")):
        with pytest.raises(WeightsError, match=told):
            load_pretrained(tmp_path / f"{name}.npz")


def test_a_name_of_the_hub_without_the_library_or_a_network_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsError, match=r"could not be fetched, and is not in the cache .* give their folder"):
        load_pretrained("hf:nobody/nothing")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match=r"pip install 'vitral\[hub\]'"):
        load_pretrained("hf:nobody/nothing")


def test_every_family_has_a_mark_of_its_own() -> None:
    """One and the same file is of one family only: the first that knows it."""
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    expected = {
        "hf_vit": "Hugging Face ViT",
        "google_npz": "Google",
        "torchvision_vit": "torchvision",
        "timm_vit": "timm",
    }
    for fixture, name in expected.items():
        loaded = load_pretrained(FIXTURES / fixture).loaded
        assert loaded is not None and loaded.family == name


def test_the_same_classes_keep_their_head_in_whatever_order_and_others_get_a_new_one(trained: Run) -> None:
    before, names = trained.weights().model, tuple("9876543210")
    turned = load_pretrained(trained.folder, classes=names)
    images = torch.rand(3, 1, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(turned.model(images).flip(1), before.eval()(images), rtol=0, atol=1e-6)
        other = load_pretrained(trained.folder, classes=tuple("abcdefghij"))
        assert float(other.model(images).abs().max()) == 0  # as many classes, and not these


def test_a_size_that_is_wished_for_is_not_that_of_the_table(tmp_path: Path) -> None:
    """4×4 patches can be taken for 8×2 by their number alone."""
    shutil.copy(FIXTURES / "timm_vit" / "model.safetensors", tmp_path / "bare.safetensors")
    told, bare = (
        load_pretrained(source, image_size=(64, 16), heads=4, norm_eps=1e-6)
        for source in (FIXTURES / "timm_vit", tmp_path / "bare.safetensors")
    )
    assert told.model.config == bare.model.config
    assert torch.equal(told.model.state_dict()["pos_embed"], bare.model.state_dict()["pos_embed"])


def test_classes_that_are_called_by_numbers_are_classes(trained: Run) -> None:
    digits = tuple("0123456789")
    others = load_pretrained(trained.folder, classes=[f"class {name}" for name in digits])
    found = load_pretrained(trained.folder, classes=digits)
    assert found.class_names == digits and found.model.state_dict()["head.weight"].any()
    assert others.class_names[0] == "class 0" and not others.model.state_dict()["head.weight"].any()
    assert load_pretrained(trained.folder, classes=10).model.state_dict()["head.weight"].any()  # as many as it has


def test_what_transformers_says_of_a_model_of_timm_is_read(tmp_path: Path) -> None:
    """Its TimmWrapper writes timm's words beside timm's tensors, with a prefix."""
    folder = copied("timm_vit", tmp_path / "x")
    (folder / "about.json").unlink()
    tensors = load_file(folder / "model.safetensors")
    save_file({f"timm_model.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    values = {"model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224", "num_classes": 10}
    arguments = {"num_heads": 4, "act_layer": "gelu_tanh"}
    (folder / "config.json").write_text(json.dumps(values | {"model_args": arguments}))
    config = vit(load_pretrained(folder).model).config
    assert (config.heads, config.mlp.kind) == (4, "gelu-tanh")


def test_what_timms_config_tells_is_read(tmp_path: Path) -> None:
    folder = copied("timm_vit_clip", tmp_path / "x")
    (folder / "about.json").unlink()
    values: dict[str, object] = {
        "architecture": "vit_base_patch16_clip_quickgelu_224",
        "model_args": {"num_heads": 4},
        "pretrained_cfg": {"mean": [0.5] * 3},
    }
    (folder / "config.json").write_text(json.dumps(values))
    config = vit(load_pretrained(folder).model).config
    assert (config.heads, config.mlp.kind, config.blocks.norm_eps) == (4, "gelu-quick", 1e-5)
    (folder / "config.json").write_text(json.dumps(values | {"model_args": {"act_layer": "silu"}}))
    with pytest.raises(WeightsError, match="asks for silu as act_layer"):
        load_pretrained(folder)


def test_only_what_was_guessed_is_told_as_usual() -> None:
    gated = load_pretrained(FIXTURES / "dinov2_swiglu_reference").loaded
    assert gated is not None and not any(fact.startswith("mlp") for fact, _ in gated.facts)
    plain = load_pretrained(FIXTURES / "timm_vit").loaded
    assert plain is not None and ("pool = class", "as is usual for timm") in plain.facts


def test_weights_of_ours_tell_all_of_themselves(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="tells all of itself"):
        load_pretrained(trained.folder, heads=7)
    shutil.copy(trained.folder / "model.safetensors", tmp_path / "mine.safetensors")
    assert load_pretrained(tmp_path).class_names == load_pretrained(tmp_path / "mine.safetensors").class_names


def test_heads_are_read_where_the_file_tells_them(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "google_npz" / "model.npz", tmp_path / "model.npz")
    found = load_pretrained(tmp_path / "model.npz")  # nothing stands beside it
    assert vit(found.model).config.heads == 4 and found.preprocess.mean == (0.5, 0.5, 0.5)
    assert found.loaded is not None and ("heads = 4", "their shapes") in found.loaded.facts


@pytest.mark.parametrize(
    "extra",
    [
        "MAPHead_0/probe",
        "blocks.0.attn.q_bias",
        "attn_pool.probe",
        "patch_embed.backbone.weight",
        "rope.freqs",
        "blocks_token_only.0.x",
    ],
)
def test_a_part_that_we_have_not_is_another_architecture(tmp_path: Path, extra: str) -> None:
    folder = copied("timm_vit", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {extra: torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="it is another architecture"):
        load_pretrained(folder)


def test_two_models_in_one_file_are_refused(tmp_path: Path) -> None:
    folder = copied("timm_vit", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    both = {f"{who}.{name}": tensor.clone() for who in ("student", "teacher") for name, tensor in tensors.items()}
    save_file(both, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="holds more than one model"):
        load_pretrained(folder)


@torch.inference_mode()
def test_a_distillation_token_that_nobody_reads_is_a_register(tmp_path: Path) -> None:
    """transformers' DeiTForImageClassification: both tokens in attention, one head on the class token."""
    folder = copied("timm_deit_distilled", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    images = torch.rand(2, 3, 16, 16)
    both = load_pretrained(folder).model
    save_file({name: one for name, one in tensors.items() if "head_dist" not in name}, folder / "model.safetensors")
    found = vit(load_pretrained(folder).model)
    assert found.config.tokens.kind == "class" and found.config.tokens.registers == 1
    torch.testing.assert_close(found(images), both.logits(both.features(images))[0], rtol=0, atol=1e-5)


def test_loading_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    folder = copied("timm_vit", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    save_file({name: one for name, one in tensors.items() if name != "head.bias"}, folder / "model.safetensors")
    before = torch.get_rng_state()
    assert float(load_pretrained(folder).model.state_dict()["head.bias"].abs().max()) == 0
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blocks.0.mlp.fc2.weight", ()),
        ("head.weight", (10,)),
        ("pos_embed", (17, 32)),
        ("patch_embed.proj.weight", (3,)),
    ],
)
def test_a_tensor_with_too_few_dimensions_is_told(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    folder = copied("timm_vit", tmp_path / "x")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: torch.zeros(shape)}, folder / "model.safetensors")
    with pytest.raises(WeightsError):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "vit_tiny_patch16_224",
            "vitral fetch vit_tiny_patch16_224. Or name them as they are on the Hub: hf:timm/vit_t",
        ),
        ("cifar10_resnet56", "Fetch them (3 MB): VITRAL_DATA="),
        ("vit_small_patch16_224", "Did you mean hf:timm/vit_small_patch16_224.augreg_in21k_ft_in1k?"),
        ("runs/digit", "Did you mean runs/digits?"),
        ("digits", "Did you mean runs/digits?"),
        ("nothing-like-it", "`vitral ls weights` weights worth having."),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_a_near_one(
    name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    with pytest.raises(WeightsError, match=re.escape(told)):
        load_pretrained(name)


def test_a_picture_in_the_place_of_a_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "seven.png").write_bytes(b"")
    with pytest.raises(WeightsError, match="seven.png is a picture, .* the model comes first"):
        load_pretrained(tmp_path / "seven.png")
