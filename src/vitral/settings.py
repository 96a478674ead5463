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


def unknown(name: str, known: list[str], what: str = "setting") -> str:
    """The sentence for a name that does not exist, with the nearest one that does."""
    lower = {one.lower(): one for one in known}
    near = [lower[one] for one in get_close_matches(name.lower(), lower, n=1)]
    near = near or [one for one in known if one.endswith("." + name)][:1]
    hint = f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(known)}."
    return f"There is no {what} {name}. {hint}"


def explain(error: ValidationError, settings: type[BaseModel], prefix: str = "") -> str:
    """The errors of pydantic as sentences, one per setting."""
    known = list(names(settings, prefix))
    sentences: list[str] = []
    wants: dict[tuple[str, str], list[str]] = {}  # (name, value) → what it may be: a union gives several
    for detail in error.errors(include_url=False):
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
                wants.setdefault((name, json.dumps(value, default=str)), []).append(_expectation(detail))
    for (name, value), expectations in wants.items():
        sentences.append(f"{name} is {value}, and should be {' or '.join(dict.fromkeys(expectations))}.")
    return " ".join(sentences)


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
