"""What the shapes of tensors do not tell of a model, from the files beside them or from the module in memory."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from vitral.errors import WeightsError
from vitral.model.config import Resample
from vitral.weights.architectures import architecture_named, of_shape
from vitral.weights.names import Tensors, renamed
from vitral.weights.stored import RawWeights
from vitral.weights.timm import TIMM, TIMM_DINOV3

TIMM_GELUS = {"gelu": "gelu", "quick_gelu": "gelu-quick", "gelu_tanh": "gelu-tanh"}
TIMM_POOLS = {"token": "class", "avg": "mean", "map": "map", "": None}
GELUS = {"gelu": "gelu", "gelu_python": "gelu", "quick_gelu": "gelu-quick"}  # of transformers
GELUS |= dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu-tanh")
PROBLEMS = {"multi_label_classification": "labels", "regression": "number"}  # transformers' words, and ours


@dataclass(frozen=True)
class ModelFacts:
    """What the shapes of tensors do not tell. None: not known."""

    heads: int | None = None
    norm_eps: float | None = None
    resample: Resample | None = None
    image_size: tuple[int, int] | None = None
    mlp: str | None = None
    pool: str | None = None
    all_tokens: bool | None = None  # whether that is of class token and registers too
    blocks: str | None = None  # pre-norm, or another that ours has not
    norm: str | None = None  # layer or rms, where no tensor tells: where norms have no bias
    rotary: bool | None = None  # whether queries and keys are turned as in DINOv3
    base: float | None = None  # of the frequencies of that
    placed: bool | None = None  # whether class token and registers have rows in the table of positions
    groups: int | None = None  # of channels in every GroupNorm of a ResNet
    weight_eps: float | None = None  # what is added there to the variance of a filter
    window: int | tuple[int, ...] | None = None  # of a Swin
    trained_windows: tuple[int, ...] | None = None
    class_names: tuple[str, ...] | None = None
    outputs: str | None = None  # labels or number, where they are not one class
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
    # Dinov2's gated MLP does not look at hidden_act, and DINOv3's does. BiT has no MLP.
    act = None if config.get("use_swiglu_ffn") or config.get("model_type") == "bit" else config.get("hidden_act")
    if act is not None and act not in GELUS and not config.get("use_gated_mlp"):
        raise WeightsError(f"config.json asks for {act} as hidden_act, and a ViT here has {', '.join(GELUS)}.")
    return facts_from(
        "config.json",
        heads=config.get("num_attention_heads"),
        norm_eps=config.get("layer_norm_eps"),
        image_size=_size(config.get("image_size")),
        mlp=GELUS.get(act, act) if act else None,
        base=config.get("rope_theta"),
        groups=config.get("num_groups"),
        window=config.get("window_size"),
        trained_windows=_windows(config.get("pretrained_window_sizes")),
        class_names=_names([labels[key] for key in sorted(labels, key=int)]) if labels else None,
        outputs=PROBLEMS.get(str(config.get("problem_type"))),
    )


def _of_timm_config(config: Mapping[str, Any], tensors: Tensors) -> ModelFacts:
    """timm's: the name of an architecture, and the arguments that it was made with, if they are others."""
    row, arguments = architecture_named(str(config.get("architecture", ""))), config.get("model_args") or {}
    # Early versions did not write arguments: tensors that are not of the name say that there were some.
    family = TIMM_DINOV3 if row and row.rotary else TIMM
    own = asdict(row) if row and (arguments or row in of_shape(renamed(tensors, family)[0])) else {}
    act = arguments.get("act_layer")
    size = arguments.get("img_size") or config.get("pretrained_cfg", {}).get("input_size", (None,))[1:]
    pool = arguments.get("global_pool", config.get("global_pool"))
    return facts_from(
        "config.json",
        image_size=_size(size) if size else None,
        pool=_pool(pool, "config.json") or own.get("pool"),
        all_tokens=arguments.get("pool_include_prefix", own.get("prefix")),
        heads=arguments.get("num_heads", own.get("heads")),
        norm_eps=own.get("norm_eps"),
        mlp=TIMM_GELUS.get(act, act) if act else own.get("mlp"),
        blocks=own.get("blocks"),
        norm={"rmsnorm": "rms"}.get(str(arguments.get("norm_layer")), own.get("norm")),
        rotary=(row is not None and row.rotary) if "architecture" in config else None,
        base=arguments.get("rope_temperature"),
        **_of_swin_name(str(config.get("architecture", "")), arguments),
        placed=not arguments["no_embed_class"] if "no_embed_class" in arguments else own.get("placed"),
        class_names=_names(config.get("label_names")),
    )


def _of_swin_name(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's name of a Swin tells, if the arguments do not: swinv2_base_window12to16_192to256."""
    named = re.search(r"_window(\d+)(?:to(\d+))?_", name)
    window, trained = arguments.get("window_size"), arguments.get("pretrained_window_sizes")
    if named and window is None:
        window = int(named[2] or named[1])
    if named and named[2] and trained is None:
        trained = [int(named[1])] * 3 + [int(named[1]) // 2]
    return {"window": _window(window), "trained_windows": _windows(trained)}


def _window(value: Any) -> int | tuple[int, ...] | None:
    """One for all stages, or one for each; of timm two numbers are height and width."""
    if value is None or isinstance(value, int):
        return value
    sides = [(side, side) if isinstance(side, int) else tuple(side) for side in value]
    if len(value) == 2 and isinstance(value[0], int):
        sides = [tuple(value)]
    if any(down != across for down, across in sides):
        raise WeightsError("config.json asks for windows that are no squares, and those of a Swin here are.")
    return int(sides[0][0]) if len(sides) == 1 else tuple(int(down) for down, _ in sides)


def _windows(value: Any) -> tuple[int, ...] | None:
    """The windows that version 2 was trained with first, by stage; None where that is none of its business."""
    return tuple(map(int, value)) if value and any(value) else None


def _pool(word: str | None, who: str) -> str | None:
    """Our word for timm's."""
    if word is None:
        return None
    if word not in TIMM_POOLS:
        raise WeightsError(f"{subject_of(who)} asks for {word} as global_pool, which ours has not.")
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
        pool=_pool(about.get("global_pool"), whence),
        all_tokens=about.get("pool_include_prefix"),
        norm=about.get("norm"),
        groups=about.get("groups", about.get("norm_groups")),
        weight_eps=about.get("weight_eps"),
        window=tuple(window) if isinstance(window := about.get("window_size"), list) else window,
        trained_windows=_windows(about.get("pretrained_window_sizes")),
        class_names=_names(about.get("class_names")),
        outputs=about.get("outputs"),
    )


def _size(value: Any) -> tuple[int, int] | None:
    if value is None or isinstance(value, int):
        return None if value is None else (value, value)
    height, width = value
    return int(height), int(width)


def _names(value: Any) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if value else None


def subject_of(who: str) -> str:
    """A source of facts, at the beginning of a sentence."""
    return who if who.endswith(".json") else who.capitalize()
