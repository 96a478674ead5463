"""How well do maps explain? Deletion and insertion for every method, beside random maps and other simple ones.

    python benchmarks/explanations.py RUN|WEIGHTS SOURCE [--choose validation] [--report test] [--pictures 200]

Patches are left out in the order of a map, and the model is asked again about the answer that it gave with all of them
(vitral.look.grading). The score is the mean probability of that answer on the way from all patches to one: low is good
for deletion, high for insertion. The method is chosen on the pictures of one split and reported on those of another.
Intervals are 95 % of a bootstrap over pictures; `better` counts the pictures on which a map beats all 19 random maps.

Beside the methods that `vitral look` has stand: rollout with other settings; `centre`, which marks the middle of every
picture and knows nothing of it; and two methods on the same model with random weights.
"""

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.config import Data
from vitral.data.preprocess import Preprocess
from vitral.data.randomness import uniform
from vitral.data.sources import Index, open_source
from vitral.look.grading import RANDOM, curves, with_random_weights
from vitral.look.readings import METHODS, rollout
from vitral.model.vit import ViT
from vitral.weights.pretrained import load_pretrained

BATCH = 8
DRAWS = 5_000
Floats = NDArray[np.float64]
Methods = Mapping[str, Callable[[ViT, Tensor], Tensor]]


def centre(model: ViT, images: Tensor) -> Tensor:  # → (B, down, across)
    down, across = model.grid_of(images)
    y, x = torch.meshgrid(torch.linspace(-1, 1, down), torch.linspace(-1, 1, across), indexing="ij")
    return -(x**2 + y**2).expand(len(images), down, across)


def with_others(model: ViT) -> Methods:
    """The methods, and what they have to be better than."""
    untrained = with_random_weights(model)

    def unlearnt(method: Callable[[ViT, Tensor], Tensor]) -> Callable[[ViT, Tensor], Tensor]:
        return lambda _, images: method(untrained, images)

    return {
        **METHODS,
        "rollout, max, 0.9 discarded": lambda model, images: rollout(model, images, fuse="max", discard=0.9),
        "centre": centre,
        **{f"{name}, random weights": unlearnt(METHODS[name]) for name in ("attention", "class-attention")},
    }


def measured(
    model: ViT, preprocess: Preprocess, index: Index, numbers: NDArray[np.int64], methods: Methods
) -> tuple[dict[str, Floats], float]:
    """Deletion and insertion of each picture under the name of the map, (n, 2); of random maps (n, RANDOM)."""
    found: dict[str, list[Floats]] = {}
    sure = 0.0
    for start in range(0, len(numbers), BATCH):
        some = numbers[start : start + BATCH]
        images = torch.stack([preprocess(index.storage.read(int(number))) for number in some])
        with torch.inference_mode():
            probability, said = model(images).softmax(dim=1).max(dim=1)
        sure += float(probability.sum())
        for name, of in methods.items():
            one = curves(model, images, of(model, images), said)
            found.setdefault(name, []).append(torch.stack([one.deletion_scores, one.insertion_scores], 1).numpy())
        # What a random map inserts is what another random map, its reverse, deletes: each gives two scores.
        chance = []
        for view in range((RANDOM + 1) // 2):
            drawn = uniform(0, "explanations", samples=some, view=view, draws=int(np.prod(model.grid_of(images))))
            one = curves(model, images, torch.from_numpy(drawn).view(-1, *model.grid_of(images)), said)
            chance += [one.deletion_scores, one.insertion_scores]
        found.setdefault("random", []).append(torch.stack(chance[:RANDOM], 1).numpy())
    return {name: np.concatenate(parts) for name, parts in found.items()}, sure / len(numbers)


def interval(values: Floats) -> str:
    """The mean, and 95 % of those of resampled pictures."""
    drawn = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [0.025, 0.975])
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


def table(found: dict[str, Floats]) -> None:
    random = found.pop("random")
    print("| map | deletion, low is good | insertion, high is good | deletion less than random | better |")
    print("|---|---|---|---|---|")
    for name, scores in found.items():
        gain = random.mean(axis=1) - scores[:, 0]
        better = int((scores[:, 0] < random.min(axis=1)).sum())
        print(f"| {name} | {interval(scores[:, 0])} | {interval(scores[:, 1])} | {interval(gain)} | {better} |")
    print(f"| random, {RANDOM} maps | {interval(random.mean(axis=1))} | the same | 0 | 1 in {RANDOM + 1} |")


def some_of(index: Index, split: str, most: int) -> NDArray[np.int64]:
    """Evenly over the split, which has class after class in many sources."""
    numbers = index.of(split)
    return numbers[np.unique(np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(int))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", metavar="RUN|WEIGHTS")
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("--choose", default="validation", help="the split that chooses")
    parser.add_argument("--report", default="test", help="the split that is reported")
    parser.add_argument("--pictures", type=int, default=200, help="of each split, at most")
    asked = parser.parse_args()
    weights, index = load_pretrained(asked.weights), open_source(Data(source=asked.source))
    print(f"{asked.weights.rsplit('/', 1)[-1]} on {index.source}, torch {torch.__version__}")
    for split, use in ((asked.choose, "chooses"), (asked.report, "is reported")):
        started_at, numbers = time.perf_counter(), some_of(index, split, asked.pictures)
        methods = METHODS if use == "chooses" else with_others(weights.model)
        found, sure = measured(weights.model, weights.preprocess, index, numbers, methods)
        seconds = time.perf_counter() - started_at
        print(f"\n{split} {use}: {len(numbers)} pictures, probability of the answer {sure:.3f}, {seconds:.0f} s\n")
        if use == "chooses":
            best = min(METHODS, key=lambda name: found[name][:, 0].mean())
            gain = {name: found[name][:, 0] - found[best][:, 0] for name in METHODS if name != best}
            print(f"chosen: {best}; deletion above it: {', '.join(f'{n} {interval(g)}' for n, g in gain.items())}\n")
        table(found)


if __name__ == "__main__":
    main()
