"""Where each token stands: one word, one class.

A class says how many rows the model's table `pos_embed` has, and what the table means for a grid of patches.
The table itself belongs to the model, under timm's name.
"""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vitral.model.config import ViTConfig


class Learned:
    """A row for the class token, then a row for each patch of the grid that the model was made for."""

    def __init__(self, config: ViTConfig) -> None:
        self.grid = config.grid
        self.rows = 1 + self.grid[0] * self.grid[1]

    def __call__(self, table: Tensor, grid: tuple[int, int]) -> Tensor:  # (1, 1 + N, D) → (1, 1 + N', D)
        # Height and width are compared, not the number of patches: 2×8 is not 4×4.
        if grid == self.grid:
            return table
        class_row, patch_rows = table[:, :1], table[:, 1:]
        square = patch_rows.view(1, *self.grid, -1).permute(0, 3, 1, 2)  # (1, D, down, across)
        # To the exact grid: a scale factor would be rounded, and at some sizes give one patch too few.
        # In at least float32: the weights of a bicubic filter are too fine for half precision.
        square = square.to(torch.promote_types(table.dtype, torch.float32))
        square = interpolate(square, grid, mode="bicubic", antialias=True).to(table.dtype)
        return torch.cat([class_row, square.flatten(2).transpose(1, 2)], dim=1)


POSITIONS = {"learned": Learned}
