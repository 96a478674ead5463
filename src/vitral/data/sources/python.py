"""Pictures that a Python program hands over: any torch Dataset, or whatever has a length and gives (picture, label)."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.config import Data
from vitral.data.decode import decode
from vitral.data.sources import SPLITS, Index, digest_of, index_of
from vitral.data.sources.annotations import (
    Column,
    Kind,
    Labelling,
    asked_columns,
    labels_of,
    number_of,
    together,
)
from vitral.errors import DataError, RecipeError
from vitral.targets import Target

PYTHON = "python:"  # how recipe.toml begins the name of such a source


class Pictures(Protocol):
    """Each item is (picture, label). A picture is a path, a Pillow picture, an array of uint8, (H, W) or (H, W,
    channels), or a tensor (channels, H, W) of uint8 or of 0 to 1. A label is a whole number or a word; with `classes`,
    a list of names, a number is a place in it. A list, tuple or set is several labels, a float is a number, and a dict
    has several of these, by name."""

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
    learnt = _learnt(labels, getattr(next(iter(sets.values())), "classes", None), name, data.target)
    targets, numbers = together(learnt)
    notes = [note for part in learnt for note in part.notes]
    digits = len(str(len(places)))
    samples = [f"{split}/{number:0{digits}}" if split else f"{number:0{digits}}" for split, number in places]
    splits = [split for split, _ in places]
    described = data.model_copy(update={"source": name})
    return index_of(described, storage, samples, targets, numbers, splits, notes=notes)


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


def _learnt(labels: list[Any], names: Any, source: str, target: str) -> list[Labelling]:
    """What is to be learnt: labels as they are, or those of `data.target` where each picture has a dict of them."""
    if not any(isinstance(label, Mapping) for label in labels):
        if target not in ("auto", "class", "labels"):
            raise RecipeError(
                f"data.target is {target}, and {source} gives one label for each picture. Give a dict of them, such as "
                f'{{"{target}": …}}, or leave data.target at auto.'
            )
        kind: Kind = "auto" if target == "auto" else cast(Kind, target)
        return [_labelling("label", labels, names, source, kind)]
    keys = list(labels[0]) if isinstance(labels[0], Mapping) else []
    for number, label in enumerate(labels):
        if not isinstance(label, Mapping) or set(label) != set(keys) or not keys:
            raise DataError(f"Picture {number} of {source} does not have the tasks {', '.join(map(str, keys))}.")
    kinds: dict[str, Kind] = dict.fromkeys(map(str, keys), "auto")
    if target != "auto":
        kinds = asked_columns(target, list(kinds), source)
    return [
        _labelling(key, [_number_of_bool(label[key]) for label in labels], None, source, kind)
        for key, kind in kinds.items()
    ]


def _labelling(name: str, labels: list[Any], names: Any, source: str, kind: Kind) -> Labelling:
    """A list, tuple or set is several labels, a number with a point a number, a word or a whole number a class."""

    def where(number: int) -> str:
        return f"Picture {number} of {source}"

    plain = [
        label.item() if isinstance(label, Tensor | np.ndarray | np.generic) and not np.ndim(label) else label
        for label in labels
    ]
    if kind == "labels" or (kind == "auto" and any(_is_several(label) for label in plain)):
        known = _names_of_places(plain) if names is None else [str(one) for one in names]
        cells = [_names_of(label, known, where(number)) for number, label in enumerate(plain)]
        return labels_of(Column(name, cells, where), known or ())
    if kind == "number" or (kind == "auto" and any(isinstance(label, float) for label in plain)):
        return number_of(Column(name, plain, where))
    numbers, class_names = _classes(plain, names, source)
    return Labelling(Target(name=name, names=tuple(class_names)), numbers)


def _number_of_bool(label: Any) -> Any:
    return int(label) if isinstance(label, bool | np.bool_) else label


def _is_several(label: Any) -> bool:
    return isinstance(label, list | tuple | set | frozenset | np.ndarray | Tensor)


def _names_of_places(labels: list[Any]) -> list[str] | None:
    """Names for labels of which each picture has an array of 0 and 1, as long as the others: their places in it."""
    rows = [label for label in labels if isinstance(label, np.ndarray | Tensor) and len(label.shape) == 1]
    if len(rows) < len(labels) or len({len(row) for row in rows}) > 1:
        return None
    return None if any(bool(((row != 0) & (row != 1)).any()) for row in rows) else list(map(str, range(len(rows[0]))))


def _names_of(label: Any, names: list[str] | None, where: str) -> list[str]:
    """The labels of a picture: words, places in `names`, or, in an array, 0 and 1 for each of them."""
    if isinstance(label, np.ndarray | Tensor) and names is not None and tuple(label.shape) == (len(names),):
        return [name for name, has in zip(names, label.tolist(), strict=True) if has]
    several = list(label) if _is_several(label) else [label]
    plain = [one.item() if isinstance(one, Tensor | np.generic) else one for one in several]
    if any(plain.count(one) > 1 for one in (0, 1)):
        raise DataError(
            f"{where} has the labels {plain}, one of them twice. If these are 0 and 1 for each label, give an array or "
            "a tensor of them; else each label once."
        )
    return [
        names[one] if names is not None and isinstance(one, int) and 0 <= one < len(names) else str(one)
        for one in plain
    ]


def _classes(plain: list[Any], names: Any, source: str) -> tuple[NDArray[np.int64], list[str]]:
    """(samples,) numbers, and the names of the classes."""
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
