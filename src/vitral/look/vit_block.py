"""The parts of a block of a ViT as they are drawn: norms, attention, MLP, and the ways past them."""

from collections.abc import Sequence

from vitral.look.columns import LINE, Note, Part, lines, many, tinted
from vitral.look.drawing import Box, Line, Mark, Shape, Text
from vitral.look.vit_parts import NORMS, counts, tokens_of
from vitral.model.config import ViTConfig
from vitral.model.shapes import ShapeRow

INNER, INNER_END = 740.0, 1040.0  # where the parts start and end


def block_parts(config: ViTConfig, rows: Sequence[ShapeRow]) -> list[Part]:
    count = {name: number // config.depth for name, number in counts(rows, "blocks.").items()}
    (tokens, D), hidden, head = tokens_of(rows), config.mlp_size, config.width // config.heads
    mixed = "attn.proj" in count  # else, as in Pulfer's tutorial, each head sees its slice of a token, and stays alone
    words = f"q, k, v: {D} → 3 × {D}" if mixed else f"q, k, v of each slice: {head} → 3 × {head}"
    layers = [Note(words, count["attn.qkv"] + count.get("attn.qv_bias", 0))]
    if config.attention.qk_norm:
        layers.append(Note(f"qk_norm: {NORMS[config.blocks.norm]}", count["attn.q_norm"] + count["attn.k_norm"]))
    if config.positions.kind == "relative":
        layers.append(Note("relative positions", count["attn.position_bias"]))
    if config.positions.kind == "rotary":
        layers.append(Note("q, k turned by place"))
    layers.append(Note(f"softmax(q kᵀ / √{head}): {tokens} × {tokens}"))
    last = Note(f"mixed: {D} → {D}", count["attn.proj"]) if mixed else Note("side by side, not mixed")
    heads = _layers("Multi-head attention", "blue", layers, last, config.heads, head)
    kind, doubled = config.mlp.kind, "2 × " if config.mlp.kind == "swiglu" else ""
    mlp = _layers(
        "MLP",
        "green",
        [Note(f"{D} → {doubled}{hidden}, {kind}", count["mlp.fc1"])],
        Note(f"{hidden} → {D}", count["mlp.fc2"]),
    )
    parts = []
    for number, body in enumerate((heads, mlp), 1):
        parts += [_thin(NORMS[config.blocks.norm], count[f"norm{number}"]), body]
        parts += [_thin("LayerScale", count[f"ls{number}"])] if config.blocks.layer_scale else []
        parts.append(_plus(f"({number + 1})"))
    return parts


def _thin(title: str, parameters: int) -> Part:
    def draw(y: float) -> list[Mark]:
        return [
            *tinted(INNER, y, INNER_END - INNER, 34, "grey"),
            Text(INNER + 14, y + 22, title, 15, bold=True),
            Text(INNER_END - 12, y + 22, f"{parameters:,}", anchor="end"),
        ]

    return Part(34, draw)


def _layers(title: str, colour: str, first: Sequence[Note], last: Note, heads: int = 0, size: int = 0) -> Part:
    """A part with its layers, a line each; its heads stand before the last one, a bar each, as far as there is room."""
    room = 32.0 if heads else 0.0
    height = 46 + LINE * (len(first) + 1) + room

    def draw(y: float) -> list[Mark]:
        left, right, base = INNER + 14, INNER_END - 12, y + 50
        end = base + LINE * len(first) + room
        marks = [
            *tinted(INNER, y, INNER_END - INNER, height, colour),
            Text(left, y + 26, title, 15, bold=True),
            *lines(first, left, right, base),
            *lines([last], left, right, end),
        ]
        if heads:
            words = Text(right, end - LINE - 5, f"{many(heads, 'head')} of {size}", 14, "soft", anchor="end")
            shown = min(heads, 16)
            step = min(12.0, (words.left - 12 - left) / shown)
            marks += [Box(left + step * at, words.y - 14, 0.7 * step, 18, colour, radius=2, opacity=0.7)
                      for at in range(shown)]  # fmt: skip
            marks.append(words)
        return marks

    return Part(height, draw)


def _plus(equation: str) -> Part:
    x = (INNER + INNER_END) / 2

    def draw(y: float) -> list[Mark]:
        return [
            Shape(((x, y + 12),), "ground", "ink", 12),
            Line(((x - 6, y + 12), (x + 6, y + 12)), "ink", 1.6),
            Line(((x, y + 6), (x, y + 18)), "ink", 1.6),
            Text(x + 24, y + 17, equation, 13, "soft"),
        ]

    return Part(24, draw, role="plus")
