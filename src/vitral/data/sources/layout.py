"""Folders become classes and splits, from the names alone: the same for a folder, a zip and a tar.

Understood are `train/ val/ test/` with class folders in them, class folders alone, and class folders with `train/ val/
test/` in them; each below a folder or two that hold nothing else. Whatever lies deeper belongs to its class.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from vitral.data.decode import ENDINGS, HEIF_ENDINGS, NEEDS_HEIF
from vitral.data.sources.splits import SPLIT_WORDS
from vitral.errors import DataError

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
LEFT_BEHIND = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "Thumbs.db", "desktop.ini")  # by macOS, Synology and Windows

# Folders are written `train/cats/`, and "" is the uppermost. There are few of them, however many pictures there are.
Counts = dict[str, int]  # a folder → the pictures that lie in it directly
Places = dict[str, tuple[str, str]]  # a folder → its class ("" if it has none) and split ("" if no name says)


# Pictures as cameras, telephones and programs write them, that Pillow does not read or that we do not let in; HEIC and
# AVIF are among them where what reads them is missing.
OTHER_PICTURES = (
    *HEIF_ENDINGS,
    ".avif",
    ".jxl",
    ".jp2",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".dng",
    ".raw",
    ".psd",
    ".svg",
)
VIDEOS = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".wmv", ".mpg", ".mpeg", ".3gp", ".mts")
DOCUMENTS = (".pdf", ".doc", ".docx", ".ppt", ".pptx", ".odt")


@dataclass(frozen=True)
class FolderLayout:
    """Classes and splits by the names of folders, one entry per picture."""

    root: str  # "" or "photos/": folders above all that matters. A zip of a folder has one more than the folder.
    paths: list[str]  # below the root
    classes: list[str]
    splits: list[str]  # of SPLITS, or "" where the folders do not say
    notes: list[str]
    unread: list[str]  # pictures in formats that Vitral does not read


def is_hidden(name: str) -> bool:
    """Not for us: `.ipynb_checkpoints`, `._photo.jpg`, `__MACOSX`."""
    return name.startswith(".") or name in LEFT_BEHIND


def display_name(name: str) -> str:
    """A name as text: a disk may hold bytes that are none. Letters with accents are one sign or two, and the same."""
    if name.isascii():
        return name
    try:
        text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a sign, which no disk gives, but a table may
        text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return unicodedata.normalize("NFC", text)


def few(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(map(display_name, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


UNSORTED = "unsorted"  # the one class of pictures that nobody has sorted


def arrange(files: list[str], source: str, unsorted: bool = False) -> FolderLayout:
    """The pictures among the files of a source, `/` between the folders, with their classes and splits;
    with `unsorted`, also pictures that have no classes."""
    if unsorted:
        return _unsorted(files, source)
    paths, unread, notes = _pictures(files, source)
    tables = [path for path in files if path.lower().endswith(TABLES)]
    help_ = "Give each class a folder, or a CSV file with the columns path and label."
    if tables:
        help_ = f"There is a table, {few(tables)}: give that as data.source."
    counts = Counter(_folder(path) for path in paths)
    root = _root(counts)
    inside = {folder[len(root) :]: count for folder, count in counts.items() if folder.startswith(root)}
    places, place_notes = _places(inside, source, help_)
    names = {name for name, _ in places.values()} - {""}
    if not names:
        raise DataError(f"{source} has {_pictures_of(len(paths))} and no class folders. {help_}")
    if len(names) == 1 and tables:  # `images/` and `labels.csv`
        raise DataError(f"{source} has pictures in one folder only, {few([*names])}. {help_}")
    by_folder = {folder: places.get(folder[len(root) :]) if folder.startswith(root) else ("", "") for folder in counts}
    placed = [(path, place) for path in paths if (place := by_folder[_folder(path)])]
    labelled = [(path[len(root) :], name, split) for path, (name, split) in placed if name]
    if loose := [path for path, (name, _) in placed if not name]:
        lie, have = ("lies", "has") if len(loose) == 1 else ("lie", "have")
        place_notes.append(
            f"{_pictures_of(len(loose))} {lie} outside the class folders and {have} no class: {few(loose)}."
        )
    below, classes, splits = (list(column) for column in zip(*labelled, strict=True))
    return FolderLayout(root, below, classes, splits, notes + place_notes, unread)


def _unsorted(files: list[str], source: str) -> FolderLayout:
    """All pictures: with their classes where each has one, else without any."""
    paths, unread, notes = _pictures(files, source)
    try:
        layout = arrange(files, source)
    except DataError:  # these names say nothing of classes
        layout = None
    if layout and len(layout.paths) == len(paths):
        return layout
    return FolderLayout("", paths, [UNSORTED] * len(paths), [""] * len(paths), notes, unread)


def _pictures(files: list[str], source: str) -> tuple[list[str], list[str], list[str]]:
    """Those that are pictures by their ending, those in formats that are not read, and notes on the others."""
    paths: list[str] = []
    others: list[str] = []
    for path in files:
        (paths if path.lower().endswith(ENDINGS) else others).append(path)
    counts = _by_ending(others)
    if not paths:
        has = f", and there are other files: {counts}" if others else ""
        raise DataError(f"There is no picture in {source}{has}. Vitral reads {', '.join(ENDINGS)}.")
    unread = [path for path in others if path.lower().endswith(OTHER_PICTURES)]
    notes = []
    for endings, kind, advice in (
        (VIDEOS, "video", "Vitral learns from pictures: save frames of them as JPEG or PNG"),
        (DOCUMENTS, "document", "To learn from their pages, save each as PNG"),
    ):
        if found := [path for path in others if path.lower().endswith(endings)]:
            what = f"1 {kind} is" if len(found) == 1 else f"{len(found):,} {kind}s are"
            notes.append(f"{what} passed over: {few(found)}. {advice}.")
    named = (*OTHER_PICTURES, *VIDEOS, *DOCUMENTS)
    if rest := [path for path in others if not path.lower().endswith(named)]:
        notes.append(f"Files that are no pictures by their ending are passed over: {_by_ending(rest)}.")
    if unread:
        what = "1 picture is in a format" if len(unread) == 1 else f"{len(unread):,} pictures are in formats"
        advice = (
            NEEDS_HEIF if any(path.lower().endswith(HEIF_ENDINGS) for path in unread) else "Convert to JPEG or PNG."
        )
        notes.append(f"{what} that Vitral does not read, and passed over: {few(unread)}. {advice}")
    return paths, unread, notes


def _by_ending(files: list[str]) -> str:
    counts = Counter(PurePosixPath(path).suffix.lower() or "without ending" for path in files)
    return ", ".join(f"{count:,} {display_name(ending)}" for ending, count in counts.most_common(5))


def _root(folders: Iterable[str]) -> str:
    """The folders above all that matters: each is alone, and holds folders or `train`."""
    root = ""
    while True:
        tops = _tops(folder[len(root) :] for folder in folders if folder.startswith(root))
        if len(tops) != 1:
            return root
        [(top, inner)] = tops.items()
        is_class = "" in inner and not any(SPLIT_WORDS.get(name.lower()) == "train" for name in inner)
        if top.lower() in SPLIT_WORDS or is_class:
            return root
        root += f"{top}/"


def _tops(folders: Iterable[str]) -> dict[str, set[str]]:
    """The names of the uppermost folders, and those of the folders in each; "" if pictures lie in it directly."""
    tops: dict[str, set[str]] = {}
    for folder in folders:
        top, *rest = folder.split("/")
        if rest:
            tops.setdefault(top, set()).add(rest[0])
    return tops


def _places(counts: Counts, source: str, help_: str) -> tuple[Places, list[str]]:
    """The class and split of each folder that is not passed over, and notes."""
    tops = _tops(counts)
    words = {top: SPLIT_WORDS[top.lower()] for top in sorted(tops) if top.lower() in SPLIT_WORDS}
    only_words = len(words) == len(tops) > 0
    # There are pictures of trains: `train/` beside other folders is a split if it has class folders.
    if any(word == "train" and (only_words or tops[top] != {""}) for top, word in words.items()):
        return _split_then_class(counts, words, source, help_)
    if only_words:
        raise DataError(f"{source} has {' and '.join(words)} and no train: there is nothing to learn from.")
    # A class of which all folders are splits; a `train` beside a `bus` is a kind of vehicle.
    parted = {
        top
        for top, inner in tops.items()
        if inner - {""} and {name.lower() for name in inner - {""}} <= set(SPLIT_WORDS)
    }
    if tops and parted == set(tops):
        return _class_then_split(counts, tops, source)
    if parted:
        raise DataError(
            f"{source} has splits in {few(sorted(parted))}, and none in {few(sorted(set(tops) - parted))}. "
            "Have them in all classes, or above the classes."
        )
    for top in words:
        if same := sorted(tops[top] & set(tops)):
            raise DataError(
                f"{source} has {few(same)} beside {top} and in it. Put what is to be learnt from into a folder train."
            )
    notes = [f"{top} is taken for a class, as the folders beside it." for top in words]
    return {folder: (_class(folder), "") for folder in counts}, notes


def _split_then_class(counts: Counts, words: dict[str, str], source: str, help_: str) -> tuple[Places, list[str]]:
    """`train/cats/`."""
    tops = _tops(counts)
    of_split = {split: top for top, split in words.items()}
    for split in of_split:
        if len(same := [top for top, word in words.items() if word == split]) > 1:
            raise DataError(f"{source} has {' and '.join(same)}: which is {split}? Take all but one of them out.")
    notes = []
    if others := sorted(set(tops) - set(words)):
        notes.append(f"Beside {' and '.join(words)}, these folders are passed over: {few(others)}.")
    rests = {folder: _without_double(folder, tops) for folder in counts if folder.partition("/")[0] in words}
    train = of_split["train"]
    # `train/images/cats/`: what is alone in train is no class, there and elsewhere.
    alone = _root([rest for folder, rest in rests.items() if folder.startswith(f"{train}/")])
    places = {
        folder: (_class(rest.removeprefix(alone)), words[folder.partition("/")[0]]) for folder, rest in rests.items()
    }
    learnt = _classes_of("train", places)
    if not learnt:
        pictures = _pictures_of(_count_of("train", places, counts))
        raise DataError(f"{source}: {train} has {pictures} and no class folders. {help_}")
    for split in sorted(set(of_split) - {"train"}):
        names = _classes_of(split, places)
        _refuse_other_capitals(names - learnt, learnt, of_split[split], train, source)
        if len(names) < 2 and not names & learnt:  # Kaggle's way: `test/`, or `test/unknown/`
            where = f"in one folder, {few([*names])}, that {train} has not" if names else "and no class folders"
            pictures = _pictures_of(_count_of(split, places, counts))
            notes.append(f"{of_split[split]} has {pictures} {where}: without labels they are left aside.")
            places = {folder: place for folder, place in places.items() if place[1] != split}
    return places | ({"": ("", "")} if "" in counts else {}), notes


def _without_double(folder: str, tops: dict[str, set[str]]) -> str:
    """What is below the split: `train/cats/` → `cats/`, and so for the `train/train/cats/` of some unpackers."""
    top, _, rest = folder.partition("/")
    return rest.removeprefix(f"{top}/") if tops[top] == {top} else rest


def _refuse_other_capitals(names: set[str], learnt: set[str], top: str, train: str, source: str) -> None:
    folded = {name.casefold(): name for name in learnt}
    for name in sorted(names):
        if same := folded.get(name.casefold()):
            raise DataError(f"{source} has {few([name])} in {top} and {few([same])} in {train}. Give them one name.")


def _class_then_split(counts: Counts, tops: dict[str, set[str]], source: str) -> tuple[Places, list[str]]:
    """`cats/train/`. Pictures beside the splits have none, and are noted as those without a class."""
    below: dict[str, set[str]] = {}
    for folder in counts:
        parts = folder.split("/")
        if len(parts) > 3:
            below.setdefault(parts[2], set()).add(parts[0])
    if repeated := sorted(name for name, above in below.items() if len(above) == len(tops) > 1):
        raise DataError(
            f"{source} has {few(repeated)} in the splits of each of {few(sorted(tops))}: which are the classes? "
            "Have one train, val and test, with the class folders in them."
        )
    places = {}
    for folder in counts:
        word = SPLIT_WORDS.get(folder.split("/")[1].lower(), "") if folder else ""
        places[folder] = (_class(folder) if word else "", word)
    if not _classes_of("train", places):
        raise DataError(f"The class folders of {source} have no train folder in them: there is nothing to learn from.")
    return places, ["The splits are folders inside the class folders."]


def _folder(path: str) -> str:
    return path[: path.rfind("/") + 1]


def _class(folder: str) -> str:
    """The first name. Letters with accents are one or two signs on a disk, and the same class."""
    return unicodedata.normalize("NFC", folder.partition("/")[0])


def _classes_of(split: str, places: Places) -> set[str]:
    return {name for name, side in places.values() if side == split} - {""}


def _count_of(split: str, places: Places, counts: Counts) -> int:
    return sum(counts[folder] for folder, (_, side) in places.items() if side == split)


def _pictures_of(count: int) -> str:
    return "1 picture" if count == 1 else f"{count:,} pictures"
