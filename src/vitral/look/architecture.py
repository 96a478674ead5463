"""A model drawn from its config, with its real shapes: what figure 1 of the paper shows, for any ViT.

At the left the whole model, from the picture down to the classes, and what each part has to learn; at the right one
block of its encoder. A model of another kind is drawn as the chain of its steps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Literal

from vitral.look.drawing import Box, Drawing, Line, Mark, Shape, Text, Window, fitted
from vitral.model.config import ModelConfig, ViTConfig
from vitral.model.shapes import ShapeRow, shapes

WIDTH, TOP = 1100.0, 112.0
LEFT, RIGHT = 36.0, 356.0  # of the parts of the model
NOTES, NUMBERS = 374.0, 652.0  # where words on a part start, and where its number of parameters ends
PANEL, PANEL_END = 686.0, 1064.0  # of the block
LANE, INNER, INNER_END = 710.0, 740.0, 1040.0  # the residual way, and the parts of the block
ABOVE, BELOW = 92.0, 50.0  # room in the panel above and below these
GAP, LINE = 30.0, 20.0  # between two parts, at least, and between two lines of words
STEP = 34.0  # the height of a step of a chain


@dataclass(frozen=True)
class Part:
    """A part of a column: how high it is, its marks at a place, and the shape that leaves it."""

    height: float
    draw: Callable[[float], list[Mark]]  # by the y of its top
    gives: str = ""
    role: Literal["", "stem", "encoder", "plus"] = ""


@dataclass(frozen=True)
class Note:
    """Words on a part, and how many parameters it has."""

    words: str
    parameters: int = 0
    strong: bool = False


def architecture(config: ModelConfig, name: str) -> Drawing:
    """The drawing of a model, by a name for its title.

    >>> print(architecture(ViTConfig(), "ViT-B/16").description)
    Images of 224×224×3; 14×14 patches of 16; 197 tokens of width 768; 12 blocks; 86,567,656 parameters.
    """
    rows, name = shapes(config), "".join(sign if sign.isprintable() else "·" for sign in name)
    return _vit(config, rows, name) if isinstance(config, ViTConfig) else _chain(config, rows, name)


def _vit(config: ViTConfig, rows: Sequence[ShapeRow], name: str) -> Drawing:
    model, block = _model_parts(config, rows), _block_parts(config, rows)
    # Both columns are as high as the higher one needs.
    bottom = TOP + max(_least(model), ABOVE + _least(block) + BELOW)
    model_at, block_at = _places(model, TOP, bottom), _places(block, TOP + ABOVE, bottom - BELOW)
    by_role = {part.role: (part, y) for part, y in zip(model, model_at, strict=True)}
    (encoder, encoder_y), (_, stem_y) = by_role["encoder"], by_role["stem"]
    (height, width), (down, across), (tokens, D) = config.height_width, config.grid, _tokens(rows)
    told = (
        f"Images of {height}×{width}×{config.channels}; {down}×{across} patches of {config.patch_size}; "
        f"{tokens} tokens of width {D}; {_many(config.depth, 'block')}; {_total(rows):,} parameters."
    )
    footnote = "(1) to (4): the paper’s equations, marked so in model/vit.py. Shapes are of one image."
    marks: list[Mark] = [
        *_heading(name, "Vision Transformer", rows),
        Text(NUMBERS, stem_y - 8, "parameters", 12, "soft", anchor="end"),
        # The encoder's row and the panel are one piece: the panel shows what is in the row.
        Box(LEFT - 14, encoder_y - 8, PANEL - LEFT + 30, encoder.height + 18, "grid", radius=12, opacity=0.5),
        Box(PANEL, TOP, PANEL_END - PANEL, bottom - TOP, "ground", radius=14),
        Box(PANEL, TOP, PANEL_END - PANEL, bottom - TOP, "grid", radius=14, opacity=0.5),
        *_column(model, model_at, (LEFT + RIGHT) / 2),
        *_panel(config, rows, block, block_at, bottom),
        Text(LEFT, bottom + 32, footnote, 12, "soft"),
    ]
    return Drawing(WIDTH, bottom + 52, f"The architecture of {name}", told, tuple(marks))


def _heading(name: str, what: str, rows: Sequence[ShapeRow]) -> list[Mark]:
    total = Text(PANEL_END, 54, f"{_total(rows):,}", 28, bold=True, anchor="end")
    return [
        fitted(Text(LEFT, 54, name, 28, bold=True), total.left - LEFT - 30),
        fitted(Text(LEFT, 79, what, 15, "soft"), total.left - LEFT - 30),
        total,
        Text(PANEL_END, 79, "parameters", 15, "soft", anchor="end"),
    ]


# Columns


def _least(parts: Sequence[Part]) -> float:
    return sum(part.height for part in parts) + GAP * (len(parts) - 1)


def _places(parts: Sequence[Part], top: float, bottom: float) -> list[float]:
    """The y of each part: the first at the top, the last at the bottom, with equal gaps between."""
    gap = (bottom - top - sum(part.height for part in parts)) / (len(parts) - 1)
    places = [top]
    for part in parts[:-1]:
        places.append(places[-1] + part.height + gap)
    return places


def _column(parts: Sequence[Part], places: Sequence[float], x: float) -> list[Mark]:
    """The parts, with an arrow from each to the next, and beside it what goes along it."""
    marks: list[Mark] = []
    for (part, y), (_, below) in pairwise(zip(parts, places, strict=True)):
        end = y + part.height
        marks.append(Line(((x, end + 4), (x, below - 3)), arrow=True))
        if part.gives:
            marks.append(Text(x + 12, (end + below) / 2 + 4, part.gives, 13, "soft"))
    return [*marks, *(mark for part, y in zip(parts, places, strict=True) for mark in part.draw(y))]


def _tinted(x: float, y: float, width: float, height: float, colour: str, opacity: float = 0.16) -> list[Mark]:
    """A box in a pale colour that nothing shines through."""
    return [
        Box(x, y, width, height, "ground", radius=8),
        Box(x, y, width, height, colour, colour, 8, opacity),
    ]


def _lines(notes: Iterable[Note], left: float, right: float, base: float) -> list[Mark]:
    """Lines of words from the left, with numbers of parameters at the right; `base` is where the first one stands."""
    marks: list[Mark] = []
    for line, note in enumerate(notes):
        y = base + LINE * line
        number = Text(right, y, f"{note.parameters:,}", anchor="end")
        room = (number.left - 10 if note.parameters else right) - left
        marks.append(fitted(Text(left, y, note.words, 14, "ink" if note.strong else "soft", note.strong), room))
        marks += [number] if note.parameters else []
    return marks


def _beside(y: float, height: float, notes: Sequence[Note]) -> list[Mark]:
    """Words beside a part of the model, as high as its middle."""
    return _lines(notes, NOTES, NUMBERS, y + height / 2 + 5 - LINE * (len(notes) - 1) / 2)


def _dots(x: float, y: float) -> Text:
    """What stands for those that are not drawn, around this place."""
    return Text(x, y + 2, "…", 16, "soft", anchor="middle")


# The model


def _model_parts(config: ViTConfig, rows: Sequence[ShapeRow]) -> list[Part]:
    count, (tokens, D) = _counts(rows), _tokens(rows)
    size = f"{tokens} × {D}"
    pooled = next((row.gives[-1] for row in rows if row.name == "pool"), D)
    view = f"{config.read_out} × {D}" if config.read_out > 1 else f"{pooled}"
    last = config.pool.norm == "after"
    parts = [_picture(config), _patches(config), _stem(config, rows), _tokens_and_positions(config, count, size)]
    if config.blocks.first_norm:
        parts.append(_named("LayerNorm", "grey", 32, [Note("before the first block", count["norm_pre"])], size))
    parts.append(_encoder(config, rows, size))
    if config.pool.norm == "before":
        parts.append(_named("LayerNorm", "grey", 32, [Note("of every token", count["norm"])], size))
    parts.append(_readout(config, view if last else f"{view}\u2003(4)"))
    if last:
        parts.append(_named("LayerNorm", "grey", 32, [Note("of what is read", count["fc_norm"])], f"{view}\u2003(4)"))
    return [*parts, *_head(config, count, pooled), _end(config, rows, pooled)]


def _named(
    title: str, colour: str, height: float, notes: Sequence[Note], gives: str, role: Literal["", "stem"] = ""
) -> Part:
    """A box with a name, as wide as the column."""

    def draw(y: float) -> list[Mark]:
        words = Text((LEFT + RIGHT) / 2, y + height / 2 + 5, title, 15, bold=True, anchor="middle")
        return [*_tinted(LEFT, y, RIGHT - LEFT, height, colour), words, *_beside(y, height, notes)]

    return Part(height, draw, gives, role)


def _picture(config: ViTConfig) -> Part:
    (height, width), (down, across), P, C = config.height_width, config.grid, config.patch_size, config.channels
    scale = 124 / max(height, width)
    high, wide = max(12.0, height * scale), max(12.0, width * scale)
    left = (LEFT + RIGHT - wide) / 2
    tall = max(high, 3 * LINE)
    notes = [
        Note(f"Image {height} × {width} × {C}", strong=True),
        Note(f"{down} × {across} = {_many(down * across, 'patch', 'patches')}"),
        Note(f"of {P} × {P} × {C} = {P * P * C} numbers"),
    ]

    def draw(y: float) -> list[Mark]:
        top = y + (tall - high) / 2
        cut = min(2.0, 0.14 * min(high / down, wide / across))
        rows = [top + high * row / down for row in range(1, down)]
        columns = [left + wide * column / across for column in range(1, across)]
        cuts = [Line(((left, at), (left + wide, at)), "ground", cut) for at in rows]
        cuts += [Line(((at, top), (at, top + high)), "ground", cut) for at in columns]
        return [_scene(config, left, top, wide, high, (0, 0, 1, 1)), *cuts, *_beside(y, tall, notes)]

    return Part(tall, draw)


def _scene(
    config: ViTConfig, x: float, y: float, width: float, height: float, view: tuple[float, float, float, float]
) -> Window:
    """A picture of a sun and mountains, or the part `view` of it, (x, y, width, height) out of 1; grey of grey ones."""
    sky, sun, far, near = (
        ("grey", "grey", "grey", "ink") if config.channels == 1 else ("blue", "orange", "green", "blue")
    )
    marks: tuple[Mark, ...] = (
        Box(0, 0, 1, 1, "ground"),
        Box(0, 0, 1, 1, sky, opacity=0.22),
        Shape(((0.62, 0.3),), sun, radius=0.16),
        Shape(((0, 0.72), (0.28, 0.42), (0.6, 0.78), (0.6, 1), (0, 1)), far, opacity=0.75),
        Shape(((0, 0.92), (0.3, 0.78), (0.5, 0.8), (0.78, 0.5), (1, 0.7), (1, 1), (0, 1)), near, opacity=0.85),
    )
    return Window(x, y, width, height, view, marks)


def _patches(config: ViTConfig) -> Part:
    """The patches in reading order: all, or the first, two at the edge of the sun, and the last."""
    (down, across), side, gap = config.grid, 28.0, 8.0
    count, sun = down * across, int(0.3 * down) * across + int(0.46 * across)
    first, last = [0, 1, 2], [count - 2, count - 1]
    far = sorted({sun, sun + 1} - {*first, *last})
    shown: list[int | None] = [*range(count)] if count <= 8 else [*first, None, *far, None, *last]
    left = (LEFT + RIGHT - side * len(shown) - gap * (len(shown) - 1)) / 2
    flat = config.stem.kind == "linear"

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for place, number in enumerate(shown):
            x = left + place * (side + gap)
            if number is None:
                marks.append(_dots(x + side / 2, y + side / 2))
                continue
            row, column = divmod(number, across)
            marks.append(_scene(config, x, y, side, side, (column / across, row / down, 1 / across, 1 / down)))
            marks.append(Box(x, y, side, side, "", "grid"))
        how = "flattened" if flat else "overlapping"
        return [*marks, *_beside(y, side, [Note(f"in reading order, {how}")])]

    return Part(side, draw, f"{count} × {config.patch_size**2 * config.channels}" if flat else "")


def _stem(config: ViTConfig, rows: Sequence[ShapeRow]) -> Part:
    numbers, D, channels = config.patch_size**2 * config.channels, config.width, config.stem.channels
    learned, times = sum(_counts(rows, "patch_embed").values()), config.patch_size.bit_length() - 1
    often = "once" if times == 1 else f"{times} times"
    title, *words = {
        "linear": ("Linear projection", f"E: {numbers} → {D}"),
        "conv": ("Stem: conv", f"3×3, stride 2, {often}", f"{channels} channels, then {channels} → {D}"),
        "whitened": ("Stem: whitened", "2×2, whitened", f"3×3 and pool, {often}, → {D}"),
    }[config.stem.kind]
    notes = [Note(line, learned if line == words[0] else 0) for line in words]
    return _named(title, "blue", 40, notes, f"{config.grid[0] * config.grid[1]} × {D}", "stem")


@dataclass(frozen=True)
class Chip:
    """A token in its row; `colour` "" stands for those that are not drawn."""

    x: float
    width: float
    colour: str
    words: str = ""
    place: str = ""  # its position, where it has one


def _chips(config: ViTConfig) -> list[Chip]:
    """The row of tokens: the extra ones, then some of the patches, the last among them."""
    kind, (down, across), gap = config.positions.kind, config.grid, 6.0
    count, registers = down * across, config.tokens.registers
    faces = {
        "cls_token": ("orange", "class", 56.0),
        "dist_token": ("red", "distilled", 80.0),
        "reg_token": ("green", f"{registers} reg.", 48.0 + 9 * len(str(registers))),
    }
    extra = [faces[name] for name in config.extra_tokens]
    placed = config.read_out if config.positions.class_token and kind != "sincos-2d" else 0
    most = 5 - len(extra)
    shown: list[int | None] = [*range(count)] if count <= most else [*range(most - 1), None, count - 1]
    open_ = RIGHT - LEFT - sum(width for *_, width in extra) - gap * (len(extra) + len(shown) - 1)
    dots = 16.0 if None in shown else 0.0
    width = (open_ - dots) / (len(shown) - (None in shown))
    chips, x = list[Chip](), LEFT
    for number, (colour, words, wide) in enumerate(extra):
        chips.append(Chip(x, wide, colour, words, f"{number}" if number < placed else ""))
        x += wide + gap
    for patch in shown:
        if patch is None:
            chips.append(Chip(x, dots, ""))
        else:
            row_column = f"{patch // across}, {patch % across}"
            chips.append(Chip(x, width, "blue", "", row_column if kind.endswith("2d") else f"{placed + patch}"))
        x += gap + (dots if patch is None else width)
    return chips


def _tokens_and_positions(config: ViTConfig, count: dict[str, int], size: str) -> Part:
    """The row of tokens, and below each the position that is added to it."""
    kind, high, low = config.positions.kind, 34.0, 24.0
    adds = kind not in ("none", "relative")
    registers = _many(config.tokens.registers, "register")
    extra = {"cls_token": "class", "dist_token": "distilled", "reg_token": registers}
    label = " + ".join(extra[name] for name in config.extra_tokens) or "no extra token"
    tokens = Note(
        "class token" if label == "class" else label,
        sum(count[name] for name in config.extra_tokens),
    )
    positions = Note(
        {"none": "no positions", "relative": "relative positions, in blocks"}.get(kind, f"+ {kind} positions"),
        count.get("pos_embed", 0),
    )

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for chip in _chips(config):
            middle = chip.x + chip.width / 2
            if not chip.colour:
                marks += [_dots(middle, y + high / 2), *([_dots(middle, y + high + 18)] if adds else [])]
                continue
            marks += _tinted(chip.x, y, chip.width, high, chip.colour, 0.3)
            marks += [Text(middle, y + high / 2 + 4.5, chip.words, 13, anchor="middle")] if chip.words else []
            if adds and chip.place:
                marks.append(Box(chip.x, y + high + 6, chip.width, low, "grid", radius=6))
                marks.append(fitted(Text(middle, y + high + 22.5, chip.place, 13, anchor="middle"), chip.width - 4))
        if not adds:
            return [*marks, *_beside(y, high, [tokens, positions])]
        return [*marks, *_beside(y, high, [tokens]), *_beside(y + high + 6, low, [positions])]

    return Part(high + 6 + low if adds else high, draw, f"{size}\u2003(1)")


def _encoder(config: ViTConfig, rows: Sequence[ShapeRow], gives: str) -> Part:
    behind, high, step = min(config.depth - 1, 2), 50.0, 5.0
    notes = [
        Note(f"{_many(config.depth, 'block')} of width {config.width}", sum(_counts(rows, "blocks.").values())),
        Note(f"{_many(config.heads, 'head')} of {config.width // config.heads}, MLP {config.mlp_size}"),
    ]

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for card in range(behind, -1, -1):  # the blocks lie behind each other
            marks += _tinted(
                LEFT + step * card, y + step * (behind - card), RIGHT - LEFT - 2 * step * card, high, "blue"
            )
        front = y + step * behind
        words = Text(
            (LEFT + RIGHT) / 2, front + high / 2 + 6, f"Encoder × {config.depth}", 17, bold=True, anchor="middle"
        )
        return [*marks, words, *_beside(front, high, notes)]

    return Part(high + step * behind, draw, gives, "encoder")


def _readout(config: ViTConfig, gives: str) -> Part:
    """The tokens again: those that the head sees are filled."""
    patches, high, pool = config.grid[0] * config.grid[1], 22.0, config.pool.kind
    words = {
        "class": "class token" if config.read_out == 1 else "class and distilled token",
        "mean": f"mean of {_many(patches, 'patch', 'patches')}",
        "class-mean": "class token, mean of patches",
    }[pool]
    seen = {"class": ("orange", "red"), "mean": ("blue",), "class-mean": ("orange", "blue")}[pool]

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for chip in _chips(config):
            if not chip.colour:
                marks.append(_dots(chip.x + chip.width / 2, y + high / 2))
            elif chip.colour in seen:
                marks.append(Box(chip.x, y, chip.width, high, chip.colour, chip.colour, 6, 0.7))
            else:
                marks.append(Box(chip.x, y, chip.width, high, "", "grey", 6))
        return [*marks, *_beside(y, high, [Note(f"read: {words}")])]

    return Part(high, draw, gives)


def _head(config: ViTConfig, count: dict[str, int], pooled: int) -> list[Part]:
    hidden, parts, kind = config.head.size or pooled, list[Part](), config.head.kind
    if kind in ("mlp", "hidden"):
        gives = f"{config.read_out} × {hidden}" if config.read_out > 1 else f"{hidden}"
        notes = [Note(f"{pooled} → {hidden}, tanh", count["pre_logits"])]
        parts.append(_named("Hidden layer", "orange", 40, notes, gives))
    if not config.has_classes:
        return parts
    notes = [Note(f"{hidden} → {config.classes}", count[name]) for name in config.classifiers]
    if len(notes) == 1:
        return [*parts, _named("Linear head", "orange", 40, notes, f"{config.classes}")]
    width = (RIGHT - LEFT - 12) / 2

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for x, words, colour in ((LEFT, "Linear head", "orange"), (RIGHT - width, "Distilled head", "red")):
            marks += _tinted(x, y, width, 40, colour)
            marks.append(fitted(Text(x + width / 2, y + 25, words, 15, bold=True, anchor="middle"), width - 12))
        return [*marks, *_beside(y, 40, notes)]

    return [*parts, Part(40, draw, f"2 × {config.classes}, their mean")]


def _end(config: ViTConfig, rows: Sequence[ShapeRow], pooled: int) -> Part:
    """What comes out; and below all numbers, their sum."""
    words = _many(config.classes, "class", "classes")
    if not config.has_classes:
        words = f"{pooled if config.head.kind == 'none' else config.head.size or pooled} features"

    def draw(y: float) -> list[Mark]:
        return [
            Box(LEFT, y, RIGHT - LEFT, 36, "ink", radius=18),
            Text((LEFT + RIGHT) / 2, y + 23, words, 15, "ground", bold=True, anchor="middle"),
            Line(((NOTES, y), (NUMBERS, y)), "grey", 1),
            Text(NOTES, y + 23, "in all", 14, bold=True),
            Text(NUMBERS, y + 23, f"{_total(rows):,}", 14, bold=True, anchor="end"),
        ]

    return Part(36, draw)


# A block


def _panel(
    config: ViTConfig, rows: Sequence[ShapeRow], parts: Sequence[Part], places: Sequence[float], bottom: float
) -> list[Mark]:
    """One block of the encoder: its parts, and the residual ways past attention and past the MLP."""
    x, (tokens, D), gap = (INNER + INNER_END) / 2, _tokens(rows), places[1] - places[0] - parts[0].height
    each = f"{sum(_counts(rows, 'blocks.').values()) // config.depth:,}"
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
        *_column(parts, places, x),
        Line(((x, places[-1] + 27), (x, bottom - 12)), arrow=True),
        Text(x + 12, bottom - 20, f"{tokens} × {D}", 13, "soft"),
    ]


def _block_parts(config: ViTConfig, rows: Sequence[ShapeRow]) -> list[Part]:
    count = {name: number // config.depth for name, number in _counts(rows, "blocks.").items()}
    (tokens, D), hidden, head = _tokens(rows), config.mlp_size, config.width // config.heads
    mixed = "attn.proj" in count  # else, as in Pulfer's tutorial, each head sees its slice of a token, and stays alone
    words = f"q, k, v: {D} → 3 × {D}" if mixed else f"q, k, v of each slice: {head} → 3 × {head}"
    layers = [Note(words, count["attn.qkv"])]
    if config.attention.qk_norm:
        layers.append(Note("qk_norm: LayerNorm", count["attn.q_norm"] + count["attn.k_norm"]))
    if config.positions.kind == "relative":
        layers.append(Note("relative positions", count["attn.position_bias"]))
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
        parts += [_thin("LayerNorm", count[f"norm{number}"]), body]
        parts += [_thin("LayerScale", count[f"ls{number}"])] if config.blocks.layer_scale else []
        parts.append(_plus(f"({number + 1})"))
    return parts


def _thin(title: str, parameters: int) -> Part:
    def draw(y: float) -> list[Mark]:
        return [
            *_tinted(INNER, y, INNER_END - INNER, 34, "grey"),
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
            *_tinted(INNER, y, INNER_END - INNER, height, colour),
            Text(left, y + 26, title, 15, bold=True),
            *_lines(first, left, right, base),
            *_lines([last], left, right, end),
        ]
        if heads:
            words = Text(right, end - LINE - 5, f"{_many(heads, 'head')} of {size}", 14, "soft", anchor="end")
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


# A model of another kind


def _chain(config: ModelConfig, rows: Sequence[ShapeRow], name: str) -> Drawing:
    """Its steps, one below the other; what is there several times stands on one ground."""
    y, gap, marks = TOP + 20.0, 16.0, list[Mark]()
    what, gives, right = LEFT + 330, 830.0, PANEL_END - 14
    for (times, _), group in groupby(rows, lambda row: (row.times, row.name.split("*")[0] if row.times > 1 else "")):
        steps = list(group)
        if times > 1:
            y += 12
            high = (STEP + gap) * len(steps) - gap + 20
            marks.append(Box(LEFT - 12, y - 10, PANEL_END - LEFT + 24, high + 22, "grid", radius=12, opacity=0.5))
            marks.append(Text(right, y + high + 4, f"× {times}", 15, "ink", bold=True, anchor="end"))
        for row in steps:
            if y > TOP + 20:
                marks.append(Line((((LEFT + PANEL_END) / 2, y - gap + 2), ((LEFT + PANEL_END) / 2, y - 2)), arrow=True))
            number = Text(right, y + 22, f"{row.parameters:,}", anchor="end")
            marks += [
                *_tinted(LEFT, y, PANEL_END - LEFT, STEP, "blue" if row.parameters else "grey"),
                fitted(Text(LEFT + 14, y + 22, row.name, 15, bold=True), what - LEFT - 30),
                fitted(Text(what, y + 22, row.what, 14, "soft"), 250),
                fitted(Text(gives, y + 22, " × ".join(map(str, row.gives)), 14, anchor="middle"), 150),
                *([number] if row.parameters else []),
            ]
            y += STEP + gap
        y += 26 if times > 1 else 0
    height, width = config.height_width
    told = f"Images of {height}×{width}×{config.channels}; {_total(rows):,} parameters."
    heading = [
        *_heading(name, f"{Path(config.words).name}, for images of {height} × {width} × {config.channels}", rows),
        Text(gives, TOP + 6, "gives", 12, "soft", anchor="middle"),
        Text(right, TOP + 6, "parameters", 12, "soft", anchor="end"),
    ]
    return Drawing(WIDTH, y - gap + 36, f"The architecture of {name}", told, (*heading, *marks))


# Numbers


def _counts(rows: Sequence[ShapeRow], start: str = "") -> dict[str, int]:
    """How many parameters each step has whose name starts so, by name; for those of blocks by the name inside."""
    counts: dict[str, int] = {}
    for row in rows:
        if row.name.startswith(start):
            name = row.name.split(".", 2)[2] if start == "blocks." else row.name
            counts[name] = counts.get(name, 0) + row.parameters * row.times
    return counts


def _total(rows: Sequence[ShapeRow]) -> int:
    return sum(row.parameters * row.times for row in rows)


def _tokens(rows: Sequence[ShapeRow]) -> tuple[int, int]:
    """How many tokens a block gets, and their width."""
    tokens, width = next(row.takes for row in rows if row.name.endswith(".norm1"))
    return tokens, width


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"
