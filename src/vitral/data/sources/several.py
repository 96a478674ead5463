"""Pictures that lie in several class folders: copies of one file, of which each folder says a label."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol

from vitral.data.sources import Storage, digest_of
from vitral.data.sources.annotations import Column, Labelling, check_labels, labels_of
from vitral.data.sources.layout import FolderLayout, few
from vitral.errors import DataError

MOST_COMPARED = 20  # files of one name and size that are read to see whether a note is due


class SizedStorage(Storage, Protocol):
    """Where files lie, which have a size."""

    def size(self, number: int) -> int:
        """Bytes; −1 where that cannot be known."""


def note_on_several(layout: FolderLayout, storage: SizedStorage) -> list[str]:
    """A note where files of one name lie in several class folders and are the same; a few of them are read."""
    by_name = defaultdict(list)
    for number, path in enumerate(layout.paths):
        by_name[path.rpartition("/")[2], layout.splits[number]].append(number)
    candidates = (
        same_size
        for numbers in by_name.values()
        if len({layout.classes[number] for number in numbers}) > 1
        for same_size in _same_size(numbers, storage)
    )
    for _, numbers in zip(range(MOST_COMPARED), candidates, strict=False):
        for alike in _same_content(numbers, storage):
            if len({layout.classes[number] for number in alike}) > 1:
                return [
                    f"Some pictures lie in several class folders, such as {few([layout.paths[n] for n in alike])}, "
                    "and each copy counts for its own folder. With data.target=labels they are one picture with "
                    "several labels."
                ]
    return []


def labels_of_folders(layout: FolderLayout, storage: SizedStorage) -> tuple[list[int], Labelling]:
    """One picture for copies in one split, the first of them by name; its labels are all folders that it lies in."""
    by_split = defaultdict(list)
    for number, split in enumerate(layout.splits):
        by_split[split].append(number)
    classes = {number: {name} for number, name in enumerate(layout.classes)}
    for numbers in by_split.values():
        for same_size in _same_size(numbers, storage):
            for first, *others in _same_content(same_size, storage):
                for other in others:
                    classes[first] |= classes.pop(other)
    numbers = sorted(classes)
    check_labels(sorted(set(layout.classes)), "A folder")
    column = Column("labels", [sorted(classes[number]) for number in numbers], lambda row: layout.paths[numbers[row]])
    labelling = labels_of(column)
    several = sum(len(names) > 1 for names in column.cells)
    note = (
        f"{several:,} of {len(numbers):,} pictures lie in several class folders (files with the same content): each "
        f"picture has any number of {labelling.target.outputs} labels."
    )
    return numbers, Labelling(labelling.target, labelling.labels, (note, *labelling.notes[1:]))


def _same_size(numbers: Sequence[int], storage: SizedStorage) -> Iterator[list[int]]:
    groups = defaultdict(list)
    for number in numbers:
        groups[storage.size(number)].append(number)
    return (group for size, group in groups.items() if len(group) > 1 and size > 0)


def _same_content(numbers: Sequence[int], storage: Storage) -> Iterator[list[int]]:
    groups = defaultdict(list)
    for number in numbers:
        try:
            groups[digest_of(storage.read(number))].append(number)
        except DataError:  # it is named when the pictures are packed
            continue
    return (group for group in groups.values() if len(group) > 1)
