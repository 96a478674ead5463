"""What a source says about its pictures becomes what is to be learnt: one class, several labels, a number, or several
of these side by side."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitral.data.sources.layout import display_name, few
from vitral.errors import DataError, RecipeError
from vitral.settings import unknown
from vitral.targets import Target, TargetKind

SEPARATORS = (";", "|")  # of labels in a cell
COMMA = ","  # likewise where a column is of labels, has no other separator, and several cells share what it parts
STRAY = 0.1  # of the cells: fewer words among numbers may be mistakes
MOST_NUMBERED = 10  # classes that are whole numbers without a gap; more of them are measured or counted
Kind = TargetKind | Literal["auto"]
YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")


@dataclass(frozen=True)
class Column:
    """What a source says about each picture under one name."""

    name: str
    cells: Sequence[Any]  # text, or a list of labels; from Python also a number
    where: Callable[[int], str]  # where the picture of this number is described: "birds.csv, line 7"


@dataclass(frozen=True)
class Labelling:
    """A target, and what it is for each picture."""

    target: Target
    labels: NDArray[Any]  # (n,) of a class, its number; else (n, outputs)
    notes: tuple[str, ...] = ()


def asked_columns(target: str, known: Sequence[str], source: str) -> dict[str, Kind]:
    """The columns that `data.target` names, `known` being those that there are, and the kind of each where it says so.

    >>> asked_columns("digit, high:number", ["path", "digit", "high"], "digits.csv")
    {'digit': 'auto', 'high': 'number'}
    """
    columns: dict[str, Kind] = {}
    kinds: tuple[TargetKind, ...] = ("class", "labels", "number")
    for part in [target] if target in known else [part.strip() for part in target.split(",")]:
        name, _, word = part.rpartition(":")
        kind = next((kind for kind in kinds if kind == word and part not in known), None)
        name = name if kind else part
        if name not in known:
            raise RecipeError(f"{unknown(name, list(known), 'column')} (data.target is {target}, in {source}.)")
        if name in columns:
            raise RecipeError(f"data.target is {target}, which names {name} twice.")
        columns[name] = kind or "auto"
    return columns


def labelling(column: Column, kind: Kind) -> Labelling:
    """What a column that was asked for says; of the kind `auto` it is what its cells look like."""
    if kind == "labels" or (kind == "auto" and (has_lists(column) or shares_labels(column))):
        return labels_of(column)
    if kind == "number" or (kind == "auto" and _is_measured(column)):
        return number_of(column)
    return class_of(column, asked_for=True)


def labellings(columns: Sequence[Column], kinds: Mapping[str, Kind]) -> list[Labelling]:
    """What each of these columns says; those of 0 and 1 that are asked for as labels are the labels of one target."""
    indicators = [column for column in columns if kinds[column.name] == "labels" and is_indicator(column)]
    found = []
    for column in columns:
        if column not in indicators:
            found.append(labelling(column, kinds[column.name]))
        elif column is indicators[0]:
            found.append(labels_of_columns(indicators))
    return found


def class_of(column: Column, asked_for: bool = False) -> Labelling:
    """A class for each picture, numbered in the order of the alphabet."""
    for number, cell in enumerate(column.cells):
        if isinstance(cell, list):
            raise DataError(
                f"{column.where(number)}: {column.name} is a list. For several labels a picture set data.target=labels."
            )
        if cell == "":
            raise DataError(f"{column.where(number)}: {column.name} is empty.")
    names = sorted(set(column.cells))
    number_of_name = {name: number for number, name in enumerate(names)}
    labels = np.fromiter((number_of_name[name] for name in column.cells), np.int64, len(column.cells))
    target = Target(name=column.name, names=tuple(map(display_name, names)))
    return Labelling(target, labels, _notes_on_classes(column, names, asked_for))


def labels_of(column: Column, order: Sequence[str] = ()) -> Labelling:
    """Any number of labels for each picture: a list, or text with a separator. `order`: all of them."""
    separator = _separator(column)
    known: dict[Any, frozenset[str]] = {}  # cells repeat
    rows: list[frozenset[str]] = []
    for number, cell in enumerate(column.cells):
        if (labels := known.get(key := _hashable(cell))) is None:
            parts = cell if isinstance(cell, list) else cell.split(separator) if separator else [cell]
            labels = known[key] = frozenset(filter(None, (display_name(label.strip()) for label in parts)))
            check_labels(labels, f"{column.where(number)}: {column.name}")
        rows.append(labels)
    names = sorted(frozenset().union(*rows))
    if set(order) >= set(names):
        names = list(order)
    if not names:
        raise DataError(f"{column.where(0)}: {column.name} is empty, there and for all pictures: there are no labels.")
    place = {name: number for number, name in enumerate(names)}
    table = np.zeros((len(rows), len(names)))
    for row, labels in zip(table, rows, strict=True):
        row[[place[label] for label in labels]] = 1
    parted = f", separated by {separator}" if separator else ""
    which = f"any number of {len(names)} labels" if len(names) > 1 else f"the label {names[0]} or none"
    note = f"The column {display_name(column.name)} has several labels per picture{parted}: each picture has {which}."
    target = Target(name=column.name, kind="labels", names=tuple(names))
    return Labelling(target, table, (note, *_notes_on_labels(table, names)))


def number_of(column: Column) -> Labelling:
    """A number for each picture."""
    numbers = np.array([_number(cell) for cell in column.cells])
    if len(bad := np.flatnonzero(~np.isfinite(numbers))):
        some = [f"{column.where(int(row))}: {column.name} is {_said(column.cells[int(row)])}" for row in bad[:3]]
        more = f" (and {len(bad) - 3:,} more)" if len(bad) > 3 else ""
        commas = all(math.isfinite(_number(str(column.cells[int(row)]).replace(",", "."))) for row in bad)
        mend = f"mend these lines, take them out, or set data.target={column.name}:class if these are names of classes"
        mend = "write them with a point, as 12.5" if commas else mend
        raise DataError(
            f"{'; '.join(some)}{more}. Numbers are expected, such as 12.5, since {column.name} is learnt as a number: "
            f"{mend}."
        )
    span = f"{numbers.min():g} to {numbers.max():g}"
    note = f"The column {display_name(column.name)} holds numbers, {span}: it is learnt as a number."
    target = Target(name=column.name, kind="number", names=(display_name(column.name),))
    return Labelling(target, numbers[:, None], (note,))


def labels_of_columns(columns: Sequence[Column]) -> Labelling:
    """One label for each column, which holds 0 and 1."""
    check_labels([column.name for column in columns], "The first line")
    table = np.zeros((len(columns[0].cells), len(columns)))
    for number, column in enumerate(columns):
        words = {cell: str(cell).lower() for cell in set(map(_hashable, column.cells))}
        if strange := {cell for cell, word in words.items() if word not in (*YES, *NO)}:
            row = next(row for row, cell in enumerate(column.cells) if _hashable(cell) in strange)
            raise DataError(
                f"{column.where(row)}: {column.name} is {_said(column.cells[row])}, and its other lines say 0 or 1, "
                "for a label of its own. Mend it, or name the columns that are labels: "
                f"data.target={columns[0].name}:labels,…"
            )
        table[:, number] = [words[_hashable(cell)] in YES for cell in column.cells]
    names = tuple(display_name(column.name) for column in columns)
    note = (
        f"The columns {few(names)} hold 0 and 1: each picture has any number of {len(names)} labels."
        if len(names) > 1
        else f"The column {names[0]} holds 0 and 1: each picture has the label {names[0]} or none."
    )
    target = Target(name="labels", kind="labels", names=names)
    return Labelling(target, table, (note, *_notes_on_labels(table, names)))


def together(parts: Sequence[Labelling]) -> tuple[tuple[Target, ...], NDArray[Any]]:
    """The targets, and what they are for each picture: of several, all outputs side by side."""
    targets = tuple(part.target for part in parts)
    if len({target.name for target in targets}) < len(targets):  # answers and figures go by the name
        raise DataError(
            "Two targets are called labels: the columns of 0 and 1 go by that name together. Rename the column labels, "
            "or take it out of data.target."
        )
    if len(parts) == 1:
        return targets, parts[0].labels
    matrices = [np.eye(part.target.outputs)[part.labels] if part.labels.ndim == 1 else part.labels for part in parts]
    return targets, np.concatenate(matrices, axis=1)


def check_labels(labels: Sequence[str] | frozenset[str], where: str) -> None:
    """Refuse labels that could not be written down side by side."""
    for label in labels:
        if any(separator in label for separator in SEPARATORS):
            raise DataError(
                f"{where} has the label {display_name(label)}, and {' and '.join(SEPARATORS)} part labels where they "
                "are written down. Give it another name."
            )


def has_lists(column: Column) -> bool:
    """Whether some picture has a list."""
    return any(isinstance(cell, list) for cell in column.cells)


def shares_labels(column: Column, separators: Sequence[str] = SEPARATORS) -> bool:
    """Whether cells have separators, and what they part occurs in several of them: a class may be called `a;b`."""
    cells = {cell for cell in column.cells if isinstance(cell, str)}
    for separator in separators:
        parts = [part for cell in cells for part in {part.strip() for part in cell.split(separator)} if part]
        if any(separator in cell for cell in cells) and len(parts) > len(set(parts)):
            return True
    return False


def is_indicator(column: Column) -> bool:
    """Whether most of its cells are 0 or 1."""
    return 2 * sum(str(cell).lower() in (*YES, *NO) for cell in column.cells) > len(column.cells)


def _is_measured(column: Column) -> bool:
    """Whether its cells are numbers, most of them at least, and not those of a few classes."""
    numbers = np.array([_number(cell) for cell in column.cells])
    readable = numbers[np.isfinite(numbers)]
    with_comma = sum(math.isfinite(_number(cell.replace(",", "."))) for cell in column.cells if isinstance(cell, str))
    if 2 * max(len(readable), with_comma) <= len(numbers):
        return False
    if not len(readable):
        return True  # 12,5: it is refused as a number
    values = np.unique(readable)
    classes = values[0] in (0, 1) and len(values) <= MOST_NUMBERED and (np.diff(values) == 1).all()
    return not (classes and len(values) > 1 and len(readable) == len(numbers))


def _separator(column: Column) -> str:
    """Which sign parts the labels of this column; "": none occurs."""
    rows: dict[str, int] = {}
    for row, cell in enumerate(column.cells):
        for separator in SEPARATORS:
            if isinstance(cell, str) and separator in cell:
                rows.setdefault(separator, row)
    if len(rows) > 1:
        lines = " and ".join(f"{separator} ({column.where(row)})" for separator, row in rows.items())
        raise DataError(f"The labels in {column.name} are parted by {lines}. Use one of them throughout.")
    return next(iter(rows), COMMA if shares_labels(column, [COMMA]) else "")


def _notes_on_classes(column: Column, names: Sequence[str], asked_for: bool) -> tuple[str, ...]:
    name, numbers = display_name(column.name), np.array([_number(one) for one in names])
    words = {one for one, number in zip(names, numbers, strict=True) if not np.isfinite(number)}
    stray = 0 < sum(cell in words for cell in column.cells) < STRAY * len(column.cells)
    measured = len(names) - len(words) > MOST_NUMBERED and (numbers[np.isfinite(numbers)] % 1).any()
    if stray or (words and measured):
        some = ", and here and there a word" if stray else " and words"
        return (
            f"The column {name} holds numbers{some} ({few(sorted(words))}): each is taken for a "
            f"class. If a number is to be learnt, data.target={name}:number tells which lines to mend.",
        )
    if words:
        return (f"The column {name} holds {len(names)} classes: {few(names)}.",) if asked_for else ()
    if asked_for:
        return (f"The column {name} holds {len(names)} classes: {few(names)}. For numbers set {name}:number.",)
    if len(names) > MOST_NUMBERED and (numbers % 1).any():
        return (
            f"The column {name} holds {len(names):,} different numbers, and each is taken for a class. If the number "
            f"itself is to be learnt, set data.target={name}:number.",
        )
    return ()


def _notes_on_labels(table: NDArray[np.float64], names: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if bare := int((table.sum(axis=1) == 0).sum()):
        notes.append(f"{bare:,} picture{' has' if bare == 1 else 's have'} none of them.")
    if everywhere := [name for name, share in zip(names, table.mean(axis=0), strict=True) if share == 1]:
        has = "label" if len(everywhere) == 1 else "labels"
        notes.append(f"All pictures have the {has} {few(everywhere)}: there is nothing to tell apart.")
    return tuple(notes)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _said(cell: Any) -> str:
    return "a list" if isinstance(cell, list) else display_name(str(cell)) or "empty"


def _hashable(cell: Any) -> Any:
    return tuple(cell) if isinstance(cell, list) else cell
