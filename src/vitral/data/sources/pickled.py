"""CIFAR as torchvision keeps it, in pickles. One that is not the published file, to the byte, is not opened.

A pickle can ask for any function there is. So the md5 of a file is compared first, with the one that torchvision's
source states; and then numbers, text, lists, tables and arrays are let through, and nothing else is ever looked up.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.data.sources.official import SIDE, Official, check_labels, splits_of
from vitral.errors import DataError

Published = Mapping[str, Mapping[str, str]]  # of a set: its files in their order, the names of the classes first

PUBLISHED: Published = {
    "cifar10": {
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    "cifar100": {
        "meta": "7973b15100ade9c7d40fb424638fde48",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
}
# Of each set, where the names of the classes and the labels stand: of CIFAR-100 the fine ones, as in its binary files.
KEYS = {"cifar10": ("label_names", "labels"), "cifar100": ("fine_label_names", "fine_labels")}

# All that an array in a pickle asks for; numpy moved its function to another module with version 2.
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_KNOWN: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Plain(pickle.Unpickler):
    """Arrays and plain containers. Whatever else a pickle names is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]


def read_pickled(name: str, folder: Path, published: Published = PUBLISHED) -> Official:
    """The set `cifar10` or `cifar100` from torchvision's folder: the same as from the official binary files."""
    names_key, labels_key = KEYS[name]
    (meta, md5), *parts = published[name].items()
    class_names = _strings(_table(folder / meta, md5, name).get(names_key), folder / meta, names_key)
    images, labels = [], []
    for file, md5 in parts:  # the last one is the test file
        pixels, numbers = _records(_table(folder / file, md5, name), labels_key, folder / file, len(class_names))
        images.append(pixels)
        labels.append(numbers)
    test = len(labels[-1])
    every = np.concatenate(labels)
    return Official(class_names, np.concatenate(images), every, splits_of(len(every) - test, test))


def _table(path: Path, md5: str, name: str) -> dict[str, Any]:
    """The table in a file; what is compared and what is opened are the same bytes."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). {_instead(name)}") from None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(
            f"{path} is a pickle with the md5 {found}, and the published one has {md5}: it is damaged, or another one, "
            f"which could run anything, and was not opened. {_instead(name)}"
        )
    try:
        table = _Plain(io.BytesIO(content), encoding="latin1").load()  # Python 2 wrote them: text is bytes in there
    except Exception as error:  # whatever its bytes make of our few functions
        raise DataError(f"{path} holds more than arrays, text and numbers ({error}). {_instead(name)}") from None
    if not isinstance(table, dict):
        raise _unexpected(path, "it is no table")
    return table


def _records(table: dict[str, Any], key: str, path: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The pictures (n, SIDE, SIDE, 3) and labels (n,) of a file."""
    pixels, labels = table.get("data"), table.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3 * SIDE * SIDE,):
        raise _unexpected(path, f"its data should be rows of {3 * SIDE * SIDE:,} bytes")
    if not isinstance(labels, list) or {type(label) for label in labels} != {int} or len(labels) != len(pixels):
        raise _unexpected(path, f"its {key} should be a list of {len(pixels):,} whole numbers")
    numbers = np.array(labels, np.int64)
    check_labels(path, numbers, classes)
    return np.ascontiguousarray(pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)), numbers


def _strings(names: Any, path: Path, key: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _unexpected(path, f"its {key} should be a list of names")
    return tuple(names)


def _unexpected(path: Path, why: str) -> DataError:
    return DataError(f"{path} is not what its name says: {why}.")


def _instead(name: str) -> str:
    return f"Move it away, or fetch the set: vitral fetch {name}."
