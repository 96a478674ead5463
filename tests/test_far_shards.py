"""Shards on a server: an epoch is the same to the bit, whatever the server does; what cannot be mended is named."""

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import slowly, stopped
from faulty_server import FaultyServer
from test_resume import assert_same
from vitral import DataError, Preprocess, train
from vitral.data.batches import Batch, Batches
from vitral.data.config import Augment, Data
from vitral.data.pack import pack
from vitral.data.sources import Index, open_source
from vitral.data.sources.shard_index import ABOUT
from vitral.data.write_shards import plan_shards, writing_shards
from vitral.processes import Processes
from vitral.progress import drain
from vitral.recipe import Recipe

SEEN = Preprocess(image_size=(16, 16), channels=3, mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty shards of noise: a block each, and so an answer each."""
    place, chance = tmp_path_factory.mktemp("far"), np.random.default_rng(0)
    for split, count in (("train", 90), ("val", 6), ("test", 6)):
        for level, name in ((60, "dark"), (180, "bright")):
            (place / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(chance.normal(level, 40, (*chance.integers(20, 40, 2), 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / "photos" / split / name / f"{number}.jpg", quality=90)
    index = open_source(Data(source=str(place / "photos")))
    drain(writing_shards(index, place / "out", plan_shards(index, None, "file", None, 40)))
    return place / "out"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("VITRAL_CACHE", raising=False)


def opened(place: Path | str, directory: Path, **data: Any) -> Index:
    return open_source(Data(source=f"shards:{place}", directory=str(directory), **data))


def batches_of(index: Index, **how: Any) -> Batches:
    augment = Augment(crop=0.5, flip="random", mixup=0.5)
    given: dict[str, Any] = {"batch_size": 12, "seed": 0, "window": 4}
    return Batches(pack(index, SEEN, Path()), SEEN, augment, **given | how)


def epoch_of(batches: Batches) -> list[Batch]:
    stream = batches.starting_at(1)
    batches_of_epoch = [batch for _, batch in islice(stream, batches.steps_per_epoch)]
    stream.close()
    return batches_of_epoch


@pytest.fixture(scope="module")
def expected(shards: Path) -> list[Batch]:
    """An epoch from the folder."""
    return epoch_of(batches_of(opened(shards, shards)))


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        (a.samples == b.samples).all() and torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets)
        for a, b in zip(one, other, strict=True)
    )


FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "breaks off every tenth answer": {"break_every": 10},
    "stalls for 5 s": {"stall_every": 20},
    "truncates": {"truncate_every": 3},
    "is busy": {"busy_every": 10},
    "gives other bytes": {"swap_every": 13},
    "is far and slow": {"latency": 0.05, "bits_per_second": 20e6},
}


@pytest.mark.parametrize(
    "fault", [*(fault for fault in FAULTS if fault != "stalls for 5 s"), *slowly("stalls for 5 s")]
)
def test_an_epoch_is_the_same_whatever_the_server_does(
    fault: str, shards: Path, expected: list[Batch], tmp_path: Path
) -> None:
    with FaultyServer(shards) as server:
        index = opened(server.url, tmp_path)
        for name, value in FAULTS[fault].items():  # an index with other bytes is refused: see below
            setattr(server, name, value)
        assert same(epoch_of(batches_of(index)), expected)
        assert len(server.requests) >= 30
        for name in FAULTS[fault]:
            setattr(server, name, 0)
        server.requests.clear()
        assert same(epoch_of(batches_of(opened(server.url, tmp_path))), expected)
        assert {path for path, _ in server.requests} == {ABOUT}  # all pictures are in the cache


def test_processes_share_one_epoch_and_one_cache(shards: Path, expected: list[Batch], tmp_path: Path) -> None:
    with FaultyServer(shards, break_every=10) as server:
        two = [batches_of(opened(server.url, tmp_path), processes=Processes(rank, 2)) for rank in range(2)]
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(epoch_of, two)
    for whole, one, other in zip(expected, first, second, strict=True):
        for part, rank in ((one, 0), (other, 1)):
            rows = Processes(rank, 2).rows(12)
            assert torch.equal(part.images, whole.images[rows]) and torch.equal(part.targets, whole.targets[rows])


def small_recipe(source: str, directory: Path, **settings: Any) -> Recipe:
    model = {"classes": 0, "image_size": 16, "patch_size": 8, "width": 16, "depth": 1, "heads": 2}
    steps = {"train.epochs": 2, "train.batch_size": 12, "data.window": 4, "data.augment.flip": "random"}
    places = {"data.source": source, "data.directory": str(directory)}
    return Recipe().changed({f"model.{name}": value for name, value in model.items()} | steps | places | settings)


def test_a_training_from_far_is_that_from_the_folder_and_goes_on_elsewhere(shards: Path, tmp_path: Path) -> None:
    near = train(small_recipe(f"shards:{shards}", tmp_path / "near"), out=tmp_path / "a")
    with FaultyServer(shards, break_every=10, truncate_every=7) as server:
        recipe = small_recipe(f"shards:{server.url}", tmp_path / "data")
        whole = train(recipe, out=tmp_path / "b")
        assert (whole.folder / "model.safetensors").read_bytes() == (near.folder / "model.safetensors").read_bytes()
        half = stopped(recipe, tmp_path / "c", after=9)
        shutil.rmtree(tmp_path / "data")  # on a machine that has nothing of it
        assert_same(train(out=half, resume=True), whole)


def test_without_a_cache_nothing_is_kept(shards: Path, expected: list[Batch], tmp_path: Path) -> None:
    with FaultyServer(shards) as server:
        assert same(epoch_of(batches_of(opened(server.url, tmp_path, cache="none"))), expected)
    assert not (tmp_path / "blocks").exists()


def test_shards_in_another_store_are_learnt_from(shards: Path, expected: list[Batch], tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    try:
        for path in shards.iterdir():
            memory.pipe(f"/far-shards/set/{path.name}", path.read_bytes())
        assert same(epoch_of(batches_of(opened("memory://far-shards/set", tmp_path))), expected)
    finally:
        memory.rm("/far-shards", recursive=True)


# What is named


def files_of(shards: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shards.iterdir() if path.is_file()}


def damaged(files: dict[str, bytes], damage: str) -> None:
    name, about = max(name for name in files if name.endswith(".tar") and "train" in name), json.loads(files[ABOUT])
    if damage == "missing":
        del files[name]
    elif damage == "truncated":
        files[name] = files[name][: len(files[name]) // 2]
    elif damage == "swapped":
        files[name] = bytes(255 - byte for byte in files[name])
    elif damage == "lies":
        files["index.safetensors"] = files["index.safetensors"][:-9] + bytes(9)
    elif damage == "outside":
        about["shards"][0]["name"] = "../../outside.tar"
    elif damage == "absolute":
        about["shards"][0]["name"] = "/etc/passwd"
    if damage in ("outside", "absolute"):
        files[ABOUT] = json.dumps(about).encode()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("missing", r"is not there \(404\): it has moved, or is gone"),
        ("truncated", "bytes, and .* were expected: it has changed since its index was made"),
        ("swapped", "has other bytes than its index was made of"),
        ("lies", "is not the one that shards.json was written with"),
        ("outside", "outside.tar"),
        ("absolute", "/etc/passwd"),
    ],
)
def test_what_cannot_be_read_right_is_named(damage: str, sentence: str, shards: Path, tmp_path: Path) -> None:
    files = files_of(shards)
    damaged(files, damage)
    inside = tmp_path / "home" / "data"
    inside.mkdir(parents=True)
    with FaultyServer(files) as server, pytest.raises(DataError, match=sentence):
        epoch_of(batches_of(opened(server.url, inside)))
    assert {path.name for path in tmp_path.iterdir()} == {"home"}
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"data"}
    assert {path.name for path in inside.iterdir()} <= {"blocks", "shards"}


def test_an_index_that_is_damaged_here_is_brought_again(shards: Path, expected: list[Batch], tmp_path: Path) -> None:
    with FaultyServer(files_of(shards)) as server:
        opened(server.url, tmp_path)
        [here] = (tmp_path / "shards").glob("*.safetensors")
        here.write_bytes(here.read_bytes()[:-9])
        assert same(epoch_of(batches_of(opened(server.url, tmp_path))), expected)


def test_a_server_that_was_never_there_is_named(tmp_path: Path) -> None:
    with FaultyServer({}) as server, pytest.raises(DataError, match=r"shards\.json is not there \(404\)"):
        opened(server.url, tmp_path)


# What others wrote


def a_tar(members: Iterator[tuple[str, bytes]]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, inside in members:
            member = tarfile.TarInfo(name)
            member.size = len(inside)
            tar.addfile(member, io.BytesIO(inside))
    return content.getvalue()


def test_tars_without_an_index_are_indexed_while_they_stream_by(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)

    def members(tar: int) -> Iterator[tuple[str, bytes]]:
        for number in range(8):
            picture = io.BytesIO()
            Image.fromarray(chance.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(picture, "PNG")
            yield f"{tar}-{number:04}.png", picture.getvalue()
            yield f"{tar}-{number:04}.cls", str(number % 2).encode()

    files = {f"x-{tar:03}.tar": a_tar(members(tar)) for tar in range(12)}
    with FaultyServer(files, break_every=10) as server:
        index = opened(f"{server.url}/x-{{000..011}}.tar", tmp_path)
        assert len(index.samples) == 96 and index.class_names == ("0", "1")
        again = opened(f"{server.url}/x-{{000..011}}.tar", tmp_path)
        for number in (0, 50, 95):
            assert index.storage.read(number) == again.storage.read(number)
        kept = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and "blocks" not in path.parts)
        assert kept < sum(map(len, files.values())) / 4
