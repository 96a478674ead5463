"""The parts of a ViT as they are drawn, from the picture to the classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitral.look.columns import LEFT, LINE, NOTES, NUMBERS, RIGHT, Note, Part, beside, dots, many, tinted
from vitral.look.drawing import Box, Line, Mark, Shape, Text, Window, fitted
from vitral.model.config import ViTConfig, resnet_widths
from vitral.model.shapes import ShapeRow, count_parameters

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}


def model_parts(config: ViTConfig, rows: Sequence[ShapeRow]) -> list[Part]:
    count, (tokens, D) = counts(rows), tokens_of(rows)
    size = f"{tokens} × {D}"
    pooled = next((row.gives[-1] for row in rows if row.name == "pool"), D)
    view = f"{config.read_out} × {D}" if config.read_out > 1 else f"{pooled}"
    norm, normed = config.pool.norm, f"{view}\u2003(4)"  # without a norm it is not equation (4)
    parts = [_picture(config), _patches(config), _stem(config, rows), _tokens_and_positions(config, count, size)]
    norm_name = NORMS[config.blocks.norm]
    if config.blocks.first_norm:
        parts.append(_named(norm_name, "grey", 32, [Note("before the first block", count["norm_pre"])], size))
    parts.append(_encoder(config, rows, size))
    if norm == "before":
        parts.append(_named(norm_name, "grey", 32, [Note("of every token", count["norm"])], size))
    gives = normed if norm == "before" else view
    if config.pool.kind == "map":
        notes = [Note("a learned query asks", sum(counts(rows, "attn_pool").values())), Note("then an MLP")]
        parts.append(_readout(config, f"{tokens - config.extra} × {D}"))
        parts.append(_named("Attention pooling", "orange", 40, notes, gives))
    else:
        parts.append(_readout(config, gives))
    if norm == "after":
        parts.append(_named(norm_name, "grey", 32, [Note("of what is read", count["fc_norm"])], normed))
    return [*parts, *_head(config, count, pooled), _end(config, rows, pooled)]


def _named(
    title: str, colour: str, height: float, notes: Sequence[Note], gives: str, role: Literal["", "stem"] = ""
) -> Part:
    """A box with a name, as wide as the column."""

    def draw(y: float) -> list[Mark]:
        words = Text((LEFT + RIGHT) / 2, y + height / 2 + 5, title, 15, bold=True, anchor="middle")
        return [*tinted(LEFT, y, RIGHT - LEFT, height, colour), words, *beside(y, height, notes)]

    return Part(height, draw, gives, role)


def _picture(config: ViTConfig) -> Part:
    (height, width), (down, across), P, C = config.height_width, config.grid, config.patch_size, config.channels
    scale = 124 / max(height, width)
    high, wide = max(12.0, height * scale), max(12.0, width * scale)
    left = (LEFT + RIGHT - wide) / 2
    tall = max(high, 3 * LINE)
    notes = [
        Note(f"Image {height} × {width} × {C}", strong=True),
        Note(f"{down} × {across} = {many(down * across, 'patch', 'patches')}"),
        Note(f"of {P} × {P} × {C} = {P * P * C} numbers"),
    ]

    def draw(y: float) -> list[Mark]:
        top = y + (tall - high) / 2
        cut = min(2.0, 0.14 * min(high / down, wide / across))
        rows = [top + high * row / down for row in range(1, down)]
        columns = [left + wide * column / across for column in range(1, across)]
        cuts = [Line(((left, at), (left + wide, at)), "ground", cut) for at in rows]
        cuts += [Line(((at, top), (at, top + high)), "ground", cut) for at in columns]
        return [_scene(config, left, top, wide, high, (0, 0, 1, 1)), *cuts, *beside(y, tall, notes)]

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
                marks.append(dots(x + side / 2, y + side / 2))
                continue
            row, column = divmod(number, across)
            marks.append(_scene(config, x, y, side, side, (column / across, row / down, 1 / across, 1 / down)))
            marks.append(Box(x, y, side, side, "", "grid"))
        how = "flattened" if flat else "overlapping"
        return [*marks, *beside(y, side, [Note(f"in reading order, {how}")])]

    return Part(side, draw, f"{count} × {config.patch_size**2 * config.channels}" if flat else "")


def _stem(config: ViTConfig, rows: Sequence[ShapeRow]) -> Part:
    numbers, D, channels = config.patch_size**2 * config.channels, config.width, config.stem.channels
    learned, times = sum(counts(rows, "patch_embed").values()), config.patch_size.bit_length() - 1
    maps, stages = resnet_widths(config.stem.depths, config.stem.widths), " + ".join(map(str, config.stem.depths))
    blocks = f"{stages} blocks" if stages else "no blocks"
    norm = NORMS[config.blocks.norm]
    often = "once" if times == 1 else f"{times} times"
    title, *words = {
        "linear": ("Linear projection", f"E: {numbers} → {D}", *[f"then {norm}"] * config.stem.norm),
        "conv": ("Stem: conv", f"3×3, stride 2, {often}", f"{channels} channels, then {channels} → {D}"),
        "whitened": ("Stem: whitened", "2×2, whitened", f"3×3 and pool, {often}, → {D}"),
        "resnet": ("Stem: ResNet", blocks, f"stride {config.stem.stride}, {maps[-1]} channels → {D}"),
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
    tasks = len(config.tokens.outputs)
    faces = {
        "cls_token": ("orange", f"{tasks} tasks", 48.0 + 9 * len(f"{tasks}")) if tasks else ("orange", "class", 56.0),
        "dist_token": ("red", "distilled", 80.0),
        "reg_token": ("green", f"{registers} reg.", 48.0 + 9 * len(str(registers))),
    }
    extra = [(*faces[name], count) for name, count in config.extra_tokens.items()]
    placed = config.read_out if config.positions.class_token and kind != "sincos-2d" else 0
    most = 5 - len(extra)
    shown: list[int | None] = [*range(count)] if count <= most else [*range(most - 1), None, count - 1]
    open_ = RIGHT - LEFT - sum(wide for *_, wide, _ in extra) - gap * (len(extra) + len(shown) - 1)
    dots = 16.0 if None in shown else 0.0
    width = (open_ - dots) / (len(shown) - (None in shown))
    chips, x, first = list[Chip](), LEFT, 0
    for colour, words, wide, several in extra:
        last = first + several - 1
        place = f"{first}" if several == 1 else f"{first}–{last}"
        chips.append(Chip(x, wide, colour, words, place if last < placed else ""))
        x, first = x + wide + gap, last + 1
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
    adds = kind not in ("none", "relative", "rotary")
    registers = many(config.tokens.registers, "register")
    first = "task tokens" if config.tokens.outputs else "class"
    extra = {"cls_token": first, "dist_token": "distilled", "reg_token": registers}
    label = " + ".join(extra[name] for name in config.extra_tokens) or "no extra token"
    tokens = Note(
        "class token" if label == "class" else label,
        sum(count[name] for name in config.extra_tokens),
    )
    positions = Note(
        {"none": "no positions"}.get(kind, f"+ {kind} positions" if adds else f"{kind} positions, in blocks"),
        count.get("pos_embed", 0),
    )

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for chip in _chips(config):
            middle = chip.x + chip.width / 2
            if not chip.colour:
                marks += [dots(middle, y + high / 2), *([dots(middle, y + high + 18)] if adds else [])]
                continue
            marks += tinted(chip.x, y, chip.width, high, chip.colour, 0.3)
            marks += [Text(middle, y + high / 2 + 4.5, chip.words, 13, anchor="middle")] if chip.words else []
            if adds and chip.place:
                marks.append(Box(chip.x, y + high + 6, chip.width, low, "grid", radius=6))
                marks.append(fitted(Text(middle, y + high + 22.5, chip.place, 13, anchor="middle"), chip.width - 4))
        if not adds:
            return [*marks, *beside(y, high, [tokens, positions])]
        return [*marks, *beside(y, high, [tokens]), *beside(y + high + 6, low, [positions])]

    return Part(high + 6 + low if adds else high, draw, f"{size}\u2003(1)")


def _encoder(config: ViTConfig, rows: Sequence[ShapeRow], gives: str) -> Part:
    behind, high, step = min(config.depth - 1, 2), 50.0, 5.0
    notes = [
        Note(f"{many(config.depth, 'block')} of width {config.width}", sum(counts(rows, "blocks.").values())),
        Note(f"{many(config.heads, 'head')} of {config.width // config.heads}, MLP {config.mlp_size}"),
    ]

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for card in range(behind, -1, -1):  # the blocks lie behind each other
            marks += tinted(
                LEFT + step * card, y + step * (behind - card), RIGHT - LEFT - 2 * step * card, high, "blue"
            )
        front = y + step * behind
        words = Text(
            (LEFT + RIGHT) / 2, front + high / 2 + 6, f"Encoder × {config.depth}", 17, bold=True, anchor="middle"
        )
        return [*marks, words, *beside(front, high, notes)]

    return Part(high + step * behind, draw, gives, "encoder")


def _readout(config: ViTConfig, gives: str) -> Part:
    """The tokens again: those that the head sees are filled."""
    patches, high, pool = config.grid[0] * config.grid[1], 22.0, config.pool.kind
    read = "each task’s token" if config.tokens.outputs else "class and distilled token"
    words = {
        "class": "class token" if config.read_out == 1 else read,
        "mean": f"mean of {many(patches, 'patch', 'patches')}",
        "class-mean": "class token, mean of patches",
        "map": "patches",
    }[pool]
    seen = {"class": ("orange", "red"), "mean": ("blue",), "class-mean": ("orange", "blue"), "map": ("blue",)}[pool]

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for chip in _chips(config):
            if not chip.colour:
                marks.append(dots(chip.x + chip.width / 2, y + high / 2))
            elif chip.colour in seen:
                marks.append(Box(chip.x, y, chip.width, high, chip.colour, chip.colour, 6, 0.7))
            else:
                marks.append(Box(chip.x, y, chip.width, high, "", "grey", 6))
        return [*marks, *beside(y, high, [Note(f"read: {words}")])]

    return Part(high, draw, gives)


def _head(config: ViTConfig, count: dict[str, int], pooled: int) -> list[Part]:
    hidden, parts, kind = config.head.size or pooled, list[Part](), config.head.kind
    if kind in ("mlp", "hidden"):
        gives = f"{config.read_out} × {hidden}" if config.read_out > 1 else f"{hidden}"
        notes = [Note(f"{pooled} → {hidden}, tanh", count["pre_logits"])]
        parts.append(_named("Hidden layer", "orange", 40, notes, gives))
    if not config.has_classes:
        return parts
    if config.tokens.outputs:
        outputs = [*map(str, config.tokens.outputs[:4]), *["…"][: len(config.tokens.outputs) - 4]]
        notes = [Note(f"{config.width} → {', '.join(outputs)}", count["head"])]
        return [*parts, _named("A linear head each", "orange", 40, notes, " + ".join(outputs))]
    notes = [Note(f"{hidden} → {config.classes}", count[name]) for name in config.classifiers]
    if len(notes) == 1:
        return [*parts, _named("Linear head", "orange", 40, notes, f"{config.classes}")]
    width = (RIGHT - LEFT - 12) / 2

    def draw(y: float) -> list[Mark]:
        marks: list[Mark] = []
        for x, words, colour in ((LEFT, "Linear head", "orange"), (RIGHT - width, "Distilled head", "red")):
            marks += tinted(x, y, width, 40, colour)
            marks.append(fitted(Text(x + width / 2, y + 25, words, 15, bold=True, anchor="middle"), width - 12))
        return [*marks, *beside(y, 40, notes)]

    return [*parts, Part(40, draw, f"2 × {config.classes}, their mean")]


def _end(config: ViTConfig, rows: Sequence[ShapeRow], pooled: int) -> Part:
    """What comes out; and below all numbers, their sum."""
    words = many(config.classes, "class", "classes")
    if config.tokens.outputs:
        words = f"{config.classes} outputs of {len(config.tokens.outputs)} tasks"
    if not config.has_classes:
        words = f"{pooled if config.head.kind == 'none' else config.head.size or pooled} features"

    def draw(y: float) -> list[Mark]:
        return [
            Box(LEFT, y, RIGHT - LEFT, 36, "ink", radius=18),
            Text((LEFT + RIGHT) / 2, y + 23, words, 15, "ground", bold=True, anchor="middle"),
            Line(((NOTES, y), (NUMBERS, y)), "grey", 1),
            Text(NOTES, y + 23, "in all", 14, bold=True),
            Text(NUMBERS, y + 23, f"{count_parameters(rows):,}", 14, bold=True, anchor="end"),
        ]

    return Part(36, draw)


def counts(rows: Sequence[ShapeRow], start: str = "") -> dict[str, int]:
    """How many parameters each step has whose name starts so, by name; for those of blocks by the name inside."""
    counts: dict[str, int] = {}
    for row in rows:
        if row.name.startswith(start):
            name = row.name.split(".", 2)[2] if start == "blocks." else row.name
            counts[name] = counts.get(name, 0) + row.parameters * row.times
    return counts


def tokens_of(rows: Sequence[ShapeRow]) -> tuple[int, int]:
    """How many tokens a block gets, and their width."""
    tokens, width = next(row.takes for row in rows if row.name.startswith("blocks.") and row.name.endswith(".norm1"))
    return tokens, width
