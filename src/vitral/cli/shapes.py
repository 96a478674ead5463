"""vitral shapes SIZE|RECIPE|RUN [--draw FILE] [--json]"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import code_option, console, print_table, table
from vitral.errors import RecipeError

if TYPE_CHECKING:
    from vitral.model.config import ModelConfig


@click.command()
@click.argument("name", metavar="SIZE|RECIPE|RUN", shell_complete=completion.sizes)
@click.option("--draw", type=click.Path(dir_okay=False, path_type=Path), help="Draw it too: model.svg or model.png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(name: str, draw: Path | None, as_json: bool, code: tuple[Path, ...]) -> None:
    """Show a model step by step: what goes in, what comes out, parameters, operations for one image.

    SIZE is one of the paper's, such as B/16; RECIPE a name or a TOML file; RUN a run folder. The drawing is the paper's
    figure 1 with the numbers of this model; as SVG it is light or dark as its reader is.
    """
    from vitral.model.shapes import shapes

    config = _config(name, code)
    if draw:
        _draw(config, name, draw)
    rows = shapes(config)
    parameters = sum(row.parameters * row.times for row in rows)
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


def _draw(config: "ModelConfig", name: str, path: Path) -> None:
    from vitral.look.architecture import architecture
    from vitral.model.config import SIZES
    from vitral.run import name_of

    named = f"ViT-{name}" if name.partition("/")[0] in SIZES else Path(name_of(name)).stem
    architecture(config, named).write(path)


def _sentence(config: "ModelConfig") -> str:
    """A sentence on how an image becomes tokens."""
    import torch

    from vitral.model.shapes import on_meta

    model, images = on_meta(config)
    with torch.device("meta"):
        tokens = model.features(images)
    (height, width), (down, across), P = config.height_width, model.grid_of(images), config.stride
    _, T, D = tokens.shape
    extra = T - model.patch_tokens(tokens).shape[1]
    cut = f", patches of {P}: {height}/{P} · {width}/{P} =" if (height, width) == (down * P, across * P) else ":"
    beside = f"with {extra} extra {'token' if extra == 1 else 'tokens'}, " if extra else ""
    return f"Image {height}×{width}{cut} {down}·{across} patches, {beside}{T} tokens of width {D}."


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _config(name: str, code: tuple[Path, ...]) -> "ModelConfig":
    """The settings of a model by the name of a size, a recipe or a run; classes and channels are those of its data."""
    from vitral.model import resolve
    from vitral.model.config import SIZES, ViTConfig
    from vitral.plugin import is_plugin, load_plugins
    from vitral.recipes import RECIPES, find_recipe
    from vitral.run import Run
    from vitral.settings import unknown

    if name not in RECIPES and Run.is_run(name):
        return Run.load(name).weights(code).model.config
    if name.partition("/")[0] in SIZES:
        return ViTConfig.named(name)
    try:
        recipe = find_recipe(name)
    except RecipeError as error:
        sizes = [f"{size}/{patch}" for size in SIZES for patch in (16, 14, 32)]
        hint = unknown(name, [*sizes, *RECIPES], "size, recipe or run")
        raise RecipeError(str(error) if name.endswith(".toml") or ".py" in name else hint) from None
    config = resolve(recipe.model, load_plugins(filter(is_plugin, [recipe.model.kind])))
    if 0 in (config.classes, config.channels):
        from vitral.data.sources import open_source
        from vitral.training.preparation import complete

        return complete(config, open_source(recipe.data), needs_labels=config.has_classes)
    return config
