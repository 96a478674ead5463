"""Does it help to learn without labels first? The trainings that tell, with these pictures and these labels.

For each seed there are three: a model learns without labels; it goes on with the labels; and one of the quick recipe
learns from the labels alone, for as long as the other two took together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.data.sources import Index, digest_of
from vitral.errors import DataError, RecipeError
from vitral.evaluation.metrics import FEW
from vitral.progress import Progress, Tell, silent
from vitral.recipe import Recipe
from vitral.recipes.choose import choose
from vitral.recipes.pretraining import LEAST, choose_pretraining
from vitral.run import Run
from vitral.targets import require_one_class
from vitral.training.config import parse_budget

SHARE = 0.75  # of the time in which no label is looked at
LOOKING = "looking for pictures that will be tested on"

# What both trainings have in common, whoever sets it; and settings of the labels, where these are elsewhere.
BOTH = ("data.", "model.", "train.seed", "train.device", "train.precision", "train.compile")
OF_LABELS = ("data.labelled", "data.target", "data.group_by", "data.validation", "data.split_seed")


@dataclass(frozen=True)
class Trial:
    """What is trained: recipes for the first seed."""

    pretraining: Recipe  # for its share of the time
    unlabelled: Index = field(repr=False)
    supervised: Recipe  # for all of it
    labelled: Index = field(repr=False)
    budget: str  # all that each way has
    copies: int  # pictures that are not learnt from without labels, since the same will be tested on
    why: tuple[str, ...]

    def seeded(self, recipe: Recipe, number: int) -> Recipe:
        """The same recipe for one of the seeds."""
        return recipe.changed({"train.seed": recipe.train.seed + number})

    def finetuned(self, run: Run) -> Recipe:
        """What goes on from a model that has learnt without labels: in the time that is left, with the settings of the
        training that begins from nothing."""
        weights, record = run.weights(), run.record
        head = self.supervised.model.write().get("head", "linear")
        return self.supervised.changed(
            {
                "model": weights.model.config.write() | {"head": head, "classes": 0},
                "data.mean": weights.preprocess.mean,
                "data.std": weights.preprocess.std,
                "init.weights": str(run.folder),
                "init.mode": "full",
                "train.seed": run.recipe.train.seed,
                "train.budget": rest(self.budget, record.seconds or 0.0, record.steps),
            }
        )


def choose_trial(
    source: str, settings: Mapping[str, Any], labelled: str = "", share: float = SHARE, tell: Tell = silent
) -> Trial:
    """Look at the pictures, and choose what `settings` leave open: train.budget is what each way has in all.

    `labelled`: a source of its own with the labels; without it they are those of `source`, or a part of them, by
    data.labelled. Pictures that will be tested on are not learnt from in any way.

    >>> trial = choose_trial("digits", {"train.budget": "40s", "data.labelled": 0.1})
    >>> trial.pretraining.train.budget, len(trial.unlabelled.of("train")), len(trial.labelled.of("train"))
    ('30s', 1078, 109)
    """
    _check(settings)
    of_both = {name: value for name, value in settings.items() if name.startswith(BOTH)}
    alone = {name: value for name, value in settings.items() if not labelled or name not in OF_LABELS}
    first = choose_pretraining(source, alone, tell=tell)
    if not labelled and len(first.index.class_names) < 2:
        raise DataError(
            f"{source} has no classes to measure by. Say where pictures with labels are, such as some of these, with "
            "--labelled FOLDER, or --labelled TABLE.csv with the columns path and label."
        )
    budget = first.recipe.train.budget
    of_labels = {name: value for name, value in of_both.items() if not name.startswith("data.augment")}
    choice = choose(
        labelled or source,
        {**of_labels, "train.budget": budget, "train.baseline": False, "init.weights": "none"},
        tell=tell,
    )
    require_one_class(choice.index.targets, choice.index.source, "vitral pretrain --verdict")
    if (tested := len(choice.index.of("test"))) < FEW:
        raise DataError(
            f"{labelled or source} leaves {tested} picture{'s' if tested > 1 else ''} to test on, and so few cannot "
            f"tell what helps: {FEW} are the least, and some hundreds are better."
        )
    unlabelled, copies = _without_tested(first.index, choice.index, tell)
    if len(unlabelled.of("train")) < LEAST:
        raise DataError(
            f"{source} has {len(unlabelled.of('train'))} pictures to learn from without labels that are not tested on: "
            f"give at least {LEAST}, better some thousand."
        )
    recipe = first.recipe.changed({"train.budget": part(budget, share)})
    # What is said of the time is said of both, by the command.
    why = tuple(reason for reason in first.why if "train.budget" not in reason)
    return Trial(recipe, unlabelled, choice.recipe, choice.index, budget, copies, why)


def _check(settings: Mapping[str, Any]) -> None:
    if settings.get("init.weights", "none") != "none":
        raise RecipeError(
            "--verdict compares with a model that begins from nothing: leave init.weights out. What the weights of "
            "others are good for, vitral probe tells."
        )
    if "train.epochs" in settings:
        raise RecipeError("--verdict gives both ways the same time: set train.budget, and leave train.epochs out.")


def part(budget: str, share: float) -> str:
    """A share of a budget.

    >>> part("1h", 0.75), part("500steps", 0.5)
    ('2700s', '250steps')
    """
    seconds, steps = parse_budget(budget)
    return f"{share * seconds:g}s" if seconds else f"{max(1, round(share * steps))}steps"


def rest(budget: str, seconds: float, steps: int) -> str:
    """What a training that took so long leaves of a budget; never nothing.

    >>> rest("1h", 2702.4, 9000), rest("500steps", 80.2, 375)
    ('897.6s', '125steps')
    """
    total, count = parse_budget(budget)
    return f"{max(1.0, round(total - seconds, 1)):g}s" if total else f"{max(1, count - steps)}steps"


def _without_tested(index: Index, labelled: Index, tell: Tell) -> tuple[Index, int]:
    """The same pictures, but copies of those that will be tested on count as tested, too; and how many these are."""
    tested = {digest for _, digest in _digests(labelled, labelled.of("test"), tell)}
    known = np.flatnonzero(index.splits != "test")
    copies = [number for number, digest in _digests(index, known, tell) if digest in tested]
    splits = index.splits.copy()
    splits[copies] = "test"
    return replace(index, splits=splits), len(copies)


def _digests(index: Index, numbers: NDArray[np.int64], tell: Tell) -> Iterable[tuple[int, bytes]]:
    for done, number in enumerate(map(int, numbers)):
        tell(Progress(done, len(numbers), LOOKING))
        try:
            yield number, digest_of(index.storage.read(number))
        except DataError:
            continue  # the packing says so
    tell(Progress(len(numbers), len(numbers), LOOKING))
