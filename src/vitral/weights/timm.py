"""timm's names, which are ours too, and those of the projects that it followed: DeiT, DINO, DINOv2, MAE, CLIP."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitral.data.config import AsItIs, Scale
from vitral.data.preprocess import Preprocess
from vitral.model.config import ViTConfig
from vitral.weights.names import Family, Name

SAME = (  # as we have them
    "cls_token",
    "dist_token",
    "reg_token",
    "pos_embed",
    "patch_embed.proj.{p}",
    "norm_pre.{p}",
    "blocks.{n}.norm1.{p}",
    "blocks.{n}.attn.qkv.{p}",
    "blocks.{n}.attn.q_norm.{p}",
    "blocks.{n}.attn.k_norm.{p}",
    "blocks.{n}.attn.proj.{p}",
    "blocks.{n}.ls1.gamma",
    "blocks.{n}.norm2.{p}",
    "blocks.{n}.mlp.fc1.{p}",
    "blocks.{n}.mlp.fc1_g.{p}",  # a SwiGLU whose gate and value lie apart
    "blocks.{n}.mlp.fc1_x.{p}",
    "blocks.{n}.mlp.fc2.{p}",
    "blocks.{n}.ls2.gamma",
    "norm.{p}",
    "fc_norm.{p}",
    "pre_logits.fc.{p}",
    "head.{p}",
    "head_dist.{p}",
)
NAMES = (
    *(Name(name, name) for name in SAME),
    Name("register_tokens", "reg_token"),  # DINOv2
    Name("blocks.{n}.mlp.w12.{p}", "blocks.{n}.mlp.fc1.{p}"),  # its SwiGLU
    Name("blocks.{n}.mlp.w3.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("blocks.{n}.gamma_1", "blocks.{n}.ls1.gamma"),  # DeiT III
    Name("blocks.{n}.gamma_2", "blocks.{n}.ls2.gamma"),
)
PREFIX = r"(?:module\.|model\.|backbone\.|encoder\.|teacher\.|student\.)+"

DEIT3 = Family("DeiT III", NAMES, r"blocks\.\d+\.gamma_1$", PREFIX, resample="bicubic")
MAE = Family("MAE", NAMES, r"decoder_blocks\.", PREFIX, resample="bicubic")
DINOV2_REGISTERS = Family("DINOv2 with registers", NAMES, r"register_tokens$", PREFIX)
DINOV2 = Family("DINOv2", NAMES, rf"^(?:{PREFIX})?mask_token$", PREFIX, resample="dino")
DINO = Family("DINO", NAMES, r"$^", PREFIX, resample="dino")  # by its names it is timm's: about.json tells
TIMM = Family("timm", NAMES, r"patch_embed\.proj\.weight$", PREFIX)
FAMILIES = (DEIT3, MAE, DINOV2_REGISTERS, DINOV2, DINO, TIMM)

# The defaults of VisionTransformer's arguments.
_DEFAULTS: dict[str, Any] = {
    "img_size": 224,
    "patch_size": 16,
    "in_chans": 3,
    "embed_dim": 768,
    "depth": 12,
    "num_heads": 12,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "qk_norm": False,
    "init_values": None,
    "class_token": True,
    "no_embed_class": False,
    "reg_tokens": 0,
    "pre_norm": False,
    "global_pool": "token",
    "fc_norm": None,
    "final_norm": True,
    "act_layer": "gelu",
}


def arguments(config: ViTConfig, unplaced: bool) -> dict[str, Any]:
    """The arguments of timm's VisionTransformer for this model, beside the number of classes. `unplaced`: no token
    before the patches has a place in its table."""
    image_size, hidden = config.image_size, config.mlp_size
    if config.mlp.kind == "swiglu":
        hidden *= 2  # it counts gate and value together
    ratio = hidden / config.width
    mean = config.pool.kind == "mean"
    values = {
        "img_size": image_size if isinstance(image_size, int) else list(image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": ratio if int(config.width * ratio) == hidden else (hidden + 0.5) / config.width,  # it cuts
        "qkv_bias": config.attention.bias,
        "qk_norm": config.attention.qk_norm,
        "init_values": config.blocks.layer_scale or None,
        "class_token": config.tokens.kind != "none",
        "no_embed_class": unplaced,
        "reg_tokens": config.tokens.registers,
        "pre_norm": config.blocks.first_norm,
        "global_pool": "avg" if mean else "token",
        "fc_norm": False if mean and config.pool.norm != "after" else None,
        "final_norm": config.pool.norm != "none",
        "act_layer": {"gelu-tanh": "gelu_tanh", "gelu-quick": "quick_gelu"}.get(config.mlp.kind, "gelu"),
    }
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


def architecture(config: ViTConfig) -> str:
    """A name from which `create_model` makes the model. Any shape will do, as `model_args` override those of the name;
    but a norm's eps and a SwiGLU have no place in JSON: then it is empty."""
    if config.blocks.norm_eps != 1e-6 or config.mlp.kind == "swiglu":
        return ""
    return "deit_base_distilled_patch16_224" if config.tokens.kind == "distilled" else "vit_base_patch16_224"


def _crop_pct(preprocess: Preprocess) -> float:
    """The share with which timm, which rounds down, scales to as many pixels as we do."""
    how = preprocess.resize
    if isinstance(how, AsItIs) or how.share == 1:
        return 1.0
    side = preprocess.image_size[0]
    scaled = preprocess.edges(how)[0] if isinstance(how, Scale) else preprocess.stored_size[0]
    return how.share if int(side / how.share) == scaled else side / (scaled + 0.5)


def write_config(
    config: ViTConfig, arguments: Mapping[str, Any], preprocess: Preprocess, class_names: Sequence[str]
) -> dict[str, Any]:
    """config.json, as timm has it on the Hub."""
    how = preprocess.resize
    squash = isinstance(how, AsItIs) or (isinstance(how, Scale) and how.kind == "stretch")
    name = architecture(config)
    return {
        **({"architecture": name} if name else {}),
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": arguments.get("global_pool", "token"),
        "model_args": dict(arguments),
        **({"label_names": list(class_names)} if class_names else {}),
        "pretrained_cfg": {
            "num_classes": config.classes,
            "input_size": [config.channels, *preprocess.image_size],
            "fixed_input_size": True,
            "interpolation": preprocess.interpolation,
            "crop_pct": _crop_pct(preprocess),
            "crop_mode": "squash" if squash else "center",
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.tokens.kind == "distilled" else "head",
        },
    }
