"""Images cut into patches and put together again: for readers, figures and tests. The model does it by convolution."""

import torch
from torch import Tensor

from vitral.errors import DataError, RecipeError
from vitral.model.config import ViTConfig


def patchify(images: Tensor, patch_size: int) -> Tensor:  # (B, C, H, W) → (B, N, P·P·C)
    """Cut images into patches, in reading order, each flattened by row, column, channel.

    >>> import torch
    >>> patchify(torch.zeros(2, 3, 32, 48), patch_size=16).shape
    torch.Size([2, 6, 768])
    """
    B, C, H, W = images.shape
    P = patch_size
    _whole_patches(H, W, P)
    grid = images.reshape(B, C, H // P, P, W // P, P)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(B, (H // P) * (W // P), P * P * C)


def unpatchify(patches: Tensor, patch_size: int, height: int, width: int) -> Tensor:  # (B, N, P·P·C) → (B, C, H, W)
    """Put patches together again: what `patchify` cut, to the bit.

    >>> import torch
    >>> images = torch.rand(2, 3, 32, 48)
    >>> bool((unpatchify(patchify(images, 16), 16, 32, 48) == images).all())
    True
    """
    B, N, values = patches.shape
    P = patch_size
    _whole_patches(height, width, P)
    if N != (height // P) * (width // P) or values % (P * P):
        raise DataError(
            f"{N} patches of {values} values do not make images of {height}×{width} with patches of {P}: that takes "
            f"{(height // P) * (width // P)} patches, each of {P}·{P} values a channel."
        )
    grid = patches.reshape(B, height // P, width // P, P, P, values // (P * P))
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(B, -1, height, width)


def select_patches(tokens: Tensor, keep: Tensor, config: ViTConfig) -> Tensor:  # (B, T, D), (B, K) → (B, extra + K, D)
    """The extra tokens, and of the patches those whose numbers are in `keep`."""
    if config.positions.kind == "relative":
        raise RecipeError("With model.positions relative no patch can be left out: distances are counted in patches.")
    if keep.ndim != 2 or len(keep) != len(tokens) or keep.dtype != torch.int64:
        raise DataError(
            f"keep is {keep.dtype} {tuple(keep.shape)}: for each of {len(tokens)} images it takes patch numbers."
        )
    extra, patches = tokens[:, : config.extra], tokens[:, config.extra :]
    return torch.cat([extra, patches.gather(1, keep[:, :, None].expand(-1, -1, tokens.shape[-1]))], dim=1)


def _whole_patches(height: int, width: int, patch_size: int) -> None:
    if patch_size < 1 or height % patch_size or width % patch_size:
        raise DataError(f"Patches of {patch_size} do not divide {height}×{width} pixels.")
