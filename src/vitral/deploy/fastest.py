"""What is fastest on this machine, and costs no more than it may: `vitral export RUN --fastest`.

Runtimes and precisions are candidates. Validation pictures say which of them cost too much, the clock says which of the
others is fastest, and only then is what was chosen tried on test pictures: these choose nothing.
"""

import json
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.deploy.cost import LOSS, Cost, cost_of
from vitral.deploy.export import (
    ONNX,
    TRIED,
    baked,
    check_free,
    header_of,
    load_answering,
    temporary_beside,
)
from vitral.deploy.parity import compare
from vitral.deploy.reduce import CALIBRATION, Quantiser, to_int8
from vitral.deploy.samples import Prepared, samples_of
from vitral.deploy.writers import WholeModel, graph_of, save_onnx, save_openvino, write_pt2
from vitral.errors import RecipeError, VitralError, WeightsError
from vitral.evaluation.metrics import Figure, share
from vitral.files import path_of, write_whole
from vitral.graph import OPENVINO, GraphHeader, GraphModel, Pixels, Precision, Reduced, values_name
from vitral.inference import Inference, Source, run_of
from vitral.plugin import Code
from vitral.progress import Progress, Tell, silent
from vitral.settings import FORMAT
from vitral.training.speed import bfloat16_speed

if TYPE_CHECKING:
    from onnx import ModelProto

BATCHES = (1, 32)  # pictures at once; the last one decides
ROUNDS = 7
SECONDS = 0.2  # that a candidate is asked for in each round, at least
NO_NATIVE = "this processor does not compute with bfloat16"

Ask = Callable[[Pixels], NDArray[np.float32]]  # the values, (N, outputs)


@dataclass(frozen=True)
class Way:
    """A runtime and a precision."""

    name: str
    ending: str  # of the file that is kept, if this is the fastest
    precision: Precision = "float32"
    in_torch: bool = False  # the model itself, and no file
    compiled: bool = False

    @property
    def missing(self) -> str:
        """Why it can't be tried here; empty: it can."""
        needed = () if self.in_torch else (*ONNX, "openvino") if self.ending == OPENVINO else ONNX
        if lacking := [package for package in needed if not find_spec(package)]:
            return f"{lacking[0]} is not installed"
        return NO_NATIVE if self.precision == "bfloat16" and bfloat16_speed(torch.device("cpu")) <= 1 else ""


EAGER = Way("torch", ".pt2", in_torch=True)
WAYS = (
    EAGER,
    Way("torch, compiled", ".pt2", in_torch=True, compiled=True),
    Way("torch, bfloat16", ".pt2", "bfloat16", in_torch=True),
    Way("torch, bfloat16, compiled", ".pt2", "bfloat16", in_torch=True, compiled=True),
    Way("onnxruntime", ".onnx"),
    Way("onnxruntime, int8", ".onnx", "int8"),
    Way("OpenVINO", OPENVINO),
    Way("OpenVINO, bfloat16", OPENVINO, "bfloat16"),
    Way("OpenVINO, int8", OPENVINO, "int8"),
)


@dataclass(frozen=True)
class Candidate:
    """What a way came to; or why it was not tried."""

    way: Way
    reason: str = ""
    megabytes: float = 0.0
    in_float: tuple[str, ...] = ()  # of int8: layers that are not
    chosen_on: Cost | None = None  # validation pictures
    test: Cost | None = None
    accuracy: Figure | None = None  # on test pictures, where there are labels
    rates: dict[int, tuple[float, ...]] = field(default_factory=dict)  # pictures a second at this batch, by round

    def rate(self, batch: int) -> float:
        """Pictures a second: the median of the rounds."""
        return median(self.rates[batch])

    def times(self, other: "Candidate", batch: int) -> tuple[float, float, float]:
        """How many times as fast as another: median, least, most of the rounds."""
        ratios = [ours / theirs for ours, theirs in zip(self.rates[batch], other.rates[batch], strict=True)]
        return median(ratios), min(ratios), max(ratios)


@dataclass(frozen=True)
class Fastest:
    """All candidates, and which one was kept."""

    candidates: tuple[Candidate, ...]
    best: Candidate
    loss: float
    path: Path | None  # of the file; None: it was not kept
    chosen_on: str  # the split whose pictures say what costs too much
    verdict: str  # how it was tried, in sentences

    @property
    def tried(self) -> list[Candidate]:
        """Those that have figures, the fastest first."""
        return sorted((one for one in self.candidates if not one.reason), key=lambda one: -one.rate(BATCHES[-1]))

    @property
    def eager(self) -> Candidate:
        """The model as it is."""
        return next(one for one in self.candidates if one.way == EAGER)

    @property
    def frontier(self) -> list[Candidate]:
        """Those than which none is faster and costs less, by the test pictures."""
        lowest, frontier = np.inf, []
        for one in self.tried:
            if one.test and one.test.points < lowest:
                lowest = one.test.points
                frontier.append(one)
        return frontier

    @property
    def notes(self) -> list[str]:
        """What is worth a sentence: int8 that is slower than float32 in the same runtime, a faster one that costs too
        much."""
        by_name = {one.way.name: one for one in self.tried}
        notes = []
        for one in self.tried:
            plain = by_name.get(one.way.name.removesuffix(", int8"))
            if one.way.precision == "int8" and plain and (slower := one.times(plain, BATCHES[-1])[0]) < 1:
                notes.append(f"{one.way.name} is slower here than in float32: {slower:.2f} times as fast.")
            faster = one.rate(BATCHES[-1]) > self.best.rate(BATCHES[-1])
            if faster and one.chosen_on and not one.chosen_on.surely_within(self.loss):
                on = f"on {one.chosen_on.pictures:,} {self.chosen_on} pictures"
                notes.append(f"{one.way.name} is faster, and may cost too much: {on} {one.chosen_on}.")
        return notes

    def write(self) -> dict[str, Any]:
        """As candidates.json has it."""
        return {
            "format": FORMAT,
            "loss": self.loss,
            "kept": self.best.way.name if self.path else None,
            "candidates": [asdict(one) for one in self.candidates],
        }


def find_fastest(
    source: Source,
    out: str | Path | None = None,
    *,
    loss: float = LOSS,
    folder: str | Path | None = None,
    pictures: int = TRIED,
    ways: Collection[Way] = WAYS,
    code: Code = (),
    tell: Tell = silent,
) -> Fastest:
    """Try all ways to run a model here, and keep the fastest of those that cost at most `loss` points of accuracy, in a
    folder: `out`, or `fastest` in that of the run. It also gets the table, and the frontier as a picture.

    Costs are counted on validation pictures of the run, and of what was chosen then on `pictures` test pictures; of a
    `folder` they are taken in turn.
    """
    from vitral.deploy.frontier import draw_frontier

    inference, run = load_answering(source, code), run_of(source)
    if out is None and run is None:
        raise WeightsError("Say where to put what is fastest: weights have no folder of their own.")
    path = path_of(out, WeightsError) if out is not None or run is None else run.folder / "fastest"
    check_free(path)
    counts = {"test": pictures, "validation": TRIED, "train": CALIBRATION}
    samples = samples_of(source, folder, counts, inference.class_names)
    test, choose, learn = (some.prepare(inference.preprocess, inference.class_names) for some in samples)
    with temporary_beside(path) as temporary:
        temporary.mkdir()
        trials = [Trial.of(inference, some) for some in (choose, test)]
        workshop = Workshop(inference, temporary, learn, choose, loss, tell)
        candidates = _candidates(workshop, ways, trials, tell)
        allowed = [one for one in candidates if one.chosen_on and one.chosen_on.surely_within(loss)]
        if not allowed:
            raise RecipeError(f"None of these can be kept: {', '.join(one.way.name for one in candidates)}.")
        best = max(allowed, key=lambda one: one.rate(BATCHES[-1]))
        graph, file = workshop.keep(best.way)
        parity = compare(graph, inference, samples[0], (), tell)
        fastest = Fastest(candidates, best, loss, None, samples[1].split, str(parity))
        if not parity.is_same:
            return replace(fastest, verdict=f"Nothing was kept. {parity.faults}")
        fastest = replace(fastest, path=path / file.name)
        write_whole(temporary / "candidates.json", json.dumps(fastest.write(), indent=2))
        draw_frontier(fastest, temporary / "frontier.png")
        temporary.replace(path)
    return fastest


@dataclass(frozen=True)
class Trial:
    """Pictures with the model's own answers."""

    pixels: Pixels
    labels: NDArray[np.int64] | None
    answers: NDArray[np.float32]  # (n, outputs)

    @classmethod
    def of(cls, inference: Inference, prepared: Prepared) -> "Trial":
        """The model is asked about these."""
        answers = _answers(lambda pixels: inference.answers(pixels)[0], prepared.pixels)
        return cls(prepared.pixels, prepared.labels, answers)


class Workshop:
    """Where candidates are made: files beside each other, from one graph."""

    def __init__(
        self, inference: Inference, folder: Path, learn: Prepared, choose: Prepared, loss: float, tell: Tell
    ) -> None:
        self.inference, self.folder, self.learn, self.choose = inference, folder, learn, choose
        self.loss, self.tell = loss, tell
        self.model = WholeModel(baked(inference)).eval()
        self.name = values_name(inference.targets)
        self.files: dict[str, tuple[GraphModel, Path]] = {}

    def make(self, way: Way) -> tuple[Candidate, Ask | None]:
        """The candidate, and what asks it; None: it can't be made, and the candidate says why."""
        if reason := way.missing:
            return Candidate(way, reason), None
        if way.in_torch:
            size = sum(tensor.nbytes for tensor in self.model.state_dict().values()) / 1e6
            halves = way.precision == "bfloat16"
            return Candidate(way, megabytes=size / 2 if halves else size), self._in_torch(way)
        try:
            graph, path = self.write(way)
        except VitralError as error:
            return Candidate(way, str(error)), None
        size = sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file()) / 1e6
        in_float = graph.header.reduced.in_float if graph.header.reduced else ()
        return Candidate(way, megabytes=size, in_float=in_float), lambda pixels: graph.run(pixels)[self.name]

    def write(self, way: Way) -> tuple[GraphModel, Path]:
        """The file of a way. Those that are ONNX first are made from one graph."""
        path = self.folder / f"{way.name.replace(', ', '-')}{way.ending}"
        header = self._header(way)
        if way.ending == ".pt2":
            graph = write_pt2(self.model if way.precision == "float32" else self._in_halves(), header, path)
        else:
            save, proto = save_openvino if way.ending == OPENVINO else save_onnx, deepcopy(self.graph)
            if way.precision == "int8":
                proto, header = to_int8(self.quantiser, header, self.choose, way.ending == OPENVINO, self.tell)
            graph = save(proto, header, path)
        self.files[way.name] = graph, path
        return graph, path

    @cached_property
    def graph(self) -> "ModelProto":
        """The model as ONNX."""
        return graph_of(self.model)

    @cached_property
    def quantiser(self) -> Quantiser:
        """What makes int8 of it."""
        return Quantiser(self.graph, self.learn.pixels)

    def _in_halves(self) -> WholeModel:
        model = deepcopy(self.model)
        model.model.to(torch.bfloat16)
        return model

    def _header(self, way: Way) -> GraphHeader:
        header = header_of(self.inference)
        if way.precision == "float32":
            return header
        return header.model_copy(update={"reduced": Reduced(precision=way.precision, loss=self.loss)})

    def _in_torch(self, way: Way) -> Ask:
        model = self.model if way.precision == "float32" else self._in_halves()
        run: Callable[..., Any] = torch.compile(model) if way.compiled else model

        @torch.no_grad()
        def ask(pixels: Pixels) -> NDArray[np.float32]:
            values: NDArray[np.float32] = run(torch.from_numpy(pixels))[self.name].numpy()
            return values

        return ask

    def keep(self, way: Way) -> tuple[GraphModel, Path]:
        """The file of the fastest, alone and under the name that it keeps."""
        graph, path = self.files.get(way.name) or self.write(way)
        for other in set(self.folder.iterdir()) - {path}:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
        return graph, path.rename(path.with_name(f"model{way.ending}"))


def _candidates(
    workshop: Workshop, ways: Collection[Way], trials: Sequence[Trial], tell: Tell
) -> tuple[Candidate, ...]:
    """Each way is made and asked about all pictures, and then all are timed."""
    asks: dict[str, Ask] = {}
    candidates = []
    for number, way in enumerate(ways):
        tell(Progress(number, len(ways), f"making {way.name}"))
        candidate, ask = workshop.make(way)
        if ask:
            tell(Progress(number, len(ways), f"asking {way.name}"))
            try:
                candidate = _measured(candidate, ask, workshop.inference, trials)
                asks[way.name] = ask
            except Exception as error:  # no compiler is there, or a runtime cannot: their own kinds of errors
                candidate = replace(candidate, reason=f"{type(error).__name__}: {_first_line(error)}")
        candidates.append(candidate)
    rates = _rates(asks, trials[-1].pixels, tell)
    return tuple(replace(one, rates=rates.get(one.way.name, {})) for one in candidates)


def _measured(candidate: Candidate, ask: Ask, inference: Inference, trials: Sequence[Trial]) -> Candidate:
    """With what it costs on validation pictures and on test pictures."""
    costs = [
        cost_of(inference.targets, inference.thresholds, one.answers, _answers(ask, one.pixels), one.labels)
        for one in trials
    ]
    chosen_on, test = costs
    right = test.right - test.worse + test.better
    accuracy = share(right, test.pictures) if test.has_labels else None
    return replace(candidate, chosen_on=chosen_on, test=test, accuracy=accuracy)


def _answers(ask: Ask, pixels: Pixels) -> NDArray[np.float32]:
    """The values for all of them, in batches of one size: a compiler makes another program for each size."""
    parts = (pixels[start : start + BATCHES[-1]] for start in range(0, len(pixels), BATCHES[-1]))
    return np.concatenate([ask(_resized(part, BATCHES[-1]))[: len(part)] for part in parts])


def _resized(pixels: Pixels, count: int) -> Pixels:
    """So many of them, over and over."""
    return np.ascontiguousarray(np.resize(pixels, (count, *pixels.shape[1:])))


def _rates(asks: dict[str, Ask], pixels: Pixels, tell: Tell) -> dict[str, dict[int, tuple[float, ...]]]:
    """Pictures a second by way and batch: all take turns in each round, as others may use the machine."""
    batches = {size: _resized(pixels, size) for size in BATCHES}
    rates: dict[str, dict[int, list[float]]] = {name: {size: [] for size in BATCHES} for name in asks}
    for number in range(-1, ROUNDS):
        for size, batch in batches.items():
            for name, ask in asks.items():
                tell(Progress(max(number, 0), ROUNDS, f"timing {name}"))
                started_at, times, seconds = time.perf_counter(), 0, 0.0
                while seconds < SECONDS:
                    ask(batch)
                    times, seconds = times + 1, time.perf_counter() - started_at
                if number >= 0:  # in the first round things are set up
                    rates[name][size].append(times * size / seconds)
    return {name: {size: tuple(each) for size, each in of.items()} for name, of in rates.items()}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
