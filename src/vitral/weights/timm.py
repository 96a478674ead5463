"""timm's names, which are ours too, and those of the projects that it followed: DeiT, DINO, DINOv2 and 3, MAE, CLIP."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitral.data.config import AsItIs, Pad, Scale
from vitral.data.preprocess import Preprocess
from vitral.model.config import ModelConfig, Pool, ViTConfig
from vitral.weights.names import Family, Name

SAME = (  # as we have them
    "cls_token",
    "dist_token",
    "reg_token",
    "pos_embed",
    "patch_embed.proj.{p}",
    "patch_embed.norm.{p}",
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
    "attn_pool.latent",
    "attn_pool.q.{p}",
    "attn_pool.kv.{p}",
    "attn_pool.proj.{p}",
    "attn_pool.norm.{p}",
    "attn_pool.mlp.fc1.{p}",
    "attn_pool.mlp.fc2.{p}",
    "fc_norm.{p}",
    "pre_logits.fc.{p}",
    "head.{p}",
    "head_dist.{p}",
)
_UNIT = "patch_embed.backbone.stages.{s}.blocks.{n}."
HYBRID = (  # the ResNet before the patches
    "patch_embed.backbone.stem.conv.weight",
    "patch_embed.backbone.stem.norm.{p}",
    *(f"{_UNIT}{part}{number}.{{p}}" for number in (1, 2, 3) for part in ("conv", "norm")),
    *(f"{_UNIT}downsample.{part}.{{p}}" for part in ("conv", "norm")),
)
GAMMA = (Name("blocks.{n}.gamma_1", "blocks.{n}.ls1.gamma"), Name("blocks.{n}.gamma_2", "blocks.{n}.ls2.gamma"))
NAMES = (
    *(Name(name, name) for name in (*SAME, *HYBRID)),
    Name("patch_embed.backbone.conv.weight", "patch_embed.backbone.stem.conv.weight"),  # a stem without stages
    Name("patch_embed.backbone.norm.{p}", "patch_embed.backbone.stem.norm.{p}"),
    Name("register_tokens", "reg_token"),  # DINOv2
    Name("blocks.{n}.mlp.w12.{p}", "blocks.{n}.mlp.fc1.{p}"),  # its SwiGLU
    Name("blocks.{n}.mlp.w3.{p}", "blocks.{n}.mlp.fc2.{p}"),
    *GAMMA,  # DeiT III
)
DINOV3_NAMES = (  # its authors'
    *NAMES,
    Name("storage_tokens", "reg_token"),
    Name("blocks.{n}.attn.qkv.bias_mask", "blocks.{n}.attn.qkv.bias_mask"),
    Name("blocks.{n}.mlp.w1.{p}", "blocks.{n}.mlp.fc1_g.{p}"),  # its SwiGLU
    Name("blocks.{n}.mlp.w2.{p}", "blocks.{n}.mlp.fc1_x.{p}"),
    Name("rope_embed.periods", "rope_embed.periods"),
)
EVA = (  # the class that timm has for DINOv3
    *GAMMA,
    Name("blocks.{n}.attn.q_bias", "blocks.{n}.attn.qv_bias.q"),
    Name("blocks.{n}.attn.v_bias", "blocks.{n}.attn.qv_bias.v"),
    *NAMES,
)
PREFIX = r"(?:module\.|model\.|backbone\.|encoder\.|teacher\.|student\.)+"

DEIT3 = Family("DeiT III", NAMES, r"blocks\.\d+\.gamma_1$", PREFIX, resample="bicubic")
MAE = Family("MAE", NAMES, r"decoder_blocks\.", PREFIX, resample="bicubic")
DINOV2_REGISTERS = Family("DINOv2 with registers", NAMES, r"register_tokens$", PREFIX)
DINOV2 = Family("DINOv2", NAMES, rf"^(?:{PREFIX})?mask_token$", PREFIX, resample="dino")
DINO = Family("DINO", NAMES, r"$^", PREFIX, resample="dino")  # by its names it is timm's: about.json tells
TIMM = Family("timm", NAMES, r"patch_embed\.proj\.weight$", PREFIX)
DINOV3 = Family("DINOv3", DINOV3_NAMES, r"rope_embed\.periods$", PREFIX, norm_eps=1e-5, rotary=True)
QKV = r"blocks\.\d+\.attn\.qkv\.weight$"
TIMM_DINOV3 = Family("timm DINOv3", EVA, QKV, PREFIX, norm_eps=1e-5, rotary=True, without=r"pos_embed$")
_APART = tuple(row for row in EVA if row.ours != "blocks.{n}.mlp.fc1.{p}")
GATED_DINOV3 = replace(TIMM_DINOV3, table=_APART)  # to be written
FAMILIES = (DINOV3, TIMM_DINOV3, DEIT3, MAE, DINOV2_REGISTERS, DINOV2, DINO, TIMM)

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
    "pool_include_prefix": False,
    "fc_norm": None,
    "final_norm": True,
    "norm_layer": None,
    "act_layer": "gelu",
}
_SIZES = ("patch_size", "embed_dim", "depth", "num_heads")
HYBRIDS = {  # names by the blocks of the ResNet, which is no argument
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
}


def arguments(config: ViTConfig, unplaced: bool) -> dict[str, Any]:
    """The arguments of timm's VisionTransformer for this model, beside the number of classes. `unplaced`: no token
    before the patches has a place in its table."""
    image_size, hidden = config.image_size, config.mlp_size
    if config.mlp.kind == "swiglu":
        hidden *= 2  # it counts gate and value together
    values: dict[str, Any] = {
        "img_size": image_size if isinstance(image_size, int) else list(image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(hidden, config.width),
        "qkv_bias": config.attention.bias,
        "qk_norm": config.attention.qk_norm,
        "init_values": config.blocks.layer_scale or None,
        "class_token": config.tokens.kind != "none",
        "no_embed_class": unplaced,
        "reg_tokens": config.tokens.registers,
        "pre_norm": config.blocks.first_norm,
        "global_pool": {"class": "token", "mean": "avg", "map": "map"}[config.pool.kind],
        "pool_include_prefix": config.pool.all_tokens,
        "fc_norm": _fc_norm(config.pool),
        "final_norm": config.pool.norm != "none",
        "norm_layer": "rmsnorm" if config.blocks.norm == "rms" else None,
        "act_layer": {"gelu-tanh": "gelu_tanh", "gelu-quick": "quick_gelu"}.get(config.mlp.kind, "gelu"),
    }
    if config.stem.kind == "resnet":  # names of hybrids have sizes of their own, and count patches in places of a map
        values["patch_size"] //= config.stem.stride
        return {name: value for name, value in values.items() if name in _SIZES or value != _DEFAULTS[name]}
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


# What its class for DINOv3 can hold, beside the plain parts.
EVA_HOLDS: dict[str, Collection[Any]] = {
    "tokens": ("class", "none"),
    "tokens.registers": range(1025),
    "positions": ("rotary",),
    "attention.bias": (False, "query-value"),
    "mlp": ("gelu", "swiglu"),
    "blocks.norm_eps": (1e-5,),
    "pool": ("class", "mean"),
    "pool.norm": ("before", "after"),
    "head": ("linear", "none"),
}


def eva_arguments(config: ViTConfig) -> dict[str, Any]:
    """The arguments with which timm's DINOv3 is this model, whatever name it is made by."""
    image_size = config.image_size
    return {
        "img_size": image_size if isinstance(image_size, int) else list(image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _ratio(config.mlp_size, config.width),
        "swiglu_mlp": config.mlp.kind == "swiglu",
        "swiglu_align_to": int(config.mlp.kind == "swiglu"),  # 0: gate and value would be one layer
        "qkv_bias": bool(config.attention.bias),
        "init_values": config.blocks.layer_scale or None,
        "class_token": config.tokens.kind == "class",
        "num_reg_tokens": config.tokens.registers,
        "rope_temperature": config.positions.base,
        "global_pool": "avg" if config.pool.kind == "mean" else "token",
        "use_fc_norm": config.pool.norm == "after",
    }


def _fc_norm(pool: Pool) -> bool | None:
    """timm's word on the norm after the pool; None: as it has that by itself."""
    if pool.kind == "mean":
        return None if pool.norm == "after" else False
    return True if pool.kind == "map" and pool.norm == "after" else None


def _ratio(hidden: int, width: int) -> float:
    """From which timm, which cuts, makes this hidden size."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def architecture(config: ViTConfig) -> str:
    """A name from which `create_model` makes the model. Any shape will do, as `model_args` override those of the name;
    but a norm's eps and a SwiGLU have no place in JSON: then it is empty."""
    if config.positions.kind == "rotary":
        return f"vit_small_{'plus_' if config.mlp.kind == 'swiglu' else ''}patch16_dinov3_qkvb"
    if config.stem.kind == "resnet":
        return HYBRIDS[config.stem.depths]
    if config.blocks.norm_eps != 1e-6 or config.mlp.kind == "swiglu":
        return ""
    return "deit_base_distilled_patch16_224" if config.tokens.kind == "distilled" else "vit_base_patch16_224"


def _crop_pct(preprocess: Preprocess) -> float:
    """The share with which timm, which rounds down, scales to as many pixels as we do."""
    how = preprocess.resize
    if isinstance(how, AsItIs | Pad) or how.share == 1:
        return 1.0
    side = preprocess.image_size[0]
    scaled = preprocess.edges(how)[0] if isinstance(how, Scale) else preprocess.stored_size[0]
    return how.share if int(side / how.share) == scaled else side / (scaled + 0.5)


def write_config(
    config: ModelConfig,
    arguments: Mapping[str, Any],
    preprocess: Preprocess,
    class_names: Sequence[str],
    *,
    architecture: str,
    features: int,
    pool: str = "token",
    first: str = "patch_embed.proj",
    classifier: str | list[str] = "head",
) -> dict[str, Any]:
    """config.json, as timm has it on the Hub. The last five are what the name of an architecture stands for there."""
    how = preprocess.resize
    stretches = isinstance(how, AsItIs) or (isinstance(how, Scale) and how.kind == "stretch")
    mode = "squash" if stretches else "border" if isinstance(how, Pad) else "center"
    return {
        **({"architecture": architecture} if architecture else {}),
        "num_classes": config.classes,
        "num_features": features,
        "global_pool": arguments.get("global_pool", pool),
        "model_args": dict(arguments),
        **({"label_names": list(class_names)} if class_names else {}),
        "pretrained_cfg": {
            "num_classes": config.classes,
            "input_size": [config.channels, *preprocess.image_size],
            "fixed_input_size": config.kind != "resnet",
            "interpolation": preprocess.interpolation,
            "crop_pct": _crop_pct(preprocess),
            "crop_mode": mode,
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "first_conv": first,
            "classifier": classifier,
        },
    }
