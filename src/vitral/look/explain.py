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

from vitral.data.config import AsItIs
from vitral.data.decode import Picture, decode
from vitral.data.preprocess import Preprocess
from vitral.errors import DataError, RecipeError
from vitral.inference import Source
from vitral.look.grading import Grade, grade, why_ungraded, with_random_weights
from vitral.look.inspected_model import Answer, InspectedModel
from vitral.look.maps import Some, blocks_of
from vitral.look.readings import FOR_A_CLASS, METHODS, answer_by_block
from vitral.plugin import Code
from vitral.predictions import LabelsPrediction, NumberPrediction, Prediction, TasksPrediction
from vitral.settings import unknown
from vitral.targets import Target, columns, is_one_class
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
    answers: tuple[tuple[str, float], ...]  # class or label and probability, the most probable first; else none
    unlike: bool  # whether it is unlike all pictures that were learnt from
    method: str
    maps: dict[str, Map]  # by every method that the model allows
    heads: dict[int, NDArray[np.float32]]  # block → (heads, down, across)
    grade: Grade | None
    ungraded: str = ""  # why there is no grade
    prediction: Prediction | None = None  # of the target that is explained; None without classes
    task: str = ""  # the name of that target, where there are several
    explained: str = ""  # the class or label that the map is for, where it is not simply the answer

    @property
    def map(self) -> Map:
        """The map by `method`."""
        return self.maps[self.method]

    @property
    def says(self) -> str:
        """The answer in words, and what the map explains of it; "" without classes."""
        if self.prediction is None:
            return ""
        opening = "Unlike what it learnt from; perhaps" if self.unlike else "It says"
        if isinstance(self.prediction, NumberPrediction):
            number, interval = self.prediction.words(1)
            says = f"{opening} {number}" + (f" ({interval.strip()})" if interval else "")
        elif isinstance(self.prediction, LabelsPrediction):
            labels = ", ".join(f"“{label}”" for label in self.prediction.labels)
            says = f"{opening} {labels or 'no label'}"
        else:
            says = f"{opening} “{self.prediction.label}”, {self.prediction.probability:.1%}"
        if self.explained:
            says += f"; explained is “{self.explained}”, {dict(self.prediction.probabilities)[self.explained]:.1%}"
        return f"{self.task}: {says}" if self.task else says

    @property
    def verdict(self) -> str:
        """How far to believe the map, in a sentence."""
        return self.grade.sentence if self.grade else self.ungraded

    def write(self) -> dict[str, Any]:
        """The explanation as values for JSON."""
        return {
            "path": self.name,
            **self._write_answer(),
            **({"unknown": self.unlike} if self.prediction else {}),
            "method": self.method,
            "map": self.map.tolist(),
            **({"grade": self.grade.write()} if self.grade else {"ungraded": self.ungraded}),
        }

    def _write_answer(self) -> dict[str, Any]:
        if isinstance(self.prediction, LabelsPrediction | NumberPrediction):
            answer = self.prediction.write(top=TOP)
        else:
            first = {"label": self.answers[0][0], "probability": self.answers[0][1]} if self.answers else {}
            answer = {**first, "probabilities": [{"label": name, "probability": share} for name, share in self.answers]}
        task = {"task": self.task} if self.task else {}
        return {**task, **answer, **({"explained": self.explained} if self.explained else {})}


class Explainer:
    """Explains the answers of one model; `Explainer.load("runs/digits").explain("picture.png")` gives an Explanation.

    `method` is one of METHODS; None takes the one that explained best when all were measured. `blocks` are those whose
    heads are shown. `label` is the class or label that maps are for, or the task whose answer they are for; None: what
    the model answers, of several labels the most probable, of several tasks the first.
    """

    def __init__(
        self, inspected: InspectedModel, method: str | None = None, blocks: Some = -1, label: str | None = None
    ) -> None:
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
        self.place, self.output = self._find(label)

    @classmethod
    def load(
        cls,
        source: Source,
        method: str | None = None,
        blocks: Some = -1,
        code: Code = (),
        label: str | None = None,
    ) -> "Explainer":
        """The explainer of a run, of weights of any library, or of a model in memory."""
        return cls(InspectedModel.load(source, code), method, blocks, label)

    def _find(self, label: str | None) -> tuple[int, int | None]:
        """The place of the target that is explained, and the output that `label` names; None: what is answered."""
        targets, names = self.inspected.targets, self.inspected.class_names
        if label is None:
            return 0, None
        tasks = [target.name for target in targets] if len(targets) > 1 else []
        if label in tasks:
            return tasks.index(label), None
        of_task = [f"{target.name}:{name}" for target in targets for name in target.names]
        found = [number for number, name in enumerate(names) if label in (name, of_task[number])]
        if not found:
            raise RecipeError(unknown(label, [*tasks, *names], "label"))
        if len(found) > 1:
            raise RecipeError(f"{label} is of several tasks: say {' or '.join(of_task[number] for number in found)}.")
        return self.inspected.target_of(found[0])[0], found[0]

    @cached_property
    def untrained(self) -> InspectedModel:
        """The same model with random weights, made once for all pictures."""
        inspected = self.inspected
        targets = () if is_one_class(inspected.targets) else inspected.targets
        model = with_random_weights(inspected.model)
        random = Weights(model, inspected.preprocess, inspected.class_names, other_targets=targets)
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
        output = self._output(answer)
        outputs = None if output is None else torch.tensor([output])
        by_block = answer_by_block(model, images, self.blocks, outputs=outputs)
        maps = {
            method: inspected.reading(pixels, method, output if method == FOR_A_CLASS else None)
            for method in inspected.methods
        }
        prediction = self._prediction(answer)
        answers = prediction.probabilities[:TOP] if prediction else ()
        named = "" if self.output is None or not answers else inspected.class_names[self.output]
        return Explanation(
            name=name,
            picture=sharp(picture, inspected.preprocess),
            patch_size=model.config.cell,
            answers=answers,
            unlike=bool(answer and answer.prediction.unknown),
            method=self.method,
            maps=maps,
            heads={block: maps[0].cpu().numpy() for block, maps in by_block.items()},
            grade=None
            if output is None or self._why_not
            else self._grade(pixels, images[0], maps[self.method], output),
            ungraded=self._why_not,
            prediction=prediction,
            task=inspected.targets[self.place].name if len(inspected.targets) > 1 else "",
            explained=named or (answers[0][0] if isinstance(prediction, LabelsPrediction) else ""),
        )

    def _prediction(self, answer: Answer | None) -> Prediction | None:
        """What is said of the target that is explained."""
        if answer is None:
            return None
        if not isinstance(answer.prediction, TasksPrediction):
            return answer.prediction
        return answer.prediction[self.inspected.targets[self.place].name]

    def _output(self, answer: Answer | None) -> int | None:
        """The number of the output that is explained: that of the label, or of what is answered; None without any."""
        if answer is None or self.output is not None:
            return self.output
        mine = columns(self.inspected.targets)[self.place]
        return mine.start + int(answer.probabilities[mine].argmax())

    @property
    def _why_not(self) -> str:
        """Why maps of this model have no grade; "": they have one."""
        if not self.inspected.class_names:
            return "The model has no classes, so there is no answer to grade the map by."
        return why_ungraded(self.inspected.model)

    def _grade(self, pixels: NDArray[np.uint8], image: torch.Tensor, map: Map, output: int | None) -> Grade | None:
        if output is None or self._why_not:
            return None
        inspected, [target, mine] = self.inspected, self._target
        # Of a class that is simply the answer, the map of a model that has learnt nothing is for its own answer.
        named = output if self.output is not None or target.kind != "class" else None
        label = named if self.method == FOR_A_CLASS else None
        temperatures = inspected.calibration.temperature.reshape(-1) if inspected.calibration else torch.ones(1)
        return grade(
            inspected.model,
            image,
            torch.from_numpy(map),
            output,
            untrained=torch.from_numpy(self.untrained.reading(pixels, self.method, label)),
            temperature=float(temperatures[min(self.place, len(temperatures) - 1)]),
            target=target,
            first=mine.start,
        )

    @property
    def _target(self) -> tuple[Target, slice]:
        return self.inspected.targets[self.place], columns(self.inspected.targets)[self.place]


def sharp(picture: Picture, preprocess: Preprocess) -> NDArray[np.uint8]:
    """The part of a picture that the model sees, (C, H, W), at a multiple of its size: as many pixels as the picture
    has and a figure shows."""
    height, width = preprocess.image_size
    room = SHARPEST // min(height, width)
    if room > 1 and not isinstance(preprocess.resize, AsItIs):
        decoded = decode(picture)
        least = min(decoded.size) if isinstance(decoded, Image.Image) else min(decoded.shape[:2])
        times = min(room, least // min(height, width))
        if times > 1:
            larger = {"image_size": (times * height, times * width), "jpeg": "full"}
            return preprocess.model_copy(update=larger).resized(picture)
    return preprocess.resized(picture)
