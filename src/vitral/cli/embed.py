"""vitral embed WEIGHTS FOLDER [--out FOLDER] [--nearest PICTURE] [-k 8] [--patches] [--json]"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import ProgressBar, code_option, console, print_table, table
from vitral.errors import printable

if TYPE_CHECKING:
    from vitral.data.config import Data
    from vitral.evaluation.embed import Embeddings, Neighbour


@click.command()
@click.argument("weights", metavar="RUN|WEIGHTS", shell_complete=completion.runs)
@click.argument("source", metavar="FOLDER|FILE|NAME")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--out", type=click.Path(path_type=Path), help="Where it is written. Default: embeddings/NAME/WEIGHTS.")
@click.option(
    "--nearest",
    metavar="PICTURE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show the pictures that are most like it.",
)
@click.option("-k", "count", type=click.IntRange(1), default=8, show_default=True, help="How many.")
@click.option("--patches", is_flag=True, help="Also write what it sees in each patch: patches.npz.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@code_option
def command(
    weights: str,
    source: str,
    settings: tuple[str, ...],
    out: Path | None,
    nearest: Path | None,
    count: int,
    patches: bool,
    as_json: bool,
    code: tuple[Path, ...],
) -> None:
    """Write what a model sees in each picture as vectors, draw a map of them, find pictures that are alike.

    RUN|WEIGHTS is a run, a file or folder of weights, a name in weights/ of the data directory, or hf:org/model. The
    pictures need not be sorted into classes. Vectors go to embeddings.npz (samples, labels, class_names, splits,
    vectors), what is known of each picture also to pictures.csv, the map (t-SNE) to map.png. The same command goes on
    where it was interrupted, and where all is done only looks for what is nearest.
    """
    from vitral.evaluation.embed import embed
    from vitral.processes import join
    from vitral.run import last_name, name_of

    processes = join()
    folder = out or Path("embeddings") / last_name(source) / name_of(weights)
    with ProgressBar() as tell:
        data = data_of(source, settings)
        embeddings = embed(weights, data, folder, tell=tell, patches=patches, code=code, processes=processes)
    if not processes.first:
        return
    neighbours = _nearest(embeddings, nearest, count) if nearest else []
    if as_json:
        result: dict[str, object] = {"folder": str(folder), "shape": list(embeddings.vectors.shape)}
        if nearest:
            result["nearest"] = [neighbour._asdict() for neighbour in neighbours]
        click.echo(json.dumps(result))
        return
    for note in (*embeddings.weights.notes, *embeddings.pack.index.notes, *embeddings.pack.notes):
        console.print(printable(note))
    pictures, width = embeddings.vectors.shape
    console.print(f"{pictures:,} pictures, {width:,} numbers each.", style="bold")
    if nearest:
        what = " · ".join("class" if one.kind == "class" else one.name for one in embeddings.pack.index.targets)
        _print_neighbours(neighbours, nearest, what)
    if not (folder / "map.png").exists():
        console.print("They are too few for a map.")
    files = ", ".join(sorted(path.name for path in folder.iterdir() if path.suffix in (".csv", ".npz", ".png")))
    console.print(f"Look at {folder}/: {files}", soft_wrap=True)


def data_of(source: str, settings: tuple[str, ...]) -> "Data":
    """The table [data] for a source, with the settings of it that were typed as KEY=VALUE."""
    from vitral.cli.terminal import settings_of
    from vitral.errors import RecipeError
    from vitral.recipe import Recipe

    changes = settings_of(settings)
    if other := [name for name in changes if not name.startswith("data.")]:
        raise RecipeError(f"{other[0]} is no setting of the pictures: those start with data.")
    return Recipe().changed({**changes, "data.source": source}).data


def _nearest(embeddings: "Embeddings", picture: Path, count: int) -> list["Neighbour"]:
    """The pictures that are most like this one, nearest first; drawn as nearest.png."""
    import numpy as np

    from vitral.look.embedding_map import draw_nearest, tile

    neighbours = embeddings.nearest(picture, count)
    rows = np.array([neighbour.number for neighbour in neighbours])
    tiles = [
        tile(pixels, f"{neighbour.similarity:.3f}  {neighbour.label}", neighbour.sample)
        for pixels, neighbour in zip(embeddings.images(rows), neighbours, strict=True)
    ]
    query = tile(embeddings.weights.preprocess.resized(picture), picture.name)
    draw_nearest(embeddings.folder / "nearest.png", query, tiles)
    return neighbours


def _print_neighbours(neighbours: list["Neighbour"], picture: Path, what: str) -> None:
    console.print(f"\nMost like {printable(str(picture))}:", soft_wrap=True)
    listing = table("cosine", printable(what), "picture", right=("cosine",))
    for neighbour in neighbours:
        listing.add_row(f"{neighbour.similarity:.3f}", printable(neighbour.label), printable(neighbour.sample))
    print_table(listing)
