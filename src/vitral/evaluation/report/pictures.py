"""What the page shows, each as a data URI: figures in a light and a dark version, and test pictures."""

from base64 import b64encode
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitral.evaluation import figures
from vitral.evaluation.report.facts import plain
from vitral.look.sheets import as_picture

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation

MOST = 24  # wrong ones, and right ones
LARGE = 256  # pixels a side, at most
SMALL = 96  # below which the pixels are shown as squares

Draw = Callable[["Evaluation", IO[bytes], bool], None]


def pictures(evaluation: "Evaluation") -> dict[str, Any]:
    """Figures under their names, None where there is nothing to draw; then the pictures, as lists."""
    small_letters = len(evaluation.weights.class_names) > 12
    return {
        "loss": _figure(evaluation, partial(figures.curves, only="loss")),
        "accuracy": _figure(evaluation, partial(figures.curves, only="accuracy")),
        "confusion": _figure(evaluation, figures.confusion, least=84 if small_letters else 60),
        "reliability": _figure(evaluation, figures.reliability),
        "wrong": _tiles(evaluation, figures.chosen_wrong(evaluation, MOST)),
        "right": _tiles(evaluation, figures.chosen_right(evaluation, MOST)),
    }


def _figure(evaluation: "Evaluation", draw: Draw, least: int = 60) -> dict[str, Any] | None:
    """`least`: pixels of the screen for an inch, below which the letters could no longer be read."""
    light, dark = BytesIO(), BytesIO()
    draw(evaluation, light, False)
    draw(evaluation, dark, True)
    if not light.getvalue():
        return None
    with Image.open(light) as drawn:
        width, height = drawn.size
    return {
        "light": _uri(light.getvalue(), "png"),
        "dark": _uri(dark.getvalue(), "png"),
        "width": width,
        "height": height,
        "least": round(width / 150 * least),
        "most": round(width / 150 * 108),
    }


def _tiles(evaluation: "Evaluation", chosen: NDArray[np.int64]) -> list[dict[str, Any]]:
    names, labels, predicted = evaluation.weights.class_names, evaluation.labels, evaluation.answers.predicted
    samples, tiles = evaluation.samples, []
    for i in chosen:
        picture = as_picture(evaluation.images([int(i)])[0])
        tiles.append(
            {
                "uri": _picture_uri(picture),
                "width": picture.width,
                "height": picture.height,
                "pixelated": max(picture.size) < SMALL,
                "sample": plain(samples[i]),
                "was": plain(names[labels[i]]),
                "said": plain(names[predicted[i]]),
                "probability": float(evaluation.probabilities[i, predicted[i]]),
            }
        )
    return tiles


def _picture_uri(picture: Image.Image) -> str:
    content = BytesIO()
    if max(picture.size) < SMALL:
        picture.save(content, "PNG", optimize=True)
        return _uri(content.getvalue(), "png")
    picture.thumbnail((LARGE, LARGE))
    picture.save(content, "JPEG", quality=85)
    return _uri(content.getvalue(), "jpeg")


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{b64encode(content).decode('ascii')}"
