"""From a recipe to all that the loop needs: pictures opened, model built, everything chosen before the first step."""

import os
import platform
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.data.batches import Batches, class_weights
from vitral.data.pack import Pack, Progress, mean_and_std, packing
from vitral.data.preprocess import Preprocess
from vitral.data.sources import SPLITS, Index, open_source
from vitral.data.sources.named import data_directory
from vitral.errors import RecipeError
from vitral.inference import Outputs, answers
from vitral.model.config import ViTConfig
from vitral.model.stems import Whitened
from vitral.model.vit import ViT
from vitral.recipe import Recipe
from vitral.run import Choices, DataIdentity, Machine, Record, name_of
from vitral.training.config import Init, Rising, parse_budget
from vitral.training.feature_cache import CachedFeatures, cache_features, freeze
from vitral.training.learner import Learner
from vitral.training.objectives.distillation import lesson
from vitral.training.teacher import find_teacher
from vitral.version import __version__
from vitral.weights.pretrained import Pretrained, load_pretrained
from vitral.weights.stored import digest


@dataclass(frozen=True)
class Plan:
    """What is going to happen, ready to run."""

    pack: Pack
    preprocess: Preprocess
    batches: Batches
    validates: bool  # whether there are validation pictures
    learner: Learner
    steps: int  # by epochs or by budget; a budget of time is measured later
    start: str | None = None  # a digest of the weights that it starts from, where these are somebody's
    teacher: str | None = None  # a digest of the teacher, where there is one
    about: Mapping[str, str] = field(default_factory=dict)  # whose weights it starts from, and their licence

    def answers(self, model: ViT, numbers: NDArray[np.int64]) -> Outputs:
        """For pictures of train or validation; those that frozen blocks have looked at are not looked at again."""
        if isinstance(self.batches, CachedFeatures):
            return self.batches.answers(model, numbers)
        return answers(model, self.pack, numbers, self.preprocess)

    def record(self, started_at: datetime, choices: Choices) -> Record:
        """What run.json says at the start."""
        return Record(
            version=__version__,
            state="running",
            started_at=started_at.isoformat(timespec="seconds"),
            machine=Machine(
                system=platform.system(),
                processor=platform.machine(),
                cores=os.cpu_count() or 1,
                python=platform.python_version(),
                torch=torch.__version__,
            ),
            choices=choices,
            start=self.start,
            teacher=self.teacher,
            data=DataIdentity(
                source=self.pack.index.source,
                sha256=self.pack.sha256,
                pictures={split: len(self.pack.of(split)) for split in SPLITS},
            ),
        )


def prepare(
    recipe: Recipe, splits: NDArray[np.str_] | None = None, *, to_train: bool = True
) -> Generator[Progress, None, Plan]:
    """Open the pictures, pack them (and tell how far that is), build the model. No run is begun yet.

    `splits`, (samples,), puts other splits in the place of the source's. A plan that is not to be trained does without
    what takes minutes: what a teacher says, and what frozen blocks make of each picture.
    """
    device = choose_device(recipe.train.device)
    index = open_source(recipe.data)
    index = index if splits is None else replace(index, splits=splits)
    config = complete(recipe.model, index)
    _check_smallest(recipe, config)
    # What may be missing is asked for before the pictures are packed, which may take minutes.
    start = _start(recipe.init, config, index.class_names)
    teacher = find_teacher(recipe.teacher, index.class_names)
    unmeasured = preprocess_of(recipe, config)
    packed = yield from packing(index, unmeasured, data_directory(recipe.data.directory))
    packed.check_classes(packed.of("train"))
    preprocess = _measured(unmeasured, recipe, packed)
    # The caller's random numbers stay as they were.
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        model = ViT(config, recipe.train.regularise)
        _show(model, packed, preprocess)
        if start:
            model.load_state_dict(start.model.state_dict())
        model.to(device)
    batches = Batches(
        packed,
        preprocess,
        recipe.data.augment,
        recipe.train.batch_size,
        recipe.train.seed,
        balanced=recipe.data.sampling == "balanced",
        views=recipe.init.views,
    )
    probe = recipe.init.mode == "probe"
    blocks = config.depth if probe else recipe.init.freeze
    if blocks:
        freeze(model, blocks, trunk=probe)
    held = (yield from cache_features(batches, model, recipe, blocks)) if teacher is None and to_train else None
    taught = (yield from lesson(recipe.teacher, teacher, batches, config.width)) if to_train else None
    weights = class_weights(packed).to(device) if recipe.train.class_weights == "balanced" else None
    steps = parse_budget(recipe.train.budget)[1] or recipe.train.epochs * batches.steps_per_epoch
    return Plan(
        pack=packed,
        preprocess=preprocess,
        batches=held or batches,
        validates=_validates(recipe, packed),
        learner=Learner(model, recipe.train, weights, recipe.init, held.forward if held else None, taught),
        steps=steps,
        start=digest(start.model.state_dict().values()) if start else None,
        about=_about(recipe.init.weights, start) if start else {},
        teacher=teacher.digest if teacher else None,
    )


def _start(init: Init, config: ViTConfig, class_names: tuple[str, ...]) -> Pretrained | None:
    """Weights to start from, if they are somebody's. The recipe's model must be what they are of."""
    if init.weights == "none":
        return None
    if init.weights == "ask":
        raise RecipeError(
            "init.weights is not given. Set it to a file or folder of weights; `vitral ls weights` names some."
        )
    found = load_pretrained(init.weights, classes=class_names, image_size=config.height_width, channels=config.channels)
    ours, theirs = (one.write() | {"image_size": one.height_width} for one in (config, found.model.config))
    if other := [name for name in ours if ours[name] != theirs[name]]:
        name = other[0]
        raise RecipeError(
            f"model.{name} is {ours[name]}, and {init.weights} has {theirs[name]}: the recipe's model must be the one "
            "that the weights are of. `vitral show FOLDER init.weights=…` writes such a recipe."
        )
    return found


def _about(weights: str, start: Pretrained) -> dict[str, str]:
    """What goes on with the weights, wherever they are taken: where they began, and their licence."""
    origin = weights if weights.startswith("hf:") else name_of(weights)
    about = {"origin": start.about.get("origin", origin), "licence": start.about.get("licence", "")}
    return {name: told for name, told in about.items() if told}


def prepared(recipe: Recipe, splits: NDArray[np.str_] | None = None, *, to_train: bool = True) -> Plan:
    """The same, without telling."""
    steps = prepare(recipe, splits, to_train=to_train)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            plan: Plan = end.value
            return plan


def complete(config: ViTConfig, index: Index) -> ViTConfig:
    """The model with what the recipe left to the data; what it did not leave must fit."""
    classes = len(index.class_names)
    if config.classes not in (0, classes):
        raise RecipeError(
            f"model.classes is {config.classes}, and {index.source} has {classes} classes. "
            f"Set model.classes={classes}, or 0 to take what the data has."
        )
    if config.head.kind == "none":
        raise RecipeError("model.head none gives no logits to learn by: set model.head=linear or mlp.")
    channels = config.channels or index.channels
    if channels != index.channels and not {channels, index.channels} <= {1, 3}:  # grey and colour become each other
        raise RecipeError(
            f"model.channels is {channels}, and the pictures of {index.source} have {index.channels}. "
            f"Set model.channels={index.channels}, or 0 to take what the data has."
        )
    return ViTConfig.read({**config.write(), "classes": classes, "channels": channels}, "model.")


def preprocess_of(recipe: Recipe, config: ViTConfig) -> Preprocess:
    """As the recipe asks for it; mean and standard deviation are not measured yet."""
    return Preprocess(
        image_size=config.height_width,
        channels=config.channels,
        background=recipe.data.background,
        resize=recipe.data.resize,
        interpolation=recipe.data.interpolation,
        jpeg=recipe.data.jpeg,
        mean=(0.0,) * config.channels,
        std=(1.0,) * config.channels,
    )


def _check_smallest(recipe: Recipe, config: ViTConfig) -> None:
    """BatchNorm compares numbers with each other: one alone it cannot."""
    course, part = recipe.train.image_size, recipe.train.batch_size // recipe.train.accumulate
    start = course.start if isinstance(course, Rising) else 1.0
    patches = [max(1, round(side * start)) for side in config.grid]
    if config.stem.kind == "whitened" and max(part, 1) * patches[0] * patches[1] < 2:
        raise RecipeError("model.stem whitened needs more than one patch in a batch: raise train.batch_size.")


def _validates(recipe: Recipe, pack: Pack) -> bool:
    there = len(pack.of("validation")) > 0
    if not there and (recipe.train.choose != "last" or recipe.train.patience):
        raise RecipeError(
            "train.choose and train.patience need validation pictures, and there are none: set data.validation=0.1."
        )
    return there


def _measured(preprocess: Preprocess, recipe: Recipe, pack: Pack) -> Preprocess:
    """With the mean and standard deviation that were given, or those of the training pictures."""
    mean, std = recipe.data.mean, recipe.data.std
    if mean == "auto" or std == "auto":
        found = mean_and_std(pack, pack.of("train"))
        mean, std = (found[0] if mean == "auto" else mean), (found[1] if std == "auto" else std)
    for name, given in (("mean", mean), ("std", std)):
        if len(given) != preprocess.channels:
            raise RecipeError(
                f"data.{name} has {len(given)} numbers, and the pictures have {preprocess.channels} channels: "
                "give one a channel, or auto."
            )
    return preprocess.model_copy(update={"mean": mean, "std": std})


def _show(model: ViT, pack: Pack, preprocess: Preprocess) -> None:
    """Some training pictures to a model that wants to see them before the first step."""
    if not isinstance(model.patch_embed, Whitened):
        return
    height, width = preprocess.image_size
    train = pack.of("train")
    enough = max(1, 2_000_000 // (preprocess.channels * height * width))  # pictures
    some = np.unique(np.linspace(0, len(train) - 1, enough).astype(int))
    images = preprocess.normalise(torch.from_numpy(preprocess.centre(pack.images[train[some]])))
    model.patch_embed.measure(images.to(model.patch_embed.whiten.dtype))


def choose_device(asked: str) -> torch.device:
    """The device that was asked for, or the best that is there. CUDA and MPS are written for, and not tested."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[asked]:
        raise RecipeError(f"train.device is {asked}, and torch finds none here. Set train.device=auto or cpu.")
    return torch.device(asked)
