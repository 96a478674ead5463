"""What a step of `cifar10-swin` and of `cifar10-resnet` takes beside one of `cifar10`.

    python benchmarks/kinds.py [--rounds 12] [--steps 2] [--pictures 2048]

As benchmarks/teacher.py does it: every round has some steps of each, who goes first taking turns, as far into the
training as the round is into all rounds (`cifar10` has half of the patches at first). One thread, bfloat16; seconds are
those that the process has computed, batches included, and ratios are taken within a round.
"""

import argparse
from statistics import fmean, quantiles

import torch
from teacher import PLAIN, plan_of, steps_of

from vitral.recipes import RECIPES

KINDS = ("cifar10-swin", "cifar10-resnet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2, help="of each in a round")
    parser.add_argument("--pictures", type=int, default=2048)
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs = {name: steps_of(plan_of(RECIPES[name], given.pictures)[0]) for name in (PLAIN, *KINDS)}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for number in range(given.rounds):
        for name in order:
            seconds[name].append(runs[name](given.steps, (number + 0.5) / given.rounds))
        order = [*order[1:], order[0]]
    plain = fmean(seconds[PLAIN])
    print(f"{PLAIN}: {1000 * plain:.0f} ms a step")
    for name in KINDS:
        low, ratio, high = quantiles([a / b for a, b in zip(seconds[name], seconds[PLAIN], strict=True)], n=4)
        print(f"{name}: {fmean(seconds[name]) / plain:.2f} of that (by rounds {low:.2f}, {ratio:.2f}, {high:.2f})")


if __name__ == "__main__":
    main()
