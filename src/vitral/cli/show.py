"""vitral show RECIPE|RUN [key=value …]"""

import click

from vitral.cli import completion
from vitral.cli.terminal import ProgressBar, settings_of, with_settings


@click.command()
@click.argument("name", metavar="RECIPE|RUN", shell_complete=completion.recipes)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
def command(name: str, settings: tuple[str, ...]) -> None:
    """Show a recipe, or what a run was asked, as TOML with a comment on each setting.

    \b
        vitral show digits > mine.toml
        vitral train mine.toml
    """
    from vitral.recipes import RECIPES, find_recipe, has_pictures, needs
    from vitral.run import Run

    changes = settings_of(settings)
    if name not in RECIPES and Run.is_run(name):
        recipe = with_settings(Run.load(name).recipe, changes)
    elif has_pictures(name, changes):  # the settings have a say in what is chosen
        from vitral.recipes.choose import choose

        with ProgressBar() as tell:
            recipe = choose(name, changes, tell=tell).recipe
    else:
        recipe = with_settings(find_recipe(name), changes)
    if names := needs(recipe):
        click.echo(f"# Needs: vitral fetch {' '.join(names)}\n")
    click.echo(recipe.to_toml(), nl=False)
