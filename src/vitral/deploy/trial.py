"""Try converted weights in the library that they are for: real pictures of the run, end to end, by the card's own code.

What comes out is beside what Vitral answers: the largest difference of a probability, and how many answers changed.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitral.deploy.samples import of_run
from vitral.errors import VitralError
from vitral.inference import Inference
from vitral.run import Run
from vitral.targets import TargetKind

PICTURES = 20
TOLERANCE = 0.005  # of a probability: libraries that scale tensors and not Pillow pictures came to 0.003
ADVICE = (
    " What is different is listed. Of the settings, data.resize=stretch and data.jpeg=full are those that every "
    "library can follow."
)
LIBRARIES = {"hf": "transformers", "timm": "timm", "torchvision": "torchvision"}


@dataclass(frozen=True)
class Trial:
    """What a library answered for real pictures, beside Vitral's answers; or why it was not asked."""

    library: str  # with its version, where it was asked
    pictures: int = 0
    split: str = ""
    difference: float = 0.0  # the largest one of a probability; of a number, in standard deviations
    changed: int = 0  # pictures with another most probable class, or with other labels
    of: TargetKind = "class"
    reason: str = ""  # why it was not tried
    error: str = ""  # what the library said instead of answers

    @property
    def is_different(self) -> bool:
        """Whether somebody should be warned."""
        return bool(self.error) or not self.difference <= TOLERANCE or self.changed > 0  # nor may it be NaN

    def __str__(self) -> str:
        if self.error:
            return f"Tried with {self.library}, which failed: {self.error}"
        if self.reason:
            return f"Not tried with {self.library}: {self.reason}"
        return (f"Tried with {self.library} on {self.pictures} {self.split} pictures: {self._difference}.") + (
            ADVICE if self.is_different else ""
        )

    @property
    def _difference(self) -> str:
        if self.of == "number":
            return f"numbers differ by at most {self.difference:.4f} of their standard deviation"
        changed = f"{self.changed} of {self.pictures} answers changed"
        return f"probabilities differ by at most {self.difference:.4f}, and {changed}"


def try_pictures(to: str, folder: Path, code: str, inference: Inference, run: Run | None, count: int) -> Trial:
    """Ask the library that the folder is for about `count` pictures of the run. `code`: the card's `loading_code`."""
    library = LIBRARIES.get(to, "Google's vision_transformer")
    if reason := _reason_not_to(to, inference, run, count):
        return Trial(library, reason=reason)
    assert run is not None
    try:
        split, images, ours = _answers(run, inference, count)
    except (VitralError, OSError) as error:
        return Trial(library, reason=f"the pictures of the run cannot be found. {error}")
    if not images:
        return Trial(library, reason="none of the pictures of the run can be read.")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        library += f" {importlib.metadata.version(library)}"
    try:
        with _quiet(LIBRARIES[to]):
            mode = "L" if to == "timm" and inference.preprocess.channels == 1 else "RGB"  # the others are for colour
            theirs = _answers_of_library(code, folder, [image.convert(mode) for image in images], inference)
    except Exception as error:  # what a library raises is its own affair
        return Trial(library, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    [target], difference = inference.targets, float((theirs - ours).abs().max())
    if target.kind == "number":
        return Trial(library, len(images), split, difference / target.std, of=target.kind)
    if target.kind == "labels":
        thresholds = torch.from_numpy(inference.thresholds)
        differ = ((theirs >= thresholds) != (ours >= thresholds)).any(dim=1)
    else:
        differ = theirs.argmax(dim=1) != ours.argmax(dim=1)
    return Trial(library, len(images), split, difference, int(differ.sum()), target.kind)


def _reason_not_to(to: str, inference: Inference, run: Run | None, count: int) -> str:
    if to not in LIBRARIES:
        return "Vitral does not run it."
    if not count:
        return "no pictures were asked for."
    if run is None:
        return "the weights have no run, and so no pictures of their own."
    if not inference.class_names:
        return "the model has no classes."
    if inference.preprocess.channels not in (1, 3):
        return f"the pictures have {inference.preprocess.channels} bands, which Pillow does not read."
    if importlib.util.find_spec(LIBRARIES[to]) is None:
        return "it is not installed."
    return ""


def _answers(run: Run, inference: Inference, count: int) -> tuple[str, list[Image.Image], Tensor]:
    """The split, some of its pictures as Pillow opens them, and what Vitral says, (n, outputs)."""
    samples = of_run(run, "test", count)
    images, seen = [], []
    for content in samples.pictures.values():
        try:
            prepared = inference.preprocess(content)
            image = (
                Image.open(io.BytesIO(content)) if isinstance(content, bytes) else Image.fromarray(np.asarray(content))
            )
            images.append(ImageOps.exif_transpose(image))
        except (VitralError, OSError):
            continue  # damaged, or a format that Pillow does not read
        seen.append(prepared)
    ours = inference.values(inference.outputs(torch.stack(seen))) if seen else torch.empty(0)
    return samples.split, images, ours


@torch.inference_mode()
def _answers_of_library(code: str, folder: Path, images: list[Image.Image], inference: Inference) -> Tensor:
    """What it says, (n, outputs): probabilities, or a number."""
    names, kind = inference.class_names, inference.targets[0].kind
    scope: dict[str, Any] = {"__file__": str(folder / "classifier.py")}
    exec(code, scope)  # written by card.py from settings that were validated
    if "ask" in scope:  # a pipeline of transformers
        plain = {"function_to_apply": "none"} if kind == "number" else {}  # else a single output is a probability
        rows = (scope["ask"](image, top_k=len(names), **plain) for image in images)
        answers = ({row["label"]: row["score"] for row in some} for some in rows)
        return torch.tensor([[answer[name] for name in names] for answer in answers])
    batch = torch.stack([scope["transform"](image) for image in images])  # (n, C, H, W)
    logits: Tensor = scope["model"](batch)
    return {"class": logits.softmax(dim=1), "labels": logits.sigmoid(), "number": logits}[kind]


@contextlib.contextmanager
def _quiet(library: str) -> Iterator[None]:
    """Imported, with neither bars nor warnings of the library's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(library)  # before stderr is another: its log keeps the one that it begins with
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
