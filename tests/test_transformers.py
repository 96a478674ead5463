"""Every kind of vision model that transformers has: what comes out is equal, or it is refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitral import WeightsError, load_pretrained
from vitral.weights.facts import GELUS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their warnings are not ours

PLAIN: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
DINO = {name: value for name, value in PLAIN.items() if name != "intermediate_size"} | {"mlp_ratio": 2}
LABELS = {"num_labels": 5}
VIT = ("ViTForImageClassification", PLAIN | LABELS)
SWIN = {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 4}
CNN = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5}
TEXT = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20
}  # fmt: skip
BOTH = {"vision_config": PLAIN, "text_config": TEXT}

# A class, its settings, and its arguments beside the config.
EQUAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit": (*VIT, {}),
    "vit gelu_new": (VIT[0], VIT[1] | {"hidden_act": "gelu_new"}, {}),
    "vit gelu_pytorch_tanh": (VIT[0], VIT[1] | {"hidden_act": "gelu_pytorch_tanh"}, {}),
    "vit gelu_fast": (VIT[0], VIT[1] | {"hidden_act": "gelu_fast"}, {}),
    "vit gelu_python": (VIT[0], VIT[1] | {"hidden_act": "gelu_python"}, {}),
    "vit quick_gelu": (VIT[0], VIT[1] | {"hidden_act": "quick_gelu"}, {}),
    "vit eps": (VIT[0], VIT[1] | {"layer_norm_eps": 1e-2}, {}),
    "vit without biases of q, k, v": (VIT[0], VIT[1] | {"qkv_bias": False}, {}),
    "vit grey": (VIT[0], VIT[1] | {"num_channels": 1}, {}),
    "vit of five channels": (VIT[0], VIT[1] | {"num_channels": 5}, {}),
    "vit 32x64": (VIT[0], VIT[1] | {"image_size": [32, 64]}, {}),
    "vit 24x40, 16 rows": (VIT[0], VIT[1] | {"image_size": [24, 40]}, {}),
    "vit of six heads": (VIT[0], VIT[1] | {"num_attention_heads": 6}, {}),
    "vit without labels": (VIT[0], PLAIN | {"num_labels": 0}, {}),
    "vit pooler": ("ViTModel", PLAIN, {}),
    "vit pooler of another size": ("ViTModel", PLAIN | {"pooler_output_size": 24}, {}),
    "vit without pooler": ("ViTModel", PLAIN, {"add_pooling_layer": False}),
    "vit mask token": ("ViTModel", PLAIN, {"use_mask_token": True}),
    "vit masked": ("ViTForMaskedImageModeling", PLAIN | {"encoder_stride": 8}, {}),
    "deit": ("DeiTForImageClassification", PLAIN | LABELS, {}),
    "deit 24x40, 17 rows": ("DeiTForImageClassification", PLAIN | LABELS | {"image_size": [24, 40]}, {}),
    "deit teacher": ("DeiTForImageClassificationWithTeacher", PLAIN | LABELS, {}),
    "deit teacher 16x56, 16 rows": (
        "DeiTForImageClassificationWithTeacher", PLAIN | LABELS | {"image_size": [16, 56]}, {}
    ),
    "deit pooler": ("DeiTModel", PLAIN, {}),
    "deit pooler of another size": ("DeiTModel", PLAIN | {"pooler_output_size": 24}, {}),
    "deit without pooler": ("DeiTModel", PLAIN, {"add_pooling_layer": False}),
    "deit mask token": ("DeiTModel", PLAIN, {"use_mask_token": True}),
    "deit masked": ("DeiTForMaskedImageModeling", PLAIN | {"encoder_stride": 8}, {}),
    "mae": ("ViTMAEModel", PLAIN | {"mask_ratio": 0.0}, {}),
    "mae with its decoder": ("ViTMAEForPreTraining", PLAIN | {"mask_ratio": 0.0, "decoder_hidden_size": 16}, {}),
    "msn": ("ViTMSNForImageClassification", PLAIN | LABELS, {}),
    "msn mask token": ("ViTMSNModel", PLAIN, {"use_mask_token": True}),
    "ijepa": ("IJepaForImageClassification", PLAIN | LABELS, {}),
    "ijepa 24x40": ("IJepaForImageClassification", PLAIN | LABELS | {"image_size": [24, 40]}, {}),
    "ijepa without labels": ("IJepaModel", PLAIN, {}),
    "dinov2": ("Dinov2ForImageClassification", DINO | LABELS, {}),
    "dinov2 without labels": ("Dinov2Model", DINO, {}),
    "dinov2 swiglu, whose hidden_act is not used": (
        "Dinov2Model", DINO | {"use_swiglu_ffn": True, "hidden_act": "relu"}, {}
    ),
    "dinov2 swiglu": ("Dinov2ForImageClassification", DINO | LABELS | {"use_swiglu_ffn": True}, {}),
    "dinov2 without biases of q, k, v": ("Dinov2ForImageClassification", DINO | LABELS | {"qkv_bias": False}, {}),
    "dinov2 backbone": ("Dinov2Backbone", DINO, {}),
    "dinov2 registers": ("Dinov2WithRegistersForImageClassification", DINO | LABELS | {"num_register_tokens": 4}, {}),
    "dinov2 8 registers, 16 + 1 + 8 = 5x5": (
        "Dinov2WithRegistersForImageClassification", DINO | LABELS | {"num_register_tokens": 8}, {}
    ),
    "dinov2 registers swiglu": ("Dinov2WithRegistersModel", DINO | {"use_swiglu_ffn": True}, {}),
    "dinov2 registers backbone": ("Dinov2WithRegistersBackbone", DINO | {"num_register_tokens": 2}, {}),
    "dinov3": ("DINOv3ViTModel", PLAIN | {"num_register_tokens": 4}, {}),
    "dinov3 without registers, 24x40": ("DINOv3ViTModel", PLAIN | {"image_size": [24, 40]}, {}),
    "dinov3 gated": ("DINOv3ViTModel", PLAIN | {"use_gated_mlp": True, "hidden_act": "silu"}, {}),
    "dinov3 with a bias of keys": ("DINOv3ViTModel", PLAIN | {"key_bias": True}, {}),
    "dinov3 without biases of q, k, v": ("DINOv3ViTModel", PLAIN | {"query_bias": False, "value_bias": False}, {}),
    "dinov3 of another base": ("DINOv3ViTModel", PLAIN | {"rope_theta": 50.0}, {}),
    "dinov3 backbone": ("DINOv3ViTBackbone", PLAIN | {"num_register_tokens": 4}, {}),
    "flava": ("FlavaImageModel", PLAIN, {}),
    "swin": ("SwinForImageClassification", SWIN | LABELS, {}),
    "swin without labels": ("SwinModel", SWIN, {}),
    "swin masked": ("SwinForMaskedImageModeling", SWIN | {"encoder_stride": 8}, {}),
    "swin without biases of q, k, v": ("SwinForImageClassification", SWIN | LABELS | {"qkv_bias": False}, {}),
    "swin 36x36, which windows do not divide": ("SwinForImageClassification", SWIN | LABELS | {"image_size": 36}, {}),
    "swin 32x48": ("SwinForImageClassification", SWIN | LABELS | {"image_size": [32, 48]}, {}),
    "swinv2": ("Swinv2ForImageClassification", SWIN | LABELS, {}),
    "swinv2 without labels": ("Swinv2Model", SWIN, {}),
    "swinv2 24x24, smaller than a window": ("Swinv2Model", SWIN | {"image_size": 24}, {}),
    "swinv2 from other windows": ("Swinv2Model", SWIN | {"pretrained_window_sizes": [6, 3]}, {}),
}  # fmt: skip

RELU = {"hidden_act": "relu"}
# And a part of the sentence.
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "vit relu": (VIT[0], VIT[1] | RELU, {}, "asks for relu as hidden_act"),
    "vit oblong patches": (VIT[0], VIT[1] | {"patch_size": [8, 4]}, {}, "patches should be squares"),
    "vit pooler relu": ("ViTModel", PLAIN | {"pooler_act": "relu"}, {}, "asks for relu in its pooler"),
    "deit teacher relu": ("DeiTForImageClassificationWithTeacher", PLAIN | LABELS | RELU, {}, "relu as hidden_act"),
    "dinov2 silu": ("Dinov2ForImageClassification", DINO | {"hidden_act": "silu"}, {}, "silu as hidden_act"),
    "dinov2 first stage": ("Dinov2Backbone", DINO | {"out_features": ["stage1"]}, {}, "maps of stage1"),
    "dinov2 backbone, no norm": ("Dinov2Backbone", DINO | {"apply_layernorm": False}, {}, "after the norm"),
    "ijepa pooler": ("IJepaModel", PLAIN, {"add_pooling_layer": True}, "add_pooling_layer=False"),
    "dinov3 relu": ("DINOv3ViTModel", PLAIN | RELU, {}, "relu as hidden_act"),
    "dinov3 gated by gelu": ("DINOv3ViTModel", PLAIN | {"use_gated_mlp": True}, {}, "a gated MLP here has silu"),
    "dinov3 without biases of the MLP": ("DINOv3ViTModel", PLAIN | {"mlp_bias": False}, {}, "are missing"),
    "dinov3 first stage": ("DINOv3ViTBackbone", PLAIN | {"out_features": ["stage1"]}, {}, "maps of stage1"),
    "beit": ("BeitModel", PLAIN, {}, "BEiT"),
    "beit absolute": ("BeitModel", PLAIN | {"use_absolute_position_embeddings": True}, {}, "BEiT"),
    "beit relative": ("BeitForImageClassification", PLAIN | {"use_relative_position_bias": True}, {}, "BEiT"),
    "data2vec": ("Data2VecVisionForImageClassification", PLAIN, {}, "BEiT"),
    "clip": ("CLIPVisionModel", PLAIN, {}, "CLIP or SigLIP"),
    "clip text": ("CLIPTextModel", TEXT, {}, "a model of text"),
    "clip whole": ("CLIPModel", BOTH, {}, "pictures and text"),
    "siglip": ("SiglipVisionModel", PLAIN, {}, "CLIP or SigLIP"),
    "siglip classifier": ("SiglipForImageClassification", BOTH, {}, "pictures and text"),
    "siglip2": ("Siglip2VisionModel", {**DINO, "num_patches": 16}, {}, "CLIP or SigLIP"),
    "swin relu": ("SwinForImageClassification", SWIN | RELU, {}, "relu as hidden_act"),
    "swin eps": ("SwinModel", SWIN | {"layer_norm_eps": 1e-6}, {}, "Its norms add 1e-06"),
    "swin with a table of positions": ("SwinModel", SWIN | {"use_absolute_embeddings": True}, {}, "would be left out"),
    "swin backbone": ("SwinBackbone", SWIN, {}, "maps of its stages"),
    "swinv2 backbone": ("Swinv2Backbone", SWIN, {}, "maps of its stages"),
    "convnext": ("ConvNextForImageClassification", CNN | {"num_stages": 2}, {}, "ConvNeXt"),
    "resnet": ("ResNetForImageClassification", CNN | {"embedding_size": 8}, {}, "a CNN"),
    "videomae": ("VideoMAEModel", PLAIN | {"num_frames": 4}, {}, "a model of videos"),
    "vivit": ("VivitModel", PLAIN | {"num_frames": 4, "tubelet_size": [2, 8, 8]}, {}, "a model of videos"),
    "sounds": ("ASTModel", PLAIN | {"max_length": 64, "num_mel_bins": 32}, {}, "a model of sounds"),
    "yolos": ("YolosModel", PLAIN | {"image_size": [32, 32], "num_detection_tokens": 3}, {}, "transformers' yolos"),
    "dpt": ("DPTModel", PLAIN, {}, "transformers' dpt"),
    "vilt": ("ViltModel", PLAIN | {"vocab_size": 20}, {}, "transformers' vilt"),
}


def built(name: str, settings: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """A small model, all of whose numbers are random: first values are too tame to tell a wrong norm or a lost bias."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(1)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**settings), **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.3 if parameter.ndim < 2 else 0.1) * torch.randn_like(parameter))
    return model


def random_images(settings: dict[str, Any]) -> Tensor:
    size = settings["image_size"]
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(2, settings.get("num_channels", 3), height, width)


def outputs(theirs: Any, images: Tensor) -> dict[str, Tensor]:
    """What it gives, under the names of ours that should give the same."""
    more = {}
    if "MAE" in type(theirs).__name__:  # which would shuffle the patches
        theirs, more = getattr(theirs, "vit", theirs), {"noise": torch.arange(16.0).expand(2, -1)}
    if type(theirs).__name__.endswith("ForMaskedImageModeling"):
        theirs = theirs.base_model
    given = theirs(pixel_values=images, **more)
    names = {"logits": "forward", "pooler_output": "forward", "last_hidden_state": "features"}
    found = {ours: given[name] for name, ours in names.items() if given.get(name) is not None}
    return found or {"map": given.feature_maps[-1]}


def check_equal(ours: Any, theirs: Any, images: Tensor) -> None:
    with torch.inference_mode():
        for name, expected in outputs(theirs, images).items():
            if name == "map":
                given = ours.patch_tokens(ours.features(images)).transpose(1, 2).reshape(expected.shape)
            else:
                given = getattr(ours, name)(images)
            torch.testing.assert_close(given, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", EQUAL)
def test_a_model_gives_what_it_gave_from_memory_and_from_its_folder(case: str, tmp_path: Path) -> None:
    name, settings, arguments = EQUAL[case]
    theirs = built(name, settings, arguments)
    theirs.save_pretrained(tmp_path)
    images = random_images(settings)
    for source in (theirs, tmp_path):
        check_equal(load_pretrained(source).model, theirs, images)


@pytest.mark.parametrize(
    "case", [case for case in EQUAL if not re.match("swin|.*another base", case)]
)  # nobody asks for these
def test_a_file_alone_is_equal_once_it_is_said_what_no_tensor_tells(case: str, tmp_path: Path) -> None:
    name, settings, arguments = EQUAL[case]
    theirs = built(name, settings, arguments)
    theirs.save_pretrained(tmp_path)
    alone = (tmp_path / "model.safetensors").rename(tmp_path.with_suffix(".safetensors"))
    with pytest.raises(WeightsError, match=r"No tensor tells .* config\.json|give image_size=\(height, width\)"):
        load_pretrained(alone)
    config, images = theirs.config, random_images(settings)
    given = {"heads": config.num_attention_heads, "norm_eps": config.layer_norm_eps, "image_size": images.shape[2:]}
    if not settings.get("use_swiglu_ffn") and not settings.get("use_gated_mlp"):
        given["mlp"] = GELUS[config.hidden_act]
    check_equal(load_pretrained(alone, **given).model, theirs, images)


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_different_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, settings, arguments, words = REFUSED[case]
    theirs = built(name, settings, arguments)
    theirs.save_pretrained(tmp_path)
    for source in (theirs, tmp_path):
        with pytest.raises(WeightsError, match=words):
            load_pretrained(source)


def test_a_grid_that_transformers_takes_for_another_at_other_sizes_is_refused_from_memory(tmp_path: Path) -> None:
    """2×8 patches are as many as 4×4, and it resamples them as if they were."""
    settings = VIT[1] | {"image_size": [16, 64]}
    theirs = built(VIT[0], settings, {})
    theirs.save_pretrained(tmp_path)
    check_equal(load_pretrained(tmp_path).model, theirs, random_images(settings))
    with pytest.raises(WeightsError, match="on a random picture of 8×72 they differ by .*, before the first block"):
        load_pretrained(theirs)


class Twice(nn.Module):
    """What is around a model may change its outputs without a tensor of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return 2 * self.model(images).logits


def test_a_model_inside_of_another_that_changes_its_outputs_is_refused() -> None:
    with pytest.raises(WeightsError, match="gives other outputs .* after the last block"):
        load_pretrained(Twice(built(*EQUAL["vit"])))


@pytest.mark.parametrize("wrap", [torch.compile, nn.Sequential, nn.DataParallel])
def test_a_model_inside_of_another_is_taken_out(wrap: Any) -> None:
    name, settings, arguments = EQUAL["vit eps"]
    theirs = built(name, settings, arguments)
    ours = load_pretrained(wrap(theirs))
    check_equal(ours.model, theirs, random_images(settings))
    assert ours.loaded is not None and "prefix" in dict(ours.loaded.rows)


def test_a_model_without_numbers_or_with_some_that_are_not_finite_is_told() -> None:
    theirs = built(*EQUAL["vit"])
    with torch.no_grad():
        theirs.vit.layernorm.bias[3] = torch.nan
    with pytest.raises(WeightsError, match=r"^the ViTForImageClassification in memory: vit\.layernorm\.bias holds"):
        load_pretrained(theirs)
    with pytest.raises(WeightsError, match="it was built on the meta device"):
        load_pretrained(theirs.to("meta"))
