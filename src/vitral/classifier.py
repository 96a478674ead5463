"""What most programs need: load a trained model, ask it about a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.decode import Picture
from vitral.errors import DataError, WeightsError
from vitral.run import Run
from vitral.weights.calibration import Calibration
from vitral.weights.own import Weights
from vitral.weights.pretrained import Pretrained, load_pretrained


@dataclass(frozen=True)
class Prediction:
    """An answer: the label, how probable the model holds it, and the same for every class, most probable first.

    `distance` says how unlike the pictures that were learnt from this one is: above 1 it is farther from every class
    than 95 % of the validation pictures were. It is None where that was not measured (no validation pictures).
    """

    label: str
    probability: float
    probabilities: tuple[tuple[str, float], ...]
    distance: float | None = None

    @property
    def unknown(self) -> bool:
        """Whether the picture is unlike all that was learnt from: then the label means little."""
        return self.distance is not None and self.distance > 1

    def __str__(self) -> str:
        return f"{'unknown, perhaps ' if self.unknown else ''}{self.label} ({self.probability:.1%})"


class Classifier:
    """A trained model that answers for pictures.

    `Classifier.load("runs/digits").predict("picture.png")` gives a Prediction; a list of pictures gives a list.
    A picture is a path, a Pillow picture or an array of uint8 or uint16, (H, W) or (H, W, channels); an array
    (B, H, W, channels) is a list of pictures. All pass through the preprocessing that is stored with the weights.
    """

    def __init__(self, weights: Weights, calibration: Calibration | None = None) -> None:
        self.model = weights.model.eval()
        self.preprocess = weights.preprocess
        self.class_names = weights.class_names
        self.calibration = calibration
        self.notes = weights.notes if isinstance(weights, Pretrained) else ()  # what to know before believing it

    @classmethod
    def load(cls, source: str | Path | Run) -> "Classifier":
        """From a run, its folder, a `model.safetensors` by itself, or anybody's weights (see `load_pretrained`)."""
        weights, calibration = opened(source)
        if not weights.class_names:
            raise WeightsError(f"{source} has no classes, so there is nothing to answer with. Train it: it gets some.")
        return cls(weights, calibration)

    @overload
    def predict(self, pictures: Picture) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is a Sequence

    @overload
    def predict(self, pictures: Sequence[Picture]) -> list[Prediction]: ...

    def predict(self, pictures: Picture | Sequence[Picture]) -> Prediction | list[Prediction]:
        """What a picture shows, or what each of a list of pictures shows."""
        if isinstance(pictures, np.ndarray) and pictures.ndim == 4:
            pictures = list(pictures)
        many = isinstance(pictures, Sequence) and not isinstance(pictures, str)
        answers = []
        for answer in self.each(pictures if many else [pictures]):  # type: ignore[arg-type, list-item]
            if isinstance(answer, DataError):
                raise answer
            answers.append(answer)
        return answers if many else answers[0]

    def each(self, pictures: Sequence[Picture], batch_size: int = 64) -> Iterator[Prediction | DataError]:
        """The answers one after another; for a picture that cannot be read, the error that says why."""
        for start in range(0, len(pictures), batch_size):
            inputs = [self._input(picture) for picture in pictures[start : start + batch_size]]
            readable = [images for images in inputs if isinstance(images, Tensor)]
            rows = iter(self._asked(torch.stack(readable)) if readable else [])
            for found in inputs:
                yield found if isinstance(found, DataError) else next(rows)

    def _input(self, picture: Picture) -> Tensor | DataError:
        try:
            return self.preprocess(picture)
        except DataError as error:
            return error

    @torch.inference_mode()
    def _asked(self, images: Tensor) -> Iterator[Prediction]:  # (B, C, H, W)
        images = images.to(next(self.model.parameters()))
        tokens = self.model.features(images, first=self.model.config.tokens_seen)
        logits = torch.stack(self.model.logits(tokens)).mean(dim=0).float().cpu()
        if self.calibration is None:
            yield from (self._prediction(row, None) for row in logits.softmax(dim=1).numpy())
            return
        distances = self.calibration.distances(self.model.pool(tokens).float().cpu()).tolist()
        for row, distance in zip(self.calibration.probabilities(logits).numpy(), distances, strict=True):
            yield self._prediction(row, distance)

    def _prediction(self, row: NDArray[Any], distance: float | None) -> Prediction:
        order = np.argsort(-row, kind="stable")
        ranked = tuple((self.class_names[i], float(row[i])) for i in order)
        return Prediction(ranked[0][0], ranked[0][1], ranked, distance)


def opened(source: str | Path | Run) -> tuple[Weights, Calibration | None]:
    """The weights of a run or of anybody, and the honest doubt beside them, where it was measured."""
    if isinstance(source, Run) or Run.is_run(source):
        run = source if isinstance(source, Run) else Run.load(source)
        weights = run.weights()
        return weights, Calibration.load(run.folder, weights.model)
    pretrained = load_pretrained(source)
    return pretrained, Calibration.load(pretrained.folder, pretrained.model) if pretrained.folder else None
