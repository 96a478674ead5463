"""A picture is looked at: what the model says, where it looked for it, and how far the map is to be believed."""

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
from vitral.look.grading import Grade, grade, with_random_weights
from vitral.look.inspected_model import InspectedModel
from vitral.look.maps import Some, blocks_of
from vitral.look.readings import METHODS, answer_by_head
from vitral.plugin import Code
from vitral.settings import unknown
from vitral.weights.own import Weights

# Chosen by measurement: docs/decisions/0012-which-map.md. Without classes there is none to speak for.
DEFAULT, WITHOUT_CLASSES = "class-attention", "attention"
SHARPEST = 672  # pixels of the shorter side that a figure has room for
TOP = 5  # answers that are told

# What each method shows, as it stands in a figure.
MEANINGS = {
    "attention": "what the answer took from each patch in the last block",
    "rollout": "attention followed from the answer back through all blocks",
    "class-attention": "attention through all blocks, as far as it spoke for the answer",
}

Map = NDArray[np.float32]  # (down, across)


@dataclass(frozen=True, eq=False)
class Explanation:
    """All that a figure shows."""

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
        """By the method that was asked for."""
        return self.maps[self.method]

    @property
    def says(self) -> str:
        """The answer, in words; none without classes."""
        if not self.answers:
            return ""
        label, probability = self.answers[0]
        return f"{'Unlike what it learnt from; perhaps' if self.unlike else 'It says'} “{label}”, {probability:.1%}"

    @property
    def verdict(self) -> str:
        """How far to believe the map, in a sentence."""
        return self.grade.sentence if self.grade else self.ungraded

    def write(self) -> dict[str, Any]:
        """As JSON has it."""
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
    """Looks at pictures with one model; `Explainer.load("runs/digits").look("picture.png")` gives an Explanation.

    `method` is one of METHODS; None takes the one that explained best when all were measured. `blocks` are those whose
    heads are shown.
    """

    def __init__(self, subject: InspectedModel, method: str | None = None, blocks: Some = -1) -> None:
        self.subject = subject
        self.method = method or (DEFAULT if subject.class_names else WITHOUT_CLASSES)
        if self.method not in METHODS:
            raise RecipeError(unknown(self.method, list(METHODS), "method"))
        if self.method not in subject.methods:
            raise RecipeError(
                f"{subject.name} has no classes for {self.method} to speak for. These need none: attention, rollout."
            )
        self.blocks = blocks_of(subject.model, blocks)

    @classmethod
    def load(cls, source: str | Path, method: str | None = None, blocks: Some = -1, code: Code = ()) -> "Explainer":
        """From a run or anybody's weights."""
        return cls(InspectedModel.load(source, code), method, blocks)

    @cached_property
    def untrained(self) -> InspectedModel:
        """The same model with random weights: one for all pictures."""
        own = self.subject
        return InspectedModel(own.name, Weights(with_random_weights(own.model), own.preprocess, own.class_names))

    def each(self, pictures: Iterable[Path]) -> Iterator[Explanation | DataError]:
        """One after another; for a picture that cannot be read, the error that says why."""
        for picture in pictures:
            try:
                yield self.look(picture)
            except DataError as error:
                yield error

    def look(self, picture: Picture, name: str = "The picture") -> Explanation:
        """Look at one picture."""
        name = str(picture) if isinstance(picture, str | Path) else name
        subject, model = self.subject, self.subject.model
        pixels = subject.preprocess.resized(picture)
        answer = subject.answer(pixels)
        images = subject.images(pixels)
        by_block = answer_by_head(model, images, self.blocks)[0].cpu().numpy()  # (blocks, heads, down, across)
        maps = {one: subject.reading(pixels, one) for one in subject.methods}
        names, graded = subject.class_names, not self._why_not
        return Explanation(
            name=name,
            picture=sharp(picture, subject.preprocess),
            patch_size=model.config.patch_size,
            answers=tuple((names[i], float(answer.probabilities[i])) for i in answer.ranked(TOP)) if answer else (),
            unlike=bool(answer and answer.distance is not None and answer.distance > 1),
            method=self.method,
            maps=maps,
            heads=dict(zip(self.blocks, by_block, strict=True)),
            grade=self._grade(pixels, images[0], maps[self.method], answer.ranked(1)[0]) if answer and graded else None,
            ungraded=self._why_not,
        )

    @property
    def _why_not(self) -> str:
        if not self.subject.class_names:
            return "The model has no classes, so there is no answer to grade the map by."
        if self.subject.model.config.positions.kind == "relative":
            return "The map is not graded: with relative positions no patch can be left out."
        return ""

    def _grade(self, pixels: NDArray[np.uint8], image: torch.Tensor, map: Map, label: int) -> Grade:
        calibration = self.subject.calibration
        return grade(
            self.subject.model,
            image,
            torch.from_numpy(map),
            label,
            untrained=torch.from_numpy(self.untrained.reading(pixels, self.method)),
            temperature=float(calibration.temperature) if calibration else 1.0,
        )


def sharp(picture: Picture, preprocess: Preprocess) -> NDArray[np.uint8]:
    """The part that the model sees, (C, H, W), in as many times its pixels as the picture has and a figure shows."""
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
