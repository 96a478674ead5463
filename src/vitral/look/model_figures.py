"""The figures of a model itself: what its first layer looks for, where tokens stand, how far heads look."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError
from vitral.look.plots import draw_colours, draw_depth, draw_distances, draw_filters, draw_positions
from vitral.look.readings import (
    Colours,
    attention_distance,
    feature_colours,
    first_filters,
    patch_features,
    position_similarity,
    tokens_through_depth,
)
from vitral.model.vit import ViT

COLOURED = 6  # pictures that are shown in colours


def draw_model(
    folder: Path, model: ViT, preprocess: Preprocess, pictures: Sequence[NDArray[np.uint8]]
) -> tuple[list[Path], list[str]]:
    """Write the figures into a folder. `pictures`, (C, H, W) each, are what heads are watched on; without any, what
    needs them is left out. Returns the files, and a sentence for each figure that there is none of."""
    written: list[Path] = []
    notes: list[str] = []
    draw_filters(_named(folder, "filters", written), first_filters(model))
    try:
        similarity = position_similarity(model)
        draw_positions(_named(folder, "positions", written), similarity)
    except RecipeError as error:
        notes.append(str(error))
    if not pictures:
        notes.append("How far heads look is measured on pictures: give some, and it is drawn too.")
        return written, notes
    stacked = np.stack(pictures)
    images = preprocess.normalise(torch.from_numpy(stacked)).to(next(model.parameters()))
    draw_distances(_named(folder, "distances", written), attention_distance(model, images).cpu())
    draw_depth(_named(folder, "depth", written), tokens_through_depth(model, images))
    # Each picture by itself: what parts subject and ground in one may part two pictures from each other.
    each = [feature_colours(patch_features(model, image[None])) for image in images[:COLOURED]]
    colours = Colours(torch.cat([one.rgb for one in each]), torch.cat([one.subject for one in each]))
    draw_colours(_named(folder, "colours", written), stacked[:COLOURED], colours)
    return written, notes


def _named(folder: Path, name: str, written: list[Path]) -> Path:
    written.append(folder / f"{name}.png")
    return written[-1]
