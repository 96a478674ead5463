"""A pack becomes batches: the iterator that training and evaluation see. It starts at any step."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
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
from vitral.data.shard_order import lanes_of, shard_order
from vitral.data.stream import Stream, expecting
from vitral.data.threads import one_core_each
from vitral.errors import RecipeError
from vitral.processes import Processes

# A user's own augmentation: (images, random) → images, both (B, C, H, W) of 0 to 255. `random(count)` gives (B, count)
# numbers from 0 to 1, which follow from seed, epoch and sample, as all that is random here does.
OwnAugmentation = Callable[[Tensor, Callable[[int], Tensor]], Tensor]


SMALLER = 8  # a view smaller than the others is of at least this part of data.augment.crop: DINO's 0.05 of 0.4


@dataclass(frozen=True)
class Batch:
    """The pictures of one step, with their labels."""

    images: Tensor  # (B, C, H, W), float: the model's input
    labels: Tensor  # (B,); of other targets than one class (B, outputs), float
    samples: NDArray[np.int64]  # (B,) the numbers of the samples in their Index
    targets: Tensor  # what the loss is taken against: the labels, or (B, outputs) shares where pictures are mixed
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

    def rows(self, rows: slice | NDArray[np.int64]) -> "Batch":
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


def labels_of(pack: Pack, samples: NDArray[np.int64]) -> Tensor:
    """(B,) numbers of classes; of other targets than one class (B, outputs), as precise as the data has them: the mean
    is taken off before a number is rounded."""
    return torch.from_numpy(pack.index.labels[samples])


# Pictures a batch that is only looked at; of larger ones than this, as many as have the same pixels: of 224 × 224, 256
# would take 2 GiB of ViT-B/16, which is more than it takes to learn from a batch in parts.
MOST_IN_ORDER, LARGE = 256, 96 * 96


def in_order(
    pack: Pack, numbers: NDArray[np.int64], preprocess: Preprocess, batch_size: int | None = None
) -> Iterator[Batch]:
    """Batches of these pictures, each once and in this order, not augmented: for evaluation."""
    batch_size = batch_size or most_in_order(preprocess)
    with expecting(pack.images, numbers):
        for start in range(0, len(numbers), batch_size):
            samples = numbers[start : start + batch_size]
            images = torch.from_numpy(preprocess.centre(pack.images[samples]))
            labels = labels_of(pack, samples)
            yield Batch(preprocess.normalise(images), labels, samples, labels)


def most_in_order(preprocess: Preprocess) -> int:
    """How many pictures a batch has at most that nobody learns from."""
    height, width = preprocess.image_size
    return max(1, min(MOST_IN_ORDER, MOST_IN_ORDER * LARGE // (height * width)))


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
    processes: Processes = field(default_factory=Processes)  # of several, each has a share of every batch
    parts: int = 1  # that a batch is worked through in: of each part a share
    window: int = 64  # runs of neighbours whose pictures are mixed, where they lie in shards
    workers: int = 1  # threads that prepare batches ahead; 0: none, each is prepared when it is used

    def __post_init__(self) -> None:
        targets = self.pack.index.targets
        number = next((target.name for target in targets if target.kind == "number"), None)
        if number and self.augment.cutmix:
            raise RecipeError(
                f"data.augment.cutmix puts a part of one picture into another, and nobody knows the {number} of that. "
                "Set it to 0; data.augment.mixup blends two pictures, and their numbers."
            )
        if self.balanced and (number or len(targets) > 1):
            what = f"{number} is a number" if number else f"there are {len(targets)} targets"
            raise RecipeError(
                f"data.sampling=balanced shows every class equally often, and {what}. Set data.sampling=all."
            )

    @cached_property
    def samples(self) -> NDArray[np.int64]:
        """The numbers of the training pictures."""
        return self.pack.of("train")

    @cached_property
    def _orders(self) -> Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """What `_order` gives for an epoch, kept for two of them: of many pictures it takes seconds."""
        return lru_cache(2)(self._order)

    @property
    def steps_per_epoch(self) -> int:
        """Pictures that do not fill a batch are left out of the epoch; a set smaller than a batch is one batch."""
        return max(1, len(self.samples) * self.augment.repeats // self.batch_size)

    def starting_at(self, first_step: int) -> Generator[tuple[int, Batch]]:
        """(step, batch) without end, counting from `first_step`; step 1 is the first of all. Of several processes each
        gets its share of the batch."""
        places = self._announced(first_step)
        if not self.workers:
            for step, place in places:
                start = time.perf_counter()
                batch = self._share(*place)
                yield step, replace(batch, waited=time.perf_counter() - start)
        pool = one_core_each(self.workers)
        ahead: deque[tuple[int, Future[Batch]]] = deque()
        try:
            while True:
                start = time.perf_counter()
                for step, place in islice(places, self.workers + 1 - len(ahead)):
                    ahead.append((step, pool.submit(self._share, *place)))
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
            order, copies = self._orders(epoch)
            for start in range(place * self.batch_size, self.steps_per_epoch * self.batch_size, self.batch_size):
                part = slice(start, start + self.batch_size)
                yield step, (order[part], copies[part], epoch % self.views if self.views else epoch)
                step += 1

    def _announced(self, first_step: int) -> Iterator[tuple[int, tuple[NDArray[np.int64], NDArray[np.int64], int]]]:
        """The same; pictures that come from shards are told ahead, two windows at a time, to who fetches them."""
        images, runs = self.pack.images, self.pack.index.runs
        if not isinstance(images, Stream) or runs is None:
            yield from self._places(first_step)
            return
        windows = max(1, -(-len(np.unique(runs[self.samples])) // self.window))
        each = max(1, self.steps_per_epoch // windows)
        with ExitStack() as expected:
            for step, place in self._places(first_step):
                if (step - first_step) % each == 0:
                    ahead = (samples[self._prepared(len(samples))] for _, (samples, _, _) in self._places(step))
                    expected.close()
                    expected.enter_context(images.expect(np.concatenate(list(islice(ahead, 2 * each)))))
                yield step, place

    def _order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The samples of an epoch; copies of one stand side by side, and so in one batch."""
        samples, copies = self._balanced(epoch) if self.balanced else (self.samples, np.zeros_like(self.samples))
        repeats = self.augment.repeats
        if (runs := self.pack.index.runs) is None:
            order = permutation(self.seed, "order", epoch=epoch, count=len(samples))
        else:
            lanes = lanes_of(self.batch_size, self.parts, self.window)
            lanes = lanes[np.arange(len(samples)) * repeats % self.batch_size]
            order = shard_order(runs[samples], seed=self.seed, epoch=epoch, window=self.window, lanes=lanes)
        copies = repeats * copies[order, None] + np.arange(repeats)  # (n, repeats)
        return np.repeat(samples[order], repeats), copies.ravel()

    def _balanced(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As many samples as there are, every class equally often: a small class goes round and round. Of several
        labels a picture, every label and "none of them": a picture stands for each label that it has."""
        labels = self.pack.index.labels[self.samples]
        if labels.ndim == 1:
            members_of = {label: self.samples[labels == label] for label in np.unique(labels)}
        else:
            having = np.column_stack([labels > 0, ~labels.any(axis=1)])  # (n, labels + 1)
            members_of = {label: self.samples[having[:, label]] for label in np.flatnonzero(having.any(axis=0))}
        each = -(-len(self.samples) // len(members_of))
        samples = []
        for label, members in members_of.items():
            members = members[permutation(self.seed, f"class {label}", epoch=epoch, count=len(members))]
            samples.append(np.resize(members, each))
        return (chosen := np.concatenate(samples)), _times_before(chosen)  # the second time it is drawn anew

    def _share(self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int) -> Batch:
        """What this process has of a batch: as if the whole of it had been prepared."""
        if not self.processes.many:
            return self._batch(samples, copies, epoch)
        rows, prepared = self.processes.rows(len(samples), self.parts), self._prepared(len(samples))
        batch = self._batch(samples[prepared], copies[prepared], epoch)
        return batch if len(prepared) == len(rows) else batch.rows(np.searchsorted(prepared, rows))

    def _prepared(self, count: int) -> NDArray[np.int64]:
        """The rows of a batch that this process needs, to have those that are its own."""
        if self.own or not self.processes.many:  # of an own augmentation nobody knows which pictures it looks at
            return np.arange(count)
        rows = self.processes.rows(count, self.parts)
        if self.augment.mixup or self.augment.cutmix:  # a picture is mixed with its mirror image in the batch
            return np.union1d(rows, count - 1 - rows)
        return rows

    def _batch(self, samples: NDArray[np.int64], copies: NDArray[np.int64], epoch: int) -> Batch:
        sizes = self.view_sizes or (self.preprocess.image_size,)
        # Each view of a picture is a copy of its own: a function of seed, epoch, sample and view.
        all_copies = [copies * len(sizes) + view for view in range(len(sizes))]
        stored = torch.from_numpy(self.pack.images[samples])
        images, *others = (
            self._view(stored, samples, some, epoch, size) for some, size in zip(all_copies, sizes, strict=True)
        )
        labels = targets = labels_of(self.pack, samples)
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
        self,
        stored: Tensor,  # (B, C, stored height, stored width)
        samples: NDArray[np.int64],
        copies: NDArray[np.int64],
        epoch: int,
        size: tuple[int, int],
    ) -> Tensor:  # → (B, C, H, W)
        is_whole = size == self.preprocess.image_size
        images = augment(
            stored,
            self.augment if is_whole else of_part(self.augment),
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


def of_part(how: Augment) -> Augment:
    """For a view that is smaller than the model's images: where parts of pictures are looked at, a smaller part.

    >>> small = of_part(Augment(crop=0.4))
    >>> small.crop, small.crop_most
    (0.05, 0.4)
    """
    return how.model_copy(update={"crop": how.crop / SMALLER, "crop_most": how.crop}) if how.crop else how


def _times_before(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each of the samples stands before in the list.

    >>> _times_before(np.array([7, 4, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(samples, kind="stable")
    starts = np.flatnonzero(np.diff(samples[order], prepend=-1))
    times = np.empty_like(samples)
    times[order] = np.arange(len(samples)) - np.repeat(starts, np.diff(starts, append=len(samples)))
    return times


def class_weights(pack: Pack) -> Tensor:
    """(classes,): the mean number of pictures per class over the number of this class. Rare classes weigh more."""
    counts = np.bincount(pack.index.labels[pack.of("train")], minlength=len(pack.index.class_names))
    weights = counts.sum() / np.maximum(counts, 1) / np.count_nonzero(counts)
    return torch.from_numpy(np.where(counts > 0, weights, 0.0)).to(torch.get_default_dtype())
