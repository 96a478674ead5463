"""A model drawn from its config, with its real shapes: what figure 1 of the paper shows, for any ViT.

At the left the whole model, from the picture down to the classes, and what each part has to learn; at the right one
block of its encoder. A model of another kind is drawn as the chain of its steps.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from vitral.look.columns import LEFT, NUMBERS, RIGHT, Part, column, least, many, places, tinted
from vitral.look.drawing import Box, Drawing, Line, Mark, Text, fitted
from vitral.look.vit_block import INNER, INNER_END, block_parts
from vitral.look.vit_parts import counts, model_parts, tokens_of
from vitral.model.config import ModelConfig, ViTConfig
from vitral.model.shapes import ShapeRow, count_parameters, shapes

WIDTH, TOP = 1100.0, 112.0
PANEL, PANEL_END = 686.0, 1064.0  # of the block
LANE = 710.0  # the residual way, left of the parts of the block
ABOVE, BELOW = 92.0, 50.0  # room in the panel above and below these
STEP, HEAD = 34.0, 24.0  # the heights of a step of a chain, and of the line above steps that are there several times


def architecture(config: ModelConfig, name: str) -> Drawing:
    """The drawing of a model, by a name for its title.

    >>> print(architecture(ViTConfig(), "ViT-B/16").description)
    Images of 224×224×3; 14×14 patches of 16; 197 tokens of width 768; 12 blocks; 86,567,656 parameters.
    """
    rows, name = shapes(config), "".join(sign if sign.isprintable() else "·" for sign in name)
    return _vit(config, rows, name) if isinstance(config, ViTConfig) else _chain(config, rows, name)


def _vit(config: ViTConfig, rows: Sequence[ShapeRow], name: str) -> Drawing:
    model, block = model_parts(config, rows), block_parts(config, rows)
    # Both columns are as high as the higher one needs.
    bottom = TOP + max(least(model), ABOVE + least(block) + BELOW)
    model_at, block_at = places(model, TOP, bottom), places(block, TOP + ABOVE, bottom - BELOW)
    by_role = {part.role: (part, y) for part, y in zip(model, model_at, strict=True)}
    (encoder, encoder_y), (_, stem_y) = by_role["encoder"], by_role["stem"]
    (height, width), (down, across), (tokens, D) = config.height_width, config.grid, tokens_of(rows)
    told = (
        f"Images of {height}×{width}×{config.channels}; {down}×{across} patches of {config.patch_size}; "
        f"{tokens} tokens of width {D}; {many(config.depth, 'block')}; {count_parameters(rows):,} parameters."
    )
    last = 3 if config.pool.norm == "none" else 4
    footnote = f"(1) to ({last}): the paper’s equations, marked so in model/vit.py. Shapes are of one image."
    marks: list[Mark] = [
        *_heading(name, "Vision Transformer", rows),
        Text(NUMBERS, stem_y - 8, "parameters", 12, "soft", anchor="end"),
        # The encoder's row and the panel are one piece: the panel shows what is in the row.
        Box(LEFT - 14, encoder_y - 8, PANEL - LEFT + 30, encoder.height + 18, "grid", radius=12, opacity=0.5),
        Box(PANEL, TOP, PANEL_END - PANEL, bottom - TOP, "ground", radius=14),
        Box(PANEL, TOP, PANEL_END - PANEL, bottom - TOP, "grid", radius=14, opacity=0.5),
        *column(model, model_at, (LEFT + RIGHT) / 2),
        *_panel(config, rows, block, block_at, bottom),
        Text(LEFT, bottom + 32, footnote, 12, "soft"),
    ]
    return Drawing(WIDTH, bottom + 52, f"The architecture of {name}", told, tuple(marks))


def _heading(name: str, what: str, rows: Sequence[ShapeRow]) -> list[Mark]:
    total = Text(PANEL_END, 54, f"{count_parameters(rows):,}", 28, bold=True, anchor="end")
    return [
        fitted(Text(LEFT, 54, name, 28, bold=True), total.left - LEFT - 30),
        fitted(Text(LEFT, 79, what, 15, "soft"), total.left - LEFT - 30),
        total,
        Text(PANEL_END, 79, "parameters", 15, "soft", anchor="end"),
    ]


def _panel(
    config: ViTConfig, rows: Sequence[ShapeRow], parts: Sequence[Part], places: Sequence[float], bottom: float
) -> list[Mark]:
    """One block of the encoder: its parts, and the residual ways past attention and past the MLP."""
    x, (tokens, D), gap = (INNER + INNER_END) / 2, tokens_of(rows), places[1] - places[0] - parts[0].height
    each = f"{sum(counts(rows, 'blocks.').values()) // config.depth:,}"
    ways, start = list[Mark](), places[0] - gap / 2
    for part, y in zip(parts, places, strict=True):
        if part.role == "plus":
            ways.append(Line(((x, start), (LANE, start), (LANE, y + 12), (x - 14, y + 12)), arrow=True))
            start = y + part.height + gap / 2
    return [
        Text(PANEL + 24, TOP + 34, "Encoder block", 17, bold=True),
        Text(INNER_END - 12, TOP + 34, each if config.depth == 1 else f"{config.depth} × {each}", anchor="end"),
        *ways,
        Line(((x, TOP + 50), (x, places[0] - 3)), arrow=True),
        Text(x + 12, TOP + 64, f"{tokens} × {D}", 13, "soft"),
        *column(parts, places, x),
        Line(((x, places[-1] + 27), (x, bottom - 12)), arrow=True),
        Text(x + 12, bottom - 20, f"{tokens} × {D}", 13, "soft"),
    ]


def _chain(config: ModelConfig, rows: Sequence[ShapeRow], name: str) -> Drawing:
    """Its steps, one below the other; what is there several times stands on one ground."""
    y, gap, marks = TOP + 20.0, 16.0, list[Mark]()
    what, gives, right = LEFT + 300, 830.0, PANEL_END - 14
    for (times, shared), group in groupby(rows, lambda row: (row.times, row.name.partition("*")[0] * (row.times > 1))):
        steps = list(group)
        if times > 1:
            high = HEAD + (STEP + gap) * len(steps) - gap + 20
            marks.append(Box(LEFT - 12, y + 2, PANEL_END - LEFT + 24, high, "grid", radius=12, opacity=0.5))
            marks.append(Text(LEFT + 14, y + 24, f"{shared}*", 15, bold=True))
            marks.append(Text(right, y + 24, f"× {times}", 15, bold=True, anchor="end"))
            y += 12 + HEAD
        for row in steps:
            if y > TOP + 20:
                marks.append(Line((((LEFT + PANEL_END) / 2, y - gap + 2), ((LEFT + PANEL_END) / 2, y - 2)), arrow=True))
            number = Text(right, y + 22, f"{row.parameters:,}", anchor="end")
            marks += [
                *tinted(LEFT, y, PANEL_END - LEFT, STEP, "blue" if row.parameters else "grey"),
                fitted(Text(LEFT + 14, y + 22, row.name.removeprefix(f"{shared}*."), 15, bold=True), what - LEFT - 30),
                fitted(Text(what, y + 22, row.what, 14, "soft"), 400),
                fitted(Text(gives, y + 22, " × ".join(map(str, row.gives)), 14, anchor="middle"), 150),
                *([number] if row.parameters else []),
            ]
            y += STEP + gap
        y += 12 if times > 1 else 0
    height, width = config.height_width
    told = f"Images of {height}×{width}×{config.channels}; {count_parameters(rows):,} parameters."
    heading = [
        *_heading(name, f"{Path(config.words).name}, for images of {height} × {width} × {config.channels}", rows),
        Text(gives, TOP + 6, "gives", 12, "soft", anchor="middle"),
        Text(right, TOP + 6, "parameters", 12, "soft", anchor="end"),
    ]
    return Drawing(WIDTH, y - gap + 36, f"The architecture of {name}", told, (*heading, *marks))
