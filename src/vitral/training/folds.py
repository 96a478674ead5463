"""What a model says of pictures that it has not learnt from, for all pictures of a set: some short trainings, each of
which leaves out another part."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitral.data.pack import Pack
from vitral.data.randomness import uniform
from vitral.errors import DataError
from vitral.evaluation.answers import answers
from vitral.recipe import Recipe
from vitral.training.preparation import Plan, prepared
from vitral.training.schedules import learning_rate_share


@dataclass(frozen=True)
class FoldStep:
    """How far it is."""

    fold: int  # from 1
    folds: int
    step: int
    steps: int


@dataclass(frozen=True)
class OutOfFold:
    """The answers, in the order of the pack's pictures."""

    pack: Pack
    numbers: NDArray[np.int64]  # (n,) of the pictures that can be read
    probabilities: NDArray[np.float64]  # (n, classes)


def out_of_fold(recipe: Recipe, steps: int, folds: int = 5) -> Iterator[FoldStep | OutOfFold]:
    """Train `folds` times for so many steps as the recipe asks, each time without another share of all pictures.

    What was held out for validation and test is learnt from too: for a label that may be wrong it makes no difference.
    """
    plan = prepared(recipe)
    parts = _parts(plan.pack, folds)
    numbers = np.flatnonzero(parts >= 0)
    probabilities = np.zeros((len(parts), len(plan.pack.index.class_names)))
    for fold in range(folds):
        splits = np.where(parts == fold, "validation", "train")
        held_out = prepared(recipe, splits)
        for step in _trained(held_out, steps):
            yield FoldStep(fold + 1, folds, step, steps)
        asked = held_out.pack.of("validation")
        model = held_out.learner.average.model
        found = answers(model, held_out.pack, asked, held_out.preprocess)
        probabilities[asked] = found.logits.double().softmax(dim=1).numpy()
    yield OutOfFold(plan.pack, numbers, probabilities[numbers])


def _trained(plan: Plan, steps: int) -> Iterator[int]:
    learner, rate = plan.learner, learning_rate_share(plan.learner.train, steps)
    stream = plan.batches.starting_at(1)
    for step, batch in stream:
        loss, _ = learner.gradients(step, batch, (step - 1) / steps)
        if loss.isfinite():
            learner.move(step, rate(step))
        else:
            learner.forget()
        yield step
        if step == steps:
            break
    stream.close()
    learner.settle(plan.batches, after=steps)


def _parts(pack: Pack, folds: int) -> NDArray[np.int64]:
    """(samples,) the part that each picture is in, from 0, the same share of every class; −1: it cannot be read."""
    labels, draws = pack.index.labels, uniform(0, "folds", epoch=0, samples=np.arange(len(pack.index.samples)))[:, 0]
    parts = np.full(len(labels), -1)
    for label, name in enumerate(pack.index.class_names):
        of_class = np.array([n for n in np.flatnonzero(labels == label) if n not in pack.left_out], dtype=np.int64)
        if len(of_class) < 2:
            raise DataError(f"{name} has {len(of_class)} pictures: to doubt a label, a class needs two at least.")
        parts[of_class[np.argsort(draws[of_class])]] = np.arange(len(of_class)) % folds
    return parts
