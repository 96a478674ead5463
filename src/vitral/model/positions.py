"""Where each token stands: one class for each word that `positions` can be in a config.

A class says what table the model holds, and what is added to the tokens of an image, whatever its size. The table,
`pos_embed`, is a parameter of the model, so that it has timm's name. Two kinds are not added to tokens, and come in at
attention, in every block: relative positions are a bias of it, and rotary ones turn queries and keys.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from vitral.errors import RecipeError
from vitral.model.config import ViTConfig

Grid = tuple[int, int]


class Learned:
    """A row for the class (and distillation) token, then a row for each patch of the grid that the model was made for.

    For another grid the rows of the patches are resampled as if they were a picture with D channels.
    """

    def __init__(self, config: ViTConfig) -> None:
        self.grid = config.grid
        self.placed = config.read_out * config.positions.class_token  # tokens before the patches that have a row
        self.unplaced = config.extra - self.placed  # and those that have none
        self.resample = RESAMPLE[config.positions.resample]
        self.shape: tuple[int, ...] = (1, self.placed + self.grid[0] * self.grid[1], config.width)

    def table(self) -> nn.Parameter | None:
        return nn.Parameter(torch.empty(self.shape))

    def __call__(self, table: Tensor | None, grid: Grid) -> Tensor:  # → (1, T, D)
        assert table is not None
        table = self.at(table, grid)
        # Registers come between the placed tokens and the patches; a token without a place gets nothing added.
        placed, patches = table[:, : self.placed], table[:, self.placed :]
        return torch.cat([placed, pad(patches, (0, 0, self.unplaced, 0))], dim=1)

    def baked(self, state: dict[str, Tensor], grid: Grid) -> dict[str, Tensor]:
        """The state of a model whose table is made for this grid."""
        return state | {"pos_embed": self.at(state["pos_embed"], grid)}

    def at(self, table: Tensor, grid: Grid) -> Tensor:  # → (1, placed + N, D)
        """A row for each placed token and each patch of this grid."""
        # Height and width are compared, not the number of patches: 2×8 is not 4×4.
        if grid == self.grid:
            return table
        plane = table[:, self.placed :].view(1, *self.grid, -1).permute(0, 3, 1, 2)  # (1, D, down, across)
        plane = precisely(self.resample, plane, grid)
        return torch.cat([table[:, : self.placed], plane.flatten(2).transpose(1, 2)], dim=1)


class Learned2D(Learned):
    """Half the width says which row of the grid, the other half which column (the paper's appendix D.4)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.shape = (1, 2 * self.placed + sum(self.grid), config.width // 2)

    def at(self, table: Tensor, grid: Grid) -> Tensor:
        # The table holds, in halves of the width: the placed tokens, the rows, the columns.
        first, rows, columns = self._halves(table, grid).split([2 * self.placed, *grid], dim=1)
        rows, columns = (axis.expand(1, *grid, -1) for axis in (rows[:, :, None], columns[:, None]))
        patches = torch.cat([rows, columns], dim=-1).flatten(1, 2)  # (1, N, D)
        return torch.cat([first.reshape(1, self.placed, patches.shape[2]), patches], dim=1)

    def baked(self, state: dict[str, Tensor], grid: Grid) -> dict[str, Tensor]:
        return state | {"pos_embed": self._halves(state["pos_embed"], grid)}

    def _halves(self, table: Tensor, grid: Grid) -> Tensor:  # (1, 2 · placed + down + across, D/2), for this grid
        first, *axes = table.split([2 * self.placed, *self.grid], dim=1)
        return torch.cat([first, *(self._axis(axis, n) for axis, n in zip(axes, grid, strict=True))], dim=1)

    def _axis(self, axis: Tensor, length: int) -> Tensor:  # (1, n, D/2) → (1, length, D/2)
        if axis.shape[1] == length:
            return axis
        return precisely(self.resample, axis.transpose(1, 2)[..., None], (length, 1))[..., 0].transpose(1, 2)


class FixedTable:
    """Waves of many lengths: nothing to learn, a value for every grid. With `none`, `relative` and `rotary` nothing is
    added."""

    def __init__(self, config: ViTConfig) -> None:
        self.width, self.extra = config.width, config.extra
        self.placed = config.read_out * config.positions.class_token
        self.waves = WAVES[config.positions.kind]

    def table(self) -> nn.Parameter | None:
        return None

    def baked(self, state: dict[str, Tensor], grid: Grid) -> dict[str, Tensor]:
        patches = grid[0] * grid[1]
        keys = {name: keys for name, keys in state.items() if name.endswith("position_bias.keys")}
        return state | {name: keys_for(key, patches) for name, key in keys.items()}

    def __call__(self, table: Tensor | None, grid: Grid) -> Tensor:  # → (1, T, D)
        rows = self.waves(grid, self.width, self.placed)  # (placed + N, D)
        placed, patches = rows[: self.placed], rows[self.placed :]
        return torch.cat([placed, pad(patches, (0, 0, self.extra - self.placed, 0))])[None]


def sincos_1d(grid: Grid, width: int, placed: int) -> Tensor:  # → (placed + N, D)
    """Vaswani et al. 2017: sine and cosine in turn, of the token's number in reading order."""
    angles = _angles(torch.arange(placed + grid[0] * grid[1]), width // 2)  # (n, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def sincos_2d(grid: Grid, width: int, placed: int) -> Tensor:  # → (placed + N, D)
    """MAE's order: half the width for the column, half for the row; each all sines, then all cosines. Class: zeros."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    angles = [_angles(axis.flatten(), width // 4) for axis in (columns, rows)]  # each (N, D/4)
    table = torch.cat([half for angle in angles for half in (angle.sin(), angle.cos())], dim=1)
    return pad(table, (0, 0, placed, 0))


def _angles(places: Tensor, waves: int) -> Tensor:  # (n,) → (n, waves)
    # In float64: float32 is off by 1e-6 for far places already.
    lengths = 10_000.0 ** (torch.arange(waves, dtype=torch.float64) / waves)
    return places[:, None] / lengths


def nothing(grid: Grid, width: int, placed: int) -> Tensor:
    return torch.zeros(placed + grid[0] * grid[1], width)


WAVES: dict[str, Callable[[Grid, int, int], Tensor]] = {
    "sincos-1d": sincos_1d,
    "sincos-2d": sincos_2d,
    "none": nothing,
    "relative": nothing,
    "rotary": nothing,
}


class NoBias(nn.Module):
    """Attention by content alone."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()

    def forward(self, q: Tensor) -> Tensor | None:
        return None


class RelativeBias(nn.Module):
    """Each distance in reading order has a learned key, and queries are compared with these too (appendix D.4).

    The class token and registers stand nowhere: they get, and give, no bias.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.extra = config.extra
        patches = config.grid[0] * config.grid[1]
        self.keys = nn.Parameter(torch.empty(2 * patches - 1, config.width // config.heads))

    def forward(self, q: Tensor) -> Tensor | None:  # (B, heads, T, D/heads) → (B, heads, T, T)
        N = q.shape[2] - self.extra
        places = torch.arange(N, device=q.device)
        distances = places[:, None] - places[None, :] + N - 1  # (N, N), from 0
        scores = q[:, :, self.extra :] @ keys_for(self.keys, N).T / q.shape[-1] ** 0.5  # (B, heads, N, 2N − 1)
        bias = scores.gather(3, distances.expand(*scores.shape[:2], N, N))
        return pad(bias, (self.extra, 0, self.extra, 0))


def keys_for(keys: Tensor, patches: int) -> Tensor:  # (2n − 1, D/heads) → (2N − 1, D/heads)
    """Keys for the distances among another number of patches."""
    if len(keys) == 2 * patches - 1:
        return keys
    resampled = precisely(partial(interpolate, mode="linear", align_corners=True), keys.T[None], (2 * patches - 1,))
    return resampled[0].T.contiguous()


Rotation = Tensor | None  # cosines and sines for each token, (2, 1 or B, 1, T, D/heads); None: nothing is turned


def no_rotation(config: ViTConfig, grid: Grid, device: torch.device, keep: Tensor | None = None) -> None:
    return None


def rotation(  # → (2, 1 or B, 1, T, D/heads)
    config: ViTConfig, grid: Grid, device: torch.device, keep: Tensor | None = None
) -> Tensor:
    """By how much each token is turned: a pair of numbers of a head is a point in a plane, and is turned by an angle.

    The angle is the place of the patch times the frequency of the pair, so that the product of a query and a key knows
    how far apart they are (Su et al. 2021). Half the pairs are turned by the row, half by the column. A place is the
    centre of a patch, between −1 and 1 in any image: there is nothing to resample. Tokens that are no patches stay as
    they are, turned by 0 (DINOv3).
    """
    waves = config.width // config.heads // 4
    # In float64, as all fixed waves here; turning itself is done in float32.
    frequencies = 2 * torch.pi / config.positions.base ** (torch.arange(waves, dtype=torch.float64) / waves)
    centres = [2 * (torch.arange(n, dtype=torch.float64) + 0.5) / n - 1 for n in grid]
    places = torch.cartesian_prod(*centres)  # (N, 2): row and column
    angles = (places[:, :, None] * frequencies).flatten(1).repeat(1, 2)  # (N, D/heads): both numbers of a pair alike
    angles = pad(angles, (0, 0, config.extra, 0))  # (T, D/heads)
    table = torch.stack([angles.cos(), angles.sin()]).float().to(device)  # (2, T, D/heads)
    if keep is None:
        return table[:, None, None]
    extra = torch.arange(config.extra, device=device).expand(len(keep), -1)
    rows = torch.cat([extra, config.extra + keep], dim=1)  # (B, extra + K)
    return table[:, rows[:, None]]


def unrotated(x: Tensor, rotation: Rotation) -> Tensor:
    return x


def rotated(x: Tensor, rotation: Rotation) -> Tensor:  # (B, heads, T, D/heads), (2, 1 or B, 1, T, D/heads) → as x
    """Queries or keys, turned. The pairs are number i of the first half of a head and number i of the second."""
    if rotation is None:
        raise RecipeError("This model turns queries and keys by place: give its blocks model.rotation(images) too.")
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotation
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def at_distances(table: Tensor, window: Grid, other: Grid) -> Tensor:  # ((2h − 1)(2w − 1), heads) → as for `other`
    """A table with a row for each distance in a window, (h, w), for another window, as timm brings it there.

    Near distances matter most: the rows are laid out ever wider apart, by a factor q, so that the outermost keep their
    place at the edge, and are read at whole distances. Where the other window is the smaller one q stays at 1.01.
    """
    if window == other:
        return table
    down, across = (_weights(own, new, table) for own, new in zip(window, other, strict=True))
    plane = table.unflatten(0, (2 * window[0] - 1, 2 * window[1] - 1))  # (down, across, heads)
    return torch.einsum("di,ej,ijk->dek", down, across, plane).flatten(0, 1)


def _weights(window: int, other: int, like: Tensor) -> Tensor:  # → (2 other − 1, 2 window − 1)
    """How much of each row at the old distances is in each at the new ones."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if sum(q**n for n in range(window - 1)) > other - 1 else (q, high)
    far = [sum(low**n for n in range(steps)) for steps in range(window)]  # 0, 1, 1 + q, 1 + q + q², …
    places = torch.tensor([-one for one in far[:0:-1]] + far, dtype=torch.float64)
    wanted = torch.arange(1.0 - other, other, dtype=torch.float64).clamp(places[0], places[-1])
    right = torch.searchsorted(places, wanted).clamp(1, max(1, len(places) - 1))
    weights = torch.zeros(len(wanted), len(places), dtype=torch.float64)
    if len(places) == 1:
        return torch.ones_like(weights).to(like)
    share = (wanted - places[right - 1]) / (places[right] - places[right - 1])
    weights.scatter_(1, right[:, None], share[:, None])
    weights.scatter_(1, right[:, None] - 1, 1 - share[:, None])
    return weights.to(like)


def precisely(resample: Callable[..., Tensor], plane: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resample in at least float32: the weights of a bicubic filter are too fine for half precision."""
    return resample(plane.to(torch.promote_types(plane.dtype, torch.float32)), size).to(plane.dtype)


def antialiased(plane: Tensor, grid: Grid) -> Tensor:
    """Bicubic with antialiasing, to the exact grid: timm, DINOv2 with registers."""
    return interpolate(plane, grid, mode="bicubic", antialias=True)


def bicubic(plane: Tensor, grid: Grid) -> Tensor:
    """Bicubic without antialiasing, to the exact grid: transformers, MAE, DeiT."""
    return interpolate(plane, grid, mode="bicubic")


def dino(plane: Tensor, grid: Grid) -> Tensor:
    """Bicubic by a factor that is 0.1 patches too large, so that rounding never loses a row: DINO, DINOv2 without
    registers. The factor itself decides where samples lie, so every number differs from `bicubic`."""
    factors = tuple((new + 0.1) / old for new, old in zip(grid, plane.shape[2:], strict=True))
    return interpolate(plane, scale_factor=factors, mode="bicubic")


def corners(plane: Tensor, grid: Grid) -> Tensor:
    """Bicubic with the corners kept in place: torchvision."""
    return interpolate(plane, grid, mode="bicubic", align_corners=True)


RESAMPLE = {"antialiased": antialiased, "bicubic": bicubic, "dino": dino, "corners": corners}

POSITIONS: dict[str, type[Learned] | type[FixedTable]] = {
    "learned": Learned,
    "learned-2d": Learned2D,
    "relative": FixedTable,
    "sincos-1d": FixedTable,
    "sincos-2d": FixedTable,
    "rotary": FixedTable,
    "none": FixedTable,
}
BIASES: dict[str, type[NoBias] | type[RelativeBias]] = {kind: NoBias for kind in POSITIONS} | {"relative": RelativeBias}
ROTATIONS: dict[str, Callable[..., Rotation]] = {kind: no_rotation for kind in POSITIONS} | {"rotary": rotation}
TURNS: dict[str, Callable[..., Tensor]] = {kind: unrotated for kind in POSITIONS} | {"rotary": rotated}
