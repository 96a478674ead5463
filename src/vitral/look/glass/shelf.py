"""The pictures that can be put under the glass: a few examples, and what the page hands over. Each has a number."""

import io
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitral.data.preprocess import Preprocess
from vitral.data.sources import Index, open_source
from vitral.errors import DataError, VitralError
from vitral.look.inspected_model import Pixels
from vitral.look.sheets import as_picture
from vitral.run import Run

EXAMPLES = 10
KEPT = 32  # pictures of a page, the newest; examples stay


@dataclass(frozen=True)
class Shown:
    """A picture as the model sees it."""

    pixels: Pixels
    name: str
    label: str | None = None  # what it shows, where that is known

    @property
    def png(self) -> bytes:
        file = io.BytesIO()
        as_picture(self.pixels).save(file, format="PNG")
        return file.getvalue()


class Shelf:
    """Pictures by number. A page names a number, never a path.

    >>> seen = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    >>> shelf = Shelf(seen, [])
    >>> number = shelf.add(Shown(np.zeros((1, 8, 8), np.uint8), "black").png)
    >>> shelf[number].pixels.shape
    (1, 8, 8)
    """

    def __init__(self, preprocess: Preprocess, examples: list[Shown]) -> None:
        self._preprocess = preprocess
        self._pictures = dict(enumerate(examples))
        self._next = self.examples = len(examples)
        self._turn = threading.Lock()

    def add(self, content: bytes) -> int:
        """The bytes of a file of any kind that Vitral reads; returns its number."""
        shown = Shown(self._preprocess.resized(content), "your picture")
        with self._turn:
            number = self._next
            self._next += 1
            self._pictures[number] = shown
            self._pictures.pop(number - KEPT if number - KEPT >= self.examples else -1, None)
        return number

    def __getitem__(self, number: int) -> Shown:
        try:
            return self._pictures[number]
        except KeyError:
            raise DataError(f"There is no picture {number} any more. Choose one, or drop one in.") from None


def examples(source: str | Path, preprocess: Preprocess) -> list[Shown]:
    """The run's own test pictures, where its source is at hand; else digits or scikit-learn's photos."""
    for found in (_own, _digits, _photos):
        try:
            if shown := found(source, preprocess):
                return shown
        except (VitralError, OSError):
            continue  # examples are a kindness: without them one drops a picture in
    return []


def _own(source: str | Path, preprocess: Preprocess) -> list[Shown]:
    return _some_of(open_source(Run.load(source).recipe.data), preprocess) if Run.is_run(source) else []


def _digits(source: str | Path, preprocess: Preprocess) -> list[Shown]:
    from vitral.data.config import Data

    grey = preprocess.channels == 1 and max(preprocess.image_size) <= 64
    return _some_of(open_source(Data(source="digits")), preprocess) if grey else []


def _photos(source: str | Path, preprocess: Preprocess) -> list[Shown]:
    from sklearn.datasets import load_sample_images

    if preprocess.channels not in (1, 3):
        return []
    names = {"china": "temple", "flower": "flower"}
    found = load_sample_images()
    paths = [Path(name).stem for name in found.filenames]
    return [
        Shown(preprocess.resized(image), names.get(name, name)) for name, image in zip(paths, found.images, strict=True)
    ]


def _some_of(index: Index, preprocess: Preprocess) -> list[Shown]:
    """Test pictures (validation, training, where there are none), of as many classes as possible."""
    numbers = next((index.of(split) for split in ("test", "validation", "train") if len(index.of(split))), None)
    if numbers is None:
        return []
    _, first = np.unique(index.labels[numbers], return_index=True)
    rest = np.setdiff1d(np.arange(len(numbers)), first)
    spread = first[np.unique(np.linspace(0, len(first) - 1, min(EXAMPLES, len(first))).astype(int))]
    chosen = [*spread, *rest[: EXAMPLES - len(spread)]]
    return [shown for place in chosen if (shown := _shown(index, int(numbers[place]), preprocess))]


def _shown(index: Index, number: int, preprocess: Preprocess) -> Shown | None:
    label = index.class_names[index.labels[number]]
    try:
        return Shown(preprocess.resized(index.storage.read(number)), index.samples[number], label)
    except DataError:
        return None
