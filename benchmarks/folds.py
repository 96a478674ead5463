"""A recipe over all pictures of its set: each is held out once.     python benchmarks/folds.py food-features

Where a set has few test pictures, their score says little. Here the recipe learns `--folds` times, each time from all
but another part, validation and test pictures included, and every picture is asked about once.
"""

import time

import click
import numpy as np

from vitral.data.folds import OutOfFold
from vitral.evaluation.metrics import share
from vitral.recipes import find_recipe
from vitral.training.folds import out_of_fold
from vitral.training.preparation import prepared


@click.command(help=__doc__)
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE …")
@click.option("--folds", default=4, show_default=True, type=click.IntRange(min=2))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
def main(recipes: tuple[str, ...], folds: int, seed: int) -> None:
    for name in recipes:
        started_at, recipe = time.perf_counter(), find_recipe(name).changed({"train.seed": seed})
        if recipe.train.budget != "none":
            raise click.UsageError(f"{name} has a budget, which a fold has not: give a recipe with train.epochs.")
        pictures = len(prepared(recipe, to_train=False).pack.index.samples)
        each_epoch = max(1, pictures * (folds - 1) // (folds * recipe.train.batch_size))
        *_, found = out_of_fold(recipe, recipe.train.epochs * each_epoch, folds)
        assert isinstance(found, OutOfFold)
        right = found.probabilities.argmax(axis=1) == found.labels
        score = share(int(np.sum(right)), len(right))
        click.echo(
            f"{name}, seed {seed}: {right.sum()} of {len(right)} right, {score.value:.1%} "
            f"({score.low:.1%} to {score.high:.1%}), {folds} trainings in {time.perf_counter() - started_at:.0f} s"
        )


if __name__ == "__main__":
    main()
