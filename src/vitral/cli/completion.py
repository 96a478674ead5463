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
    from vitral.recipes import RECIPES

    return _fitting(list(RECIPES), incomplete) or [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run folders in runs/; else files."""
    from vitral.run import Run

    found = [str(path) for path in sorted(Path("runs").glob("*")) if Run.is_run(path)]
    return _fitting(found, incomplete) or [CompletionItem(incomplete, type="file")]


def sizes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Sizes of the paper, recipes, runs."""
    from vitral.model.config import SIZES

    named = _fitting([f"{size}/16" for size in SIZES], incomplete)
    return named + recipes(ctx, parameter, incomplete) + runs(ctx, parameter, incomplete)


def settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Dotted names of settings, each with its `=`."""
    from vitral.recipe import Recipe
    from vitral.settings import names

    typed = ctx.params.get("settings") or ()
    if typed and typed[-1].endswith("="):  # bash parts words at `=`: this is a value, and nobody can guess it
        return []
    return _fitting([f"{name}=" for name in dict.fromkeys(names(Recipe))], incomplete)


def _fitting(words: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]
