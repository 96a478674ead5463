"""From the shapes of tensors to the config of the ViT that they belong to; what shapes do not tell is in facts.py."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from vitral.errors import RecipeError, WeightsError
from vitral.model.config import Stem, ViTConfig, resnet_widths
from vitral.weights.architectures import of_shape
from vitral.weights.facts import TIMM_GELUS, ModelFacts, facts_from, subject_of
from vitral.weights.names import Family, Tensors
from vitral.weights.timm import TIMM, TIMM_DINOV3

QUESTIONS = ("heads", "mlp", "norm_eps", "blocks")  # what no tensor tells, and architectures differ in
KEYLESS = "blocks.0.attn.qv_bias.q"
ROTARY_BASE = 100.0  # DINOv3's
HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1280: 16}  # by width: Ti, S, M, B, L, H, whoever made them
BACKBONE = "patch_embed.backbone."
BIASES = r"blocks\.\d+\.(attn\.proj|mlp\.fc[12])\.bias$"


def describe(tensors: Tensors, family: Family, facts: ModelFacts) -> tuple[ViTConfig, ModelFacts]:
    """The config, and the facts, completed with what is usual for the family."""
    _distilled_as_register(tensors)
    facts, stem = _stem(tensors, family, facts)
    width, channels, P = _patches(tensors, stem)
    depth = _depth(tensors)
    if "blocks.0.norm1.weight" in tensors and "blocks.0.norm1.bias" not in tensors:
        facts = _without_norm_bias(tensors, family, facts)
    hidden = _require(tensors, "blocks.0.mlp.fc2.weight").shape[1]
    gated = _require(tensors, "blocks.0.mlp.fc1.weight").shape[0] == 2 * hidden
    tokens = "distilled" if "dist_token" in tensors else "class" if "cls_token" in tensors else "none"
    registers = tensors["reg_token"].shape[-2] if "reg_token" in tensors else 0
    read_out = {"distilled": 2, "class": 1, "none": 0}[tokens]
    facts, (down, across), positions = _positions(tensors, family, facts, P, read_out, registers)
    pool = _pool(tensors, family, facts, width, read_out, registers)
    facts = _with_usual(tensors, family, facts, gated, pool)
    pool = pool or facts.pool
    head, classes = _head(tensors)
    values = {
        "image_size": [down * P, across * P] if down != across else down * P,
        "patch_size": P,
        "channels": channels,
        "width": width,
        "depth": depth,
        "heads": facts.heads,
        "classes": classes,
        "tokens": {"kind": tokens, "registers": registers},
        "positions": positions if family.rotary else positions | {"resample": facts.resample},
        "stem": stem.write(),
        "attention": {
            "kind": "softmax",
            "bias": "query-value" if KEYLESS in tensors else "blocks.0.attn.qkv.bias" in tensors,
            "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        },
        "mlp": {"kind": "swiglu" if gated else facts.mlp, "ratio": hidden / width},
        "blocks": {
            "kind": "pre-norm",
            "norm": "layer" if "blocks.0.norm1.bias" in tensors else "rms",
            "norm_eps": facts.norm_eps,
            "bias": any(re.match(BIASES, name) for name in tensors),  # where only some are there, others are missing
            "first_norm": "norm_pre.weight" in tensors,
            "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else 0.0,
        },
        "pool": {
            "kind": pool,
            "norm": _norm(tensors),
            "all_tokens": bool(facts.all_tokens) and pool in ("mean", "map"),
        },
        "head": head,
    }
    try:
        return ViTConfig.read(values, "model."), facts
    except RecipeError as error:
        raise WeightsError(f"The tensors describe a model that cannot be. {error}") from None


def _patches(tensors: Tensors, stem: Stem) -> tuple[int, int, int]:
    """The width of a token, the channels of an image, and the pixels a side of a patch."""
    patch = _require(tensors, "patch_embed.proj.weight")
    if patch.ndim != 4 or patch.shape[2] != patch.shape[3] or not patch.numel():
        raise WeightsError(f"patch_embed.proj.weight is {_shape(patch)}: patches should be squares, (D, C, P, P).")
    width, channels, P, _ = patch.shape
    if stem.kind == "resnet":  # a patch is a place of its map, or several
        return width, tensors[f"{BACKBONE}stem.conv.weight"].shape[1], P * stem.stride
    return width, channels, P


def _depth(tensors: Tensors) -> int:
    blocks = {match[1] for name in tensors if (match := re.match(r"blocks\.(\d+)\.", name))}
    depth = len(blocks)
    if depth == 0:
        raise WeightsError("There is not one block in it.")
    if missing := set(map(str, range(depth))) - blocks:
        raise WeightsError(f"It has {depth} blocks, and blocks.{min(missing, key=int)} is not among them.")
    return depth


def _positions(
    tensors: Tensors, family: Family, facts: ModelFacts, P: int, read_out: int, registers: int
) -> tuple[ModelFacts, tuple[int, int], dict[str, Any]]:
    """The facts, the grid (down, across), and the settings of positions."""
    if family is TIMM_DINOV3 and facts.rotary is False:
        raise WeightsError(
            f"{subject_of(facts.sources['rotary'])} names an architecture with positions not as in DINOv3."
        )
    if family.rotary:
        _check_periods(tensors)
        facts = facts.then(facts_from(f"as is usual for {family.name}", base=ROTARY_BASE))
        height, width = facts.image_size or (14 * P, 14 * P)
        return facts, (-(-height // P), -(-width // P)), {"kind": "rotary", "base": facts.base}
    if family is TIMM and facts.placed is None and facts.image_size is None:
        choices = {row.placed for row in of_shape(tensors)}
        facts = replace(facts, placed=choices.pop() if len(choices) == 1 else None)
    grid, placed = _grid(tensors, family, facts, P, read_out, registers)
    return facts, grid, {"kind": "learned", "class_token": placed > 0 or not read_out}


def _pool(tensors: Tensors, family: Family, facts: ModelFacts, width: int, read_out: int, registers: int) -> str | None:
    """What the head sees, as far as tensors tell it; None: the facts may."""
    if "attn_pool.latent" in tensors:
        if facts.pool is None and (read_out or registers):
            raise WeightsError(
                "No tensor tells whether its head sees the class token and registers too: put the config.json that "
                "belongs to the file beside it."
            )
        return "map"
    head = tensors.get("head.weight")
    if family is TIMM_DINOV3 and head is not None and facts.pool is None:  # timm's default is not its authors'
        raise WeightsError(
            "No tensor tells what its head sees: put the config.json that belongs to the file beside it, or an "
            "about.json with global_pool, which is avg or token."
        )
    classifier = tensors.get("pre_logits.fc.weight", head)
    if classifier is not None and classifier.shape[1] == 2 * width:
        return "class-mean"
    return "mean" if not read_out or ("fc_norm.weight" in tensors and facts.pool is None) else None


def _with_usual(tensors: Tensors, family: Family, facts: ModelFacts, gated: bool, pool: str | None) -> ModelFacts:
    """The facts with what is usual for the family; a `WeightsError` where that differs, or cannot be ours."""
    _check_activation(facts, gated)
    if unknown := [name for name in family.asks if getattr(facts, name) is None and not (name == "mlp" and gated)]:
        raise WeightsError(
            f"No tensor tells {', '.join(unknown)}: put the config.json that belongs to the file beside it, or give "
            f"{', '.join(f'{name}=…' for name in unknown)}."
        )
    known = _of_architectures(tensors, facts, QUESTIONS if family in (TIMM, TIMM_DINOV3) else ("heads",))
    values = {"norm_eps": family.norm_eps, "mlp": None if gated else "gelu"} | known
    usual = facts_from(
        f"as is usual for {family.name}",
        **values,
        resample=None if family.rotary else family.resample,
        pool=None if pool else "class",
    )
    facts = facts.then(usual)
    if facts.blocks == "post-norm":
        raise WeightsError("Its norms stand after attention and MLP, and a ViT here has them before (model.blocks).")
    return facts


def _head(tensors: Tensors) -> tuple[dict[str, Any], int]:
    """The settings of the head, and how many classes it has."""
    head, before = tensors.get("head.weight"), tensors.get("pre_logits.fc.weight")
    if before is None:
        return {"kind": "none" if head is None else "linear"}, 0 if head is None else head.shape[0]
    size = before.shape[0] if before.shape[0] != before.shape[1] else 0
    return {"kind": "hidden" if head is None else "mlp", "size": size}, 0 if head is None else head.shape[0]


def _without_norm_bias(tensors: Tensors, family: Family, facts: ModelFacts) -> ModelFacts:
    """The facts with RMSNorm as the norm, where they say so or all of timm's architectures with such tensors have it;
    else a `WeightsError`: a LayerNorm has a bias here, and which of the two it is no tensor tells."""
    if facts.norm is None and {row.norm for row in of_shape(tensors)} == {"rms"}:
        return facts.then(facts_from(f"as is usual for {family.name}", norm="rms"))
    if facts.norm == "rms":
        return facts
    raise WeightsError(
        "blocks.0.norm1.bias is missing, which a LayerNorm has here. If its norms are RMSNorm, write "
        '{"norm": "rms"} into an about.json beside the weights.'
    )


def _stem(tensors: Tensors, family: Family, facts: ModelFacts) -> tuple[ModelFacts, Stem]:
    """What makes tokens of patches: a matrix, or a ResNet before it."""
    bias = "patch_embed.proj.bias" in tensors
    if not any(name.startswith(BACKBONE) for name in tensors):
        return facts, Stem(bias=bias, norm="patch_embed.norm.weight" in tensors)
    facts = facts.then(facts_from(f"as is usual for {family.name}", groups=32))
    first = _require(tensors, f"{BACKBONE}stem.conv.weight")
    depths, widths = stages(tensors, BACKBONE)
    all_widths = widths_or_usual(depths, (first.shape[0], *widths))
    values = {"kind": "resnet", "bias": bias, "depths": depths, "widths": all_widths, "groups": facts.groups}
    try:
        return facts, Stem.read(values, "model.stem.")
    except RecipeError as error:
        raise WeightsError(f"The tensors describe a model that cannot be. {error}{about_groups(facts)}") from None


def about_groups(facts: ModelFacts) -> str:
    """A sentence where the groups of a ResNet's norms are only the usual ones."""
    usual = facts.sources.get("groups", "").startswith("as is usual")
    return " No tensor tells groups: write them into an about.json beside the weights." if usual else ""


def stages(tensors: Tensors, before: str) -> tuple[list[int], list[int]]:
    """How many blocks each stage of a ResNet has, and how many channels come out of it. `before`: of all names."""
    places = {
        (int(match[1]), int(match[2]))
        for name in tensors
        if (match := re.match(rf"{re.escape(before)}stages\.(\d+)\.blocks\.(\d+)\.", name))
    }
    depths, widths = [], []
    for stage in range(1 + max((stage for stage, _ in places), default=-1)):
        numbers = {number for one, number in places if one == stage}
        name = f"{before}stages.{stage}.blocks.0.conv3.weight"
        if numbers != set(range(len(numbers))) or name not in tensors:
            raise WeightsError(f"Stage {stage} of the ResNet is not whole: of its blocks some are missing.")
        depths.append(len(numbers))
        widths.append(tensors[name].shape[0])
    return depths, widths


def widths_or_usual(depths: Sequence[int], widths: Sequence[int]) -> tuple[int, ...]:
    """The widths of a ResNet for its config: none where they are those of ResNet-50."""
    return () if tuple(widths) == resnet_widths(tuple(depths), ()) else tuple(widths)


def _check_periods(tensors: Tensors) -> None:
    """Take out the periods that DINOv3's authors store, which the base tells; in bfloat16, which rounds them."""
    periods = tensors.pop("rope_embed.periods", None)
    if periods is None:
        return
    expected = ROTARY_BASE ** (torch.arange(len(periods)) / len(periods))
    if not torch.allclose(periods, expected, rtol=0.01):
        raise WeightsError(f"Its rope_embed.periods are not those of the base {ROTARY_BASE:g}, and ours would be.")


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
        claim = f"mlp is {facts.mlp}" if who == "given" else f"{subject_of(who)} asks for {facts.mlp} as act_layer"
        raise WeightsError(f"{claim}, and {part} here has {words}.")


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
    sized = (-(-facts.image_size[0] // P), -(-facts.image_size[1] // P)) if facts.image_size else None
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
