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

from vitral.data.batches import Batch, Batches, in_order, labels_of, most_in_order
from vitral.data.check import UNASKED, Inspection
from vitral.data.pack import Pack, mean_and_std, packing
from vitral.data.preprocess import Preprocess
from vitral.data.sources import SPLITS, Index, opening_source
from vitral.data.sources.named import data_directory
from vitral.data.sources.shards import is_streamed
from vitral.errors import RecipeError
from vitral.inference import choose_device, outputs_of_pack
from vitral.model import build, check_own, model_class, resolve
from vitral.model.batch_norm import share_norms
from vitral.model.config import ModelConfig, ViTConfig
from vitral.model.interface import Model
from vitral.plugin import Code, Plugin, is_plugin, load_plugins
from vitral.processes import Processes
from vitral.progress import Progress, drain
from vitral.recipe import Recipe
from vitral.rounds import Rounds, Rows, joined
from vitral.run import Choices, DataIdentity, Machine, Record, name_of
from vitral.targets import Target, columns, is_one_class
from vitral.training.calibration import calibrate
from vitral.training.config import Fixed, Init, Rising, parse_budget
from vitral.training.feature_cache import CachedFeatures, HeldOut, cache_features
from vitral.training.freezing import freeze_by
from vitral.training.learner import Learner
from vitral.training.memory import choose_shards
from vitral.training.objectives import Objective
from vitral.training.objectives.classification import Classification
from vitral.training.objectives.distillation import Distillation, distillation
from vitral.training.objectives.make import check_targets, make_objective, objective_class
from vitral.training.parallel import check_parallel, check_share
from vitral.training.teacher import LoadedTeacher, find_teacher
from vitral.version import __version__
from vitral.weights.calibration import Calibration
from vitral.weights.own import UNTRAINED
from vitral.weights.pretrained import (
    Pretrained,
    adapt,
    load_pretrained,
    with_resampling,
    with_task_tokens,
    without_head,
)
from vitral.weights.stored import digest

WATCHED = 2_000  # validation pictures that an objective without labels is watched on


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
    other_targets: tuple[Target, ...] = ()  # what is learnt, where that is not one class
    notes: tuple[str, ...] = ()  # sentences on what was chosen

    @property
    def processes(self) -> Processes:
        """Who learns together."""
        return self.learner.processes

    @property
    def targets(self) -> tuple[Target, ...]:
        """What is learnt; of a number with the mean and standard deviation that its output stands for."""
        return self.other_targets or self.pack.index.targets

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the outputs of the model are called; () where it has no head."""
        return self.pack.index.class_names if self.learner.model.config.classes else ()

    def validate(self) -> dict[str, float]:
        """The figures of the validation pictures, for the weights that would be the result now."""
        objective = self.learner.objective.eval()
        figures = self.learner.ask(lambda: self._measure("validation", objective) | self._watch(objective))
        figures = self.processes.tell(figures)
        objective.train()
        return figures

    def _watch(self, objective: Objective) -> dict[str, float]:
        """What an objective wants to see of validation pictures as they are: of some from everywhere among them, since
        a folder's stand class by class."""
        model = self.learner.average.model
        like = next(model.parameters())
        batches = in_order(self.pack, evenly(self.pack.of("validation"), WATCHED), self.preprocess)
        return objective.watch(model, (batch.to(like) for batch in batches))

    def measure_test(self) -> dict[str, float]:
        """The same figures of the test pictures, for the test curve; those that are no numbers are left out.

        A copy of the objective is asked: whatever that leaves behind in it, the training goes on as without.
        """
        figures = self.learner.ask(lambda: self._measure("test", self.learner.objective.copy().eval()))
        return {name: value for name, value in self.processes.tell(figures).items() if math.isfinite(value)}

    def _measure(self, split: HeldOut, objective: Objective) -> dict[str, float]:
        learner, numbers = self.learner, self.pack.of(split)
        model: Any = learner.average.model.eval()
        if isinstance(self.batches, CachedFeatures) and split in self.batches.held_out:
            batches, model = self.batches.in_order(split), partial(self.batches.forward, model)
        elif self.batches.view_sizes:  # an objective that compares views gets some here too, the same in every epoch
            batches = self.batches.views_of(numbers)
        elif self.processes.many and objective.validates_logits:
            batches, model = iter([self._answered(model, numbers)]), lambda logits, keep: logits
        else:
            batches = in_order(self.pack, numbers, self.preprocess)
        like = next(learner.model.parameters())
        with torch.random.fork_rng(), torch.no_grad():  # what an objective draws is the same in every epoch, too
            torch.manual_seed(learner.train.seed)
            figures = objective.validate(model, (batch.to(like) for batch in batches))
        if wanted := {"loss", *objective.figures} - figures.keys():
            raise RecipeError(f"{objective.plugin}: validate tells no {', '.join(sorted(wanted))}.")
        return figures

    @torch.no_grad()
    def _answered(self, model: Model, numbers: NDArray[np.int64]) -> Batch:
        """These pictures as one batch, with their logits in the place of images: each process asks about a share."""
        like = next(model.parameters())

        def ask(rows: range) -> Rows:
            some = numbers[rows.start : rows.stop] if rows else numbers[:1]
            [batch] = in_order(self.pack, some, self.preprocess, len(some))
            logits = model(batch.images.to(like)).cpu().numpy()
            return {"logits": logits} if rows else {}

        all_ask = self.learner.shards is not None  # also one for which there are no rows
        parts = Rounds(self.processes).of(len(numbers), most_in_order(self.preprocess), ask, always=all_ask)
        labels = labels_of(self.pack, numbers)
        return Batch(torch.from_numpy(joined(parts)["logits"]), labels, numbers, labels)

    def calibrate(self, model: Model) -> Calibration | None:
        """Calibrate by pictures of train and validation, from cached features where there are any."""
        if not (model.config.has_classes and self.learner.objective.needs_labels):
            return None
        if isinstance(self.batches, CachedFeatures):
            return calibrate(model, self.pack, self.batches.outputs, self.targets)
        return calibrate(
            model,
            self.pack,
            lambda model, numbers: outputs_of_pack(model, self.pack, numbers, self.preprocess),
            self.targets,
        )

    @property
    def identity(self) -> dict[str, str | None]:
        """What every process that learns with it must have, too."""
        return {
            "the sha256 of the pictures": self.pack.sha256,
            "the digest of init.weights": digest(self.start.model.state_dict().values()) if self.start else None,
            "the digest of the teacher": self.teacher,
            **{f"the sha256 of {name}": sha256 for name, sha256 in self.code.items()},
        }

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
    processes: Processes | None = None,
    before: Choices | None = None,
) -> Generator[Progress, None, Plan]:
    """Open the pictures, pack them, build the model; yields how far that is. No run is begun yet.

    `splits`, (samples,), puts other splits in the place of the source's. `index`, `start` and `plugins` are pictures,
    weights and files of Python that the recipe names, where they are open already. A plan that is not `to_train` does
    without what takes minutes: what a teacher says, and what frozen blocks make of each picture. Of several `processes`
    that train together, each makes the same plan. `before`: what a run that goes on has chosen.
    """
    device, processes = choose_device(recipe.train.device, "train.device"), processes or Processes()
    plugins = load_plugins(recipe.plugins) if plugins is None else plugins
    learns_by = objective_class(recipe.train, plugins)
    check_parallel(recipe, processes, learns_by)
    if index is None:
        index = yield from opening_source(recipe.data, unsorted=not learns_by.needs_labels)
    index = index if splits is None else replace(index, splits=splits)
    _check_test_curve(recipe, index)
    check_targets(recipe, index.targets, learns_by)
    config = complete(resolve(recipe.model, plugins), index, learns_by.needs_labels)
    _check_model(recipe, config, learns_by)
    # What may be missing is loaded before the pictures are packed, which may take minutes.
    start = _load_start(recipe.init, config, index, start, code)
    teacher = find_teacher(recipe.teacher, index.class_names, plugins, code)
    pack = yield from _pack_pictures(recipe, config, index, learns_by)
    _check_test_curve(recipe, pack)  # again: some may be unreadable
    preprocess = _with_statistics(preprocess_of(recipe, config), recipe, pack)
    model = _build_model(recipe, config, pack, preprocess, start, device)
    batches = _make_batches(recipe, config, pack, preprocess, plugins, learns_by, processes)
    check_share(min(batches.batch_size, len(batches.samples) * batches.augment.repeats), recipe.train, processes)
    freeze_by(model, recipe.init, recipe.train.seed)
    cache = None
    if to_train and teacher is None and learns_by.only_logits:
        cache = yield from _cache_frozen(batches, model, recipe)
    targets = standardised(start.targets if start else index.targets, pack)
    objective = _make_objective(recipe, plugins, pack, model, targets)
    if to_train and teacher:
        objective = yield from _with_teacher(objective, recipe, teacher, batches, model)
    shards, why = choose_shards(recipe, model, processes, learns_by, before)
    objective.share(processes)
    for module in (model, objective):
        share_norms(module, processes)
    forward_tail = cache.forward if cache else None
    return Plan(
        pack=pack,
        preprocess=preprocess,
        batches=cache or batches,
        validates=_check_validation(recipe, pack, objective),
        test_curve=recipe.train.test_curve,
        learner=Learner(model, recipe.train, objective, recipe.init, forward_tail, processes, shards),
        steps=parse_budget(recipe.train.budget)[1] or recipe.train.epochs * batches.steps_per_epoch,
        start=start,
        about=_about(recipe.init.weights, start, objective),
        teacher=teacher.digest if teacher else None,
        code={name: plugin.sha256 for name, plugin in plugins.items() if name != recipe.teacher.source},
        other_targets=() if is_one_class(targets) or not config.classes else targets,
        notes=(why,) if why else (),
    )


def standardised(targets: tuple[Target, ...], pack: Pack) -> tuple[Target, ...]:
    """The targets, with mean and standard deviation of each number over the training pictures; unless it has some, of
    the weights that the training begins with, whose outputs stand for them."""
    train = pack.index.labels[pack.of("train")]
    measured = []
    for target, mine in zip(targets, columns(targets), strict=True):
        if target.kind == "number" and (target.mean, target.std) == (0.0, 1.0):
            mean, std = float(train[:, mine].mean()), float(train[:, mine].std())
            target = target.model_copy(update={"mean": mean, "std": std or 1.0})
        measured.append(target)
    return tuple(measured)


def _pack_pictures(
    recipe: Recipe, config: ModelConfig, index: Index, learns_by: type[Objective]
) -> Generator[Progress, None, Pack]:
    """The pictures in the model's size; few of them are also inspected. To learn by labels, each class needs some."""
    inspection = Inspection(index) if len(index.samples) <= UNASKED and not is_streamed(index) else None
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
    processes: Processes,
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
        processes=processes,
        parts=recipe.train.accumulate,
        window=recipe.data.window,
    )


def _cache_frozen(batches: Batches, model: Model, recipe: Recipe) -> Generator[Progress, None, CachedFeatures | None]:
    """What frozen layers make of the pictures; None where all learn, or where it cannot be cached."""
    probes, frozen = recipe.init.mode == "probe", recipe.init.freeze
    if not probes and not frozen:
        return None
    return (yield from cache_features(batches, model, recipe, None if probes else frozen))


def _make_objective(
    recipe: Recipe, plugins: Mapping[str, Plugin], pack: Pack, model: Model, targets: tuple[Target, ...]
) -> Objective:
    """What is learnt by; weights of its own follow from the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        return make_objective(recipe.train, plugins, pack, model, targets)


def _with_teacher(
    objective: Objective, recipe: Recipe, teacher: LoadedTeacher, batches: Batches, model: Model
) -> Generator[Progress, None, Distillation]:
    """The objective, with what a teacher says beside the labels."""
    if not isinstance(objective, Classification):
        raise RecipeError("teacher.source goes with train.objective=classification.")
    return (yield from distillation(recipe.teacher, teacher, batches, model, objective))


def _load_start(
    init: Init, config: ModelConfig, index: Index, loaded: Pretrained | None, code: Code
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
    loaded = adapt(
        loaded if config.classes else without_head(loaded),
        classes=index.class_names if config.classes else None,
        image_size=config.height_width,
        channels=config.channels,
        targets=index.other_targets,
    )
    if isinstance(config, ViTConfig) and config.tokens.outputs:
        loaded = with_task_tokens(loaded, config.tokens.outputs)
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
    if isinstance(config, ViTConfig) and config.tokens.kind == "tasks":
        config = _with_tokens(config, index)
    channels = config.channels or index.channels
    if channels != index.channels and not {channels, index.channels} <= {1, 3}:  # grey and colour become each other
        raise RecipeError(
            f"model.channels is {channels}, and the pictures of {index.source} have {index.channels}. "
            f"Set model.channels={index.channels}, or 0 to take what the data has."
        )
    return type(config).read({**config.write(), "classes": classes, "channels": channels}, "model.")


def _with_tokens(config: ViTConfig, index: Index) -> ViTConfig:
    """With a token for each task of the data."""
    outputs = tuple(target.outputs for target in index.targets)
    if len(outputs) == 1:
        raise RecipeError(
            f"model.tokens tasks has a token per task, and {index.source} has one: set model.tokens=class, or several "
            "tasks, such as data.target=digit,high."
        )
    if config.tokens.outputs not in ((), outputs):
        asked, has = (", ".join(map(str, some)) for some in (config.tokens.outputs, outputs))
        raise RecipeError(
            f"model.tokens.outputs is {asked}, and the tasks of {index.source} have {has}: leave it out to take what "
            "the data has."
        )
    return config.model_copy(update={"tokens": config.tokens.model_copy(update={"outputs": outputs})})


def preprocess_of(recipe: Recipe, config: ModelConfig) -> Preprocess:
    """The recipe's preprocessing; mean 0 and standard deviation 1 stand for what is not measured yet."""
    return Preprocess(
        image_size=config.height_width,
        channels=config.channels,
        background=recipe.data.background,
        resize=recipe.data.resize,
        interpolation=recipe.data.interpolation,
        jpeg=recipe.data.jpeg,
        profile=recipe.data.profile,
        mean=(0.0,) * config.channels,
        std=(1.0,) * config.channels,
    )


def _check_model(recipe: Recipe, config: ModelConfig, learns_by: type[Objective]) -> None:
    """Refuse what the model cannot do, before minutes have passed."""
    train, kind = recipe.train, model_class(config)
    learns_by.check(recipe, config)
    start = train.image_size.start if isinstance(train.image_size, Rising) else 1.0
    config.check_batch(max(1, train.batch_size // train.accumulate), start)
    augment = recipe.data.augment
    if len(learns_by.views) > 1 and (augment.mixup or augment.cutmix or (start, train.patches) != (1.0, Fixed())):
        raise RecipeError(
            "The objective compares views of a picture: data.augment.mixup, cutmix, train.patches and train.image_size "
            "do not go with that."
        )
    if isinstance(train.patches, Rising) and not kind.drops_patches:
        raise RecipeError(
            f"train.patches rises, and a model of kind {config.kind} cannot leave patches out: set train.patches=fixed."
        )
    if isinstance(train.image_size, Rising) and not kind.any_size:
        raise RecipeError(f"train.image_size rises, and a model of kind {config.kind} takes one size only.")


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
    if not validates and objective.watched:
        raise RecipeError(
            f"train.objective {recipe.train.objective.kind} is watched on some validation pictures, since its loss "
            "does not tell whether all pictures look the same to the model, and there are none: set "
            "data.validation=0.1."
        )
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


def evenly(numbers: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most so many of them, from everywhere among them.

    >>> evenly(np.arange(10), 4), evenly(np.arange(3), 4)
    (array([0, 3, 6, 9]), array([0, 1, 2]))
    """
    return numbers[np.linspace(0, len(numbers) - 1, most).astype(int)] if len(numbers) > most else numbers
