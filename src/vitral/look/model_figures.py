"""The figures of a model itself: how it takes in a picture, its first filters, positions, how far its heads look."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError
from vitral.look.maps import eval_mode, layout_of
from vitral.look.plots import (
    draw_colours,
    draw_depth,
    draw_distances,
    draw_filters,
    draw_patches,
    draw_positions,
    draw_resampling,
)
from vitral.look.readings import (
    Colours,
    attention_distance,
    feature_colours,
    first_filters,
    patch_features,
    position_similarity,
    resampled_positions,
    tokens_through_depth,
)
from vitral.model.swin import Swin
from vitral.model.vit import ViT

MOST_COLUMNS = 6  # pictures in the figure of feature colours


def draw_model(
    folder: Path, model: ViT | Swin, preprocess: Preprocess, pictures: Sequence[NDArray[np.uint8]]
) -> tuple[list[Path], list[str]]:
    """Write the figures into a folder. Attention and features are measured on `pictures`, (C, H, W) each; without any,
    their figures are left out. Returns the files, and a sentence for each figure that was left out."""
    paths: list[Path] = []
    notes: list[str] = []
    draw_filters(_add_path(folder, "filters", paths), first_filters(model))
    if isinstance(model, Swin):
        notes.append(
            "Of a Swin Transformer positions, distances and depth are not drawn: it has no table of positions, and no "
            "token that goes through all blocks."
        )
        return paths, notes + _draw_on_pictures(folder, model, preprocess, pictures, paths)
    try:
        similarity = position_similarity(model)
        draw_positions(_add_path(folder, "positions", paths), similarity)
        down, across = model.config.grid
        grids = [(down, across), (2 * down, 2 * across), (down, 2 * across)]  # as it is, larger, of another shape
        draw_resampling(_add_path(folder, "resampling", paths), [resampled_positions(model, grid) for grid in grids])
    except RecipeError as error:
        notes.append(str(error))
    return paths, notes + _draw_on_pictures(folder, model, preprocess, pictures, paths)


def _draw_on_pictures(
    folder: Path,
    model: ViT | Swin,
    preprocess: Preprocess,
    pictures: Sequence[NDArray[np.uint8]],
    paths: list[Path],
) -> list[str]:
    """The figures that need pictures; returns a sentence where there are none."""
    if not pictures:
        return ["How far heads look is measured on pictures: give some, and it is drawn too."]
    pixels = np.stack(pictures)
    images = preprocess.normalise(torch.from_numpy(pixels)).to(next(model.parameters()))
    if isinstance(model, ViT):
        with eval_mode(model):
            tokens = model.embed(images[:1])[0].float().cpu()
        draw_patches(_add_path(folder, "patches", paths), pixels[0], layout_of(model, images), tokens)
        draw_distances(_add_path(folder, "distances", paths), attention_distance(model, images).cpu())
        draw_depth(_add_path(folder, "depth", paths), tokens_through_depth(model, images))
    # Each picture by itself: a component that parts subject and ground in one may part two pictures from each other.
    each = [feature_colours(patch_features(model, image[None])) for image in images[:MOST_COLUMNS]]
    colours = Colours(torch.cat([one.rgb for one in each]), torch.cat([one.subject for one in each]))
    draw_colours(_add_path(folder, "colours", paths), pixels[:MOST_COLUMNS], colours)
    return []


def _add_path(folder: Path, name: str, paths: list[Path]) -> Path:
    """The path of a figure, which is also added to `paths`."""
    paths.append(folder / f"{name}.png")
    return paths[-1]
