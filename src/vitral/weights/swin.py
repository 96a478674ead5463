"""Swin Transformers, version 1 and 2: the names of timm, of the authors and of transformers, and what tensors tell."""

import re
from collections.abc import Sequence
from math import ceil, isqrt
from typing import Any, Literal

from vitral.errors import RecipeError, WeightsError
from vitral.model.swin_config import SwinConfig
from vitral.weights.facts import TIMM_GELUS, ModelFacts, facts_from
from vitral.weights.names import Family, Name, Tensors

MOST_STAGES = 8
OURS, THEIRS = "stages.{s}.blocks.{n}", "layers.{s}.blocks.{n}"
AROUND = (
    Name("patch_embed.proj.{p}", "patch_embed.proj.{p}"),
    Name("patch_embed.norm.{p}", "patch_embed.norm.{p}"),
    *(
        Name(f"{THEIRS}.{name}", f"{OURS}.{name}")
        for name in (
            "norm1.{p}",
            "attn.qkv.{p}",
            "attn.relative_position_bias_table",
            "attn.logit_scale",
            "attn.cpb_mlp.0.{p}",
            "attn.cpb_mlp.2.{p}",
            "attn.proj.{p}",
            "norm2.{p}",
            "mlp.fc1.{p}",
            "mlp.fc2.{p}",
        )
    ),
    Name(f"{THEIRS}.attn.q_bias", f"{OURS}.attn.qv_bias.q"),
    Name(f"{THEIRS}.attn.v_bias", f"{OURS}.attn.qv_bias.v"),
    Name("norm.{p}", "norm.{p}"),
)
HEAD = Name("head.{p}", "head.{p}")


def _merging(theirs: str, ends: bool) -> tuple[Name, ...]:
    """Merging stands at the start of a stage, as ours, or at the end of the one before it."""
    return tuple(
        Name(f"{theirs}.{stage - ends}.downsample.{part}", f"stages.{stage}.downsample.{part}")
        for stage in range(1, MOST_STAGES)
        for part in ("norm.{p}", "reduction.{p}")
    )


HF_BLOCK, HF = "encoder.layers.{s}.blocks.{n}", "attention.self"
HUGGING_FACE = (
    Name("embeddings.patch_embeddings.projection.{p}", "patch_embed.proj.{p}"),
    Name("embeddings.norm.{p}", "patch_embed.norm.{p}"),
    *(
        Name(f"{HF_BLOCK}.{theirs}", f"{OURS}.{ours}")
        for theirs, ours in (
            ("layernorm_before.{p}", "norm1.{p}"),
            (f"{HF}.query.{{p}}", "attn.q.{p}"),
            (f"{HF}.key.{{p}}", "attn.k.{p}"),
            (f"{HF}.value.{{p}}", "attn.v.{p}"),
            (f"{HF}.query.bias", "attn.qv_bias.q"),  # version 2, where keys have none
            (f"{HF}.value.bias", "attn.qv_bias.v"),
            (f"{HF}.relative_position_bias_table", "attn.relative_position_bias_table"),
            (f"{HF}.logit_scale", "attn.logit_scale"),
            (f"{HF}.continuous_position_bias_mlp.0.{{p}}", "attn.cpb_mlp.0.{p}"),
            (f"{HF}.continuous_position_bias_mlp.2.{{p}}", "attn.cpb_mlp.2.{p}"),
            ("attention.output.dense.{p}", "attn.proj.{p}"),
            ("layernorm_after.{p}", "norm2.{p}"),
            ("intermediate.dense.{p}", "mlp.fc1.{p}"),
            ("output.dense.{p}", "mlp.fc2.{p}"),
            # as transformers 5 has version 1 in memory:
            ("attention.q_proj.{p}", "attn.q.{p}"),
            ("attention.k_proj.{p}", "attn.k.{p}"),
            ("attention.v_proj.{p}", "attn.v.{p}"),
            (
                "attention.relative_position_bias.relative_position_bias_table",
                "attn.relative_position_bias_table",
            ),
            ("attention.o_proj.{p}", "attn.proj.{p}"),
            ("mlp.fc1.{p}", "mlp.fc1.{p}"),
            ("mlp.fc2.{p}", "mlp.fc2.{p}"),
        )
    ),
    *_merging("encoder.layers", ends=True),
    Name("layernorm.{p}", "norm.{p}"),
    Name("classifier.{p}", "head.{p}"),
)
PREFIX = r"(?:module\.|model\.|backbone\.|encoder\.)+"
TABLES = r"layers\.\d+\.blocks\.\d+\.attn\.(relative_position_bias_table|logit_scale)$"

AUTHORS = Family(
    "Swin's authors", (*AROUND, *_merging("layers", ends=True), HEAD), r"^(?:\w+\.)?layers\.0\.downsample\.", PREFIX,
    kind="swin", norm_eps=1e-5, without=r"encoder\.layers",
)  # fmt: skip
TIMM = Family(
    "timm Swin", (*AROUND, *_merging("layers", ends=False), Name("head.fc.{p}", "head.{p}"), HEAD), TABLES, PREFIX,
    kind="swin", norm_eps=1e-5,
)  # fmt: skip
TRANSFORMERS = Family(
    "Hugging Face Swin", HUGGING_FACE, r"encoder\.layers\.\d+\.blocks\.\d+\.attention\.", r"swin(?:v2)?\.",
    kind="swin", norm_eps=1e-5,
)  # fmt: skip
FAMILIES = (TRANSFORMERS, AUTHORS, TIMM)


def describe(tensors: Tensors, family: Family, facts: ModelFacts) -> tuple[SwinConfig, ModelFacts]:
    """The config that tensors of ours, as to their names, are of."""
    if given := [name for name in ("heads", "resample") if facts.sources.get(name) == "given"]:
        raise WeightsError(
            f"A Swin has heads in its tensors, and no table to resample: leave {' and '.join(given)} out."
        )
    patch = _require(tensors, "patch_embed.proj.weight")
    depths = _depths(tensors)
    version = 2 if "stages.0.blocks.0.attn.logit_scale" in tensors else 1
    tables = [_of_stage(tensors, stage, version) for stage in range(len(depths))]
    if facts.norm_eps not in (None, 1e-5):
        raise WeightsError(f"Its norms add {facts.norm_eps:g} to the variance, and those of a Swin here 1e-05.")
    if facts.mlp not in (None, *TIMM_GELUS.values()):
        raise WeightsError(f"Its MLP has {facts.mlp}, and a Swin here has {', '.join(TIMM_GELUS.values())}.")
    usual: dict[str, Any] = {"mlp": "gelu"}
    if version == 1:
        sides = [(isqrt(rows) + 1) // 2 for rows, _ in tables]
        whole = sides[-1] * 2 ** (len(depths) - 1) * patch.shape[-1]  # the last map is one window: 224 pixels in Swin-T
        height, width = facts.image_size or (whole, whole)
        # A window that is smaller in later stages may be as large as their maps.
        grids = [min(height, width) // patch.shape[-1] / 2**stage for stage in range(len(depths))]
        cut = all(side >= min(max(sides), ceil(grid)) for side, grid in zip(sides, grids, strict=True))
        usual |= {"window": max(sides) if cut else tuple(sides), "image_size": (whole, whole)}
    elif unknown := [name for name in ("window", "image_size") if getattr(facts, name) is None]:
        raise WeightsError(
            f"No tensor tells {' and '.join(unknown)}: put the config.json that belongs to the file beside it, or an "
            "about.json with window_size, in tokens, and image_size, in pixels."
        )
    facts = facts.then(facts_from(f"as is usual for {family.name}", **usual))
    height, width = facts.image_size or (0, 0)
    head = tensors.get("head.weight")
    biases = {"stages.0.blocks.0.attn.qkv.bias", "stages.0.blocks.0.attn.qv_bias.q"}
    hidden = _require(tensors, "stages.0.blocks.0.mlp.fc1.weight").shape[0]
    try:
        config = SwinConfig.read(
            {
                "image_size": height if height == width else [height, width],
                "patch_size": patch.shape[-1],
                "channels": patch.shape[1],
                "width": patch.shape[0],
                "depths": depths,
                "heads": [heads for _, heads in tables],
                "window": facts.window,
                "classes": 0 if head is None else head.shape[0],
                "mlp": {"kind": facts.mlp, "ratio": hidden / patch.shape[0]},
                "bias": bool(biases & tensors.keys()),
                "version": version,
                "trained_windows": (facts.trained_windows or ()) if version == 2 else (),
                "borders": "transformers" if family is TRANSFORMERS else "timm",
                "head": "none" if head is None else "linear",
            },
            "model.",
        )
    except RecipeError as error:
        raise WeightsError(f"The tensors describe a model that cannot be. {error}") from None
    return config, facts


def _depths(tensors: Tensors) -> list[int]:
    """How many blocks each stage has."""
    places = {(int(m[1]), int(m[2])) for name in tensors if (m := re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name))}
    depths = [
        sum(stage == number for number, _ in places) for stage in range(1 + max((s for s, _ in places), default=-1))
    ]
    if not depths or not all(depths):
        raise WeightsError("There is not one block in a stage of it.")
    return depths


def _of_stage(tensors: Tensors, stage: int, version: int) -> tuple[int, int]:
    """How many rows the table of a stage has (0 in version 2), and for how many heads."""
    attention = f"stages.{stage}.blocks.0.attn"
    if version == 2:
        return 0, _require(tensors, f"{attention}.logit_scale").shape[0]
    table = _require(tensors, f"{attention}.relative_position_bias_table")
    if table.ndim != 2:
        raise WeightsError(f"{attention}.relative_position_bias_table should have a row a distance, (rows, heads).")
    return table.shape[0], table.shape[1]


def _require(tensors: Tensors, name: str) -> Any:
    if name not in tensors:
        raise WeightsError(f"{name} is missing.")
    return tensors[name]


# ---- to be written


def for_library(config: SwinConfig, library: Literal["timm", "transformers"]) -> SwinConfig:
    """The config by the rules of a library; a `WeightsError` where its outputs would be others."""
    if config.mlp.kind != "gelu":
        raise WeightsError(f"{library} cannot hold this model: its model.mlp is {config.mlp.kind}, and would be gelu.")
    if config.borders != library and not config.divides:
        height, width = config.height_width
        raise WeightsError(
            f"{library} cannot hold this model: windows of {config.window} tokens do not divide all maps of an image "
            f"of {height} × {width}, and at their borders it does otherwise (model.borders)."
        )
    changed = config.model_copy(update={"borders": library})
    if library == "transformers" and not isinstance(config.window, int):
        raise WeightsError("transformers cannot hold this model: its model.window would have to be one for all stages.")
    windows = {config.windowing(stage, grid)[0] for stage, grid in enumerate(config.grids)}
    if library == "transformers" and config.version == 1 and windows != {(config.window, config.window)}:
        raise WeightsError(
            f"transformers cannot hold this model: some map of an image of its size is smaller than a window of "
            f"{config.window} tokens, for which it has a table in every stage."
        )
    return changed


def arguments(config: SwinConfig) -> dict[str, Any]:
    """The arguments with which timm makes this model, whatever name it is made by."""
    image_size = config.image_size
    values: dict[str, Any] = {
        "img_size": image_size if isinstance(image_size, int) else list(image_size),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window if isinstance(config.window, int) else [[M, M] for M in config.window],
        "mlp_ratio": config.mlp.ratio,
        "qkv_bias": config.bias,
    }
    if config.version == 2:
        values["pretrained_window_sizes"] = list(config.trained_windows) or [0] * len(config.depths)
    return values


def architecture(config: SwinConfig) -> str:
    """A name of timm's, whose arguments are then others."""
    return "swin_tiny_patch4_window7_224" if config.version == 1 else "swinv2_tiny_window8_256"


def write_config(config: SwinConfig, class_names: Sequence[str]) -> dict[str, Any]:
    """config.json as transformers has it."""
    kind = "swin" if config.version == 1 else "swinv2"
    name = f"Swin{'v2' * (config.version == 2)}{'ForImageClassification' if class_names else 'Model'}"
    values: dict[str, Any] = {
        "architectures": [name],
        "model_type": kind,
        "image_size": config.image_size if isinstance(config.image_size, int) else list(config.image_size),
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "embed_dim": config.width,
        "hidden_size": config.widths[-1],
        "depths": list(config.depths),
        "num_layers": len(config.depths),
        "num_heads": list(config.heads),
        "window_size": config.window,
        "mlp_ratio": config.mlp.ratio,
        "qkv_bias": config.bias,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "use_absolute_embeddings": False,
        "dtype": "float32",
    }
    if config.version == 2:
        values["pretrained_window_sizes"] = list(config.trained_windows) or [0] * len(config.depths)
    if class_names:
        values["id2label"] = {str(number): name for number, name in enumerate(class_names)}
        values["label2id"] = {name: number for number, name in enumerate(class_names)}
        values["problem_type"] = "single_label_classification"
    return values
