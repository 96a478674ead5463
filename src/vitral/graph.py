"""A model as a graph in a file, with all that its answers need: what `vitral export` writes and `vitral predict` reads.

The graph takes `pixels`, uint8 (N, C, H, W), decoded and resized, and does the rest itself: scale, mean and standard
deviation, model, temperature, how unlike a picture is those learnt from. What a graph cannot hold stands beside it in
the file, as JSON under the key `vitral`: how a picture becomes these pixels, what the outputs are called, from which
probability on a label is said. A graph is an ONNX file, or a folder for OpenVINO.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError, WeightsError
from vitral.files import parse_table
from vitral.settings import FORMAT, Settings, check_format
from vitral.targets import Target

Pixels = NDArray[np.uint8]  # (N, C, H, W)
Arrays = Mapping[str, NDArray[Any]]  # the outputs of a graph by name, each with a row for a picture
NEEDS_ONNX = "needs the extra: pip install 'vitral[export]'"
NEEDS_OPENVINO = "needs the extra: pip install 'vitral[openvino]'"
OPENVINO = ".openvino"  # the ending of a folder with a graph for it
GRAPHS = (".onnx", OPENVINO)  # the endings of what is read here

Precision = Literal["float32", "float16", "bfloat16", "int8"]


class Reduced(Settings):
    """What is shorter than float32 in a file, and the rule by which it was kept: on pictures that chose nothing about
    it, it has at most `loss` of 100 answers more wrong than the model. Without labels each other answer is wrong."""

    precision: Literal["float16", "bfloat16", "int8"]
    loss: float = Field(ge=0)  # points
    calibrated_on: int = 0  # int8: by how many training pictures its steps were chosen
    in_float: tuple[str, ...] = ()  # int8: layers that cost answers, and stayed as they were
    reduced_range: bool = False  # int8: weights have 7 bits, for processors whose sums of 8 bits overflow


class GraphHeader(Settings):
    """What stands in the file beside the graph."""

    format: int = FORMAT
    written_by: str
    fingerprint: str  # of config, preprocessing and weights: which model this is
    preprocess: Preprocess
    targets: tuple[Target, ...]
    temperature: tuple[float, ...]  # one a target: by what the graph divides logits before they are probabilities
    thresholds: tuple[float, ...]  # one an output: from which probability on a label is said
    margins: tuple[float, ...]  # one an output: how far a number may be off; 0: nobody knows
    about: dict[str, str] = {}  # licence, origin
    reduced: Reduced | None = Field(default=None, exclude_if=lambda reduced: reduced is None)

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        outputs = sum(target.outputs for target in self.targets)
        if not len(self.thresholds) == len(self.margins) == outputs or len(self.temperature) != len(self.targets):
            raise ValueError(f"It does not say one threshold and margin for each of {outputs} outputs.")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the outputs are called."""
        return sum((target.names for target in self.targets), ())


def values_name(targets: tuple[Target, ...]) -> str:
    """The name of the output that says what each of the model's outputs means: a number is no probability.

    >>> values_name((Target(name="weight", kind="number", names=("weight",)),))
    'values'
    """
    return "values" if any(target.kind == "number" for target in targets) else "probabilities"


@dataclass(frozen=True)
class GraphModel:
    """A graph that can be asked."""

    header: GraphHeader
    run: Callable[[Pixels], Arrays]
    runtime: str  # what runs it, with its version
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path, device: str = "cpu", threads: int = 0) -> Self:
        """What Vitral wrote: an ONNX file, in onnxruntime; a folder that ends in .openvino, in OpenVINO. `threads` of
        the processor compute; 0: as many as the runtime likes."""
        if path.suffix == OPENVINO:
            return cls(*_open_in_openvino(path, device, threads))
        return cls(*_open_in_onnxruntime(path, device, threads))

    @property
    def preprocess(self) -> Preprocess:
        """How a picture becomes pixels."""
        return self.header.preprocess

    @property
    def targets(self) -> tuple[Target, ...]:
        """What the outputs are."""
        return self.header.targets

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the outputs are called."""
        return self.header.class_names

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """(outputs,) from which probability on a label is said."""
        return np.array(self.header.thresholds)

    @property
    def margins(self) -> NDArray[np.float64]:
        """(outputs,) how far a number may be off; 0: nobody knows."""
        return np.array(self.header.margins)

    @property
    def identity(self) -> str:
        """Which weights these are, and how much of them: a reduced file may answer otherwise."""
        reduced = self.header.reduced
        return f"{self.header.fingerprint} {reduced.precision}" if reduced else self.header.fingerprint

    alone = False  # threads may ask at the same time

    def answers(self, pixels: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """What each output says, (N, outputs), and how unlike the pictures that were learnt from each one is, (N,)."""
        arrays = self.run(pixels)
        return arrays[values_name(self.targets)], arrays.get("distance")


Opened = tuple[GraphHeader, Callable[[Pixels], Arrays], str]


def _open_in_onnxruntime(path: Path, device: str, threads: int) -> Opened:
    if not path.is_file():
        raise WeightsError(f"There is no file {path}.")
    session = _session(path, device, threads)
    text = session.get_modelmeta().custom_metadata_map.get("vitral")
    given, names = session.get_inputs()[0], [output.name for output in session.get_outputs()]
    takes = (given.name, given.type == "tensor(uint8)", given.shape[1:])
    header = _header(path, text, takes, names)

    def run(pixels: Pixels) -> Arrays:
        return dict(zip(names, session.run(None, {"pixels": pixels}), strict=True))

    return header, run, f"onnxruntime {version('onnxruntime')}"


def _session(path: Path, device: str, threads: int) -> Any:
    """The file, open in onnxruntime on this device."""
    try:
        import onnxruntime
    except ImportError:
        raise WeightsError(f"{path} is run by onnxruntime, which {NEEDS_ONNX}") from None
    providers = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
    kind = "cpu" if device == "auto" else device
    here = [word for word, provider in providers.items() if provider in onnxruntime.get_available_providers()]
    if kind not in here:
        raise RecipeError(f"The device is {device}, and onnxruntime runs {path.name} here on: {', '.join(here)}.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # what is wrong it raises, too
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=[providers[kind]])
    except Exception as error:  # its own kinds, of which it has many
        reason = str(error).strip().splitlines()[0]
        raise WeightsError(f"{path} is damaged, or is no ONNX file that onnxruntime runs ({reason}).") from None


def _open_in_openvino(path: Path, device: str, threads: int) -> Opened:
    if not (path / "model.xml").is_file():
        raise WeightsError(f"There is no folder {path} with a model.xml.")
    core = import_openvino(path).Core()
    if device not in ("cpu", "auto"):
        raise RecipeError(f"The device is {device}, and Vitral runs {path.name} in OpenVINO on: cpu.")
    try:
        graph = core.read_model(path / "model.xml")
        text = graph.get_rt_info(["vitral"]).astype(str) if graph.has_rt_info("vitral") else None
        given, names = graph.inputs[0], [output.any_name for output in graph.outputs]
        shape = [side.get_length() if side.is_static else side.to_string() for side in given.partial_shape]
        takes = (given.any_name, given.element_type.get_type_name() == "u8", shape[1:])
        header = _header(path, text, takes, names)
        # Unless it is told so, OpenVINO computes in bfloat16 where the processor can, which nobody has asked for.
        hint = "bf16" if header.reduced and header.reduced.precision == "bfloat16" else "f32"
        choices = {"INFERENCE_PRECISION_HINT": hint, **({"INFERENCE_NUM_THREADS": threads} if threads else {})}
        compiled = core.compile_model(graph, "CPU", choices)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise WeightsError(f"{path} is damaged, or is nothing that OpenVINO runs ({reason}).") from None
    requests = threading.local()  # a request is for one thread

    def run(pixels: Pixels) -> Arrays:
        if not hasattr(requests, "own"):
            requests.own = compiled.create_infer_request()
        outputs = requests.own.infer({"pixels": pixels})
        return {name: outputs[name] for name in names}

    return header, run, f"OpenVINO {version('openvino')}"


def import_openvino(path: Path) -> ModuleType:
    """OpenVINO without its telemetry, which else gives the user a number, keeps it in ~/intel, and tells Google."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # as if it were not installed
    try:
        import openvino
    except ImportError:
        raise WeightsError(f"{path} is for OpenVINO, which {NEEDS_OPENVINO}") from None
    return openvino


def _header(path: Path, text: str | None, takes: tuple[str, bool, Sequence[Any]], names: Sequence[str]) -> GraphHeader:
    """What a file says of itself, if its graph is as it says. `takes`: name, whether it is uint8, shape of a
    picture."""
    if text is None:
        raise WeightsError(f"{path} was not written by Vitral: its metadata has no key `vitral`.")
    try:
        values = parse_table(text)
        check_format(values.get("format"), str(path), WeightsError)
        header = GraphHeader.read(values)
    except (RecipeError, ValueError) as error:
        raise WeightsError(f"{path} is damaged: what it says of itself cannot be used. {error}") from None
    if takes != ("pixels", True, [header.preprocess.channels, *header.preprocess.image_size]):
        raise WeightsError(f"{path} is damaged: its graph does not take the pixels that it says it takes.")
    if values_name(header.targets) not in names:
        raise WeightsError(f"{path} is damaged: its graph has no output {values_name(header.targets)}.")
    return header
