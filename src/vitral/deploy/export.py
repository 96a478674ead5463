"""Export a model as a graph in a file, or as a page around such a graph, which is kept only if it gives the model's own
answers.

The file is first written under another name, run in its own runtime on real pictures, and compared twice: the outputs
for the same pixels, and the answers from the picture on disk to the label. If it answers otherwise it is deleted, and
the difference is told.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from vitral.deploy.cost import LOSS
from vitral.deploy.parity import Parity, compare
from vitral.deploy.reduce import CALIBRATION, PRECISIONS, write_reduced
from vitral.deploy.samples import samples_of
from vitral.deploy.web.page import Page, check_page, write_page
from vitral.deploy.writers import WholeModel, Writer, example, output_shapes, write_onnx, write_openvino, write_pt2
from vitral.errors import RecipeError, WeightsError
from vitral.files import path_of
from vitral.graph import NEEDS_ONNX, NEEDS_OPENVINO, OPENVINO, GraphHeader, Precision, Reduced
from vitral.inference import Inference, Source, load_calibrated, name_of_source
from vitral.model.vit import ViT
from vitral.plugin import Code
from vitral.progress import Progress, Tell, silent
from vitral.version import __version__

PICTURES = 100
TRIED = 1000  # where answers are counted, and not only compared
OTHERS = ("features", "attention")  # outputs that are there if asked for


@dataclass(frozen=True)
class Export:
    """A file that was exported, and how it was tried."""

    path: Path
    takes: tuple[int, ...]  # the shape of the pixels of one picture
    outputs: dict[str, tuple[int, ...]]  # by name: their shapes for one picture
    parity: Parity
    header: GraphHeader
    page: Page | None = None  # how the page around it was tried, where it has one


def export(
    source: Source,
    out: str | Path,
    *,
    others: Collection[str] = (),
    precision: Precision = "float32",
    loss: float = LOSS,
    folder: str | Path | None = None,
    pictures: int | None = None,
    code: Code = (),
    tell: Tell = silent,
) -> Export:
    """Write a model by the ending of `out`: `.onnx` for onnxruntime, `.pt2` for torch, `.openvino` for OpenVINO;
    `.html` as a page that needs no server, and without an ending as the same page in a folder, for a server.

    `source` is a run, weights that `load_pretrained` reads, or `Weights`. The file has the outputs `logits`,
    `probabilities` (`values`, where one is a number), `distance` where the model knows what is unlike its pictures, and
    those in `others`: `features`, `attention` of the last block. It is tried on so many `pictures` of the run (100), or
    of a `folder`, and a WeightsError tells the difference where it does not give the same answers; then nothing is
    left. `code`: files of Python that may be run, where the model is in one.

    In another `precision` its answers are not quite the model's: tried on 1,000 pictures (a page on 100 of them), it
    may cost `loss` points of accuracy. int8 needs training and validation pictures too; those of a folder serve in
    turn.
    """
    path = path_of(out, WeightsError)
    writer, is_page = _writer(path, precision), path.suffix in PAGES
    check_free(path)
    if unknown := sorted(set(others) - set(OTHERS)):
        raise RecipeError(f"There is no output {unknown[0]}. There are: {', '.join(OTHERS)}.")
    inference, page = load_answering(source, code), None
    if is_page:
        check_page(inference.preprocess)
        others = {*others, "attention"} if isinstance(inference.model, ViT) and inference.model.attends else others
    model = WholeModel(baked(inference), others)
    header = header_of(inference)
    reduced = None if precision == "float32" else Reduced(precision=precision, loss=loss)
    counts = {"test": pictures or (TRIED if reduced else PICTURES)}
    if precision == "int8":
        counts |= {"train": CALIBRATION, "validation": TRIED}
    name = name_of_source(source)
    samples, *more = samples_of(source, folder, counts, inference.class_names)
    tell(Progress(0, 1, f"writing {path.name}"))
    with temporary_beside(path, ".onnx" if is_page else path.suffix) as temporary:
        if reduced:
            header = header.model_copy(update={"reduced": reduced})
            parts = [some.prepare(inference.preprocess, inference.class_names) for some in more]
            graph = write_reduced(model, header, temporary, parts, tell)
        else:
            graph = writer(model, header, temporary)
        parity = compare(graph, inference, samples, others, tell)
        if not parity.is_same:
            raise WeightsError(f"{path} was not kept: it does not answer as {name} does. {parity.faults}")
        if is_page:
            page = write_page(temporary, name, path, samples.some(pictures or PICTURES), samples.split, tell)
        else:
            temporary.replace(path)
    return Export(path, tuple(example(model)[0].shape[1:]), output_shapes(model), parity, graph.header, page)


def load_answering(source: Source, code: Code = ()) -> Inference:
    """A model that has something to answer with."""
    weights, calibration = load_calibrated(source, code)
    name = name_of_source(source)
    weights.check_head(name)
    if not weights.class_names:
        raise WeightsError(f"{name} has no classes, so there is nothing to answer with. Train it: it gets some.")
    return Inference(weights, calibration)


def check_free(path: Path) -> None:
    """Refuse a place where something is, or cannot be."""
    if path.exists():
        raise WeightsError(f"{path} is there already, and nothing is overwritten. Choose another name.")
    if not path.absolute().parent.is_dir():
        raise WeightsError(f"There is no folder {path.parent}.")


@contextlib.contextmanager
def temporary_beside(path: Path, ending: str = "") -> Iterator[Path]:
    """A name for a file or a folder until it is known to be good. It is not left, whatever happens."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.part{ending}")
    try:
        yield temporary
    except OSError as error:
        raise WeightsError(f"{path} cannot be written ({error.strerror or error}).") from None
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def baked(inference: Inference) -> Inference:
    """With positions as a table for the size of its pictures: a graph resamples nothing."""
    weights, size = inference.weights, inference.preprocess.image_size
    if size == weights.model.config.height_width:
        return inference
    return Inference(replace(weights, model=weights.model.at(size)), inference.calibration)


def header_of(inference: Inference) -> GraphHeader:
    """What stands in a file beside the graph."""
    targets, calibration = inference.targets, inference.calibration
    temperature = calibration.temperature.reshape(-1).tolist() if calibration else [1.0] * len(targets)
    return GraphHeader(
        written_by=f"vitral {__version__}",
        fingerprint=inference.identity,
        preprocess=inference.preprocess,
        targets=targets,
        temperature=tuple(temperature),
        thresholds=tuple(inference.thresholds.tolist()),
        margins=tuple(inference.margins.tolist()),
        about=inference.weights.about,
    )


PAGES = (".html", "")  # a page has a graph in it
WRITERS: dict[str, Writer] = {".onnx": write_onnx, ".pt2": write_pt2, OPENVINO: write_openvino}
WRITERS |= dict.fromkeys(PAGES, write_onnx)
ONNX = ("onnx", "onnxruntime", "onnxscript")
NEEDED = {".onnx": (ONNX, NEEDS_ONNX), OPENVINO: ((*ONNX, "openvino"), NEEDS_OPENVINO)}
NEEDED |= dict.fromkeys(PAGES, NEEDED[".onnx"])


def _writer(path: Path, precision: Precision) -> Writer:
    """The function that writes such a file, if what it needs is installed."""
    if path.suffix not in WRITERS:
        endings = ", ".join(filter(None, WRITERS))
        raise WeightsError(f"{path} should end in one of {endings}: the ending says what is written.")
    packages, needs = NEEDED.get(path.suffix, ((), ""))
    if not all(map(find_spec, packages)):
        raise WeightsError(f"Writing {path.name} {needs}")
    if precision not in (possible := PRECISIONS.get(path.suffix, ("float32",))):
        raise RecipeError(f"A {path.suffix or 'folder'} is not written in {precision}, but in: {', '.join(possible)}.")
    return WRITERS[path.suffix]
