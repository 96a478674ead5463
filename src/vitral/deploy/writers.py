"""What becomes a graph, and the files that it is written into. Each is read again in the runtime that it is for."""

import ast
import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitral.errors import VitralError, WeightsError
from vitral.graph import Arrays, GraphHeader, GraphModel, Pixels, import_openvino, values_name
from vitral.inference import Inference, values_of
from vitral.look.maps import as_vit, layout_of, readout_weights
from vitral.model.vit import Block
from vitral.weights.calibration import Calibration

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20  # of ONNX: the first that has GELU
MOST_BYTES = 2**31 - 2**20  # that one ONNX file can hold


class WholeModel(nn.Module):
    """From pixels to all that is to be known of a picture: what becomes the graph."""

    def __init__(self, inference: Inference, others: Collection[str] = ()) -> None:
        super().__init__()
        self.model, self.preprocess = inference.model, inference.preprocess
        self.readout: Tensor
        self.targets, self.calibration, self.others = inference.targets, inference.calibration, others
        measured = vars(self.calibration).items() if self.calibration else ()
        self.measured = [name for name, one in measured if isinstance(one, Tensor)]
        for name in self.measured:
            self.register_buffer(name, getattr(self.calibration, name))
        if "attention" in others:
            vit = as_vit(self.model)
            self.layout = layout_of(vit, self.preprocess.image_size)
            self.register_buffer("readout", readout_weights(vit, self.layout))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:  # uint8 (B, C, H, W)
        images, outputs = self.preprocess.normalise(pixels).to(next(self.model.parameters())), {}
        if "attention" in self.others:
            tokens, outputs["attention"] = self._with_attention(images)
        else:
            tokens = self.model.head_tokens(images)
        logits = torch.stack(self.model.logits(tokens)).mean(dim=0).float()  # a model may compute in bfloat16
        features = self.model.pool(tokens).float()
        buffers = {name: getattr(self, name) for name in self.measured}
        calibration = self.calibration and replace(self.calibration, **buffers)
        return {
            "logits": logits,
            values_name(self.targets): values_of(logits, self.targets, calibration),
            **({"distance": _distances(calibration, features)} if calibration else {}),
            **({"features": features} if "features" in self.others else {}),
            **outputs,
        }

    def _with_attention(self, images: Tensor) -> tuple[Tensor, Tensor]:  # → (B, t, D), (B, heads, down, across)
        """What the head sees, and what the answer takes from each patch in the last block."""
        model = as_vit(self.model)
        last = model.config.depth - 1
        block: Block = model.blocks[last]  # type: ignore[assignment]
        tokens = model.tokens_after(images, last)
        shares = block.attn.map(block.norm1(tokens), model.rotation(images)).float()  # (B, heads, T, T)
        patches = (self.readout[:, None] * shares).sum(dim=2)[..., self.layout.patches]  # (B, heads, N)
        return model.head_tokens_from(tokens, last), patches.unflatten(2, self.layout.grid)


def _distances(calibration: Calibration, features: Tensor) -> Tensor:  # (B, F) → (B,)
    """What `Calibration.distances` gives. `torch.cdist` goes another way for more than 25 pictures, and so has no graph
    for any number of them."""
    apart = (features @ calibration.metric)[:, None] - calibration.means @ calibration.metric  # (B, classes, F)
    return torch.linalg.vector_norm(apart, dim=2).amin(dim=1) / calibration.far


LOWEST = torch.finfo(torch.float32).min
ANY_NUMBER = {"pixels": {0: torch.export.Dim("N")}}  # of pictures
LAYERS = ("MatMul", "Gemm", "Conv")  # of ONNX, where the second input is a matrix of the model

Writer = Callable[[WholeModel, GraphHeader, Path], GraphModel]


def write_onnx(model: WholeModel, header: GraphHeader, path: Path) -> GraphModel:
    """For onnxruntime, which is what it is read with again."""
    return save_onnx(graph_of(model), header, path)


def write_openvino(model: WholeModel, header: GraphHeader, path: Path) -> GraphModel:
    """A folder for OpenVINO."""
    return save_openvino(graph_of(model), header, path)


def graph_of(model: WholeModel) -> "ModelProto":
    """A model as ONNX has it, whose layers bear the model's own names."""
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > MOST_BYTES:
        raise WeightsError(f"An ONNX graph holds 2 GB, and this model has {size / 1e9:.1f} GB. Export it as .pt2.")
    with quiet():
        program = torch.onnx.export(
            _trace(model), dynamo=True, opset_version=OPSET, dynamic_shapes=ANY_NUMBER, verbose=False
        )
        assert program is not None
        for value, name in zip(program.model.graph.outputs, output_shapes(model), strict=True):
            value.name = name
        graph: ModelProto = program.model_proto
    tables = {tensor.name for tensor in graph.graph.initializer}
    used: set[str] = set()
    for node in graph.graph.node:
        facts = {fact.key: fact.value for fact in node.metadata_props}
        # The name of the module's layer stands last but one: ['', 'model.head', 'linear_48'].
        scopes = ast.literal_eval(facts.get("pkg.torch.onnx.name_scopes", "[]"))[:-1]
        name = scopes[-1].removeprefix("model.") if scopes else ""
        if node.op_type in LAYERS and node.input[1] in tables and name not in used:
            node.name = name
            used.add(name)
        del node.metadata_props[:]  # where each line of code lies on this machine
    return graph


def save_onnx(graph: "ModelProto", header: GraphHeader, path: Path) -> GraphModel:
    """Write it down, have it checked by its makers, and read it again."""
    import onnx

    with quiet():
        onnx.helper.set_model_props(graph, {"vitral": json.dumps(header.write(), ensure_ascii=False)})
        onnx.save(graph, path)
        onnx.checker.check_model(path, full_check=True)
    return GraphModel.read(path)


def save_openvino(graph: "ModelProto", header: GraphHeader, path: Path) -> GraphModel:
    """Let OpenVINO read it, write it down its own way, and read that again."""
    openvino = import_openvino(path)
    with quiet():
        with TemporaryDirectory() as folder:
            onnx_file = Path(folder) / "model.onnx"
            onnx_file.write_bytes(graph.SerializeToString())
            written = openvino.Core().read_model(onnx_file)
            written.set_rt_info(json.dumps(header.write()), ["vitral"])
            path.mkdir()
            halves = header.reduced is not None and header.reduced.precision == "float16"
            openvino.save_model(written, path / "model.xml", compress_to_fp16=halves)
    return GraphModel.read(path)


def write_pt2(model: WholeModel, header: GraphHeader, path: Path) -> GraphModel:
    """For torch.export."""
    with quiet():
        torch.export.save(
            _trace(model), path, extra_files={"vitral.json": json.dumps(header.write(), ensure_ascii=False)}
        )
        files = {"vitral.json": ""}
        loaded: Any = torch.export.load(path, extra_files=files).module()  # opened because it was written a line above

    @torch.no_grad()
    def run(pixels: Pixels) -> Arrays:
        return {name: tensor.numpy() for name, tensor in loaded(torch.from_numpy(pixels)).items()}

    return GraphModel(GraphHeader.read(json.loads(files["vitral.json"])), run, f"torch {torch.__version__}")


def _trace(model: WholeModel) -> ExportedProgram:
    """The operations of a model, for any number of pictures."""
    program = torch.export.export(model.eval(), example(model), dynamic_shapes=ANY_NUMBER, strict=False)
    for node in program.graph.nodes:
        # onnxruntime makes zeros around a map part of the pooling behind them, where they become −∞ (1.31): a clamp
        # that changes nothing keeps the two apart.
        padded = node.args[0] if node.target is torch.ops.aten.max_pool2d.default else None
        if padded is not None and padded.target is torch.ops.aten.pad.default:
            with program.graph.inserting_before(node):
                apart = program.graph.call_function(torch.ops.aten.clamp.default, (padded, LOWEST))
            apart.meta = dict(padded.meta)
            node.replace_input_with(padded, apart)
    return program


def example(model: WholeModel) -> tuple[Tensor]:
    preprocess = model.preprocess
    return (torch.zeros(2, preprocess.channels, *preprocess.image_size, dtype=torch.uint8),)


@torch.no_grad()
def output_shapes(model: WholeModel) -> dict[str, tuple[int, ...]]:
    """The names of the outputs, and their shapes for one picture."""
    return {name: tuple(tensor.shape[1:]) for name, tensor in model(*example(model)).items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What torch says while it writes is not for those who asked for a file; where it cannot, a sentence says so."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # A fused kernel of attention lays its output out in a way that the operations it is taken apart into do not.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), sdpa_kernel(SDPBackend.MATH):
            warnings.simplefilter("ignore")
            yield
    except (VitralError, OSError):
        raise
    except Exception as error:  # what the exporters raise is their own affair
        lines = str(error).strip().splitlines() or [""]
        raise WeightsError(f"torch cannot write this model as a graph ({type(error).__name__}: {lines[0]}).") from error
    finally:
        logging.disable(before)
