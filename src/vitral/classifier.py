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
from vitral.files import as_csv, write_whole
from vitral.inference import Inference, Source, load_calibrated, name_of_source
from vitral.plugin import Code
from vitral.weights.calibration import Calibration
from vitral.weights.own import Weights


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

    def write(self, unsure: float = 0.5, top: int | None = None) -> dict[str, Any]:
        """As JSON has it, with the `top` most probable classes; None: all. Below `unsure` it is called so."""
        return {
            "label": self.label,
            "probability": self.probability,
            "unsure": self.probability < unsure,
            "unknown": None if self.distance is None else self.unknown,
            "distance": self.distance,
            "probabilities": [{"label": name, "probability": share} for name, share in self.probabilities[:top]],
        }


@dataclass(frozen=True)
class FilePrediction:
    """A file with its prediction, or with why there is none."""

    path: Path
    prediction: Prediction | None
    error: str = ""

    def write(self, unsure: float = 0.5, top: int | None = None) -> dict[str, Any]:
        """As `vitral predict --json` prints it."""
        what = {"error": self.error} if self.prediction is None else self.prediction.write(unsure, top)
        return {"path": str(self.path), **what}


class Classifier:
    """A trained model that answers for pictures.

    `Classifier.load("runs/digits").predict("picture.png")` gives a Prediction; a list of pictures gives a list.
    A picture is a path, a Pillow picture or an array of uint8 or uint16, (H, W) or (H, W, channels); an array
    (B, H, W, channels) is a list of pictures. All pass through the preprocessing that is stored with the weights.
    """

    def __init__(self, weights: Weights, calibration: Calibration | None = None) -> None:
        self.inference = Inference(weights, calibration)
        self.model, self.preprocess = self.inference.model, self.inference.preprocess
        self.class_names, self.calibration = weights.class_names, calibration
        self.notes = self.inference.notes

    @classmethod
    def load(cls, source: Source, code: Code = ()) -> "Classifier":
        """From a run, its folder, a `model.safetensors` by itself, anybody's weights (see `load_pretrained`), or what
        is in memory: Weights, or a module of timm or transformers.

        A model that is in a file of Python (`model.kind=mine.py:Mixer`) is loaded only if that file is in `code`."""
        weights, calibration = load_calibrated(source, code)
        name = str(source) if isinstance(source, str | Path) else name_of_source(source)
        weights.check_head(name)
        if not weights.class_names:
            raise WeightsError(f"{name} has no classes, so there is nothing to answer with. Train it: it gets some.")
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
            rows = iter(self._predictions(torch.stack(readable)) if readable else [])
            for one in inputs:
                yield one if isinstance(one, DataError) else next(rows)

    def files(self, paths: Sequence[Path]) -> Iterator[FilePrediction]:
        """The predictions for files, each with its path."""
        for path, answer in zip(paths, self.each(paths), strict=True):
            error = str(answer) if isinstance(answer, DataError) else ""
            yield FilePrediction(path, None if isinstance(answer, DataError) else answer, error)

    def _input(self, picture: Picture) -> Tensor | DataError:
        try:
            return self.preprocess(picture)
        except DataError as error:
            return error

    def _predictions(self, images: Tensor) -> Iterator[Prediction]:  # (B, C, H, W)
        outputs = self.inference.outputs(images)
        distances = self.inference.distances(outputs)
        each = [None] * len(images) if distances is None else distances.tolist()
        for row, distance in zip(self.inference.probabilities(outputs).numpy(), each, strict=True):
            yield self._prediction(row, distance)

    def _prediction(self, row: NDArray[Any], distance: float | None) -> Prediction:
        order = np.argsort(-row, kind="stable")
        ranked = tuple((self.class_names[i], float(row[i])) for i in order)
        return Prediction(ranked[0][0], ranked[0][1], ranked, distance)


def write_csv(path: Path, predictions: Sequence[FilePrediction], unsure: float, top: int) -> None:
    """A table with a row per file: the answer, and the next most probable ones."""
    others = [f"{name}_{place}" for place in range(2, top + 1) for name in ("label", "probability")]
    header = ["path", "label", "probability", "unsure", "unknown", "error", *others]
    text = as_csv(header, [_row(one, unsure, top, len(header)) for one in predictions])
    try:
        if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
            path.write_text(text)
        else:
            write_whole(path, text)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}).") from None


def _row(file: FilePrediction, unsure: float, top: int, columns: int) -> list[str]:
    if file.prediction is None:
        row = [str(file.path), "", "", "", "", file.error]
    else:
        (label, probability), *others = file.prediction.probabilities[:top]
        doubtful = "yes" if probability < unsure else "no"
        unknown = "" if file.prediction.distance is None else "yes" if file.prediction.unknown else "no"
        row = [str(file.path), label, f"{probability:.6f}", doubtful, unknown, ""]
        row += [cell for name, share in others for cell in (name, f"{share:.6f}")]
    return row + [""] * (columns - len(row))  # there may be fewer classes than columns for them
