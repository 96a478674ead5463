"""Drawings of boxes, lines and words, in the colours of all figures: written as SVG, which is light or dark as its
reader is, or as PNG.

Sizes are in units of the drawing, y points down. A colour is the name of a field of `Theme`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitral.errors import RecipeError
from vitral.files import write_whole
from vitral.look.figures import DARK, LIGHT, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Transform

Point = tuple[float, float]
COLOURS = ("ground", "ink", "soft", "grey", "grid", "blue", "orange", "green", "red")
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
# How wide letters are, over the size: of DejaVu Sans, which is the widest of the usual fonts, rounded up.
NARROW, WIDE = dict.fromkeys(" ijl.,:I|'’", 0.34), dict.fromkeys("mwMW%…", 1.0)
MIDDLE, CAPITAL, BOLD = 0.645, 0.86, 1.13


@dataclass(frozen=True)
class Box:
    """A rectangle; `fill` and `stroke` are colours or "", for none."""

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    stroke: str = ""
    radius: float = 0.0
    opacity: float = 1.0  # of the fill


@dataclass(frozen=True)
class Shape:
    """A polygon, or a disc of this radius around its one point."""

    points: tuple[Point, ...]
    fill: str
    stroke: str = ""
    radius: float = 0.0
    opacity: float = 1.0


@dataclass(frozen=True)
class Line:
    """A line through some points; its corners are round, its end may be an arrow."""

    points: tuple[Point, ...]
    stroke: str = "grey"
    width: float = 1.5
    arrow: bool = False


@dataclass(frozen=True)
class Text:
    """Words on a line; y is the line that letters stand on."""

    x: float
    y: float
    words: str
    size: float = 14.0
    colour: str = "ink"
    bold: bool = False
    anchor: Literal["start", "middle", "end"] = "start"

    @property
    def width(self) -> float:
        """How wide it is at most."""
        letters = NARROW | WIDE
        ems = sum(
            letters.get(sign, MIDDLE if sign.isascii() and not sign.isupper() else CAPITAL) for sign in self.words
        )
        return ems * self.size * (BOLD if self.bold else 1)

    @property
    def left(self) -> float:
        return self.x - self.width * {"start": 0, "middle": 0.5, "end": 1}[self.anchor]


@dataclass(frozen=True)
class Window:
    """A part of some marks, `view`, seen in a box of the drawing; the rest of them is cut off."""

    x: float
    y: float
    width: float
    height: float
    view: tuple[float, float, float, float]  # x, y, width, height
    marks: "tuple[Mark, ...]"


Mark = Box | Shape | Line | Text | Window
CORNER, ARROW = 9.0, 7.0


@dataclass(frozen=True)
class Drawing:
    """Marks on a ground, later ones above earlier ones, with a title and a description for those who do not see it."""

    width: float
    height: float
    title: str
    description: str
    marks: tuple[Mark, ...]

    def write(self, path: Path) -> None:
        """Write the drawing as what the name of the file says: .svg or .png; its folder is made."""
        if path.suffix.lower() not in (".svg", ".png"):
            raise RecipeError(f"{path.name} is no name for a drawing: it ends with .svg or .png.")
        content = self.svg() if path.suffix.lower() == ".svg" else self.png()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)

    def svg(self) -> str:
        """The drawing as SVG: words are words, and it needs nothing but itself.

        >>> Drawing(40, 20, "A box", "", (Box(0, 0, 40, 20, "blue"),)).svg().splitlines()[-2]
        '<rect x="0" y="0" width="40" height="20" class="blue"/>'
        """
        ground = Box(0.5, 0.5, self.width - 1, self.height - 1, "ground", "grid", 12)
        size = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}" width="{_number(self.width)}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(self.description)}</desc>',
            "<style>",
            f"text {{ font-family: {FONTS}; font-variant-numeric: tabular-nums; }}",
            *_rules(LIGHT),
            "@media (prefers-color-scheme: dark) {",
            *_rules(DARK),
            "}",
            "</style>",
            *(line for mark in (ground, *self.marks) for line in _tags(mark)),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def png(self) -> bytes:
        """The drawing as PNG, light, with two pixels for a unit."""
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context({"font.family": "DejaVu Sans", "text.parse_math": False}):
            canvas = Figure(figsize=(self.width / 100, self.height / 100), dpi=200, facecolor=LIGHT.ground)
            axes = canvas.add_axes((0, 0, 1, 1))
            axes.set(xlim=(0, self.width), ylim=(self.height, 0))
            axes.axis("off")
            _paint(axes, self.marks, axes.transData)
            png = BytesIO()
            canvas.savefig(png, format="png")
        return png.getvalue()


def fitted(text: Text, room: float) -> Text:
    """The words made smaller, where they would take more than this room."""
    return text if text.width <= room else replace(text, size=text.size * room / text.width)


# SVG


def _rules(theme: Theme) -> Iterator[str]:
    """A class for each colour, as fill and as line."""
    for name in COLOURS:
        yield f".{name} {{ fill: {getattr(theme, name)}; }} .{name}-line {{ stroke: {getattr(theme, name)}; }}"


def _tags(mark: Mark) -> Iterator[str]:
    match mark:
        case Window(x, y, width, height, view, marks):
            yield f'<svg {_pairs(x=x, y=y, width=width, height=height)} viewBox="{" ".join(map(_number, view))}" preserveAspectRatio="none">'  # noqa: E501
            for inside in marks:
                yield from _tags(inside)
            yield "</svg>"
        case Box(x, y, width, height, fill, stroke, radius, opacity):
            round_ = {"rx": radius} if radius else {}
            yield f"<rect {_pairs(x=x, y=y, width=width, height=height, **round_)} {_paints(fill, stroke, opacity)}/>"
        case Shape(((x, y),), fill, stroke, radius, opacity):
            yield f"<circle {_pairs(cx=x, cy=y, r=radius)} {_paints(fill, stroke, opacity)}/>"
        case Shape(points, fill, stroke, _, opacity):
            yield f'<polygon points="{" ".join(map(_pair, points))}" {_paints(fill, stroke, opacity)}/>'
        case Line(points, stroke, width, arrow):
            steps = " ".join(f"{word}{' '.join(map(_pair, places))}" for word, places in _path(mark))
            yield f'<path d="{steps}" fill="none" stroke-width="{_number(width)}" class="{stroke}-line"/>'
            if arrow:
                yield from _tags(Shape(_arrow_head(points), stroke))
        case Text(x, y, words, size, colour, bold, anchor):
            weight = ' font-weight="bold"' if bold else ""
            place = "" if anchor == "start" else f' text-anchor="{anchor}"'
            yield f'<text {_pairs(x=x, y=y)} font-size="{_number(size)}"{weight}{place} class="{colour}">{escape(words)}</text>'  # noqa: E501


def _paints(fill: str, stroke: str, opacity: float) -> str:
    classes = " ".join([*([fill] if fill else []), *([f"{stroke}-line"] if stroke else [])])
    return "".join([
        f'class="{classes}"',
        "" if fill else ' fill="none"',
        "" if opacity == 1 or not fill else f' fill-opacity="{_number(opacity)}"',
    ])  # fmt: skip


def _pairs(**values: float) -> str:
    return " ".join(f'{name}="{_number(value)}"' for name, value in values.items())


def _pair(point: Point) -> str:
    return f"{_number(point[0])},{_number(point[1])}"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _path(line: Line) -> list[tuple[str, tuple[Point, ...]]]:
    """The steps of a line in SVG's words: M to a point, L a line to it, Q a curve past a corner."""
    first, *rest = line.points
    steps: list[tuple[str, tuple[Point, ...]]] = [("M", (first,))]
    for before, corner, after in zip(line.points, rest, rest[1:], strict=False):
        steps += [("L", (_towards(corner, before, CORNER),)), ("Q", (corner, _towards(corner, after, CORNER)))]
    # The point of an arrow is its head's.
    end = _towards(rest[-1], line.points[-2], ARROW - 1) if line.arrow else rest[-1]
    return [*steps, ("L", (end,))]


def _towards(start: Point, end: Point, distance: float) -> Point:
    (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
    length = max((dx**2 + dy**2) ** 0.5, 1e-9)
    return x + dx / length * min(distance, length), y + dy / length * min(distance, length)


def _arrow_head(points: Sequence[Point]) -> tuple[Point, ...]:
    (x, y), (base_x, base_y) = points[-1], _towards(points[-1], points[-2], ARROW)
    across = (y - base_y) * 0.6, (base_x - x) * 0.6
    return (x, y), (base_x + across[0], base_y + across[1]), (base_x - across[0], base_y - across[1])


# PNG


def _paint(axes: "Axes", marks: Sequence[Mark], transform: "Transform", clip: Any = None) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch, PathPatch, Polygon, Rectangle
    from matplotlib.path import Path as Curve
    from matplotlib.transforms import Affine2D

    codes = {"M": Curve.MOVETO, "L": Curve.LINETO, "Q": Curve.CURVE3}
    for mark in marks:
        match mark:
            case Window(x, y, width, height, (left, top, across, down), inside):
                into = Affine2D().translate(-left, -top).scale(width / across, height / down).translate(x, y)
                frame = Rectangle((x, y), width, height, transform=transform)
                _paint(axes, inside, into + transform, frame)
                continue
            case Box(x, y, width, height, fill, stroke, radius, opacity):
                style = f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0"
                shape: Any = FancyBboxPatch((x, y), width, height, style, **_styles(fill, stroke, opacity))
            case Shape((centre,), fill, stroke, radius, opacity):
                shape = Circle(centre, radius, **_styles(fill, stroke, opacity))
            case Shape(points, fill, stroke, _, opacity):
                shape = Polygon(points, closed=True, **_styles(fill, stroke, opacity))
            case Line(points, stroke, line_width, arrow):
                steps = _path(mark)
                places = [place for _, each in steps for place in each]
                curve = Curve(places, [codes[word] for word, each in steps for _ in each])
                shape = PathPatch(curve, fill=False, edgecolor=getattr(LIGHT, stroke), linewidth=0.72 * line_width)
                if arrow:
                    _paint(axes, [Shape(_arrow_head(points), stroke)], transform, clip)
            case Text(x, y, words, size, colour, bold, anchor):
                align: Any = {"start": "left", "middle": "center", "end": "right"}[anchor]
                weight = "bold" if bold else "normal"
                style_of: Any = {"color": getattr(LIGHT, colour), "fontweight": weight, "fontsize": 0.72 * size}
                axes.text(x, y, words, ha=align, va="baseline", **style_of)
                continue
        shape.set_transform(transform)
        axes.add_patch(shape)
        if clip is not None:
            shape.set_clip_path(clip)


def _styles(fill: str, stroke: str, opacity: float) -> dict[str, Any]:
    from matplotlib.colors import to_rgba

    return {
        "facecolor": to_rgba(getattr(LIGHT, fill), opacity) if fill else "none",
        "edgecolor": getattr(LIGHT, stroke) if stroke else "none",
        "linewidth": 0.72,
    }
