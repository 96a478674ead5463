"""Distillation: what a teacher says of a picture counts in the loss, beside the label.

Its logits, hard or soft, are for the model's last classifier (Hinton et al. 2015; DeiT: Touvron et al. 2021). Features
are what a CNN sees at each place of a picture, and are for the tokens of the patches there (Romero et al. 2015).
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate, kl_div, mse_loss

from vitral.data.batches import Batch, Batches, in_order
from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError
from vitral.model.interface import Model
from vitral.progress import Progress
from vitral.training.config import Teacher
from vitral.training.objectives import Objective
from vitral.training.objectives.classification import Classification, accuracy
from vitral.training.teacher import LoadedTeacher, Teach, read_logits

TEACHER_BATCH = 64  # pictures: with 256 a CNN's numbers do not stay in the cache
STATISTICS = 1_000  # pictures by which a teacher's features are brought to mean 0 and standard deviation 1


class StudentOutput(NamedTuple):
    """What the model that learns makes of a batch."""

    logits: Tensor  # (B, classes): of the last classifier
    patches: Tensor  # (B, K, D): the tokens of the patches, after the last norm
    keep: Tensor | None  # (B, K): which patches these are; None: all
    grid: tuple[int, int]  # of all patches, down and across


@dataclass(frozen=True)
class LogitDistillation:
    """The teacher's logits, of each picture as it is or as the model sees it."""

    settings: Teacher
    teach: Teach | None  # None: all its logits are in `table`
    table: Tensor  # (samples, classes): its logits for each picture as it is, where these are computed once
    preprocess: Preprocess

    def logits(self, batch: Batch) -> Tensor:  # → (B, classes)
        """The teacher's logits for the pictures of a batch: as they are, or as the model sees them."""
        if self.teach is None:
            return self.table[torch.from_numpy(batch.samples)]
        return _ask_teacher(self.teach, batch.unscaled, self.preprocess)

    def loss(self, batch: Batch, student: StudentOutput) -> Tensor:  # → ()
        """Hard: the teacher's answer is the label. Soft: its probabilities are the target, at a common temperature."""
        teacher = self.logits(batch).to(student.logits.device)
        if self.settings.kind == "hard":
            return cross_entropy(student.logits, teacher.argmax(dim=1))
        t = self.settings.temperature
        ours, theirs = ((logits / t).log_softmax(dim=1) for logits in (student.logits, teacher))
        return kl_div(ours, theirs, reduction="batchmean", log_target=True) * t**2


@dataclass(frozen=True)
class FeatureDistillation:
    """What the teacher sees at each place is what the first numbers of the token there are to be."""

    settings: Teacher
    see: Teach  # → (B, F, h, w)
    mean: Tensor  # (F, 1, 1): of its features
    std: Tensor  # (F, 1, 1)
    batches: Batches
    table: Tensor = field(default_factory=lambda: torch.empty(0))  # (training pictures, F, h, w), where computed once

    def standardise(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, F, h, w)
        """The teacher's features, with mean 0 and standard deviation 1."""
        return (_ask_teacher(self.see, images, self.batches.preprocess) - self.mean) / self.std

    def maps(self, batch: Batch) -> Tensor:  # → (B, F, h, w)
        """The teacher's features of a batch as the model sees it; a map from `table` is moved as its picture is."""
        if not len(self.table):
            return self.standardise(batch.unscaled)
        numbers = np.searchsorted(self.batches.samples, batch.samples)
        return self.batches.moved(self.table[torch.from_numpy(numbers)].float(), batch)

    def loss(self, batch: Batch, student: StudentOutput) -> Tensor:  # → ()
        """The mean square of how far tokens and features are apart."""
        maps = self.maps(batch).to(student.patches)
        if maps.shape[2:] != student.grid:
            maps = interpolate(maps, student.grid, mode="bilinear", antialias=True)
        targets = maps.flatten(2).transpose(1, 2)  # (B, N, F)
        if student.keep is not None:
            targets = targets.gather(1, student.keep[:, :, None].expand(-1, -1, targets.shape[2]))
        return mse_loss(student.patches[:, :, : targets.shape[2]], targets)


class Distillation(Objective):
    """The first classifier learns from the label; the last one, or the patches, from the teacher."""

    figures = ("accuracy",)
    by_picture = True
    validates_logits = True

    def __init__(self, classification: Classification, lesson: LogitDistillation | FeatureDistillation) -> None:
        super().__init__()
        self.classification, self.lesson = classification, lesson

    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        by_place, dtype = isinstance(self.lesson, FeatureDistillation), batch.images.dtype
        tokens = model.features(batch.images, batch.keep) if by_place else model.head_tokens(batch.images, batch.keep)
        heads = [logits.to(dtype) for logits in model.logits(tokens)]
        patches = model.patch_tokens(tokens).to(dtype)
        student = StudentOutput(heads[-1], patches, batch.keep, model.grid_of(batch.images))
        weight = self.lesson.settings.weight
        label = self.classification.of_logits(*self.classification.compared(heads[0], batch.targets))
        loss = (1 - weight) * label + weight * self.lesson.loss(batch, student)
        return loss, {"accuracy": accuracy(torch.stack(heads).mean(dim=0), batch.labels)}

    def copy(self) -> "Distillation":
        """The teacher and what it has said is shared: it does not learn."""
        return Distillation(self.classification, self.lesson)

    def validate(self, model: Model, batches: Iterable[Batch]) -> dict[str, float]:
        """The loss and the accuracy by the labels alone, without the teacher."""
        return self.classification.validate(model, batches)


def distillation(
    settings: Teacher, teacher: LoadedTeacher, batches: Batches, model: Model, classification: Classification
) -> Generator[Progress, None, Distillation]:
    """The objective with its teacher. Where this sees each picture once, it does so here, which may take minutes."""
    if settings.kind == "map":
        with torch.no_grad():
            config, like = model.config, next(model.parameters())
            width = model.features(like.new_zeros(1, config.channels, *config.height_width)).shape[-1]
        return Distillation(classification, (yield from _by_features(settings, teacher, batches, width)))
    return Distillation(classification, (yield from _by_logits(settings, teacher, batches)))


def _by_logits(
    settings: Teacher, teacher: LoadedTeacher, batches: Batches
) -> Generator[Progress, None, LogitDistillation]:
    pack, preprocess = batches.pack, batches.preprocess
    if teacher.teach is None:
        return LogitDistillation(settings, None, read_logits(settings.source, pack), preprocess)
    if settings.sees == "batch":
        return LogitDistillation(settings, teacher.teach, torch.empty(0), preprocess)
    table, done = torch.zeros(len(pack.index.samples), len(pack.index.class_names)), 0
    for batch in in_order(pack, batches.samples, preprocess, TEACHER_BATCH):
        table[torch.from_numpy(batch.samples)] = _ask_teacher(teacher.teach, batch.images, preprocess)
        done += len(batch.samples)
        yield _progress(done, batches)
    return LogitDistillation(settings, None, table, preprocess)


def _by_features(
    settings: Teacher, teacher: LoadedTeacher, batches: Batches, width: int
) -> Generator[Progress, None, FeatureDistillation]:
    if teacher.see is None:
        raise RecipeError(
            f"teacher.kind map needs a CNN, which {settings.source} is not: set teacher.kind=soft or hard."
        )
    pack, preprocess, train = batches.pack, batches.preprocess, batches.samples
    some = train[np.unique(np.linspace(0, len(train) - 1, min(STATISTICS, len(train))).astype(int))]
    parts = [
        _ask_teacher(teacher.see, batch.images, preprocess) for batch in in_order(pack, some, preprocess, TEACHER_BATCH)
    ]
    std, mean = torch.std_mean(torch.cat(parts), dim=(0, 2, 3), keepdim=True)  # (1, F, 1, 1)
    if mean.shape[1] > width:
        raise RecipeError(
            f"The teacher {settings.source} sees {mean.shape[1]} numbers at each place, and model.width is {width}: a "
            "token must have room for them."
        )
    lesson = FeatureDistillation(settings, teacher.see, mean[0], std[0].clamp(min=1e-6), batches)
    if settings.sees == "batch":
        return lesson
    table, done = torch.empty(len(train), *parts[0].shape[1:], dtype=torch.float16), 0  # half: 8 KB a picture of CIFAR
    for batch in in_order(pack, train, preprocess, TEACHER_BATCH):
        table[done : done + len(batch.samples)] = lesson.standardise(batch.images)
        done += len(batch.samples)
        yield _progress(done, batches)
    return FeatureDistillation(settings, teacher.see, lesson.mean, lesson.std, batches, table)


def _progress(done: int, batches: Batches) -> Progress:
    return Progress(done, len(batches.samples), doing="the teacher looks at the pictures, once")


@torch.no_grad()
def _ask_teacher(teach: Teach, images: Tensor, preprocess: Preprocess) -> Tensor:
    """A teacher's logits or features of images as the model sees them: to it they go from 0 to 1, in full precision."""
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (preprocess.mean, preprocess.std))
    with torch.autocast("cpu", enabled=False):
        return teach(images * std + mean).detach().float()
