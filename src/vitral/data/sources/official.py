"""The files of well-known sets, as their authors publish them: bytes in, pixels and labels out."""

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitral.errors import DataError

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SIDE = 32  # of a CIFAR picture, in pixels
BLOCK = 5_000  # CIFAR records that are read at once: 15 MB beside the pixels themselves


@dataclass(frozen=True)
class Official:
    """A set as its authors divide it: first all of train, then all of test, each in the order of the files."""

    class_names: tuple[str, ...]
    images: NDArray[np.uint8]  # (n, H, W) grey or (n, H, W, 3), contiguous
    labels: NDArray[np.int64]  # (n,)
    splits: NDArray[np.str_]  # (n,) of "train" and "test"


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of bytes, gzipped or plain, as the array it describes: (n,) labels or (n, H, W) pixels."""
    content = _content(path)
    # Two zeros, 8 for unsigned bytes, how many dimensions; then each of them as four bytes, the highest first.
    if len(content) < 4 or content[:3] != b"\0\0\x08" or content[3] == 0:
        start = content[:4].hex(" ") or "nothing"
        raise _damaged(path, f"it starts with {start}, and an idx file of bytes starts with 00 00 08")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise _damaged(path, "it ends before its dimensions do")
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    if len(content) != header + math.prod(shape):
        sizes = "×".join(map(str, shape))
        raise _damaged(path, f"it describes {sizes} values and holds {len(content) - header:,}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def mnist(folder: Path) -> Official:
    """MNIST: four idx files."""
    return _idx_set(folder, DIGITS)


def fashion_mnist(folder: Path) -> Official:
    """Fashion-MNIST: the same four names, other pictures."""
    return _idx_set(folder, CLOTHES)


def cifar10(folder: Path) -> Official:
    """CIFAR-10, binary version: a record is the label, then the red, the green and the blue plane."""
    train = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    names = _class_names(folder / "batches.meta.txt", 10)
    return _cifar(names, train, folder / "test_batch.bin", label_bytes=1)


def cifar100(folder: Path) -> Official:
    """CIFAR-100, binary version: a record has the coarse label (of 20) and the fine one (of 100), which is used."""
    names = _class_names(folder / "fine_label_names.txt", 100)
    return _cifar(names, [folder / "train.bin"], folder / "test.bin", label_bytes=2)


READERS: dict[str, Callable[[Path], Official]] = {
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
}


def _idx_set(folder: Path, class_names: tuple[str, ...]) -> Official:
    train, train_labels = _idx_half(folder, "train", len(class_names))
    test, test_labels = _idx_half(folder, "t10k", len(class_names))
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"The pictures in {folder} are {train.shape[1]}×{train.shape[2]} for training and "
            f"{test.shape[1]}×{test.shape[2]} for testing: these files do not belong together. {_again(folder)}"
        )
    return Official(
        class_names,
        np.concatenate([train, test]),
        np.concatenate([train_labels, test_labels]).astype(np.int64),
        splits_of(len(train), len(test)),
    )


def _idx_half(folder: Path, half: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images_path = _gzipped_or_not(folder / f"{half}-images-idx3-ubyte")
    labels_path = _gzipped_or_not(folder / f"{half}-labels-idx1-ubyte")
    images, labels = read_idx(images_path), read_idx(labels_path)
    for path, array, dimensions in ((images_path, images, 3), (labels_path, labels, 1)):
        if array.ndim != dimensions or array.size == 0:
            raise _damaged(path, f"its shape is {array.shape}, and {dimensions} dimensions above 0 were expected")
    if len(images) != len(labels):
        raise _damaged(labels_path, f"it has {len(labels):,} labels for {len(images):,} pictures")
    check_labels(labels_path, labels, classes)
    return images, labels


def _gzipped_or_not(path: Path) -> Path:
    """The path as published (.gz), or that of the file unpacked."""
    return path if path.exists() else path.with_name(f"{path.name}.gz")


def _content(path: Path) -> bytes:
    """The bytes of a file, unpacked if they are gzipped (which the first two tell, whatever the name)."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, f"it cannot be unpacked: {error}") from None


def _cifar(names: tuple[str, ...], train: list[Path], test: Path, label_bytes: int) -> Official:
    """Read block by block into the place where the pixels stay, so that there is never a second copy of all of them."""
    record = label_bytes + 3 * SIDE * SIDE
    counts = [_records(path, record) for path in (*train, test)]
    images = np.empty((sum(counts), SIDE, SIDE, 3), np.uint8)
    labels = np.empty(sum(counts), np.int64)
    at = 0
    for path, count in zip((*train, test), counts, strict=True):
        for block in _blocks(path, count, record):  # (k, record)
            here = slice(at, at + len(block))
            labels[here] = block[:, label_bytes - 1]
            images[here] = block[:, label_bytes:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
            at += len(block)
        check_labels(path, labels[at - count : at], len(names))
    return Official(names, images, labels, splits_of(sum(counts[:-1]), counts[-1]))


def _records(path: Path, record: int) -> int:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from None
    if size == 0 or size % record:
        raise _damaged(path, f"its {size:,} bytes are not a whole number of records of {record:,}")
    return size // record


def _blocks(path: Path, count: int, record: int) -> Iterator[NDArray[np.uint8]]:
    try:
        with path.open("rb") as file:
            for first in range(0, count, BLOCK):
                size = min(BLOCK, count - first) * record
                content = file.read(size)
                if len(content) != size:
                    raise _damaged(path, "it became shorter while it was read")
                yield np.frombuffer(content, np.uint8).reshape(-1, record)
    except OSError as error:
        raise _unreadable(path, error) from None


def _class_names(path: Path, expected: int) -> tuple[str, ...]:
    """The names of the classes, one per line; the official files end with empty lines."""
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError:
        raise _damaged(path, "it is not text") from None
    if len(names) != expected or len(set(names)) != expected:
        why = f"it should have {expected} different names, and has {len(names)}: {', '.join(names[:12])}"
        raise _damaged(path, why)
    return names


def check_labels(path: Path, labels: NDArray[np.uint8] | NDArray[np.int64], classes: int) -> None:
    """Every label is the number of a class, or the file is damaged."""
    if labels.max() >= classes or labels.min() < 0:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise _damaged(path, f"it has the label {wrong}, and the classes are 0 to {classes - 1}")


def splits_of(train: int, test: int) -> NDArray[np.str_]:
    """Wide enough for the longest word of all, so that some of train can become "validation"."""
    return np.repeat(np.array(["train", "test"], dtype="U10"), [train, test])


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged, or not what its name says: {why}. {_again(path)}")


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror}). {_again(path)}")


def _again(path: Path) -> str:
    return f"Delete {path} and fetch the set again: `vitral fetch` lists the names."
