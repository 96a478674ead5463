"""Named recipes, with their measured scores."""

from collections.abc import Mapping
from pathlib import Path

from vitral.errors import RecipeError
from vitral.recipe import Recipe
from vitral.recipes.digits import digits
from vitral.settings import unknown

RECIPES: Mapping[str, Recipe] = {"digits": digits}

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
