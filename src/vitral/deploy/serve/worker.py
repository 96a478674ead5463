"""A model process: it decodes, prepares and computes what the front hands it, and opens no socket of its own.

start_worker.py begins it. What a picture can do to a process it does to this one.
"""

import io
import socket
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral.classifier import Classifier
from vitral.data.decode import size_of
from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.looking import Looking, methods_of
from vitral.deploy.serve.messages import Message, Part, next_message, write_message
from vitral.deploy.serve.settings import ServeSettings
from vitral.errors import DataError, VitralError
from vitral.graph import GRAPHS, GraphModel
from vitral.inference import Inference

Pixels = NDArray[np.uint8]  # (C, H, W)


class Models:
    """The models of one process, by name."""

    def __init__(self, settings: ServeSettings, threads: int) -> None:
        self.settings = settings
        self.looking = Looking(settings)
        self.use(threads)

    def use(self, threads: int) -> None:
        """Compute with so many threads. A graph has its own, and is opened anew."""
        torch.set_num_threads(threads)
        self.threads = ThreadPoolExecutor(threads) if threads > 1 else None
        self.models = {name: self._load(source, threads) for name, source in self.settings.models.items()}

    def _load(self, source: str, threads: int) -> Classifier:
        if Path(source).suffix.lower() in GRAPHS:
            return Classifier(GraphModel.read(Path(source), self.settings.device, threads))
        # A copy in memory: weights are mapped from their file, and who writes over that would end this process.
        return deepcopy(Classifier.load(source, self.settings.code, self.settings.device))

    def facts(self) -> list[dict[str, Any]]:
        """What the front has to know of each, once it has answered."""
        return [self._facts(name, one).write() for name, one in self.models.items()]

    def _facts(self, name: str, one: Classifier) -> ModelFacts:
        channels, size = one.preprocess.channels, one.preprocess.image_size
        values, distances = one.inference.answers(np.zeros((1, channels, *size), np.uint8))
        if not np.isfinite(values).all():
            raise VitralError(f"{name} answers with numbers that are not finite: its weights are damaged.")
        return ModelFacts(
            name=name,
            runtime=f"torch {torch.__version__}" if isinstance(one.inference, Inference) else one.inference.runtime,
            identity=one.inference.identity,
            channels=channels,
            image_size=size,
            targets=one.targets,
            thresholds=tuple(one.inference.thresholds.tolist()),
            margins=tuple(one.inference.margins.tolist()),
            has_distance=distances is not None,
            methods=methods_of(one),
            notes=tuple(one.notes),
        )

    def answer(self, name: str, kinds: str, parts: Sequence[Part]) -> tuple[dict[str, Any], list[Part]]:
        """What each output says of each picture, (N, outputs), how unlike what was learnt from it is, (N,), and why
        one cannot be read. `kinds`: of each part f, a file as it is, or p, pixels."""
        one = self.models[name]

        def read(kind: str, part: Part) -> Pixels | str:
            return self._pixels(one, part) if kind == "p" else self._picture(one, bytes(part))

        inputs = list((self.threads.map if self.threads else map)(read, kinds, parts))
        readable = [place for place, given in enumerate(inputs) if not isinstance(given, str)]
        outputs = sum(target.outputs for target in one.targets)
        values = np.zeros((len(inputs), outputs), np.float32)
        distances = np.full(len(inputs), np.nan, np.float32)
        if readable:
            values[readable], known = one.inference.answers(np.stack([inputs[place] for place in readable]))
            if known is not None:
                distances[readable] = known
        errors = [given if isinstance(given, str) else "" for given in inputs]
        return {"errors": errors}, [values.tobytes(), distances.tobytes()]

    def _pixels(self, one: Classifier, part: Part) -> Pixels:
        shape = one.preprocess.channels, *one.preprocess.image_size
        return np.frombuffer(part, np.uint8).reshape(shape)

    def _picture(self, one: Classifier, content: bytes) -> Pixels | str:
        most = self.settings.most_megapixels
        try:
            width, height = size_of(content) or (0, 0)
            if width * height > most * 10**6:
                return f"The picture has {width:,} × {height:,} pixels: more than {most} million are not opened here."
            return one.preprocess.resized(content)
        except DataError as error:
            return str(error)
        except MemoryError:
            return "The memory here is not enough for the picture."

    def measure(self, seconds: float) -> float:
        """Pictures a second of the first model, from files of JPEG to answers."""
        name, one = next(iter(self.models.items()))
        height, width = one.preprocess.image_size
        noise = np.random.default_rng(0).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((width, height)).save(file, "JPEG")
        batch = [file.getvalue()] * 8
        self.answer(name, "f" * 8, batch)
        done, started_at = 0, time.perf_counter()
        while (passed := time.perf_counter() - started_at) < seconds:
            self.answer(name, "f" * 8, batch)
            done += len(batch)
        return done / passed


def serve(descriptor: int) -> None:
    """Load, say what is there, and answer over this socket until the front has gone."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of a damaged picture we say what is wrong ourselves
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rwb") as file:
        try:
            _serve(file)  # type: ignore[arg-type]
        except (BrokenPipeError, ConnectionResetError):
            pass  # the front has gone


def _serve(file: BinaryIO) -> None:
    hello = next_message(file)
    if hello is None:
        return
    try:
        models = Models(ServeSettings.read(hello.head["settings"]), hello.head["threads"])
        facts = models.facts()
    except VitralError as error:
        return write_message(file, {"error": str(error)})
    write_message(file, {"models": facts})
    while message := next_message(file):
        try:
            head, parts = _answer(models, message)
        except VitralError as error:
            head, parts = {"error": str(error)}, []
        write_message(file, head, parts)


def _answer(models: Models, message: Message) -> tuple[dict[str, Any], list[Part]]:
    head, parts = message
    if head["kind"] == "predict":
        return models.answer(head["model"], head["kinds"], parts)
    if head["kind"] == "measure":
        return {"rate": models.measure(head["seconds"])}, []
    if head["kind"] == "threads":
        models.use(head["threads"])
        return {}, []
    if head["kind"] == "map":
        name = head["model"]
        return {}, [models.looking.overlay(name, models.models[name], head["method"], bytes(parts[0]))]
    name = head["model"]
    return models.looking.glass(name, models.models[name], head, bytes(parts[0]))
