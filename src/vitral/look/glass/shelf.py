"""The pictures of the glass: a few examples, and those that the page uploads. Each has a number."""

import io
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from vitral.data.preprocess import Preprocess
from vitral.data.sources import Index, open_source
from vitral.errors import DataError, VitralError
from vitral.look.inspected_model import Pixels
from vitral.look.sheets import as_picture
from vitral.run import Run

EXAMPLES = 10
MOST_UPLOADS = 32  # the newest stay; so do all examples


@dataclass(frozen=True)
class ShelfPicture:
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
    """The pictures by number. A page names a number, never a path.

    >>> import numpy as np
    >>> preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    >>> shelf = Shelf(preprocess, [])
    >>> number = shelf.add(ShelfPicture(np.zeros((1, 8, 8), np.uint8), "black").png)
    >>> shelf[number].pixels.shape
    (1, 8, 8)
    """

    def __init__(
        self, preprocess: Preprocess, examples: list[ShelfPicture], new_number: Callable[[], int] | None = None
    ) -> None:
        self._preprocess = preprocess
        self._pictures = dict(enumerate(examples))
        self.examples = len(examples)
        self._new_number = new_number or count(self.examples).__next__
        self._uploads: deque[int] = deque()  # the oldest first
        self._lock = threading.Lock()

    def add(self, content: bytes) -> int:
        """Add a picture from the bytes of a file of any kind that Vitral reads; returns its number."""
        picture = ShelfPicture(self._preprocess.resized(content), "your picture")
        with self._lock:
            number = self._new_number()
            self._pictures[number] = picture
            self._uploads.append(number)
            if len(self._uploads) > MOST_UPLOADS:
                self._pictures.pop(self._uploads.popleft(), None)
        return number

    def __getitem__(self, number: int) -> ShelfPicture:
        try:
            return self._pictures[number]
        except KeyError:
            raise DataError(f"There is no picture {number} any more. Choose one, or drop one in.") from None


def examples(source: str | Path, preprocess: Preprocess, own: bool = True) -> list[ShelfPicture]:
    """The run's own test pictures, where its source is at hand and they may be shown; else digits or scikit-learn's
    photos."""
    for read in (*([_own] if own else []), _digits, _photos):
        try:
            if pictures := read(source, preprocess):
                return pictures
        except (VitralError, OSError):
            continue  # without examples one drops a picture in
    return []


def _own(source: str | Path, preprocess: Preprocess) -> list[ShelfPicture]:
    return _some_of(open_source(Run.load(source).recipe.data), preprocess) if Run.is_run(source) else []


def _digits(source: str | Path, preprocess: Preprocess) -> list[ShelfPicture]:
    from vitral.data.config import Data

    grey = preprocess.channels == 1 and max(preprocess.image_size) <= 64
    return _some_of(open_source(Data(source="digits")), preprocess) if grey else []


def _photos(source: str | Path, preprocess: Preprocess) -> list[ShelfPicture]:
    from sklearn.datasets import load_sample_images

    if preprocess.channels not in (1, 3):
        return []
    names = {"china": "temple", "flower": "flower"}
    photos = load_sample_images()
    stems = [Path(name).stem for name in photos.filenames]
    return [
        ShelfPicture(preprocess.resized(image), names.get(name, name))
        for name, image in zip(stems, photos.images, strict=True)
    ]


def _some_of(index: Index, preprocess: Preprocess) -> list[ShelfPicture]:
    """Some test pictures, of as many classes as possible."""
    pictures = [_picture(index, number, preprocess) for number in index.spread(EXAMPLES)]
    return [picture for picture in pictures if picture]


def _picture(index: Index, number: int, preprocess: Preprocess) -> ShelfPicture | None:
    """A picture of a source; None: it cannot be read."""
    label = index.label_of(number)
    try:
        return ShelfPicture(preprocess.resized(index.storage.read(number)), index.samples[number], label)
    except DataError:
        return None
