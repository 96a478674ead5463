"""A recipe for pictures that nobody has described: chosen by their size, their number and what they show.

Every rule says itself, so that a person can disagree: `vitral show FOLDER > mine.toml` writes what was chosen. What was
tried to find them is in docs/decisions/0009.
"""

from dataclasses import dataclass
from statistics import median

import numpy as np

from vitral.data.config import Augment, Data
from vitral.data.decode import describe
from vitral.data.sources import Index, open_source
from vitral.errors import DataError
from vitral.recipe import Recipe
from vitral.recipes.quick import quick_model, quick_train

LOOKED_AT = 100  # pictures whose size is read
PHOTOGRAPH = 56  # pixels: from here on pictures are taken to be photographs, and made smaller


@dataclass(frozen=True)
class Chosen:
    """A recipe, and why it is as it is: a sentence each."""

    recipe: Recipe
    why: tuple[str, ...]


def choose(source: str) -> Chosen:
    """Look at the pictures of a source, and choose.

    >>> choose("digits").recipe.model.image_size
    8
    """
    index = open_source(Data(source=source))
    side, count = _side(index), len(index.of("train"))
    size, patch, sized = _sizes(side)
    augment, augmented = _augment(index.channels, side, count)
    budget = "30s" if count < 100 else "2m" if count < 1_000 else "5m" if count < 10_000 else "10m"
    batch = 2 ** int(np.log2(np.clip(count // 4, 2, 128)))
    recipe = Recipe(
        model=quick_model(size, patch),
        data=Data(source=source, jpeg="scaled", augment=augment),
        train=quick_train(budget, batch, baseline=True),
    )
    return Chosen(
        recipe,
        (
            sized,
            augmented,
            f"{count:,} pictures to learn from: {batch} a step, for {budget} where train.budget says nothing else.",
        ),
    )


def _side(index: Index) -> int:
    """The shorter side of a picture, in the middle of what some of them have."""
    numbers = np.unique(np.linspace(0, len(index.samples) - 1, LOOKED_AT).astype(int))
    sides = []
    for number in numbers:
        try:
            facts = describe(index.storage.read(int(number)), index.samples[number])
        except DataError:
            continue  # one that cannot be read is told by the packing
        sides.append(min(facts.width, facts.height))
    if not sides:
        raise DataError(f"None of {len(numbers)} pictures of {index.source} that were looked at can be read.")
    return int(median(sides))


def _sizes(side: int) -> tuple[int, int, str]:
    """image_size and patch_size, so that there are about 64 patches; and a sentence."""
    if side >= PHOTOGRAPH:
        return 64, 8, f"Pictures of about {side} pixels: photographs, looked at in {64} × {64} pixels, patches of 8."
    patch = 2 if side < 24 else 4
    size = max(4, round(side / patch)) * patch
    return size, patch, f"Pictures of about {side} pixels: looked at in {size} × {size}, patches of {patch}."


def _augment(channels: int, side: int, count: int) -> tuple[Augment, str]:
    """How pictures are changed; and a sentence."""
    if side >= PHOTOGRAPH:
        jitter = Augment(crop=0.35, flip="random", brightness=0.3, contrast=0.3, saturation=0.3)
        return jitter, "Photographs: a part of each is looked at, another each time, mirrored, brighter or darker."
    if channels == 3:
        return Augment(
            pad=2, flip="alternating", outside="mirror"
        ), "Small and in colour: moved a little, and mirrored."
    return (
        Augment(rotate=10, zoom=0.1, shear=8, shift=0.08),
        "Small, not in colour: turned and moved a little, not mirrored, for they may be signs.",
    )
