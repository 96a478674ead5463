"""Who learns, who validates, who tests. What the source says stands; what it leaves open is drawn here.

A draw hangs on the name of a picture, the class and `data.split_seed`, and on nothing else: the same on every machine,
and a picture that is added later moves few of the others.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitral.data.randomness import uniform
from vitral.errors import DataError, RecipeError

SPLIT_WORDS = {"train": "train", "training": "train"}
SPLIT_WORDS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
SPLIT_WORDS |= dict.fromkeys(("test", "testing"), "test")
SPLIT_WORDS |= {f"{word}_set": split for word, split in SPLIT_WORDS.items()}

TEST, VALIDATION = 0.2, 0.1  # shares that are held out where the source has no such split


def complete_splits(
    splits: Sequence[str] | NDArray[np.str_],  # of SPLITS, or "" where the source does not say
    labels: NDArray[np.int64],
    names: Sequence[str],
    groups: Sequence[str] | None,
    *,
    validation: float | Literal["auto"],
    seed: int,
    official: bool = False,  # an official set is not cut unless `validation` is set
) -> tuple[NDArray[np.str_], list[str]]:
    """The split of every picture, and notes on what was held out."""
    complete = np.array(splits, dtype="U10")
    complete[complete == ""] = "train"
    named = set(np.unique(complete)) - {"train"}
    notes: list[str] = []
    if "train" not in complete:
        raise DataError("No picture is in train: there is nothing to learn from.")
    if groups is not None:
        _one_side_each(complete, groups)
    if named == {"validation"}:
        complete[complete == "validation"] = "test"
        notes.append("There is no test set: the validation set takes its place, and chooses nothing.")
    elif not named:
        _hold_out(complete, "test", TEST, labels, names, groups, seed)
        notes.append(f"There is no test set: {TEST * 100:g} % of the pictures are held out{_how(groups)}.")
    if "validation" in complete:
        if validation != "auto":
            raise RecipeError(
                f"data.validation is {validation:g}, and the source has a validation set of its own. Leave it at auto."
            )
        return complete, notes
    share = (0.0 if official else VALIDATION) if validation == "auto" else validation
    if share:
        _hold_out(complete, "validation", share, labels, names, groups, seed)
        notes.append(f"To validate, {share * 100:g} % of the training pictures are held out{_how(groups)}.")
    if "train" not in complete:
        raise DataError(f"data.validation is {share:g}: no picture is left to learn from. Set it lower.")
    return complete, notes


def groups_of(names: Sequence[str], pattern: str) -> list[str]:
    """The group of each name, by what the pattern matches: its first group in brackets, else all of the match."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise RecipeError(f"data.group_by is {pattern}, which is neither a column nor a pattern ({error}).") from None
    groups = []
    for name in names:
        match = compiled.search(name)
        group = match and match[1 if compiled.groups else 0]
        if not group:
            raise DataError(f"data.group_by is {pattern}, and finds nothing in {name}.")
        groups.append(group)
    return groups


def _how(groups: Sequence[str] | None) -> str:
    whole = "" if groups is None else " whole groups, about"
    return f",{whole} the same share of every class"


def _one_side_each(splits: NDArray[np.str_], groups: Sequence[str]) -> None:
    side: dict[str, str] = {}
    for group, split in zip(groups, splits, strict=True):
        if side.setdefault(group, str(split)) != split:
            raise DataError(
                f"The group {group} (data.group_by) is in {side[group]} and in {split}: "
                "a model would be tested on what it has learnt from. Move it to one side."
            )


def _hold_out(
    splits: NDArray[np.str_],
    word: str,
    share: float,
    labels: NDArray[np.int64],
    names: Sequence[str],
    groups: Sequence[str] | None,
    seed: int,
) -> None:
    """Move a share of train to the split `word`, in place."""
    rows = np.flatnonzero(splits == "train")
    if groups is None:
        held_out = _stratified(rows, share, labels, _uniform_by_name([names[int(row)] for row in rows], word, seed))
    else:
        held_out = _whole_groups(rows, share, labels, [groups[int(row)] for row in rows], word, seed)
    splits[held_out] = word


def _uniform_by_name(names: Sequence[str], word: str, seed: int) -> NDArray[np.float64]:
    """A number from 0 to 1 for each name."""
    digests = (hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest() for name in names)
    keys = np.frombuffer(b"".join(digests), dtype="<i8")
    return uniform(seed, f"split {word}", samples=keys)[:, 0]


def _stratified(
    rows: NDArray[np.int64], share: float, labels: NDArray[np.int64], numbers: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The rows with the smallest numbers of each class: at least one, unless it is the last."""
    order = rows[np.lexsort((numbers, labels[rows]))]
    held_out = []
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held_out.append(members[:count])
    return np.concatenate(held_out)


def _whole_groups(
    rows: NDArray[np.int64], share: float, labels: NDArray[np.int64], groups: Sequence[str], word: str, seed: int
) -> NDArray[np.int64]:
    """Groups in a random order, each taken if that brings its classes closer to their share and ends none of them."""
    names, number = np.unique(np.array(groups), return_inverse=True)
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    counts = [np.unique(labels[rows[some]], return_counts=True) for some in members]  # classes of each, and pictures
    remaining = np.bincount(labels[rows]).astype(float)
    missing = remaining * share
    held_out = []
    for group in np.argsort(_uniform_by_name([str(name) for name in names], word, seed), kind="stable"):
        classes, pictures = counts[group]
        nearer = np.square(missing[classes] - pictures).sum() < np.square(missing[classes]).sum()
        if nearer and (remaining[classes] > pictures).all():
            held_out.append(group)
            missing[classes] -= pictures
            remaining[classes] -= pictures
    if not held_out:
        held_out = _smallest(counts, remaining, names, word)
    return rows[np.concatenate([members[group] for group in held_out])]


def _smallest(
    counts: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
    remaining: NDArray[np.float64],
    names: NDArray[np.str_],
    word: str,
) -> list[int]:
    """Every group is larger than the share: the smallest will do, if no class ends with it."""
    possible = [group for group, (classes, pictures) in enumerate(counts) if (remaining[classes] > pictures).all()]
    if not possible:
        other = " Set data.validation=0." if word == "validation" else ""
        raise DataError(
            f"No group (data.group_by) can be held out for {word} without taking all pictures of a class, such as "
            f"{names[0]}.{other}"
        )
    return [min(possible, key=lambda group: counts[group][1].sum())]
