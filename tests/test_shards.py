"""Shards: tars with an index beside them are written whole, read where they lie, and learnt from in one order."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

import many
from conftest import FIXTURES, FORMAT_1, Called, stopped
from test_resume import assert_same, timeless
from vitral import DataError, Preprocess, RecipeError, Run, evaluate, train
from vitral.data.batches import Batch, Batches, in_order
from vitral.data.check import check
from vitral.data.config import Augment, Data
from vitral.data.pack import mean_and_std, pack
from vitral.data.shard_order import lanes_of, shard_order
from vitral.data.sources import Index, open_source
from vitral.data.sources.foreign_tars import indexing
from vitral.data.sources.shard_index import ABOUT, INDEX
from vitral.data.sources.shards import Shards, is_streamed
from vitral.data.stores import Found
from vitral.data.stores.near import Near
from vitral.data.write_shards import plan_shards, writing_shards
from vitral.evaluation.embed import embed
from vitral.evaluation.probe import probe
from vitral.files import sha256_of
from vitral.processes import Processes
from vitral.progress import Progress, Tell, drain
from vitral.recipe import Recipe
from vitral.recipes.choose import choose
from vitral.recipes.pretraining import choose_pretraining
from vitral.training.preparation import prepare

SEEN = Preprocess(image_size=(16, 16), channels=3, mean=(0.5,) * 3, std=(0.25,) * 3)
COUNTS = {"train": 40, "val": 8, "test": 8}  # of each of three classes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of noise in JPEGs of several sizes, with all three splits."""
    folder, chance = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for split, count in COUNTS.items():
        for level, name in ((60, "dark"), (120, "middle"), (180, "bright")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                shape = (*chance.integers(20, 40, 2), 3)
                pixels = np.clip(chance.normal(level, 40, shape), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"a picture {number}.jpg", quality=90)
    return folder


def write(source: Path | str, out: Path, count: int = 9, **data: Any) -> Index:
    """Shards of a source, opened."""
    index = open_source(Data(source=str(source), **data))
    drain(writing_shards(index, out, plan_shards(index, None, "file", None, count)))
    return open_source(Data(source=f"shards:{out}"))


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shards") / "out"
    write(folder, out)
    return out


@pytest.fixture
def shards_copy(shards: Path, tmp_path: Path) -> Path:
    """Shards that may be damaged."""
    return Path(shutil.copytree(shards, tmp_path / "copy"))


def opened(shards: Path) -> Index:
    return open_source(Data(source=f"shards:{shards}"))


@pytest.fixture
def in_that_order(folder: Path, shards: Path) -> Index:
    """The pictures of the folder, in the order of the shards."""
    index, files = opened(shards), open_source(Data(source=str(folder)))
    places = {sample: number for number, sample in enumerate(files.samples)}
    return replace(files.only(np.array([places[sample] for sample in index.samples])), runs=index.runs)


# What is written


def test_a_folder_and_its_shards_have_the_same_pictures_labels_and_splits(folder: Path, shards: Path) -> None:
    def contents(index: Index) -> dict[str, tuple[str, str, bytes]]:
        return {
            sample: (label, split, bytes(index.storage.read(number)))
            for number, (sample, label, split) in enumerate(index.rows())
        }

    index = opened(shards)
    assert contents(index) == contents(open_source(Data(source=str(folder))))
    assert index.class_names == ("bright", "dark", "middle") and index.channels == 3
    counts = {split: len(list(shards.glob(f"{split}-*.tar"))) for split in ("train", "validation", "test")}
    assert counts == {"train": 6, "validation": 1, "test": 1}
    assert sum(counts.values()) + 2 == len(list(shards.iterdir()))


def test_neighbours_in_a_shard_are_of_any_class(shards: Path) -> None:
    index = opened(shards)
    first = index.labels[index.of("train")[:20]]
    assert len(set(first.tolist())) == 3


def test_any_reader_of_tars_finds_the_pictures_and_what_they_are(folder: Path, shards: Path) -> None:
    with tarfile.open(shards / "test-000000.tar") as tar:
        names = tar.getnames()[:3]
        key = names[0].partition(".")[0]
        assert names == [f"{key}.jpg", f"{key}.cls", f"{key}.json"]
        picture, label, words = (tar.extractfile(name).read() for name in names)  # type: ignore[union-attr]
    facts = json.loads(words)
    assert (folder / facts["name"]).read_bytes() == picture
    assert facts["split"] == "test" and facts["label"] == facts["name"].split("/")[1]
    assert ("bright", "dark", "middle")[int(label)] == facts["label"]


def test_pixels_of_a_named_set_come_back_as_they_were(tmp_path: Path) -> None:
    digits = open_source(Data(source="digits"))
    index = write("digits", tmp_path / "out")
    grey = Preprocess(image_size=(8, 8), channels=1, mean=(0.0,), std=(1.0,))
    number = digits.samples.index(index.samples[17])
    assert index.channels == 1 and index.label_of(17) == digits.label_of(number)
    assert (grey.stored(index.storage.read(17)) == grey.stored(digits.storage.read(number))).all()


def test_several_targets_are_kept(tmp_path: Path) -> None:
    for number in range(30):
        Image.new("L", (4, 4), number).save(tmp_path / f"{number}.png")
    rows = [f"{n}.png,{'a;b' if n % 3 == 0 else 'b'},{n / 10},{'train' if n < 20 else 'test'}" for n in range(30)]
    (tmp_path / "table.csv").write_text("\n".join(["path,labels,weight,split", *rows]))
    table = open_source(Data(source=str(tmp_path / "table.csv"), target="labels,weight"))
    index = write(tmp_path / "table.csv", tmp_path / "out", target="labels,weight")
    assert index.targets == table.targets
    assert sorted(index.rows()) == sorted(table.rows())
    with tarfile.open(tmp_path / "out" / "test-000000.tar") as tar:
        facts = json.loads(tar.extractfile(tar.getnames()[1]).read())  # type: ignore[union-attr]
    row = next(row for row in table.rows() if row[0] == facts["name"])
    assert (
        table.label_of(list(table.samples).index(row[0]))
        == f"labels={';'.join(facts['labels'])}|weight={facts['weight']}"
    )


def test_a_picture_that_cannot_be_read_is_left_out_and_named(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "photos")
    broken = tmp_path / "photos" / "train" / "dark" / "a picture 3.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    index = write(tmp_path / "photos", tmp_path / "out")
    assert len(index.samples) == 3 * sum(COUNTS.values()) - 1
    assert "1 picture could not be read" in index.notes[-1] and "a picture 3.jpg" in index.notes[-1]


def test_shards_may_hold_what_the_recipe_sees(folder: Path, tmp_path: Path) -> None:
    index = open_source(Data(source=str(folder)))
    drain(writing_shards(index, tmp_path / "png", plan_shards(index, SEEN, "png", None, 3), SEEN, "png"))
    small = opened(tmp_path / "png")
    number = index.samples.index(small.samples[5])
    assert Image.open(BytesIO(bytes(small.storage.read(5)))).size == (16, 16)
    assert (SEEN.stored(small.storage.read(5)) == SEEN.stored(index.storage.read(number))).all()


def test_shards_are_the_same_bytes_each_time(folder: Path, shards: Path, tmp_path: Path) -> None:
    write(folder, tmp_path / "again")
    for path in shards.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


# The order


@pytest.mark.parametrize("window", [1, 3, 64])
@pytest.mark.parametrize("batch_size, parts", [(8, 1), (10, 2), (7, 1)])
def test_every_picture_comes_once_an_epoch(window: int, batch_size: int, parts: int) -> None:
    runs = np.repeat(np.arange(11), [5, 9, 1, 30, 2, 7, 7, 7, 12, 1, 4]).astype(np.int32)
    lanes = lanes_of(batch_size, parts, window)[np.arange(len(runs)) % batch_size]
    orders = [shard_order(runs, seed=0, epoch=epoch, window=window, lanes=lanes) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(len(runs)))
        if window == 1:  # one run after the other
            assert np.count_nonzero(np.diff(runs[order])) == 10
    assert not (orders[0] == orders[1]).all() and not (orders[1] == orders[2]).all()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_process_finds_its_pictures_in_few_runs(world: int) -> None:
    runs = np.repeat(np.arange(64), 50).astype(np.int32)
    lanes = lanes_of(32, 1, 16)[np.arange(len(runs)) % 32]
    batches = runs[shard_order(runs, seed=1, epoch=0, window=16, lanes=lanes)].reshape(-1, 32)[:25]  # of one window
    everyone = set(batches.ravel().tolist())
    for rank in range(world):
        mine = set(batches[:, Processes(rank, world).rows(32)].ravel().tolist())
        assert len(mine) <= len(everyone) / world + 2


def batches_of(index: Index, **how: Any) -> Batches:
    given: dict[str, Any] = {
        "pack": pack(index, SEEN, Path()),
        "preprocess": SEEN,
        "augment": Augment(crop=0.5, flip="random", mixup=0.5, erase=0.3),
        "batch_size": 12,
        "seed": 0,
        "window": 2,
    }
    return Batches(**given | how)


def take(batches: Batches, first: int, count: int) -> list[Batch]:
    stream = batches.starting_at(first)
    some = [next(stream)[1] for _ in range(count)]
    stream.close()
    return some


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_threads_changes_no_bit(shards: Path, workers: int) -> None:
    alone, together = (take(batches_of(opened(shards), workers=count), 1, 25) for count in (0, workers))
    for one, other in zip(alone, together, strict=True):
        assert (one.samples == other.samples).all() and torch.equal(one.images, other.images)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_batches_of_one(shards: Path, world: int) -> None:
    """Three shards of train on two processes, two on three, and so on: batches do not know of them."""
    whole = take(batches_of(opened(shards)), 1, 25)
    each = [take(batches_of(opened(shards), processes=Processes(rank, world)), 1, 25) for rank in range(world)]
    for number, batch in enumerate(whole):
        for rank in range(world):
            rows = Processes(rank, world).rows(12)
            assert (each[rank][number].samples == batch.samples[rows]).all()
            assert torch.equal(each[rank][number].images, batch.images[rows])


def test_an_epoch_has_each_training_picture_once(shards: Path) -> None:
    index = opened(shards)
    batches = batches_of(index)
    for epoch in range(2):
        found = take(batches, 1 + epoch * batches.steps_per_epoch, batches.steps_per_epoch)
        assert sorted(np.concatenate([batch.samples for batch in found]).tolist()) == index.of("train").tolist()


def test_balanced_sampling_shows_every_class_equally_often(shards: Path) -> None:
    index = opened(shards)
    train = index.of("train")
    rare = train[index.labels[train] == 2][:5]
    batches = batches_of(index.only(np.union1d(train[index.labels[train] != 2], rare)), balanced=True)
    found = np.concatenate([batch.labels.numpy() for batch in take(batches, 1, batches.steps_per_epoch)])
    counts = np.bincount(found, minlength=3)
    assert counts.max() - counts.min() <= 12


def test_the_order_begins_anywhere_without_reading_what_came_before(shards: Path) -> None:
    index = opened(shards)
    from_the_start = take(batches_of(index), 1, 17)[16]
    read: list[int] = []

    class Watched(Shards):
        def read(self, number: int) -> bytes:
            read.append(number)
            return super().read(number)

    storage = index.storage
    assert isinstance(storage, Shards)
    watched = replace(index, storage=Watched(storage.about, storage.columns, storage.store))
    later = take(batches_of(watched, workers=0), 17, 1)[0]
    assert torch.equal(later.images, from_the_start.images)
    assert sorted(read) == sorted(later.samples.tolist())


def test_evaluation_sees_the_pictures_of_the_folder(folder: Path, shards: Path) -> None:
    one, other = (
        pack(index, SEEN, folder.parent / "data") for index in (open_source(Data(source=str(folder))), opened(shards))
    )
    [batch] = in_order(other, other.of("test"), SEEN)
    numbers = np.array([one.index.samples.index(other.index.samples[number]) for number in other.of("test")])
    [same] = in_order(one, numbers, SEEN)
    assert torch.equal(batch.images, same.images) and torch.equal(batch.labels, same.labels)
    assert mean_and_std(one, one.of("train")) == mean_and_std(other, other.of("train"))


# Training


def small_recipe(source: str, **settings: Any) -> Recipe:
    model = {"classes": 0, "image_size": 16, "patch_size": 8, "width": 16, "depth": 1, "heads": 2}
    steps = {"train.epochs": 2, "train.batch_size": 12, "train.ema": 0.9, "data.window": 2}
    changes = {"data.source": source, "data.augment.flip": "random", "data.augment.mixup": 0.3}
    return Recipe().changed({f"model.{name}": value for name, value in model.items()} | steps | changes | settings)


def test_a_training_from_shards_has_the_losses_of_the_folder_in_that_order(
    in_that_order: Index, shards: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(f"shards:{shards}", **{"data.directory": str(tmp_path / "data")})
    streamed, packed = train(recipe, out=tmp_path / "a"), train(recipe, out=tmp_path / "b", source=in_that_order)
    assert timeless(streamed) == timeless(packed)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert not (tmp_path / "data").exists() or list((tmp_path / "data").glob("packs/*.lock"))


def test_shards_that_are_packed_are_learnt_from_to_the_same_bits(shards: Path, tmp_path: Path) -> None:
    recipe = small_recipe(f"shards:{shards}", **{"data.directory": str(tmp_path / "data"), "train.epochs": 1})
    streamed, packed = (train(recipe.changed({"data.shards": how}), out=tmp_path / how) for how in ("stream", "pack"))
    assert timeless(streamed) == timeless(packed) and streamed.record.data == packed.record.data
    assert (streamed.folder / "model.safetensors").read_bytes() == (packed.folder / "model.safetensors").read_bytes()
    assert list((tmp_path / "data").rglob("pixels.bin"))


def test_whether_to_pack_is_measured_and_said(shards: Path, tmp_path: Path) -> None:
    choice = choose(f"shards:{shards}", {"train.budget": "600s", "data.directory": str(tmp_path)})
    assert choice.recipe.data.shards == "pack" and any("They are packed" in reason for reason in choice.why)
    assert not is_streamed(choice.index)
    asked = choose(f"shards:{shards}", {"data.shards": "stream", "data.directory": str(tmp_path)})
    assert is_streamed(asked.index) and not any("packed" in reason for reason in asked.why)


def test_a_training_that_stopped_in_the_middle_of_a_shard_goes_on_to_the_same_bits(
    shards: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(f"shards:{shards}")
    whole = train(recipe, out=tmp_path / "whole")
    assert_same(train(out=stopped(recipe, tmp_path / "run", after=13), resume=True), whole)


# Interruptions, and what others do to files

KILLED = """
import os, signal, sys
from pathlib import Path
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.data.write_shards import plan_shards, writing_shards

index = open_source(Data(source=sys.argv[1]))
plan = plan_shards(index, None, "file", None, 9)
for progress in writing_shards(index, Path(sys.argv[2]), plan):
    if progress.done > 60:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_writing_that_was_killed_goes_on_and_writes_the_same_bytes(folder: Path, shards: Path, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, folder, tmp_path / "out"])
    part = tmp_path / ".out.part"
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "out").exists()
    with pytest.raises(RecipeError, match="There is no folder"):
        opened(tmp_path / "out")
    done = {path.stem: path.with_suffix("").stat().st_ino for path in part.glob("*.npz")}
    assert len(done) >= 3
    write(folder, tmp_path / "out")
    assert {name: (tmp_path / "out" / name).stat().st_ino for name in done} == done  # these were not written again
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out"]
    assert _contents(tmp_path / "out") == _contents(shards)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_another_source_has_left_half_done_is_not_mixed_in(folder: Path, shards: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, folder, tmp_path / "out"])
    index = open_source(Data(source=str(folder))).only(np.arange(0, 168, 2))
    drain(writing_shards(index, tmp_path / "out", plan_shards(index, None, "file", None, 9)))
    assert sorted(opened(tmp_path / "out").samples) == sorted(index.samples)


def change_about(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    about = json.loads((folder / ABOUT).read_text())
    change(about)
    (folder / ABOUT).write_text(json.dumps(about))


def change_index(folder: Path, **columns: Any) -> None:
    """Put other columns into the index, and make shards.json agree with it."""
    tensors = load_file(folder / INDEX)
    save_file({**tensors, **columns}, folder / INDEX)
    digest = sha256_of(folder / INDEX)
    change_about(folder, lambda about: about.update(index=digest))


def read_all(folder: Path) -> None:
    index = opened(folder)
    for number in range(len(index.samples)):
        index.storage.read(number)


def _name(folder: Path, name: str) -> None:
    change_about(folder, lambda about: about["shards"][0].update(name=name))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a shard is missing": (lambda folder: (folder / "train-000002.tar").unlink(), "train-000002.tar cannot be read"),
    "a shard is cut off": (lambda folder: os.truncate(folder / "train-000002.tar", 5_000), "has 5,000 bytes, and"),
    "a shard lies elsewhere": (lambda folder: _name(folder, "../out.tar"), "is no name of a file in"),
    "a shard has an absolute name": (lambda folder: _name(folder, "/etc/passwd"), "is no name of a file in"),
    "the index is another": (lambda folder: (folder / INDEX).write_bytes(b"1234"), "is not the one that"),
    "shards.json is cut off": (lambda folder: os.truncate(folder / ABOUT, 100), "is damaged, or not one of Vitral's"),
    "the index would lie elsewhere": (
        lambda folder: change_about(folder, lambda about: about.update(index="../../elsewhere")),
        "is damaged, or not one of Vitral's",
    ),
    "shards.json is a list": (lambda folder: (folder / ABOUT).write_text("[]"), "is damaged, or not one of Vitral's"),
    "shards.json is of a later version": (
        lambda folder: change_about(folder, lambda about: about.update(format=2)),
        "has format 2, and this Vitral reads up to 1",
    ),
    "a number of pictures is not true": (
        lambda folder: change_about(folder, lambda about: about["shards"][0].update(pictures=9)),
        "has columns of 168 rows for 157 pictures",
    ),
    "a picture lies outside": (
        lambda folder: change_index(folder, offset=np.full(168, 2**63, np.uint64)),
        "a picture would lie outside of train-000000.tar",
    ),
    "a picture has a gigabyte": (
        lambda folder: change_index(folder, size=np.full(168, 2**32 - 1, np.uint32)),
        "a picture would lie outside of train-000000.tar",
    ),
    "a label is no class": (
        lambda folder: change_index(folder, label=np.full(168, 3, np.int32)),
        "a label is none of its 3 classes",
    ),
    "a label is a fraction": (
        lambda folder: change_index(folder, label=np.full(168, 0.5, np.float32)),
        "its column label is of F32",
    ),
    "a split is none": (lambda folder: change_index(folder, split=np.full(168, 4, np.uint8)), "a split is none of"),
    "names go back": (
        lambda folder: change_index(folder, end=np.arange(168, 0, -1).astype(np.uint64)),
        "its names end before they begin",
    ),
    "the index says other places": (
        lambda folder: change_index(folder, offset=np.full(168, 512, np.uint64)),
        "has other bytes than its index was made of",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_or_lies_is_a_sentence(shards_copy: Path, damage: str) -> None:
    do, words = DAMAGES[damage]
    do(shards_copy)
    with pytest.raises(DataError, match=re.escape(words)):
        read_all(shards_copy)


def test_a_shard_in_the_place_of_another_is_noticed(folder: Path, tmp_path: Path) -> None:
    for split, count in (("train", 12), ("test", 2)):  # all of one size, and so are their tars
        for number in range(count):
            for name in ("bright", "dark"):
                path = tmp_path / "same" / split / name / f"{number}.bmp"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (number, len(name), len(split))).save(path)
    write(tmp_path / "same", tmp_path / "out", 6)
    one, other = (tmp_path / "out" / f"train-00000{number}.tar" for number in (0, 1))
    assert one.stat().st_size == other.stat().st_size
    one.rename(tmp_path / "kept")
    other.rename(one)
    (tmp_path / "kept").rename(other)
    with pytest.raises(DataError, match="has other bytes than its index was made of"):
        read_all(tmp_path / "out")


def test_a_full_place_is_not_written_into(folder: Path, shards: Path) -> None:
    with pytest.raises(DataError, match="is there already"):
        write(folder, shards)


# Shards that others wrote


def tar_of(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    return path


def png(level: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (8, 8), (level, 0, 0)).save(file, "PNG")
    return file.getvalue()


def foreign(source: Path | str, directory: Path, **data: Any) -> Index:
    return open_source(Data(source=f"shards:{source}", directory=str(directory), **data))


def test_tars_of_others_are_indexed_once_and_not_stored(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for number in range(3):
        pictures = [(f"{number}{place:03}", png(number * 50 + place)) for place in range(40)]
        members = [
            (f"{key}.{end}", what)
            for key, one in pictures
            for end, what in (("png", one), ("cls", b"%d" % (one[-20] % 2)))
        ]
        tar_of(tmp_path / "set" / f"{'val' if number == 2 else 'train'}-{number:03}.tar", members)
    index = foreign(tmp_path / "set", tmp_path / "data")
    assert len(index.samples) == 120 and index.class_names == ("0", "1") and index.samples[0] == "0000.png"
    assert [index.storage.read(number) for number in (0, 119)] == [png(0), png(139)]
    assert set(index.splits[:80]) == {"train", "validation"} and set(index.splits[80:]) == {"test"}  # as a folder's
    [kept] = (tmp_path / "data").rglob(INDEX)
    made_at = kept.stat().st_mtime_ns
    braces = foreign(tmp_path / "set" / "train-{000..001}.tar", tmp_path / "data")
    assert len(braces.samples) == 80 and set(braces.splits) == {"train", "validation", "test"}
    foreign(tmp_path / "set", tmp_path / "data")
    assert kept.stat().st_mtime_ns == made_at and len(list((tmp_path / "data").rglob(INDEX))) == 2
    assert sum(path.stat().st_size for path in (tmp_path / "data").rglob("*")) < 50_000


def test_a_tar_that_changed_is_indexed_again(tmp_path: Path) -> None:
    tar = tar_of(
        tmp_path / "a.tar", [(f"cat/{n}.png", png(n)) for n in range(9)] + [(f"dog/{n}.png", png(n)) for n in range(9)]
    )
    assert len(foreign(tar, tmp_path / "data").samples) == 18
    tar_of(tar, [(f"{name}/{n}.png", png(n)) for name in ("cat", "dog", "cow") for n in range(9)])
    index = foreign(tar, tmp_path / "data")
    assert len(index.samples) == 27 and index.class_names == ("cat", "cow", "dog")


# Indexes the tars in argv[1], of which those from the fourth on stop in their middle; is killed once three are done.
INDEXING = """
import os, signal, sys, time
from pathlib import Path
from vitral.data.sources.foreign_tars import indexing
from vitral.data.stores.near import Near

class Stops(Near):
    def chunks(self, name):
        whole = b"".join(super().chunks(name))
        yield whole[:5_000]
        if name >= "3":
            time.sleep(600)
        yield whole[5_000:]

store = Stops(Path(sys.argv[1]))
for _ in indexing(store, store.names(), Path(sys.argv[2])):
    if len(list(Path(sys.argv[2]).rglob("*.npz"))) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_indexing_that_was_killed_goes_on_with_the_tars_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for number in range(7):
        members = [(f"{name}/{number}{n}.png", png(number * 9 + n)) for n in range(9) for name in ("cat", "dog")]
        tar_of(tmp_path / "set" / f"{number}.tar", members)
    killed = subprocess.run([sys.executable, "-c", INDEXING, tmp_path / "set", tmp_path / "data"])
    assert killed.returncode == -signal.SIGKILL and not list((tmp_path / "data").rglob(ABOUT))
    read: list[str] = []

    class Watched(Near):
        def chunks(self, name: str) -> Iterator[bytes]:
            read.append(name)
            return super().chunks(name)

    store = Watched(tmp_path / "set")
    drain(indexing(store, store.names(), tmp_path / "data"))
    assert sorted(read) == ["3.tar", "4.tar", "5.tar", "6.tar"]
    told: list[Progress] = []
    index = open_source(Data(source=f"shards:{tmp_path}/set", directory=str(tmp_path / "data")), tell=told.append)
    assert told == [] and sorted(index.rows()) == sorted(foreign(tmp_path / "set", tmp_path / "other").rows())
    [one], [other] = ((tmp_path / name).rglob(INDEX) for name in ("data", "other"))
    assert one.read_bytes() == other.read_bytes()


class Long(Near):
    """A tar with a long end: 200 GB of zeros."""

    passed = 0  # megabytes of the end

    def look(self, name: str) -> Found:
        return Found(200 * 10**9, "")

    def chunks(self, name: str) -> Iterator[bytes]:
        yield from super().chunks(name)
        for self.passed in range(200_000):
            yield bytes(10**6)


def test_indexing_tells_megabytes_and_ends_at_once_in_the_middle_of_a_tar(tmp_path: Path) -> None:
    store, told = Long(tar_of(tmp_path / "a.tar", PICTURES).parent), list[Progress]()

    def interrupt(progress: Progress) -> None:
        told.append(progress)
        if progress.done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain(indexing(store, ["a.tar"], tmp_path / "data"), interrupt)
    assert told[0].done == 0 and {progress.total for progress in told} == {200_000} and "MB" in told[0].doing
    assert 20 < told[-1].done <= store.passed + 2 < 199_999


def test_commands_tell_how_far_they_are_in_tars_of_others(tmp_path: Path) -> None:
    tar = tar_of(tmp_path / "a.tar", PICTURES)
    told: dict[str, list[Progress]] = {name: [] for name in ("open", "choose", "prepare", "embed")}
    directory = tmp_path / "directory"
    about = {"data.directory": str(directory), "data.shards": "stream"}
    recipe = small_recipe(f"shards:{tar}", **about)

    open_source(recipe.data, tell=told["open"].append)
    shutil.rmtree(directory)
    choose(f"shards:{tar}", about, tell=told["choose"].append)
    shutil.rmtree(directory)
    told["prepare"] += prepare(recipe)
    shutil.rmtree(directory)
    embed(FORMAT_1 / "model.safetensors", recipe.data, tmp_path / "embedded", tell=told["embed"].append)
    for name, heard in told.items():
        assert {one.done for one in heard if "indexing" in one.doing} == {0, 1}, name


def test_shards_without_their_index_say_the_same(folder: Path, shards_copy: Path, tmp_path: Path) -> None:
    with_index = sorted(opened(shards_copy).rows())
    (shards_copy / ABOUT).unlink()
    assert sorted(foreign(shards_copy, tmp_path / "data").rows()) == with_index


@pytest.mark.filterwarnings("ignore")  # it leaves files open
def test_webdataset_reads_what_we_write(shards: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed (pip install 'vitral[test]')")
    index = opened(shards)
    tars = [str(shards / shard.name) for shard in index.storage.about.shards]  # type: ignore[attr-defined]
    theirs = list(webdataset.WebDataset(tars, shardshuffle=False).to_tuple("jpg", "cls", "json"))
    assert len(theirs) == len(index.samples)
    for number, (picture, label, words) in enumerate(theirs):
        assert picture == index.storage.read(number) and int(label) == index.labels[number]
        assert json.loads(words)["name"] == index.samples[number]


@pytest.mark.filterwarnings("ignore")  # it leaves files open
def test_we_read_what_webdataset_writes(folder: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed (pip install 'vitral[test]')")
    files = sorted(folder.glob("train/*/*.jpg"))
    names = ("bright", "dark", "middle")
    (tmp_path / "theirs").mkdir()
    with webdataset.ShardWriter(str(tmp_path / "theirs" / "train-%03d.tar"), maxcount=50, verbose=0) as writer:
        for number, path in enumerate(files):
            label = names.index(path.parent.name)
            writer.write(
                {"__key__": f"sample{number:05}", "jpg": path.read_bytes(), "cls": label, "json": {"id": number}}
            )
    index = foreign(tmp_path / "theirs", tmp_path / "data")
    assert len(index.samples) == len(files)
    for number, path in enumerate(files):
        assert index.storage.read(number) == path.read_bytes()
        assert index.class_names[index.labels[number]] == str(names.index(path.parent.name))


def test_nothing_of_a_hostile_tar_is_followed_or_written(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(99))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind, target in (
            ("cat/link.png", tarfile.SYMTYPE, str(tmp_path / "secret.png")),
            ("cat/hard.png", tarfile.LNKTYPE, "cat/0.png"),
            ("cat/device.png", tarfile.CHRTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
        names = [
            *(f"{name}/{n}.png" for name in ("cat", "dog") for n in range(12)),
            "/tmp/absolute.png",
            "../above.png",
        ]
        for name in (*names, "cat/../../up.png", "cat/.hidden.png"):
            member = tarfile.TarInfo(name)
            member.size = len(png(1))
            tar.addfile(member, BytesIO(png(1)))
        bomb = _bomb()
        member = tarfile.TarInfo("dog/bomb.png")
        member.size = len(bomb)
        tar.addfile(member, BytesIO(bomb))
    before = set(tmp_path.iterdir())
    index = foreign(tmp_path / "a.tar", tmp_path / "data")
    assert sorted(index.samples) == sorted(f"{name}/{n}.png" for name in ("cat", "dog") for n in range(12))
    assert "1 picture could not be read" in index.notes[-1] + index.notes[0] + index.notes[1]
    assert set(tmp_path.iterdir()) - before == {tmp_path / "data"}
    assert not any(path.suffix == ".png" for path in (tmp_path / "data").rglob("*"))


def test_words_that_no_file_can_hold_are_spelt_out(tmp_path: Path) -> None:
    words = b'{"label": "\\ud800%d", "name": "%d\\udfff"}'
    members = [one for n in range(8) for one in ((f"{n}.png", png(n)), (f"{n}.json", words % (n % 2, n)))]
    index = foreign(tar_of(tmp_path / "a.tar", members), tmp_path / "data")
    assert index.class_names == ("\\ud8000", "\\ud8001")
    assert sorted(index.samples) == [f"{n}\\udfff" for n in range(8)]


def _bomb() -> bytes:
    """A PNG that says it has 60,000 × 60,000 pixels."""
    content = bytearray(png(0))
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


PICTURES = [(f"{name}/{n}.png", png(n)) for name in ("cat", "dog") for n in range(12)]
TARS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off in a picture": (lambda tar: os.truncate(tar, 700), "is damaged, or no tar"),
    "cut off between two": (lambda tar: os.truncate(tar, 1024 * 4), "its end is missing"),
    "damaged in a header": (
        lambda tar: tar.write_bytes(tar.read_bytes()[:2048] + b"\7" * 512 + tar.read_bytes()[2560:]),
        "byte 2,048 begins no file",
    ),
    "no tar": (lambda tar: tar.write_bytes(b"\1" * 5_000), "is damaged, or no tar"),
    "empty": (lambda tar: tar.write_bytes(b""), "is damaged, or no tar"),
    "compressed": (
        lambda tar: tar.write_bytes(gzip.compress(tar.read_bytes())),
        "A compressed tar has to be unpacked first",
    ),
    "without pictures": (lambda tar: tar_of(tar, [("a.txt", b"words")]), "has no picture"),
    "of broken pictures": (lambda tar: tar_of(tar, [(f"a/{n}.png", b"x") for n in range(30)]), "which is too many"),
    "without labels": (
        lambda tar: tar_of(tar, [(f"{n}.png", png(n)) for n in range(9)]),
        "says of no picture what it is",
    ),
    "with some labels": (
        lambda tar: tar_of(tar, [(f"{'a/' if n else ''}{n}.png", png(n)) for n in range(9)]),
        "of 1 of 9 pictures not what they are",
    ),
    "with a huge class": (
        lambda tar: tar_of(tar, [("a.png", png(1)), ("a.cls", b"999999999")]),
        "more than 100,000 classes",
    ),
    "with a class below 0": (
        lambda tar: tar_of(tar, [("a.png", png(1)), ("a.json", b'{"label": -1}'), ("b.png", png(2)), ("b.cls", b"0")]),
        "has a class -1, and classes are counted from 0",
    ),
    "with points in the names": (
        lambda tar: tar_of(tar, [(f"cat/one.{n:03}.png", png(n)) for n in range(80)]),
        "more than 64 files that are called cat/one up to their first point",
    ),
    "with a huge label": (
        lambda tar: tar_of(tar, [("a.png", png(1)), ("a.cls", b"1" * 2_000_000)]),
        "a.cls has 2,000,000 bytes",
    ),
}


@pytest.mark.parametrize("damage", TARS)
def test_a_damaged_tar_of_others_is_a_sentence(tmp_path: Path, damage: str) -> None:
    tar = tar_of(tmp_path / "a.tar", PICTURES)
    do, words = TARS[damage]
    do(tar)
    with pytest.raises(DataError, match=re.escape(words)):
        foreign(tar, tmp_path / "data")


def test_names_that_are_no_text_are_spelt_out(tmp_path: Path) -> None:
    latin = "caf\udce9"  # as a tar with Latin-1 names has it
    members = [(f"{name}/{n}.png", png(n)) for name in (latin, "dog") for n in range(9)]
    words = json.dumps({"name": "half \ud83d a sign", "label": "dog"}).encode()
    tar = tar_of(tmp_path / "a.tar", [*members, ("other.png", png(50)), ("other.json", words)])
    index = foreign(tar, tmp_path / "data")
    assert index.class_names == ("caf\\xe9", "dog")
    assert {"caf\\xe9/0.png", "half \\ud83d a sign"} <= set(index.samples)


@pytest.mark.parametrize(
    "label, words",
    [
        (-1, "has a class -1, and classes are counted from 0"),
        (10**30, "more than 100,000 classes"),
        (None, "says of no picture what it is"),
    ],
)
def test_labels_that_cannot_be_are_a_sentence(tmp_path: Path, label: object, words: str) -> None:
    described = json.dumps({"label": label}).encode()
    tar = tar_of(tmp_path / "a.tar", [("a.png", png(1)), ("a.json", described)])
    with pytest.raises(DataError, match=words):
        foreign(tar, tmp_path / "data")


@pytest.mark.parametrize(
    "name, words",
    [
        ("nowhere", "There is no folder nowhere of shards"),
        ("nowhere/a.tar", "There is no folder nowhere of shards"),
        ("{here}", "has no shards: neither shards.json nor a .tar"),
        ("{here}/missing.tar", "missing.tar cannot be read"),
        ("{here}/{{5..3}}.tar", "should count up"),
        ("{here}/{{0..99999999}}.tar", "should count up, to at most"),
    ],
)
def test_shards_that_are_not_there_are_a_sentence(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises((DataError, RecipeError), match=re.escape(words)):
        foreign(name.format(here=tmp_path), tmp_path / "data")


def test_pictures_without_labels_may_be_learnt_from_without_labels(tmp_path: Path) -> None:
    tar = tar_of(tmp_path / "a.tar", [(f"{n}.png", png(n)) for n in range(30)])
    index = open_source(Data(source=f"shards:{tar}", directory=str(tmp_path / "data")), unsorted=True)
    assert set(index.splits) == {"train", "validation"}


# The command


@pytest.mark.slow
def test_vitral_pack_writes_shards_that_vitral_train_learns_from(
    called: Callable[..., Called], folder: Path, tmp_path: Path
) -> None:
    told = called("pack", folder, "out", "--shards", "70KB", "data.validation=auto", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "168 pictures in" in told.stdout and "vitral train shards:out" in told.stdout
    settings = (
        f"data.directory={tmp_path}",
        "data.shards=stream",
        "model.width=16",
        "model.heads=2",
        "model.depth=1",
        "train.epochs=1",
        "train.baseline=false",
    )
    trained = called("train", "shards:out", "--out", "run", *settings, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert Run.load(tmp_path / "run").evaluation is not None
    assert not list((tmp_path / "run").glob("**/pixels.bin"))


def test_vitral_pack_says_where_the_pack_is(called: Callable[..., Called], folder: Path, tmp_path: Path) -> None:
    told = called("pack", folder, f"data.directory={tmp_path}")
    assert told.returncode == 0, told.stderr
    [place] = (tmp_path / "packs").glob("*/pixels.bin")
    assert str(place.parent) in told.stdout


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["out"], "Shards need a place and a size"),
        (["--shards", "256MB"], "Shards need a place and a size"),
        (["out", "--shards", "256"], "pictures in"),
        (["out", "--shards", "much"], "give a size, such as 256MB"),
        (["out", "--shards", "0"], "--shards is 0"),
        (["out", "--shards", "²"], "give a size, such as 256MB"),
        (["--days", "3"], "--days goes with --prune"),
        (["out", "--shards", "1KB"], "too small for a shard"),
        (["out", "--shards", "2", "model.image_size=32"], "changes nothing about files as they are"),
        (["--as", "png"], "--as says how pictures lie in shards"),
        (["out", "--shards", "2", "--as", "png", "data.resize={kind='shortest',share=0.9}"], "has a share of 0.9"),
    ],
)
def test_vitral_pack_says_what_it_needs(
    called: Callable[..., Called], folder: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    told = called("pack", folder, *words, cwd=tmp_path)
    assert sentence in told.stdout + told.stderr


def test_packs_are_listed_and_removed(
    called: Callable[..., Called], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    tar = tar_of(tmp_path / "a.tar", PICTURES)
    assert called("pack", folder).returncode == 0
    foreign(tar, tmp_path / "data")
    (tmp_path / "data" / "mine").write_text("is kept")
    gone = next((tmp_path / "data").rglob("pixels.bin")).with_name("gone")
    gone.symlink_to(tmp_path / "removed while it was listed")
    told = called("pack", "--list").stdout
    assert "index of shards" in told and str(folder) in told and list((tmp_path / "data").rglob("pixels.bin"))
    assert "0.0 MB of" in called("pack", "--prune", "--days", "1").stdout and list(
        (tmp_path / "data").rglob("pixels.bin")
    )
    told = called("pack", "--prune").stdout
    assert "pack, removed" in told and "index of shards, removed" in told
    assert [path.name for path in (tmp_path / "data").rglob("*") if path.is_file()] == ["mine"]
    assert "There is nothing in" in called("pack", "--list").stdout
    assert len(foreign(tar, tmp_path / "data").samples) == 24


# Other rooms


def test_a_run_is_asked_about_all_pictures_of_shards(
    called: Callable[..., Called], trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    index = write("digits", tmp_path / "out", 5)
    told = called("predict", trained.folder, f"shards:{tmp_path / 'out'}", "--csv", tmp_path / "answers.csv")
    assert told.returncode == 0 and "1797 files: 1797 answered" in told.stdout, told.stderr
    lines = (tmp_path / "answers.csv").read_text().splitlines()[1:]
    right = [line.split(",")[1] == index.label_of(number) for number, line in enumerate(lines)]
    assert [line.split(",")[0] for line in lines] == list(index.samples) and np.mean(right) > 0.3
    told = called("predict", trained.folder, f"shards:{tmp_path / 'out'}", FIXTURES)
    assert "Shards are asked about alone" in told.stderr


@pytest.mark.slow
def test_a_run_is_measured_on_shards_as_on_the_source(trained: Run, tmp_path: Path) -> None:
    write("digits", tmp_path / "out", 5)
    shards, source = evaluate(trained, data=f"shards:{tmp_path / 'out'}"), evaluate(trained, data="digits")
    assert shards.accuracy == source.accuracy
    assert any("were learnt from, or watched in training" in note for note in shards.notes)


def test_weights_of_classes_and_a_whitened_stem_are_those_of_the_folder(
    in_that_order: Index, shards: Path, tmp_path: Path
) -> None:
    """Of one class few pictures are left."""
    index = opened(shards)
    few = np.flatnonzero((index.labels < 2) | (np.arange(len(index.samples)) % 4 == 0))
    settings = {"model.stem": "whitened", "train.class_weights": "balanced", "train.epochs": 1}
    recipe = small_recipe("given", **settings, **{"data.directory": str(tmp_path / "data")})
    streamed, packed = (
        train(recipe, out=tmp_path / name, source=one.only(few))
        for name, one in (("streamed", index), ("packed", in_that_order))
    )
    assert timeless(streamed) == timeless(packed)
    assert (streamed.folder / "model.safetensors").read_bytes() == (packed.folder / "model.safetensors").read_bytes()
    plain = train(
        recipe.changed({"train.class_weights": "none"}), out=tmp_path / "plain", source=in_that_order.only(few)
    )
    assert timeless(plain) != timeless(packed)


def test_learning_without_labels_is_that_from_the_folder(in_that_order: Index, shards: Path, tmp_path: Path) -> None:
    small = {"model.width": 16, "model.depth": 1, "model.heads": 2, "train.budget": "2steps", "train.batch_size": 12}
    decoder = {"kind": "mae", "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
    settings = {**small, "train.objective": decoder, "data.directory": str(tmp_path / "data")}
    choice = choose_pretraining(f"shards:{shards}", settings)
    streamed, packed = (
        train(choice.recipe, out=tmp_path / name, source=one)
        for name, one in (("streamed", choice.index), ("packed", in_that_order))
    )
    assert len([line for line in streamed.metrics if line["event"] == "step"]) == 2
    assert timeless(streamed) == timeless(packed)
    assert (streamed.folder / "model.safetensors").read_bytes() == (packed.folder / "model.safetensors").read_bytes()


def test_a_probe_is_that_of_the_folder(
    in_that_order: Index, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path))
    streamed, packed = (probe(FIXTURES / "timm_vit", one).write() for one in (opened(shards), in_that_order))
    own = ("seconds", "source", "pictures_sha256", "notes")
    assert [streamed.pop(name) for name in own] != [packed.pop(name) for name in own]
    assert streamed == packed


def interrupt_after(count: int) -> Tell:
    """Ctrl-C, once so many pictures are looked at."""

    def tell(progress: Progress) -> None:
        if progress.done >= count:
            raise KeyboardInterrupt

    return tell


def test_a_check_of_shards_goes_on_after_ctrl_c(shards: Path, tmp_path: Path) -> None:
    index, told = opened(shards), list[Progress]()
    with pytest.raises(KeyboardInterrupt):
        check(index, interrupt_after(100), directory=tmp_path)
    report = check(index, told.append, directory=tmp_path)
    assert told[0].done == 128 and told[0].total == 168
    assert report.write() == check(index).write()


@pytest.mark.slow
def test_embedding_shards_goes_on_after_ctrl_c(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitral.evaluation.embed.SHARD", 64)
    data, told = Data(source=f"shards:{shards}", directory=str(tmp_path)), list[Progress]()
    weights = FIXTURES / "timm_vit"
    with pytest.raises(KeyboardInterrupt):
        embed(weights, data, tmp_path / "embedded", tell=interrupt_after(100))
    again = embed(weights, data, tmp_path / "embedded", tell=told.append)
    whole = embed(weights, data, tmp_path / "whole")
    assert told[0].done == 64 and told[0].total == 168  # what it told of last was not written yet
    assert again.samples == list(opened(shards).samples) and (again.vectors == whole.vectors).all()


# Several real processes

LEARNING = """
import os, signal, sys
from pathlib import Path

import numpy as np
from vitral import Step, train
from vitral.data.batches import Batches
from vitral.processes import join
from vitral.recipe import Recipe
from vitral.recipes.choose import choose

out, killed_at = Path(sys.argv[2]), int(sys.argv[3])
processes = join()
share = Batches._share


def noted(self, samples, copies, epoch):
    batch = share(self, samples, copies, epoch)
    with open(f"{out}-{processes.world}-{processes.rank}.txt", "a") as file:
        file.write(" ".join(map(str, [epoch, *batch.samples])) + "\\n")
    return batch


def watch(event):
    if isinstance(event, Step) and event.step == killed_at and processes.rank == processes.world - 1:
        os.kill(os.getpid(), signal.SIGKILL)


Batches._share = noted
train(Recipe.from_file(sys.argv[1]), out=out, resume=out.exists(), save_every=0, listeners=[watch], processes=processes)
"""


@pytest.mark.slow
def test_killed_within_a_shard_the_order_goes_on_with_another_number_of_processes(folder: Path, tmp_path: Path) -> None:
    """Three shards on two processes, then on three: the batches, and so the losses, are those of one process."""
    write(folder, tmp_path / "three", 4)
    assert len(list((tmp_path / "three").glob("train-*"))) == 3
    recipe = small_recipe(f"shards:{tmp_path / 'three'}", **{"train.device": "cpu", "train.precision": "float32"})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    (tmp_path / "learning.py").write_text(LEARNING)
    words = (tmp_path / "learning.py", tmp_path / "recipe.toml")
    environment = many.torchrun(*words, tmp_path / "whole", 0, processes=1)
    assert (done := many.run(environment)).returncode == 0, done.stderr
    assert many.run(many.torchrun(*words, tmp_path / "run", 4, processes=2)).returncode != 0
    first = Run.load(tmp_path / "run")
    assert first.record.state != "finished"
    done = many.run(many.torchrun(*words, tmp_path / "run", 0, processes=3))
    assert done.returncode == 0, done.stderr
    one, other = Run.load(tmp_path / "whole"), Run.load(tmp_path / "run")
    losses = [[line["loss"] for line in timeless(run) if line["event"] == "step"] for run in (one, other)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    order = batches_in(tmp_path / "whole-1-0.txt")
    for rank in range(3):
        rows = Processes(rank, 3).rows(12)
        expected = [[batch[row] for row in rows] for batch in order]
        mine = [batch for batch in batches_in(tmp_path / f"run-3-{rank}.txt") if batch not in expected[:3]]
        begin = expected.index(mine[0])  # but for the first batches, with which steps are tried out
        assert begin in (3, 4) and mine[: 20 - begin] == expected[begin:20]


def batches_in(path: Path) -> list[list[int]]:
    """The batches that were prepared, each once, in their order."""
    return [[int(word) for word in line.split()[1:]] for line in dict.fromkeys(path.read_text().splitlines())]
