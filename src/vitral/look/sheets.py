"""Contact sheets: many pictures on one page, with a line under each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from vitral.files import write_whole
from vitral.look.figures import GREY, INK

TILE, GAP, MARGIN, COLUMNS = 112, 12, 28, 8
PALE = "#F0F2F4"
WIDTH = 2 * MARGIN + COLUMNS * TILE + (COLUMNS - 1) * GAP


@dataclass(frozen=True)
class Tile:
    """A picture with a line or two below it."""

    image: Image.Image | None  # None: it could not be read
    caption: str = ""
    below: str = ""
    colour: str = INK


@dataclass(frozen=True)
class Section:
    """A heading, a line of text and tiles. Tiles of one group stand side by side on one ground."""

    heading: str
    text: str
    groups: Sequence[Sequence[Tile]]


def write_sheet(path: Path, title: str, subtitle: str, sections: Sequence[Section]) -> None:
    """Write a sheet of the sections, one below the other, as PNG."""
    height = MARGIN + 72 + sum(_height(section) for section in sections) + MARGIN // 2
    sheet = Image.new("RGB", (WIDTH, height), "white")
    pen = ImageDraw.Draw(sheet)
    _line(pen, (MARGIN, MARGIN - 6), title, 22, INK, bold=True, room=WIDTH - 2 * MARGIN)
    _line(pen, (MARGIN, MARGIN + 28), subtitle, 13, "#555B63", room=WIDTH - 2 * MARGIN)
    top = MARGIN + 72
    for section in sections:
        top = _draw(sheet, pen, section, top)
    content = BytesIO()
    sheet.save(content, "PNG")
    write_whole(path, content.getvalue())


def as_picture(pixels: NDArray[np.uint8]) -> Image.Image:  # (C, H, W)
    """An array as a Pillow image; of bands, the first."""
    bands = pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels[0]
    return Image.fromarray(np.ascontiguousarray(bands))


def _rows(section: Section) -> list[list[Sequence[Tile]]]:
    """The groups of a section in rows of at most COLUMNS tiles."""
    rows: list[list[Sequence[Tile]]] = []
    used = COLUMNS
    for group in section.groups:
        group = group[:COLUMNS]
        if used + len(group) > COLUMNS:
            rows.append([])
            used = 0
        rows[-1].append(group)
        used += len(group)
    return rows


def _wrap(text: str, size: int = 12, bold: bool = False) -> list[str]:
    """The text in lines that fit the sheet."""
    lines: list[str] = []
    for word in text.split():
        if lines and _font(size, bold).getlength(f"{lines[-1]} {word}") <= WIDTH - 2 * MARGIN:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _lines(section: Section) -> int:
    """The lines of text below each tile of a section."""
    tiles = [tile for group in section.groups for tile in group]
    return max(((tile.caption != "") + (tile.below != "") for tile in tiles), default=0)


def _height(section: Section) -> int:
    head = 20 * len(_wrap(section.heading, 15, True)) + 6 * bool(section.heading)
    head += 17 * len(_wrap(section.text)) + 5 * bool(section.text)
    return head + len(_rows(section)) * (TILE + 16 * _lines(section) + GAP + 4) + 18


def _draw(sheet: Image.Image, pen: ImageDraw.ImageDraw, section: Section, top: int) -> int:
    bottom = top + _height(section)
    for line in _wrap(section.heading, 15, True):
        _line(pen, (MARGIN, top), line, 15, INK, bold=True, room=WIDTH - 2 * MARGIN)
        top += 20
    top += 6 * bool(section.heading)
    for line in _wrap(section.text):
        _line(pen, (MARGIN, top - 2), line, 12, "#555B63", room=WIDTH - 2 * MARGIN)
        top += 17
    top += 5 * bool(section.text)
    tall = TILE + 16 * _lines(section)
    for row in _rows(section):
        left = MARGIN
        for group in row:
            if len(group) > 1:
                wide = len(group) * (TILE + GAP) - GAP
                pen.rounded_rectangle((left - 5, top - 5, left + wide + 4, top + tall + 3), 6, fill=PALE)
            for tile in group:
                _tile(sheet, pen, tile, left, top)
                left += TILE + GAP
        top += tall + GAP + 4
    return bottom


def _tile(sheet: Image.Image, pen: ImageDraw.ImageDraw, tile: Tile, left: int, top: int) -> None:
    if tile.image is None:
        pen.rectangle((left, top, left + TILE - 1, top + TILE - 1), fill=PALE, outline=GREY)
        pen.line((left + 36, top + 36, left + 76, top + 76), GREY, 2)
        pen.line((left + 76, top + 36, left + 36, top + 76), GREY, 2)
    else:
        small = max(tile.image.size) < TILE
        resampling = Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
        thumbnail = ImageOps.contain(tile.image.convert("RGB"), (TILE, TILE), resampling)
        sheet.paste(thumbnail, (left + (TILE - thumbnail.width) // 2, top + (TILE - thumbnail.height) // 2))
    for line, (text, colour) in enumerate(((tile.caption, tile.colour), (tile.below, "#555B63"))):
        _line(pen, (left, top + TILE + 3 + 15 * line), text, 11, colour, room=TILE)


def _line(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    size: int,
    colour: str,
    *,
    room: int,
    bold: bool = False,
) -> None:
    """Write one line; of a line that does not fit, the end: names differ there."""
    text = "".join(sign if sign.isprintable() else "·" for sign in text)
    font = _font(size, bold)
    start = max(0, len(text) - int(room))  # more letters than pixels never fit
    line = f"…{text[start:]}" if start else text
    while pen.textlength(line, font) > room:
        start += 1
        line = f"…{text[start:]}"
    pen.text(place, line, colour, font)


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf", size)
