"""Parts of a model, drawn one below the other, with words and numbers beside them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from vitral.look.drawing import Box, Line, Mark, Text, fitted

LEFT, RIGHT = 36.0, 356.0  # of the parts of the model
NOTES, NUMBERS = 374.0, 652.0  # where words on a part start, and where its number of parameters ends
GAP, LINE = 30.0, 20.0  # between two parts, at least, and between two lines of words


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


def least(parts: Sequence[Part]) -> float:
    return sum(part.height for part in parts) + GAP * (len(parts) - 1)


def places(parts: Sequence[Part], top: float, bottom: float) -> list[float]:
    """The y of each part: the first at the top, the last at the bottom, with equal gaps between."""
    gap = (bottom - top - sum(part.height for part in parts)) / (len(parts) - 1)
    places = [top]
    for part in parts[:-1]:
        places.append(places[-1] + part.height + gap)
    return places


def column(parts: Sequence[Part], places: Sequence[float], x: float) -> list[Mark]:
    """The parts, with an arrow from each to the next, and beside it what goes along it."""
    marks: list[Mark] = []
    for (part, y), (_, below) in pairwise(zip(parts, places, strict=True)):
        end = y + part.height
        marks.append(Line(((x, end + 4), (x, below - 3)), arrow=True))
        if part.gives:
            marks.append(Text(x + 12, (end + below) / 2 + 4, part.gives, 13, "soft"))
    return [*marks, *(mark for part, y in zip(parts, places, strict=True) for mark in part.draw(y))]


def tinted(x: float, y: float, width: float, height: float, colour: str, opacity: float = 0.16) -> list[Mark]:
    """A box in a pale colour that nothing shines through."""
    return [
        Box(x, y, width, height, "ground", radius=8),
        Box(x, y, width, height, colour, colour, 8, opacity),
    ]


def lines(notes: Iterable[Note], left: float, right: float, base: float) -> list[Mark]:
    """Lines of words from the left, with numbers of parameters at the right; `base` is where the first one stands."""
    marks: list[Mark] = []
    for line, note in enumerate(notes):
        y = base + LINE * line
        number = Text(right, y, f"{note.parameters:,}", anchor="end")
        room = (number.left - 10 if note.parameters else right) - left
        marks.append(fitted(Text(left, y, note.words, 14, "ink" if note.strong else "soft", note.strong), room))
        marks += [number] if note.parameters else []
    return marks


def beside(y: float, height: float, notes: Sequence[Note]) -> list[Mark]:
    """Words beside a part of the model, as high as its middle."""
    return lines(notes, NOTES, NUMBERS, y + height / 2 + 5 - LINE * (len(notes) - 1) / 2)


def dots(x: float, y: float) -> Text:
    """What stands for those that are not drawn, around this place."""
    return Text(x, y + 2, "…", 16, "soft", anchor="middle")


def many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"
