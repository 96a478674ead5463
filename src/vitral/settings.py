"""What all settings share: frozen, complete, no unknown name, and a sentence instead of a traceback.

A mapping comes in (from Python, TOML or JSON); a frozen object goes out, or a RecipeError that names the setting.
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_serializer, model_validator
from pydantic_core import ErrorDetails

from vitral.errors import RecipeError, VitralError

FORMAT = 1  # of everything stored; see docs/schema.md
LONGEST = 200  # characters of a name or value in a sentence
MOST_DETAILS = 20  # of what is wrong with settings: a file may have a million that do not exist


class Settings(BaseModel):
    """The base of every table of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RecipeError(explain(error, type(self))) from None

    # Without this mark pydantic would call our __init__ for tables inside tables too, and the name in the
    # sentence would lose its first half: "width" instead of "model.width".
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def read(cls, values: Mapping[str, Any], prefix: str = "") -> Self:
        """From a plain mapping, as TOML or JSON gives it. `prefix` is where it stands: "model." for `[model]`."""
        if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
            raise RecipeError(f"{prefix.rstrip('.') or cls.__name__} should be a table of named settings.")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise RecipeError(explain(error, cls, prefix)) from None

    def write(self) -> dict[str, Any]:
        """A plain dict that TOML and JSON can hold, and `read` turns back into an equal object."""
        return self.model_dump(mode="json")


class Part(Settings):
    """A word, or a table with `kind` and settings of its own; the word alone means the table with every default.

    Each part declares `kind`, a Literal of its words.
    """

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        return as_table(value)

    @model_serializer(mode="wrap")
    def _shortest(self, default: Any) -> Any:
        table = default(self)
        kind = table["kind"]
        return kind if self == type(self).read({"kind": kind}) else table


def check_format(version: Any, name: str, error: type[VitralError] = RecipeError) -> None:
    """Refuse the format number of a file that a later Vitral wrote."""
    if not isinstance(version, int) or version < 1:
        raise error(f"{name} has the format {version!r}, and this Vitral reads format {FORMAT}.")
    if version > FORMAT:
        raise error(
            f"{name} has format {version}, and this Vitral reads up to {FORMAT}. "
            "It was made by a later version: upgrade with `pip install --upgrade vitral`."
        )


def as_table(value: Any) -> Any:
    """`"gelu"` means `{kind = "gelu"}`."""
    return {"kind": value} if isinstance(value, str) else value


def names(settings: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted name that `key=value` accepts: `model.width`, `train.optimizer.learning_rate`, …"""
    for name, field in settings.model_fields.items():
        yield prefix + name
        for table in _tables(field.annotation):
            yield from names(table, f"{prefix}{name}.")


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """The tables of settings in an annotation: `Muon | AdamW` has two, `int` has none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _tables(part)


# What a setting is called elsewhere (timm, transformers, Lightning, Keras, tutorials), by the last word of its name.
ELSEWHERE = {
    word: ours
    for ours, words in {
        "data.source": "dataset data_dir data_path data_root train_dir",
        "data.validation": "val_split validation_split val_size valid_pct",
        "data.augment.erase": "reprob random_erasing",
        "data.augment.flip": "hflip horizontal_flip",
        "data.augment.policy": "aa auto_augment autoaugment randaugment",
        "init.weights": "pretrained checkpoint",
        "model.attention.bias": "qkv_bias kqv_bias",
        "model.channels": "in_chans in_channels num_channels",
        "model.classes": "num_classes n_classes num_labels out_d",
        "model.depth": "layers num_layers n_layer num_hidden_layers num_transformer_layers n_blocks",
        "model.heads": "num_heads n_head n_heads num_attention_heads",
        "model.image_size": "img_size input_size resolution imgsz chw",
        "model.mlp.ratio": "mlp_ratio mlp_size mlp_dim intermediate_size",
        "model.patch_size": "patch n_patches num_patches",
        "model.pool": "global_pool pooling",
        "model.positions": "pos_embed pos_embedding position_embedding",
        "model.tokens.registers": "reg_tokens num_registers num_register_tokens",
        "model.width": "dim embed_dim embedding_dim hidden_size hidden_dim hidden_d d_model n_embd",
        "train.accumulate": "grad_accum_steps gradient_accumulation_steps accumulate_grad_batches",
        "train.batch_size": "batch bs batchsize train_batch_size per_device_train_batch_size",
        "train.budget": "time max_time steps max_steps iterations",
        "train.clip": "clip_grad grad_clip max_grad_norm gradient_clip_val",
        "train.ema": "ema_decay model_ema model_ema_decay",
        "train.epochs": "epoch n_epochs num_epochs num_train_epochs max_epochs",
        "train.label_smoothing": "smoothing label_smoothing_factor",
        "train.objective": "loss criterion loss_fn",
        "train.optimizer": "opt optim",
        "train.optimizer.learning_rate": "lr base_lr max_lr",
        "train.optimizer.weight_decay": "wd",
        "train.patience": "early_stopping early_stopping_patience",
        "train.precision": "amp fp16 bf16 mixed_precision dtype",
        "train.regularise.attention_dropout": "attn_drop attn_drop_rate attn_dropout attention_probs_dropout_prob",
        "train.regularise.dropout": "drop drop_rate mlp_dropout hidden_dropout_prob",
        "train.regularise.stochastic_depth": "drop_path drop_path_rate",
        "train.schedule": "sched scheduler lr_scheduler lr_scheduler_type",
        "train.warmup": "warmup_epochs warmup_steps warmup_ratio",
    }.items()
    for word in words.split()
}


def unknown(name: str, known: list[str], what: str = "setting") -> str:
    """The sentence for a name that does not exist, with the one that is meant: of the same last word, of another
    library's word for it, or the nearest.

    >>> unknown("train.lr", ["train.clip", "train.optimizer.learning_rate"])
    'There is no setting train.lr. Did you mean train.optimizer.learning_rate?'
    """
    lower, last = {one.lower(): one for one in known}, name.rpartition(".")[2].lower()
    near = [lower[one] for one in get_close_matches(name[:LONGEST].lower(), lower, n=1)]
    if what == "setting":
        same = [one for key, one in lower.items() if key.endswith("." + last)]
        meant = same if len(same) == 1 else [one for one in (ELSEWHERE.get(last),) if one in known]
        near = meant or [one for one in same if one == f"model.{name}"] or near or same[:1]
    hint = f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(known)}."
    return f"There is no {what} {name}. {hint}"


def explain(error: ValidationError, settings: type[BaseModel], prefix: str = "") -> str:
    """The errors of pydantic as sentences, one per setting."""
    known = list(names(settings, prefix))
    sentences: list[str] = []
    wants: dict[tuple[str, str], list[str]] = {}  # (name, value) → what it may be: a union gives several
    for detail in error.errors(include_url=False)[:MOST_DETAILS]:
        name = _name(detail, known, prefix)
        match detail["type"]:
            case "extra_forbidden" if name in known:  # of another kind of the same part
                sentences.append(f"{name} does not go with the kind that {name.rpartition('.')[0]} has here.")
            case "extra_forbidden":
                sentences.append(unknown(name, known))
            case "missing":
                sentences.append(f"{name} is missing, or has too few numbers.")
            case "value_error":
                sentences.append(str(detail["ctx"]["error"]))
            case _:
                value = detail["input"]["kind"] if detail["type"] == "union_tag_invalid" else detail["input"]
                wants.setdefault((name, _quote(value)), []).append(_expectation(detail))
    for (name, value), expectations in wants.items():
        sentences.append(f"{name} is {value}, and should be {' or '.join(dict.fromkeys(expectations))}.")
    return " ".join(sentences)


def _quote(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _name(detail: ErrorDetails, known: list[str], prefix: str) -> str:
    """The dotted name of what is wrong. A location also holds what cannot be typed, such as the tag of a union."""
    name = prefix
    for word in map(str, detail["loc"]):
        if name + word in known:
            name += word + "."
    last = detail["loc"][-1] if detail["loc"] else ""
    if detail["type"] in ("extra_forbidden", "missing") and isinstance(last, str) and not name.endswith(f"{last}."):
        name += last
    return name.rstrip(".")


def _expectation(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return "a whole number"
        case "float_parsing" | "float_type":
            return "a number"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "string_type":
            return "a word"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a table" if isinstance(detail["input"], str) else "a word or a table"
        case "union_tag_not_found":
            return "a word, or a table with a kind"
        case "tuple_type":
            return "a list"
        case "too_long":
            return f"a list of {context['max_length']} numbers"
        case "greater_than_equal":
            return f"at least {context['ge']}"
        case "greater_than":
            return f"more than {context['gt']}"
        case "less_than_equal":
            return f"at most {context['le']}"
        case "less_than":
            return f"less than {context['lt']}"
        case "literal_error":
            return str(context["expected"]).replace("'", '"')
        case "union_tag_invalid":
            return str(context["expected_tags"]).replace("'", '"').replace(", ", " or ")
        case _:
            return detail["msg"].removeprefix("Input should be ")
