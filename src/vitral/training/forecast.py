"""What a training will take, before it begins: told by some of the pictures, and by a step or two of few of them."""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from vitral.data.pack import PackForecast, forecast_packing
from vitral.data.sources import Index, open_source
from vitral.data.sources.named import data_directory
from vitral.model import resolve
from vitral.plugin import Code, load_plugins
from vitral.recipe import Recipe
from vitral.training.budget import RESERVE, measure_pace
from vitral.training.config import parse_budget
from vitral.training.objectives.make import objective_class
from vitral.training.preparation import Plan, complete, prepared, preprocess_of
from vitral.training.sample import some_of, temporary_packs
from vitral.weights.pretrained import Pretrained

SOME = 256  # pictures
LEAST_TIMED, MOST_TIMED = 8, 64  # pictures of a step that is timed
LARGEST = 200_000_000  # parameters of a model of which a step is timed


@dataclass(frozen=True)
class TrainingForecast:
    """What a training will take."""

    plan: Plan  # of some of the pictures, where they are many and not packed yet
    packing: PackForecast
    pictures: int  # to learn from
    step: float | None  # seconds; None: it was not tried, since the model is large or only its head learns
    steps: int  # 0: as many as fit, which nobody knows yet

    @property
    def epochs(self) -> float:
        return self.steps * self.plan.batches.batch_size / max(1, self.pictures)


def forecast_training(
    recipe: Recipe, index: Index | None = None, start: Pretrained | None = None, code: Code = ()
) -> TrainingForecast:
    """What a recipe will take on this machine; a disk that cannot hold the pack is refused."""
    plugins = load_plugins(recipe.plugins)
    learns_by = objective_class(recipe.train, plugins)
    index = index or open_source(recipe.data, unsorted=not learns_by.needs_labels)
    config = complete(resolve(recipe.model, plugins), index, learns_by.needs_labels)
    packing = forecast_packing(index, preprocess_of(recipe, config), data_directory(recipe.data.directory))
    whole = len(index.samples) <= SOME or not packing.seconds
    with nullcontext() if whole else temporary_packs() as directory:
        some = index if whole else some_of(index, np.arange(len(index.samples)), SOME)
        places = {"data.directory": directory} if directory else {}
        plan = prepared(recipe.changed(places), index=some, start=start, plugins=plugins, code=code, to_train=False)
        step = _seconds_a_step(plan, recipe)
    return TrainingForecast(plan, packing, len(index.of("train")), step, _steps(recipe, plan, index, packing, step))


def _seconds_a_step(plan: Plan, recipe: Recipe) -> float | None:
    """By a step of a few pictures: a whole one may take minutes, and all of the memory."""
    parameters = sum(parameter.numel() for parameter in plan.learner.model.parameters())
    if parameters > LARGEST or recipe.init.mode == "probe":
        return None
    batch = min(plan.batches.batch_size, MOST_TIMED, max(LEAST_TIMED, LARGEST // parameters))
    few = replace(plan, batches=replace(plan.batches, batch_size=batch))
    return measure_pace(few).mean * plan.batches.batch_size / batch


def _steps(recipe: Recipe, plan: Plan, index: Index, packing: PackForecast, step: float | None) -> int:
    if seconds := recipe.train.seconds:
        return max(0, int((seconds * (1 - RESERVE) - packing.seconds) / step)) if step else 0
    epoch = max(1, len(index.of("train")) * recipe.data.augment.repeats // plan.batches.batch_size)
    return parse_budget(recipe.train.budget)[1] or recipe.train.epochs * epoch
