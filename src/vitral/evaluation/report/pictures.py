"""The images of the page as data URIs: figures in a light and a dark version, and test pictures."""

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral.errors import printable
from vitral.evaluation import figures
from vitral.look.explain import DEFAULT
from vitral.look.gallery import SMALL, as_uri, picture_uri
from vitral.look.grading import RANDOM, Grade, grade
from vitral.look.maps import as_vit
from vitral.look.overlay import overlay_map
from vitral.look.readings import METHODS
from vitral.look.sheets import as_picture
from vitral.progress import OutOfTime, Progress, Tell

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation

MOST = 24  # wrong answers, and right ones
GRADING = "grading maps"
MOST_MAPS = 4  # wrong answers, and right ones, with maps: each runs the model some hundred times

Draw = Callable[["Evaluation", IO[bytes], bool], None]


def pictures(evaluation: "Evaluation", tell: Tell) -> dict[str, Any]:
    """The figures by name, None where there is nothing to draw; then the test pictures, as lists."""
    small_letters = len(evaluation.weights.class_names) > 12
    return {
        "loss": _figure(evaluation, partial(figures.curves, only="loss")),
        "accuracy": _figure(evaluation, partial(figures.curves, only="accuracy")),
        "confusion": _figure(evaluation, figures.confusion, least=84 if small_letters else 60),
        "reliability": _figure(evaluation, figures.reliability),
        "wrong": _tiles(evaluation, figures.surest_mistakes(evaluation, MOST)),
        "right": _tiles(evaluation, figures.some_right(evaluation, MOST)),
        "looked": _maps(evaluation, tell) if evaluation.weights.model.attends else None,
    }


def _figure(evaluation: "Evaluation", draw: Draw, least: int = 60) -> dict[str, Any] | None:
    """A figure in both versions, and its sizes. `least`: pixels of the screen per inch that letters need to be read."""
    light, dark = BytesIO(), BytesIO()
    draw(evaluation, light, False)
    draw(evaluation, dark, True)
    if not light.getvalue():
        return None
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


def _tiles(evaluation: "Evaluation", rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The values of a tile for each of these rows of the evaluation."""
    names, labels, predicted = evaluation.weights.class_names, evaluation.labels, evaluation.outputs.predicted
    samples, tiles = evaluation.samples, []
    for i in rows:
        picture = as_picture(evaluation.images([int(i)])[0])
        tiles.append(
            {
                "uri": picture_uri(picture),
                "width": picture.width,
                "height": picture.height,
                "pixelated": max(picture.size) < SMALL,
                "sample": printable(samples[i]),
                "was": printable(names[labels[i]]),
                "said": printable(names[predicted[i]]),
                "probability": float(evaluation.probabilities[i, predicted[i]]),
            }
        )
    return tiles


def _maps(evaluation: "Evaluation", tell: Tell) -> dict[str, Any]:
    """Tiles with maps, wrong and right, and on how many of them the map is better than chance. Grades take long: there
    are as many as there is time for."""
    wrong, right = figures.surest_mistakes(evaluation, MOST_MAPS), figures.some_right(evaluation, MOST_MAPS)
    rows = np.concatenate([wrong, right])
    tiles, grades = _tiles(evaluation, rows), list[Grade]()
    model, preprocess = as_vit(evaluation.weights.model), evaluation.weights.preprocess
    temperature = float(evaluation.calibration.temperature) if evaluation.calibration else 1.0
    pictures = evaluation.images(rows)
    images = preprocess.normalise(torch.from_numpy(pictures)).to(next(model.parameters()))
    grades_are_possible = in_time = model.config.positions.kind != "relative"  # else no patch can be left out
    for done, (tile, i, picture, image) in enumerate(zip(tiles, rows, pictures, images, strict=True)):
        try:
            tell(Progress(done, len(tiles), GRADING))
        except OutOfTime:
            in_time = False
        map = METHODS[DEFAULT](model, image[None])[0].cpu()
        tile |= {"map": picture_uri(overlay_map(picture, map.numpy())), "better": None, "verdict": ""}
        if grades_are_possible and in_time:
            label = int(evaluation.outputs.predicted[i])
            result = grade(model, image, map, label, temperature=temperature)
            tile |= {"better": result.better, "verdict": result.verdict}
            grades.append(result)
    if grades_are_possible and len(grades) < len(tiles):
        evaluation.left_out.append(f"grades of {len(tiles) - len(grades)} maps")
    return {
        "wrong": tiles[: len(wrong)],
        "right": tiles[len(wrong) :],
        "graded": len(grades),
        "ungraded": len(tiles) - len(grades),
        "grades_are_possible": grades_are_possible,
        "better": sum(one.better for one in grades),
        "by_luck": len(grades) / (RANDOM + 1),
        "random": RANDOM,
    }
