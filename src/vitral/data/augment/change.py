"""What is done to which pictures of a batch, and how strongly: drawn for all of them at once, done piece by piece."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Chosen pictures of more numbers are changed one by one: that needs no copy.
LARGE = 2**15


@dataclass(frozen=True)
class Change:
    operation: Callable[..., object]  # on pictures (B, C, H, W), in place; takes as many (B,) as `strength` has
    mask: NDArray[np.bool_]  # (B,) of the batch
    strength: tuple[NDArray[Any], ...] = ()  # each (B,) of the batch

    def __call__(self, images: Tensor, rows: slice) -> None:
        """Change these rows of the batch, in place."""
        some = np.flatnonzero(self.mask[rows])
        strength = [one[rows][some] for one in self.strength]
        if len(some) == len(images):
            self.operation(images, *strength)
        elif images[:1].numel() > LARGE:
            for k, row in enumerate(some):
                self.operation(images[row : row + 1], *(one[k : k + 1] for one in strength))
        elif len(some):
            index = torch.from_numpy(some)
            part = images[index]
            self.operation(part, *strength)
            images[index] = part
