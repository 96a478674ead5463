"""A CSV or JSONL file: a path per line and what is to be learnt about it, and a split where there is one."""

import csv
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitral.data.sources.annotations import (
    COMMA,
    SEPARATORS,
    Column,
    Kind,
    Labelling,
    asked_columns,
    class_of,
    has_lists,
    is_indicator,
    labellings,
    labels_of,
    labels_of_columns,
    shares_labels,
)
from vitral.data.sources.splits import SPLIT_WORDS
from vitral.errors import DataError

Cell = str | list[str]

PATH = ("path", "file", "filename", "image", "filepath", "image_path", "file_name")
LABEL = ("label", "class", "category", "target", "class_name")
LABELS = ("labels", "tags")
SPLIT = ("split", "set", "subset", "fold")


@dataclass(frozen=True)
class Table:
    """The columns of a table, one entry per line."""

    paths: list[str]
    learnt: list[Labelling]  # what the columns say that data.target asks for
    splits: list[str]  # of SPLITS, or "" where no column says
    groups: list[str] | None  # the column of data.group_by


@dataclass(frozen=True)
class Head:
    """The names of the columns, and what each is for."""

    path: str
    split: str | None
    group: str | None
    target: dict[str, Kind]  # what is to be learnt; the kind `auto`: what its cells look like
    named: bool  # whether data.target names those
    names: list[str]  # of all columns

    @classmethod
    def of(cls, row: Mapping[str, Any], path: Path, group_by: str, target: str) -> "Head":
        """From the first line."""
        name = _column(row, PATH, path)
        split = next((name for name in row if name.strip().lower() in SPLIT), None)
        group = group_by if group_by in row else None
        names = list(row)
        if named := target not in ("auto", "class", "labels"):
            return cls(name, split, group, asked_columns(target, names, path.name), named, names)
        first, second = (LABELS, LABEL) if target == "labels" else (LABEL, LABELS)
        label = next((words for words in (first, second) if _matches(row, words)), None)
        if label:
            return cls(name, split, group, {_column(row, label, path): "auto"}, named, names)
        others = [other for other in row if other.strip() and other not in (name, split, group)]
        if target == "class" or not others:
            _column(row, LABEL, path)  # there is none: it says so
        return cls(name, split, group, dict.fromkeys(others, "auto"), named, names)


def read_table(path: Path, group_by: str, target: str = "auto") -> Table:
    """All lines of a file. `group_by` is the name of a column, or a pattern that `groups_of` applies later."""
    lines = _csv_lines(path) if path.suffix.lower() in (".csv", ".tsv") else _json_lines(path)
    paths: list[str] = []
    splits: list[str] = []
    groups: list[str] = []
    numbers: list[int] = []  # of the lines
    cells: dict[str, list[Cell]] = {}
    head: Head | None = None
    lines_of: dict[str, int] = {}
    known: dict[str, str] = {}  # one string for each label, split and group, however many lines name it
    try:
        for number, row in lines:
            if head is None:
                head = Head.of(row, path, group_by, target)
                cells = {name: [] for name in head.target}
            where = f"{path}, line {number}"
            name = _path(_text(row, head.path, where), path.parent)
            if (before := lines_of.setdefault(name, number)) != number:
                raise DataError(f"{where}: {name} was named in line {before} already. Give each picture one line.")
            paths.append(name)
            numbers.append(number)
            for column, so_far in cells.items():
                cell = _cell(row.get(column), column, where)
                so_far.append(known.setdefault(cell, cell) if isinstance(cell, str) else cell)
            splits.append(_split(row, head.split, where))
            if head.group:
                group = _text(row, head.group, where).strip()
                groups.append(known.setdefault(group, group))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8. Save it again in that encoding.") from None
    except (csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}).") from None
    if head is None:
        raise DataError(f"{path} has no lines: a line for each picture is expected, with a path and a label.")
    columns = [Column(name, said, lambda row: f"{path}, line {numbers[row]}") for name, said in cells.items()]
    return Table(paths, _learnt(columns, head, path, target), splits, groups if head.group else None)


def _learnt(columns: list[Column], head: Head, path: Path, target: str) -> list[Labelling]:
    """What the columns say: those that are asked for, the label, or one for each label."""
    if head.named:
        return labellings(columns, head.target)
    if not _matches(head.target, (*LABEL, *LABELS)):
        if target == "labels" or all(map(is_indicator, columns)):
            return [labels_of_columns(columns)]
        _column(head.names, LABEL, path)  # there is none: it says so
    [column] = columns
    several = has_lists(column) or shares_labels(column)
    if of_labels := bool(_matches([column.name], LABELS)):
        parted = any(cell == "" or any(one in cell for one in SEPARATORS) for cell in column.cells)
        several = several or parted or shares_labels(column, [COMMA])
    if target == "labels" or (target == "auto" and several):
        return [labels_of(column)]
    return [class_of(column, asked_for=of_labels)]


def _csv_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        delimiter = max(",;\t", key=first.count)
        reader = csv.DictReader(file, delimiter=delimiter)
        for row in reader:
            if None in row:
                raise DataError(f"{path}, line {reader.line_num} has more columns than the first line names.")
            yield reader.line_num, row


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is not JSON ({getattr(error, 'msg', error)}).") from None
            if not isinstance(row, dict):
                raise DataError(f'{path}, line {number} is not a table such as {{"path": "a.jpg", "label": "cat"}}.')
            yield number, row


def _matches(names: Iterable[str], words: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.strip().lower() in words]


def _column(names: Iterable[str], words: tuple[str, ...], path: Path) -> str:
    matches = _matches(names, words)
    if len(matches) != 1:
        has = f"has {' and '.join(matches)}" if matches else f"has only {', '.join(map(str, names))}"
        others = [name for name in names if words is LABEL and name.strip() and not _matches([name], (*PATH, *SPLIT))]
        targets = " or ".join(f"data.target={other}" for other in others[:4])
        advice = f" Say which one is to be learnt: {targets}." if others else ""
        raise DataError(f"{path} needs one column {words[0]} (or {', '.join(words[1:4])}), and {has}.{advice}")
    return matches[0]


def _cell(value: Any, column: str, where: str) -> Cell:
    """What is to be learnt, as the table has it."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value)):
        raise DataError(f"{where}: {column} is neither a text, a number nor a list of labels.")
    if isinstance(value, list):
        return [str(one) for one in value]
    return "" if value is None else str(value).strip()


def _path(text: str, folder: Path) -> str:
    """A path of the table; one that Windows wrote has backslashes."""
    if "\\" in text and not (folder / text).exists():
        text = text.replace("\\", "/")
    return posixpath.normpath(text)


def _text(row: dict[str, Any], column: str, where: str) -> str:
    value = row.get(column)
    if isinstance(value, list | dict):
        raise DataError(f"{where}: {column} is a list, and a text was expected.")
    if value is None or not str(value).strip():
        raise DataError(f"{where}: {column} is empty.")
    return str(value)


def _split(row: dict[str, Any], column: str | None, where: str) -> str:
    if column is None:
        return ""
    word = str(row.get(column) or "train").strip().lower()
    if word not in SPLIT_WORDS:
        raise DataError(f"{where}: {column} is {word}, and should be train, validation (or val) or test.")
    return SPLIT_WORDS[word]
