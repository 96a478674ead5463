"""Pictures that are there twice: exact copies, and copies resized, recompressed, mirrored or cut at the edges.

1. Every picture becomes a thumbnail, and identical thumbnails are paired at once.
2. A thumbnail becomes about 70 numbers: the coarse waves of its brightness and colour, each weighted by its frequency,
   because in photographs the slow waves are strong and much alike. Every picture is compared with every other one, and
   with the mirror image of it, and the nearest few are candidates.
3. The two thumbnails of a candidate are laid onto each other by the least squares of Lucas and Kanade (1981), and what
   counts is whether the fine detail then agrees.

The first comparison grows with the square of the number of pictures, the check with the number of candidates. Measured
on one core: 3.5 s for 10,000 pictures of CIFAR-10 and 50 s for its 60,000 (15 s compare, the rest is the check) in
1.1 GB; 12 s for 10,000 digits of MNIST, where every picture has candidates. The limit is at a few hundred thousand
pictures, where ROWS of the comparison fill a gigabyte: above it an index of usearch (the extra `near`) says who is
near, and may miss some. Of a family of more than NEIGHBOURS copies not every pair is found, and those that are cut at
the edges may be missed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitral.data.threads import one_core_each
from vitral.progress import Progress, Tell, silent

HAS_INDEX = find_spec("usearch") is not None
SIDE = 32
WAVES = 8  # waves across the picture in brightness; a third of that in colour, which the eye and JPEG see coarsely
NEIGHBOURS = 8  # as many candidates for each picture
NEAR = 0.65  # coarse similarity from which a pair is a candidate; a photograph's nearest stranger has 0.4 to 0.6
AGREE = 0.88  # detail of copies agrees to 0.95 and more, that of other pictures hardly ever to 0.8

# A handwritten 1 has dozens of doubles that nobody copied. Where even the last of the neighbours is that near, only a
# very close match is a copy.
CROWDED = (0.65, 0.80)  # from here the demand rises, to here
AGREE_IN_A_CROWD, NEAR_IN_A_CROWD = 0.985, 0.9

SAME_LEVEL = 40.0  # of 255: the same shape in another colour is another picture
ROWS = 512  # of the comparison, at a time: 120 MB for 60,000 pictures
BLOCK = 4096  # pictures that are looked at together
SEARCHED = 128  # places of the index that are looked at for each picture: of 64, one pair in a hundred is missed
PAIRS = 512  # laid onto each other at a time: they stay in the cache
LARGEST_CUT = 0.15  # of half a side


@dataclass(frozen=True)
class Pair:
    """Two pictures by their places in the set, `first` before `second`."""

    first: int
    second: int
    similarity: float  # 1 is identical
    flipped: bool  # one is the mirror image of the other


def thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    """The whole picture, squashed into a square: (3, SIDE, SIDE)."""
    if image.has_transparency_data:
        # In front of grey, on which both black and white can be seen; what transparent pixels hide does not count.
        behind = Image.new("RGBA", image.size, (128, 128, 128, 255))
        image = Image.alpha_composite(behind, image.convert("RGBA"))
    # Bilinear weighs neighbours smoothly: with the mean of a box, a shift by half a pixel changes the detail.
    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=4)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


@dataclass(frozen=True)
class _Pictures:
    """Some of the thumbnails, which may lie in a file: no more of them are read than are asked for."""

    thumbnails: NDArray[np.uint8]  # (all, 3, SIDE, SIDE)
    numbers: NDArray[np.int64]  # (n,)

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, places: Tensor) -> Tensor:  # (n,) → (n, 3, SIDE, SIDE)
        return torch.from_numpy(self.thumbnails[self.numbers[places.numpy()]])

    def blocks(self) -> Iterator[Tensor]:
        return (self.at(places) for places in torch.arange(len(self)).split(BLOCK))


def near_duplicates(
    thumbnails: NDArray[np.uint8],  # (n, 3, SIDE, SIDE)
    tell: Tell = silent,
    numbers: NDArray[np.int64] | None = None,
    by_index: bool = False,
) -> list[Pair]:
    """Pairs of pictures of which one is a copy of the other, in the order of the set; among all, or those of `numbers`.

    Of several identical thumbnails, each is paired with the first, and only the first is compared with other pictures;
    `by_index` with those that an index takes for the nearest. `tell` is called with the progress.
    """
    first_with: dict[bytes, int] = {}  # by a digest: the thumbnails themselves would be there twice
    copies: list[Pair] = []
    for number in range(len(thumbnails)) if numbers is None else numbers.tolist():
        first = first_with.setdefault(blake2b(thumbnails[number].tobytes(), digest_size=16).digest(), number)
        if first != number:
            copies.append(Pair(first, number, 1.0, False))

    different = np.array(sorted(first_with.values()), np.int64)
    pictures = _Pictures(thumbnails, different)
    if len(pictures) > 1:
        pairs, flipped, demand = _candidates(pictures, tell, by_index)
        agreement = _agreement(pictures, pairs, flipped, tell)
        for number in torch.nonzero(agreement >= demand).flatten().tolist():
            first, second = different[pairs[number].numpy()].tolist()
            copies.append(Pair(first, second, min(agreement[number].item(), 1.0), bool(flipped[number])))
    return sorted(copies, key=lambda pair: (pair.first, pair.second))


def _candidates(pictures: _Pictures, tell: Tell, by_index: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs (P, 2), whether they match as mirror images (P,), and how well their detail must agree (P,)."""
    even, odd = _coarse(pictures)
    neighbours, last = [], []
    tell(Progress(0, len(pictures), "comparing them"))
    for rows, nearest, places in (_nearest_by_index if by_index else _nearest)(even, odd):
        row, column = torch.nonzero(nearest > NEAR, as_tuple=True)
        neighbours.append(torch.stack((rows[row], places[row, column]), dim=1).sort(dim=1).values)
        last.append(nearest[:, -1])
        tell(Progress(int(rows[-1]) + 1, len(pictures), "comparing them"))
    pairs = torch.cat(neighbours).unique(dim=0)  # (P, 2)
    crowd = torch.cat(last)[pairs].amax(dim=1)  # (P,)
    flipped = (odd[pairs[:, 0]] * odd[pairs[:, 1]]).sum(dim=1) < 0
    crowded = ((crowd - CROWDED[0]) / (CROWDED[1] - CROWDED[0])).clamp(0, 1)
    demand = AGREE + (AGREE_IN_A_CROWD - AGREE) * crowded
    level, (first, second) = _level(pictures), pairs.T
    alike = (even[first] * even[second]).sum(dim=1) + (odd[first] * odd[second]).sum(dim=1).abs()
    keep = alike > NEAR + (NEAR_IN_A_CROWD - NEAR) * crowded
    keep &= (level[first] - level[second]).abs().amax(dim=1) <= SAME_LEVEL
    return pairs[keep], flipped[keep], demand[keep]


Nearest = Iterator[tuple[Tensor, Tensor, Tensor]]  # pictures (rows,); similarities, places: (rows, NEIGHBOURS)


def _nearest(even: Tensor, odd: Tensor) -> Nearest:
    """The nearest of each picture, best first, by comparing it with all."""
    table = torch.empty(min(ROWS, len(even)), len(even))  # used again: new memory costs a third of the time
    for rows in torch.arange(len(even)).split(ROWS):
        # A mirror image has the same even waves, and the odd ones with the other sign: here is the better of the two.
        similarity = torch.mm(odd[rows], odd.T, out=table[: len(rows)]).abs_().addmm_(even[rows], even.T)  # (rows, n)
        similarity[torch.arange(len(rows)), rows] = -1  # a picture is not its own copy
        yield rows, *similarity.topk(min(NEIGHBOURS, len(even)), dim=1)


def _nearest_by_index(even: Tensor, odd: Tensor) -> Nearest:
    """The same without comparing it with all: a graph of near ones is walked (HNSW), for a picture and its mirror
    image. One thread makes the graph, so that it is the same each time."""
    from usearch.index import Index

    index = Index(ndim=even.shape[1] + odd.shape[1], metric="ip", dtype="f16", expansion_search=SEARCHED)
    blocks = torch.arange(len(even)).split(BLOCK)
    for rows in blocks:
        index.add(rows.numpy(), torch.cat((even[rows], odd[rows]), dim=1).numpy(), threads=1)
    wanted = min(NEIGHBOURS + 1, len(even))  # itself too
    for rows in blocks:
        sides = [torch.cat((even[rows], sign * odd[rows]), dim=1).numpy() for sign in (1, -1)]
        keys = [index.search(side, wanted, threads=1).keys.reshape(len(rows), wanted) for side in sides]
        places = torch.from_numpy(np.concatenate(keys, axis=1).astype(np.int64)).sort(dim=1).values  # (rows, 2 wanted)
        similarity = (even[rows, None] * even[places]).sum(dim=2) + (odd[rows, None] * odd[places]).sum(dim=2).abs()
        similarity[places == rows[:, None]] = -1
        similarity[:, 1:][places[:, 1:] == places[:, :-1]] = -1  # near as both is near once
        nearest, best = similarity.topk(min(NEIGHBOURS, len(even)), dim=1)
        yield rows, nearest, places.gather(1, best)


def _coarse(pictures: _Pictures) -> tuple[Tensor, Tensor]:
    """The waves that are even from left to right, and the odd ones: (n, about 35) each, of length 1 together."""
    count = torch.arange(SIDE)[:WAVES, None]
    basis = torch.cos(math.pi / SIDE * count * (torch.arange(SIDE) + 0.5))  # (WAVES, SIDE): the DCT
    frequency = torch.hypot(count.float(), count.T.float())  # (WAVES, WAVES)
    even, odd = [], []
    for block in pictures.blocks():
        grey = _grey(block)
        blue, red = block[:, 2] - grey, block[:, 0] - grey
        for_brightness = (frequency > 0) & (frequency < WAVES)  # without the mean: a brighter copy is a copy
        for_colour = (frequency > 0) & (frequency < WAVES / 3)
        parts = [(grey, for_brightness, 1.0), (blue, for_colour, 2.0), (red, for_colour, 2.0)]
        waves = [(basis @ plane @ basis.T * frequency * weight)[:, keep] for plane, keep, weight in parts]
        is_odd = torch.cat([(count.T % 2 == 1).expand(WAVES, WAVES)[keep] for _, keep, _ in parts])
        both = torch.cat(waves, dim=1)
        both = both / both.norm(dim=1, keepdim=True).clamp_min(SIDE)  # one colour and nothing else: near 0, not noise
        even.append(both[:, ~is_odd])
        odd.append(both[:, is_odd])
    return torch.cat(even), torch.cat(odd)


def _agreement(pictures: _Pictures, pairs: Tensor, flipped: Tensor, tell: Tell) -> Tensor:
    """How well the detail agrees when one is laid onto the other: (P,), 1 is perfectly."""
    # Always the brighter one onto the darker one: the answer must not depend on the order of the pictures.
    brightness = _level(pictures).sum(dim=1)
    swap = brightness[pairs[:, 0]] > brightness[pairs[:, 1]]
    pairs = torch.where(swap[:, None], pairs.flip(1), pairs)
    scores = torch.zeros(len(pairs))
    starts = range(0, len(pairs), PAIRS)
    blocks = [[rows[start : start + PAIRS] for rows in (pairs, flipped, scores)] for start in starts]
    done = 0
    tell(Progress(done, len(pairs), "those alike"))
    with one_core_each() as pool:
        for count in pool.map(lambda block: _score(pictures, *block), blocks):
            done += count
            tell(Progress(done, len(pairs), "those alike"))
    return scores


def _score(pictures: _Pictures, pairs: Tensor, flipped: Tensor, scores: Tensor) -> int:
    """Fills `scores` for a block of pairs, and returns how many they are."""
    still, moved = _grey(pictures.at(pairs.T.flatten()))[:, None].chunk(2)  # each (P, 1, SIDE, SIDE)
    moved = torch.where(flipped[:, None, None, None], moved.flip(3), moved)
    moved, inside = _warp(moved, _alignment(still, moved), "bicubic")
    a, b = _detail(still) * inside, _detail(moved) * inside
    noise = inside.sum(dim=(1, 2, 3))  # one grey level per pixel, which JPEG or rounding may add
    energy = ((a * a).sum(dim=(1, 2, 3)) + noise) * ((b * b).sum(dim=(1, 2, 3)) + noise)
    scores.copy_((a * b).sum(dim=(1, 2, 3)) / energy.sqrt())
    return len(scores)


def _alignment(still: Tensor, moved: Tensor) -> Tensor:
    """Scale and shift across, scale and shift down, with which `moved` fits `still` best: (P, 4)."""
    fit = torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat(len(still), 1)
    rest = fit.clone()
    for coarser, steps in ((2, 3), (1, 2)):  # half the size first: a blurred edge is felt from further away
        side = SIDE // coarser
        place = (torch.arange(side) + 0.5) * 2 / side - 1  # (side,)
        blur = _blur(0.8, side)
        target = blur @ F.avg_pool2d(still, coarser) @ blur.T  # (P, 1, side, side)
        source = blur @ F.avg_pool2d(moved, coarser) @ blur.T
        for _ in range(steps):
            now, inside = _warp(source, fit, "bilinear")
            middle = (target + now) / 2
            across, down = (part * inside for part in torch.gradient(middle, spacing=2 / side, dim=(3, 2)))
            change = torch.stack((across * place, across, down * place[:, None], down), dim=1).flatten(2)  # (P, 4, N)
            square = change @ change.mT  # (P, 4, 4)
            damping = 0.01 * square.diagonal(dim1=1, dim2=2).mean(dim=1) + 1e-3  # (P,): flat pictures divide by it
            rhs = change @ ((target - now) * inside).flatten(1)[:, :, None]  # (P, 4, 1)
            fit = fit + torch.linalg.solve(square + damping[:, None, None] * torch.eye(4), rhs)[:, :, 0]
            fit = rest + (fit - rest).clamp(-LARGEST_CUT, LARGEST_CUT)
    return fit


def _warp(pictures: Tensor, fit: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The pictures scaled and shifted, and 1 where there was a picture: both (P, 1, side, side)."""
    affine = torch.zeros(len(fit), 2, 3)
    affine[:, 0, 0], affine[:, 0, 2], affine[:, 1, 1], affine[:, 1, 2] = fit.T
    grid = F.affine_grid(affine, list(pictures.shape), align_corners=False)  # (P, side, side, 2)
    inside = (grid.abs().amax(dim=3) <= 1)[:, None].float()
    return F.grid_sample(pictures, grid, mode=mode, padding_mode="border", align_corners=False), inside


def _detail(grey: Tensor) -> Tensor:
    fine, broad = _blur(0.5, SIDE), _blur(2.0, SIDE)
    return fine @ grey @ fine.T - broad @ grey @ broad.T


def _blur(width: float, side: int) -> Tensor:
    """A Gaussian of that many pixels as a matrix (side, side), to multiply with from left and right."""
    place = torch.arange(side)
    weight = torch.exp(-((place[:, None] - place) ** 2) / (2 * width**2))
    weight = torch.where(weight > 1e-3, weight, 0.0)  # numbers below 10⁻³⁸ make a processor slow
    return weight / weight.sum(dim=1, keepdim=True)


def _grey(pictures: Tensor) -> Tensor:
    return torch.einsum("nchw,c->nhw", pictures.float(), torch.tensor([0.299, 0.587, 0.114]))


def _level(pictures: _Pictures) -> Tensor:
    """The mean colour: (n, 3)."""
    return torch.cat([block.float().mean(dim=(2, 3)) for block in pictures.blocks()])  # all at once: 1 GB of floats
