"""A recipe to learn without labels from pictures that nobody has described: `vitral pretrain FOLDER`.

The settings are those of the papers, for a model as small as that of `choose`. Which of them are best for how many
pictures and how much time has not been measured yet: docs/decisions/0024-without-labels.md.
"""

from collections.abc import Mapping
from typing import Any

from vitral.data.config import Augment
from vitral.data.sources import Index, open_source
from vitral.errors import DataError, RecipeError
from vitral.plugin import Code, is_plugin
from vitral.progress import Tell, silent
from vitral.recipe import Recipe
from vitral.recipes.choose import (
    PHOTOGRAPH,
    RecipeChoice,
    as_pair,
    augment_for,
    batch_size_for,
    budget_for,
    median_shape,
    resize_like,
    sizes_for,
)
from vitral.recipes.quick import quick_model
from vitral.training.config import WITHOUT_LABELS, AdamW, Train

LEAST = 20  # pictures to learn from: of fewer, what is held out to validate tells nothing
VALIDATION = 0.1  # share, where the source has no validation pictures

# How far a trained model moves at a step: it has something to lose.
GOES_ON = 1e-4


def choose_pretraining(
    source: str, settings: Mapping[str, Any] | None = None, code: Code = (), tell: Tell = silent
) -> RecipeChoice:
    """Look at the pictures of a source, and choose what `settings` leave open; `code`: files of Python that may be run,
    where init.weights is of a model in one. `tell` hears how far a source is opened that takes long.

    >>> choice = choose_pretraining("digits", {"train.objective": "lejepa"})
    >>> choice.recipe.model.head.kind, choice.recipe.data.augment.crop
    ('none', 0.4)
    """
    settings = {"data.source": source, **(settings or {})}
    kind = _objective(settings)
    index, of_data = _pictures(settings, tell)
    count = len(index.of("train"))
    if count < LEAST:
        pictures = "1 picture" if count == 1 else f"{count} pictures"
        raise DataError(
            f"{source} leaves {pictures} to learn from, and what tells pictures apart cannot be learnt from so few: "
            f"give at least {LEAST}, better some thousand."
        )
    height, width = median_shape(index)
    short, length = min(height, width), {name: settings[name] for name in LENGTH if name in settings}
    train = Train(
        budget=budget_for(count),
        batch_size=batch_size_for(count, 0.0),
        optimizer=AdamW(learning_rate=1e-3, betas=(0.9, 0.95), weight_decay=0.05),
        warmup=0.1,
        clip=3.0 if kind == "dino" else 1.0,
    )
    augment, how = (
        augment_for(index.channels, short) if kind == "mae" or is_plugin(kind) else _different_views(index, short)
    )
    chosen: dict[str, Any] = {**of_data, "train.objective": kind, "data.augment": augment.write()}
    recipe = Recipe(train=train).changed({**chosen, **length})
    reasons: dict[str, str | tuple[str, ...]] = {how: "data.augment"}
    start = None
    if settings.get("init.weights", "none") == "none":
        size, patch = sizes_for(height, width)
        model = quick_model(size, patch).write() | {"head": "none"}
        recipe = recipe.changed({"model": model})
        pixels = f"{size} × {size}" if isinstance(size, int) else f"{size[1]} × {size[0]}"
        reasons[f"Pictures of about {width} × {height} pixels: looked at in {pixels}, patches of {patch}."] = "model."
    else:
        recipe, start = _from_weights(recipe, settings, code)
        reasons[f"The model is that of {settings['init.weights']}, which goes on learning."] = "model."
    train = recipe.train
    reasons[f"{count:,} pictures to learn from: {train.batch_size} a step."] = "train.batch_size"
    reasons[f"For so many, {train.budget} (train.budget); longer is better."] = LENGTH
    why = tuple(reason for reason, about in reasons.items() if not any(name.startswith(about) for name in settings))
    return RecipeChoice(recipe.changed(settings), (*why, *recipe.dropped(settings)), index, start)


LENGTH = ("train.budget", "train.epochs")


def _objective(settings: Mapping[str, Any]) -> str:
    """The objective that is asked for: mae, unless it is named."""
    asked = settings.get("train.objective", settings.get("train.objective.kind", "mae"))
    kind = str(asked.get("kind", "") if isinstance(asked, Mapping) else asked)
    if kind not in WITHOUT_LABELS and not is_plugin(kind):
        raise RecipeError(
            f"train.objective is {kind}, and here pictures are learnt from without labels: mae, lejepa or dino. "
            "`vitral train` learns from labels."
        )
    return kind


def _pictures(settings: Mapping[str, Any], tell: Tell) -> tuple[Index, dict[str, Any]]:
    """The pictures, some of them to validate, and the settings that make it so."""
    of_data = {name: value for name, value in settings.items() if name.startswith("data.")}
    index = open_source(Recipe().changed(of_data).data, unsorted=True, tell=tell)
    if not len(index.of("validation")) and "data.validation" not in settings:
        of_data["data.validation"] = VALIDATION
        index = open_source(Recipe().changed(of_data).data, unsorted=True)
    return index, of_data


def _different_views(index: Index, short: int) -> tuple[Augment, str]:
    """How views of a picture differ, and a sentence on that."""
    if index.channels == 3:
        return (
            Augment(
                crop=0.4,
                flip="random",
                brightness=0.4,
                contrast=0.4,
                saturation=0.2,
                hue=0.1,
                grayscale=0.2,
                blur=0.1 if short >= PHOTOGRAPH else 0.0,
            ),  # fmt: skip
            "Views are parts of a picture, mirrored, in other colours.",
        )
    return (
        Augment(crop=0.4, rotate=10, brightness=0.2, contrast=0.2),
        "Views are parts of a picture, turned a little, brighter or darker; not mirrored, for they may be signs.",
    )


def _from_weights(recipe: Recipe, settings: Mapping[str, Any], code: Code) -> tuple[Recipe, Any]:
    """The recipe with the model of init.weights, which sees pictures as it did before, and has no head."""
    from vitral.weights.pretrained import adapt, load_pretrained, without_head

    pretrained = without_head(load_pretrained(str(settings["init.weights"]), code=code))
    size = as_pair(settings.get("model.image_size")) or pretrained.preprocess.image_size
    pretrained = adapt(pretrained, image_size=size, channels=settings.get("model.channels"))
    preprocess = pretrained.preprocess
    choices: dict[str, Any] = {
        "model": pretrained.model.config.write(),
        "data.resize": resize_like(preprocess.resize).write(),
        "data.interpolation": preprocess.interpolation,
        "data.background": preprocess.background,
        "data.jpeg": preprocess.jpeg,
        "data.profile": preprocess.profile,
        "data.mean": preprocess.mean,
        "data.std": preprocess.std,
        "init.weights": settings["init.weights"],
    }
    optimizer = recipe.train.optimizer.model_copy(update={"learning_rate": GOES_ON})
    changed = recipe.changed(choices | {"train.optimizer": optimizer.write()})
    return changed, pretrained
