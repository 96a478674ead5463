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

from vitral.data.sources import open_source
from vitral.errors import VitralError
from vitral.inference import Inference
from vitral.run import Run

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
    difference: float = 0.0  # the largest one of a probability
    changed: int = 0  # pictures with another most probable class
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
        return (
            f"Tried with {self.library} on {self.pictures} {self.split} pictures: probabilities differ by at most "
            f"{self.difference:.4f}, and {self.changed} of {self.pictures} answers changed."
        ) + (ADVICE if self.is_different else "")


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
            theirs = _answers_of_library(code, folder, [image.convert(mode) for image in images], inference.class_names)
    except Exception as error:  # what a library raises is its own affair
        return Trial(library, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    difference = float((theirs - ours).abs().max())
    changed = int((theirs.argmax(dim=1) != ours.argmax(dim=1)).sum())
    return Trial(library, len(images), split, difference, changed)


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
    """The split, some of its pictures as Pillow opens them, and Vitral's probabilities, (n, classes)."""
    index = open_source(run.recipe.data)
    split = next(split for split in ("test", "validation", "train") if len(index.of(split)))
    numbers = index.of(split)
    images, seen = [], []
    for place in np.unique(np.linspace(0, len(numbers) - 1, count).astype(int)):
        try:
            content = index.storage.read(int(numbers[place]))
            prepared = inference.preprocess(content)
            image = Image.open(io.BytesIO(content)) if isinstance(content, bytes) else Image.fromarray(content)
            images.append(ImageOps.exif_transpose(image))
        except (VitralError, OSError):
            continue  # damaged, gone, or a format that Pillow does not read
        seen.append(prepared)
    ours = inference.probabilities(inference.outputs(torch.stack(seen))) if seen else torch.empty(0)
    return split, images, ours


@torch.inference_mode()
def _answers_of_library(code: str, folder: Path, images: list[Image.Image], names: tuple[str, ...]) -> Tensor:
    """Its probabilities, (n, classes)."""
    scope: dict[str, Any] = {"__file__": str(folder / "classifier.py")}
    exec(code, scope)  # written by card.py from settings that were validated
    if "ask" in scope:  # a pipeline of transformers
        answers = ({row["label"]: row["score"] for row in scope["ask"](image, top_k=len(names))} for image in images)
        return torch.tensor([[answer[name] for name in names] for answer in answers])
    batch = torch.stack([scope["transform"](image) for image in images])  # (n, C, H, W)
    return scope["model"](batch).softmax(dim=1)


@contextlib.contextmanager
def _quiet(library: str) -> Iterator[None]:
    """Imported, with neither bars nor warnings of the library's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(library)  # before stderr is another: its log keeps the one that it begins with
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
