"""Files in the official formats of MNIST, Fashion-MNIST and CIFAR: read to the byte, and damage told in a sentence."""

import gzip
import hashlib
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vitral.data.config import Data
from vitral.data.pack import pack
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_named, open_source
from vitral.data.sources.named import NAMED, SetLocation, data_directory, find, locate, named, not_here
from vitral.data.sources.official import CLOTHES, READERS, Official, cifar10, cifar100, fashion_mnist, mnist, read_idx
from vitral.data.sources.pickled import KEYS, PUBLISHED, read_pickled
from vitral.errors import DataError, RecipeError

Array = NDArray[np.uint8]
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


# The pixels of the official files, train then test (CIFAR: channels last). Made by slicing the bytes of the files in a
# few lines of plain Python, without the readers that are tested here.
MNIST_PIXELS = "5b92582eb909c82a9bfefcd44acbe9233be3eb5b419a44cf211022ad2bf4bf96"
CIFAR10_PIXELS = "0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d"


def idx(array: Array) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx_set(folder: Path, *, packed: bool = True) -> tuple[Array, Array]:
    """5 training and 3 test pictures of 4×6 pixels; gives back all of them, in order."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (8, 4, 6), dtype=np.uint8)
    labels = chance.integers(0, 10, 8, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for half, some in (("train", slice(0, 5)), ("t10k", slice(5, 8))):
        for name, array in ((f"{half}-images-idx3-ubyte", images), (f"{half}-labels-idx1-ubyte", labels)):
            content = idx(array[some])
            (folder / (f"{name}.gz" if packed else name)).write_bytes(
                gzip.compress(content, mtime=0) if packed else content
            )
    return images, labels


def write_cifar(folder: Path, files: dict[str, int], label_bytes: int, names: dict[str, int]) -> tuple[Array, Array]:
    """Files of a few records, and files of class names; gives back the pictures (channels last) and the labels."""
    chance = np.random.default_rng(0)
    count = sum(files.values())
    images = chance.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = chance.integers(0, 10, (count, label_bytes), dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    records = np.concatenate([labels, images.transpose(0, 3, 1, 2).reshape(count, -1)], axis=1)
    at = 0
    for name, some in files.items():
        (folder / name).write_bytes(records[at : at + some].tobytes())
        at += some
    for name, some in names.items():
        (folder / name).write_text("\n".join(f"class {number}" for number in range(some)) + "\n\n")
    return images, labels[:, -1]


CIFAR10_FILES = {f"data_batch_{number}.bin": number for number in range(1, 6)} | {"test_batch.bin": 3}


def write_cifar10(folder: Path) -> tuple[Array, Array]:
    return write_cifar(folder, CIFAR10_FILES, 1, {"batches.meta.txt": 10})


def write_cifar100(folder: Path) -> tuple[Array, Array]:
    return write_cifar(folder, {"train.bin": 4, "test.bin": 2}, 2, {"fine_label_names.txt": 100})


@pytest.mark.parametrize("packed", [True, False], ids=["gzipped", "plain"])
@pytest.mark.parametrize(("read", "names"), [(mnist, tuple("0123456789")), (fashion_mnist, CLOTHES)])
def test_idx_sets_are_train_then_test(
    tmp_path: Path, packed: bool, read: Callable[[Path], Official], names: tuple[str, ...]
) -> None:
    images, labels = write_idx_set(tmp_path, packed=packed)
    found = read(tmp_path)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.splits.tolist() == ["train"] * 5 + ["test"] * 3
    assert found.class_names == names and len(names) == 10
    assert (str(found.images.dtype), str(found.labels.dtype)) == ("uint8", "int64")


def test_cifar10_is_five_files_then_the_test_file(tmp_path: Path) -> None:
    images, labels = write_cifar10(tmp_path)
    found = cifar10(tmp_path)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.splits.tolist() == ["train"] * 15 + ["test"] * 3
    assert found.class_names == tuple(f"class {number}" for number in range(10))
    assert found.images.flags.c_contiguous and found.images.base is None


def test_cifar100_has_the_fine_labels(tmp_path: Path) -> None:
    images, fine = write_cifar100(tmp_path)
    found = cifar100(tmp_path)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, fine)
    assert found.splits.tolist() == ["train"] * 4 + ["test"] * 2 and len(found.class_names) == 100


def test_some_of_train_can_become_validation(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    splits = cifar100(tmp_path).splits
    splits[0] = "validation"
    assert splits[0] == "validation"  # not cut to the width of "train"


def test_a_file_of_more_than_one_block_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = write_cifar10(tmp_path)
    monkeypatch.setattr("vitral.data.sources.official.BLOCK", 2)
    found = cifar10(tmp_path)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)


IDX = idx(np.zeros((2, 3, 3), np.uint8))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "starts with nothing"),
        (b"\0\0", "starts with 00 00"),
        (b"<html>", "starts with 3c 68 74 6d"),
        (b"\0\0\x0d\x01" + IDX[4:], "starts with 00 00 0d 01"),  # floats
        (b"\0\0\x08\0", "starts with 00 00 08 00"),
        (IDX[:9], "ends before its dimensions do"),
        (IDX[:-1], "describes 2×3×3 values and holds 17"),
        (IDX + b"x", "describes 2×3×3 values and holds 19"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "holds 0"),  # 2^96 values: told, not allocated
        (gzip.compress(IDX, mtime=0)[:-10], "cannot be unpacked"),
        (gzip.compress(IDX, mtime=0)[:-8] + b"\0" * 8, "cannot be unpacked: CRC"),
        (gzip.compress(IDX, mtime=0)[:12] + b"\xff" * 30, "cannot be unpacked"),
        (gzip.compress(IDX[:-1], mtime=0), "holds 17"),
    ],
)
def test_a_damaged_idx_file_is_told(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "x-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=why) as told:
        read_idx(path)
    assert str(path) in str(told.value) and "vitral fetch" in str(told.value)


def test_idx_files_that_do_not_belong_together_are_told(tmp_path: Path) -> None:
    def broken(name: str, array: Array) -> str:
        write_idx_set(tmp_path)
        (tmp_path / name).write_bytes(idx(array))
        with pytest.raises(DataError) as told:
            mnist(tmp_path)
        return str(told.value)

    labels, images = "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"
    assert "4 labels for 5 pictures" in broken(labels, np.zeros(4, np.uint8))
    assert "has the label 10, and the classes are 0 to 9" in broken(labels, np.full(5, 10, np.uint8))
    assert "1 dimensions above 0" in broken(labels, np.zeros((5, 1), np.uint8))
    (tmp_path / labels).unlink()
    assert "3 dimensions above 0" in broken(images, np.zeros((3, 24), np.uint8))
    assert "3 dimensions above 0" in broken(images, np.zeros((0, 4, 6), np.uint8))
    assert "4×6 for training and 5×6 for testing" in broken(images, np.zeros((3, 5, 6), np.uint8))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("data_batch_3.bin", b"", "not a whole number of records of 3,073"),
        ("data_batch_3.bin", b"x" * 3072, "3,072 bytes are not a whole number"),
        ("test_batch.bin", b"\x0a" + b"x" * 3072, "has the label 10, and the classes are 0 to 9"),
        ("batches.meta.txt", b"cat\ndog\n", "should have 10 different names, and has 2: cat, dog"),
        ("batches.meta.txt", b"cat\n" * 10, "should have 10 different names"),
        ("batches.meta.txt", b"\xff\xfe", "not text"),
    ],
)
def test_a_damaged_cifar10_is_told(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    write_cifar10(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why) as told:
        cifar10(tmp_path)
    assert str(tmp_path / name) in str(told.value)


def test_a_damaged_cifar100_is_told(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    (tmp_path / "train.bin").write_bytes(b"\0\x64" + b"x" * 3072)
    with pytest.raises(DataError, match="has the label 100, and the classes are 0 to 99"):
        cifar100(tmp_path)
    (tmp_path / "train.bin").write_bytes(b"x" * 3073)  # a record of CIFAR-10
    with pytest.raises(DataError, match="whole number of records of 3,074"):
        cifar100(tmp_path)


WRITERS: dict[str, Callable[[Path], tuple[Array, Array]]] = {
    "mnist": write_idx_set,
    "fashion-mnist": write_idx_set,
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
}
FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}


@pytest.mark.parametrize("name", READERS)
def test_a_set_is_found_read_and_missed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / FOLDERS.get(name, name)
    assert locate(NAMED[name], tmp_path) is None
    images, _ = WRITERS[name](folder)
    found = locate(NAMED[name], tmp_path)
    assert found == SetLocation("official", folder)
    np.testing.assert_array_equal(READERS[name](folder).images, images)

    gone = sorted(folder.iterdir())[0]
    gone.unlink()
    assert locate(NAMED[name], tmp_path) is None
    told = str(not_here(NAMED[name], tmp_path))
    assert f"not complete ({folder.name}/{gone.name} missing)" in told and f"vitral fetch {name}" in told
    with pytest.raises(DataError, match="No such file or directory"):
        READERS[name](folder)


def test_a_set_may_lie_there_as_a_folder_of_pictures_or_as_its_archive(tmp_path: Path) -> None:
    food = NAMED["food"]
    assert "food is not here in the data directory" in str(not_here(food, tmp_path))
    (tmp_path / "pizza_steak_sushi.zip").touch()
    assert locate(food, tmp_path) == SetLocation("archive", tmp_path / "pizza_steak_sushi.zip")
    for name in ("food", "mnist", "imagenette-mini"):
        (tmp_path / name / "train" / "one").mkdir(parents=True)
        assert locate(NAMED[name], tmp_path) == SetLocation("folder", tmp_path / name)
    assert locate(NAMED["digits"], tmp_path / "nowhere") is not None
    write_idx_set(tmp_path / "mnist", packed=False)
    assert locate(NAMED["mnist"], tmp_path) == SetLocation("official", tmp_path / "mnist")


def test_the_data_directory_is_the_one_asked_for_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("VITRAL_DATA", "/v")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert data_directory("/asked") == Path("/asked")
    assert data_directory("~/asked") == Path("/home/somebody/asked")
    assert data_directory("auto") == Path("/v")
    monkeypatch.delenv("VITRAL_DATA")
    assert data_directory("auto") == Path("/x/vitral")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert data_directory("auto") == Path("/home/somebody/.cache/vitral")


def test_the_table_of_sets_is_sound() -> None:
    assert set(READERS) == {name for name, each in NAMED.items() if each.kind == "official"}
    for name, each in NAMED.items():
        assert name == each.name and each.what and each.licence and each.cite and each.pictures > each.classes > 1
        assert bool(each.files) == (each.kind in ("official", "archive"))
        for file in each.files:
            assert file.url.startswith(("https://", "http://")) and file.size > 0
            assert len(file.sha256) == 64 or (name, file.sha256) == ("food", "")
            assert not any(Path(leaf).is_absolute() or ".." in Path(leaf).parts for leaf in (file.path, *file.leaves))
    with pytest.raises(RecipeError, match="no named set cifer10. Did you mean cifar10?"):
        named("cifer10")


@pytest.mark.slow
def test_the_real_mnist(large_data: Callable[[str], Path]) -> None:
    folder = large_data("mnist")
    for file in NAMED["mnist"].files:
        content = (folder.parent / file.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
    found = mnist(folder)
    assert found.images.shape == (70_000, 28, 28)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(found.labels[found.splits == "train"]).tolist() == train
    assert np.bincount(found.labels[found.splits == "test"]).tolist() == test
    assert hashlib.sha256(found.images.data).hexdigest() == MNIST_PIXELS


@pytest.mark.slow
def test_the_real_cifar10(large_data: Callable[[str], Path]) -> None:
    found = cifar10(large_data("cifar-10-batches-bin"))
    assert found.images.shape == (60_000, 32, 32, 3) and found.class_names == CIFAR10_NAMES
    assert np.bincount(found.labels[found.splits == "train"]).tolist() == [5_000] * 10
    assert np.bincount(found.labels[found.splits == "test"]).tolist() == [1_000] * 10
    assert hashlib.sha256(found.images.data).hexdigest() == CIFAR10_PIXELS


# ---- as torchvision keeps them


def python2_pickle(pixels: Array, key: str, labels: list[int]) -> bytes:
    """As Python 2 and its numpy wrote CIFAR's files: protocol 2, text and the bytes of arrays as its `str`."""

    def text(word: str) -> bytes:
        return b"U" + bytes([len(word)]) + word.encode()

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    shape = number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + text("u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text("|") + b"NNN" + number(-1) * 2 + number(0) + b"tb"
    raw = b"T" + struct.pack("<i", pixels.size) + pixels.tobytes()
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text("b") + b"\x87R"
    array = empty + b"(" + number(1) + shape + dtype + b"\x89" + raw + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text("data") + array + text(key) + listed + b"u."


def write_pickled(folder: Path, name: str, images: Array, labels: Array, counts: list[int]) -> dict[str, str]:
    """The pictures as torchvision keeps them; gives back the md5 of each file."""
    names_key, key = KEYS[name]
    folder.mkdir(parents=True, exist_ok=True)
    meta, *files = PUBLISHED[name]
    names = [f"class {number}" for number in range(NAMED[name].classes)]
    (folder / meta).write_bytes(pickle.dumps({names_key: names, "num_vis": 3072}))
    rows, at = images.transpose(0, 3, 1, 2).reshape(len(images), -1), 0
    for file, count in zip(files, counts, strict=True):
        some = slice(at, at + count)
        (folder / file).write_bytes(python2_pickle(rows[some], key, labels[some].tolist()))
        at += count
    return {file: hashlib.md5((folder / file).read_bytes()).hexdigest() for file in (meta, *files)}


COUNTS = {"cifar10": [1, 2, 3, 4, 5, 3], "cifar100": [4, 2]}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("protocol", [2, 4], ids=["Python 2", "Python 3"])
def test_pickled_cifar_is_the_same_set_as_the_binary_one(
    tmp_path: Path, name: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    official, kept = tmp_path / "official" / FOLDERS[name], tmp_path / "data" / NAMED[name].torchvision
    images, labels = WRITERS[name](official)
    md5 = write_pickled(kept, name, images, labels, COUNTS[name])
    if protocol == 4:
        for file in list(md5)[1:]:
            table = read_plain(kept / file)
            (kept / file).write_bytes(pickle.dumps(table, protocol=4))
            md5[file] = hashlib.md5((kept / file).read_bytes()).hexdigest()
    expected, found = READERS[name](official), read_pickled(name, kept, {name: md5})
    assert found.class_names == expected.class_names and found.images.flags.c_contiguous
    for one in ("images", "labels", "splits"):
        np.testing.assert_array_equal(getattr(found, one), getattr(expected, one))
        assert getattr(found, one).dtype == getattr(expected, one).dtype

    binary = open_named(name, Data(source=name, directory=str(official.parent)))
    pickled = open_named(name, Data(source=name, directory=str(kept.parent)), {name: md5})
    preprocess = Preprocess(image_size=(32, 32), mean=(0.0,) * 3, std=(1.0,) * 3, channels=3)
    first, second = (pack(one, preprocess, tmp_path / where) for where, one in (("a", binary), ("b", pickled)))
    assert first.sha256 == second.sha256
    assert pickled.notes == (f"{name} was found in {kept}, as torchvision keeps it.",) and binary.notes == ()


def read_plain(path: Path) -> object:
    return pickle.loads(path.read_bytes(), encoding="latin1")


class Evil:
    """Opened by anybody's pickle.load, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_that_is_not_the_published_one_is_refused_and_not_opened(tmp_path: Path) -> None:
    folder, trace = tmp_path / "cifar-10-batches-py", tmp_path / "trace"
    folder.mkdir()
    for file in PUBLISHED["cifar10"]:
        (folder / file).write_bytes(pickle.dumps(Evil(trace)))
    found = hashlib.md5((folder / "batches.meta").read_bytes()).hexdigest()
    data = Data(source="cifar10", directory=str(tmp_path))
    with pytest.raises(
        DataError, match=f"batches.meta is a pickle with the md5 {found}, and .* was not opened. Move it"
    ):
        open_source(data)
    # Even if somebody had published it: nothing but arrays and plain containers is looked up.
    published = {"cifar10": dict.fromkeys(PUBLISHED["cifar10"], found)}
    with pytest.raises(DataError, match="holds more than arrays, text and numbers .it asks for posix.mkdir"):
        open_named("cifar10", data, published)
    assert not trace.exists()
    read_plain(folder / "test_batch")
    assert trace.exists()  # what it would have done


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([1, 2], "it is no table"),
        ({"labels": [0]}, "rows of 3,072 bytes"),
        ({"data": np.zeros((1, 3072), np.int64), "labels": [0]}, "rows of 3,072 bytes"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "a list of 2 whole numbers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["0"]}, "a list of 1 whole numbers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "has the label -1, and the classes are 0 to 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [np.int64(3)]}, "asks for numpy.*scalar"),
        ({"data": np.array([len], object), "labels": [0]}, "asks for builtins.len"),
    ],
)
def test_a_pickle_of_something_else_is_told(tmp_path: Path, content: object, why: str) -> None:
    images, labels = write_cifar10(tmp_path / "official")
    md5 = write_pickled(tmp_path, "cifar10", images, labels, COUNTS["cifar10"])
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps(content))
    md5["data_batch_3"] = hashlib.md5((tmp_path / "data_batch_3").read_bytes()).hexdigest()
    with pytest.raises(DataError, match=why):
        read_pickled("cifar10", tmp_path, {"cifar10": md5})


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("place", [".", "data", "datasets", "../data", "../datasets", "~/data", "~/.cache"])
def test_what_torchvision_fetched_is_found_where_people_have_it(
    tmp_path: Path, name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "vitral"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    folder = Path(place).expanduser() / NAMED[name].torchvision
    images, _ = write_idx_set(folder, packed=False)
    index = open_source(Data(source=name))
    assert index.notes == (f"{name} was found in {folder}, as torchvision keeps it.",)
    picture = index.storage.read(7)
    assert isinstance(picture, np.ndarray) and np.array_equal(picture, images[7])
    with pytest.raises(DataError, match=f"torchvision's {NAMED[name].torchvision} will do"):
        open_source(Data(source=name, directory=str(tmp_path / "elsewhere")))  # who names a place means it
    write_idx_set(tmp_path / "vitral" / name)
    assert open_source(Data(source=name)).notes == ()  # the data directory comes first
    next(folder.iterdir()).unlink()
    shutil.rmtree(tmp_path / "vitral")
    with pytest.raises(DataError, match=f"{name} is not here in the data directory"):
        open_source(Data(source=name))


def test_a_folder_of_pictures_is_taken_for_a_named_set_in_the_data_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's own ./data/food is not the set `food`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "vitral"))
    (tmp_path / "data" / "food" / "train" / "mine").mkdir(parents=True)
    assert find(NAMED["food"]) is None


def test_a_set_without_an_address_says_what_can_be_fetched_instead(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="no address to fetch it from.*vitral fetch imagenette, and data.source=imagene"
    ):
        open_source(Data(source="imagenette-mini", directory=str(tmp_path)))
