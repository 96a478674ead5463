"""From the shapes of tensors to the config of the model that they belong to; what shapes do not tell comes from the
files beside them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import isqrt
from typing import Any, Self

import torch
from torch import Tensor

from vitral.errors import RecipeError, WeightsError
from vitral.model.config import Resample, ViTConfig
from vitral.weights.names import Family, Tensors
from vitral.weights.stored import RawWeights

TIMM_GELUS = {"gelu": "gelu", "quick_gelu": "gelu-quick", "gelu_tanh": "gelu-tanh"}
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}  # of widths that are not 64 per head: so400m, H, g, G
GELUS = {"gelu": "gelu", "quick_gelu": "gelu-quick", "gelu_pytorch_tanh": "gelu-tanh", "gelu_new": "gelu-tanh"}


@dataclass(frozen=True)
class ModelFacts:
    """What the shapes of tensors do not tell. None: not known."""

    heads: int | None = None
    norm_eps: float | None = None
    resample: Resample | None = None
    image_size: tuple[int, int] | None = None
    mlp: str | None = None
    pool: str | None = None
    class_names: tuple[str, ...] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)  # of each fact, where it comes from: config.json, …

    def then(self, other: Self) -> Self:
        """These facts, and the other's where these are None."""
        rest = {one.name: getattr(other, one.name) for one in fields(self) if getattr(self, one.name) is None}
        return replace(self, **rest, sources={**other.sources, **self.sources})


def facts_from(who: str, **values: Any) -> ModelFacts:
    """Facts that are known, all from one source: config.json, about.json, …"""
    known = {name: value for name, value in values.items() if value is not None}
    return ModelFacts(**known, sources={name: who for name in known})


def facts_of(raw: RawWeights) -> ModelFacts:
    """The facts in config.json and about.json, and in the shapes of Google's tensors."""
    config, about = raw.config, raw.about
    try:
        return _of_config(config).then(_of_about(about, raw.about_from)).then(_of_shapes(raw))
    except (TypeError, ValueError, AttributeError) as error:
        raise WeightsError(f"What stands beside {raw.where} cannot be read ({error}).") from None


def _of_config(config: Mapping[str, Any]) -> ModelFacts:
    if pretrained := config.get("pretrained_cfg"):  # timm
        pools = {"token": "class", "avg": "mean", "": None}
        if config.get("global_pool", "token") not in pools:
            raise WeightsError(f"config.json asks for {config['global_pool']} as global_pool, which ours has not.")
        name, arguments = str(config.get("architecture", "")), config.get("model_args") or {}
        act = arguments.get("act_layer", "quick_gelu" if "quickgelu" in name else None)
        if act is not None and act not in TIMM_GELUS:
            raise WeightsError(f"config.json asks for {act} as act_layer, and a ViT here has {', '.join(TIMM_GELUS)}.")
        return facts_from(
            "config.json",
            image_size=_size(pretrained["input_size"][1:]) if "input_size" in pretrained else None,
            pool=pools[config.get("global_pool") or "token"],
            heads=arguments.get("num_heads"),
            norm_eps=1e-5 if "_clip_" in name else None,
            mlp=TIMM_GELUS[act] if act else None,
            class_names=_names(config.get("label_names")),
        )
    if config.get("pooler_act", "tanh") != "tanh":
        raise WeightsError(f"config.json asks for {config['pooler_act']} in its pooler, and ours has tanh.")
    labels = config.get("id2label")
    act = config.get("hidden_act")
    if act is not None and act not in GELUS:
        raise WeightsError(f"config.json asks for {act} as hidden_act, and a ViT here has {', '.join(GELUS)}.")
    return facts_from(
        "config.json",
        heads=config.get("num_attention_heads"),
        norm_eps=config.get("layer_norm_eps"),
        image_size=_size(config.get("image_size")),
        mlp=GELUS[act] if act else None,
        class_names=_names([labels[key] for key in sorted(labels, key=int)]) if labels else None,
    )


def _of_shapes(raw: RawWeights) -> ModelFacts:
    """Google keeps the heads apart: (width, heads, width / heads)."""
    kernels = [tensor for name, tensor in raw.tensors.items() if name.endswith("query/kernel") and tensor.ndim == 3]
    return facts_from("their shapes", heads=kernels[0].shape[1]) if kernels else ModelFacts()


def _of_about(about: Mapping[str, Any], whence: str) -> ModelFacts:
    activation = str(about.get("activation", ""))
    return facts_from(
        whence,
        heads=about.get("heads"),
        norm_eps=about.get("norm_eps"),
        resample=about.get("resample") or ("dino" if about.get("family") == "DINO" else None),
        image_size=_size(about.get("image_size", about.get("image"))),
        mlp=about.get("mlp") or ("gelu-quick" if activation.startswith("quick GELU") else None),
        class_names=_names(about.get("class_names")),
    )


def _size(value: Any) -> tuple[int, int] | None:
    if value is None or isinstance(value, int):
        return None if value is None else (value, value)
    height, width = value
    return int(height), int(width)


def _names(value: Any) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if value else None


def describe(tensors: Tensors, family: Family, facts: ModelFacts) -> tuple[ViTConfig, ModelFacts]:
    """The config, and the facts, completed with what is usual for the family."""
    _distilled_as_register(tensors)
    patch = _require(tensors, "patch_embed.proj.weight")
    if patch.ndim != 4 or patch.shape[2] != patch.shape[3]:
        raise WeightsError(f"patch_embed.proj.weight is {_shape(patch)}: patches should be squares, (D, C, P, P).")
    width, channels, P, _ = patch.shape
    depth = 1 + max((int(match[1]) for name in tensors if (match := re.match(r"blocks\.(\d+)\.", name))), default=-1)
    if depth == 0:
        raise WeightsError("There is not one block in it.")
    hidden = _require(tensors, "blocks.0.mlp.fc2.weight").shape[1]
    gated = _require(tensors, "blocks.0.mlp.fc1.weight").shape[0] == 2 * hidden
    kind = "distilled" if "dist_token" in tensors else "class" if "cls_token" in tensors else "none"
    registers = tensors["reg_token"].shape[-2] if "reg_token" in tensors else 0
    read_out = {"distilled": 2, "class": 1, "none": 0}[kind]
    size_is_given = facts.sources.get("image_size") == "given"  # the size to use, which need not be that of the table
    grid, placed = _grid(tensors, facts.image_size, size_is_given, P, read_out, registers)
    head = tensors.get("head.weight")
    before = tensors.get("pre_logits.fc.weight")
    classifier = before if before is not None else head
    pool = "mean" if kind == "none" or "fc_norm.weight" in tensors else None
    if classifier is not None and classifier.shape[1] == 2 * width:
        pool = "class-mean"
    usual = facts_from(
        f"as is usual for {family.name}",
        heads=HEADS.get(width, max(1, width // 64)),
        norm_eps=family.norm_eps,
        resample=family.resample,
        mlp=None if gated else "gelu",
        pool=None if pool else "class",
    )
    facts = facts.then(usual)
    head_kind = ("mlp" if before is not None else "linear") if head is not None else "none"
    if head is None and before is not None:
        head_kind = "hidden"
    size = before.shape[0] if before is not None and before.shape[0] != before.shape[1] else 0
    try:
        config = ViTConfig.read(
            {
                "image_size": [grid[0] * P, grid[1] * P] if grid[0] != grid[1] else grid[0] * P,
                "patch_size": P,
                "channels": channels,
                "width": width,
                "depth": depth,
                "heads": facts.heads,
                "classes": 0 if head is None else head.shape[0],
                "tokens": {"kind": kind, "registers": registers},
                "positions": {"class_token": placed > 0 or not read_out, "resample": facts.resample, "kind": "learned"},
                "stem": {"kind": "linear", "bias": "patch_embed.proj.bias" in tensors},
                "attention": {
                    "kind": "softmax",
                    "bias": "blocks.0.attn.qkv.bias" in tensors,
                    "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
                },
                "mlp": {"kind": "swiglu" if gated else facts.mlp, "ratio": hidden / width},
                "blocks": {
                    "kind": "pre-norm",
                    "norm_eps": facts.norm_eps,
                    "first_norm": "norm_pre.weight" in tensors,
                    "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
                },
                "pool": {"kind": pool or facts.pool, "norm": _norm(tensors)},
                "head": {"kind": head_kind, "size": size},
            },
            "model.",
        )
    except RecipeError as error:
        raise WeightsError(f"The tensors describe a model that cannot be. {error}") from None
    return config, facts


def _distilled_as_register(tensors: Tensors) -> None:
    """A distillation token without a head of its own becomes a register, with its position added to it, in place."""
    if "dist_token" not in tensors or "head_dist.weight" in tensors or "head.weight" not in tensors:
        return
    table = _require(tensors, "pos_embed")
    tensors["reg_token"] = tensors.pop("dist_token") + table[:, 1:2]
    tensors["pos_embed"] = torch.cat([table[:, :1], table[:, 2:]], dim=1)


def _norm(tensors: Tensors) -> str:
    return "before" if "norm.weight" in tensors else "after" if "fc_norm.weight" in tensors else "none"


def _grid(
    tensors: Tensors, image_size: tuple[int, int] | None, prefer_square: bool, P: int, read_out: int, registers: int
) -> tuple[tuple[int, int], int]:
    """The grid of the position table, (down, across), and how many rows before it are for tokens that are no patches.

    A table with rows for registers too is shortened: what is added to a token that is always the same can be part of
    it.
    """
    table = _require(tensors, "pos_embed")
    if table.ndim != 3 or table.shape[0] != 1:
        raise WeightsError(f"pos_embed is {_shape(table)}: a row a token was expected, (1, T, D).")
    rows = table.shape[1]
    from_size = (image_size[0] // P, image_size[1] // P) if image_size else (0, 0)
    counts = list(dict.fromkeys([read_out + registers, read_out, 0]))
    # A size that stands beside the weights tells more than a number of rows that happens to be a square.
    sized = [] if prefer_square else [count for count in counts if from_size[0] * from_size[1] == rows - count]
    for placed in sized or counts:
        patches = rows - placed
        side = isqrt(max(0, patches))
        square = (side, side) if 0 < side**2 == patches else None
        fits = from_size if from_size[0] * from_size[1] == patches > 0 else None
        grid = (square or fits) if prefer_square else (fits or square)
        if grid is None:
            continue
        if registers and placed == read_out + registers:
            tensors["reg_token"] = tensors["reg_token"] + table[:, read_out:placed]
            tensors["pos_embed"] = table[:, [*range(read_out), *range(placed, rows)]]
            placed = read_out
        return grid, placed
    raise WeightsError(
        f"pos_embed has {rows} rows, which is no square of patches: give image_size=(height, width) in pixels."
    )


def _require(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise WeightsError(f"{name} is missing.")
    return tensors[name]


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))
