"""A model that has learnt already teaches another one (Hinton et al. 2015; DeiT: Touvron et al. 2021).

A teacher is whatever gives logits for pictures: weights that `load_pretrained` reads, an ONNX file, a Python file's
function or module, a ResNet for CIFAR, or a file of logits. It sees pixels from 0 to 1, (B, C, H, W), as the pupil's
batch has them; weights that were loaded see them as they were trained to.
"""

import runpy
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, kl_div

from vitral.data.batches import Batch, in_order
from vitral.data.pack import Pack, Progress
from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError
from vitral.recipe import Teacher
from vitral.weights.pretrained import load_pretrained, stored_of
from vitral.weights.resnet import is_resnet, resnet_of

Teach = Callable[[Tensor], Tensor]  # (B, C, H, W), 0 to 1 → (B, classes)


@dataclass(frozen=True)
class Lesson:
    """What the teacher says of the pictures of a batch, and how it counts."""

    asked: Teacher
    teach: Teach | None  # None: it has said all that it says
    said: Tensor  # (samples, classes): of each picture as it is, where it is asked once
    preprocess: Preprocess

    def logits(self, batch: Batch, rows: slice) -> Tensor:  # → (B, classes)
        """Of the pictures as they are, or as the pupil sees them."""
        if self.teach is None:
            return self.said[torch.from_numpy(batch.samples[rows])]
        return _asked(self.teach, batch.images[rows], self.preprocess)

    def loss(self, pupil: Tensor, teacher: Tensor) -> Tensor:  # (B, classes) each → ()
        """Hard: the teacher's answer is the label. Soft: its probabilities are, at a common temperature."""
        if self.asked.kind == "hard":
            return cross_entropy(pupil, teacher.argmax(dim=1))
        t = self.asked.temperature
        apart = kl_div(
            (pupil / t).log_softmax(dim=1), (teacher / t).log_softmax(dim=1), reduction="batchmean", log_target=True
        )
        return apart * t**2


def lesson(asked: Teacher, pack: Pack, preprocess: Preprocess) -> Generator[Progress, None, Lesson | None]:
    """The recipe's teacher, ready; where it is asked once, all that it says, which may take minutes: it tells."""
    if asked.source == "none":
        return None
    classes, samples = len(pack.index.class_names), len(pack.index.samples)
    if asked.source.endswith(".npz"):
        return Lesson(asked, None, _from_file(Path(asked.source), pack), preprocess)
    teach = _found(asked.source, pack.index.class_names)
    if asked.sees == "batch":
        return Lesson(asked, teach, torch.empty(0), preprocess)
    said, train = torch.zeros(samples, classes), pack.of("train")
    done = 0
    for batch in in_order(pack, train, preprocess):
        said[torch.from_numpy(batch.samples)] = _asked(teach, batch.images, preprocess)
        done += len(batch.samples)
        yield Progress(done, len(train), doing="the teacher looks at the pictures, once")
    return Lesson(asked, None, said, preprocess)


@torch.no_grad()
def _asked(teach: Teach, images: Tensor, preprocess: Preprocess) -> Tensor:
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (preprocess.mean, preprocess.std))
    found = teach(images * std + mean)
    return found.detach().float()


def _found(source: str, class_names: tuple[str, ...]) -> Teach:
    if source.endswith(".onnx"):
        return _onnx(source)
    path, _, name = source.rpartition(":")
    if path.endswith(".py"):
        return _python(path, name)
    return _weights(source, class_names)


def _weights(source: str, class_names: tuple[str, ...]) -> Teach:
    stored = stored_of(source)
    if is_resnet(stored.tensors):
        mean, std = (tuple(stored.about.get(name, ())) for name in ("mean", "std"))
        if (known := len(stored.tensors["linear.weight"])) != len(class_names):
            raise RecipeError(
                f"teacher.source {source} knows {known} classes, and the pictures {len(class_names)}: a teacher must "
                "know the same."
            )
        if not len(mean) == len(std) == 3:
            raise RecipeError(f"teacher.source {source} has no about.json that tells mean and std.")
        return resnet_of(stored.tensors, mean, std)
    pretrained = load_pretrained(source)
    if set(class_names) - set(pretrained.class_names):
        missing = sorted(set(class_names) - set(pretrained.class_names))[0]
        raise RecipeError(f"teacher.source {source} does not know the class {missing}: it cannot teach it.")
    order = torch.tensor([pretrained.class_names.index(name) for name in class_names])
    model, preprocess = pretrained.model.eval(), pretrained.preprocess

    def teach(images: Tensor) -> Tensor:
        sized = interpolate(images, preprocess.image_size, mode="bicubic", antialias=True)
        return model(preprocess.normalise(sized.clamp(0, 1) * 255))[:, order]

    return teach


def _python(path: str, name: str) -> Teach:
    try:
        made = runpy.run_path(path, run_name="_vitral_teacher")[name]
    except (OSError, KeyError):
        raise RecipeError(f"teacher.source: {path} has no {name}, or is not there.") from None
    if isinstance(made, nn.Module):
        made.eval()
    return made


def _onnx(path: str) -> Teach:
    try:
        import onnxruntime
    except ImportError:
        raise RecipeError(f"teacher.source {path} needs onnxruntime: pip install onnxruntime") from None
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


def _from_file(path: Path, pack: Pack) -> Tensor:
    """`samples` (names), `logits` (n, classes) and `class_names`, in whatever order."""
    try:
        with np.load(path, allow_pickle=False) as file:
            samples, logits, names = file["samples"], file["logits"], [str(name) for name in file["class_names"]]
    except (OSError, KeyError, ValueError) as error:
        raise RecipeError(f"teacher.source {path} should hold samples, logits and class_names ({error}).") from None
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
