"""Folders become classes and splits, from the names alone: the same for a folder, a zip and a tar.

Understood are `train/ val/ test/` with class folders in them, class folders alone, and class folders with `train/ val/
test/` in them; each below a folder or two that hold nothing else. Whatever lies deeper belongs to its class.
"""

import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from vitral.data.decode import ENDINGS
from vitral.errors import DataError

SPLIT_WORDS = {"train": "train", "training": "train"}
SPLIT_WORDS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
SPLIT_WORDS |= dict.fromkeys(("test", "testing"), "test")

NOT_CLASSES = ("__MACOSX", "@eaDir", "$RECYCLE.BIN")  # left behind by macOS, Synology and Windows

_HELP = "Give each class a folder, or a CSV file with the columns path and label."


@dataclass(frozen=True)
class Layout:
    """What the names say, one entry a picture."""

    paths: list[str]
    classes: list[str]
    splits: list[str]  # of SPLITS, or "" where the folders do not say
    notes: list[str]


def is_hidden(name: str) -> bool:
    """Not for us: `.ipynb_checkpoints`, `._photo.jpg`, `__MACOSX`."""
    return name.startswith(".") or name in NOT_CLASSES


def pictures_among(files: list[str]) -> tuple[list[str], list[str]]:
    """Those that are pictures by their ending, and a note on the others."""
    paths = [path for path in files if path.lower().endswith(ENDINGS)]
    if len(paths) == len(files):
        return paths, []
    others = Counter(PurePosixPath(path).suffix.lower() or "without ending" for path in files)
    others.subtract(PurePosixPath(path).suffix.lower() for path in paths)
    named = ", ".join(f"{count} {ending}" for ending, count in others.most_common(5) if count)
    return paths, [f"Files that are no pictures by their ending are passed over: {named}."]


def arrange(paths: list[str], source: str) -> Layout:
    """The pictures of a source, `/` between the folders, with their classes and splits."""
    if not paths:
        raise DataError(f"There is no picture in {source}. Vitral reads {', '.join(ENDINGS)}.")
    start = _wrapper(paths, [0] * len(paths))
    starts = [start] * len(paths)
    tops = {path[start:].partition("/")[0] for path in paths if "/" in path[start:]}
    words: dict[str, str] = {}
    for top in sorted(tops):
        if split := SPLIT_WORDS.get(top.lower()):
            words[top] = split
    found = set(words.values())
    if "train" in found:
        return _split_folders(paths, starts, words, tops, source)
    if found == {"validation", "test"} and len(tops) == 2:
        raise DataError(f"{source} has {' and '.join(sorted(words))} and no train: there is nothing to learn from.")
    if tops and all(_below(path[start:]) in SPLIT_WORDS for path in paths):
        return _class_then_split(paths, starts, source)
    return _label(paths, starts, [""] * len(paths), [], source)


def _wrapper(paths: list[str], starts: list[int]) -> int:
    """How many characters at the start of every path are folders that hold nothing but one folder with folders."""
    start = starts[0]
    while True:
        head, slash, rest = paths[0][start:].partition("/")
        prefix = paths[0][: start + len(head) + 1]
        if not slash or "/" not in rest or head.lower() in SPLIT_WORDS:
            return start
        if not all(path.startswith(prefix) and "/" in path[len(prefix) :] for path in paths):
            return start
        start = len(prefix)


def _below(path: str) -> str:
    """The name of the second folder: `cats/train/1.jpg` → train."""
    parts = path.split("/", 2)
    return parts[1].lower() if len(parts) == 3 else ""


def _split_folders(paths: list[str], starts: list[int], words: dict[str, str], tops: set[str], source: str) -> Layout:
    """`train/cats/1.jpg`."""
    for split in sorted(set(words.values())):
        if len(same := [top for top, word in words.items() if word == split]) > 1:
            raise DataError(f"{source} has {' and '.join(same)}: which one is {split}? Take one of them out.")
    notes: list[str] = []
    if others := sorted(tops - set(words)):
        notes.append(f"Beside {' and '.join(words)}, these folders are passed over: {_few(others)}.")
    kept, splits, inner = [], [], []
    for path, start in zip(paths, starts, strict=True):
        top, slash, _ = path[start:].partition("/")
        if slash and top in words:
            kept.append(path)
            splits.append(words[top])
            inner.append(start + len(top) + 1)
    # `train/images/cats/1.jpg`: a folder that every split has, and nothing beside it
    rests = [path[start:] for path, start in zip(kept, inner, strict=True)]
    extra = _wrapper(rests, [0] * len(rests))
    inner = [start + extra for start in inner]
    # Kaggle's way: test pictures without labels
    for top, split in words.items():
        mine = [rest for rest, word in zip(rests, splits, strict=True) if word == split]
        if mine and not any("/" in rest[extra:] for rest in mine):
            if split == "train":
                raise DataError(f"{source}: {top} has {len(mine):,} pictures and no class folders. {_HELP}")
            notes.append(f"{top} has {len(mine):,} pictures and no class folders: without labels they are left aside.")
            rows = [row for row, word in enumerate(splits) if word != split]
            kept, splits = [kept[row] for row in rows], [splits[row] for row in rows]
            inner, rests = [inner[row] for row in rows], [rests[row] for row in rows]
    if "train" not in splits:
        raise DataError(f"{source} has no picture in its train folder: there is nothing to learn from.")
    return _label(kept, inner, splits, notes, source)


def _class_then_split(paths: list[str], starts: list[int], source: str) -> Layout:
    """`cats/train/1.jpg`."""
    splits = [SPLIT_WORDS[_below(path[start:])] for path, start in zip(paths, starts, strict=True)]
    if "train" not in splits:
        raise DataError(f"The class folders of {source} have no train folder in them: there is nothing to learn from.")
    return _label(paths, starts, splits, ["The splits are folders inside the class folders."], source)


def _label(paths: list[str], starts: list[int], splits: list[str], notes: list[str], source: str) -> Layout:
    """The class is the next folder. Letters with accents are one or two signs on a disk, and the same class."""
    kept, classes, sides, loose = [], [], [], []
    for path, start, split in zip(paths, starts, splits, strict=True):
        name, slash, _ = path[start:].partition("/")
        if slash:
            kept.append(path)
            classes.append(unicodedata.normalize("NFC", name))
            sides.append(split)
        else:
            loose.append(path)
    if not kept:
        raise DataError(f"{source} has {len(loose):,} pictures and no class folders. {_HELP}")
    if loose:
        verb = "picture lies" if len(loose) == 1 else "pictures lie"
        notes = [*notes, f"{len(loose):,} {verb} outside the class folders and have no class: {_few(loose)}."]
    return Layout(kept, classes, sides, notes)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
