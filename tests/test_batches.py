"""Batches: what a sample looks like is a function of seed, epoch and sample, whoever prepares it and whenever."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitral import Preprocess
from vitral.data.batches import Batch, Batches, class_weights, in_order
from vitral.data.config import Augment, Data, RandAugment, Resize
from vitral.data.pack import Pack, pack
from vitral.data.sources import Index, Pixels, open_source

GREY = Preprocess(image_size=(8, 8), channels=1, mean=(0.0,), std=(1.0,))
AFFINE = Augment(rotate=10, zoom=0.1, shear=5, shift=0.1)
EVERYTHING = Augment(
    crop=0.4, rotate=10, shift=0.1, flip="random", brightness=0.4, contrast=0.4, policy=RandAugment(), erase=0.3
)


def digits(**how: Any) -> Batches:
    made = pack(open_source(Data(source="digits")), GREY, Path())
    given: dict[str, Any] = {"pack": made, "preprocess": GREY, "augment": AFFINE, "batch_size": 64, "seed": 0}
    return Batches(**given | how)


def photos(**how: Any) -> Batches:
    """Noise in colour, stored a little larger than it is seen; 90 of one class, 10 of another."""
    images = np.random.default_rng(0).integers(0, 256, (100, 20, 20, 3)).astype(np.uint8)
    labels = np.repeat([0, 1], [90, 10])
    index = Index(
        "noise", ("many", "few"), [str(i) for i in range(100)], labels, np.full(100, "train"), 3, Pixels(images)
    )
    seen = Preprocess(image_size=(16, 16), channels=3, resize=Resize(share=0.8), mean=(0.0,) * 3, std=(1.0,) * 3)
    made = pack(index, seen, Path())
    given: dict[str, Any] = {"pack": made, "preprocess": seen, "augment": EVERYTHING, "batch_size": 10, "seed": 0}
    return Batches(**given | how)


def take(batches: Batches, first: int, count: int) -> list[Batch]:
    stream = batches.starting_at(first)
    found = [next(stream)[1] for _ in range(count)]
    stream.close()
    return found


def epoch_7(batches: Batches) -> dict[int, torch.Tensor]:
    found = take(batches, 7 * batches.steps_per_epoch + 1, batches.steps_per_epoch)
    return {int(sample): image for batch in found for sample, image in zip(batch.samples, batch.images, strict=True)}


@pytest.mark.parametrize("make", [digits, photos])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_no_bit(make: Any, workers: int) -> None:
    alone, together = take(make(workers=0), 1, 40), take(make(workers=workers), 1, 40)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)
        assert np.array_equal(one.samples, other.samples)


@pytest.mark.parametrize("make", [digits, photos])
def test_a_sample_of_an_epoch_is_the_same_in_any_batch_from_any_start(make: Any) -> None:
    whole = epoch_7(make(workers=0))
    for batch_size, workers in ((7, 1), (5, 3), (1, 0)):
        other = epoch_7(make(batch_size=batch_size, workers=workers))
        assert len(set(whole) & set(other)) > 0.8 * len(whole)
        assert all(torch.equal(other[sample], whole[sample]) for sample in set(whole) & set(other))
    batches = make(workers=1)
    from_the_start = take(batches, 1, 30)
    for first in (2, 9, 30):
        assert torch.equal(take(batches, first, 1)[0].images, from_the_start[first - 1].images)
    another = epoch_7(make(seed=1))
    assert not any(torch.equal(another[sample], whole[sample]) for sample in set(whole) & set(another))


def test_the_threads_of_a_worker_change_nothing_outside() -> None:
    before = torch.get_num_threads(), threading.active_count()
    take(photos(workers=2), 1, 5)
    assert (torch.get_num_threads(), threading.active_count()) == before


class Gated:
    """The images of a pack. To read a batch of them takes five seconds by a stand-in clock, once it may begin."""

    def __init__(self, images: Any) -> None:
        self.images, self.now = images, 0.0
        self.may, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def __getitem__(self, samples: Any) -> Any:
        self.may.acquire()
        self.now += 5.0
        self.done.release()
        return self.images[samples]


@pytest.mark.parametrize(("workers", "waited"), [(0, [5.0] * 4), (1, [5.0, 0.0, 0.0, 0.0])])
def test_batches_are_prepared_while_a_step_is_taken_and_waiting_is_told(
    monkeypatch: pytest.MonkeyPatch, workers: int, waited: list[float]
) -> None:
    """The first one nobody can have prepared."""
    batches = photos(workers=workers)
    images: Any = Gated(batches.pack.images)
    monkeypatch.setattr("time.perf_counter", lambda: images.now)
    stream = replace(batches, pack=replace(batches.pack, images=images)).starting_at(1)
    images.may.release()
    told = [next(stream)[1].waited]
    assert images.done.acquire(timeout=60)
    for _ in range(3):
        images.may.release()
        if workers:
            assert images.done.acquire(timeout=60)  # a step: the next batch is read before it is over
        told.append(next(stream)[1].waited)
    images.may.release(9)  # what was begun comes to its end
    stream.close()
    assert told == waited


def test_an_error_in_a_worker_arrives() -> None:
    broken = photos(workers=2)
    broken.pack.index.labels.resize(0, refcheck=False)
    with pytest.raises(IndexError):
        take(broken, 1, 3)


# Who is in an epoch


def test_every_picture_once_unless_balance_is_asked_for() -> None:
    once = np.concatenate([batch.samples for batch in take(photos(), 1, 10)])
    assert sorted(once) == list(range(100))
    found = take(photos(balanced=True), 1, 10)
    labels = np.concatenate([batch.labels for batch in found])
    assert np.bincount(labels).tolist() == [50, 50]
    few = [(int(sample), image) for batch in found for sample, image in zip(batch.samples, batch.images, strict=True)]
    copies = [image for sample, image in few if sample == 95]
    assert len(copies) == 5 and not torch.equal(copies[0], copies[1])  # each time drawn anew


def test_repeated_pictures_stand_in_one_batch_and_differ() -> None:
    batches = photos(augment=EVERYTHING.model_copy(update={"repeats": 2}))
    assert batches.steps_per_epoch == 20
    (batch,) = take(batches, 1, 1)
    assert sorted(np.unique(batch.samples, return_counts=True)[1]) == [2] * 5
    for sample in batch.samples:
        first, second = batch.images[torch.from_numpy(batch.samples == sample)]
        assert not torch.equal(first, second)


def test_mixed_pictures_have_mixed_targets() -> None:
    (plain,) = take(photos(), 1, 1)
    assert torch.equal(plain.targets, plain.labels)
    (mixed,) = take(photos(augment=Augment(mixup=0.8, cutmix=1.0)), 1, 1)
    assert mixed.targets.shape == (10, 2)
    torch.testing.assert_close(mixed.targets.sum(dim=1), torch.ones(10))
    assert torch.equal(mixed.labels, plain.labels)


def test_rare_classes_weigh_more() -> None:
    weights = class_weights(photos().pack)
    torch.testing.assert_close(weights, torch.tensor([100 / 90 / 2, 100 / 10 / 2]))


def test_evaluation_sees_the_centre_of_every_picture_once() -> None:
    batches = photos()
    made: Pack = batches.pack
    images = torch.cat([batch.images for batch in in_order(made, made.of("train"), batches.preprocess, 33)])
    assert torch.equal(images, batches.preprocess.normalise(torch.from_numpy(made.images[:, :, 2:18, 2:18])))


def test_of_large_pictures_fewer_are_looked_at_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = photos()  # of 16 × 16
    monkeypatch.setattr("vitral.data.batches.LARGE", 2 * 2)
    sizes = [len(batch.samples) for batch in in_order(batches.pack, batches.pack.of("train"), batches.preprocess)]
    assert sizes == [4] * 25
