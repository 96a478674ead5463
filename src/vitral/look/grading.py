"""How well does a map explain an answer? Patches are left out in the order of the map, and the model runs again.

Deletion: what the map marks most goes first. If the answer rests on it, its probability falls at once, and the score,
the mean of the probability along the way from all patches to one, is low. Insertion: what it marks most comes first,
and the score of a good map is high (Petsiuk et al. 2018, arXiv:1806.07421). They painted over pixels, which makes
pictures that no model has seen. A ViT takes any number of tokens, so here the patch is simply not there.

A Swin's windows want every token, so there a patch, a place of its last map, is painted over after all: in the mean of
the training pictures, which is 0 once they are normalised.

A score by itself says little: a picture may need one patch, or all. So it stands beside those of random maps on the
same picture, and beside that of the same model with random weights.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vitral.data.randomness import uniform
from vitral.errors import DataError
from vitral.look.maps import eval_mode
from vitral.model.config import ViTConfig
from vitral.model.interface import Model
from vitral.targets import Target

Attending = TypeVar("Attending", bound=Model)

STEPS = 16  # numbers of patches that the model runs with
RANDOM = 19  # maps to compare with: by luck alone one map in twenty is better than nineteen others
TOKENS = 8_192  # in a batch: enough to keep the processor busy, little memory


@dataclass(frozen=True)
class Curves:
    """The probability of a class while patches are left out, for B maps at S numbers of patches, from all to one."""

    shares_kept: Tensor  # (S,) from 1 down
    deletion: Tensor  # (B, S): what the map marks least is kept
    insertion: Tensor  # (B, S): what it marks most is kept

    @property
    def deletion_scores(self) -> Tensor:
        """(B,) the mean of each deletion curve; low is good."""
        return scores(self.shares_kept, self.deletion)

    @property
    def insertion_scores(self) -> Tensor:
        """(B,) the mean of each insertion curve; high is good."""
        return scores(self.shares_kept, self.insertion)


def scores(shares_kept: Tensor, probabilities: Tensor) -> Tensor:  # (S,), (…, S) → (…)
    """The mean of curves, each step as wide as its share of the patches.

    >>> scores(torch.tensor([1.0, 0.5, 0.1]), torch.tensor([0.8, 0.8, 0.0])).round(decimals=3)
    tensor(0.6220)
    """
    if len(shares_kept) == 1:  # one patch: nothing can be left out
        return probabilities[..., 0]
    return torch.trapezoid(probabilities, 1 - shares_kept) / (shares_kept[0] - shares_kept[-1])


def curves(
    model: Model,
    images: Tensor,  # (B, C, H, W)
    maps: Tensor,  # (B, down, across)
    classes: Tensor,  # (B,)
    steps: int = STEPS,
    *,
    temperature: float = 1.0,
) -> Curves:
    """The deletion and insertion curves of each map on its image, for its class.

    >>> from vitral.model.config import ViTConfig
    >>> from vitral.model.vit import ViT
    >>> model = ViT(ViTConfig(image_size=8, patch_size=2, width=16, depth=2, heads=2, classes=3))
    >>> both = curves(model, torch.rand(2, 3, 8, 8), torch.rand(2, 4, 4), torch.tensor([0, 2]), steps=5)
    >>> both.shares_kept.tolist(), both.deletion.shape
    ([1.0, 0.75, 0.5, 0.3125, 0.0625], torch.Size([2, 5]))
    """
    down, across = model.grid_of(images)
    if maps.shape != (len(images), down, across):
        raise DataError(
            f"The maps are {tuple(maps.shape)}: for these images it takes ({len(images)}, {down}, {across})."
        )
    order = _ranking(maps.flatten(1).cpu())  # (B, N)
    counts = _counts(down * across, steps)
    orders = torch.stack([order.flip(1), order], dim=1)  # (B, 2, N)
    probabilities = _probabilities(model, images, orders, classes, counts, partial(_said, temperature=temperature))
    return Curves(torch.tensor(counts) / (down * across), probabilities[:, 0], probabilities[:, 1])


@dataclass(frozen=True, eq=False)
class Grade:
    """The scores of a map beside those of random maps, on the same picture.

    Scores are mean probabilities of the answer, from 0 to 1. Keeping a random half and leaving one out are the same
    thing, so the random maps need one curve each, which stands for both their deletion and their insertion.
    """

    shares_kept: Tensor  # (S,)
    curves: Tensor  # (2 + RANDOM, S): deletion and insertion of the map, then the random maps
    untrained: float | None = None  # deletion by the map of the same model with random weights
    painted: bool = False  # patches were painted over, and not left out

    @cached_property
    def _scores(self) -> list[float]:
        return [float(score) for score in scores(self.shares_kept, self.curves)]

    @property
    def deletion(self) -> float:
        return self._scores[0]

    @property
    def insertion(self) -> float:
        return self._scores[1]

    @property
    def random(self) -> list[float]:
        """The scores of the random maps, the lowest first."""
        return sorted(self._scores[2:])

    @property
    def random_deletion(self) -> float:
        """The mean score of the random maps."""
        return sum(self.random) / len(self.random)

    @property
    def better(self) -> bool:
        """Whether the answer falls sooner than with every random map. One map in twenty would do so by luck alone."""
        return self.deletion < self.random[0]

    @property
    def verdict(self) -> str:
        if self.better:
            return "Better than chance"
        return "Not shown to be better than chance" if self.as_good <= RANDOM // 4 else "No better than chance"

    @property
    def as_good(self) -> int:
        """How many random maps score as well, or better."""
        return sum(score <= self.deletion for score in self.random)

    @property
    def sentence(self) -> str:
        """The scores in words, for people."""
        low, high = self.random[0], self.random[-1]
        beside = f"{self.random_deletion:.0%} in {len(self.random)} random orders ({low:.0%} to {high:.0%})"
        taken = "painted over" if self.painted else "taken away"
        text = (
            f"{self.verdict}: while patches are {taken} in the order of this map, the answer keeps "
            f"{self.deletion:.0%} on average, and {beside}."
        )
        if not self.better:
            does = "does" if self.as_good == 1 else "do"
            return f"{text} {self.as_good} of these {does} as well, so do not take it for the reason of the answer."
        if self.untrained is not None and self.untrained <= self.deletion:
            text += f" But the map of a model that has learnt nothing does as well ({self.untrained:.0%})."
        return text

    def write(self) -> dict[str, Any]:
        """The grade as values for JSON."""
        beside = {} if self.untrained is None else {"untrained_deletion": self.untrained}
        return {
            "deletion": self.deletion,
            "insertion": self.insertion,
            "random": self.random,
            **beside,
            "better_than_chance": self.better,
            "sentence": self.sentence,
        }


def grade(
    model: Model,
    image: Tensor,  # (C, H, W)
    map: Tensor,  # (down, across)
    label: int,
    *,
    untrained: Tensor | None = None,  # (down, across)
    temperature: float = 1.0,
    steps: int = STEPS,
    target: Target | None = None,
    first: int = 0,
) -> Grade:
    """Grade a map of an image for an output of the model, such as a class: beside random maps, and beside `untrained`,
    the map that the same model gives with random weights (see `with_random_weights`).

    `target`: what the output is of, where the model tells something else than one class, and `first` its first output.
    Scores of a label are its probabilities. Those of a number are e to the minus its distance from the answer, in
    standard deviations: 1 where it stays as it is.

    >>> from vitral.model.config import ViTConfig
    >>> from vitral.model.vit import ViT
    >>> model = ViT(ViTConfig(image_size=8, patch_size=2, width=16, depth=2, heads=2, classes=3))
    >>> grade(model, torch.rand(3, 8, 8), torch.rand(4, 4), 0).better  # untrained: every class has 1/3
    False
    """
    down, across = model.grid_of(image[None])
    patches = down * across
    order = _ranking(map.reshape(1, patches).cpu())
    # Random, and the same whenever this image is graded. Each image has its own: else all would share one luck.
    seed = zlib.crc32(image.float().cpu().numpy().tobytes())
    chance = torch.from_numpy(uniform(seed, "random maps", samples=range(RANDOM), draws=patches)).argsort(dim=1)
    orders = [order.flip(1), order, chance]
    if untrained is not None:
        orders.append(_ranking(untrained.reshape(1, patches).cpu()).flip(1))
    counts = _counts(patches, steps)
    every = torch.cat(orders)[None]  # (1, maps, N)
    outputs, said = torch.tensor([label]), partial(_said, temperature=temperature, target=target, first=first)
    probabilities = _probabilities(model, image[None], every, outputs, counts, said)[0]
    if target is not None and target.kind == "number":
        probabilities = (-(probabilities - probabilities[:, :1]).abs()).exp()  # with all patches it is the answer
    shares = torch.tensor(counts) / patches
    beside = None if untrained is None else float(scores(shares, probabilities[-1]))
    return Grade(shares, probabilities[: 2 + RANDOM], beside, painted=not model.drops_patches)


def why_ungraded(model: Model) -> str:
    """Why maps of a model cannot be graded; "": they can."""
    if isinstance(model.config, ViTConfig) and model.config.positions.kind == "relative":
        return "The map is not graded: with relative positions no patch can be left out."
    return ""


def with_random_weights(model: Attending, seed: int = 0) -> Attending:
    """The same model before it learnt anything: what its maps show comes from the picture and the architecture alone
    (Adebayo et al. 2018, arXiv:1810.03292)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        untrained = type(model)(model.config)
        for layer in untrained.layers():
            if layer.part == "head":  # it starts at zero, and would give no gradient
                for parameter in layer.parameters.values():
                    nn.init.normal_(parameter, std=0.02)
    return untrained.to(next(model.parameters())).eval()


def _counts(patches: int, steps: int) -> list[int]:
    """Numbers of patches to keep, from all to one. Not none: the head may see the mean of the patches."""
    if steps < 2:
        raise DataError(f"steps is {steps}: a curve takes at least 2, all patches and one.")
    return sorted({round(1 + (patches - 1) * step / (steps - 1)) for step in range(steps)}, reverse=True)


def _ranking(maps: Tensor) -> Tensor:  # (B, N) → (B, N)
    """The numbers of the patches by falling value of the map. Equal ones come in a random order: in reading order, a
    constant map would mark the top of the picture."""
    shuffle = torch.from_numpy(uniform(0, "equal patches", samples=[0], draws=maps.shape[1]))[0].argsort()
    return shuffle[maps[:, shuffle].argsort(dim=1, descending=True, stable=True)]


def _said(
    logits: Tensor, outputs: Tensor, *, temperature: float, target: Target | None = None, first: int = 0
) -> Tensor:  # (B, outputs), (B,) → (B,)
    """The probability of a class among all, or among those of its target; that of a label; a number as it comes out."""
    if target is not None:
        logits, outputs = logits[:, first : first + target.outputs], outputs - first
    if target is None or target.kind == "class":
        shares = (logits / temperature).softmax(dim=1)
    else:
        shares = (logits / temperature).sigmoid() if target.kind == "labels" else logits
    return shares.gather(1, outputs[:, None])[:, 0]


def _probabilities(
    model: Model,
    images: Tensor,
    orders: Tensor,
    classes: Tensor,
    counts: Sequence[int],
    said: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:  # (B, C, H, W), (B, M, N), (B,) → (B, M, S)
    """What is said of each image's class with the first so many patches of each of its M orders."""
    B, M, N = orders.shape
    like, orders = next(model.parameters()), orders.flatten(0, 1)
    probabilities = torch.empty(B, M, len(counts))
    for place, count in enumerate(counts):
        # With all patches the order makes no difference: one row per image.
        rows = torch.arange(B) if count == N else torch.arange(B).repeat_interleave(M)
        batches = []
        for batch in torch.arange(len(rows)).split(max(1, TOKENS // count)):
            keep = None if count == N else orders[batch, :count].to(like.device)
            with eval_mode(model):
                logits = _logits(model, images[rows[batch]].to(like), keep).float().cpu()
            batches.append(said(logits, classes.cpu()[rows[batch]]))
        probabilities[:, :, place] = torch.cat(batches).view(B, -1)
    return probabilities


def _logits(model: Model, images: Tensor, keep: Tensor | None) -> Tensor:  # (B, C, H, W), (B, K) → (B, classes)
    """Of these patches alone; where none can be left out, of images in which the others are painted over."""
    if keep is None or model.drops_patches:
        return model(images, keep)
    down, across = model.grid_of(images)
    shown = images.new_zeros(len(images), down * across).scatter(1, keep, 1).view(-1, 1, down, across)
    cell, (height, width) = model.config.cell, images.shape[2:]
    shown = shown.repeat_interleave(cell, dim=2).repeat_interleave(cell, dim=3)
    at_borders = (0, max(0, width - across * cell), 0, max(0, height - down * cell))  # pixels that no patch has
    return model(images * pad(shown, at_borders, value=1)[:, :, :height, :width])
