"""A model, step by step: what goes in, what comes out, how many parameters and floating-point operations."""

from collections.abc import Iterator
from dataclasses import dataclass

from vitral.model.config import ViTConfig

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeRow:
    """One step for one image. Operations are those of matrix products, a multiply and an add each, as torch counts."""

    name: str
    what: str
    takes: Shape
    gives: Shape
    parameters: int
    flops: int
    times: int = 1  # how often the step is there: once a block


def shapes(config: ViTConfig) -> list[ShapeRow]:
    """Every step of the model, in order.

    >>> sum(row.parameters * row.times for row in shapes(ViTConfig()))
    86567656
    """
    return list(_steps(config))


def _steps(config: ViTConfig) -> Iterator[ShapeRow]:
    (height, width), (down, across) = config.height_width, config.grid
    P, C, D, M = config.patch_size, config.channels, config.width, config.mlp_size
    heads, N = config.heads, down * across
    T, L = N + 1, config.depth
    pixels = P * P * C
    yield ShapeRow(
        "patch_embed",
        "cut into patches, each times E",
        (C, height, width),
        (N, D),
        _linear(pixels, D),
        2 * N * pixels * D,
    )
    yield ShapeRow("cls_token", "the class token in front", (N, D), (T, D), D, 0)
    yield ShapeRow("pos_embed", "a position added to each token", (T, D), (T, D), T * D, 0)
    yield ShapeRow("norm1", "LayerNorm", (T, D), (T, D), 2 * D, 0, L)
    each = (3, heads, T, D // heads)
    yield ShapeRow("attn.qkv", "queries, keys, values", (T, D), each, _linear(D, 3 * D), 2 * T * D * 3 * D, L)
    yield ShapeRow("attn", "softmax(q kᵀ / √d) v", each, (heads, T, D // heads), 0, 4 * T * T * D, L)
    yield ShapeRow("attn.proj", "heads mixed; added to the tokens", (T, D), (T, D), _linear(D, D), 2 * T * D * D, L)
    yield ShapeRow("norm2", "LayerNorm", (T, D), (T, D), 2 * D, 0, L)
    yield ShapeRow("mlp.fc1", "up, then GELU", (T, D), (T, M), _linear(D, M), 2 * T * D * M, L)
    yield ShapeRow("mlp.fc2", "down; added to the tokens", (T, M), (T, D), _linear(M, D), 2 * T * M * D, L)
    yield ShapeRow("norm", "LayerNorm", (T, D), (T, D), 2 * D, 0)
    yield ShapeRow("pool", "the class token alone", (T, D), (D,), 0, 0)
    yield ShapeRow(
        "head", "a logit a class", (D,), (config.classes,), _linear(D, config.classes), 2 * D * config.classes
    )


def _linear(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with bias."""
    return inputs * outputs + outputs
