"""The recipe of a training: model + data + init + teacher + train, and what others report of it. Frozen, validated,
TOML both ways; no torch.

A recipe in Python takes its settings from here: `from vitral.recipe import Recipe, ViTConfig, Data, Augment, Train,
Muon`.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, StrictInt, model_validator

from vitral.data.config import AsItIs, Augment, Data, Pad, Policy, RandAugment, Resize, Scale
from vitral.errors import RecipeError
from vitral.files import path_of
from vitral.model.config import (
    Attend,
    Blocks,
    Head,
    Mlp,
    ModelConfig,
    Pool,
    Positions,
    Regularise,
    Stem,
    Tokens,
    ViTConfig,
)
from vitral.model.kinds import AnyModelConfig
from vitral.plugin import is_plugin
from vitral.settings import FORMAT, Part, Settings, as_table, check_format, names, unknown
from vitral.training.config import (
    SGD,
    Adam,
    AdamW,
    Fixed,
    Init,
    Muon,
    Rising,
    Schedule,
    Teacher,
    Train,
    parse_budget,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AsItIs",
    "Attend",
    "Augment",
    "Blocks",
    "Data",
    "Fixed",
    "Head",
    "Init",
    "Mlp",
    "ModelConfig",
    "Muon",
    "Pad",
    "Policy",
    "Pool",
    "Positions",
    "RandAugment",
    "Recipe",
    "Regularise",
    "Reported",
    "Resize",
    "Rising",
    "Scale",
    "Schedule",
    "Stem",
    "Teacher",
    "Tokens",
    "Train",
    "ViTConfig",
    "parse_budget",
    "parse_setting",
]


Points = tuple[tuple[Annotated[StrictInt, Field(ge=1)], float], ...]  # (epoch, value)


class Reported(Settings):
    """The table `[reported]` of a recipe: what somebody else tells of such a training, drawn beside our own curves. It
    changes nothing in the training.

    >>> Reported(who="Pulfer's text", test_accuracy=((5, 0.7885),)).test_accuracy[-1]
    (5, 0.7885)
    """

    who: str = Field(default="none", description="whose numbers these are, in a few words")
    train_loss: Points = Field(default=(), description="[epoch, value] as often as wanted: [[1, 2.11], [2, 1.84]]")
    test_loss: Points = Field(default=(), description="the same, of test pictures")
    test_accuracy: Points = Field(default=(), description="the same, as shares from 0 to 1")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("train_loss", "test_loss", "test_accuracy"):
            epochs = [epoch for epoch, _ in getattr(self, name)]
            if epochs and self.who.strip() in ("", "none"):
                raise ValueError(f"reported.{name} is there, and reported.who is not: say whose numbers these are.")
            if epochs != sorted(set(epochs)):
                raise ValueError(f"reported.{name} has the epochs {epochs}: each should come after the one before.")
        for epoch, share in self.test_accuracy:
            if not 0 <= share <= 1:
                raise ValueError(
                    f"reported.test_accuracy is {share:g} at epoch {epoch}, and should be a share from 0 to 1: 59.9 % "
                    "is 0.599."
                )
        return self


class Recipe(Settings):
    """All that a training needs to know.

    >>> recipe = Recipe(model=ViTConfig(image_size=8, patch_size=2), data=Data(source="digits"))
    >>> recipe.changed({"train.epochs": 3}).train.epochs
    3
    """

    model: AnyModelConfig = ViTConfig()
    data: Data = Data()
    init: Init = Init()
    teacher: Teacher = Teacher()
    train: Train = Train()
    reported: Reported = Field(
        default=Reported(),
        exclude_if=lambda reported: reported == Reported(),  # it came after format 1
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        parse_budget(self.train.budget)
        repeats, batch = self.data.augment.repeats, self.train.batch_size
        if batch % repeats:
            raise ValueError(f"data.augment.repeats is {repeats}, and does not divide train.batch_size, {batch}.")
        if self.train.compile == "yes" and (self.train.patches.kind, self.train.image_size.kind) != ("fixed", "fixed"):
            raise ValueError(
                "train.compile is yes, and train.patches or train.image_size rises: each size would be compiled anew."
            )
        has_teacher, mixes = self.teacher.source != "none", self.data.augment.mixup or self.data.augment.cutmix
        if has_teacher and mixes and (self.teacher.sees == "picture" or self.teacher.source.endswith(".npz")):
            raise ValueError("teacher.sees picture knows nothing of mixed pictures: take mixup and cutmix out.")
        if has_teacher and self.init.mode == "probe":
            raise ValueError("teacher.source and init.mode probe do not go together: a head alone needs no teacher.")
        if self.init.mode == "lora" and self.train.optimizer.kind == "muon":
            raise ValueError(
                "train.optimizer muon is for whole matrices, and with init.mode lora thin ones learn: set "
                "train.optimizer=adamw, adam or sgd."
            )
        blocks = self.model.block_count
        if blocks is not None and self.init.freeze > blocks:
            raise ValueError(f"init.freeze is {self.init.freeze}, and the model has {blocks} blocks.")
        if self.data.sampling == "balanced" and self.train.class_weights == "balanced":
            raise ValueError("data.sampling and train.class_weights are both balanced: one of them is enough.")
        return self

    @property
    def plugins(self) -> tuple[str, ...]:
        """What it names in a user's own Python files, such as mine.py:Mixer."""
        names = (self.model.kind, self.train.objective.kind, self.data.augment.own, self.teacher.source)
        return tuple(name for name in names if is_plugin(name))

    def changed(self, settings: Mapping[str, Any]) -> "Recipe":
        """The same with some settings changed, by their dotted names. Who asks for epochs does not want the budget.

        A part that is named by the kind it has keeps its settings; another kind starts from its defaults.
        """
        values, parts = self.write(), _parts(self)
        if "train.epochs" in settings:
            settings = {"train.budget": "none", **settings}
        settings = {_without_kind(name, value, parts): value for name, value in settings.items()}
        for name in sorted(settings, key=lambda name: name.removesuffix(".kind").count(".")):  # a kind comes first
            _set(values, name, deepcopy(settings[name]))  # a table in it may get more settings
        return Recipe.read(values)

    def dropped(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """A sentence on each part that loses settings in `changed(settings)`, because another kind has others.

        >>> Recipe(train=Train(optimizer=Muon(momentum=0.9))).dropped({"train.optimizer": "adamw"})
        ('train.optimizer is adamw now, and what was set for muon is dropped: momentum=0.9.',)
        """
        after, sentences = _parts(self.changed(settings)), []
        elsewhere = {
            *(name for name, _ in _dotted(settings)),
            *after,
        }  # what was typed, and parts that are told themselves
        for name, part in _parts(self).items():
            now = after.get(name, part)  # a part of a model that is gone is told with the model
            fresh = type(part).model_construct(kind=part.kind)  # with every default
            lost = [
                f"{key}={json.dumps(value, default=lambda inner: inner.write())}"
                for key, value in part
                if value not in (getattr(fresh, key, None), getattr(now, key, None))
                and key != "kind"
                and f"{name}.{key}" not in elsewhere
            ]
            if lost:
                sentences.append(
                    f"{name} is {now.kind} now, and what was set for {part.kind} is dropped: {', '.join(lost)}."
                )
        return tuple(sentences)

    def to_toml(self) -> str:
        """As recipe.toml has it: complete, with a comment on each setting."""
        import tomlkit

        document = tomlkit.document()
        document.add(tomlkit.comment("A recipe: what is trained, on what, and how. Train it: vitral train THIS.toml"))
        document.add("format", tomlkit.item(FORMAT))
        _fill(document, self)
        # What no one sees is spelt out as TOML has it; but for bytes that are no text, which it has no letters for.
        return "".join(
            sign if sign.isprintable() or sign == "\n" or "\ud800" <= sign <= "\udfff" else f"\\U{ord(sign):08x}"
            for sign in tomlkit.dumps(document)
        )

    @classmethod
    def from_toml(cls, text: str, name: str = "The recipe") -> Self:
        """Read a recipe from TOML, such as `to_toml` writes. `name` is what an error calls it."""
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a whole number of thousands of digits
            raise RecipeError(f"{name} is not TOML: {error}.") from None
        is_stored = "format" in values
        check_format(values.pop("format", FORMAT), name)
        if is_stored and isinstance(data := values.setdefault("data", {}), dict):
            data.setdefault("resize", "crop")  # what it was in format 1 before `stretch`, to a file that does not say
        try:
            return cls.read(values)
        except RecipeError as error:
            raise RecipeError(f"{name}: {error}") from None

    def dotted(self) -> dict[str, Any]:
        """All settings by their dotted names.

        >>> Recipe().dotted()["train.batch_size"]
        64
        """
        return {name: value for name, value in _dotted(self.write()) if not isinstance(value, dict)}

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a recipe from a TOML file."""
        try:
            return cls.from_toml(path_of(path, RecipeError).read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path} cannot be read as a recipe ({error}).") from None


def parse_setting(text: str) -> tuple[str, Any]:
    """`train.epochs=5` → ("train.epochs", 5): the value is read as TOML, else it is a string.

    >>> parse_setting("train.optimizer=muon")
    ('train.optimizer', 'muon')
    """
    name, sign, value = text.partition("=")
    if not sign:
        raise RecipeError(f"{text} is not a setting: write name=value, such as train.epochs=5.")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return name.strip(), value


def _parts(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """All that has a kind and settings of its own, by dotted names: the model, and each part."""
    parts = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Part | ModelConfig):
            parts[prefix + name] = value
        if isinstance(value, Settings):
            parts |= _parts(value, f"{prefix}{name}.")
    return parts


def _without_kind(name: str, value: Any, parts: Mapping[str, Any]) -> str:
    """`train.optimizer.kind=muon` means `train.optimizer=muon`. The model is a table, and has no such word."""
    part = name.removesuffix(".kind")
    return part if isinstance(parts.get(part), Part) and isinstance(value, str) else name


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted names of all that is set, tables within tables too, and the values."""
    for name, value in settings.items():
        yield prefix + name, value
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")


SHARED = ("image_size", "channels", "classes")  # settings that every kind of model has


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    """Set a value in nested tables by its dotted name, which must be known."""
    *path, last = name.split(".")
    known = list(names(Recipe))
    table = values
    for word in path:
        if word not in table and name not in known:
            raise RecipeError(unknown(name, known))
        table[word] = as_table(table.get(word, {}))  # a part that stands there as a word gets its settings one by one
        table = table[word]
    if name not in known and not is_plugin(str(table.get("kind", ""))):  # only its own file knows its settings
        raise RecipeError(unknown(name, known))
    before = table.get(last)
    if isinstance(before, dict) and path and before.get("kind") == value:
        return  # the same kind keeps its settings
    if name == "model.kind" and value != before:
        for other in table.keys() - SHARED:
            del table[other]
    table[last] = value


def _fill(table: Any, settings: Settings) -> None:
    """Settings into a TOML table, each with its description behind it."""
    import tomlkit

    fields = type(settings).model_fields
    for name, plain in settings.write().items():
        value = getattr(settings, name)
        if isinstance(value, Settings) and not isinstance(value, Part):
            inner = tomlkit.table()
            _fill(inner, value)
            table.add(name, inner)
            continue
        item = tomlkit.item(plain)
        if isinstance(plain, dict):
            item = tomlkit.inline_table()
            item.update(plain)
        if name in fields and (description := fields[name].description):
            item.comment(description)
        table.add(name, item)
