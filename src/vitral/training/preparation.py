"""From a recipe to all that the loop needs: pictures opened, model built, everything chosen before the first step."""

import math
import os
import platform
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.batches import Batches, in_order
from vitral.data.check import UNASKED, Inspection
from vitral.data.pack import Pack, mean_and_std, packing
from vitral.data.preprocess import Preprocess
from vitral.data.sources import SPLITS, Index, open_source
from vitral.data.sources.named import data_directory
from vitral.errors import RecipeError
from vitral.inference import outputs_of_pack
from vitral.model import build, check_own, model_class, resolve
from vitral.model.config import ModelConfig, ViTConfig
from vitral.model.interface import Model
from vitral.plugin import Code, Plugin, is_plugin, load_plugins
from vitral.progress import Progress, drain
from vitral.recipe import Recipe
from vitral.run import Choices, DataIdentity, Machine, Record, name_of
from vitral.training.calibration import calibrate
from vitral.training.config import Fixed, Init, Rising, parse_budget
from vitral.training.feature_cache import CachedFeatures, HeldOut, cache_features
from vitral.training.learner import Learner, freeze, freeze_trunk
from vitral.training.objectives import Objective
from vitral.training.objectives.classification import Classification
from vitral.training.objectives.distillation import Distillation, distillation
from vitral.training.objectives.make import make_objective, objective_class
from vitral.training.teacher import LoadedTeacher, find_teacher
from vitral.version import __version__
from vitral.weights.calibration import Calibration
from vitral.weights.own import UNTRAINED
from vitral.weights.pretrained import Pretrained, adapt, load_pretrained, with_resampling
from vitral.weights.stored import digest


@dataclass(frozen=True)
class Plan:
    """All that a training needs, ready to run."""

    pack: Pack
    preprocess: Preprocess
    batches: Batches
    validates: bool  # whether there are validation pictures
    test_curve: bool  # whether the test pictures are measured after every epoch, too
    learner: Learner
    steps: int  # by epochs or by budget; a budget of time is measured later
    start: Pretrained | None = None  # the weights that it starts from; None: new ones
    teacher: str | None = None  # a digest of the teacher, where there is one
    about: Mapping[str, str] = field(default_factory=dict)  # origin and licence of the weights that it starts from
    code: Mapping[str, str] = field(default_factory=dict)  # the user's own Python files: name → sha256

    def validate(self) -> dict[str, float]:
        """The figures of the validation pictures, for the weights that would be the result now."""
        objective = self.learner.objective.eval()
        figures = self._measure("validation", objective)
        objective.train()
        return figures

    def measure_test(self) -> dict[str, float]:
        """The same figures of the test pictures, for the test curve; those that are no numbers are left out.

        A copy of the objective is asked: whatever that leaves behind in it, the training goes on as without.
        """
        figures = self._measure("test", self.learner.objective.copy().eval())
        return {name: value for name, value in figures.items() if math.isfinite(value)}

    def _measure(self, split: HeldOut, objective: Objective) -> dict[str, float]:
        learner, numbers = self.learner, self.pack.of(split)
        model: Any = learner.average.model.eval()
        if isinstance(self.batches, CachedFeatures) and split in self.batches.held_out:
            batches, model = self.batches.in_order(split), partial(self.batches.forward, model)
        elif self.batches.view_sizes:  # an objective that compares views gets some here too, the same in every epoch
            batches = self.batches.views_of(numbers)
        else:
            batches = in_order(self.pack, numbers, self.preprocess)
        like = next(learner.model.parameters())
        with torch.random.fork_rng(), torch.no_grad():  # what an objective draws is the same in every epoch, too
            torch.manual_seed(learner.train.seed)
            figures = objective.validate(model, (batch.to(like) for batch in batches))
        if wanted := {"loss", *objective.figures} - figures.keys():
            raise RecipeError(f"{objective.plugin}: validate tells no {', '.join(sorted(wanted))}.")
        return figures

    def calibrate(self, model: Model) -> Calibration | None:
        """Calibrate by pictures of train and validation, from cached features where there are any."""
        if not (model.config.has_classes and self.learner.objective.needs_labels):
            return None
        if isinstance(self.batches, CachedFeatures):
            return calibrate(model, self.pack, self.batches.outputs)
        return calibrate(
            model, self.pack, lambda model, numbers: outputs_of_pack(model, self.pack, numbers, self.preprocess)
        )

    def record(self, started_at: datetime, choices: Choices) -> Record:
        """The record of a run at its start, for run.json."""
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
            start=digest(self.start.model.state_dict().values()) if self.start else None,
            teacher=self.teacher,
            code=dict(self.code) or None,
            data=DataIdentity(
                source=self.pack.index.source,
                sha256=self.pack.sha256,
                pictures={split: len(self.pack.of(split)) for split in SPLITS},
            ),
        )


def prepare(
    recipe: Recipe,
    splits: NDArray[np.str_] | None = None,
    *,
    index: Index | None = None,
    start: Pretrained | None = None,
    plugins: Mapping[str, Plugin] | None = None,
    code: Code = (),
    to_train: bool = True,
) -> Generator[Progress, None, Plan]:
    """Open the pictures, pack them, build the model; yields how far that is. No run is begun yet.

    `splits`, (samples,), puts other splits in the place of the source's. `index`, `start` and `plugins` are pictures,
    weights and files of Python that the recipe names, where they are open already. A plan that is not `to_train` does
    without what takes minutes: what a teacher says, and what frozen blocks make of each picture.
    """
    device = choose_device(recipe.train.device)
    plugins = load_plugins(recipe.plugins) if plugins is None else plugins
    learns_by = objective_class(recipe.train, plugins)
    index = open_source(recipe.data, unsorted=not learns_by.needs_labels) if index is None else index
    index = index if splits is None else replace(index, splits=splits)
    _check_test_curve(recipe, index)
    config = complete(resolve(recipe.model, plugins), index, learns_by.needs_labels)
    _check_model(recipe, config, learns_by)
    # What may be missing is loaded before the pictures are packed, which may take minutes.
    start = _load_start(recipe.init, config, index.class_names, start, code)
    teacher = find_teacher(recipe.teacher, index.class_names, plugins, code)
    pack = yield from _pack_pictures(recipe, config, index, learns_by)
    _check_test_curve(recipe, pack)  # again: some may be unreadable
    preprocess = _with_statistics(preprocess_of(recipe, config), recipe, pack)
    model = _build_model(recipe, config, pack, preprocess, start, device)
    batches = _make_batches(recipe, config, pack, preprocess, plugins, learns_by)
    _freeze(model, recipe.init)
    cache = None
    if to_train and teacher is None and learns_by.only_logits:
        cache = yield from _cache_frozen(batches, model, recipe)
    objective = _make_objective(recipe, plugins, pack, model)
    if to_train and teacher:
        objective = yield from _with_teacher(objective, recipe, teacher, batches, model)
    return Plan(
        pack=pack,
        preprocess=preprocess,
        batches=cache or batches,
        validates=_check_validation(recipe, pack, objective),
        test_curve=recipe.train.test_curve,
        learner=Learner(model, recipe.train, objective, recipe.init, cache.forward if cache else None),
        steps=parse_budget(recipe.train.budget)[1] or recipe.train.epochs * batches.steps_per_epoch,
        start=start,
        about=_about(recipe.init.weights, start, objective),
        teacher=teacher.digest if teacher else None,
        code={name: plugin.sha256 for name, plugin in plugins.items() if name != recipe.teacher.source},
    )


def _pack_pictures(
    recipe: Recipe, config: ModelConfig, index: Index, learns_by: type[Objective]
) -> Generator[Progress, None, Pack]:
    """The pictures in the model's size; few of them are also inspected. To learn by labels, each class needs some."""
    inspection = Inspection(index) if len(index.samples) <= UNASKED else None
    directory = data_directory(recipe.data.directory)
    pack = yield from packing(index, preprocess_of(recipe, config), directory, inspection)
    if learns_by.needs_labels:
        pack.check_classes(pack.of("train"))
    return pack


def _build_model(
    recipe: Recipe,
    config: ModelConfig,
    pack: Pack,
    preprocess: Preprocess,
    start: Pretrained | None,
    device: torch.device,
) -> Model:
    """The model with new weights, which follow from the seed alone, or with those of `start`."""
    # The caller's random numbers stay as they were.
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        model = build(config, recipe.train.regularise)
        if is_plugin(config.kind):
            check_own(model)
        model.fit_inputs(_some_images(pack, preprocess))
        if start:
            model.load_state_dict(start.model.state_dict())
        model.to(device)
    return model


def _make_batches(
    recipe: Recipe,
    config: ModelConfig,
    pack: Pack,
    preprocess: Preprocess,
    plugins: Mapping[str, Plugin],
    learns_by: type[Objective],
) -> Batches:
    """The batches of the training pictures, augmented as the recipe asks."""
    return Batches(
        pack,
        preprocess,
        recipe.data.augment,
        recipe.train.batch_size,
        recipe.train.seed,
        balanced=recipe.data.sampling == "balanced",
        views=recipe.init.views,
        own=plugins[recipe.data.augment.own].value if is_plugin(recipe.data.augment.own) else None,
        view_sizes=_view_sizes(learns_by, config),
    )


def _freeze(model: Model, init: Init) -> None:
    """Freeze what does not learn from the first step on."""
    if init.mode == "probe":
        freeze_trunk(model)
    elif init.freeze:
        _check_blocks(model, init.freeze)
        freeze(model, init.freeze)


def _cache_frozen(batches: Batches, model: Model, recipe: Recipe) -> Generator[Progress, None, CachedFeatures | None]:
    """What frozen layers make of the pictures; None where all learn, or where it cannot be cached."""
    probes, frozen = recipe.init.mode == "probe", recipe.init.freeze
    if not probes and not frozen:
        return None
    return (yield from cache_features(batches, model, recipe, None if probes else frozen))


def _make_objective(recipe: Recipe, plugins: Mapping[str, Plugin], pack: Pack, model: Model) -> Objective:
    """What is learnt by; weights of its own follow from the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        return make_objective(recipe.train, plugins, pack, model)


def _with_teacher(
    objective: Objective, recipe: Recipe, teacher: LoadedTeacher, batches: Batches, model: Model
) -> Generator[Progress, None, Distillation]:
    """The objective, with what a teacher says beside the labels."""
    if not isinstance(objective, Classification):
        raise RecipeError("teacher.source goes with train.objective=classification.")
    return (yield from distillation(recipe.teacher, teacher, batches, model, objective))


def _load_start(
    init: Init, config: ModelConfig, class_names: tuple[str, ...], loaded: Pretrained | None, code: Code
) -> Pretrained | None:
    """The weights of init.weights, or `loaded` where they are open; None for a new model. They must fit the recipe."""
    if init.weights == "none":
        return None
    if init.weights == "ask":
        raise RecipeError(
            "init.weights is not given. Set it to a file or folder of weights; `vitral ls weights` names some."
        )
    loaded = loaded or load_pretrained(init.weights, code=code)
    if config.resampling not in ("", ViTConfig().resampling):  # somebody asks for it
        loaded = with_resampling(loaded, config.resampling)
    loaded = adapt(loaded, classes=class_names, image_size=config.height_width, channels=config.channels)
    ours, theirs = (one.write() | {"image_size": one.height_width} for one in (config, loaded.model.config))
    if differences := [name for name in ours if ours[name] != theirs.get(name)]:  # another kind may lack it
        name = differences[0]
        raise RecipeError(
            f"model.{name} is {ours[name]}, and {init.weights} has {theirs[name]}: the recipe's model must be the one "
            "that the weights are of. `vitral show FOLDER init.weights=…` writes such a recipe."
        )
    return loaded


def _about(weights: str, start: Pretrained | None, objective: Objective) -> dict[str, str]:
    """What goes on with the weights, wherever they are taken: where they began, their licence, what was not learnt."""
    about = {} if objective.needs_labels else {UNTRAINED: "yes"}
    if start:
        origin = weights if weights.startswith("hf:") else name_of(weights)
        about |= {"origin": start.about.get("origin", origin), "licence": start.about.get("licence", "")}
    return {name: words for name, words in about.items() if words}


def prepared(
    recipe: Recipe,
    splits: NDArray[np.str_] | None = None,
    *,
    index: Index | None = None,
    start: Pretrained | None = None,
    plugins: Mapping[str, Plugin] | None = None,
    code: Code = (),
    to_train: bool = True,
) -> Plan:
    """The plan that `prepare` returns, for those who want no progress."""
    return drain(prepare(recipe, splits, index=index, start=start, plugins=plugins, code=code, to_train=to_train))


def complete(config: ModelConfig, index: Index, needs_labels: bool = True) -> ModelConfig:
    """The model's settings with the classes and channels of the data, where the recipe leaves them open; else they must
    fit."""
    classes = len(index.class_names) if needs_labels or config.has_classes else 0
    if config.classes not in (0, classes):
        raise RecipeError(
            f"model.classes is {config.classes}, and {index.source} has {classes} classes. "
            f"Set model.classes={classes}, or 0 to take what the data has."
        )
    if needs_labels and not config.has_classes:
        raise RecipeError("model.head none gives no logits to learn by: set model.head=linear or mlp.")
    channels = config.channels or index.channels
    if channels != index.channels and not {channels, index.channels} <= {1, 3}:  # grey and colour become each other
        raise RecipeError(
            f"model.channels is {channels}, and the pictures of {index.source} have {index.channels}. "
            f"Set model.channels={index.channels}, or 0 to take what the data has."
        )
    return type(config).read({**config.write(), "classes": classes, "channels": channels}, "model.")


def preprocess_of(recipe: Recipe, config: ModelConfig) -> Preprocess:
    """The recipe's preprocessing; mean 0 and standard deviation 1 stand for what is not measured yet."""
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


def _check_model(recipe: Recipe, config: ModelConfig, learns_by: type[Objective]) -> None:
    """Refuse what the model cannot do, before minutes have passed."""
    train, kind = recipe.train, model_class(config)
    start = train.image_size.start if isinstance(train.image_size, Rising) else 1.0
    config.check_batch(max(1, train.batch_size // train.accumulate), start)
    augment = recipe.data.augment
    if len(learns_by.views) > 1 and (augment.mixup or augment.cutmix or (start, train.patches) != (1.0, Fixed())):
        raise RecipeError(
            "The objective compares views of a picture: data.augment.mixup, cutmix, train.patches and train.image_size "
            "do not go with that."
        )
    if isinstance(train.patches, Rising) and not kind.drops_patches:
        raise RecipeError(f"train.patches rises, and a model of kind {config.kind} cannot leave patches out.")
    if isinstance(train.image_size, Rising) and not kind.any_size:
        raise RecipeError(f"train.image_size rises, and a model of kind {config.kind} takes one size only.")


def _check_blocks(model: Model, frozen: int) -> None:
    """Refuse to freeze more blocks than there are."""
    blocks = max(layer.depth for layer in model.layers()) - 1
    if frozen > blocks:
        raise RecipeError(f"init.freeze is {frozen}, and the model has {blocks} blocks.")


def _view_sizes(learns_by: type[Objective], config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Height and width of each view that the objective wants of a picture, in whole patches; () where it wants only the
    picture as it is."""
    if learns_by.views == (1.0,):
        return ()
    height, width = (side // config.stride for side in config.height_width)
    shares = learns_by.views
    return tuple(
        (max(1, round(height * share)) * config.stride, max(1, round(width * share)) * config.stride)
        for share in shares
    )


def _check_validation(recipe: Recipe, pack: Pack, objective: Objective) -> bool:
    """Whether there are validation pictures; refuse a recipe that needs them, or a figure, where there is none."""
    validates, choose = len(pack.of("validation")) > 0, recipe.train.choose
    if not validates and (choose != "last" or recipe.train.patience):
        raise RecipeError(
            "train.choose and train.patience need validation pictures, and there are none: set data.validation=0.1."
        )
    if choose not in ("last", "loss", *objective.figures):
        raise RecipeError(f"train.choose is {choose}, and the objective tells no {choose}: set train.choose=loss.")
    return validates


def _check_test_curve(recipe: Recipe, pictures: Index | Pack) -> None:
    """Refuse a test curve where there are no test pictures."""
    if recipe.train.test_curve and not len(pictures.of("test")):
        raise RecipeError(
            "train.test_curve measures the test pictures after every epoch, and there are none: add some, or set "
            "train.test_curve=false."
        )


def _with_statistics(preprocess: Preprocess, recipe: Recipe, pack: Pack) -> Preprocess:
    """The preprocessing with the recipe's mean and standard deviation; auto: those of the training pictures."""
    mean, std = recipe.data.mean, recipe.data.std
    if mean == "auto" or std == "auto":
        train_mean, train_std = mean_and_std(pack, pack.of("train"))
        mean, std = (train_mean if mean == "auto" else mean), (train_std if std == "auto" else std)
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != preprocess.channels:
            raise RecipeError(
                f"data.{name} has {len(numbers)} numbers, and the pictures have {preprocess.channels} channels: "
                "give one a channel, or auto."
            )
    return preprocess.model_copy(update={"mean": mean, "std": std})


def _some_images(pack: Pack, preprocess: Preprocess) -> Tensor:  # → (n, C, H, W)
    """Some training pictures, for a model that wants to see them before the first step."""
    height, width = preprocess.image_size
    train = pack.of("train")
    enough = max(1, 2_000_000 // (preprocess.channels * height * width))  # pictures
    some = np.unique(np.linspace(0, len(train) - 1, enough).astype(int))
    return preprocess.normalise(torch.from_numpy(preprocess.centre(pack.images[train[some]])))


def choose_device(name: str) -> torch.device:
    """The device of this name; auto: the best that is there. CUDA and MPS are written for, and not tested."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_there in available.items() if is_there))
    if not available[name]:
        raise RecipeError(f"train.device is {name}, and torch finds none here. Set train.device=auto or cpu.")
    return torch.device(name)
