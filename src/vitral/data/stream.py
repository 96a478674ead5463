"""Pictures that are decoded as they are asked for: what stands in the place of a pack's pixels, for shards."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitral.data.preprocess import Preprocess
from vitral.data.sources import Index
from vitral.data.sources.shards import expect
from vitral.data.stores import Expected
from vitral.data.threads import cores, one_core_each

STRETCHES = 4  # a batch is decoded in so many a core: one slow picture keeps nobody waiting for long


class Images(Protocol):
    """Pictures after the first stage of the preprocessing: an array of uint8, or something that is asked like one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, C, stored height, stored width)."""

    def __getitem__(self, samples: Any, /) -> NDArray[np.uint8]:
        """Of one sample (C, H, W), of several (n, C, H, W)."""

    def __array__(self) -> NDArray[np.uint8]:
        """All of them."""


class Stream:
    """All pictures of an Index after the first stage of the preprocessing, none of them held."""

    def __init__(self, index: Index, preprocess: Preprocess) -> None:
        self.index, self.preprocess = index, preprocess
        self.shape = (len(index.samples), preprocess.channels, *preprocess.stored_size)

    def __getitem__(self, samples: Any, /) -> NDArray[np.uint8]:
        numbers = np.arange(self.shape[0])[samples] if isinstance(samples, slice) else np.asarray(samples)
        if numbers.ndim == 0:
            return self._decoded(int(numbers))
        pixels = np.empty((len(numbers), *self.shape[1:]), np.uint8)

        def decode(rows: NDArray[np.int64]) -> None:
            for row in rows:
                pixels[row] = self._decoded(int(numbers[row]))

        stretches = np.array_split(np.arange(len(numbers)), max(1, min(len(numbers), STRETCHES * cores())))
        for _ in self._pool.map(decode, stretches):
            pass  # an error is raised here
        return pixels

    def __array__(self) -> NDArray[np.uint8]:
        return self[:]

    def expect(self, samples: NDArray[np.int64]) -> Expected:
        """These will be asked for soon, in this order: what is far is fetched meanwhile, until this is closed."""
        return expect(self.index.storage, samples)

    def _decoded(self, sample: int) -> NDArray[np.uint8]:
        return self.preprocess.stored(self.index.storage.read(sample), self.index.samples[sample])

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return one_core_each()


def expecting(images: Images, samples: NDArray[np.int64]) -> AbstractContextManager[object]:
    """While this is open, what is far of these pictures is fetched; pixels that are here need nothing."""
    return images.expect(samples) if isinstance(images, Stream) else nullcontext()
