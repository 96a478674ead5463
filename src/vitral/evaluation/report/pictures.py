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
from vitral.evaluation import figures, target_figures
from vitral.evaluation.report.seen import what_it_sees
from vitral.evaluation.target_figures import of_number
from vitral.look.gallery import SMALL, as_uri, picture_uri
from vitral.look.grading import RANDOM, Grade, grade, why_ungraded
from vitral.look.maps import as_attending
from vitral.look.overlay import overlay_map
from vitral.look.readings import class_attention
from vitral.look.sheets import as_picture
from vitral.predictions import number_words
from vitral.progress import OutOfTime, Progress, Tell

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation

MOST = 24  # wrong answers, and right ones
GRADING = "grading maps"
MOST_MAPS = 4  # wrong answers, and right ones, with maps: each runs the model some hundred times

Draw = Callable[["Evaluation", IO[bytes], bool], None]


def pictures(evaluation: "Evaluation", tell: Tell) -> dict[str, Any]:
    """The learning curves, each with its title; and the figures and test pictures of each target."""
    return {
        "curves": [
            (panel.title, _figure(evaluation, partial(figures.curves, only=panel)))
            for panel in figures.panels(evaluation)
        ],
        "seen": what_it_sees(evaluation),
        "parts": [_part(part, tell) for part in evaluation.parts],
    }


def _part(part: "Evaluation", tell: Tell) -> dict[str, Any]:
    """The figures by name, None where there is nothing to draw; then the test pictures, as lists."""
    kind, small_letters = part.targets[0].kind, len(part.weights.class_names) > 12
    shown: dict[str, Any] = {
        "wrong": _tiles(part, figures.surest_mistakes(part, MOST)),
        "right": _tiles(part, figures.some_right(part, MOST)),
        "looked": _maps(part, tell) if part.weights.model.attends else None,
    }
    if kind == "number":
        return shown | {
            "said": _figure(part, target_figures.said_and_true),
            "errors": _figure(part, target_figures.errors),
        }
    shown["reliability"] = _figure(part, figures.reliability)
    if kind == "labels":
        return shown | {"trade": _figure(part, target_figures.precision_recall, least=84)}
    return shown | {"confusion": _figure(part, figures.confusion, least=84 if small_letters else 60)}


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
    words = {"class": _class_words, "labels": _labels_words, "number": _number_words}[evaluation.targets[0].kind]
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
                **words(evaluation, int(i)),
            }
        )
    return tiles


def _class_words(evaluation: "Evaluation", i: int) -> dict[str, Any]:
    names, predicted = evaluation.weights.class_names, evaluation.outputs.predicted
    was, said = printable(names[evaluation.labels[i]]), printable(names[predicted[i]])
    right = was == said
    return {
        "right": right,
        "alt": f"{was}, {'recognised' if right else f'taken for {said}'}",
        "was": was,
        "said": said,
        "probability": float(evaluation.probabilities[i, predicted[i]]),
    }


def _labels_words(evaluation: "Evaluation", i: int) -> dict[str, Any]:
    parts = figures.labels_of(evaluation, i)
    parts = {word: [printable(name) for name in names] for word, names in parts.items()}
    has = ", ".join(sorted([*parts["right"], *parts["missed"]])) or "no label"
    right = not parts["missed"] and not parts["false"]
    return {"right": right, "alt": f"{has}, {'recognised' if right else 'not all recognised'}", "labels": parts}


def _number_words(evaluation: "Evaluation", i: int) -> dict[str, Any]:
    truth, said, margin = of_number(evaluation)
    off = float(said[i] - truth[i])
    was, says = number_words(float(truth[i])), number_words(float(said[i]))
    return {
        "right": not margin or abs(off) <= margin,
        "alt": f"{was}, said {says}",
        "was": was,
        "said": says,
        "off": f"{'+' if off > 0 else ''}{number_words(off)}",
    }


def _maps(evaluation: "Evaluation", tell: Tell) -> dict[str, Any]:
    """Tiles with maps, wrong and right, and on how many of them the map is better than chance. Grades take long: there
    are as many as there is time for."""
    wrong, right = figures.surest_mistakes(evaluation, MOST_MAPS), figures.some_right(evaluation, MOST_MAPS)
    rows = np.concatenate([wrong, right])
    tiles, grades = _tiles(evaluation, rows), list[Grade]()
    model, preprocess = as_attending(evaluation.weights.model), evaluation.weights.preprocess
    [target], temperature = evaluation.targets, evaluation.calibration.temperature if evaluation.calibration else 1.0
    outputs = torch.from_numpy(figures.explained(evaluation)[rows]) + evaluation.first
    pictures = evaluation.images(rows)
    images = preprocess.normalise(torch.from_numpy(pictures)).to(next(model.parameters()))
    grades_are_possible = in_time = not why_ungraded(model)
    each = zip(tiles, outputs, pictures, images, strict=True)
    for done, (tile, output, picture, image) in enumerate(each):
        try:
            tell(Progress(done, len(tiles), GRADING))
        except OutOfTime:
            in_time = False
        map = class_attention(model, image[None], output[None], of_number=target.kind == "number")[0].cpu()
        name = printable(evaluation.weights.class_names[int(output) - evaluation.first])
        tile |= {"map": picture_uri(overlay_map(picture, map.numpy())), "better": None, "verdict": "", "for": name}
        if grades_are_possible and in_time:
            result = grade(
                model, image, map, int(output), temperature=float(temperature), target=target, first=evaluation.first
            )
            tile |= {"better": result.better, "verdict": result.verdict}
            grades.append(result)
    if ungraded := (len(tiles) - len(grades)) * grades_are_possible:
        grades_of = "the grade of 1 map" if ungraded == 1 else f"grades of {ungraded} maps"
        evaluation.left_out.append(grades_of + (evaluation.task and f" of {evaluation.task}"))
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
