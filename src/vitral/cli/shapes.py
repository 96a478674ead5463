"""vitral shapes SIZE|RECIPE|RUN [key=value …] [--draw FILE] [--json]"""

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import code_option, console, print_table, settings_of, table, with_settings
from vitral.errors import RecipeError

if TYPE_CHECKING:
    from vitral.model.config import ModelConfig


@click.command()
@click.argument("name", metavar="SIZE|RECIPE|RUN", shell_complete=completion.sizes)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--draw", type=click.Path(dir_okay=False, path_type=Path), help="Draw it too: model.svg or model.png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(name: str, settings: tuple[str, ...], draw: Path | None, as_json: bool, code: tuple[Path, ...]) -> None:
    """Show a model step by step: what goes in, what comes out, parameters, operations for one image.

    SIZE is one of the paper's, such as B/16, R50+B/16 or R50x1, or of DINOv3 or Swin, such as dinov3-S/16 or swin-T;
    RECIPE a name or a TOML file; RUN a run folder. Of sizes and recipes any setting can be changed, such as
    model.patch_size=8. The drawing is the paper's figure 1 with the numbers of this model; as SVG it is light or dark
    as its reader is.
    """
    from vitral.model.shapes import count_parameters, shapes

    config = _config(name, settings, code)
    if draw:
        _draw(config, name, settings, draw)
    rows = shapes(config)
    parameters = count_parameters(rows)
    flops = sum(row.flops * row.times for row in rows)
    if as_json:
        click.echo(json.dumps({"parameters": parameters, "flops": flops, "steps": [asdict(row) for row in rows]}))
        return
    console.print(f"{_sentence(config)}\n", soft_wrap=True)
    listing = table(
        "step", "what", "takes", "gives", "times", "parameters", "MFLOPs", right=("times", "parameters", "MFLOPs")
    )
    for row in rows:
        times = f"× {row.times}" if row.times > 1 else ""
        operations = f"{row.flops / 1e6:,.2f}" if row.flops else ""
        numbers = f"{row.parameters:,}" if row.parameters else ""
        listing.add_row(row.name, row.what, _shape(row.takes), _shape(row.gives), times, numbers, operations)
    listing.add_row("together", "", "", "", "", f"{parameters:,}", f"{flops / 1e6:,.2f}", style="bold")
    print_table(listing)
    console.print("\nA multiply and an add are two operations (FLOPs); other tables count the pair as one.")
    if draw:
        console.print(f"Look at {draw}", soft_wrap=True)


def _draw(config: "ModelConfig", name: str, settings: tuple[str, ...], path: Path) -> None:
    from vitral.look.architecture import architecture
    from vitral.model.kinds import config_named
    from vitral.run import name_of

    title = _title(name) if config_named(name) else Path(name_of(name)).stem
    architecture(config, ", ".join([title, *settings])).write(path)


def _title(size: str) -> str:
    """As papers write it: ViT-B/16, DINOv3 ViT-S+/16, R50+ViT-B/16, R50x1, Swin-T."""
    words = size.replace("swin-", "Swin-").replace("dinov3-", "DINOv3 ")
    return re.sub(r"\w+\+?/\d+$", r"ViT-\g<0>", words)


def _sentence(config: "ModelConfig") -> str:
    """A sentence on how an image becomes tokens."""
    import torch

    from vitral.model.shapes import on_meta

    model, images = on_meta(config)
    with torch.device("meta"):
        tokens = model.features(images)
    (height, width), (down, across), P = config.height_width, model.grid_of(images), config.cell
    _, T, D = tokens.shape
    extra = T - model.patch_tokens(tokens).shape[1]
    places = "patches" if config.stride == P else "places"  # of a map that convolutions made
    cut = f", {places} of {P}: {height}/{P} · {width}/{P} =" if (height, width) == (down * P, across * P) else ":"
    beside = f"with {extra} extra {'token' if extra == 1 else 'tokens'}, " if extra else ""
    return f"Image {height}×{width}{cut} {down}·{across} {places}, {beside}{T} tokens of width {D}."


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _config(name: str, settings: tuple[str, ...], code: tuple[Path, ...]) -> "ModelConfig":
    """The settings of a model by the name of a size, a recipe or a run; classes and channels are those of its data."""
    from vitral.model import resolve
    from vitral.model.kinds import NAMED, config_named
    from vitral.plugin import is_plugin, load_plugins
    from vitral.recipe import Recipe
    from vitral.recipes import RECIPES, find_recipe
    from vitral.run import Run
    from vitral.settings import unknown

    if name not in RECIPES and Run.is_run(name):
        if settings:
            other = shlex.join(["vitral", "shapes", str(Path(name) / "recipe.toml"), *settings])
            raise click.UsageError(f"{name} is a run, and its model is as it was trained. With settings: {other}")
        return Run.load(name).weights(code).model.config
    size = config_named(name)
    try:
        recipe = Recipe(model=size) if size else find_recipe(name)
    except RecipeError as error:
        hint = unknown(name, [*NAMED, *RECIPES], "size, recipe or run")
        raise RecipeError(str(error) if name.endswith(".toml") or ".py" in name else hint) from None
    recipe = with_settings(recipe, settings_of(settings))
    config = resolve(recipe.model, load_plugins(filter(is_plugin, [recipe.model.kind])))
    if 0 in (config.classes, config.channels):
        from vitral.data.sources import open_source
        from vitral.training.preparation import complete

        if recipe.data.source == "ask":
            raise RecipeError(
                f"{name} leaves the pictures to you, and with them how many classes there are: say data.source=FOLDER "
                "or model.classes=1000."
            )
        return complete(config, open_source(recipe.data), needs_labels=config.has_classes)
    return config
