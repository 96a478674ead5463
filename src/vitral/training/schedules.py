"""The learning rate, step by step, as a share of the full one."""

import math
from collections.abc import Callable

from vitral.training.config import Train

AFTER_WARMUP: dict[str, Callable[[float], float]] = {
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
    "constant": lambda t: 1.0,
}


def learning_rate_share(train: Train, steps: int) -> Callable[[float], float]:
    """A function of the step, 1 … steps: up to 1 during the warm-up, then as the schedule says. The last is not 0.

    >>> share = learning_rate_share(Train(warmup=0.2, schedule={"kind": "linear"}), steps=10)
    >>> [round(share(step), 3) for step in (1, 2, 3, 10)]
    [0.5, 1.0, 1.0, 0.125]
    """
    warmup = round(train.warmup * steps)
    after = AFTER_WARMUP[train.schedule.kind]

    def share(step: float) -> float:
        return step / warmup if step <= warmup else after((step - warmup - 1) / (steps - warmup))

    return share
