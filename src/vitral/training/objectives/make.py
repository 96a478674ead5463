"""From a recipe to an objective: one of ours, or one in a user's own file."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitral.data.batches import class_weights
from vitral.data.pack import Pack
from vitral.errors import RecipeError
from vitral.model.interface import Model
from vitral.plugin import Plugin
from vitral.recipe import Recipe
from vitral.targets import Target, columns, is_one_class
from vitral.training.config import WITHOUT_LABELS, OwnObjective, Train
from vitral.training.objectives import Objective
from vitral.training.objectives.classification import Classification, DoubleSoftmax, balanced_weights
from vitral.training.objectives.dino import DINO
from vitral.training.objectives.labels import Labels, positive_weights
from vitral.training.objectives.lejepa import LeJEPA
from vitral.training.objectives.mae import MAE
from vitral.training.objectives.number import Number
from vitral.training.objectives.of_logits import Loss, OfLogits
from vitral.training.objectives.tasks import Tasks

OURS: dict[str, type[Classification]] = {"classification": Classification, "double-softmax": DoubleSoftmax}
LABEL_FREE: dict[str, type[MAE] | type[LeJEPA] | type[DINO]] = {"mae": MAE, "lejepa": LeJEPA, "dino": DINO}


def objective_class(train: Train, plugins: Mapping[str, Plugin]) -> type[Objective]:
    """The class of a recipe's objective. A function in a user's own file is a loss of logits and targets, so
    classification."""
    if not isinstance(train.objective, OwnObjective):
        return {**OURS, **LABEL_FREE}[train.objective.kind]
    kind, own = train.objective.kind, plugins[train.objective.kind].value
    if isinstance(own, type) and issubclass(own, Objective):
        return own
    if isinstance(own, type) or not callable(own):
        raise RecipeError(
            f"train.objective {kind} is neither a function of logits and targets nor a class of "
            "vitral.training.objectives.Objective."
        )
    return Classification


def check_targets(recipe: Recipe, targets: Sequence[Target], learns_by: type[Objective]) -> None:
    """Refuse settings that make no sense for what is to be learnt."""
    train, several = recipe.train, len(targets) > 1
    if train.task_weights and len(train.task_weights) != (len(targets) if several else 0):
        names = ", ".join(target.name for target in targets)
        tasks = f"there are {len(targets)} tasks, {names}" if several else f"there is one task, {names}"
        raise RecipeError(f"train.task_weights has {len(train.task_weights)} numbers, and {tasks}: give one a task.")
    if is_one_class(targets) or train.objective.kind in WITHOUT_LABELS:
        return
    words = " and ".join(_words(target) for target in targets)
    if train.objective.kind == "double-softmax":
        raise RecipeError(f"train.objective double-softmax is for one class a picture, and here it has {words}.")
    if recipe.teacher.source != "none":
        raise RecipeError(f"A teacher says which class a picture has, and here it has {words}: leave it out.")
    if isinstance(train.objective, OwnObjective) and learns_by is Classification and several:
        raise RecipeError(
            f"train.objective {train.objective.kind} is a function of logits and targets, and here a picture has "
            f"{words}: write a class of vitral.training.objectives.Objective, or learn one of them."
        )
    kinds = {target.kind for target in targets}
    if kinds == {"number"} and train.class_weights != "none":
        raise RecipeError(
            f"train.class_weights is for classes and labels, and here a picture has {words}: set it to none."
        )


def _words(target: Target) -> str:
    return {"class": "a class", "labels": "several labels", "number": "a number"}[target.kind] + f" ({target.name})"


def make_objective(
    train: Train, plugins: Mapping[str, Plugin], pack: Pack, model: Model, targets: Sequence[Target]
) -> Objective:
    """The objective of a recipe, for the pictures of a pack and a model that learns these targets."""
    if objective := without_labels(train, model):
        return objective
    if not isinstance(train.objective, OwnObjective):
        if is_one_class(targets):
            weights = class_weights(pack) if train.class_weights == "balanced" else None
            device = next(model.parameters()).device
            kind = OURS[train.objective.kind]
            return kind(None if weights is None else weights.to(device), train.label_smoothing)
        labels = torch.from_numpy(pack.index.labels[pack.of("train")]).to(next(model.parameters()))
        parts = [
            _objective_of(target, train, labels[:, mine])
            for target, mine in zip(targets, columns(targets), strict=True)
        ]
        return Tasks(targets, parts, train.task_weights or [1.0] * len(parts)) if len(parts) > 1 else parts[0]
    if train.label_smoothing or train.class_weights != "none":
        raise RecipeError(
            "train.label_smoothing and train.class_weights are settings of train.objective=classification: set "
            "train.label_smoothing=0 and train.class_weights=none, or build them into your own."
        )
    own, settings = plugins[train.objective.kind].value, train.objective.settings
    objective = _instantiate(train.objective.kind, own, model, settings, targets[0])
    objective.plugin = f"train.objective {train.objective.kind}"
    return objective


def without_labels(train: Train, model: Model) -> Objective | None:
    """The objective of a recipe, where it is one of ours that needs no labels."""
    kind: Any = LABEL_FREE.get(train.objective.kind)
    return kind(model, train.objective, train.seed) if kind else None


def _objective_of(target: Target, train: Train, labels: Tensor) -> OfLogits:
    """What is learnt by for one target, of which the training pictures have these labels, (n, outputs)."""
    balanced = train.class_weights == "balanced"
    if target.kind == "number":
        return Number(target)
    if target.kind == "labels":
        return Labels(positive_weights(labels) if balanced else None, train.label_smoothing)
    return Classification(balanced_weights(labels) if balanced else None, train.label_smoothing)


def _by_function(function: Loss, target: Target) -> OfLogits:
    if target.kind == "number":
        return Number(target, function)
    return Labels(function=function) if target.kind == "labels" else Classification(function=function)


def _instantiate(name: str, own: Any, model: Model, settings: dict[str, Any], target: Target) -> Objective:
    """From a class, or from a function of logits and targets."""
    try:
        if isinstance(own, type):
            return own(model, **settings)
        inspect.signature(own).bind(None, None, **settings)
        return _by_function(partial(own, **settings), target)
    except TypeError as error:  # such as an unknown setting
        raise RecipeError(f"train.objective {name} cannot be made of these settings ({error}).") from error
