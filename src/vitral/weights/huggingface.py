"""Hugging Face transformers: ViT, DeiT, DINOv2 with and without registers, DINOv3, MAE's encoder, I-JEPA."""

from collections.abc import Collection, Sequence
from typing import Any

from vitral.errors import WeightsError
from vitral.model.config import ViTConfig
from vitral.weights.names import Family, Name
from vitral.weights.stored import RawWeights

AROUND = (
    Name("embeddings.cls_token", "cls_token"),
    Name("embeddings.distillation_token", "dist_token"),
    Name("embeddings.register_tokens", "reg_token"),
    Name("embeddings.position_embeddings", "pos_embed"),
    Name("embeddings.patch_embeddings.projection.{p}", "patch_embed.proj.{p}"),
    Name("layernorm.{p}", "norm.{p}"),
    Name("pooler.dense.{p}", "pre_logits.fc.{p}"),
)
ATTENTION = (
    Name("encoder.layer.{n}.attention.attention.query.{p}", "blocks.{n}.attn.q.{p}"),
    Name("encoder.layer.{n}.attention.attention.key.{p}", "blocks.{n}.attn.k.{p}"),
    Name("encoder.layer.{n}.attention.attention.value.{p}", "blocks.{n}.attn.v.{p}"),
    Name("encoder.layer.{n}.attention.output.dense.{p}", "blocks.{n}.attn.proj.{p}"),
)
VIT = (
    *AROUND,
    *ATTENTION,
    Name("encoder.layer.{n}.layernorm_before.{p}", "blocks.{n}.norm1.{p}"),
    Name("encoder.layer.{n}.layernorm_after.{p}", "blocks.{n}.norm2.{p}"),
    Name("encoder.layer.{n}.intermediate.dense.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("encoder.layer.{n}.output.dense.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("classifier.{p}", "head.{p}"),
    Name("cls_classifier.{p}", "head.{p}"),  # DeiT with two heads
    Name("distillation_classifier.{p}", "head_dist.{p}"),
    # transformers 5 calls its modules so, and converts when it saves:
    Name("layers.{n}.attention.q_proj.{p}", "blocks.{n}.attn.q.{p}"),
    Name("layers.{n}.attention.k_proj.{p}", "blocks.{n}.attn.k.{p}"),
    Name("layers.{n}.attention.v_proj.{p}", "blocks.{n}.attn.v.{p}"),
    Name("layers.{n}.attention.o_proj.{p}", "blocks.{n}.attn.proj.{p}"),
    Name("layers.{n}.layernorm_before.{p}", "blocks.{n}.norm1.{p}"),
    Name("layers.{n}.layernorm_after.{p}", "blocks.{n}.norm2.{p}"),
    Name("layers.{n}.mlp.fc1.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("layers.{n}.mlp.fc2.{p}", "blocks.{n}.mlp.fc2.{p}"),
)
DINO = (
    *AROUND,
    *ATTENTION,
    Name("encoder.layer.{n}.norm1.{p}", "blocks.{n}.norm1.{p}"),
    Name("encoder.layer.{n}.norm2.{p}", "blocks.{n}.norm2.{p}"),
    Name("encoder.layer.{n}.layer_scale1.lambda1", "blocks.{n}.ls1.gamma"),
    Name("encoder.layer.{n}.layer_scale2.lambda1", "blocks.{n}.ls2.gamma"),
    Name("encoder.layer.{n}.mlp.fc1.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("encoder.layer.{n}.mlp.fc2.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("encoder.layer.{n}.mlp.weights_in.{p}", "blocks.{n}.mlp.fc1.{p}"),  # its SwiGLU
    Name("encoder.layer.{n}.mlp.weights_out.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("classifier.{p}", "head.{p}"),
    # as transformers 5 has them in memory:
    Name("encoder.layer.{n}.attention.q_proj.{p}", "blocks.{n}.attn.q.{p}"),
    Name("encoder.layer.{n}.attention.k_proj.{p}", "blocks.{n}.attn.k.{p}"),
    Name("encoder.layer.{n}.attention.v_proj.{p}", "blocks.{n}.attn.v.{p}"),
    Name("encoder.layer.{n}.attention.o_proj.{p}", "blocks.{n}.attn.proj.{p}"),
    Name("encoder.layer.{n}.mlp.gate_proj.{p}", "blocks.{n}.mlp.fc1_g.{p}"),
    Name("encoder.layer.{n}.mlp.up_proj.{p}", "blocks.{n}.mlp.fc1_x.{p}"),
    Name("encoder.layer.{n}.mlp.down_proj.{p}", "blocks.{n}.mlp.fc2.{p}"),
)
DINOV3_PLAIN = (
    Name("embeddings.cls_token", "cls_token"),
    Name("embeddings.register_tokens", "reg_token"),
    Name("embeddings.patch_embeddings.{p}", "patch_embed.proj.{p}"),
    Name("layer.{n}.norm1.{p}", "blocks.{n}.norm1.{p}"),
    Name("layer.{n}.attention.q_proj.{p}", "blocks.{n}.attn.q.{p}"),
    Name("layer.{n}.attention.k_proj.{p}", "blocks.{n}.attn.k.{p}"),
    Name("layer.{n}.attention.v_proj.{p}", "blocks.{n}.attn.v.{p}"),
    Name("layer.{n}.attention.q_proj.bias", "blocks.{n}.attn.qv_bias.q"),  # where keys have none
    Name("layer.{n}.attention.v_proj.bias", "blocks.{n}.attn.qv_bias.v"),
    Name("layer.{n}.attention.o_proj.{p}", "blocks.{n}.attn.proj.{p}"),
    Name("layer.{n}.layer_scale1.lambda1", "blocks.{n}.ls1.gamma"),
    Name("layer.{n}.norm2.{p}", "blocks.{n}.norm2.{p}"),
    Name("layer.{n}.mlp.up_proj.{p}", "blocks.{n}.mlp.fc1.{p}"),
    Name("layer.{n}.mlp.down_proj.{p}", "blocks.{n}.mlp.fc2.{p}"),
    Name("layer.{n}.layer_scale2.lambda1", "blocks.{n}.ls2.gamma"),
    Name("norm.{p}", "norm.{p}"),
)
DINOV3_GATED = (
    Name("layer.{n}.mlp.gate_proj.{p}", "blocks.{n}.mlp.fc1_g.{p}"),
    Name("layer.{n}.mlp.up_proj.{p}", "blocks.{n}.mlp.fc1_x.{p}"),
    *(row for row in DINOV3_PLAIN if ".up_proj." not in row.theirs),
)
PREFIX = r"(?:vit|deit|dinov2|dinov2_with_registers|ijepa)\."
MARK = r"embeddings\.patch_embeddings\.projection\.weight$"

SHARED: dict[str, Any] = {"asks": ("heads", "norm_eps", "mlp"), "only_class_rows": True}

REGISTERS = Family("Hugging Face DINOv2 with registers", DINO, r"embeddings\.register_tokens$", PREFIX, **SHARED)
DINOV2 = Family("Hugging Face DINOv2", DINO, r"layer_scale1\.lambda1$", PREFIX, resample="bicubic", **SHARED)
OTHERS = Family("Hugging Face ViT", VIT, MARK, PREFIX, resample="bicubic", half=True, **SHARED)
_ROTARY: dict[str, Any] = {"prefix": r"model\.", "norm_eps": 1e-5, "rotary": True, "asks": SHARED["asks"]}
GATE, EMBEDDING = r"^(?:model\.)?layer\.\d+\.mlp\.gate_proj\.weight$", r"embeddings\.patch_embeddings\.weight$"
GATED_DINOV3 = Family("Hugging Face DINOv3, gated", DINOV3_GATED, GATE, **_ROTARY)
DINOV3 = Family("Hugging Face DINOv3", DINOV3_PLAIN, EMBEDDING, **_ROTARY)
FAMILIES = (GATED_DINOV3, DINOV3, REGISTERS, DINOV2, OTHERS)

# What is written, by model_type: the class, what it can hold beside what every ViT can, and its names.
CLASSES = {
    "vit": "ViT",
    "deit": "DeiT",
    "ijepa": "IJepa",
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
    "dinov3_vit": "DINOv3ViT",
}
_DINO_HOLDS: dict[str, Collection[Any]] = {
    "mlp": ("gelu", "gelu-tanh", "gelu-quick", "swiglu"),
    "pool": ("class", "mean", "class-mean"),
    "head": ("linear", "none"),
}
HOLDS: dict[str, dict[str, Collection[Any]]] = {
    "vit": {"head": ("linear", "hidden", "none")},
    "deit": {"tokens": ("distilled",)},
    "ijepa": {"tokens": ("none",), "pool": ("mean",), "head": ("linear", "none")},
    "dinov2": _DINO_HOLDS,
    "dinov2_with_registers": _DINO_HOLDS | {"tokens.registers": range(1, 1025)},
    "dinov3_vit": {
        "positions": ("rotary",),
        "tokens.registers": range(1025),
        "mlp": _DINO_HOLDS["mlp"],
        "head": ("none",),
    },
}
_MASK = Name("embeddings.mask_token", "mask_token")
_SWIGLU = tuple(row for row in DINO if "weights_" in row.theirs)
_TEACHER = Name("cls_classifier.{p}", "head.{p}")
FAMILY_BY_TYPE = {
    "vit": OTHERS,
    "deit": Family("Hugging Face DeiT", (_TEACHER, *VIT), MARK),
    "ijepa": OTHERS,
    "dinov2": Family(DINOV2.name, (_MASK, *DINO), MARK),
    "dinov2_with_registers": Family(REGISTERS.name, (_MASK, *DINO), MARK),
    "gated dinov2": Family(DINOV2.name, (_MASK, *_SWIGLU, *DINO), MARK),
    "gated dinov2_with_registers": Family(REGISTERS.name, (_MASK, *_SWIGLU, *DINO), MARK),
    "dinov3_vit": Family(DINOV3.name, (_MASK, *DINOV3_PLAIN), EMBEDDING),
    "gated dinov3_vit": Family(DINOV3.name, (_MASK, *DINOV3_GATED), EMBEDDING),
}
PROBLEM_TYPES = {"labels": "multi_label_classification", "number": "regression"}
ACTS = {"gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "gelu-quick": "quick_gelu", "swiglu": "gelu"}


def check_outputs(raw: RawWeights) -> None:
    """Refuse what a class of transformers makes of tensors that we have, and that we would not make of them."""
    classes, stages = _words(raw.config.get("architectures")), _words(raw.config.get("out_features"))
    last = f"stage{raw.config.get('num_hidden_layers')}"
    is_backbone = bool(classes) and classes[0].endswith("Backbone")
    if is_backbone and "num_hidden_layers" not in raw.config:
        raise WeightsError(
            f"{raw.where} gives maps of its stages, each after a norm of its own. Load the model that the backbone was "
            "made from."
        )
    if is_backbone and (stages != [last] or not raw.config.get("apply_layernorm", True)):
        raise WeightsError(
            f"{raw.where} gives maps of {', '.join(stages)}, and a ViT here gives those of its last "
            f"block, after the norm. Load the model that the backbone was made from, or set out_features to {last}."
        )
    names = raw.tensors.keys()
    if any(name.endswith("pooler.dense.weight") for name in names) and not any("cls_token" in name for name in names):
        raise WeightsError(
            f"{raw.where} has no class token, and a pooler, which reads its first patch: no such head is here. "
            "Make it without: add_pooling_layer=False."
        )


def _words(value: object) -> list[str]:
    """A list of words in somebody's config.json; an empty one where there is none."""
    return [str(one) for one in value] if isinstance(value, list) else []


def write_config(config: ViTConfig, kind: str, class_names: Sequence[str]) -> dict[str, Any]:
    """config.json for a model_type."""
    head = (
        ("ForImageClassificationWithTeacher" if kind == "deit" else "ForImageClassification")
        if class_names
        else "Model"
    )
    values: dict[str, Any] = {
        "architectures": [CLASSES[kind] + head],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": ACTS[config.mlp.kind],
        "layer_norm_eps": config.blocks.norm_eps,
        "image_size": config.image_size if isinstance(config.image_size, int) else list(config.image_size),
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "dtype": "float32",
    }
    bias, gated = config.attention.bias, config.mlp.kind == "swiglu"
    if kind == "dinov3_vit":
        values |= {"query_bias": bool(bias), "key_bias": bias is True, "value_bias": bool(bias), "use_gated_mlp": gated}
        values |= {"rope_theta": config.positions.base} | ({"hidden_act": "silu"} if gated else {})
    else:
        values["qkv_bias"] = bias
    if kind.startswith("dinov2"):
        values |= {"mlp_ratio": _whole_ratio(config), "use_swiglu_ffn": gated}
    else:
        values["intermediate_size"] = config.mlp_size
    if config.tokens.registers:
        values["num_register_tokens"] = config.tokens.registers
    if config.head.kind == "hidden":
        values["pooler_output_size"] = config.head.size or config.width
    if class_names:
        values["id2label"] = {str(number): name for number, name in enumerate(class_names)}
        values["label2id"] = {name: number for number, name in enumerate(class_names)}
        values["problem_type"] = "single_label_classification"
    return values


def _whole_ratio(config: ViTConfig) -> int:
    """Dinov2 counts in whole multiples of the width; of a SwiGLU it takes two thirds, rounded up to 8s."""
    for ratio in range(1, 97):
        hidden = config.width * ratio
        if config.mlp.kind == "swiglu":
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == config.mlp_size:
            return ratio
    raise WeightsError(
        f"transformers' Dinov2 cannot hold this model: its model.mlp.ratio {config.mlp.ratio:g} is a hidden size of "
        f"{config.mlp_size}, which no whole ratio gives there."
    )
