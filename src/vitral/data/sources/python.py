"""Pictures that a Python program hands over: any torch Dataset, or whatever has a length and gives (picture, label)."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.config import Data
from vitral.data.decode import decode
from vitral.data.sources import SPLITS, Index, digest_of, index_of
from vitral.errors import DataError

PYTHON = "python:"  # how recipe.toml begins the name of such a source


class Pictures(Protocol):
    """Each item is (picture, label). A picture is a path, a Pillow picture, an array of uint8, (H, W) or (H, W,
    channels), or a tensor (channels, H, W) of uint8 or of 0 to 1. A label is a number or a word; with `classes`, a list
    of names, a number is a place in it."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


PythonSource = Pictures | Mapping[str, Pictures]  # all of them, or {"train": …, "validation": …, "test": …}


def open_python(pictures: PythonSource, data: Data) -> Index:
    """Each picture is looked at once here, for its label and its identity.

    >>> blank = np.zeros((4, 4), np.uint8)
    >>> index = open_python([(blank, "cat"), (blank + 9, "dog")] * 5, Data())
    >>> index.source, index.class_names
    ('python:list', ('cat', 'dog'))
    """
    sets = dict(pictures) if isinstance(pictures, Mapping) else {"": pictures}
    if strange := sets.keys() - {"", *SPLITS}:
        raise DataError(f"There is no split {sorted(strange)[0]}: the pictures are for {', '.join(SPLITS)}.")
    name = f"{PYTHON}{type(next(iter(sets.values()))).__name__}"
    places = [(split, number) for split, pictures in sets.items() for number in range(len(pictures))]
    if not places:
        raise DataError(f"{name} has no pictures.")
    storage, labels, digests = PythonStorage(sets, places, name), [], []
    for place in range(len(places)):
        picture, label = storage.item(place)
        labels.append(label)
        digests.append(digest_of(picture).hex())
    storage.digests = digests
    if len({tuple(getattr(one, "classes", None) or ()) for one in sets.values()}) > 1:
        raise DataError(f"The splits of {name} do not name the same classes in the same order.")
    for place in range(min(3, len(places))):
        if digest_of(storage.read(place)).hex() != digests[place]:
            raise DataError(
                f"{name} gives another picture each time it is asked: leave what is random to data.augment."
            )
    numbers, class_names = _classes(labels, getattr(next(iter(sets.values())), "classes", None), name)
    digits = len(str(len(places)))
    samples = [f"{split}/{number:0{digits}}" if split else f"{number:0{digits}}" for split, number in places]
    splits = [split for split, _ in places]
    described = data.model_copy(update={"source": name})
    return index_of(described, storage, samples, class_names, numbers, splits)


class PythonStorage:
    """Pictures of a Python program, read one at a time: a user's own class need not know of threads."""

    def __init__(self, sets: Mapping[str, Pictures], places: Sequence[tuple[str, int]], name: str) -> None:
        self.sets, self.places, self.name, self.lock = sets, places, name, threading.Lock()
        self.digests: list[str] = []

    def item(self, place: int) -> tuple[NDArray[np.uint8], Any]:
        """A picture as pixels, and its label."""
        split, number = self.places[place]
        try:
            with self.lock:
                picture, label = self.sets[split][number]
        except Exception as error:  # of code that is not ours
            words = f"{type(error).__name__}: {error}"
            raise DataError(f"{self.name} does not give picture {number} and its label ({words}).") from error
        return _pixels(picture, f"Picture {number} of {self.name}"), label

    def read(self, number: int) -> NDArray[np.uint8]:
        return self.item(number)[0]

    def stamp(self, number: int) -> str:
        return self.digests[number]


def _pixels(picture: Any, name: str) -> NDArray[np.uint8]:  # → (H, W) or (H, W, channels)
    if isinstance(picture, Tensor):
        if picture.ndim != 3:
            raise DataError(f"{name} is a tensor of shape {tuple(picture.shape)}: (channels, height, width) is read.")
        if picture.is_floating_point():
            if picture.min() < 0 or picture.max() > 1:
                raise DataError(f"{name} is a tensor with numbers outside 0 to 1: leave normalising to the recipe.")
            picture = (picture * 255).round().byte()
        picture = picture.permute(1, 2, 0).contiguous().numpy()
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8:
        return picture[:, :, 0] if picture.ndim == 3 and picture.shape[2] == 1 else picture
    return np.asarray(decode(picture, name=name))


def _classes(labels: list[Any], names: Any, source: str) -> tuple[NDArray[np.int64], list[str]]:
    """(samples,) numbers, and the names of the classes."""
    plain = [label.item() if isinstance(label, Tensor | np.generic) else label for label in labels]
    if all(isinstance(label, int) and not isinstance(label, bool) for label in plain):
        if names is not None:
            if min(plain) < 0 or max(plain) >= len(names):
                raise DataError(f"{source} has the label {max(plain)}, and names {len(names)} classes, from 0.")
            return np.array(plain, np.int64), [str(name) for name in names]
        known = sorted(set(plain))
    elif all(isinstance(label, str) for label in plain):
        known = sorted(set(plain))
    else:
        kinds = ", ".join(sorted({type(label).__name__ for label in plain}))
        raise DataError(f"The labels of {source} should all be whole numbers, or all words; they are {kinds}.")
    place = {label: number for number, label in enumerate(known)}
    return np.array([place[label] for label in plain], np.int64), [str(label) for label in known]
