"""What a model says of pictures that it has not learnt from, for all pictures of a set: some short trainings, each of
which leaves out another part."""

from collections.abc import Generator, Iterator, Mapping

import numpy as np

from vitral.data.folds import OutOfFold, parts
from vitral.inference import outputs_of_pack, values_of
from vitral.plugin import Plugin
from vitral.progress import Progress
from vitral.recipe import Recipe
from vitral.training.preparation import Plan, prepare
from vitral.training.schedules import learning_rate_share

TRAINING = "short trainings"


def out_of_fold(
    recipe: Recipe,
    steps: int,
    folds: int = 5,
    sha256: str = "",
    plugins: Mapping[str, Plugin] | None = None,
) -> Generator[Progress, None, OutOfFold]:
    """Train `folds` times for so many steps as the recipe asks, each time without another share of all pictures.

    What was held out for validation and test is learnt from too: for a label that may be wrong it makes no difference.
    The pictures must have this `sha256`, unless it is empty. Yields how far it is.
    """
    recipe = recipe.changed({"train.test_curve": False})  # each picture is learnt from, or held out for its turn
    plan = yield from prepare(recipe, plugins=plugins, to_train=False)
    plan.pack.check(sha256)
    part_of = parts(plan.pack, folds)
    folds = int(part_of.max()) + 1
    numbers = np.flatnonzero(part_of >= 0)
    probabilities = np.zeros((len(part_of), len(plan.pack.index.class_names)))
    yield Progress(0, folds * steps, TRAINING)
    for fold in range(folds):
        splits = np.where(part_of == fold, "validation", "train")
        fold_plan = yield from prepare(recipe, splits, plugins=plugins)
        for step in train_steps(fold_plan, steps):
            yield Progress(fold * steps + step, folds * steps, TRAINING)
        held_out = fold_plan.pack.of("validation")
        model = fold_plan.learner.average.model
        outputs = outputs_of_pack(model, fold_plan.pack, held_out, fold_plan.preprocess)
        probabilities[held_out] = values_of(outputs.logits.double(), fold_plan.targets).numpy()
    return OutOfFold(plan.pack, numbers, probabilities[numbers])


def train_steps(plan: Plan, steps: int) -> Iterator[int]:
    """Train without a run folder; yields each step after it is done."""
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
