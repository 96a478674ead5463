"""First values of attention: mimetic (Trockman and Kolter 2023, 2305.09828) and impulse (Zheng et al. 2025,
2505.19985)."""

import torch
from torch import Tensor

from vitral.model.config import ViTConfig
from vitral.model.vit import ViT

QUERY_KEY, VALUE_OUT = (0.7, 0.7), (0.4, 0.4)  # share of noise and of the identity


def noisy_identity(width: int, noise: float, identity: float) -> Tensor:
    return noise * torch.randn(width, width) / width**0.5 + identity * torch.eye(width)


def halves(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two matrices, (rank, D) each, such that the first, transposed, times the second is nearest to a product."""
    left, sizes, right = torch.linalg.svd(product)
    root = sizes[:rank].sqrt()
    return (left[:, :rank] * root).T, right[:rank] * root[:, None]


class Mimetic(ViT):
    """Each query looks for a key like itself, and what values bring is roughly taken away from the token: so it is in
    ViTs that have learnt from many pictures."""

    config: ViTConfig

    @torch.no_grad()
    def initialise(self) -> None:
        super().initialise()
        width, size = self.config.width, self.config.width // self.config.heads
        for block in self.blocks:
            queries, keys, values = block.attn.qkv.weight.chunk(3)
            for head in range(self.config.heads):
                rows = slice(head * size, (head + 1) * size)
                queries[rows], keys[rows] = halves(noisy_identity(width, *QUERY_KEY), size)
            noise, identity = VALUE_OUT
            value, out = halves(noisy_identity(width, noise, -identity), width)  # x ↦ x value.T out
            values.copy_(value)
            block.attn.proj.weight.copy_(out.T)


class Impulse(ViT):
    """Each head starts by looking at one neighbour of the eight, or at the patch itself, as a filter of a convolution
    would: found from the positions, which must be fixed waves and all that distinguishes the tokens."""

    config: ViTConfig

    @torch.no_grad()
    def initialise(self) -> None:
        super().initialise()
        size, (down, across) = self.config.width // self.config.heads, self.config.grid
        places = self.positions(None, (down, across))[0].float()  # (N, D)
        left, sizes, right = torch.linalg.svd(places - places.mean(dim=0), full_matrices=False)
        left, towards = left[:, :size], right[:size] / sizes[:size, None]  # (N, d), (d, D): places × towards.T = left
        for block in self.blocks:
            queries, keys, _ = block.attn.qkv.weight.chunk(3)
            for head in range(self.config.heads):
                rows = slice(head * size, (head + 1) * size)
                seen = left.T @ shifted(down, across) @ left  # (d, d)
                queries[rows], keys[rows] = seen.T @ towards, towards


def shifted(down: int, across: int) -> Tensor:  # → (N, N)
    """Row i has a 1 where the patch that i looks at is: all look in the same direction, round the edges."""
    numbers = torch.arange(down * across).view(down, across)
    rows, columns = torch.randint(-1, 2, (2,)).tolist()
    return torch.nn.functional.one_hot(numbers.roll((rows, columns), (0, 1)).flatten(), down * across).float()
