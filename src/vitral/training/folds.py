"""What a model says of pictures that it has not learnt from, for all pictures of a set: some short trainings, each of
which leaves out another part."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitral.data.pack import Pack
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

    @property
    def accuracy(self) -> float:
        """How often they were right, by the labels as they are."""
        return float(np.mean(self.probabilities.argmax(axis=1) == self.pack.index.labels[self.numbers]))


def out_of_fold(recipe: Recipe, steps: int, folds: int = 5, sha256: str = "") -> Iterator[FoldStep | OutOfFold]:
    """Train `folds` times for so many steps as the recipe asks, each time without another share of all pictures.

    What was held out for validation and test is learnt from too: for a label that may be wrong it makes no difference.
    `sha256`, where it is given, is what the pictures must be.
    """
    plan = prepared(recipe)
    if sha256 not in ("", plan.pack.sha256):
        raise DataError(
            f"The pictures of {recipe.data.source} are not those that it was trained with: they, their labels or their "
            "split have changed."
        )
    parts = _parts(plan.pack, folds)
    folds = int(parts.max()) + 1
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
    """(samples,) the part that each picture is in, from 0, about the same share of every class; −1: it cannot be read.

    Pictures of one group are in one part. Small sets have fewer parts.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    index = pack.index
    readable = np.array([n for n in range(len(index.samples)) if n not in pack.left_out], dtype=np.int64)
    labels = index.labels[readable]
    counts = np.bincount(labels, minlength=len(index.class_names))
    if counts.min() < 2:
        name = index.class_names[int(counts.argmin())]
        raise DataError(f"{name} has {counts.min()} pictures: to doubt a label, a class needs two at least.")
    groups = None if index.groups is None else np.array(index.groups)[readable]
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    units = int(counts.max()) if groups is None else len(np.unique(groups))
    if units < 2:
        raise DataError(f"All pictures of {index.source} are in one group: none can be left out.")
    parts = np.full(len(index.samples), -1)
    with warnings.catch_warnings(action="ignore"):  # that a class has fewer pictures than there are parts
        split = kind(min(folds, units), shuffle=True, random_state=0).split(readable, labels, groups)
        for part, (_, held_out) in enumerate(split):
            parts[readable[held_out]] = part
    return parts
