"""What the shell offers when Tab is pressed: recipes, runs, sizes, settings."""

from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class


@add_completion_class
class Bash(BashComplete):
    """As click's, but a setting ends in `=` and its value follows at once: no space behind it."""

    source_template = BashComplete.source_template.replace(
        "            COMPREPLY+=($value)\n",
        "            COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace\n",
    )


def recipes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recipes; else files."""
    return _or_files(_recipes(), incomplete)


def runs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run folders in runs/; else files."""
    return _or_files(_runs(), incomplete)


def sizes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Sizes of the paper, recipes, runs; else files."""
    from vitral.model.kinds import NAMED

    sizes = [name for name in NAMED if "+" in name or not name.endswith(("/14", "/32"))]  # one patch tells of others
    return _or_files([*sizes, *_recipes(), *_runs()], incomplete)


def settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Dotted names of settings, each with its `=`."""
    from vitral.recipe import Recipe
    from vitral.settings import names

    words = ctx.params.get("settings") or ()
    if words and words[-1].endswith("="):  # bash parts words at `=`: this is a value, and nobody can guess it
        return []
    return _matches([f"{name}=" for name in dict.fromkeys(names(Recipe))], incomplete)


def _recipes() -> list[str]:
    from vitral.recipes import RECIPES

    return list(RECIPES)


def _runs() -> list[str]:
    from vitral.run import Run

    return [str(path) for path in sorted(Path("runs").glob("*")) if Run.is_run(path)]


def _matches(words: list[str], incomplete: str) -> list[CompletionItem]:
    """The words that begin with what stands there."""
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _or_files(words: list[str], incomplete: str) -> list[CompletionItem]:
    # Not both: bash takes a word for a file to mean files alone.
    return _matches(words, incomplete) or [CompletionItem(incomplete, type="file")]
