"""From the shapes of tensors to the config of the model that they belong to; what shapes do not tell comes from the
files beside them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isqrt
from typing import Any, Self

import torch
from torch import Tensor

from vitral.errors import RecipeError, WeightsError
from vitral.model.config import Resample, ViTConfig
from vitral.weights.architectures import architecture_named, of_shape
from vitral.weights.names import Family, Tensors
from vitral.weights.stored import RawWeights
from vitral.weights.timm import TIMM

TIMM_GELUS = {"gelu": "gelu", "quick_gelu": "gelu-quick", "gelu_tanh": "gelu-tanh"}
QUESTIONS = ("heads", "mlp", "norm_eps", "blocks")  # what no tensor tells, and architectures differ in
TIMM_POOLS = {"token": "class", "avg": "mean", "": None}
HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 16}  # by width: Ti, S, M, B, L, H, whoever made them
GELUS = {"gelu": "gelu", "gelu_python": "gelu", "quick_gelu": "gelu-quick"}  # of transformers
GELUS |= dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu-tanh")


@dataclass(frozen=True)
class ModelFacts:
    """What the shapes of tensors do not tell. None: not known."""

    heads: int | None = None
    norm_eps: float | None = None
    resample: Resample | None = None
    image_size: tuple[int, int] | None = None
    mlp: str | None = None
    pool: str | None = None
    blocks: str | None = None  # pre-norm, or another that ours has not
    placed: bool | None = None  # whether class token and registers have rows in the table of positions
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
    try:
        config, about = _of_config(raw), _of_about(raw.about, raw.about_from)
        # A module in memory may have been made with other arguments than its config names.
        return (about.then(config) if raw.path is None else config.then(about)).then(_of_shapes(raw))
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise WeightsError(f"What stands beside {raw.where} cannot be read ({error}).") from None


def _of_config(raw: RawWeights) -> ModelFacts:
    config = raw.config
    if "pretrained_cfg" in config or config.get("model_type") == "timm_wrapper":
        return _of_timm_config(config, raw.tensors)
    if config.get("pooler_act", "tanh") != "tanh":
        raise WeightsError(f"config.json asks for {config['pooler_act']} in its pooler, and ours has tanh.")
    labels = config.get("id2label")
    act = None if config.get("use_swiglu_ffn") else config.get("hidden_act")  # which a gated MLP does not look at
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


def _of_timm_config(config: Mapping[str, Any], tensors: Tensors) -> ModelFacts:
    """timm's: the name of an architecture, and the arguments that it was made with, if they are others."""
    row, arguments = architecture_named(str(config.get("architecture", ""))), config.get("model_args") or {}
    # Early versions did not write arguments: tensors that are not of the name say that there were some.
    own = asdict(row) if row and (arguments or row in of_shape(tensors)) else {}
    act = arguments.get("act_layer")
    size = arguments.get("img_size") or config.get("pretrained_cfg", {}).get("input_size", (None,))[1:]
    pool = arguments.get("global_pool", config.get("global_pool"))
    return facts_from(
        "config.json",
        image_size=_size(size) if size else None,
        pool=_pool(pool, arguments.get("pool_include_prefix"), "config.json") or own.get("pool"),
        heads=arguments.get("num_heads", own.get("heads")),
        norm_eps=own.get("norm_eps"),
        mlp=TIMM_GELUS.get(act, act) if act else own.get("mlp"),
        blocks=own.get("blocks"),
        placed=not arguments["no_embed_class"] if "no_embed_class" in arguments else own.get("placed"),
        class_names=_names(config.get("label_names")),
    )


def _pool(word: str | None, include_prefix: Any, who: str) -> str | None:
    """Our word for timm's."""
    if word is None:
        return None
    who = _subject(who)
    if word not in TIMM_POOLS:
        raise WeightsError(f"{who} asks for {word} as global_pool, which ours has not.")
    if include_prefix and word == "avg":
        raise WeightsError(f"{who} asks for a mean of all tokens (pool_include_prefix), and ours is of the patches.")
    return TIMM_POOLS[word]


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
        pool=_pool(about.get("global_pool"), about.get("pool_include_prefix"), whence),
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
    if patch.ndim != 4 or patch.shape[2] != patch.shape[3] or not patch.numel():
        raise WeightsError(f"patch_embed.proj.weight is {_shape(patch)}: patches should be squares, (D, C, P, P).")
    width, channels, P, _ = patch.shape
    blocks = {match[1] for name in tensors if (match := re.match(r"blocks\.(\d+)\.", name))}
    depth = len(blocks)
    if depth == 0:
        raise WeightsError("There is not one block in it.")
    if missing := set(map(str, range(depth))) - blocks:
        raise WeightsError(f"It has {depth} blocks, and blocks.{min(missing, key=int)} is not among them.")
    if "blocks.0.norm1.weight" in tensors and "blocks.0.norm1.bias" not in tensors:
        raise WeightsError("blocks.0.norm1.bias is missing: a norm without it is no LayerNorm, and ours has no other.")
    hidden = _require(tensors, "blocks.0.mlp.fc2.weight").shape[1]
    gated = _require(tensors, "blocks.0.mlp.fc1.weight").shape[0] == 2 * hidden
    kind = "distilled" if "dist_token" in tensors else "class" if "cls_token" in tensors else "none"
    registers = tensors["reg_token"].shape[-2] if "reg_token" in tensors else 0
    read_out = {"distilled": 2, "class": 1, "none": 0}[kind]
    if family is TIMM and facts.placed is None and facts.image_size is None:
        choices = {row.placed for row in of_shape(tensors)}
        facts = replace(facts, placed=choices.pop() if len(choices) == 1 else None)
    grid, placed = _grid(tensors, family, facts, P, read_out, registers)
    head = tensors.get("head.weight")
    before = tensors.get("pre_logits.fc.weight")
    classifier = before if before is not None else head
    pool = "mean" if kind == "none" or ("fc_norm.weight" in tensors and facts.pool is None) else None
    if classifier is not None and classifier.shape[1] == 2 * width:
        pool = "class-mean"
    _check_activation(facts, gated)
    if unknown := [name for name in family.asks if getattr(facts, name) is None and not (name == "mlp" and gated)]:
        raise WeightsError(
            f"No tensor tells {', '.join(unknown)}: put the config.json that belongs to the file beside it, or give "
            f"{', '.join(f'{name}=…' for name in unknown)}."
        )
    known = _of_architectures(tensors, facts, QUESTIONS if family is TIMM else ("heads",))
    usual = facts_from(
        f"as is usual for {family.name}",
        **{"norm_eps": family.norm_eps, "mlp": None if gated else "gelu"} | known,
        resample=family.resample,
        pool=None if pool else "class",
    )
    facts = facts.then(usual)
    if facts.blocks == "post-norm":
        raise WeightsError("Its norms stand after attention and MLP, and a ViT here has them before (model.blocks).")
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


def _of_architectures(tensors: Tensors, facts: ModelFacts, questions: Sequence[str]) -> dict[str, Any]:
    """What all of timm's architectures with such tensors agree in; a `WeightsError` that asks for what they do not."""
    known = {name: getattr(facts, name) for name in QUESTIONS if getattr(facts, name) is not None}
    open_questions = [name for name in questions if name not in known]
    rows = of_shape(tensors)
    rows = [row for row in rows if all(getattr(row, name) == value for name, value in known.items())] or rows
    width = tensors["blocks.0.mlp.fc1.weight"].shape[1]
    if not rows:
        if "heads" in open_questions and width not in HEADS:
            raise WeightsError(
                f"No tensor tells how many heads it has, and {width} is no usual width: give heads=…, or write it "
                "into an about.json beside the weights."
            )
        return {"heads": HEADS.get(width)}
    values = {name: {getattr(row, name): row.names[0] for row in reversed(rows)} for name in open_questions}
    if several := {name: choices for name, choices in values.items() if len(choices) > 1}:
        words = [
            " or ".join(f"{name}={value!r} as in {who}" for value, who in c.items()) for name, c in several.items()
        ]
        raise WeightsError(
            f"No tensor tells {' and '.join(several)}: give {', and '.join(words)}; or write it into an about.json "
            "beside the weights."
        )
    return {name: next(iter(choices)) for name, choices in values.items()}


def _distilled_as_register(tensors: Tensors) -> None:
    """A distillation token without a head of its own becomes a register, with its position added to it, in place."""
    reads_class = {"head.weight", "pre_logits.fc.weight"} & tensors.keys()  # one head, or a pooler: on the class token
    if "dist_token" not in tensors or "head_dist.weight" in tensors or not reads_class:
        return
    table = _require(tensors, "pos_embed")
    tensors["reg_token"] = tensors.pop("dist_token") + table[:, 1:2]
    tensors["pos_embed"] = torch.cat([table[:, :1], table[:, 2:]], dim=1)


def _norm(tensors: Tensors) -> str:
    return "before" if "norm.weight" in tensors else "after" if "fc_norm.weight" in tensors else "none"


def _check_activation(facts: ModelFacts, gated: bool) -> None:
    allowed = ("silu", "swiglu") if gated else tuple(TIMM_GELUS.values())
    if facts.mlp is not None and facts.mlp not in allowed:
        part, words = ("a gated MLP", "silu") if gated else ("a ViT", ", ".join(allowed))
        who = facts.sources["mlp"]
        claim = f"mlp is {facts.mlp}" if who == "given" else f"{_subject(who)} asks for {facts.mlp} as act_layer"
        raise WeightsError(f"{claim}, and {part} here has {words}.")


def _subject(who: str) -> str:
    """A source of facts, at the beginning of a sentence."""
    return who if who.endswith(".json") else who.capitalize()


def _grid(
    tensors: Tensors, family: Family, facts: ModelFacts, P: int, read_out: int, registers: int
) -> tuple[tuple[int, int], int]:
    """The grid of the position table, (down, across), and how many rows before it are for tokens that are no patches.

    A table with rows for registers too is shortened: what is added to a token that is always the same can be part of
    it.
    """
    table = _require(tensors, "pos_embed")
    if table.ndim != 3 or table.shape[0] != 1:
        raise WeightsError(f"pos_embed is {_shape(table)}: a row a token was expected, (1, T, D).")
    rows = table.shape[1]
    sized = (facts.image_size[0] // P, facts.image_size[1] // P) if facts.image_size else None
    size_is_given = facts.sources.get("image_size") == "given"  # the size to use, which need not be that of the table
    grids: dict[int, tuple[int, int]] = {}  # by how many rows are before it
    counts = [read_out + registers, read_out, 0] if facts.placed is None else [facts.placed * (read_out + registers)]
    for placed in dict.fromkeys([read_out] if family.only_class_rows else counts):
        side = isqrt(max(0, rows - placed))
        if 0 < side**2 == rows - placed:
            grids[placed] = (side, side)
        if sized and 0 < sized[0] * sized[1] == rows - placed and not (size_is_given and placed in grids):
            # A size that stands beside the weights tells more than a number of rows that happens to be a square.
            grids[placed] = sized
    if sized in grids.values():
        grids = {placed: grid for placed, grid in grids.items() if grid == sized}
    if len(grids) != 1:
        several = " or ".join(f"{down}×{across}" for down, across in grids.values()) or "no square"
        raise WeightsError(
            f"pos_embed has {rows} rows, which is {several} of patches: give image_size=(height, width) in pixels."
        )
    ((placed, grid),) = grids.items()
    if registers and placed == read_out + registers:
        tensors["reg_token"] = tensors["reg_token"] + table[:, read_out:placed]
        tensors["pos_embed"] = table[:, [*range(read_out), *range(placed, rows)]]
        placed = read_out
    return grid, placed


def _require(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise WeightsError(f"{name} is missing.")
    return tensors[name]


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))
