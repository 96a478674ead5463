"""What a teacher says of the pictures of a batch, and how far the pupil is from it.

An answer, hard or soft, is for the pupil's last classifier (Hinton et al. 2015; DeiT: Touvron et al. 2021). A map is
what a CNN sees at each place of a picture, and is for the tokens of the patches there (FitNets: Romero et al. 2015).
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate, kl_div, mse_loss

from vitral.data.batches import Batch, Batches, in_order
from vitral.data.pack import Progress
from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError
from vitral.training.config import Teacher
from vitral.training.teacher import LoadedTeacher, Teach, from_file

TOGETHER = 64  # pictures that a teacher is asked about at once: of 256 a CNN's numbers do not stay in the cache
MEASURED = 1_000  # pictures by which a teacher's numbers are brought to mean 0 and standard deviation 1


class StudentOutput(NamedTuple):
    """What the model makes of some images."""

    logits: Tensor  # (B, classes): of the last classifier
    patches: Tensor  # (B, K, D): the tokens of the patches, after the last norm
    keep: Tensor | None  # (B, K): which patches these are; None: all
    grid: tuple[int, int]  # of all patches, down and across


@dataclass(frozen=True)
class LogitDistillation:
    """The teacher's logits, of each picture as it is or as the pupil sees it."""

    asked: Teacher
    teach: Teach | None  # None: it has said all that it says
    said: Tensor  # (samples, classes): of each picture as it is, where it is asked once
    preprocess: Preprocess

    def logits(self, batch: Batch, rows: slice) -> Tensor:  # → (B, classes)
        """Of the pictures as they are, or as the pupil sees them."""
        if self.teach is None:
            return self.said[torch.from_numpy(batch.samples[rows])]
        return _asked(self.teach, batch.images[rows], self.preprocess)

    def loss(self, batch: Batch, rows: slice, pupil: StudentOutput) -> Tensor:  # → ()
        """Hard: the teacher's answer is the label. Soft: its probabilities are, at a common temperature."""
        teacher = self.logits(batch, rows).to(pupil.logits.device)
        if self.asked.kind == "hard":
            return cross_entropy(pupil.logits, teacher.argmax(dim=1))
        t = self.asked.temperature
        ours, theirs = ((logits / t).log_softmax(dim=1) for logits in (pupil.logits, teacher))
        return kl_div(ours, theirs, reduction="batchmean", log_target=True) * t**2


@dataclass(frozen=True)
class FeatureDistillation:
    """What the teacher sees at each place is what the first numbers of the pupil's token there are to be."""

    asked: Teacher
    see: Teach  # → (B, F, h, w)
    mean: Tensor  # (F, 1, 1): of what it sees, and
    std: Tensor
    batches: Batches
    said: Tensor = field(default_factory=lambda: torch.empty(0))  # (training pictures, F, h, w), where asked once

    def seen(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, F, h, w)
        return (_asked(self.see, images, self.batches.preprocess) - self.mean) / self.std

    def maps(self, batch: Batch, rows: slice) -> Tensor:  # → (B, F, h, w)
        """Of the pictures as the pupil sees them; a map that was made once is moved as its picture is."""
        if not len(self.said):
            return self.seen(batch.images[rows])
        numbers = np.searchsorted(self.batches.samples, batch.samples[rows])
        return self.batches.moved(self.said[torch.from_numpy(numbers)].float(), batch, rows)

    def loss(self, batch: Batch, rows: slice, pupil: StudentOutput) -> Tensor:  # → ()
        """The mean square of how far they are apart."""
        maps = self.maps(batch, rows).to(pupil.patches)
        if maps.shape[2:] != pupil.grid:
            maps = interpolate(maps, pupil.grid, mode="bilinear", antialias=True)
        wanted = maps.flatten(2).transpose(1, 2)  # (B, N, F)
        if pupil.keep is not None:
            wanted = wanted.gather(1, pupil.keep[:, :, None].expand(-1, -1, wanted.shape[2]))
        return mse_loss(pupil.patches[:, :, : wanted.shape[2]], wanted)


Lesson = LogitDistillation | FeatureDistillation


def lesson(
    asked: Teacher, found: LoadedTeacher | None, batches: Batches, width: int
) -> Generator[Progress, None, Lesson | None]:
    """What the teacher has to say; where it is asked once, all of it, which may take minutes: it tells. `width` is that
    of the pupil's tokens."""
    if found is None:
        return None
    if asked.kind == "map":
        return (yield from _map_lesson(asked, found, batches, width))
    pack, preprocess = batches.pack, batches.preprocess
    if found.teach is None:
        return LogitDistillation(asked, None, from_file(asked.source, pack), preprocess)
    if asked.sees == "batch":
        return LogitDistillation(asked, found.teach, torch.empty(0), preprocess)
    said, done = torch.zeros(len(pack.index.samples), len(pack.index.class_names)), 0
    for batch in in_order(pack, batches.samples, preprocess, TOGETHER):
        said[torch.from_numpy(batch.samples)] = _asked(found.teach, batch.images, preprocess)
        done += len(batch.samples)
        yield _told(done, batches)
    return LogitDistillation(asked, None, said, preprocess)


def _map_lesson(
    asked: Teacher, found: LoadedTeacher, batches: Batches, width: int
) -> Generator[Progress, None, FeatureDistillation]:
    if found.see is None:
        raise RecipeError(f"teacher.kind map needs a CNN, which {asked.source} is not: set teacher.kind=soft or hard.")
    pack, preprocess, train = batches.pack, batches.preprocess, batches.samples
    some = train[np.unique(np.linspace(0, len(train) - 1, min(MEASURED, len(train))).astype(int))]
    each = [_asked(found.see, batch.images, preprocess) for batch in in_order(pack, some, preprocess, TOGETHER)]
    std, mean = torch.std_mean(torch.cat(each), dim=(0, 2, 3), keepdim=True)  # (1, F, 1, 1)
    if mean.shape[1] > width:
        raise RecipeError(
            f"The teacher {asked.source} sees {mean.shape[1]} numbers at each place, and model.width is {width}: a "
            "token must have room for them."
        )
    made = FeatureDistillation(asked, found.see, mean[0], std[0].clamp(min=1e-6), batches)
    if asked.sees == "batch":
        return made
    said, done = torch.empty(len(train), *each[0].shape[1:], dtype=torch.float16), 0  # half: 8 KB a picture of CIFAR
    for batch in in_order(pack, train, preprocess, TOGETHER):
        said[done : done + len(batch.samples)] = made.seen(batch.images)
        done += len(batch.samples)
        yield _told(done, batches)
    return FeatureDistillation(asked, found.see, made.mean, made.std, batches, said)


def _told(done: int, batches: Batches) -> Progress:
    return Progress(done, len(batches.samples), doing="the teacher looks at the pictures, once")


@torch.no_grad()
def _asked(teach: Teach, images: Tensor, preprocess: Preprocess) -> Tensor:
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (preprocess.mean, preprocess.std))
    return teach(images * std + mean).detach().float()
