"""What a model says of pictures that it has not learnt from, for all pictures of a set: some short trainings, each of
which leaves out another part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from vitral.data.folds import OutOfFold, parts
from vitral.inference import outputs_of_pack
from vitral.plugin import Plugin
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


def out_of_fold(
    recipe: Recipe,
    steps: int,
    folds: int = 5,
    sha256: str = "",
    plugins: Mapping[str, Plugin] | None = None,
) -> Iterator[FoldStep | OutOfFold]:
    """Train `folds` times for so many steps as the recipe asks, each time without another share of all pictures.

    What was held out for validation and test is learnt from too: for a label that may be wrong it makes no difference.
    `sha256`, where it is given, is what the pictures must be.
    """
    plan = prepared(recipe, plugins=plugins, to_train=False)
    plan.pack.check(sha256)
    part_of = parts(plan.pack, folds)
    folds = int(part_of.max()) + 1
    numbers = np.flatnonzero(part_of >= 0)
    probabilities = np.zeros((len(part_of), len(plan.pack.index.class_names)))
    for fold in range(folds):
        splits = np.where(part_of == fold, "validation", "train")
        held_out = prepared(recipe, splits, plugins=plugins)
        for step in _trained(held_out, steps):
            yield FoldStep(fold + 1, folds, step, steps)
        asked = held_out.pack.of("validation")
        model = held_out.learner.average.model
        outputs = outputs_of_pack(model, held_out.pack, asked, held_out.preprocess)
        probabilities[asked] = outputs.logits.double().softmax(dim=1).numpy()
    yield OutOfFold(plan.pack, numbers, probabilities[numbers])


def _trained(plan: Plan, steps: int) -> Iterator[int]:
    learner, rate = plan.learner, learning_rate_share(plan.learner.train, steps)
    stream = plan.batches.starting_at(1)
    for step, batch in stream:
        loss, _ = learner.gradients(step, batch, (step - 1) / steps)
        if loss.isfinite():
            learner.update(step, rate(step))
        else:
            learner.discard()
        yield step
        if step == steps:
            break
    stream.close()
    learner.refit_norms(plan.batches, steps, (steps - 1) / steps)
