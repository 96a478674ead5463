"""A model that has learnt already, to teach another one. How its logits count is in `objectives/distillation.py`.

A teacher is whatever gives logits for pictures: weights that `load_pretrained` reads, an ONNX file, a Python file's
function or module, a ResNet for CIFAR, or a file of logits. It sees pixels from 0 to 1, (B, C, H, W), as the pupil's
batch has them; loaded weights see them as they were trained to.
"""

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vitral.data.pack import Pack
from vitral.errors import RecipeError
from vitral.files import sha256_of
from vitral.model.cifar_resnet import cifar_resnet_of, is_cifar_resnet
from vitral.plugin import Code, Plugin, is_plugin
from vitral.targets import require_one_class
from vitral.training.config import Teacher
from vitral.weights.pretrained import load_pretrained, raw_weights_of
from vitral.weights.stored import RawWeights, digest

Teach = Callable[[Tensor], Tensor]  # (B, C, H, W), 0 to 1 → (B, classes)


@dataclass(frozen=True)
class LoadedTeacher:
    """A teacher, ready to be asked."""

    teach: Teach | None  # None: its logits are in a file
    digest: str  # of its file or its weights: another one would teach otherwise
    see: Teach | None = None  # of a CNN: → (B, F, h, w)


def find_teacher(
    settings: Teacher, class_names: tuple[str, ...], plugins: Mapping[str, Plugin], code: Code = ()
) -> LoadedTeacher | None:
    """Load the recipe's teacher, which must know these classes; None where there is none. Takes no time to speak of."""
    if settings.source == "none":
        return None
    if is_plugin(settings.source):
        plugin = plugins[settings.source]
        return LoadedTeacher(_check_logits(_callable(plugin, settings), settings.source, class_names), plugin.sha256)
    if settings.source.endswith((".npz", ".onnx")):
        path = Path(settings.source)
        if not path.is_file():
            raise RecipeError(f"teacher.source: there is no file {path}.")
        teach = _check_logits(_load_onnx(path), settings.source, class_names) if path.suffix == ".onnx" else None
        return LoadedTeacher(teach, sha256_of(path))
    stored = raw_weights_of(settings.source)
    if is_cifar_resnet(stored.tensors):
        return _load_cnn(stored, settings.source, class_names)
    return LoadedTeacher(_load_weights(settings.source, class_names, code), digest(stored.tensors.values()))


def _check_logits(teach: Teach, source: str, class_names: tuple[str, ...]) -> Teach:
    """The same function, which refuses an answer that is not a logit for each class."""

    def teach_and_check(images: Tensor) -> Tensor:
        try:
            logits = teach(images)
        except Exception as error:  # of code that is not ours
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            raise RecipeError(f"teacher.source {source} fails on {len(images)} pictures ({reason}).") from error
        pictures, classes = shape = (len(images), len(class_names))
        if not isinstance(logits, Tensor) or logits.shape != shape:
            answer = "×".join(map(str, logits.shape)) if isinstance(logits, Tensor) else type(logits).__name__
            raise RecipeError(
                f"teacher.source {source} answers {pictures} pictures with {answer}, and a logit for each of the "
                f"{classes} classes was expected: {pictures}×{classes}."
            )
        return logits

    return teach_and_check


def _load_cnn(stored: RawWeights, source: str, class_names: tuple[str, ...]) -> LoadedTeacher:
    mean, std = (tuple(stored.about.get(name, ())) for name in ("mean", "std"))
    if not len(mean) == len(std) == 3:
        raise RecipeError(f"teacher.source {source} has no about.json that tells mean and std.")
    # Without names its classes are taken to be those of the pictures, in their order.
    known, count = tuple(stored.about.get("class_names", class_names)), len(stored.tensors["linear.weight"])
    if count != len(known):
        where = "its about.json names" if "class_names" in stored.about else "the pictures have"
        raise RecipeError(f"teacher.source {source} knows {count} classes, and {where} {len(known)}.")
    order = _order(known, class_names, source)
    cnn = cifar_resnet_of(stored.tensors, mean, std)
    return LoadedTeacher(lambda images: cnn(images)[:, order], digest(stored.tensors.values()), cnn.features)


def _load_weights(source: str, class_names: tuple[str, ...], code: Code) -> Teach:
    pretrained = load_pretrained(source, code=code)
    require_one_class(pretrained.targets, source, "A teacher")
    order = _order(pretrained.class_names, class_names, source)
    model, preprocess = pretrained.model.eval(), pretrained.preprocess

    def teach(images: Tensor) -> Tensor:
        resized = interpolate(images, preprocess.image_size, mode="bicubic", antialias=True)
        return model(preprocess.normalise(resized.clamp(0, 1) * 255))[:, order]

    return teach


def _order(known: tuple[str, ...], class_names: tuple[str, ...], source: str) -> Tensor:
    """For each of our classes, its number among those that the teacher knows."""
    if missing := sorted(set(class_names) - set(known)):
        raise RecipeError(f"teacher.source {source} does not know the class {missing[0]}: it cannot teach it.")
    return torch.tensor([known.index(name) for name in class_names])


def _callable(plugin: Plugin, settings: Teacher) -> Teach:
    if not callable(plugin.value):
        path, _, name = settings.source.rpartition(":")
        callables = [known for known, value in plugin.names.items() if callable(value) and not known.startswith("_")]
        raise RecipeError(f"teacher.source: {path} has no function {name}. It has: {', '.join(callables) or 'none'}.")
    return plugin.value.eval() if isinstance(plugin.value, nn.Module) else plugin.value


def _load_onnx(path: Path) -> Teach:
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


def read_logits(source: str, pack: Pack) -> Tensor:  # → (samples, classes)
    """Logits for a pack's pictures from an .npz of `samples` (names), `logits` (n, classes) and `class_names`, in
    whatever order."""
    path = Path(source)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            samples, logits = arrays["samples"], arrays["logits"]
            names = [str(name) for name in arrays["class_names"]]
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
        gap = f"the picture {missing[0]}" if missing else f"the classes {', '.join(index.class_names[:5])}"
        raise RecipeError(f"teacher.source {path} does not speak of {gap}.")
    table = np.zeros((len(index.samples), len(names)), np.float32)
    order = [names.index(name) for name in index.class_names]
    for number in pack.of("train"):
        table[number] = logits[rows[index.samples[number]]][order]
    return torch.from_numpy(table)
