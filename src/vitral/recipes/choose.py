"""A recipe for pictures that nobody has described: chosen by their size, their number and whether they have colours.

Every rule says itself, so that a person can disagree: `vitral show FOLDER > mine.toml` writes what was chosen. What was
tried to find them is in docs/decisions/0009-the-quick-recipes.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from vitral.data.config import AnyResize, AsItIs, Augment, Scale
from vitral.data.decode import describe
from vitral.data.sources import Index, open_source
from vitral.errors import DataError
from vitral.plugin import Code
from vitral.recipe import Recipe
from vitral.recipes.quick import quick_model, quick_train
from vitral.training.config import Init, parse_budget

if TYPE_CHECKING:
    from vitral.weights.pretrained import Pretrained

SIZE_SAMPLE = 100  # pictures whose size is read
PHOTOGRAPH = 56  # pixels: from here on a picture counts as a photograph, and is made smaller
LARGE = 1_000  # pixels: from here on decoding is what packing waits for
SQUARE = 1.5  # times as long as high, or high as long: up to here a square will do
LONGEST = 3  # times
SHORT = 120  # seconds


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, and why it is as it is: a sentence each."""

    recipe: Recipe
    why: tuple[str, ...]
    index: Index = field(repr=False)  # the pictures
    start: "Pretrained | None" = None  # the weights that it starts from


def choose(source: str, settings: Mapping[str, Any] | None = None, code: Code = ()) -> RecipeChoice:
    """Look at the pictures of a source, and choose what `settings` leave open. `code`: files of Python that may be run,
    where init.weights is of a model in one.

    >>> choose("digits", {"train.budget": "20s"}).recipe.model.image_size
    8
    """
    settings = {"data.source": source, **(settings or {})}
    about_data = {name: value for name, value in settings.items() if name.startswith("data.")}
    index = open_source(Recipe().changed(about_data).data)
    count = len(index.of("train"))
    if not len(index.of("test")):
        raise DataError(f"{source} has too few pictures: none is left to test with. Give each class at least three.")
    if settings.get("init.weights", "none") != "none":
        return _from_weights(settings, index, code)
    height, width = _shape(index)
    size, patch = _sizes(height, width)
    augment, how = _augment(index.channels, min(height, width))
    budget = "30s" if count < 100 else "2m" if count < 1_000 else "5m" if count < 10_000 else "10m"
    length = {name: value for name, value in settings.items() if name in ("train.budget", "train.epochs")}
    train = Recipe().changed({"train.budget": budget}).changed(length).train
    batch = _batch_size(count, parse_budget(train.budget)[0] if min(height, width) >= PHOTOGRAPH else 0.0)
    recipe = Recipe(model=quick_model(size, patch), train=quick_train(budget, batch, baseline=True)).changed(
        {"data.augment": augment.write()}
    )
    pixels = f"{size} × {size}" if isinstance(size, int) else f"{size[1]} × {size[0]}"
    # Each sentence with the settings that it explains: it is left out where a person has decided one of them.
    reasons: dict[str, str | tuple[str, ...]] = {
        f"Pictures of about {width} × {height} pixels: looked at in {pixels}, patches of {patch}.": "model.",
        how: "data.augment",
        f"{count:,} pictures to learn from: {batch} a step.": "train.batch_size",
        f"For so many, {budget} (train.budget).": ("train.budget", "train.epochs"),
    }
    if min(height, width) >= LARGE:
        reasons[
            "They are decoded in full, so that other libraries see the same pixels; data.jpeg=scaled packs large JPEG "
            "files several times as fast, and then they do not."
        ] = "data.jpeg"
    if min(height, width) >= PHOTOGRAPH and count < FEW:
        for backbone in _at_hand():
            reasons[
                f"The weights {backbone} are here: with init.weights={backbone} only a new head learns, which on 225 "
                f"photographs of food had 96 % right and not 75. `vitral probe {backbone} {source}` tells in a minute."
            ] = "init.weights"
    why = tuple(reason for reason, about in reasons.items() if not any(name.startswith(about) for name in settings))
    return RecipeChoice(recipe.changed(settings), (*why, *recipe.dropped(settings)), index)


FEW, SOME = 2_000, 20_000  # pictures to learn from


def _at_hand() -> list[str]:
    """A backbone in the data directory, if there is one: the smallest."""
    from vitral.data.sources.named import data_directory

    folder = data_directory("auto") / "weights"
    files = sorted(folder.glob("vit*/model.safetensors"), key=lambda path: path.stat().st_size)
    return [path.parent.name for path in files[:1]]


def _from_weights(settings: Mapping[str, Any], index: Index, code: Code) -> RecipeChoice:
    """A recipe that starts from init.weights: their model, which sees pictures as it did before."""
    from vitral.weights.pretrained import adapt, load_pretrained

    weights, count = str(settings["init.weights"]), len(index.of("train"))
    some_learn = "init.freeze" in settings or "init.thaw" in settings  # which is not what a probe is
    mode = settings.get(
        "init.mode", "probe" if count < FEW and not some_learn else "gentle" if count < SOME else "full"
    )
    init = {name.removeprefix("init."): value for name, value in settings.items() if name.startswith("init.")}
    Init.read({**init, "mode": mode}, "init.")
    size = _pair(settings.get("model.image_size"))
    pretrained = load_pretrained(weights, code=code)
    # As its makers prepared pictures; and if these are the classes that it knows, with the head that it has.
    pretrained = adapt(
        pretrained,
        image_size=size or pretrained.preprocess.image_size,
        channels=settings.get("model.channels"),
        classes=index.class_names,
    )
    preprocess, config = pretrained.preprocess, pretrained.model.config
    batch = 2 ** int(np.log2(np.clip(count // 4, 2, 64)))
    choices: dict[str, Any] = {
        "model": config.write() | {"classes": 0},
        "data.resize": _resize(preprocess.resize).write(),
        "data.interpolation": preprocess.interpolation,
        "data.background": preprocess.background,
        "data.jpeg": preprocess.jpeg,
        "data.mean": preprocess.mean,
        "data.std": preprocess.std,
        "init.weights": weights,
        "init.mode": mode,
        "train.baseline": True,
        "train.batch_size": batch,
    }
    recipe = Recipe().changed(choices | MODES[mode])
    learns = {"probe": "only the head learns", "gentle": "the first blocks learn least", "full": "all of it learns"}
    reasons: dict[str, str | tuple[str, ...]] = {
        f"The model is that of {weights}: {config.words}.": "model.",
        f"{count:,} pictures to learn from: {mode}, {learns.get(mode)} (init.mode).": "init.mode",
        f"{batch} pictures a step, {recipe.train.epochs} epochs.": ("train.batch_size", "train.epochs", "train.budget"),
    }
    why = tuple(reason for reason, about in reasons.items() if not any(name.startswith(about) for name in settings))
    return RecipeChoice(
        recipe.changed(settings), (*why, *recipe.dropped(settings), *pretrained.notes), index, pretrained
    )


def _resize(theirs: AnyResize) -> AnyResize:
    """The resize of the weights, if every library can do the same; else, with the same share, `stretch`, which is equal
    for square pictures. docs/decisions/0016-what-leaves-arrives.md says why."""
    if isinstance(theirs, AsItIs) or theirs.kind == "stretch":
        return theirs
    return Scale(kind="stretch", share=theirs.share)


def _pair(size: Any) -> int | tuple[int, int] | None:
    """model.image_size as a model has it: TOML has a list where it is a pair."""
    return tuple(size) if isinstance(size, list) else size


# What goes with each way to start from weights. The scores of probe and gentle are in food_features.py and
# food_finetune.py; full was not measured.
MODES: dict[str, dict[str, Any]] = {
    "probe": {
        "train.epochs": 60,
        "train.optimizer": {"kind": "adamw", "learning_rate": 0.003, "weight_decay": 0.05},
    },
    "gentle": {
        "train.epochs": 10,
        "train.optimizer": {"kind": "adamw", "learning_rate": 0.0005, "weight_decay": 0.05},
        "train.warmup": 0.1,
        "train.clip": 1.0,
        "train.label_smoothing": 0.1,
        "data.augment.crop": 0.5,
        "data.augment.flip": "random",
    },
    "full": {
        "train.epochs": 10,
        "train.optimizer": {"kind": "adamw", "learning_rate": 0.0001, "weight_decay": 0.05},
        "train.warmup": 0.1,
        "train.clip": 1.0,
        "train.label_smoothing": 0.1,
        "data.augment.crop": 0.5,
        "data.augment.flip": "random",
    },
}


def _shape(index: Index) -> tuple[int, int]:
    """Median height and width of a sample of the pictures."""
    numbers = np.unique(np.linspace(0, len(index.samples) - 1, SIZE_SAMPLE).astype(int))
    shapes = []
    for number in numbers:
        try:
            facts = describe(index.storage.read(int(number)), index.samples[number])
        except DataError:
            continue  # the packing reports it
        on_its_side = facts.orientation > 4  # by EXIF
        shapes.append((facts.width, facts.height) if on_its_side else (facts.height, facts.width))
    if not shapes:
        raise DataError(f"None of {len(numbers)} pictures of {index.source} that were looked at can be read.")
    heights, widths = zip(*shapes, strict=True)
    return int(median(heights)), int(median(widths))


def _batch_size(count: int, seconds: float) -> int:
    """Pictures a step: few of few; and fewer in a short time (0: any), where more steps teach more than larger ones.

    >>> _batch_size(1_819, 0), _batch_size(1_819, 60), _batch_size(12, 60)
    (128, 64, 2)
    """
    return 2 ** int(np.log2(np.clip(count // 4, 2, 64 if 0 < seconds <= SHORT else 128)))


def _sizes(height: int, width: int) -> tuple[int | tuple[int, int], int]:
    """model.image_size and model.patch_size for pictures of about this height and width."""
    short = min(height, width)
    size, patch = (64, 8) if short >= PHOTOGRAPH else (short, 4) if short >= 24 else (short, 2)
    if max(height, width) <= SQUARE * short:
        return _whole(size, patch), patch
    tall, wide = (size * min(side / short, LONGEST) for side in (height, width))
    return (_whole(tall, patch), _whole(wide, patch)), patch


def _whole(side: float, patch: int) -> int:
    """The nearest number of whole patches, at least four."""
    return max(4, round(side / patch)) * patch


def _augment(channels: int, short: int) -> tuple[Augment, str]:
    """How to augment pictures of so many channels and so short a side; and a sentence on that."""
    if short >= PHOTOGRAPH:
        jitter = Augment(crop=0.35, flip="random", brightness=0.3, contrast=0.3, saturation=0.3)
        return jitter, "Photographs: a part of each is looked at, another each time, mirrored, brighter or darker."
    if channels == 3:
        return (
            Augment(pad=2, flip="alternating", outside="mirror"),
            "Small and in colour: moved a little, and mirrored.",
        )
    return (
        Augment(rotate=10, zoom=0.1, shear=8, shift=0.08),
        "Small, not in colour: turned and moved a little, not mirrored, for they may be signs.",
    )
