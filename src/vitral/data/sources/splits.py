"""Who learns, who validates, who tests. What the source says stands; what it leaves open is drawn here.

A draw hangs on the name of a picture, the class and `data.split_seed`, and on nothing else: the same on every machine,
and a picture that is added later moves few of the others.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitral.data.randomness import uniform
from vitral.errors import DataError, RecipeError
from vitral.targets import Target, columns, is_one_class

SPLIT_WORDS = {"train": "train", "training": "train"}
SPLIT_WORDS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
SPLIT_WORDS |= dict.fromkeys(("test", "testing"), "test")
SPLIT_WORDS |= {f"{word}_set": split for word, split in SPLIT_WORDS.items()}

TEST, VALIDATION = 0.2, 0.1  # shares that are held out where the source has no such split
BINS, LEAST = 10, 20  # of a number, so that small and large ones are in each split; pictures in each bin

# What should be in each split to the same share: (n,) the class of each picture, or (n, strata) where it is in several
Strata = NDArray[Any]


def strata(targets: Sequence[Target], labels: NDArray[Any]) -> tuple[Strata, str]:
    """The strata of the pictures by what is to be learnt, and what they are in words."""
    if is_one_class(targets):
        return labels, "every class"
    matrices: list[NDArray[np.bool_]] = []
    words = []
    for target, part in zip(targets, columns(targets), strict=True):
        of_target = f" of {target.name}" if len(targets) > 1 else ""
        if target.kind == "number":
            matrices.append(_bins(labels[:, part][:, 0]))
            words.append(f"low, middle and high {target.name}")
            continue
        matrices.append(np.asarray(labels[:, part] > 0))
        if target.kind == "labels":
            matrices.append(np.asarray(~matrices[-1].any(axis=1, keepdims=True)))  # those that have none
        words.append(f"every {'class' if target.kind == 'class' else 'label'}{of_target}")
    return np.concatenate(matrices, axis=1), " and of ".join(words)


def _bins(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:  # (n,) → (n, bins), about as many pictures in each
    bins = min(BINS, max(1, len(numbers) // LEAST))
    edges = np.unique(np.quantile(numbers, np.arange(1, bins) / bins))
    return np.eye(len(edges) + 1, dtype=bool)[np.searchsorted(edges, numbers, side="right")]


def complete_splits(
    splits: Sequence[str] | NDArray[np.str_],  # of SPLITS, or "" where the source does not say
    strata: Strata,
    names: Sequence[str],
    groups: Sequence[str] | None,
    *,
    validation: float | Literal["auto"],
    seed: int,
    official: bool = False,  # an official set is not cut unless `validation` is set
    tests: bool = True,  # whether some pictures are held out to test, where the source names none
    same: str = "every class",  # what the strata are, in words
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
    elif not named and tests:
        _hold_out(complete, "test", TEST, strata, names, groups, seed)
        notes.append(f"There is no test set: {TEST * 100:g} % of the pictures are held out{_how(groups, same)}.")
    if "validation" in complete:
        if validation != "auto":
            raise RecipeError(
                f"data.validation is {validation:g}, and the source has a validation set of its own. Leave it at auto."
            )
        return complete, notes
    share = (0.0 if official else VALIDATION) if validation == "auto" else validation
    if share:
        _hold_out(complete, "validation", share, strata, names, groups, seed)
        how = _how(groups, same) if tests else ""
        notes.append(f"To validate, {share * 100:g} % of the training pictures are held out{how}.")
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


def _how(groups: Sequence[str] | None, same: str) -> str:
    whole = "" if groups is None else " whole groups, about"
    return f",{whole} the same share of {same}"


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
    strata: Strata,
    names: Sequence[str],
    groups: Sequence[str] | None,
    seed: int,
) -> None:
    """Move a share of train to the split `word`, in place."""
    rows = np.flatnonzero(splits == "train")
    splits[held_out(rows, share, strata[rows], names, groups, word, seed)] = word


def held_out(
    rows: NDArray[np.int64],
    share: float,
    strata: Strata,  # of these rows
    names: Sequence[str],
    groups: Sequence[str] | None,
    word: str,
    seed: int,
) -> NDArray[np.int64]:
    """A share of these rows, drawn by their names; whole groups, where there are some."""
    if groups is not None:
        return rows[_whole_groups(share, strata, [groups[int(row)] for row in rows], word, seed)]
    numbers = _uniform_by_name([names[int(row)] for row in rows], word, seed)
    return rows[_stratified(share, strata, numbers) if strata.ndim == 1 else _of_each(share, strata, numbers)]


def _uniform_by_name(names: Sequence[str], word: str, seed: int) -> NDArray[np.float64]:
    """A number from 0 to 1 for each name."""
    digests = (hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest() for name in names)
    keys = np.frombuffer(b"".join(digests), dtype="<i8")
    return uniform(seed, f"split {word}", samples=keys)[:, 0]


def _stratified(share: float, strata: Strata, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """The rows with the smallest numbers of each class: at least one, unless it is the last."""
    order = np.lexsort((numbers, strata))
    chosen = []
    for members in np.split(order, np.flatnonzero(np.diff(strata[order])) + 1):
        chosen.append(members[: _count(share, len(members))])
    return np.concatenate(chosen)


def _of_each(share: float, strata: Strata, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Likewise where a row is in several strata: the rarest stratum first, of the rows that no rarer one has.

    After Sechidis, Tsoumakas and Vlahavas (2011), with the rows in the order of their numbers instead of a draw.
    """
    total = strata.sum(axis=0)
    remaining, chosen = total.copy(), np.zeros(len(strata), bool)
    decided = np.zeros(len(strata), bool)
    order = np.argsort(numbers, kind="stable")
    for stratum in np.argsort(total, kind="stable"):
        members = order[strata[order, stratum] & ~decided[order]]
        decided[members] = True
        missing = _count(share, total[stratum]) - (total - remaining)[stratum]
        for row in members:
            if missing <= 0:
                break
            if (remaining[strata[row]] > 1).all():  # it is the last of none
                chosen[row] = True
                remaining -= strata[row]
                missing -= 1
    return np.flatnonzero(chosen)


def _count(share: float, members: int) -> int:
    return min(max(1, round(share * members)), members - 1)


def _whole_groups(share: float, strata: Strata, groups: Sequence[str], word: str, seed: int) -> NDArray[np.int64]:
    """Groups in a random order, each taken if that brings its classes closer to their share and ends none of them."""
    names, number = np.unique(np.array(groups), return_inverse=True)
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    counts = [_counts(strata[some]) for some in members]
    remaining = (np.bincount(strata) if strata.ndim == 1 else strata.sum(axis=0)).astype(float)
    missing = remaining * share
    chosen = []
    for group in np.argsort(_uniform_by_name([str(name) for name in names], word, seed), kind="stable"):
        classes, pictures = counts[group]
        nearer = np.square(missing[classes] - pictures).sum() < np.square(missing[classes]).sum()
        if nearer and (remaining[classes] > pictures).all():
            chosen.append(group)
            missing[classes] -= pictures
            remaining[classes] -= pictures
    if not chosen:
        chosen = _smallest(counts, remaining, names, word)
    return np.concatenate([members[group] for group in chosen])


def _counts(strata: Strata) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The classes of a group, and how many pictures each has."""
    if strata.ndim == 1:
        return np.unique(strata, return_counts=True)
    pictures = strata.sum(axis=0)
    classes = np.flatnonzero(pictures)
    return classes, pictures[classes]


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
