"""From a recipe to an objective: one of ours, or one in a user's own file."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from vitral.data.batches import class_weights
from vitral.data.pack import Pack
from vitral.errors import RecipeError
from vitral.model.interface import Model
from vitral.plugin import Plugin
from vitral.training.config import OwnObjective, Train
from vitral.training.objectives import Objective
from vitral.training.objectives.classification import Classification, DoubleSoftmax

OURS = {"classification": Classification, "double-softmax": DoubleSoftmax}


def objective_class(train: Train, plugins: Mapping[str, Plugin]) -> type[Objective]:
    """The class of a recipe's objective. A function in a user's own file is a loss of logits and targets, so
    classification."""
    if not isinstance(train.objective, OwnObjective):
        return OURS[train.objective.kind]
    kind, own = train.objective.kind, plugins[train.objective.kind].value
    if isinstance(own, type) and issubclass(own, Objective):
        return own
    if isinstance(own, type) or not callable(own):
        raise RecipeError(
            f"train.objective {kind} is neither a function of logits and targets nor a class of "
            "vitral.training.objectives.Objective."
        )
    return Classification


def make_objective(train: Train, plugins: Mapping[str, Plugin], pack: Pack, model: Model) -> Objective:
    """The objective of a recipe, for the pictures of a pack and a model."""
    if not isinstance(train.objective, OwnObjective):
        weights = class_weights(pack) if train.class_weights == "balanced" else None
        device = next(model.parameters()).device
        kind = OURS[train.objective.kind]
        return kind(None if weights is None else weights.to(device), train.label_smoothing)
    if train.label_smoothing or train.class_weights != "none":
        raise RecipeError(
            "train.label_smoothing and train.class_weights are settings of train.objective=classification: set "
            "train.label_smoothing=0 and train.class_weights=none, or build them into your own."
        )
    own, settings = plugins[train.objective.kind].value, train.objective.settings
    objective = _instantiate(train.objective.kind, own, model, settings)
    objective.plugin = f"train.objective {train.objective.kind}"
    return objective


def _instantiate(name: str, own: Any, model: Model, settings: dict[str, Any]) -> Objective:
    """From a class, or from a function of logits and targets."""
    try:
        if isinstance(own, type):
            return own(model, **settings)
        inspect.signature(own).bind(None, None, **settings)
        return Classification(function=partial(own, **settings))
    except TypeError as error:  # such as an unknown setting
        raise RecipeError(f"train.objective {name} cannot be made of these settings ({error}).") from error
