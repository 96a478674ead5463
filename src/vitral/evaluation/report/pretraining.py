"""Write `report.html` of a run that learnt without labels: how it went, and what it saw as it learnt.

All of it comes from the run folder: its recipe, its metrics and the pictures in moments/.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitral.errors import printable
from vitral.files import write_whole
from vitral.look.figures import figure, show_image, theme
from vitral.look.gallery import as_uri
from vitral.look.page import render
from vitral.run import REPORT, Run

MOST = 7  # moments side by side

Draw = Callable[[IO[bytes], bool], None]
Tiles = NDArray[np.uint8]  # (n, 3, H, W)


@dataclass(frozen=True)
class Curve:
    """A figure of each epoch."""

    name: str
    title: str
    meaning: str
    is_share: bool = False

    def text(self, value: float) -> str:
        return f"{value:.1%}" if self.is_share else f"{value:.3g}"


CURVES = (
    Curve("loss", "Loss", "what is made small; it does not tell what the features are good for"),
    Curve("rank", "Effective rank", "in how many directions pictures differ for the model"),
    Curve("spread", "Spread", "how far pictures are apart, as a share of the length of their features"),
    Curve("output_spread", "Spread of the outputs", "the same of what is compared: near 0 all pictures are one"),
    Curve("linear_accuracy", "Linear probe", "how often a line drawn between the classes is on the right side", True),
    Curve("knn_accuracy", "Nearest neighbours", "how often the 10 most alike pictures have the right class", True),
)


@dataclass(frozen=True)
class Strip:
    """One kind of view through time."""

    kind: str  # the row of each moment
    before: tuple[str, ...]  # rows of the first moment that stand before it
    title: str
    how: str  # to read it


STRIPS = (
    Strip(
        "said",
        ("picture", "hidden"),
        "What it says is hidden",
        "The picture, what the model sees of it, then what it says: it learns the shape of hidden patches, and their "
        "brightness and contrast are filled in.",
    ),
    Strip(
        "colours",
        ("picture",),
        "What belongs together for it",
        "Patches that look alike to the model have one colour, in all pictures of a moment: the first three principal "
        "components of their features. From one moment to the next colours may change places.",
    ),
    Strip(
        "attention",
        ("picture",),
        "Where it looks",
        "How much its features take from each patch: the mean of all blocks and heads. Bright is much.",
    ),
)

OBJECTIVES = {
    "mae": "Most of each picture was hidden, and the model learnt to say it (a masked autoencoder).",
    "lejepa": "Several views of a picture were to look alike, and all pictures to be spread (LeJEPA).",
    "dino": "The model learnt to say of each view what its own moving average says of the large ones (DINO).",
}


def write_pretraining_report(run: Run) -> Path:
    """Write the page into the run folder; returns its path."""
    epochs = [line for line in run.metrics if line["event"] == "epoch"]
    record, recipe, place = run.record, run.recipe, shlex.quote(str(run.folder))
    template = files(__package__).joinpath("pretraining.html").read_text(encoding="utf-8")
    page = render(
        template,
        {
            "name": printable(run.folder.resolve().name),
            "source": printable(Path(record.data.source).name),
            "pictures": record.data.pictures,
            "objective": OBJECTIVES.get(recipe.train.objective.kind, "It learnt without labels."),
            "finished": record.state == "finished",
            "minutes": (record.seconds or 0.0) / 60,
            "epochs": len(epochs),
            "rows": [_row(curve, epochs) for curve in _told(epochs)],
            "curves": [(curve.title, both_themes(partial(_draw_curve, epochs, curve))) for curve in _told(epochs)],
            "strips": _strips(run),
            "recipe": recipe.to_toml(),
            "probe": f"vitral probe {place} LABELLED",
            "train": f"vitral train LABELLED init.weights={place} init.mode=full",
            "embed": f"vitral embed {place} PICTURES",
        },
        number=lambda value: f"{value:,}",
        one_digit=lambda value: f"{value:.1f}",
    )
    path = run.folder / REPORT
    with run.writing():
        write_whole(path, page)
    return path


def _told(epochs: Sequence[dict[str, Any]]) -> list[Curve]:
    """The curves that there are."""
    return [curve for curve in CURVES if any(f"validation_{curve.name}" in line for line in epochs)]


def _row(curve: Curve, epochs: Sequence[dict[str, Any]]) -> dict[str, str]:
    values = [line[name] for line in epochs if (name := f"validation_{curve.name}") in line]
    return {
        "title": curve.title,
        "first": curve.text(values[0]),
        "last": curve.text(values[-1]),
        "meaning": curve.meaning,
    }


def _draw_curve(epochs: Sequence[dict[str, Any]], curve: Curve, to: IO[bytes], dark: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    colours = theme(dark)
    styles = {"train": (colours.orange, "--"), "validation": (colours.blue, "-")}
    with figure(to, 4.6, 3.2, "", "", dark=dark) as canvas:
        axes = canvas.subplots()
        for split, (colour, dashes) in styles.items():
            points = {line["epoch"]: line[name] for line in epochs if (name := f"{split}_{curve.name}") in line}
            if points:
                label = f"{split}, at the end {curve.text([*points.values()][-1])}"
                marker = "o" if len(points) == 1 else ""
                axes.plot([*points], [*points.values()], dashes, color=colour, marker=marker, label=label)
        if curve.name != "loss":
            axes.set_ylim(bottom=0)
        axes.set(title=curve.title, xlabel="epoch")
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.margins(x=0.01)
        axes.legend(frameon=False, fontsize=9)


def _strips(run: Run) -> list[dict[str, Any]]:
    """A figure for each kind of view that the moments have."""
    all_steps = [*run.moments]
    if not all_steps:
        return []
    some = np.unique(np.linspace(0, len(all_steps) - 1, MOST).round().astype(int))
    moments = {all_steps[number]: _read_moment(run.moments[all_steps[number]]) for number in some}
    first = next(iter(moments.values()))
    return [
        {"title": strip.title, "how": strip.how, **both_themes(partial(_draw_strip, moments, strip), least=96)}
        for strip in STRIPS
        if strip.kind in first
    ]


def _read_moment(path: Path) -> dict[str, Tiles]:
    """The rows of a moment, by name."""
    with Image.open(path) as image:
        names, columns = str(image.info["rows"]).split(), int(image.info["columns"])
        pixels = np.asarray(image.convert("RGB"))
    rows = np.split(pixels, len(names), axis=0)
    return {
        name: np.stack(np.split(row, columns, axis=1)).transpose(0, 3, 1, 2)
        for name, row in zip(names, rows, strict=True)
    }


def _draw_strip(moments: dict[int, dict[str, Tiles]], strip: Strip, to: IO[bytes], dark: bool) -> None:
    """A row for each picture, a column for each moment."""
    last, names = max(moments), {"picture": "picture", "hidden": "what it sees"}
    columns = [(names[name], next(iter(moments.values()))[name]) for name in strip.before]
    for step, rows in moments.items():
        title = "before" if step == 0 else f"{step:,} step{'s' if step > 1 else ''}"
        columns.append((f"end: {step:,}" if step == last and step else title, rows[strip.kind]))
    count, (height, width) = len(columns[0][1]), columns[0][1].shape[2:]
    with figure(to, 1.02 * len(columns), 0.35 + 1.02 * count * height / width, "", "", dark=dark) as canvas:
        grid = canvas.subplots(count, len(columns), squeeze=False, gridspec_kw={"wspace": 0.02, "hspace": 0.02})
        for column, (title, tiles) in enumerate(columns):
            grid[0][column].set_title(title, fontsize=8.5, fontweight="normal", loc="center", pad=4)
            for row in range(count):
                show_image(grid[row][column], tiles[row])


def both_themes(draw: Draw, least: int = 60) -> dict[str, Any]:
    """A figure in a light and a dark version, and its sizes. `least`: pixels of the screen per inch that it needs."""
    light, dark = BytesIO(), BytesIO()
    draw(light, False)
    draw(dark, True)
    with Image.open(light) as image:
        width, height = image.size
    return {
        "light": as_uri(light.getvalue(), "png"),
        "dark": as_uri(dark.getvalue(), "png"),
        "width": width,
        "height": height,
        "least": round(width / 150 * least),
        "most": round(width / 150 * 108),
    }
