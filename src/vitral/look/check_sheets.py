"""Contact sheets of the pictures that `vitral check` has findings on."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.data.check import Report
from vitral.data.config import Augment
from vitral.data.decode import decode
from vitral.data.findings import Finding
from vitral.data.preprocess import Preprocess
from vitral.data.sources import SPLITS, Index
from vitral.errors import DataError
from vitral.look.figures import BLUE, GREY, figure
from vitral.look.sheets import COLUMNS, TILE, Section, Tile, as_picture, write_sheet
from vitral.targets import columns

MOST_CLASSES = 100  # sheets of classes
NUMBER_SHELVES = 8  # parts that the pictures of a number are in, from small to large


def draw(report: Report, folder: Path) -> None:
    """Write all sheets of a report into a folder."""
    overview(report, folder / "overview.png")
    sizes(report, folder / "sizes.png")
    if any(finding.samples for finding in report.findings):
        findings(report, folder / "findings.png")
    (folder / "classes").mkdir(exist_ok=True)
    for place, shelf in enumerate(shelves(report.index)[:MOST_CLASSES]):
        word = re.sub(r"[^\w-]+", "_", shelf.name)[:40]
        class_sheet(report, shelf, folder / "classes" / f"{place:03}-{word}.png")


@dataclass(frozen=True)
class Shelf:
    """Pictures that have something in common: a class, a label, a number of about that size."""

    name: str
    what: str  # "A class"
    numbers: NDArray[np.int64]  # of the samples


def shelves(index: Index) -> list[Shelf]:
    """The pictures by what is to be learnt: a shelf for each class or label, and some from small to large numbers."""
    found = []
    for target, part in zip(index.targets, columns(index.targets), strict=True):
        of_target = f"{target.name} " if len(index.targets) > 1 or target.kind == "number" else ""
        if target.kind == "number":
            numbers = index.labels[:, part][:, 0]
            order = np.argsort(numbers, kind="stable")
            steps = np.flatnonzero(np.diff(numbers[order])) + 1  # where another number begins
            parts = NUMBER_SHELVES if len(steps) >= NUMBER_SHELVES else steps
            for some in np.array_split(order, parts):
                if len(some):
                    span = " to ".join(dict.fromkeys(f"{numbers[place]:g}" for place in (some[0], some[-1])))
                    found.append(Shelf(f"{of_target}{span}", "Numbers", some))
            continue
        for output, name in enumerate(target.names, start=part.start):
            members = index.labels[:, output] > 0 if index.other_targets else index.labels == output
            what = "A class" if target.kind == "class" else "A label"
            found.append(Shelf(f"{of_target}{name}", what, np.flatnonzero(members)))
    return found


def overview(report: Report, path: Path) -> None:
    """Write the sheet that has a row of pictures per class."""
    index, all_shelves = report.index, shelves(report.index)
    sections = []
    for shelf in all_shelves[:30]:
        splits = index.splits[shelf.numbers]
        counts = {split: int((splits == split).sum()) for split in SPLITS}
        counts_text = ", ".join(f"{count:,} {split}" for split, count in counts.items() if count)
        numbers = _spread(shelf.numbers, COLUMNS)
        tiles = [[_tile(report, int(number), with_caption=False)] for number in numbers]
        sections.append(Section(shelf.name, counts_text, tiles))
    limit = "" if len(all_shelves) <= 30 else ", the first 30 of them here"
    what = f"{len(index.samples):,} pictures{_of_what(index)}{limit}."
    write_sheet(path, f"{index.source}", what, sections)


def _of_what(index: Index) -> str:
    if not index.other_targets:
        return f" of {len(index.class_names)} classes"
    words = {"class": "{n} classes", "labels": "any number of {n} labels each", "number": "from small to large"}
    return ", " + "; ".join(
        (f"{target.name}: " if len(index.targets) > 1 or target.kind == "number" else "")
        + words[target.kind].format(n=target.outputs)
        for target in index.targets
    )


def class_sheet(report: Report, shelf: Shelf, path: Path) -> None:
    """Write the sheet of one shelf: pictures of each split, spread evenly over all of them."""
    index = report.index
    sections = []
    for split in SPLITS:
        members = shelf.numbers[index.splits[shelf.numbers] == split]
        if len(members):
            numbers = _spread(members, 3 * COLUMNS)
            which = "all of them" if len(numbers) == len(members) else f"{len(numbers)} of {len(members):,}"
            tiles = [[replace(_tile(report, int(number)), below="")] for number in numbers]
            sections.append(Section(split, which, tiles))
    write_sheet(path, shelf.name, f"{shelf.what} of {index.source}.", sections)


def findings(report: Report, path: Path) -> None:
    """Write the sheet of findings in the order of the report, with some pictures of each."""
    index, sections = report.index, []
    for finding in report.findings:
        if finding.samples:
            groups = [[_tile(report, number) for number in group[:4]] for group in _some_samples(finding)]
            more = len(finding.samples) - len(groups)
            text = finding.advice + (f" ({more:,} more are in findings.csv.)" if more else "")
            sections.append(Section(("! " if finding.serious else "") + finding.what, text, groups))
    write_sheet(
        path,
        f"What was found in {index.source}",
        f"Under each picture: the end of its path, its split and {'what it is' if index.other_targets else 'class'}.",
        sections,
    )


def sizes(report: Report, path: Path) -> None:
    """Plot width against height of all readable pictures."""
    pixels = report.sizes  # (n, 2)
    with figure(path, 7.5, 5, "Sizes", f"Width and height of {len(pixels):,} pictures; dashed: square.") as canvas:
        axes = canvas.subplots()
        if not len(pixels):
            return
        places, counts = np.unique(pixels, axis=0, return_counts=True)
        most = counts.max()
        axes.scatter(places[:, 0], places[:, 1], s=12 + 240 * counts / most, color=BLUE, alpha=0.45, linewidths=0)
        top = pixels.max() * 1.08
        axes.plot([0, top], [0, top], "--", color=GREY, linewidth=1)
        axes.set(xlabel="width, pixels", ylabel="height, pixels", xlim=(0, top), ylim=(0, top))
        axes.grid(True)
        width, height = places[counts.argmax()]
        text = f"largest dot: {most:,} of {width} × {height}"
        axes.text(0.98, 0.04, text, transform=axes.transAxes, ha="right", fontsize=9)


def augmentation(index: Index, preprocess: Preprocess, how: Augment, seed: int, path: Path) -> None:
    """Write the sheet of what the model will see: a row per picture, first as it is, then one tile per epoch."""
    import torch

    from vitral.data.augment import augment, mix

    numbers = _spread(index.of("train"), 8)
    numbers = np.array([number for number in numbers if _readable(index, number)])
    if not len(numbers):
        raise DataError(f"None of the first pictures of {index.source} can be read: there is nothing to draw.")
    pixels = np.stack([preprocess.stored(index.storage.read(int(number))) for number in numbers])
    columns = [preprocess.centre(pixels)]
    for epoch in range(COLUMNS - 1):
        keys: Any = {"seed": seed, "epoch": epoch, "samples": numbers}
        images = augment(
            torch.from_numpy(pixels), how, size=preprocess.image_size, background=preprocess.background, **keys
        )
        if how.mixup or how.cutmix:
            labels = torch.from_numpy(index.labels[numbers])
            images, _ = mix(images, labels, len(index.class_names), how, **keys)
        columns.append(images.round().clamp(0, 255).byte().numpy())
    heads = ["as it is", *(f"epoch {epoch + 1}" for epoch in range(COLUMNS - 1))]
    groups = [
        [Tile(as_picture(column[row]), head if row == 0 else "")]
        for row in range(len(numbers))
        for head, column in zip(heads, columns, strict=True)
    ]
    height, width = preprocess.image_size
    what = f"{index.source} at {width} × {height}: as it is, and as the model sees it in seven epochs."
    write_sheet(path, "What the model will see", what, [Section("", "", groups)])


def _readable(index: Index, number: int) -> bool:
    try:
        decode(index.storage.read(int(number)))
        return True
    except DataError:
        return False


def _tile(report: Report, number: int, with_caption: bool = True) -> Tile:
    index, split = report.index, str(report.index.splits[number])
    image = None
    if not report.checks[number].error:
        decoded = decode(index.storage.read(number), at_least=(2 * TILE, 2 * TILE))
        image = decoded if not isinstance(decoded, np.ndarray) else as_picture(decoded.transpose(2, 0, 1))
        image.thumbnail((2 * TILE, 2 * TILE))  # now, else all that are on a sheet would be in memory at full size
    if not with_caption:
        return Tile(image)
    return Tile(image, index.samples[number], f"{split}, {index.label_of(number)}")


def _spread(numbers: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most `most` of the numbers, spread evenly."""
    return numbers[np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(int))]


def _some_samples(finding: Finding) -> list[tuple[int, ...]]:
    """The samples of a finding that a sheet has room for, spread evenly."""
    most = 2 * COLUMNS if len(finding.samples[0]) == 1 else COLUMNS
    places = np.unique(np.linspace(0, len(finding.samples) - 1, min(most, len(finding.samples))).astype(int))
    return [finding.samples[place] for place in places]
