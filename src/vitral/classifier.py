"""What most programs need: load a trained model, ask it about a picture."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from vitral.data.decode import Picture
from vitral.data.pack import key_of
from vitral.data.sources import Index
from vitral.data.sources.folder import stamp_of
from vitral.data.threads import one_core_each
from vitral.errors import DataError, WeightsError
from vitral.files import as_csv, write_whole
from vitral.graph import GRAPHS, GraphModel
from vitral.inference import Inference, Source, choose_device, load_calibrated, name_of_source
from vitral.model.interface import Model
from vitral.plugin import Code
from vitral.predictions import Prediction, prediction_of
from vitral.processes import Processes
from vitral.rounds import Rounds, Rows, joined, place_of
from vitral.weights.calibration import Calibration
from vitral.weights.own import Weights

BATCH = 16  # pictures that a thread decodes and asks about at once
ROUND = 16 * BATCH  # files that are kept at once

Loaded = Weights | GraphModel


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

    `Classifier.load("runs/digits").predict("picture.png")` gives a Prediction; a list of pictures gives a list. Where a
    picture has several labels, a number or several tasks, `targets` says so, and the Prediction has them.
    `model.onnx` or `model.openvino`, as `vitral export` writes it, is loaded as a run is, and gives the same answers.

    A picture is a path, the bytes of a file, a Pillow picture or an array of uint8 or uint16, (H, W) or (H, W,
    channels); an array (B, H, W, channels) is a list of pictures. All pass through the preprocessing that is stored
    with the weights.
    """

    def __init__(self, weights: Loaded, calibration: Calibration | None = None) -> None:
        self.inference = weights if isinstance(weights, GraphModel) else Inference(weights, calibration)
        self.preprocess, self.targets = self.inference.preprocess, self.inference.targets
        self.class_names, self.notes = self.inference.class_names, self.inference.notes
        self.calibration = calibration

    @classmethod
    def load(cls, source: Source, code: Code = (), device: str = "cpu") -> "Classifier":
        """From a run, its folder, a `model.safetensors` by itself, an exported `model.onnx` or `model.openvino`,
        anybody's weights (see `load_pretrained`), or what is in memory: Weights, or a module of timm or transformers.

        A model that is in a file of Python (`model.kind=mine.py:Mixer`) is loaded only if that file is in `code`. It
        computes on `device`: cpu, cuda, mps, or auto, the best that is there."""
        if isinstance(source, str | Path) and Path(source).suffix.lower() in GRAPHS:
            return cls(GraphModel.read(Path(source), device))
        weights, calibration = load_calibrated(source, code)
        name = str(source) if isinstance(source, str | Path) else name_of_source(source)
        weights.check_head(name)
        if not weights.class_names:
            raise WeightsError(f"{name} has no classes, so there is nothing to answer with. Train it: it gets some.")
        weights.model.to(choose_device(device))
        return cls(weights, calibration)

    @property
    def model(self) -> Model:
        """The model itself, to look into; a file that was exported has none."""
        if isinstance(self.inference, GraphModel):
            raise WeightsError("An exported file is a graph, and no model to look into: load the run that it is from.")
        return self.inference.model

    @overload
    def predict(self, pictures: Picture) -> Prediction: ...  # type: ignore[overload-overlap]  # a str is a Sequence

    @overload
    def predict(self, pictures: Sequence[Picture]) -> list[Prediction]: ...

    def predict(self, pictures: Picture | Sequence[Picture]) -> Prediction | list[Prediction]:
        """What a picture shows, or what each of a list of pictures shows."""
        if isinstance(pictures, np.ndarray) and pictures.ndim == 4:
            pictures = list(pictures)
        many = isinstance(pictures, Sequence) and not isinstance(pictures, str | bytes)
        answers = []
        for answer in self.each(pictures if many else [pictures]):  # type: ignore[arg-type, list-item]
            if isinstance(answer, DataError):
                raise answer
            answers.append(answer)
        return answers if many else answers[0]

    def each(self, pictures: Sequence[Picture], batch_size: int = BATCH) -> Iterator[Prediction | DataError]:
        """The answers one after another; for a picture that cannot be read, the error that says why."""
        for start in range(0, len(pictures), ROUND):
            yield from self._predictions(self._ask_in_threads(pictures[start : start + ROUND], batch_size))

    def files(
        self, paths: Sequence[Path], processes: Processes | None = None, directory: Path | None = None
    ) -> Iterator[FilePrediction]:
        """The predictions for files, each with its path.

        Of several `processes` each asks about a share of them, and all have the same predictions. With the data
        `directory` the answers are kept there until the last one: after an interruption the same call goes on."""
        stamps = [stamp_of(path.stat()) if path.exists() else "" for path in paths] if directory else []
        yield from self._named(
            paths, lambda rows: paths[rows.start : rows.stop], self._place(directory, *paths, *stamps), processes
        )

    def stored(
        self, index: Index, processes: Processes | None = None, directory: Path | None = None
    ) -> Iterator[FilePrediction]:
        """The same for all pictures of a source, in the order in which they lie there: of shards, shard by shard."""
        yield from self._named(
            [Path(sample) for sample in index.samples],
            lambda rows: [index.storage.read(number) for number in rows],
            self._place(directory, "stored", key_of(index)),
            processes,
        )

    def _named(
        self,
        paths: Sequence[Path],
        pictures: Callable[[range], Sequence[Picture]],
        place: Path | None,
        processes: Processes | None,
    ) -> Iterator[FilePrediction]:
        processes = processes or Processes()
        rounds = Rounds(processes, folder=place)
        if processes.many:
            processes.agree({"weights": self.inference.identity, "pictures": [str(path) for path in paths]})
        done = 0
        for rows in rounds.of(len(paths), ROUND, lambda rows: self._ask_in_threads(pictures(rows))):
            for answer in self._predictions(rows):
                error = str(answer) if isinstance(answer, DataError) else ""
                yield FilePrediction(paths[done], None if isinstance(answer, DataError) else answer, error)
                done += 1
        rounds.forget()

    def _place(self, directory: Path | None, *what: object) -> Path | None:
        """Where the answers for these pictures are kept."""
        if directory is None:
            return None
        return place_of(directory, "predict", type(self.inference), self.inference.identity, *what)

    def _ask_in_threads(self, pictures: Sequence[Picture], batch_size: int = BATCH) -> Rows:
        """The same for many: each core decodes and asks about a batch of its own, and waits for no other. Of few, or
        by somebody's own model, of which nobody knows whether two may use it at once, one after another."""
        parts = [pictures[start : start + batch_size] for start in range(0, len(pictures), batch_size)]
        if len(parts) < 2 or self.inference.alone:
            return joined(map(self._ask, parts))
        with one_core_each() as threads:
            return joined(threads.map(self._ask, parts))

    def _ask(self, pictures: Sequence[Picture]) -> Rows:
        """What each output says, how far each picture is from those learnt from, and why one cannot be read."""
        inputs = [self._input(picture) for picture in pictures]
        readable = {place: one for place, one in enumerate(inputs) if isinstance(one, np.ndarray)}
        values = np.zeros((len(inputs), sum(target.outputs for target in self.targets)), np.float32)
        distances = np.full(len(inputs), np.nan, np.float32)
        if readable:
            values[[*readable]], known = self.inference.answers(np.stack([*readable.values()]))
            if known is not None:
                distances[[*readable]] = known
        errors = np.array([str(one) if isinstance(one, DataError) else "" for one in inputs], np.str_)
        return {"values": values, "distances": distances, "errors": errors}

    def _predictions(self, rows: Rows) -> Iterator[Prediction | DataError]:
        thresholds, margins = self.inference.thresholds, self.inference.margins
        for values, distance, error in zip(rows["values"], rows["distances"].tolist(), rows["errors"], strict=True):
            if error:
                yield DataError(str(error))
            else:
                known = None if math.isnan(distance) else distance
                yield prediction_of(values, self.targets, known, thresholds, margins)

    def _input(self, picture: Picture) -> NDArray[np.uint8] | DataError:
        try:
            return self.preprocess.resized(picture)
        except DataError as error:
            return error


def write_csv(path: Path, predictions: Sequence[FilePrediction], unsure: float, top: int) -> None:
    """A table with a row per file: the answer, and the next most probable classes."""
    answers = [one.prediction for one in predictions if one.prediction]
    answer = list(answers[0].cells()) if answers else ["label", "probability"]
    of_a_class = answer == ["label", "probability"]
    places = range(2, top + 1) if of_a_class else ()
    others = [f"{name}_{place}" for place in places for name in ("label", "probability")]
    header = ["path", *answer, "unsure", "unknown", "error", *others]
    text = as_csv(header, [_row(one, unsure, top, header) for one in predictions])
    try:
        if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
            path.write_text(text)
        else:
            write_whole(path, text)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}).") from None


def _row(file: FilePrediction, unsure: float, top: int, header: list[str]) -> list[str]:
    cells = {"path": str(file.path), "error": file.error}
    if prediction := file.prediction:
        cells |= prediction.cells()
        cells["unsure"] = "yes" if prediction.unsure(unsure) else "no"
        cells["unknown"] = "" if prediction.distance is None else "yes" if prediction.unknown else "no"
        for place, (name, share) in enumerate(prediction.probabilities[1:top], start=2):
            cells |= {f"label_{place}": name, f"probability_{place}": f"{share:.6f}"}
    return [cells.get(name, "") for name in header]  # there may be fewer classes than columns for them
