"""A model that has learnt already, to teach another one: what it says and how that counts is in `lesson.py`.

A teacher is whatever gives logits for pictures: weights that `load_pretrained` reads, an ONNX file, a Python file's
function or module, a ResNet for CIFAR, or a file of logits. It sees pixels from 0 to 1, (B, C, H, W), as the pupil's
batch has them; weights that were loaded see them as they were trained to.
"""

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vitral.data.pack import Pack
from vitral.errors import RecipeError
from vitral.files import run_python, sha256_of
from vitral.model.resnet import is_resnet, resnet_of
from vitral.training.config import Teacher
from vitral.weights.pretrained import load_pretrained, raw_weights_of
from vitral.weights.stored import RawWeights, digest

Teach = Callable[[Tensor], Tensor]  # (B, C, H, W), 0 to 1 → (B, classes)


@dataclass(frozen=True)
class LoadedTeacher:
    """A teacher that is there."""

    teach: Teach | None  # None: a file of what it said
    digest: str  # of its file or its weights: another one would teach otherwise
    see: Teach | None = None  # of a CNN: → (B, F, h, w)


def find_teacher(asked: Teacher, class_names: tuple[str, ...]) -> LoadedTeacher | None:
    """The recipe's teacher, who knows these classes; None where it asks for none. Takes no time to speak of."""
    if asked.source == "none":
        return None
    script, _, name = asked.source.rpartition(":")
    if script.endswith(".py"):
        return LoadedTeacher(_checked(_python(script, name), asked.source, class_names), sha256_of(Path(script)))
    if asked.source.endswith((".npz", ".onnx")):
        path = Path(asked.source)
        if not path.is_file():
            raise RecipeError(f"teacher.source: there is no file {path}.")
        teach = _checked(_onnx(path), asked.source, class_names) if path.suffix == ".onnx" else None
        return LoadedTeacher(teach, sha256_of(path))
    stored = raw_weights_of(asked.source)
    if is_resnet(stored.tensors):
        return _cnn(stored, asked.source, class_names)
    return LoadedTeacher(_weights(asked.source, class_names), digest(stored.tensors.values()))


def _checked(teach: Teach, source: str, class_names: tuple[str, ...]) -> Teach:
    """One that gives a logit a class, or is told to."""

    def checked(images: Tensor) -> Tensor:
        try:
            found = teach(images)
        except Exception as error:  # of code that is not ours
            told = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            raise RecipeError(f"teacher.source {source} fails on {len(images)} pictures ({told}).") from error
        wanted = (len(images), len(class_names))
        if not isinstance(found, Tensor) or found.shape != wanted:
            given = "×".join(map(str, found.shape)) if isinstance(found, Tensor) else type(found).__name__
            raise RecipeError(
                f"teacher.source {source} answers {wanted[0]} pictures with {given}, and a logit for each of the "
                f"{wanted[1]} classes was expected: {wanted[0]}×{wanted[1]}."
            )
        return found

    return checked


def _cnn(stored: RawWeights, source: str, class_names: tuple[str, ...]) -> LoadedTeacher:
    mean, std = (tuple(stored.about.get(name, ())) for name in ("mean", "std"))
    if not len(mean) == len(std) == 3:
        raise RecipeError(f"teacher.source {source} has no about.json that tells mean and std.")
    # Without names its classes are taken to be those of the pictures, in their order.
    known, count = tuple(stored.about.get("class_names", class_names)), len(stored.tensors["linear.weight"])
    if count != len(known):
        where = "its about.json names" if "class_names" in stored.about else "the pictures have"
        raise RecipeError(f"teacher.source {source} knows {count} classes, and {where} {len(known)}.")
    order = _order(known, class_names, source)
    cnn = resnet_of(stored.tensors, mean, std)
    return LoadedTeacher(lambda images: cnn(images)[:, order], digest(stored.tensors.values()), cnn.features)


def _weights(source: str, class_names: tuple[str, ...]) -> Teach:
    pretrained = load_pretrained(source)
    order = _order(pretrained.class_names, class_names, source)
    model, preprocess = pretrained.model.eval(), pretrained.preprocess

    def teach(images: Tensor) -> Tensor:
        sized = interpolate(images, preprocess.image_size, mode="bicubic", antialias=True)
        return model(preprocess.normalise(sized.clamp(0, 1) * 255))[:, order]

    return teach


def _order(known: tuple[str, ...], class_names: tuple[str, ...], source: str) -> Tensor:
    """Where the teacher has each of the classes."""
    if missing := sorted(set(class_names) - set(known)):
        raise RecipeError(f"teacher.source {source} does not know the class {missing[0]}: it cannot teach it.")
    return torch.tensor([known.index(name) for name in class_names])


def _python(path: str, name: str) -> Teach:
    values = run_python(path)
    if not callable(made := values.get(name)):
        callables = [known for known, value in values.items() if callable(value) and not known.startswith("_")]
        raise RecipeError(f"teacher.source: {path} has no function {name}. It has: {', '.join(callables) or 'none'}.")
    if isinstance(made, nn.Module):
        made.eval()
    return made


def _onnx(path: Path) -> Teach:
    try:
        import onnxruntime
    except ImportError:
        raise RecipeError(f"teacher.source {path} needs onnxruntime: pip install onnxruntime") from None
    try:
        session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds, of which it has many
        raise RecipeError(f"teacher.source {path} cannot be opened by onnxruntime ({error}).") from None
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def from_file(source: str, pack: Pack) -> Tensor:  # → (samples, classes)
    """`samples` (names), `logits` (n, classes) and `class_names`, in whatever order."""
    path = Path(source)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as said_of:
            samples, logits = said_of["samples"], said_of["logits"]
            names = [str(name) for name in said_of["class_names"]]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RecipeError(f"teacher.source {path} should hold samples, logits and class_names ({error}).") from None
    if logits.shape != (len(samples), len(names)):
        raise RecipeError(
            f"teacher.source {path} has logits of shape {logits.shape} for {len(samples)} samples and {len(names)} "
            "class_names."
        )
    rows = {str(sample): row for row, sample in enumerate(samples)}
    index = pack.index
    missing = [index.samples[number] for number in pack.of("train") if index.samples[number] not in rows]
    if missing or sorted(names) != sorted(index.class_names):
        what = f"the picture {missing[0]}" if missing else f"the classes {', '.join(index.class_names[:5])}"
        raise RecipeError(f"teacher.source {path} does not speak of {what}.")
    said = np.zeros((len(index.samples), len(names)), np.float32)
    order = [names.index(name) for name in index.class_names]
    for number in pack.of("train"):
        said[number] = logits[rows[index.samples[number]]][order]
    return torch.from_numpy(said)
