"""From the checks of single pictures to findings about the set, each with what to do about it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.data.decode import HEIF_ENDINGS, NEEDS_HEIF, PictureFacts
from vitral.data.pack import too_many
from vitral.data.sources import SPLITS, Index
from vitral.targets import Target, columns

RARE = 0.02  # a property that fewer pictures share makes them odd
IMBALANCE = 10  # times as many pictures in the largest class as in the smallest
TINY = 8  # pixels per side
SLOW = 2.0  # seconds of one core
LONG = 3.0  # times as long as wide
FAR = 5.0  # times the distance between the quartiles, beyond them
LEAKS = 0.01  # share of the test pictures that have a near copy elsewhere, above which it is serious

_LOOK = "Look at them: simple drawings may be alike without being copies. "


class PictureCheck(NamedTuple):
    """What was read and measured of one picture."""

    digest: bytes
    facts: PictureFacts | None = None
    transparent: bool = False
    plain: float = 0.0  # share of the thumbnail that is of its most common colour
    error: str = ""


@dataclass(frozen=True)
class Finding:
    """Something to know about a set of pictures, and what to do about it."""

    kind: str
    serious: bool
    what: str
    advice: str
    samples: list[tuple[int, ...]] = field(default_factory=list)  # groups: a picture, or those that are alike


def findings(index: Index, checks: Sequence[PictureCheck], pairs: Sequence[tuple[int, int]]) -> Iterable[Finding]:
    """All findings about a source, from the checks of its pictures and the pairs of near copies among them."""
    yield from _unreadable(checks)
    yield from _unread(index)
    yield from _copies(index, checks)
    yield from _near_copies(index, checks, pairs)
    yield from _targets(index)
    yield from _odd(checks)
    yield from _storage(index, checks)


def _unreadable(checks: Sequence[PictureCheck]) -> Iterable[Finding]:
    unreadable: list[tuple[int, ...]] = [(number,) for number, one in enumerate(checks) if one.error]
    if unreadable:
        many = too_many(len(unreadable), len(checks))
        then = "training refuses so many" if many else "training leaves them out, and names them in left-out.csv"
        yield Finding(
            "unreadable",
            True,
            f"{_pictures(len(unreadable))} cannot be read.",
            f"Mend or remove them: {then}.",
            unreadable,
        )


def _unread(index: Index) -> Iterable[Finding]:
    if index.unread:
        endings = Counter(path.rpartition(".")[2].lower() for path in index.unread)
        counts = ", ".join(f"{count:,} .{ending}" for ending, count in endings.most_common())
        heic = f"{NEEDS_HEIF} " if {f".{ending}" for ending in endings} & {*HEIF_ENDINGS} else ""
        yield Finding(
            "unread",
            True,
            f"Pictures in formats that Vitral does not read: {counts}, such as {index.unread[0]}.",
            f"{heic}Convert them to JPEG or PNG: until then they, and classes that have no others, are left out.",
        )


def _copies(index: Index, checks: Sequence[PictureCheck]) -> Iterable[Finding]:
    """Pictures whose bytes are there more than once."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for number, one in enumerate(checks):
        if not one.error:
            groups[one.digest].append(number)
    alike = [tuple(group) for group in groups.values() if len(group) > 1]
    yield from _alike(index, alike, "", "exactly the same", serious=True)


def _near_copies(index: Index, checks: Sequence[PictureCheck], pairs: Sequence[tuple[int, int]]) -> Iterable[Finding]:
    """Pictures that were resized, compressed anew, mirrored or cropped from each other."""
    alike = [(first, second) for first, second in pairs if checks[first].digest != checks[second].digest]
    tested = max(1, len(index.of("test")))
    touched = {
        number for pair in alike for number in pair if _sides(index, pair) > 1 and index.splits[number] == "test"
    }
    yield from _alike(index, alike, "near-", "nearly the same", serious=len(touched) > LEAKS * tested)


def _alike(
    index: Index, alike: Sequence[tuple[int, ...]], prefix: str, word: str, *, serious: bool
) -> Iterable[Finding]:
    leaks = [group for group in alike if _sides(index, group) > 1]
    labels = [group for group in alike if len({index.label_of(number) for number in group}) > 1]
    reported = set(leaks) | set(labels)
    rest = [group for group in alike if group not in reported]
    kind = index.targets[0].kind if len(index.targets) == 1 else "labels"
    said = "number" if kind == "number" else "label"
    same = {"class": "and class", "number": "and with one number", "labels": "and with the same labels"}[kind]
    if leaks:
        where = Counter(" and ".join(s for s in SPLITS if s in index.splits[list(group)]) for group in leaks)
        counts = ", ".join(f"{count:,} in {sides}" for sides, count in where.most_common())
        yield Finding(
            f"{prefix}leak",
            serious,
            f"{_groups(leaks)} {_are(len(leaks))} {word} on two sides of the split: {counts}.",
            f"{_LOOK if prefix else ''}What is tested must not have been learnt: keep each on one side. "
            "Where they show one scene or patient, data.group_by keeps them together.",
            leaks,
        )
    if labels:
        yield Finding(
            f"{prefix}two-labels",
            serious and not prefix,
            f"{_groups(labels)} {_are(len(labels))} {word} under two {said}s.",
            f"{_LOOK if prefix else ''}Decide for one {said} each, and remove the other copy.",
            labels,
        )
    if rest:
        yield Finding(
            f"{prefix}copies",
            False,
            f"{_groups(rest)} {_are(len(rest))} {word}, in one split {same}.",
            f"{_LOOK if prefix else ''}Remove the copies: they count twice and teach nothing new.",
            rest,
        )


def _targets(index: Index) -> Iterable[Finding]:
    """What is wrong with what is to be learnt."""
    for target, part in zip(index.targets, columns(index.targets), strict=True):
        if target.kind == "number":
            yield from _numbers(index, target, index.labels[:, part][:, 0])
            continue
        of_target = "" if len(index.targets) == 1 else f"{target.name} "
        names = [f"{of_target}{name}" for name in target.names]
        yield from _classes(index, names, part, "label" if target.kind == "labels" else "class")
        if target.kind == "labels":
            yield from _labels(index, names, index.labels[:, part] > 0)


def _classes(index: Index, names: Sequence[str], part: slice, word: str) -> Iterable[Finding]:
    if len(names) == 1 and word == "class":
        yield Finding("one-class", True, f"There is one class, {names[0]}.", "Two are needed to tell anything apart.")
        return
    by_split = {split: index.counts(index.of(split))[part] for split in SPLITS if len(index.of(split))}
    train = by_split["train"]
    if lacking := [name for name, count in zip(names, train, strict=True) if count == 0]:
        yield Finding(
            "not-in-train",
            True,
            f"{_few(lacking)} {_are(len(lacking))} tested or validated, and there is no training picture of it.",
            f"Move some of its pictures to train, or take the {word} out.",
        )
    for split, counts in by_split.items():
        missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
        if missing and split != "train":
            yield Finding(
                "not-in-split",
                False,
                f"{_few(missing)} {_are(len(missing))} not in {split}.",
                f"Nothing will be known about how well that {word} is recognised: add pictures of it.",
            )
    present = train[train > 0]
    if few := [f"{name} ({count})" for name, count in zip(names, train, strict=True) if 0 < count < 5]:
        yield Finding(
            "few", False, f"Fewer than 5 training pictures: {_few(few)}.", "Add more: so few can hardly be learnt from."
        )
    if len(present) and present.max() > IMBALANCE * present.min():
        most, least = names[int(train.argmax())], names[int(np.where(train > 0, train, train.max()).argmin())]
        plural = "classes" if word == "class" else "labels"
        instead = "accuracy" if word == "class" else "mean"
        yield Finding(
            "imbalance",
            False,
            f"The {plural} are uneven: {present.max():,} training pictures of {most}, {present.min():,} of {least}.",
            f"Add pictures of the small {plural}, or train with data.sampling=balanced or train.class_weights=balanced"
            f"; and look at each {word}'s figures, not at the {instead} alone.",
        )
    folded: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folded[name.casefold().strip()].append(name)
    if same := [" and ".join(group) for group in folded.values() if len(group) > 1]:
        yield Finding(
            "names", True, f"Names of classes that differ in capitals or blanks: {_few(same)}.", "Use one name."
        )


def _labels(index: Index, names: Sequence[str], has: NDArray[np.bool_]) -> Iterable[Finding]:  # (samples, labels)
    """Labels that say nothing of their own."""
    train = has[index.of("train")]
    everywhere = np.asarray(train.all(axis=0))
    if everywhere.any():
        yield Finding(
            "everywhere",
            bool(everywhere.all()),
            f"All training pictures have {_few(_those(names, everywhere))}: there is nothing to tell apart.",
            "Take the label out, or add pictures that do not have it: a model will always say it.",
        )
    alike: dict[bytes, list[int]] = defaultdict(list)
    for number in np.flatnonzero(has.any(axis=0) & ~has.all(axis=0)):
        alike[has[:, number].tobytes()].append(int(number))
    if groups := [" and ".join(names[number] for number in group) for group in alike.values() if len(group) > 1]:
        yield Finding(
            "together",
            False,
            f"Labels that always come together: {_few(groups)}.",
            "No model can tell them apart: make one label of them, or add pictures that have only one.",
        )


def _numbers(index: Index, target: Target, numbers: NDArray[np.float64]) -> Iterable[Finding]:
    train = numbers[index.of("train")]
    if (train == train[0]).all():
        yield Finding(
            "constant",
            True,
            f"{target.name} is {train[0]:g} for all training pictures.",
            "There is nothing to learn: add pictures of which it is another, or take it out of data.target.",
        )
    low, high = np.percentile(train, (25, 75))
    far = np.flatnonzero((numbers < low - FAR * (high - low)) | (numbers > high + FAR * (high - low)))
    if high > low and 0 < len(far) <= RARE * len(numbers):
        far = far[np.argsort(-np.abs(numbers[far] - (low + high) / 2), kind="stable")]
        values = _few([f"{numbers[number]:g}" for number in far])
        yield Finding(
            "outliers",
            False,
            f"{_pictures(len(far))} {_are(len(far))} far from the others in {target.name}: {values}. Half of the "
            f"training pictures have {low:g} to {high:g}.",
            "Is it another unit, or a decimal point that went astray? Mend it, or leave it if it is true.",
            [(int(number),) for number in far],
        )


def _those(names: Sequence[str], which: NDArray[np.bool_]) -> list[str]:
    return [name for name, one in zip(names, which, strict=True) if one]


def _odd(checks: Sequence[PictureCheck]) -> Iterable[Finding]:
    """Pictures that are few among many: a placeholder, a drawing among photographs, an empty frame."""
    most = RARE * len(checks)
    odd: dict[int, str] = {}
    for word in ("format", "mode"):
        groups: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(checks):
            if one.facts:
                groups[str(getattr(one.facts, word))].append(number)
        for name, members in groups.items():
            if len(members) <= most and name not in ("L", "RGB"):  # grey among colour has its own finding
                odd |= dict.fromkeys(members, name)
    plain = [number for number, one in enumerate(checks) if one.plain > 0.6]
    if len(plain) <= most:
        odd |= dict.fromkeys(plain, "mostly one colour")
    if odd:
        kinds = ", ".join(f"{count:,} {name}" for name, count in Counter(odd.values()).most_common(4))
        yield Finding(
            "odd",
            False,
            f"{_pictures(len(odd))} {_are(len(odd))} unlike the others: {kinds}.",
            "Look at them: placeholders and drawings hide among photographs. If they belong here, leave them.",
            [(number,) for number in odd],
        )


def _storage(index: Index, checks: Sequence[PictureCheck]) -> Iterable[Finding]:
    def those(condition: Any) -> list[tuple[int, ...]]:
        return [(number,) for number, one in enumerate(checks) if one.facts and condition(one.facts)]

    def finding(kind: str, samples: list[tuple[int, ...]], what: str, advice: str) -> Iterable[Finding]:
        if samples:
            yield Finding(kind, False, f"{what}: {_pictures(len(samples))}.", advice, samples)

    yield from finding(
        "rotated",
        those(lambda facts: facts.orientation != 1),
        "Stored turned or mirrored (EXIF)",
        "Vitral turns them upright. Programs that do not will see them otherwise.",
    )
    clear: list[tuple[int, ...]] = [(number,) for number, one in enumerate(checks) if one.transparent]
    yield from finding(
        "transparent",
        clear,
        "Transparent in places",
        "They are drawn on data.background, which is black unless you set it: black on nothing is then all black.",
    )
    yield from finding(
        "deep",
        those(lambda facts: facts.bits == 16),
        "16 bits a channel",
        "The upper 8 are used: if all that matters lies in the lower ones, scale them before.",
    )
    yield from finding(
        "animated",
        those(lambda facts: facts.animated),
        "Several frames or pages",
        "The first is used.",
    )
    yield from finding(
        "slow",
        those(lambda facts: facts.seconds > SLOW),
        f"Slow to read, more than {SLOW:g} seconds each",
        "Save them smaller, or as JPEG: each is read whole before it is made small.",
    )
    yield from finding(
        "tiny",
        those(lambda facts: min(facts.width, facts.height) < TINY) if not _all_tiny(checks) else [],
        f"Less than {TINY} pixels wide or high",
        "They are enlarged, and show next to nothing.",
    )
    yield from finding(
        "long",
        those(lambda facts: max(facts.width / facts.height, facts.height / facts.width) > LONG),
        f"More than {LONG:g} times as long as wide",
        "They are squeezed into the shape that the model looks at: cut them yourself if what matters gets too narrow.",
    )
    strange = those(lambda facts: facts.channels != index.channels and not {facts.channels, index.channels} <= {1, 3})
    if strange:
        yield Finding(
            "channels",
            True,
            f"Not the {index.channels} channels that most pictures have: {_pictures(len(strange))}.",
            "Training cannot use them: give all pictures the same channels.",
            strange,
        )
    grey = those(lambda facts: facts.channels == 1)
    if index.channels == 3 and 0 < len(grey) < sum(one.facts is not None for one in checks):
        yield from finding("grey", grey, "Grey among coloured ones", "They are read as colour with no saturation.")


def _all_tiny(checks: Sequence[PictureCheck]) -> bool:
    return all(min(one.facts.width, one.facts.height) <= TINY for one in checks if one.facts)


def _sides(index: Index, group: tuple[int, ...]) -> int:
    return len({str(index.splits[number]) for number in group})


def _pictures(count: int) -> str:
    return "1 picture" if count == 1 else f"{count:,} pictures"


def _groups(alike: Sequence[tuple[int, ...]]) -> str:
    noun = "pair" if all(len(group) == 2 for group in alike) else "group"
    return f"{len(alike):,} {noun}{'s' if len(alike) > 1 else ''} of pictures"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
