"""How evenly are labels parted among splits? The rule of `data/sources/splits.py` beside two others.

    python benchmarks/label_splits.py [--seeds 20]

Two kinds of sets are drawn, a new one for each seed: mosaics of four of ten things (1,000 pictures), and 30 labels of
which the most frequent is on 30 % of 2,000 pictures and the rarest on 3 of them. Told are, over test and validation:
how far the share of a label is off from what it should be (root of the mean square, of labels that should have one
picture there at least); how many labels with three pictures or more are lacking; the size of the split over what was
asked for; and how many pictures change their split when 20 are added to the set.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vitral.data.sources import splits
from vitral.targets import Target

Rule = Callable[[float, splits.Strata, NDArray[np.float64]], NDArray[np.int64]]
KEPT: Rule = splits._of_each


def by_name_alone(share: float, strata: splits.Strata, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.argsort(numbers, kind="stable")[: round(share * len(numbers))]


def filled_up(share: float, strata: splits.Strata, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Ours, and then for each label that has too few some of the pictures that a rarer one had passed over."""
    chosen = np.zeros(len(strata), bool)
    chosen[KEPT(share, strata, numbers)] = True
    for stratum in np.argsort(strata.sum(axis=0), kind="stable"):
        missing = round(share * int(strata[:, stratum].sum())) - int(strata[chosen, stratum].sum())
        for row in np.argsort(numbers, kind="stable"):
            if missing <= 0:
                break
            if strata[row, stratum] and not chosen[row] and (strata[~chosen].sum(axis=0)[strata[row]] > 1).all():
                chosen[row], missing = True, missing - 1
    return np.flatnonzero(chosen)


def drawn(kind: str, seed: int) -> NDArray[np.float64]:  # → (pictures, labels)
    random = np.random.default_rng(seed)
    if kind == "mosaics":
        labels = np.zeros((1000, 10))
        labels[np.arange(1000)[:, None], random.integers(0, 10, (1000, 4))] = 1
        return labels
    return (random.random((2000, 30)) < np.geomspace(0.3, 3 / 2000, 30)).astype(float)


def parted(labels: NDArray[np.float64], names: list[str]) -> NDArray[np.str_]:
    target = Target(kind="labels", names=tuple(map(str, range(labels.shape[1]))))
    strata, _ = splits.strata((target,), labels)
    return splits.complete_splits([""] * len(names), strata, names, None, validation="auto", seed=0)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    rules: dict[str, Rule] = {"by name alone": by_name_alone, "ours": KEPT, "ours, filled up": filled_up}
    for kind in ("mosaics", "long tail"):
        for name, rule in rules.items():
            splits._of_each = rule
            off, lacking, size, moved = [], [], [], []
            for seed in seeds:
                labels, more = drawn(kind, seed), drawn(kind, seed + 1000)[:20]
                names = [f"{seed} {number}" for number in range(len(labels))]
                now = parted(labels, names)
                later = parted(np.concatenate([labels, more]), names + [f"{seed} new {n}" for n in range(len(more))])
                moved.append((later[: len(now)] != now).mean())
                for split, share in (("test", 0.2), ("validation", 0.08)):
                    counts, wanted = labels[now == split].sum(axis=0), share * labels.sum(axis=0)
                    off.append(np.sqrt(np.mean((counts[wanted >= 1] / wanted[wanted >= 1] - 1) ** 2)))
                    lacking.append((counts[labels.sum(axis=0) >= 3] == 0).sum())
                    size.append((now == split).mean() / share)
            print(
                f"{kind:<10} {name:<16} off {np.mean(off):6.1%}   lacking {np.mean(lacking):.2f}   "
                f"size {np.mean(size):.3f}   moved {np.mean(moved):.1%}"
            )


if __name__ == "__main__":
    main()
