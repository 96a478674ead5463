"""A model, step by step: what goes in, what comes out, how many parameters and floating-point operations."""

from collections.abc import Iterator
from dataclasses import dataclass

from vitral.model.config import ViTConfig

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeRow:
    """One step for one image. Operations are those of matrix products, a multiply and an add each, as torch counts.

    They are those of all tokens, as papers count; `ViT.forward` spares what no classifier looks at in the last block.
    """

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
    """Parts that a model has not got are left out."""
    D, heads, N = config.width, config.heads, config.grid[0] * config.grid[1]
    T, L = N + config.extra, config.depth
    tokens, each = (T, D), (heads, T, D // heads)
    yield from _stem(config, N)
    there = N
    for name, count in config.extra_tokens.items():
        what = {"cls_token": "the class token", "dist_token": "the distillation token", "reg_token": "registers"}[name]
        yield ShapeRow(name, f"{what}, before the patches", (there, D), (there + count, D), count * D, 0)
        there += count
    if config.positions.kind not in ("none", "relative"):
        table = _position_parameters(config, N)
        yield ShapeRow("pos_embed", f"positions: {config.positions.kind}", tokens, tokens, table, 0)
    if config.blocks.first_norm:
        yield _norm("norm_pre", tokens)
    yield _norm("norm1", tokens, L)
    qkv = _linear(D, 3 * D, config.attention.bias)
    yield ShapeRow("attn.qkv", "queries, keys, values", tokens, (3, *each), qkv, 2 * T * D * 3 * D, L)
    if config.attention.qk_norm:
        yield ShapeRow("attn.q_norm, k_norm", "LayerNorm a head", (2, *each), (2, *each), 4 * (D // heads), 0, L)
    if config.positions.kind == "relative":
        keys, distances = (2 * N - 1) * (D // heads), 2 * N - 1
        yield ShapeRow("attn.bias", "queries with distances", each, (heads, T, T), keys, 2 * N * distances * D, L)
    yield ShapeRow("attn", "softmax(q kᵀ / √d) v", (3, *each), each, 0, 4 * T * T * D, L)
    yield ShapeRow("attn.proj", "heads mixed; added to the tokens", tokens, tokens, _linear(D, D), 2 * T * D * D, L)
    yield from _scale("ls1", config, tokens)
    yield _norm("norm2", tokens, L)
    M = config.mlp_size
    first = 2 * M if config.mlp.kind == "swiglu" else M
    yield ShapeRow(
        "mlp.fc1", f"up, then {config.mlp.kind}", tokens, (T, first), _linear(D, first), 2 * T * D * first, L
    )
    yield ShapeRow("mlp.fc2", "down; added to the tokens", (T, M), tokens, _linear(M, D), 2 * T * M * D, L)
    yield from _scale("ls2", config, tokens)
    if config.pool.norm == "before":
        yield _norm("norm", tokens)
    seen = (2 * D,) if config.pool.kind == "class-mean" else (D,)
    yield ShapeRow("pool", f"what the head sees: {config.pool.kind}", tokens, seen, 0, 0)
    if config.pool.norm == "after":
        yield _norm("fc_norm", seen)
    heads_there, W = len(config.classifiers), seen[0]
    if config.head.kind == "mlp":
        yield ShapeRow("pre_logits", "a hidden layer, then tanh", seen, seen, _linear(W, W), 2 * W * W * heads_there)
    if config.head.kind != "none":
        for name in config.classifiers:
            logits = (config.classes,)
            yield ShapeRow(name, "a logit a class", seen, logits, _linear(W, *logits), 2 * W * config.classes)


def _stem(config: ViTConfig, N: int) -> Iterator[ShapeRow]:
    (height, width), C, D, P = config.height_width, config.channels, config.width, config.patch_size
    takes: Shape = (C, height, width)
    if config.stem.kind == "whitened":
        yield from _whitened(config)
        return
    if config.stem.kind == "conv":
        for step in range(P.bit_length() - 1):
            # A convolution of stride 2 gives half the pixels, rounded up.
            gives = (config.stem.channels, -(-takes[1] // 2), -(-takes[2] // 2))
            weights = 9 * takes[0] * gives[0]
            flops = 2 * weights * gives[1] * gives[2]
            yield ShapeRow(f"convs.{2 * step}", "3×3, stride 2, GELU", takes, gives, weights + gives[0], flops)
            takes = gives
        P = 1
    values = P * P * takes[0]
    parameters = _linear(values, D, config.stem.bias)
    yield ShapeRow("patch_embed", "cut into patches, each times E", takes, (N, D), parameters, 2 * N * values * D)


def _whitened(config: ViTConfig) -> Iterator[ShapeRow]:
    (height, width), values = config.height_width, 4 * config.channels
    takes, gives = (config.channels, height, width), (2 * values, height, width)
    yield ShapeRow("whiten", "measured: principal components", takes, gives, 0, 2 * values * gives[0] * height * width)
    halvings = config.patch_size.bit_length() - 1
    for step in range(halvings):
        takes, channels = gives, config.width if step == halvings - 1 else config.stem.channels
        gives = (channels, takes[1] // 2, takes[2] // 2)
        weights = 9 * takes[0] * channels
        parameters = weights + 2 * channels
        flops = 2 * weights * takes[1] * takes[2]
        yield ShapeRow(f"convs.{4 * step}", "3×3, pool, BatchNorm, GELU", takes, gives, parameters, flops)
    N = gives[1] * gives[2]
    yield ShapeRow("patch_embed", "a pixel is a patch now", gives, (N, config.width), 0, 0)


def _position_parameters(config: ViTConfig, N: int) -> int:
    placed = config.read_out * config.positions.class_token
    rows = {"learned": placed + N, "learned-2d": placed + sum(config.grid) / 2}.get(config.positions.kind, 0)
    return int(rows * config.width)


def _norm(name: str, shape: Shape, times: int = 1) -> ShapeRow:
    return ShapeRow(name, "LayerNorm", shape, shape, 2 * shape[-1], 0, times)


def _scale(name: str, config: ViTConfig, tokens: Shape) -> Iterator[ShapeRow]:
    if config.blocks.layer_scale:
        yield ShapeRow(name, "LayerScale", tokens, tokens, config.width, 0, config.depth)


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Parameters of a linear layer."""
    return inputs * outputs + outputs * bias
