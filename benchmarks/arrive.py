"""Convert, and ask the real libraries about photographs that are not square.     python benchmarks/arrive.py FOLDER

Short trainings on the pictures of FOLDER that are not square: the default recipe, what `vitral train FOLDER` chooses
(with a linear stem, as others have no other), and `--weights`, all of which learn; then each as it was by default
before, with a resize that no library has, or that they round differently. Each is converted for every library that is
installed (`pip install timm torchvision transformers`), which is then asked about 20 test pictures. The figures are in
docs/decisions/0016-what-leaves-arrives.md.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
from PIL import Image

from vitral import Recipe, VitralError, train
from vitral.data.sources import open_source
from vitral.deploy.convert import convert
from vitral.deploy.trial import Trial
from vitral.recipe import Data, ViTConfig
from vitral.recipes.choose import choose

PLAIN = {"model.stem": "linear", "model.attention.qk_norm": False}
BEFORE = {"data.resize": "crop", "data.jpeg": "scaled"}
TIMMS = {"data.resize": {"kind": "shortest", "share": 224 / 248, "rounding": "even"}}


def oblong(source: str, target: Path) -> str:
    """A copy of a folder with the pictures that are not square."""
    index = open_source(Data(source=source))
    for sample, label, split in index.rows():
        path = Path(source) / sample
        with Image.open(path) as image:
            if image.width != image.height:
                place = target / split / label / path.name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
    return str(target)


def default(source: str) -> Recipe:
    model = ViTConfig(image_size=64, patch_size=8, width=96, depth=4, heads=3, classes=0)
    return Recipe(model=model, data=Data(source=source))


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--weights", default="vit_tiny_patch16_224", show_default=True)
@click.option("--steps", default=100, show_default=True, type=click.IntRange(min=1))
def main(folder: str, weights: str, steps: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        source = oblong(folder, Path(place) / "oblong")
        begun = {"init.weights": weights, "init.mode": "gentle", "train.baseline": False}
        recipes: dict[str, tuple[Recipe, dict[str, Any]]] = {
            "default": (default(source), {}),
            "chosen": (choose(source, PLAIN | {"train.baseline": False}).recipe, {}),
            weights: (choose(source, begun).recipe, {}),
            "default, as before": (default(source), BEFORE),
            "chosen, as before": (choose(source, PLAIN | {"train.baseline": False}).recipe, BEFORE),
            f"{weights}, as before": (choose(source, begun).recipe, TIMMS),
        }
        for number, (name, (recipe, settings)) in enumerate(recipes.items()):
            recipe = recipe.changed({"train.budget": f"{steps}steps", **settings})
            run = train(recipe, out=Path(place) / f"run-{number}")
            for to in ("timm", "hf", "torchvision"):
                try:
                    about = json.loads((convert(run.folder, to) / "about.json").read_text())
                    click.echo(f"{name}: {Trial(**about['trial'])}")
                except VitralError as error:
                    click.echo(f"{name}: {error}")


if __name__ == "__main__":
    main()
