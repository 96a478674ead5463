"""Where each token stands: one class for each word that `positions` can be in a config.

The table itself, `pos_embed`, is a parameter of the model, so that it has timm's name. A class here says how many rows
it has, and which row belongs to which token of an image, whatever its size.
"""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vitral.model.config import ViTConfig


class Learned:
    """A row for the class token, then a row for each patch of the grid that the model was made for.

    For another grid the rows of the patches are resampled as if they were a picture with D channels.
    """

    def __init__(self, config: ViTConfig) -> None:
        self.grid = config.grid
        self.rows = 1 + self.grid[0] * self.grid[1]

    def __call__(self, table: Tensor, grid: tuple[int, int]) -> Tensor:  # → (1, T, D)
        # Height and width are compared, not the number of patches: 2×8 is not 4×4.
        if grid == self.grid:
            return table
        class_row, patch_rows = table[:, :1], table[:, 1:]
        plane = patch_rows.view(1, *self.grid, -1).permute(0, 3, 1, 2)  # (1, D, down, across)
        # To the exact grid: a scale factor would be rounded, and at some sizes give one patch too few.
        # In at least float32: the weights of a bicubic filter are too fine for half precision.
        plane = plane.to(torch.promote_types(table.dtype, torch.float32))
        plane = interpolate(plane, grid, mode="bicubic", antialias=True).to(table.dtype)
        return torch.cat([class_row, plane.flatten(2).transpose(1, 2)], dim=1)


POSITIONS = {"learned": Learned}
