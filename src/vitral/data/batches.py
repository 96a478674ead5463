"""A pack becomes batches: the iterator that training and evaluation see. It starts at any step."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.augment import augment, mix, moved
from vitral.data.augment.draws import Draws
from vitral.data.config import Augment
from vitral.data.pack import Pack
from vitral.data.preprocess import Preprocess
from vitral.data.randomness import permutation, uniform
from vitral.data.threads import one_core_each
from vitral.errors import RecipeError

# A user's own augmentation: (images, random) → images, both (B, C, H, W) of 0 to 255. `random(count)` gives (B, count)
# numbers from 0 to 1, which follow from seed, epoch and sample, as all that is random here does.
OwnAugmentation = Callable[[Tensor, Callable[[int], Tensor]], Tensor]


@dataclass(frozen=True)
class Batch:
    """The pictures of one step, with their labels."""

    images: Tensor  # (B, C, H, W), float: the model's input
    labels: Tensor  # (B,)
    samples: NDArray[np.int64]  # (B,) the numbers of the samples in their Index
    targets: Tensor  # what the loss is taken against: the labels, or (B, classes) shares where pictures are mixed
    draws: Draws | None = None  # what was random about the images; None: nothing
    waited: float = 0.0  # seconds that the training loop waited for it
    more_views: tuple[Tensor, ...] = ()  # other views of the same pictures, where an objective wants some
    keep: Tensor | None = None  # (B, K): the patches that the model is to look at; None: all
    full_size: Tensor | None = None  # (B, C, H, W): the images as they were drawn, before they were made smaller

    @property
    def unscaled(self) -> Tensor:  # (B, C, H, W)
        """The images in their full size, whatever the model looks at."""
        return self.images if self.full_size is None else self.full_size

    def to(self, like: Tensor) -> "Batch":
        """Where `like` is; images in its precision."""
        return replace(
            self,
            images=self.images.to(like),
            labels=self.labels.to(like.device),
            targets=self.targets.to(like.device),
            more_views=tuple(view.to(like) for view in self.more_views),
        )

    def rows(self, rows: slice) -> "Batch":
        """These rows of the batch."""
        return Batch(
            self.images[rows],
            self.labels[rows],
            self.samples[rows],
            self.targets[rows],
            self.draws.rows(rows) if self.draws else None,
            self.waited,
            tuple(view[rows] for view in self.more_views),
        )


def in_order(pack: Pack, numbers: NDArray[np.int64], preprocess: Preprocess, batch_size: int = 256) -> Iterator[Batch]:
    """Batches of these pictures, each once and in this order, not augmented: for evaluation."""
    for start in range(0, len(numbers), batch_size):
        samples = numbers[start : start + batch_size]
        images = torch.from_numpy(preprocess.centre(pack.images[samples]))
        labels = torch.from_numpy(pack.index.labels[samples])
        yield Batch(preprocess.normalise(images), labels, samples, labels)


@dataclass(frozen=True)
class Batches:
    """Training batches: shuffled anew each epoch, augmented, the same for the same seed whoever asks."""

    pack: Pack
    preprocess: Preprocess
    augment: Augment
    batch_size: int
    seed: int
    balanced: bool = False  # every class equally often, instead of every picture once
    views: int = 0  # ways in which a picture is augmented, in turn; 0: anew in every epoch
    own: OwnAugmentation | None = None  # what `augment.own` names
    view_sizes: tuple[tuple[int, int], ...] = ()  # of the views of a picture in a batch; (): one, as the model takes it
    workers: int = 1  # threads that prepare batches ahead; 0: none, each is prepared when it is used

    @cached_property
    def samples(self) -> NDArray[np.int64]:
        """The numbers of the training pictures."""
        return self.pack.of("train")

    @property
    def steps_per_epoch(self) -> int:
        """Pictures that do not fill a batch are left out of the epoch; a set smaller than a batch is one batch."""
        return max(1, len(self.samples) * self.augment.repeats // self.batch_size)

    def starting_at(self, first_step: int) -> Generator[tuple[int, Batch]]:
        """(step, batch) without end, counting from `first_step`; step 1 is the first of all."""
        places = self._places(first_step)
        if not self.workers:
            for step, place in places:
                start = time.perf_counter()
                batch = self._batch(*place)
                yield step, replace(batch, waited=time.perf_counter() - start)
        pool = one_core_each(self.workers)
        ahead: deque[tuple[int, Future[Batch]]] = deque()
        try:
            while True:
                start = time.perf_counter()
                for step, place in islice(places, self.workers + 1 - len(ahead)):
                    ahead.append((step, pool.submit(self._batch, *place)))
                step, future = ahead.popleft()
                batch = future.result()
                yield step, replace(batch, waited=time.perf_counter() - start)
        finally:
            pool.shutdown(cancel_futures=True)

    def _places(self, first_step: int) -> Iterator[tuple[int, tuple[NDArray[np.int64], NDArray[np.int64], int]]]:
        """(step, (samples, which copy of each, epoch)) without end: the arguments of `_batch` for each step."""
        step = first_step
        while True:
            epoch, place = divmod(step - 1, self.steps_per_epoch)
            order, copies = self._order(epoch)
            for start in range(place * self.batch_size, self.steps_per_epoch * self.batch_size, self.batch_size):
                part = slice(start, start + self.batch_size)
                yield step, (order[part], copies[part], epoch % self.views if self.views else epoch)
                step += 1

    def _order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The samples of an epoch; copies of one stand side by side, and so in one batch."""
        samples, copies = self._balanced(epoch) if self.balanced else (self.samples, np.zeros_like(self.samples))
        order = permutation(self.seed, "order", epoch=epoch, count=len(samples))
        repeats = self.augment.repeats
        copies = repeats * copies[order, None] + np.arange(repeats)  # (n, repeats)
        return np.repeat(samples[order], repeats), copies.ravel()

    def _balanced(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As many samples as there are, every class equally often: a small class goes round and round."""
        labels = self.pack.index.labels[self.samples]
        classes = np.unique(labels)
        each = -(-len(self.samples) // len(classes))
        samples, copies = [], []
        for label in classes:
            members = self.samples[labels == label]
            members = members[permutation(self.seed, f"class {label}", epoch=epoch, count=len(members))]
            samples.append(np.resize(members, each))
            copies.append(np.arange(each) // len(members))  # the second time round it is drawn anew
        return np.concatenate(samples), np.concatenate(copies)

    def _batch(self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int) -> Batch:
        sizes = self.view_sizes or (self.preprocess.image_size,)
        # Each view of a picture is a copy of its own: a function of seed, epoch, sample and view.
        all_copies = [copies * len(sizes) + view for view in range(len(sizes))]
        images, *others = (self._view(samples, some, epoch, size) for some, size in zip(all_copies, sizes, strict=True))
        labels = targets = torch.from_numpy(self.pack.index.labels[samples])
        draws = Draws(self.seed, epoch, samples, all_copies[0])
        if self.augment.mixup or self.augment.cutmix:
            images, targets = mix(
                images,
                labels,
                len(self.pack.index.class_names),
                self.augment,
                seed=self.seed,
                epoch=epoch,
                samples=samples,
                copies=all_copies[0],
            )
        return Batch(images, labels, samples, targets, draws, more_views=tuple(others))

    def _view(
        self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int, size: tuple[int, int]
    ) -> Tensor:  # → (B, C, H, W)
        images = augment(
            torch.from_numpy(self.pack.images[samples]),
            self.augment,
            size=size,
            seed=self.seed,
            epoch=epoch,
            samples=samples,
            copies=copies,
            background=self.preprocess.background,
        )
        if self.own:
            images = self._apply_own(images, lambda count: self._random(samples, copies, epoch, count))
        return self.preprocess.normalise(images)

    def _random(
        self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int, count: int
    ) -> Tensor:  # → (B, count), 0 to 1
        return torch.from_numpy(
            uniform(self.seed, "own", epoch=epoch, samples=samples, copy=copies, draws=count)
        ).float()

    def _apply_own(self, images: Tensor, random: Callable[[int], Tensor]) -> Tensor:
        """The images after the user's own function, which may fail or return something else."""
        assert self.own is not None
        try:
            changed = self.own(images, random)
        except Exception as error:  # of code that is not ours
            words = f"{type(error).__name__}: {error}"
            raise RecipeError(f"data.augment.own {self.augment.own} fails on a batch ({words}).") from error
        if not isinstance(changed, Tensor) or changed.shape != images.shape:
            shape = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise RecipeError(
                f"data.augment.own {self.augment.own} gives {shape}, and a batch of {tuple(images.shape)} was expected."
            )
        return changed

    def views_of(self, numbers: NDArray[np.int64], batch_size: int = 256) -> Iterator[Batch]:
        """Pictures in order, each in the views of epoch 0: to validate an objective that compares views."""
        for start in range(0, len(numbers), batch_size):
            samples = numbers[start : start + batch_size]
            yield self._batch(samples, np.zeros_like(samples), 0)

    def moved(self, maps: Tensor, batch: Batch) -> Tensor:
        """Maps of the pictures before augmentation, (B, F, h, w), moved to where the batch's images show each place."""
        assert batch.draws is not None
        stored_size = (self.pack.images.shape[2], self.pack.images.shape[3])
        return moved(maps, self.augment, batch.draws, stored_size=stored_size, size=self.preprocess.image_size)


def class_weights(pack: Pack) -> Tensor:
    """(classes,): the mean number of pictures per class over the number of this class. Rare classes weigh more."""
    counts = np.bincount(pack.index.labels[pack.of("train")], minlength=len(pack.index.class_names))
    weights = counts.sum() / np.maximum(counts, 1) / np.count_nonzero(counts)
    return torch.from_numpy(np.where(counts > 0, weights, 0.0)).to(torch.get_default_dtype())
