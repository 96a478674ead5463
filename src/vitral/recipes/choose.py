"""A recipe for pictures that nobody has described: chosen by their size, their number and whether they have colours.

Every rule says itself, so that a person can disagree: `vitral show FOLDER > mine.toml` writes what was chosen. What was
tried to find them is in docs/decisions/0009-the-quick-recipes.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from vitral.data.config import AnyResize, AsItIs, Augment, Pad, Scale
from vitral.data.decode import describe
from vitral.data.sources import Index, open_source
from vitral.data.sources.shards import shards_of
from vitral.errors import DataError
from vitral.model.config import ModelConfig
from vitral.plugin import Code
from vitral.progress import Tell, silent
from vitral.recipe import Recipe
from vitral.recipes.quick import QUICK, quick_model, quick_train
from vitral.targets import is_one_class
from vitral.training.config import Init, Train, parse_budget

if TYPE_CHECKING:
    from vitral.data.pack import PackForecast
    from vitral.training.comparison import Candidate, Stopwatch
    from vitral.weights.pretrained import Pretrained

SIZE_SAMPLE = 100  # pictures whose size is read
PHOTOGRAPH = 56  # pixels: from here on a picture counts as a photograph, and is made smaller
LARGE = 1_000  # pixels: from here on decoding is what packing waits for
NEARLY_SQUARE = 1.1  # times: up to here nobody sees that a picture was squeezed
SQUARE = 1.5  # times as long as high, or high as long: up to here a square will do
LONGEST = 3  # times
SHORT = 120  # seconds
MANY = 2_000  # pictures: from here on packing them may take minutes, and is forecast
MOST_OF_DISK = 0.5  # of what is free: a larger pack of shards is not made by itself
WORTH_TELLING = 20  # seconds of it
SEEN_A_SECOND = 300  # pictures that the quick model learns from on two cores, in 64 × 64 pixels: roughly
FEW_PASSES = 5  # through the pictures: for fewer, weak crops teach sooner (docs/decisions/0020-by-itself.md)


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, and why it is as it is: a sentence each."""

    recipe: Recipe
    why: tuple[str, ...]
    index: Index = field(repr=False)  # the pictures
    start: "Pretrained | None" = None  # the weights that it starts from
    compared_with: str = "none"  # weights with which other ways are worth a trial: see `candidates`
    budget: str = "none"  # the time that these share


def choose(
    source: str, settings: Mapping[str, Any] | None = None, code: Code = (), tell: Tell = silent
) -> RecipeChoice:
    """Look at the pictures of a source, and choose what `settings` leave open. `code`: files of Python that may be run,
    where init.weights is of a model in one. `tell` hears how far a source is opened that takes long.

    >>> choose("digits", {"train.budget": "20s"}).recipe.model.image_size
    8
    """
    settings = {"data.source": source, **(settings or {})}
    about_data = {name: value for name, value in settings.items() if name.startswith("data.")}
    index = open_source(Recipe().changed(about_data).data, tell=tell)
    count = len(index.of("train"))
    if not len(index.of("test")):
        raise DataError(f"{source} has too few pictures: none is left to test with. Give each class at least three.")
    budget, packing = budget_for(count), None
    length = {name: value for name, value in settings.items() if name in ("train.budget", "train.epochs")}
    asked = Recipe().changed({"train.budget": budget}).changed(length).train
    compares = is_open(settings) and parse_budget(asked.budget)[0] > 0
    if (weights := settings.get("init.weights", "none")) != "none":
        compared_with = weights if compares else "none"
        return replace(_from_weights(settings, index, code), compared_with=compared_with, budget=asked.budget)
    height, width = median_shape(index)
    is_photograph = min(height, width) >= PHOTOGRAPH
    size, patch = sizes_for(height, width)
    model = QUICK.get(str(settings.get("model.kind")), quick_model)(size, patch)
    if len(index.samples) >= MANY or min(height, width) >= LARGE:
        from vitral.training.budget import MOST_BEFORE, propose

        packing = _packing(Recipe(model=model).changed(about_data | {"data.source": source}), index)
        if packing.seconds > MOST_BEFORE * parse_budget(budget)[0]:
            budget = propose(packing.seconds / MOST_BEFORE)
    train = Recipe().changed({"train.budget": budget}).changed(length).train
    shards, how_read = _reading(Recipe(model=model).changed(about_data), index, parse_budget(train.budget)[0])
    batch = batch_size_for(count, parse_budget(train.budget)[0] if is_photograph else 0.0)
    passes = passes_of(train, batch, count) if count >= MANY else math.inf
    augment, how = augment_for(index.channels, min(height, width), passes)
    recipe = Recipe(model=model, train=quick_train(budget, batch, baseline=True, kind=model.kind)).changed(
        {"data.augment": augment.write(), "data.shards": shards}
    )
    pixels = f"{size} × {size}" if isinstance(size, int) else f"{size[1]} × {size[0]}"
    # Each sentence with the settings that it explains: it is left out where a person has decided one of them.
    reasons: dict[str, str | tuple[str, ...]] = {
        f"Pictures of about {width} × {height} pixels: looked at in {pixels}, patches of {patch}.": "model.",
        how: "data.augment",
        f"{count:,} pictures to learn from: {batch} a step.": "train.batch_size",
        f"For so many, {budget} (train.budget).": ("train.budget", "train.epochs"),
    }
    if any(target.kind == "number" for target in index.targets):
        off = {"crop": 0, "flip": "none", "rotate": 0, "zoom": 0, "shear": 0, "shift": 0, "pad": 0}
        words = " ".join(f"data.augment.{name}={none}" for name, none in off.items() if getattr(augment, name) != none)
        reasons[f"If the number says where, how large or how turned something is, leave that out: {words}"] = (
            "data.augment"
        )
    if max(height, width) > NEARLY_SQUARE * min(height, width):
        reasons["All of each picture is seen, squeezed to that shape; data.resize has other ways."] = "data.resize"
    if min(height, width) >= LARGE:
        reasons[
            "They are decoded in full, so that other libraries see the same pixels; data.jpeg=scaled packs large JPEG "
            "files several times as fast, and then they do not."
        ] = "data.jpeg"
    if how_read:
        reasons[how_read] = "data.shards"
    if packing and packing.seconds > WORTH_TELLING:
        reasons[packing.words] = ()
    weights = _at_hand() if is_photograph else "none"
    if is_photograph and (weights == "none" or not compares):
        reasons[_what_weights_bring(weights, source)] = "init.weights"
    why = tuple(reason for reason, about in reasons.items() if not any(name.startswith(about) for name in settings))
    sentences, chosen = (*why, *recipe.dropped(settings)), recipe.changed(settings)
    if in_shards := shards_of(index):
        in_shards.streams = chosen.data.shards == "stream"
    return RecipeChoice(
        chosen,
        sentences,
        index,
        compared_with=weights if compares else "none",
        budget=train.budget,
    )


def _reading(recipe: Recipe, index: Index, budget: float) -> tuple[str, str]:
    """Whether pictures of shards are decoded as they are asked for, or packed once; and why. `budget`: in seconds."""
    from vitral.training.budget import MOST_BEFORE

    if (shards := shards_of(index)) is None:
        return "stream", ""
    before, shards.streams = shards.streams, False
    try:
        packing = _packing(recipe, index)
    except DataError as error:  # no disk can hold it
        return "stream", f"They are decoded as training asks for them. {error}"
    finally:
        shards.streams = before
    fits = packing.bytes <= packing.free * MOST_OF_DISK
    if fits and packing.seconds <= MOST_BEFORE * budget:
        return "pack", f"They are packed, so that they are not decoded anew in every epoch. {packing.words}"
    return "stream", f"They are decoded as training asks for them, in every epoch. {packing.words}"


def _packing(recipe: Recipe, index: Index) -> "PackForecast":
    """What packing all pictures takes."""
    from vitral.data.pack import forecast_packing
    from vitral.data.sources.named import data_directory
    from vitral.training.preparation import complete, preprocess_of

    preprocess = preprocess_of(recipe, complete(recipe.model, index))
    return forecast_packing(index, preprocess, data_directory(recipe.data.directory))


def budget_for(count: int) -> str:
    """A time for so many pictures to learn from."""
    return "30s" if count < 100 else "2m" if count < 1_000 else "5m" if count < 10_000 else "10m"


# What a person may set and have ways compared: all else decides on the way, or would suit one of them only.
OPEN = ("data.", "init.weights", "train.budget", "train.seed", "train.baseline", "train.test_curve", "train.device",
        "train.precision", "train.compile")  # fmt: skip
DECIDES = ("data.augment", "data.sampling")


def is_open(settings: Mapping[str, Any]) -> bool:
    """Whether the way to learn is left open by what a person has set.

    >>> is_open({"train.budget": "5m"}), is_open({"init.mode": "probe"}), is_open({"init.weights": "none"})
    (True, False, False)
    """
    decided = settings.get("init.weights", "") == "none"
    return not decided and all(name.startswith(OPEN) and not name.startswith(DECIDES) for name in settings)


def candidates(
    choice: RecipeChoice, settings: Mapping[str, Any], code: Code = (), watch: "Stopwatch | None" = None
) -> "tuple[Candidate, ...]":
    """The ways that are worth a trial, the cheapest first, where a choice has weights to compare with."""
    from vitral.training.comparison import FROM_NOTHING, GENTLE, PROBE, Candidate, Stopwatch

    source, index = choice.recipe.data.source, choice.index
    count = len(index.of("train"))
    # A head needs no more time than it takes to look at the pictures.
    probe = {name: value for name, value in settings.items() if name != "train.budget"}
    probe |= {"init.weights": choice.compared_with, "init.mode": "probe"}
    head = _from_weights({"data.source": source, **probe}, index, code)
    assert head.start is not None
    each, time = (watch or Stopwatch()).seconds_a_picture(head.start), choice.budget
    if "train.budget" not in settings and count < FEW:
        time = _enough(time, each * count)
    from_nothing = {**settings, "train.budget": time, "init.weights": "none"}
    nothing = choice if choice.start is None and time == choice.budget else choose(source, from_nothing, code)
    fits = _in_time(head.recipe.model, head.recipe.train.batch_size, each, parse_budget(time)[0], count)
    gentle = {**fits, **settings, "train.budget": time, "init.weights": choice.compared_with, "init.mode": "gentle"}
    whole = _from_weights({"data.source": source, **gentle}, index, code)
    return (
        Candidate(PROBE, head.recipe, probe, head.start, head.why),
        Candidate(FROM_NOTHING, nothing.recipe, from_nothing, None, nothing.why),
        Candidate(GENTLE, whole.recipe, gentle, whole.start, whole.why),
    )


def _enough(time: str, looking: float) -> str:
    """The time, or a longer one where looking at few pictures takes most of it: on a slow or busy machine.

    >>> _enough("2m", looking=20.0), _enough("2m", looking=90.0)
    ('2m', '5m')
    """
    from vitral.training.budget import propose

    return time if looking < 0.4 * parse_budget(time)[0] else propose(looking / 0.6)


def _in_time(config: ModelConfig, batch: int, each: float, seconds: float, count: int) -> dict[str, Any]:
    """Settings by which all of a model learns in so many seconds, where it looks at a picture in `each`: smaller
    pictures where it would see all of them a few times only, fewer a step where steps would be few."""
    sees, settings = seconds / (LEARNS * each) if each else math.inf, dict[str, Any]()
    if sees < ENOUGH_EPOCHS * count and min(config.height_width) >= 2 * LEAST_SIDE:
        height, width = (side // 2 // config.stride * config.stride for side in config.height_width)
        settings["model.image_size"] = height if height == width else [height, width]
        sees *= 4
    if sees / batch < ENOUGH_STEPS:
        settings["train.batch_size"] = min(batch, max(16, 2 ** int(math.log2(max(1.0, sees / ENOUGH_STEPS)))))
    return settings


def _what_weights_bring(weights: str, source: str) -> str:
    """A sentence for who trains photographs from nothing; `weights`: those that are here."""
    brought = "on 225 photographs of food that had 96 % right and not 75."
    if weights != "none":
        return (
            f"The weights {weights} are here: with init.weights={weights} only a new head learns, {brought} "
            f"`vitral probe {weights} {source}` tells in a minute."
        )
    return (
        "Weights of others are not here. With `vitral fetch vit_tiny_patch16_224` (23 MB) the same command also tries "
        f"a new head on them; {brought}"
    )


FEW, SOME = 2_000, 20_000  # pictures to learn from
LEARNS = 3.3  # times as long as looking at a picture
ENOUGH_EPOCHS, ENOUGH_STEPS = 4, 200  # that all of a model should learn: docs/decisions/0020-by-itself.md
LEAST_SIDE = 96  # pixels, of pictures that are made smaller for that


def _at_hand() -> str:
    """A backbone in the data directory, the smallest; "none" where there is none."""
    from vitral.data.sources.named import data_directory

    folder = data_directory("auto") / "weights"
    files = sorted(folder.glob("vit*/model.safetensors"), key=lambda path: path.stat().st_size)
    return files[0].parent.name if files else "none"


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
    size = as_pair(settings.get("model.image_size"))
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
        "data.resize": resize_like(preprocess.resize).write(),
        "data.interpolation": preprocess.interpolation,
        "data.background": preprocess.background,
        "data.jpeg": preprocess.jpeg,
        "data.profile": preprocess.profile,
        "data.mean": preprocess.mean,
        "data.std": preprocess.std,
        "init.weights": weights,
        "init.mode": mode,
        "train.baseline": True,
        "train.batch_size": batch,
    }
    recipe, best = Recipe().changed(choices | MODES[mode]), False
    if mode == "probe" and not is_one_class(index.targets) and len(index.of("validation")):
        recipe, best = recipe.changed({"train.choose": "loss"}), True  # docs/decisions/0021-targets.md
    learns = {
        "probe": "only the head learns",
        "lora": "the head learns, and thin matrices beside those of the blocks",
        "gentle": "the first blocks learn least",
        "full": "all of it learns",
    }
    reasons: dict[str, str | tuple[str, ...]] = {
        f"The model is that of {weights}: {config.words}.": "model.",
        f"{count:,} pictures to learn from: {mode}, {learns.get(mode)} (init.mode).": "init.mode",
        f"{batch} pictures a step, {recipe.train.epochs} epochs.": ("train.batch_size", "train.epochs", "train.budget"),
    }
    if best:
        reasons["Of its epochs the one with the least validation loss is the result."] = "train.choose"
    why = tuple(reason for reason, about in reasons.items() if not any(name.startswith(about) for name in settings))
    return RecipeChoice(
        recipe.changed(settings), (*why, *recipe.dropped(settings), *pretrained.notes), index, pretrained
    )


def resize_like(theirs: AnyResize) -> AnyResize:
    """The resize of the weights, if every library can do the same; else, with the same share, `stretch`, which is equal
    for square pictures. docs/decisions/0016-what-leaves-arrives.md says why."""
    if isinstance(theirs, AsItIs | Pad) or theirs.kind == "stretch":
        return theirs
    return Scale(kind="stretch", share=theirs.share)


def as_pair(size: Any) -> int | tuple[int, int] | None:
    """model.image_size as a model has it: TOML has a list where it is a pair."""
    return tuple(size) if isinstance(size, list) else size


# What goes with each way to start from weights. The scores of probe and gentle are in food_features.py and
# food_finetune.py; full was not measured.
MODES: dict[str, dict[str, Any]] = {
    "probe": {
        "train.epochs": 60,
        "train.optimizer": {"kind": "adamw", "learning_rate": 0.003, "weight_decay": 0.05},
    },
    "lora": {
        "train.epochs": 10,
        "train.optimizer": {"kind": "adamw", "learning_rate": 0.001, "weight_decay": 0.05},
        "train.warmup": 0.1,
        "train.clip": 1.0,
        "train.label_smoothing": 0.1,
        "data.augment.crop": 0.5,
        "data.augment.flip": "random",
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


def median_shape(index: Index) -> tuple[int, int]:
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


def batch_size_for(count: int, seconds: float) -> int:
    """Pictures a step: few of few; and fewer in a short time (0: any), where more steps teach more than larger ones.

    >>> batch_size_for(1_819, 0), batch_size_for(1_819, 60), batch_size_for(12, 60)
    (128, 64, 2)
    """
    return 2 ** int(np.log2(np.clip(count // 4, 2, 64 if 0 < seconds <= SHORT else 128)))


def sizes_for(height: int, width: int) -> tuple[int | tuple[int, int], int]:
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


def passes_of(train: Train, batch: int, count: int) -> float:
    """How often each of so many pictures is going to be seen, roughly.

    >>> passes_of(Train(budget="10m"), 128, 90_000), passes_of(Train(budget="500steps"), 128, 32_000)
    (2.0, 2.0)
    """
    seconds, steps = parse_budget(train.budget)
    return (seconds * SEEN_A_SECOND or steps * batch) / count or float(train.epochs)


def augment_for(channels: int, short: int, passes: float = math.inf) -> tuple[Augment, str]:
    """How to augment pictures of so many channels and so short a side, each of which is seen so often; and a sentence
    on that."""
    if short >= PHOTOGRAPH and passes < FEW_PASSES:
        sentence = "Photographs, of which each is seen only a few times: most of it is looked at, mirrored."
        return Augment(crop=0.6, flip="random"), sentence
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
