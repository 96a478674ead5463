"""A model becomes a page: one file that a person opens by double-click, or a folder for a web server.

The model is exported and tried as ONNX first; then the page around it is tried in a real Chromium, where there is one.
"""

import base64
import contextlib
import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from vitral.data.config import Scale
from vitral.data.decode import Picture
from vitral.data.preprocess import Preprocess
from vitral.deploy.web.chromium import CannotStart, Chromium, find_chromium
from vitral.deploy.web.runtime import LICENCE, SCRIPT, VERSION, WASM, runtime_files
from vitral.deploy.web.trial import PageTrial, scaling_cost, try_page
from vitral.errors import WeightsError
from vitral.graph import GraphHeader, GraphModel
from vitral.look.page import render
from vitral.progress import Tell, silent
from vitral.targets import Target
from vitral.version import __version__

INSIDE = "The model in it was tried, as the sentence before says."
FEW = 12  # names that are all said; of more, half as many
INDEX = "index.html"  # of a folder
# Modules that import each other by these names, wherever they lie: in the page, or beside it.
MODULES = ("answer", "camera", "model", "page", "picture", "prepare", "resample", "view")
# What a page may do: run what is in it, and nothing goes out.
POLICY = (
    "default-src 'none'; script-src {here} 'unsafe-inline' 'wasm-unsafe-eval'; style-src {styles} 'unsafe-inline'; "
    "img-src data: blob:; media-src blob:; connect-src {fetched}; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Page:
    """A page that was written, and how it was tried."""

    path: Path
    size: int  # bytes, of all its files
    trial: PageTrial
    scaling: str  # what full decoding costs, in a sentence; empty where it costs nothing

    def __str__(self) -> str:
        kind = "one file, which needs no server and no network" if self.path.suffix else "a folder, for a web server"
        sentences = [str(self.trial), self.scaling, f"Written to {self.path}: {self.size / 1e6:.1f} MB, {kind}"]
        return "\n".join(filter(None, sentences))


def check_page(preprocess: Preprocess) -> None:
    """Refuse, before anything is done, what will not become a page: for its pictures, or for lack of the runtime."""
    if preprocess.channels not in (1, 3):
        raise WeightsError(
            f"A browser gives pictures in grey or colour, and this model takes {preprocess.channels} channels: there "
            "can be no page of it. Export it as .onnx."
        )
    runtime_files()


def write_page(
    model: Path, name: str, out: Path, pictures: Mapping[str, Picture], split: str, tell: Tell = silent
) -> Page:
    """Put a page around an exported model.onnx, and try it. A WeightsError tells the difference where the page does not
    answer as the model; then nothing is left."""
    graph = GraphModel.read(model)
    script, wasm = runtime_files()
    place = Path(tempfile.mkdtemp(dir=out.absolute().parent, prefix=f".{out.stem}."))
    try:
        # A file keeps its ending, by which a browser knows it.
        page = place / (out.name if out.suffix else INDEX)
        write = _write_file if out.suffix else _write_folder
        write(page, _values(graph.header, name), {"model": model.read_bytes(), "runtime": wasm, "ort": script})
        trial = _trial(page, graph, pictures, split, tell)
        if not trial.is_same:
            raise WeightsError(f"{out} was not kept: the page does not answer as {name} does. {trial.faults}")
        size = sum(path.stat().st_size for path in place.iterdir())
        if out.suffix:
            page.replace(out)
        else:
            place.chmod(0o755)  # a folder for a moment is its owner's alone
            place.replace(out)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Page(out, size, trial, scaling_cost(graph, pictures))


def _trial(page: Path, graph: GraphModel, pictures: Mapping[str, Picture], split: str, tell: Tell) -> PageTrial:
    program = find_chromium()
    if program is None:
        return PageTrial(reason=f"there is no Chromium on this machine. {INSIDE}")
    address = served(page) if page.name == INDEX else contextlib.nullcontext(page.as_uri())
    full = graph.preprocess.model_copy(update={"jpeg": "full"})
    try:
        with address as url, Chromium.start(program) as browser:
            return try_page(browser, url, graph, full, pictures, split, tell)
    except CannotStart as error:
        return PageTrial(reason=f"{error} {INSIDE}")


class _Quiet(SimpleHTTPRequestHandler):
    """A server that tells nobody what it was asked for."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(page: Path) -> Iterator[str]:
    """The address of a page whose folder is served, to this machine alone: else they do not take its parts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=page.parent))
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{page.name}"
        finally:
            server.shutdown()


# What stands in a page


def _values(header: GraphHeader, name: str) -> dict[str, Any]:
    """What the template says of a model."""
    licence = header.about.get("licence")
    return {
        "name": name,
        "version": __version__,
        "runtime": VERSION,
        "runtime_licence": Markup(LICENCE),  # in a comment, where nothing is escaped
        "icon": _data("image/svg+xml", _house("look/glass/page/icon.svg")),
        "facts": facts(header.targets),
        "plan": _json(plan_of(header.preprocess) | _answers(header)),
        "origin": f"Written by Vitral {__version__}; run by ONNX Runtime Web {VERSION} (MIT)."
        + (f" The model's licence: {licence}." if licence else ""),
    }


def facts(targets: tuple[Target, ...]) -> str:
    """What a model tells of a picture, in a sentence.

    >>> facts((Target(names=("ant", "bee")),))
    'Show it a picture, and it tells which of 2 classes that is: ant, bee.'
    >>> facts((Target(name="insect", names=("ant", "bee")), Target(name="size", kind="number", names=("size",))))
    'Show it a picture, and it tells insect (ant, bee), size (a number).'
    """
    names = [
        ", ".join(target.names if len(target.names) <= FEW else (*target.names[: FEW // 2], "…")) for target in targets
    ]
    if len(targets) > 1:
        each = zip(targets, names, strict=True)
        words = ", ".join(f"{one.name} ({'a number' if one.kind == 'number' else those})" for one, those in each)
    else:
        [target], [those], count = targets, names, f"{len(targets[0].names):,}"
        kinds = {"class": f"which of {count} classes that is", "labels": f"which of {count} labels it has"}
        words = f"{kinds.get(target.kind, 'a number')}: {those}"
    return f"Show it a picture, and it tells {words}".removesuffix(".") + ("" if words.endswith("…") else ".")


def plan_of(preprocess: Preprocess) -> dict[str, Any]:
    """How a picture becomes the model's pixels, in the words of the page's prepare.js."""
    resize: dict[str, Any] = {"kind": preprocess.resize.kind}
    if isinstance(preprocess.resize, Scale):
        resize |= {"edges": preprocess.edges(preprocess.resize), "rounding": preprocess.resize.rounding}
    return {
        "size": preprocess.image_size,
        "stored": preprocess.stored_size,
        "channels": preprocess.channels,
        "background": preprocess.background,
        "resize": resize,
        "interpolation": preprocess.interpolation,
        "downFirst": scales_down_first(),
        "profile": preprocess.profile,
    }


def _answers(header: GraphHeader) -> dict[str, Any]:
    """What the outputs mean, in the words of the page's answer.js."""
    return {
        "targets": [target.write() for target in header.targets],
        "thresholds": header.thresholds,
        "margins": header.margins,
        "fingerprint": header.fingerprint,
    }


def scales_down_first() -> bool:
    """Whether this Pillow scales a tall picture down before across (13 does), which differs by some levels."""
    tall = Image.fromarray(np.random.default_rng(0).integers(0, 2, (60, 8), np.uint8) * 255)
    lanczos = Image.Resampling.LANCZOS
    return tall.resize((8, 6), lanczos).resize((12, 6), lanczos).tobytes() == tall.resize((12, 6), lanczos).tobytes()


def _write_file(page: Path, values: Mapping[str, Any], parts: Mapping[str, bytes]) -> None:
    """All in one: what is large is compressed, and everything is text."""
    modules = {"ort": parts["ort"], **{f"vitral/{name}": content for name, content in _modules().items()}}
    packed = {name: base64.b64encode(gzip.compress(parts[name], mtime=0)).decode() for name in ("runtime", "model")}
    _render(
        page,
        values,
        css=Markup(_css()),
        imports=_json({"imports": {name: _data("text/javascript", content) for name, content in modules.items()}}),
        parts={name: {"text": text, "file": ""} for name, text in packed.items()},
        policy=POLICY.format(here="data:", styles="", fetched="'none'"),
        privacy="Everything happens in this page. It needs no network, and forbids itself to use one: pictures stay "
        "where they are.",
    )


def _write_folder(page: Path, values: Mapping[str, Any], parts: Mapping[str, bytes]) -> None:
    """For a web server: what does not change is fetched once, and kept by the browser."""
    modules = _modules()
    contents = {f"{name}.js": content for name, content in modules.items()}
    contents |= {
        SCRIPT: parts["ort"],
        WASM: parts["runtime"],
        "model.onnx": parts["model"],
        "page.css": _css().encode(),
    }
    for name, content in contents.items():
        (page.parent / name).write_bytes(content)
    _render(
        page,
        values,
        css_file="page.css",
        imports=_json({"imports": {f"vitral/{name}": f"./{name}.js" for name in modules} | {"ort": f"./{SCRIPT}"}}),
        parts={"runtime": {"text": "", "file": WASM}, "model": {"text": "", "file": "model.onnx"}},
        policy=POLICY.format(here="'self'", styles="'self'", fetched="'self'"),
        privacy="Everything happens in this page: once it is here, pictures stay where they are.",
    )


def _render(page: Path, values: Mapping[str, Any], **others: Any) -> None:
    template = _own("index.html").decode()
    page.write_text(render(template, {"css": "", "css_file": "", **values, **others}), encoding="utf-8")


def _modules() -> dict[str, bytes]:
    """The page's scripts by name; the colours of maps are those of the glass."""
    return {name: _own(f"{name}.js") for name in MODULES} | {"colours": _house("look/glass/page/colours.js")}


def _css() -> str:
    return (_house("look/page.css") + _own("page.css")).decode()


def _own(name: str) -> bytes:
    return _house(f"deploy/web/page/{name}")


def _house(path: str) -> bytes:
    return files("vitral").joinpath(path).read_bytes()


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _json(values: Mapping[str, Any]) -> Any:
    """JSON inside of a script element, which no name in it can end."""
    return Markup(json.dumps(values, ensure_ascii=False).replace("<", "\\u003c"))
