"""Explain a model's answer to a picture: the answer, maps of where the model looked, and how far to believe them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral.data.config import Resize, Scale
from vitral.data.decode import Picture, decode
from vitral.data.preprocess import Preprocess
from vitral.errors import DataError, RecipeError
from vitral.inference import Source
from vitral.look.grading import Grade, grade, with_random_weights
from vitral.look.inspected_model import InspectedModel
from vitral.look.maps import Some, blocks_of
from vitral.look.readings import METHODS, answer_by_head
from vitral.plugin import Code
from vitral.settings import unknown
from vitral.weights.own import Weights

# Chosen by measurement: docs/decisions/0012-which-map.md. class-attention needs classes.
DEFAULT, WITHOUT_CLASSES = "class-attention", "attention"
SHARPEST = 672  # pixels of the shorter side that a figure has room for
TOP = 5  # answers in an explanation

# What each method shows, as it stands in a figure.
MEANINGS = {
    "attention": "what the answer took from each patch in the last block",
    "mean-attention": "what the answer took from each patch, as the mean of all blocks and heads",
    "rollout": "attention followed from the answer back through all blocks",
    "class-attention": "attention through all blocks, as far as it spoke for the answer",
}

Map = NDArray[np.float32]  # (down, across)


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a model answers to a picture, the maps that explain it, and the grade of the first one."""

    name: str  # of the picture
    picture: NDArray[np.uint8]  # (C, H, W): what the model saw, as sharp as there is room for
    patch_size: int  # pixels of what the model saw
    answers: tuple[tuple[str, float], ...]  # class and probability, the most probable first; none without classes
    unlike: bool  # whether it is unlike all pictures that were learnt from
    method: str
    maps: dict[str, Map]  # by every method that the model allows
    heads: dict[int, NDArray[np.float32]]  # block → (heads, down, across)
    grade: Grade | None
    ungraded: str = ""  # why there is no grade

    @property
    def map(self) -> Map:
        """The map by `method`."""
        return self.maps[self.method]

    @property
    def says(self) -> str:
        """The answer in words; "" without classes."""
        if not self.answers:
            return ""
        label, probability = self.answers[0]
        return f"{'Unlike what it learnt from; perhaps' if self.unlike else 'It says'} “{label}”, {probability:.1%}"

    @property
    def verdict(self) -> str:
        """How far to believe the map, in a sentence."""
        return self.grade.sentence if self.grade else self.ungraded

    def write(self) -> dict[str, Any]:
        """The explanation as values for JSON."""
        return {
            "path": self.name,
            **({"label": self.answers[0][0], "probability": self.answers[0][1]} if self.answers else {}),
            "probabilities": [{"label": label, "probability": share} for label, share in self.answers],
            **({"unknown": self.unlike} if self.answers else {}),
            "method": self.method,
            "map": self.map.tolist(),
            **({"grade": self.grade.write()} if self.grade else {"ungraded": self.ungraded}),
        }


class Explainer:
    """Explains the answers of one model; `Explainer.load("runs/digits").explain("picture.png")` gives an Explanation.

    `method` is one of METHODS; None takes the one that explained best when all were measured. `blocks` are those whose
    heads are shown.
    """

    def __init__(self, inspected: InspectedModel, method: str | None = None, blocks: Some = -1) -> None:
        self.inspected = inspected
        self.method = method or (DEFAULT if inspected.class_names else WITHOUT_CLASSES)
        if self.method not in METHODS:
            raise RecipeError(unknown(self.method, list(METHODS), "method"))
        if self.method not in inspected.methods:
            others = ", ".join(inspected.methods)
            raise RecipeError(
                f"{inspected.name} has no classes for {self.method} to speak for. These need none: {others}."
            )
        self.blocks = blocks_of(inspected.model, blocks)

    @classmethod
    def load(cls, source: Source, method: str | None = None, blocks: Some = -1, code: Code = ()) -> "Explainer":
        """The explainer of a run, of weights of any library, or of a model in memory."""
        return cls(InspectedModel.load(source, code), method, blocks)

    @cached_property
    def untrained(self) -> InspectedModel:
        """The same model with random weights, made once for all pictures."""
        inspected = self.inspected
        random = Weights(with_random_weights(inspected.model), inspected.preprocess, inspected.class_names)
        return InspectedModel(inspected.name, random)

    def each(self, pictures: Iterable[tuple[Picture, str]]) -> Iterator[Explanation | DataError]:
        """The explanation of each picture, which has a name, in turn; for one that cannot be read, the error that says
        why."""
        for picture, name in pictures:
            try:
                yield self.explain(picture, name)
            except DataError as error:
                yield error

    def explain(self, picture: Picture, name: str = "The picture") -> Explanation:
        """Explain the answer to one picture; `name` is for a picture that is no file."""
        name = str(picture) if isinstance(picture, str | Path) else name
        inspected, model = self.inspected, self.inspected.model
        pixels = inspected.preprocess.resized(picture)
        answer = inspected.answer(pixels)
        images = inspected.images(pixels)
        by_block = answer_by_head(model, images, self.blocks)[0].cpu().numpy()  # (blocks, heads, down, across)
        maps = {method: inspected.reading(pixels, method) for method in inspected.methods}
        names, is_graded = inspected.class_names, not self._why_not
        return Explanation(
            name=name,
            picture=sharp(picture, inspected.preprocess),
            patch_size=model.config.patch_size,
            answers=tuple((names[i], float(answer.probabilities[i])) for i in answer.top(TOP)) if answer else (),
            unlike=bool(answer and answer.distance is not None and answer.distance > 1),
            method=self.method,
            maps=maps,
            heads=dict(zip(self.blocks, by_block, strict=True)),
            grade=self._grade(pixels, images[0], maps[self.method], answer.top(1)[0]) if answer and is_graded else None,
            ungraded=self._why_not,
        )

    @property
    def _why_not(self) -> str:
        """Why maps of this model have no grade; "": they have one."""
        if not self.inspected.class_names:
            return "The model has no classes, so there is no answer to grade the map by."
        if self.inspected.model.config.positions.kind == "relative":
            return "The map is not graded: with relative positions no patch can be left out."
        return ""

    def _grade(self, pixels: NDArray[np.uint8], image: torch.Tensor, map: Map, label: int) -> Grade:
        calibration = self.inspected.calibration
        return grade(
            self.inspected.model,
            image,
            torch.from_numpy(map),
            label,
            untrained=torch.from_numpy(self.untrained.reading(pixels, self.method)),
            temperature=float(calibration.temperature) if calibration else 1.0,
        )


def sharp(picture: Picture, preprocess: Preprocess) -> NDArray[np.uint8]:
    """The part of a picture that the model sees, (C, H, W), at a multiple of its size: as many pixels as the picture
    has and a figure shows."""
    height, width = preprocess.image_size
    room = SHARPEST // min(height, width)
    if room > 1 and isinstance(preprocess.resize, Resize | Scale):
        decoded = decode(picture)
        least = min(decoded.size) if isinstance(decoded, Image.Image) else min(decoded.shape[:2])
        times = min(room, least // min(height, width))
        if times > 1:
            larger = {"image_size": (times * height, times * width), "jpeg": "full"}
            return preprocess.model_copy(update=larger).resized(picture)
    return preprocess.resized(picture)
