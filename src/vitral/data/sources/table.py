"""A CSV or JSONL file: a path and a label per line, and a split where there is one."""

import csv
import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitral.data.sources.splits import SPLIT_WORDS
from vitral.errors import DataError

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")

PATH = ("path", "file", "filename", "image", "filepath", "image_path", "file_name")
LABEL = ("label", "class", "category", "target", "class_name")
SPLIT = ("split", "set", "subset", "fold")


@dataclass(frozen=True)
class Table:
    """The columns of a table, one entry per line."""

    paths: list[str]
    classes: list[str]
    splits: list[str]  # of SPLITS, or "" where no column says
    groups: list[str] | None  # the column of data.group_by


def read_table(path: Path, group_by: str) -> Table:
    """All lines of a file. `group_by` is the name of a column, or a pattern that `groups_of` applies later."""
    lines = _csv_lines(path) if path.suffix.lower() in (".csv", ".tsv") else _json_lines(path)
    paths: list[str] = []
    classes: list[str] = []
    splits: list[str] = []
    groups: list[str] = []
    columns: dict[str, str | None] = {}
    lines_of: dict[str, int] = {}
    known: dict[str, str] = {}  # one string for each label, split and group, however many lines name it
    try:
        for number, row in lines:
            if not columns:
                columns = {"path": _column(row, PATH, path), "label": _column(row, LABEL, path)}
                columns["split"] = next((name for name in row if name.strip().lower() in SPLIT), None)
                columns["group"] = group_by if group_by in row else None
            where = f"{path}, line {number}"
            name = posixpath.normpath(_text(row, columns["path"], where))
            if (before := lines_of.setdefault(name, number)) != number:
                raise DataError(f"{where}: {name} was named in line {before} already. Give each picture one line.")
            paths.append(name)
            label = _text(row, columns["label"], where).strip()
            classes.append(known.setdefault(label, label))
            splits.append(_split(row, columns["split"], where))
            if columns["group"]:
                group = _text(row, columns["group"], where).strip()
                groups.append(known.setdefault(group, group))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8. Save it again in that encoding.") from None
    except (csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}).") from None
    if not paths:
        raise DataError(f"{path} has no lines: a line for each picture is expected, with a path and a label.")
    return Table(paths, classes, splits, groups if columns["group"] else None)


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


def _column(row: dict[str, Any], words: tuple[str, ...], path: Path) -> str:
    matches = [name for name in row if name.strip().lower() in words]
    if len(matches) != 1:
        has = f"has {' and '.join(matches)}" if matches else f"has only {', '.join(map(str, row))}"
        raise DataError(f"{path} needs one column {words[0]} (or {', '.join(words[1:4])}), and {has}.")
    return matches[0]


def _text(row: dict[str, Any], column: str | None, where: str) -> str:
    value = row.get(column or "")
    if isinstance(value, list | dict):
        raise DataError(f"{where}: {column} is a list. A picture with several labels cannot be learnt from yet.")
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
