"""What a step with a teacher costs beside one without, and how many steps that leaves of ten minutes.

    python benchmarks/teacher.py [--rounds 12] [--steps 2] [--pictures 2048]

Of `cifar10`, of `cifar10-deit`, hard and soft, and of `cifar10-distilled`. Every round has some steps of each, who goes
first taking turns, as far into the training as the round is into all rounds: half of the patches at first, all of them
later. One thread, and bfloat16 as these recipes choose it; seconds are those that the process has computed, batches
included, and ratios are taken within a round. The teacher's one pass is timed over some of the pictures and told for
all 50,000, in steps of `cifar10`. Both then come off the 2,099 steps that `cifar10` has in ten minutes (its docstring).
"""

import argparse
import time
from collections.abc import Callable
from itertools import islice
from statistics import fmean, quantiles

import numpy as np
import torch

from vitral.data.sources import open_source
from vitral.progress import Progress, drain
from vitral.recipe import Recipe
from vitral.recipes import RECIPES
from vitral.training.preparation import Plan, prepare

PLAIN, STEPS, PICTURES = "cifar10", 2099, 50_000  # its steps in ten minutes, and the pictures that a teacher looks at
SOFT = {"teacher.kind": "soft", "teacher.temperature": 3.0, "teacher.weight": 0.1}  # as DeiT's authors have it
WAYS = {
    "cifar10-deit": RECIPES["cifar10-deit"],
    "cifar10-deit, soft": RECIPES["cifar10-deit"].changed(SOFT),
    "cifar10-distilled": RECIPES["cifar10-distilled"],
}
WARM = 1  # steps that are not timed

Run = Callable[[int, float], float]  # some steps, so far into the training → seconds for each


def plan_of(recipe: Recipe, pictures: int) -> tuple[Plan, float]:
    """The plan for some of the training pictures, and the seconds that its teacher looks at one of them."""
    splits, looked = open_source(recipe.data).splits.copy(), [(0, 0.0)]
    splits[np.flatnonzero(splits == "train")[pictures:]] = "test"

    def tell(progress: Progress) -> None:
        if progress.doing.startswith("the teacher looks"):
            looked.append((progress.done, time.process_time()))

    plan = drain(prepare(recipe, splits), tell)
    plan.learner.set_precision("bfloat16", compiled=False)
    (first, began), (last, ended) = looked[min(1, len(looked) - 1)], looked[-1]
    return plan, (ended - began) / max(1, last - first)


def steps_of(plan: Plan) -> Run:
    stream = plan.batches.starting_at(1)

    def do(steps: int, progress: float) -> None:
        for step, batch in islice(stream, steps):
            plan.learner.gradients(step, batch, progress)
            plan.learner.update(step, share=1.0)

    def run(steps: int, progress: float) -> float:
        do(WARM, progress)
        began = time.process_time()
        do(steps, progress)
        return (time.process_time() - began) / steps

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2, help="of each in a round")
    parser.add_argument("--pictures", type=int, default=2048)
    given = parser.parse_args()
    torch.set_num_threads(1)
    plans = {name: plan_of(recipe, given.pictures) for name, recipe in {PLAIN: RECIPES[PLAIN], **WAYS}.items()}
    runs = {name: steps_of(plan) for name, (plan, _) in plans.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for number in range(given.rounds):
        for name in order:
            seconds[name].append(runs[name](given.steps, (number + 0.5) / given.rounds))
        order = [*order[1:], order[0]]
    plain = fmean(seconds[PLAIN])
    print(f"{PLAIN}: {1000 * plain:.0f} ms a step")
    for name in WAYS:
        low, ratio, high = quantiles([a / b for a, b in zip(seconds[name], seconds[PLAIN], strict=True)], n=4)
        looking = plans[name][1] * PICTURES / plain
        print(
            f"{name}: {ratio:.2f} of that (median of {given.rounds} rounds; quartiles {low:.2f} to {high:.2f}); the "
            f"teacher looks for {looking:.0f} steps; ten minutes: ({STEPS} - {looking:.0f}) / {ratio:.2f} = "
            f"{(STEPS - looking) / ratio:.0f} steps"
        )


if __name__ == "__main__":
    main()
