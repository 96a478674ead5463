"""Before `vitral train FOLDER` with weights at hand: ways to learn are tried, and a table says which one goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitral.cli.terminal import ProgressBar, console, duration, print_table, table

if TYPE_CHECKING:
    from vitral.recipes.choose import RecipeChoice
    from vitral.run import Comparison, Way
    from vitral.training.comparison import Candidate


def compare_ways(
    choice: "RecipeChoice", settings: Mapping[str, Any], began: float, code: tuple[Path, ...]
) -> tuple["Candidate", "Comparison"]:
    """Try the ways that a choice leaves open; prints how far each came, and why one of them goes on."""
    from vitral.progress import drain
    from vitral.recipes.choose import candidates
    from vitral.training.comparison import compare
    from vitral.training.config import parse_budget

    ways = candidates(choice, settings, code)
    budget = next(way.recipe.train.budget for way in ways if not way.is_quick)
    seconds, _ = parse_budget(budget)
    console.print(told_ways(choice.compared_with, budget), soft_wrap=True)
    try:
        with ProgressBar() as tell:
            comparison = drain(compare(ways, choice.index, seconds, began, code), tell)
    except KeyboardInterrupt:
        console.print("No run was begun yet, and what was packed is kept: the same command begins with the trials.")
        raise
    print_comparison(comparison)
    return next(one for one in ways if one.name == comparison.chosen), comparison


def told_ways(weights: str, budget: str) -> str:
    """A sentence on what is tried before the training."""
    return (
        f"The weights {weights} are here: a head on them, all of them gently, and a new model are tried "
        f"first, for a third of {budget} at most (train.budget)."
    )


def print_comparison(comparison: "Comparison") -> None:
    """Print a table of the ways, and which one goes on."""
    columns = ("steps", comparison.figure, "steps that fit", "expected")
    listing = table("way", *columns, "", right=columns)
    for way in comparison.ways:
        listing.add_row(way.name, *_cells(way, comparison.figure), f"not tried: {way.why_not}" if way.why_not else "")
    print_table(listing)
    pictures, seconds = f"{comparison.pictures:,} pictures that were held out", duration(comparison.seconds)
    if all(way.value is None for way in comparison.ways):
        console.print(
            f"Nothing could be tried in {seconds}. Goes on: {comparison.chosen}. Whether another way is better nobody "
            "knows: with a longer train.budget they are tried."
        )
        return
    console.print(f"On {pictures}; {seconds}. Goes on: {comparison.chosen}.")


def _cells(way: "Way", figure: str) -> list[str]:
    if way.value is None or way.expected is None:
        return ["–"] * 4
    value, expected = (f"{one:.1%}" if figure == "accuracy" else f"{one:.3f}" for one in (way.value, way.expected))
    return [f"{way.steps:,}", value, f"{way.planned:,}", expected]


def words_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings as one types them."""
    return tuple(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings.items())
