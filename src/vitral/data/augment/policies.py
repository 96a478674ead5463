"""RandAugment, TrivialAugment and 3-Augment: which operation, how strong, for each picture.

The operations are those of RandAugment (Cubuk et al. 2020) and their ranges those of torchvision. The ones that move
pixels become matrices, and go into the one resampling; the others follow it, in the order in which they were drawn.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitral.data.augment import colour
from vitral.data.augment.change import Change
from vitral.data.augment.draws import Draws, Numbers
from vitral.data.augment.geometry import Size, affine_matrices
from vitral.data.config import Policy, RandAugment

OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "saturation",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)


@dataclass(frozen=True)
class Range:
    """What the operations do at full strength."""

    shear: float  # how far a row moves across for one step down
    translate: float  # share of the side
    pixels: int  # that are added to this
    rotate: float  # degrees
    enhance: float  # brightness, saturation, contrast and sharpness: 1 ± this
    bits: int  # that posterize takes away


RAND = Range(shear=0.3, translate=150 / 331, pixels=0, rotate=30, enhance=0.9, bits=4)
WIDE = Range(shear=0.99, translate=0, pixels=32, rotate=135, enhance=0.99, bits=6)


@dataclass(frozen=True)
class Round:
    """One operation for each picture."""

    operation: NDArray[np.int64]  # (B,) into OPERATIONS
    strength: Numbers  # (B,) 0 to 1
    sign: Numbers  # (B,) −1 or 1
    full: Range

    def matrices(self, size: Size) -> Numbers:
        """(B, 3, 3) of the operations that move pixels; for the others the matrix that changes nothing."""
        height, width = size
        aspect = width / height
        turn = self._signed("rotate") * np.radians(self.full.rotate)
        still = np.zeros_like(turn)
        matrices = np.tile(np.eye(3), (len(turn), 1, 1))
        matrices[:, :2] = affine_matrices(
            angle=turn, zoom=still + 1, slant=still, shift=np.stack([still, still]), aspect=aspect
        )
        # The upper left corner stays when a picture is sheared, as in the original.
        slant_x = self._signed("shear_x") * self.full.shear / aspect
        slant_y = self._signed("shear_y") * self.full.shear * aspect
        matrices[:, 0, 1] += slant_x
        matrices[:, 1, 0] += slant_y
        matrices[:, 0, 2] += slant_x + 2 * self._signed("translate_x") * (
            self.full.translate + self.full.pixels / width
        )
        matrices[:, 1, 2] += slant_y + 2 * self._signed("translate_y") * (
            self.full.translate + self.full.pixels / height
        )
        return matrices

    def colours(self) -> list[Change]:
        """The operations that change levels."""
        factor = 1 + self.sign * self.strength * self.full.enhance
        return [
            Change(colour.brightness, self._mask("brightness"), (factor,)),
            Change(colour.saturation, self._mask("saturation"), (factor,)),
            Change(colour.contrast, self._mask("contrast"), (factor,)),
            Change(colour.sharpness, self._mask("sharpness"), (factor,)),
            Change(colour.posterize, self._mask("posterize"), (8 - np.round(self.strength * self.full.bits),)),
            Change(colour.solarize, self._mask("solarize"), (256 * (1 - self.strength),)),
            Change(colour.autocontrast, self._mask("autocontrast")),
            Change(colour.equalize, self._mask("equalize")),
        ]

    def _mask(self, name: str) -> NDArray[np.bool_]:
        return self.operation == OPERATIONS.index(name)

    def _signed(self, name: str) -> Numbers:
        return np.where(self._mask(name), self.sign * self.strength, 0.0)


def rounds(policy: Policy | RandAugment, draws: Draws) -> list[Round]:
    """RandAugment has as many as its `operations`, TrivialAugment one; 3-Augment is not made of rounds."""
    if isinstance(policy, RandAugment):
        numbers = draws("policy", 3 * policy.operations).reshape(policy.operations, 3, -1)
        return [_round(one, np.full(one.shape[1], policy.magnitude / 30), RAND) for one in numbers]
    if policy.kind == "trivial":
        numbers = draws("policy", 3)
        return [_round(numbers, np.floor(31 * numbers[2]) / 30, WIDE)]
    return []


def three(draws: Draws) -> list[Change]:
    """3-Augment (DeiT III): exactly one of grey, inverted highlights and blur."""
    which, sigma = draws("policy", 2)
    which = np.floor(3 * which)
    return [
        Change(colour.grayscale, which == 0),
        Change(colour.solarize, which == 1, (np.full_like(sigma, 128),)),
        Change(colour.blur, which == 2, (blur_sigma(sigma),)),
    ]


def blur_sigma(number: Numbers) -> Numbers:
    """0.1 to 2 pixels, as BYOL and DeiT III have it."""
    return 0.1 + 1.9 * number


def _round(numbers: Numbers, strength: Numbers, full: Range) -> Round:
    operation = np.floor(numbers[0] * len(OPERATIONS)).astype(np.int64)
    return Round(operation, strength, np.where(numbers[1] < 0.5, -1.0, 1.0), full)
