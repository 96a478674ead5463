"""Files that are smaller, or faster: shorter numbers than float32, where the answers bear it.

int8 is onnxruntime's static quantisation (QDQ): each layer with a matrix takes and has 8-bit numbers, whose steps come
from training pictures. Layers that cost answers stay as they are: each is tried alone, and those that change the
logits most are put back, until validation pictures say that it is enough.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.deploy.cost import cost_of
from vitral.deploy.samples import Prepared
from vitral.deploy.writers import LAYERS, WholeModel, graph_of, quiet, save_onnx, save_openvino, write_pt2
from vitral.errors import WeightsError
from vitral.graph import OPENVINO, Arrays, GraphHeader, GraphModel, Pixels, Precision, import_openvino, values_name
from vitral.progress import Progress, Tell, silent

if TYPE_CHECKING:
    from onnx import ModelProto

PRECISIONS: dict[str, tuple[Precision, ...]] = {  # by ending
    ".onnx": ("float32", "float16", "int8"),
    OPENVINO: ("float32", "float16", "bfloat16", "int8"),
    ".pt2": ("float32", "bfloat16"),
    ".html": ("float32", "float16"),
    "": ("float32", "float16"),  # a page in a folder
}
CALIBRATION = 64  # training pictures from which the steps of int8 come
BATCH = 8  # pictures that are asked about at once
TRIED = 32  # validation pictures that tell layers apart
MANY = 256  # numbers: a tensor with fewer is not worth storing in halves

Asked = Callable[["ModelProto"], Arrays]  # the outputs of a graph for the validation pictures


def write_reduced(
    model: WholeModel, header: GraphHeader, path: Path, parts: Sequence[Prepared] = (), tell: Tell = silent
) -> GraphModel:
    """Write a model as `header.reduced` says. `parts`: for int8 training pictures, and validation pictures."""
    assert header.reduced is not None
    if path.suffix == ".pt2":
        model = deepcopy(model)
        model.model.to(torch.bfloat16)
        return write_pt2(model, header, path)
    graph = graph_of(model)
    if header.reduced.precision == "float16" and path.suffix == ".onnx":
        store_as_float16(graph)
    if header.reduced.precision == "int8":
        learn, choose = parts
        graph, header = to_int8(Quantiser(graph, learn.pixels), header, choose, path.suffix == OPENVINO, tell)
    return (save_openvino if path.suffix == OPENVINO else save_onnx)(graph, header, path)


def store_as_float16(graph: "ModelProto") -> None:
    """Keep tables of the model in half the space. They become float32 again before anything is computed with them."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in graph.graph.initializer:
        numbers = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            halves = numbers.astype(np.float16)
        if numbers.dtype != np.float32 or numbers.size < MANY or not np.isfinite(halves).all():
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(halves, f"{name}.float16"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], f"{name}.cast", to=TensorProto.FLOAT))
    nodes = [*casts, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


class Quantiser:
    """Makes graphs of which some layers are in 8 bits: their steps come from what they had for training pictures."""

    def __init__(self, graph: "ModelProto", learn: Pixels) -> None:
        from onnxruntime.quantization import CalibrationDataReader, create_calibrator

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self.batches = ({"pixels": batch} for batch in _batches(learn))

            def get_next(self) -> Any:
                return next(self.batches, None)

        self.graph, self.pictures, self.reduce_range = graph, len(learn), sums_of_bytes_overflow()
        tables = {tensor.name for tensor in graph.graph.initializer}
        self.layers = [node.name for node in graph.graph.node if node.op_type in LAYERS and node.input[1] in tables]
        self.order: list[str] = []  # of the layers, once they were tried
        with quiet(), TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(graph.SerializeToString())
            calibrator = create_calibrator(path, LAYERS, str(path.with_name("augmented.onnx")))
            calibrator.collect_data(Reader())
            self.ranges = calibrator.compute_data()

    def quantise(self, layers: Collection[str]) -> "ModelProto":
        """The graph with these layers in 8 bits."""
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        with quiet():
            quantizer = QDQQuantizer(
                deepcopy(self.graph),
                per_channel=True,
                reduce_range=self.reduce_range,
                weight_qType=QuantType.QInt8,
                activation_qType=QuantType.QUInt8,
                tensors_range=self.ranges,
                nodes_to_quantize=[*layers],
                nodes_to_exclude=[],
                op_types_to_quantize=LAYERS,
                extra_options={},
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
        return quantizer.model.model

    def costly_first(self, pixels: Pixels, tell: Tell) -> list[str]:
        """The layers, that first which changes the logits most when it alone is in 8 bits."""
        if not self.order:
            asked = _in_onnxruntime(pixels[:TRIED])
            original, changes = asked(self.graph)["logits"], {}
            for number, layer in enumerate(self.layers):
                tell(Progress(number, len(self.layers), "trying layers in int8"))
                changes[layer] = float(np.square(asked(self.quantise([layer]))["logits"] - original).mean())
            self.order = sorted(self.layers, key=lambda layer: -changes[layer])
        return self.order


def to_int8(
    quantiser: Quantiser, header: GraphHeader, choose: Prepared, in_openvino: bool = False, tell: Tell = silent
) -> tuple["ModelProto", GraphHeader]:
    """A graph whose layers have 8-bit numbers, but for those that cost answers; and the header that names these."""
    assert header.reduced is not None
    asked = _in_openvino(choose.pixels) if in_openvino else _in_onnxruntime(choose.pixels)
    name, ours, in_float = values_name(header.targets), asked(quantiser.graph), list[str]()
    while len(in_float) <= len(quantiser.layers) // 2:
        graph = quantiser.quantise([layer for layer in quantiser.layers if layer not in in_float])
        theirs = asked(graph)[name]
        cost = cost_of(header.targets, np.array(header.thresholds), ours[name], theirs, choose.labels)
        if cost.surely_within(header.reduced.loss):
            facts = {"calibrated_on": quantiser.pictures, "reduced_range": quantiser.reduce_range}
            reduced = header.reduced.model_copy(update={**facts, "in_float": tuple(in_float)})
            return graph, header.model_copy(update={"reduced": reduced})
        in_float = quantiser.costly_first(choose.pixels, tell)[: 2 * len(in_float) or 1]
    raise WeightsError(
        f"int8 costs too much on {len(choose.pixels)} validation pictures, even where half of the "
        f"{len(quantiser.layers)} layers stay in float: {cost}. Allowed are {header.reduced.loss:g}, less the standard "
        "error. Take another precision, more validation pictures, or a larger --loss."
    )


def sums_of_bytes_overflow() -> bool:
    """Whether this is an x86 without VNNI, which adds products of 8-bit numbers in 16 bits."""
    x86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return x86 and not torch.cpu._is_vnni_supported()


def _batches(pixels: Pixels) -> Iterator[Pixels]:
    return (pixels[start : start + BATCH] for start in range(0, len(pixels), BATCH))


def _joined(parts: list[dict[str, NDArray[Any]]]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _in_onnxruntime(pixels: Pixels) -> Asked:
    import onnxruntime

    def asked(graph: "ModelProto") -> Arrays:
        session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return _joined([dict(zip(names, session.run(names, {"pixels": one}), strict=True)) for one in _batches(pixels)])

    return asked


def _in_openvino(pixels: Pixels) -> Asked:
    core = import_openvino(Path("model.openvino")).Core()

    def asked(graph: "ModelProto") -> Arrays:
        model = core.read_model(graph.SerializeToString())
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        names = [output.any_name for output in model.outputs]
        return _joined([{name: answer[name] for name in names} for answer in map(compiled, _batches(pixels))])

    return asked
