"""Named recipes, with their measured scores."""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from vitral.errors import RecipeError
from vitral.files import run_python
from vitral.recipe import Recipe
from vitral.recipes.ants_bees_finetune import ants_bees_finetune
from vitral.recipes.bourke_food import bourke_food
from vitral.recipes.cifar10 import cifar10
from vitral.recipes.cifar10_deit import cifar10_deit
from vitral.recipes.cifar10_distilled import cifar10_distilled
from vitral.recipes.cifar10_finetune import cifar10_finetune
from vitral.recipes.cifar10_resnet import cifar10_resnet
from vitral.recipes.cifar10_swin import cifar10_swin
from vitral.recipes.digits import digits
from vitral.recipes.dino_walk import dino_walk
from vitral.recipes.food_features import food_features
from vitral.recipes.food_finetune import food_finetune
from vitral.recipes.imagenette_mini_probe import imagenette_mini_probe
from vitral.recipes.mnist import mnist
from vitral.recipes.mu_cifar10 import mu_cifar10
from vitral.recipes.owen_cifar10 import owen_cifar10
from vitral.recipes.paper import ABOUT, PAPER
from vitral.recipes.pulfer_mnist import pulfer_mnist
from vitral.recipes.tutorial_cifar10_a import tutorial_cifar10_a
from vitral.recipes.tutorial_cifar10_b import tutorial_cifar10_b
from vitral.recipes.tutorial_food import tutorial_food
from vitral.recipes.tutorial_mnist import tutorial_mnist
from vitral.settings import unknown

RECIPES: Mapping[str, Recipe] = {
    "digits": digits,
    "mnist": mnist,
    "cifar10": cifar10,
    "cifar10-deit": cifar10_deit,
    "cifar10-distilled": cifar10_distilled,
    "cifar10-swin": cifar10_swin,
    "cifar10-resnet": cifar10_resnet,
    "cifar10-finetune": cifar10_finetune,
    "food-features": food_features,
    "food-finetune": food_finetune,
    "ants-bees-finetune": ants_bees_finetune,
    "imagenette-mini-probe": imagenette_mini_probe,
    "mu-cifar10": mu_cifar10,
    "owen-cifar10": owen_cifar10,
    "pulfer-mnist": pulfer_mnist,
    "dino-walk": dino_walk,
    "bourke-food": bourke_food,
    "tutorial-mnist": tutorial_mnist,
    "tutorial-cifar10-a": tutorial_cifar10_a,
    "tutorial-cifar10-b": tutorial_cifar10_b,
    "tutorial-food": tutorial_food,
    **PAPER,
}

__all__ = ["RECIPES", "about", "digits", "find_recipe", "has_pictures", "needs"]


def about(name: str) -> str:
    """A line on a named recipe: the first of its file, where the file has no other.

    >>> about("paper-l16-jft-7")
    "The paper's ViT-L/16 on JFT-300M, 7 epochs."
    """
    if name in ABOUT:
        return ABOUT[name]
    return (sys.modules[f"{__name__}.{name.replace('-', '_')}"].__doc__ or "").split("     ")[0]


def needs(recipe: Recipe) -> tuple[str, ...]:
    """The sets and weights of a recipe that `vitral fetch` can bring.

    >>> needs(RECIPES["cifar10-deit"]), needs(RECIPES["digits"])
    (('cifar10', 'cifar10_resnet56'), ())
    """
    from vitral.data.sources.named import NAMED
    from vitral.weights.catalogue import NAMED_WEIGHTS

    can_be_fetched = {name for name, one in NAMED.items() if one.files} | NAMED_WEIGHTS.keys()
    names = (recipe.data.source, recipe.init.weights, recipe.teacher.source)
    return tuple(name for name in names if name in can_be_fetched)


def find_recipe(name: str) -> Recipe:
    """A recipe by its name, from a TOML file, or from a Python file: `mine.py:flowers`; for pictures, one is chosen.

    >>> find_recipe("digits").data.source
    'digits'
    """
    if name in RECIPES:
        return RECIPES[name]
    if name.endswith(".toml"):
        return Recipe.from_file(name)
    path, _, inside = (name + ":" if name.endswith(".py") else name).rpartition(":")
    if path.endswith(".py"):
        return _from_python(path, inside)
    if has_pictures(name):
        from vitral.recipes.choose import choose

        return choose(name).recipe
    if "/" in name or "\\" in name:
        raise RecipeError(f"There is no folder or file {name}.")
    folders = sorted(path.name for path in Path().iterdir() if path.is_dir() and not path.name.startswith("."))
    if get_close_matches(name, [*RECIPES, *folders]):
        raise RecipeError(unknown(name, [*RECIPES, *folders], "recipe or folder"))
    if begun := [one for one in RECIPES if one.startswith(f"{name.lower()}-")][:3]:  # mu: mu-cifar10
        raise RecipeError(f"There is no recipe or folder {name}. Did you mean {' or '.join(begun)}?")
    raise RecipeError(
        f"There is no recipe or folder {name}. `vitral ls` lists the recipes, `vitral ls tutorials` those of tutorials."
    )


def has_pictures(name: str, settings: Mapping[str, object] | None = None) -> bool:
    """Whether this is no recipe but something to learn from: a named set, a folder, a table, an archive, shards.

    A set that has a recipe of its own name is that recipe, whose model is its own: with weights the pictures are meant.
    """
    from vitral.data.sources import SHARDS  # with numpy, which names and files do not need
    from vitral.data.sources.named import NAMED

    if name in RECIPES and name in NAMED:
        return (settings or {}).get("init.weights", "none") != "none"
    is_recipe = name in RECIPES or name.endswith((".toml", ".py")) or ".py:" in name
    return not is_recipe and (name in NAMED or name.startswith(SHARDS) or Path(name).exists())


def _from_python(path: str, name: str) -> Recipe:
    """The recipe of this name in a Python file, which is run."""
    values, _ = run_python(path)
    recipes = [known for known, value in values.items() if isinstance(value, Recipe)]
    if name in recipes:
        return values[name]
    if name in values:
        raise RecipeError(f"{path}: {name} is of type {type(values[name]).__name__}, and should be a Recipe.")
    if not recipes:
        raise RecipeError(f"{path} holds no recipe.")
    raise RecipeError(f"{path}: {unknown(name, recipes, 'recipe')}" if name else f"Say which: {path}:{recipes[0]}")
