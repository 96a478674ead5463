"""Precision, threads, and whether to compile: chosen by measuring, once. After a stop the same choices are applied
again."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from vitral.data.threads import machine_is_busy
from vitral.errors import RecipeError
from vitral.run import Choices
from vitral.training.budget import PROBE, Pace, measure_pace
from vitral.training.config import Fixed, Train
from vitral.training.preparation import Plan

FASTER = 1.1  # times; for less, neither coarser numbers nor a compiler are worth having
# Seconds of training from which a trial pays: that of short numbers takes three, that of the compiler about sixty.
WORTH_SHORT_NUMBERS, WORTH_COMPILING = 90.0, 1200.0

TRIAL = """
import time, torch

torch.set_num_threads(1)
times = []
for dtype in (torch.float32, torch.bfloat16):
    matrix, rounds = torch.ones(512, 512, dtype=dtype), []
    for _ in range(3):
        started_at = time.perf_counter()
        matrix @ matrix
        rounds.append(time.perf_counter() - started_at)
    times.append(min(rounds))
print(times[0] / times[1])
"""


@cache
def bfloat16_speed(device: torch.device) -> float:
    """How many times as fast as float32 a product in bfloat16 is; below 1 where it is emulated, 0 where it fails.

    By a product of two matrices, since a whole step with emulated numbers would take seconds to try; and in a process
    of its own, since there are processors that claim to have the instructions and end whoever uses them.
    """
    if device.type != "cpu":
        real = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return 2.0 if real else 0.5  # roughly: what counts is a step, which is tried where this is promising
    trial = subprocess.run([sys.executable, "-P", "-c", TRIAL], capture_output=True, text=True)
    return float(trial.stdout.split()[-1]) if trial.returncode == 0 else 0.0


def find_fastest(
    train: Train,
    plan: Plan,
    measure: Callable[[Plan, float], Pace] = measure_pace,
    short_numbers: Callable[[torch.device], float] = bfloat16_speed,
    is_busy: Callable[[], bool] = machine_is_busy,
) -> tuple[Choices, Pace]:
    """Set the learner to what is fastest here, of what the recipe leaves open; returns the choices, and their pace.

    One thread is tried where others use the machine: several wait for the slowest of them in every operation, and may
    take ten times as long. Not without a budget of time: else the same command would round in another order by the day.
    """
    learner, budget, processes = plan.learner, train.seconds, plan.processes
    dtype = str(next(learner.model.parameters()).dtype).removeprefix("torch.")
    choices = Choices(
        device=learner.device.type,
        precision=dtype if train.precision == "auto" else train.precision,
        threads=processes.tell(torch.get_num_threads()),
        compiled=train.compile == "yes",
        processes=processes.world,
        parallel="shard" if learner.shards else "replicate",
    )

    def emulated() -> bool:
        """Whether short numbers are slower here, or on the machine of any of the processes."""
        return min(processes.gather(short_numbers(learner.device))) <= FASTER

    def measure_with(**changes: Any) -> tuple[Choices, Pace]:
        other = choices.model_copy(update=changes)
        return other, apply_choices(other, plan, PROBE * budget if budget else 1.0, measure, short_numbers)

    alone = measure_with(threads=1) if budget and choices.threads > 1 and processes.decide(is_busy) else None
    choices, pace = _faster(measure_with(), alone) if alone else measure_with()
    expected = budget or pace.mean * plan.steps
    precision_is_open = train.precision == "auto" and dtype == "float32"
    if precision_is_open and expected > WORTH_SHORT_NUMBERS and not emulated():
        choices, pace = _faster((choices, pace), measure_with(precision="bfloat16"))
    expected = budget or pace.mean * plan.steps
    one_shape = isinstance(train.patches, Fixed) and isinstance(train.image_size, Fixed)  # each is compiled anew
    one_process = not processes.many  # one of several that cannot compile would leave the others waiting
    if train.compile == "auto" and one_shape and expected > WORTH_COMPILING and one_process:
        try:
            choices, pace = _faster((choices, pace), measure_with(compiled=True))
        except RecipeError:  # it cannot compile here, and need not
            pass
    learner.set_precision(choices.precision, choices.compiled)
    return choices, pace


def apply_choices(
    choices: Choices,
    plan: Plan,
    most: float = 1.0,
    measure: Callable[[Plan, float], Pace] = measure_pace,
    short_numbers: Callable[[torch.device], float] = bfloat16_speed,
) -> Pace:
    """Set the learner to these choices, and measure its pace, for about `most` seconds."""
    if choices.precision == "bfloat16" and not short_numbers(plan.learner.device):
        raise RecipeError(
            "This machine cannot compute with bfloat16: set train.precision=float32, or go on with a run where it was "
            "begun."
        )
    plan.learner.set_precision(choices.precision, choices.compiled)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(choices.threads)
        return measure(plan, most)
    except Exception as error:
        if not choices.compiled:
            raise
        # Whatever a compiler can meet: none is installed, it is too old, it has a bug.
        reason = str(error).strip().split("\n")[0]
        raise RecipeError(f"torch cannot compile the model here ({reason}): set train.compile=no.") from error
    finally:
        torch.set_num_threads(threads)


def _faster(plain: tuple[Choices, Pace], other: tuple[Choices, Pace]) -> tuple[Choices, Pace]:
    return other if plain[1].mean > FASTER * other[1].mean else plain
