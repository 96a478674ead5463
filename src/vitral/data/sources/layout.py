"""Folders become classes and splits, from the names alone: the same for a folder, a zip and a tar.

Understood are `train/ val/ test/` with class folders in them, class folders alone, and class folders with `train/ val/
test/` in them; each below a folder or two that hold nothing else. Whatever lies deeper belongs to its class.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from vitral.data.decode import ENDINGS
from vitral.data.sources import table
from vitral.data.sources.splits import SPLIT_WORDS
from vitral.errors import DataError

LEFT_BEHIND = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini")  # by macOS, Synology and Windows

Row = tuple[str, str, str]  # path, class ("" where no folder says) and split ("" likewise)
Folders = dict[str, set[str]]  # a folder, and the folders in it; "" stands for pictures that lie in it directly


@dataclass(frozen=True)
class Layout:
    """What the names say, one entry a picture."""

    root: str  # "" or "photos/": folders above all that matters. A zip of a folder has one more than the folder.
    paths: list[str]  # below the root
    classes: list[str]
    splits: list[str]  # of SPLITS, or "" where the folders do not say
    notes: list[str]


def is_hidden(name: str) -> bool:
    """Not for us: `.ipynb_checkpoints`, `._photo.jpg`, `__MACOSX`."""
    return name.startswith(".") or name in LEFT_BEHIND


def shown(name: str) -> str:
    """A name as text: a disk may hold bytes that are none."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(map(shown, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def arrange(files: list[str], source: str) -> Layout:
    """The pictures among the files of a source, `/` between the folders, with their classes and splits."""
    paths, notes = _pictures(files, source)
    tables = [path for path in files if path.lower().endswith(table.ENDINGS)]
    help_ = "Give each class a folder, or a CSV file with the columns path and label."
    if tables:
        help_ = f"There is a table, {few(tables)}: give that as data.source."
    root = _root(paths)
    inside = [path[len(root) :] for path in paths if path.startswith(root)]
    rows, said = _rows(inside, source, help_)
    kept = [row for row in rows if row[1]]
    names = {name for _, name, _ in kept}
    if not kept:
        raise DataError(f"{source} has {_count(rows)} and no class folders. {help_}")
    if len(names) == 1 and tables:  # `images/` and `labels.csv`
        raise DataError(f"{source} has pictures in one folder only, {few([*names])}. {help_}")
    loose = [path for path in paths if not path.startswith(root)] + [root + path for path, name, _ in rows if not name]
    if loose:
        verbs = (
            "lies outside the class folders and has" if len(loose) == 1 else "lie outside the class folders and have"
        )
        said.append(f"{_count(loose)} {verbs} no class: {few(loose)}.")
    kept_paths, classes, splits = (list(column) for column in zip(*kept, strict=True))
    return Layout(root, kept_paths, classes, splits, notes + said)


def _pictures(files: list[str], source: str) -> tuple[list[str], list[str]]:
    """Those that are pictures by their ending, and a note on the others."""
    paths = [path for path in files if path.lower().endswith(ENDINGS)]
    endings = (PurePosixPath(path).suffix.lower() for path in files if not path.lower().endswith(ENDINGS))
    counts = Counter(ending or "without ending" for ending in endings)
    others = ", ".join(f"{count:,} {shown(ending)}" for ending, count in counts.most_common(5))
    if not paths:
        has = f", and there are other files: {others}" if others else ""
        raise DataError(f"There is no picture in {source}{has}. Vitral reads {', '.join(ENDINGS)}.")
    return paths, [f"Files that are no pictures by their ending are passed over: {others}."] if others else []


def _folders(paths: Iterable[str]) -> Folders:
    found: Folders = {}
    for path in paths:
        first, *rest = path.split("/", 2)
        if rest:
            found.setdefault(first, set()).add(rest[0] if len(rest) == 2 else "")
    return found


def _root(paths: list[str]) -> str:
    """The folders above all that matters: each is alone, and holds folders or `train`."""
    root = ""
    while True:
        folders = _folders(path[len(root) :] for path in paths if path.startswith(root))
        if len(folders) != 1:
            return root
        [(name, inner)] = folders.items()
        is_class = "" in inner and not any(SPLIT_WORDS.get(word.lower()) == "train" for word in inner)
        if name.lower() in SPLIT_WORDS or is_class:
            return root
        root += f"{name}/"


def _rows(paths: list[str], source: str, help_: str) -> tuple[list[Row], list[str]]:
    """Each picture with its class and split, and notes."""
    folders = _folders(paths)
    words = {top: SPLIT_WORDS[top.lower()] for top in sorted(folders) if top.lower() in SPLIT_WORDS}
    only_words = len(words) == len(folders) > 0
    # There are pictures of trains: `train/` beside other folders is a split if it has class folders.
    if any(word == "train" and (only_words or folders[top] != {""}) for top, word in words.items()):
        return _split_then_class(paths, folders, words, source, help_)
    if only_words:
        raise DataError(f"{source} has {' and '.join(words)} and no train: there is nothing to learn from.")
    if folders and all(name.lower() in SPLIT_WORDS for inner in folders.values() for name in inner):
        return _class_then_split(paths, source)
    for top in words:
        if same := sorted(folders[top] & set(folders)):
            raise DataError(
                f"{source} has {few(same)} beside {top} and in it. Put what is to be learnt from into a folder train."
            )
    notes = [f"{top} is taken for a class, as the folders beside it." for top in words]
    return [(path, _first_folder(path), "") for path in paths], notes


def _split_then_class(
    paths: list[str], folders: Folders, words: dict[str, str], source: str, help_: str
) -> tuple[list[Row], list[str]]:
    """`train/cats/1.jpg`."""
    tops = {split: top for top, split in words.items()}
    for split in tops:
        if len(same := [top for top, word in words.items() if word == split]) > 1:
            raise DataError(f"{source} has {' and '.join(same)}: which is {split}? Take all but one of them out.")
    notes = []
    if others := sorted(set(folders) - set(words)):
        notes.append(f"Beside {' and '.join(words)}, these folders are passed over: {few(others)}.")
    doubled = {top: f"{top}/" for top in words if folders[top] == {top}}  # `train/train/cats/1.jpg`
    parts = [
        (top, slash, rest.removeprefix(doubled.get(top, ""))) for top, slash, rest in (p.partition("/") for p in paths)
    ]
    # `train/images/cats/1.jpg`: what is alone in train is no class, there and elsewhere.
    alone = _root([rest for top, _, rest in parts if top == tops["train"]])
    rows = [
        (path, _first_folder(rest.removeprefix(alone)), words[top])
        for path, (top, slash, rest) in zip(paths, parts, strict=True)
        if slash and top in words
    ] + [(path, "", "") for path, (_, slash, _) in zip(paths, parts, strict=True) if not slash]
    learnt = {name for _, name, split in rows if split == "train"} - {""}
    if not learnt:
        count = _count([row for row in rows if row[2] == "train"])
        raise DataError(f"{source}: {tops['train']} has {count} and no class folders. {help_}")
    for split in sorted(set(tops) - {"train"}):
        mine = [row for row in rows if row[2] == split]
        names = {name for _, name, _ in mine} - {""}
        _refuse_other_capitals(names - learnt, learnt, tops[split], tops["train"], source)
        if len(names) < 2 and not names & learnt:  # Kaggle's way: `test/1.jpg`, or `test/unknown/1.jpg`
            where = f"in one folder, {few([*names])}, that train has not" if names else "and no class folders"
            notes.append(f"{tops[split]} has {_count(mine)} {where}: without labels they are left aside.")
            rows = [row for row in rows if row[2] != split]
    return rows, notes


def _refuse_other_capitals(names: set[str], learnt: set[str], top: str, train: str, source: str) -> None:
    folded = {name.casefold(): name for name in learnt}
    if wrong := sorted(name for name in names if name.casefold() in folded):
        raise DataError(
            f"{source} has {few(wrong)} in {top} and {folded[wrong[0].casefold()]} in {train}. Give them one name."
        )


def _class_then_split(paths: list[str], source: str) -> tuple[list[Row], list[str]]:
    """`cats/train/1.jpg`."""
    rows = []
    for path in paths:
        name = _first_folder(path)
        rows.append((path, name, SPLIT_WORDS[path.split("/")[1].lower()] if name else ""))
    if not any(split == "train" for _, _, split in rows):
        raise DataError(f"The class folders of {source} have no train folder in them: there is nothing to learn from.")
    return rows, ["The splits are folders inside the class folders."]


def _first_folder(path: str) -> str:
    """Letters with accents are one or two signs on a disk, and the same class."""
    name, slash, _ = path.partition("/")
    return unicodedata.normalize("NFC", name) if slash else ""


def _count(pictures: Sequence[object]) -> str:
    return "1 picture" if len(pictures) == 1 else f"{len(pictures):,} pictures"
