"""Test pictures as they are, and as the model sees them."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitral.data.config import AsItIs, Pad
from vitral.data.decode import decode, describe, in_mode
from vitral.data.preprocess import Preprocess
from vitral.errors import DataError, printable
from vitral.look.gallery import SMALL, picture_uri
from vitral.look.sheets import as_picture

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation

SHAPES = 60  # test pictures whose shape is looked at


def what_it_sees(evaluation: "Evaluation") -> dict[str, Any] | None:
    """Test pictures as they are and as the model sees them: of some, the widest, the highest and the most like a
    square. None where all are in the model's size already."""
    storage, preprocess = evaluation.pack.index.storage, evaluation.weights.preprocess
    shapes: dict[int, tuple[int, int]] = {}  # row → width and height as one sees them
    for row in np.unique(np.linspace(0, evaluation.pictures - 1, SHAPES).astype(int)):
        try:
            facts = describe(storage.read(int(evaluation.numbers[row])))
        except DataError:  # it was there when it was packed
            continue
        shapes[int(row)] = (facts.height, facts.width) if facts.orientation > 4 else (facts.width, facts.height)
    height, width = preprocess.image_size
    if all(shape == (width, height) for shape in shapes.values()):
        return None
    oblong = {row: math.log(across / down) for row, (across, down) in shapes.items()}
    rows = [max(oblong, key=lambda row: oblong[row]), min(oblong, key=lambda row: oblong[row])]
    rows.append(min(oblong, key=lambda row: abs(oblong[row])))
    tiles = []
    for row in dict.fromkeys(rows):
        try:
            decoded = decode(storage.read(int(evaluation.numbers[row])), profile=preprocess.profile)
        except DataError:
            continue
        whole = decoded if isinstance(decoded, Image.Image) else as_picture(decoded.transpose(2, 0, 1))
        across, down = shapes[row]
        tiles.append(
            {
                "uri": picture_uri(in_mode(whole, "RGB")),
                "seen": picture_uri(as_picture(evaluation.images([row])[0])),
                "share": across / down,
                "size": f"{across:,} × {down:,}",
                "pixelated": max(width, height) < SMALL,
                "sample": printable(evaluation.samples[row]),
            }
        )
    return {"tiles": tiles, "share": width / height, "size": f"{width} × {height}", "how": _how(preprocess)}


def _how(preprocess: Preprocess) -> str:
    """A sentence on what becomes of a picture's shape."""
    how, shape = preprocess.resize, f"{preprocess.image_size[1]} × {preprocess.image_size[0]} pixels"
    if isinstance(how, Pad):
        return f"All of a picture is seen in its own shape, in {shape}; beside it is grey {preprocess.background}."
    if isinstance(how, AsItIs):
        return f"Pictures are seen as they are, in {shape}."
    part = f", and the middle {how.share:.0%} of each side seen" if how.share < 1 else ""
    if how.kind == "stretch":
        return f"All of a picture is scaled to {shape}, whatever its shape was{part}."
    return f"The middle of a picture is scaled to {shape}{part}: what lies beside it is not seen."
