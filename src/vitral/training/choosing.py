"""What is found out by measuring, once: precision, and whether compiling pays. After a stop the same is used again."""

import time
from collections.abc import Callable
from typing import Any

import torch

from vitral.recipe import Fixed, Train, parse_budget
from vitral.run import Choices
from vitral.training.budget import PROBE, Pace, measure_pace
from vitral.training.preparation import Plan

FASTER = 1.1  # times; for less, neither coarser numbers nor a compiler are worth having
WORTH_A_TRIAL = 1200.0  # seconds of training: to try the compiler takes about one of its minutes


def choose(train: Train, plan: Plan, measure: Callable[[Plan, float], Pace] = measure_pace) -> tuple[Choices, Pace]:
    """Set the learner to what is best here; what that is, and how fast it is."""
    learner, budget = plan.learner, parse_budget(train.budget)[0]
    stored = str(next(learner.model.parameters()).dtype).removeprefix("torch.")
    chosen = Choices(
        device=learner.device.type,
        precision=stored if train.precision == "auto" else train.precision,
        threads=torch.get_num_threads(),
        compiled=train.compile == "yes",
    )

    def tried(**other: Any) -> tuple[Choices, Pace]:
        choices = chosen.model_copy(update=other)
        learner.use(choices.precision, choices.compiled)
        return choices, measure(plan, PROBE * budget if budget else 1.0)

    chosen, pace = tried()
    if train.precision == "auto" and stored == "float32" and _bfloat16_is_no_emulation(learner.device):
        chosen, pace = _faster((chosen, pace), tried(precision="bfloat16"))
    expected = budget or pace.mean * plan.steps
    steady = isinstance(train.patches, Fixed) and isinstance(train.image_size, Fixed)  # each shape is compiled anew
    if train.compile == "auto" and steady and expected > WORTH_A_TRIAL:
        try:
            chosen, pace = _faster((chosen, pace), tried(compiled=True))
        except Exception:  # whatever a compiler can meet: none is installed, it is too old, it has a bug
            pass
    learner.use(chosen.precision, chosen.compiled)
    return chosen, pace


def _faster(plain: tuple[Choices, Pace], other: tuple[Choices, Pace]) -> tuple[Choices, Pace]:
    return other if plain[1].mean > FASTER * other[1].mean else plain


def _bfloat16_is_no_emulation(device: torch.device) -> bool:
    """By a product of two matrices: a step with emulated numbers would take seconds to try."""
    if device.type == "mps":
        return False
    times = []
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(512, 512, device=device, dtype=dtype)
        rounds = []
        for _ in range(3):
            began = time.perf_counter()
            (matrix @ matrix).sum().item()  # `item` waits for a GPU
            rounds.append(time.perf_counter() - began)
        times.append(min(rounds))
    return times[0] > FASTER * times[1]
