"""Named recipes, with their measured scores."""

from collections.abc import Mapping
from pathlib import Path

from vitral.errors import RecipeError
from vitral.recipe import Recipe
from vitral.recipes.digits import digits
from vitral.recipes.tutorial_cifar10_a import tutorial_cifar10_a
from vitral.recipes.tutorial_cifar10_b import tutorial_cifar10_b
from vitral.recipes.tutorial_food import tutorial_food
from vitral.recipes.tutorial_mnist import tutorial_mnist
from vitral.settings import unknown

RECIPES: Mapping[str, Recipe] = {
    "digits": digits,
    "tutorial-mnist": tutorial_mnist,
    "tutorial-cifar10-a": tutorial_cifar10_a,
    "tutorial-cifar10-b": tutorial_cifar10_b,
    "tutorial-food": tutorial_food,
}

__all__ = ["RECIPES", "digits", "find_recipe"]


def find_recipe(name: str) -> Recipe:
    """A recipe by its name, or from a TOML file.

    >>> find_recipe("digits").data.source
    'digits'
    """
    if name in RECIPES:
        return RECIPES[name]
    if name.endswith(".toml"):
        return Recipe.from_file(name)
    if Path(name).exists():
        raise RecipeError(
            f"{name} is neither a recipe nor a TOML file. "
            f"For pictures name a recipe first: vitral train digits data.source={name}"
        )
    raise RecipeError(unknown(name, list(RECIPES), "recipe"))
