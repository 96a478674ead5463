"""How fast a training step is here, and how near it comes to what the machine can multiply: for `vitral doctor`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitral.data.batches import Batch
from vitral.model import build
from vitral.recipes.cifar10 import cifar10
from vitral.training.learner import Learner
from vitral.training.speed import FASTER, bfloat16_speed

SECONDS = 2.0  # for each precision
SIDE = 1024  # of the matrices whose product is the limit
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class StepSpeed:
    """A step of the recipe `cifar10` that looks at all patches."""

    images_per_second: float
    products: float  # FLOP/s of the product of two large matrices
    share: float  # of that speed: what the products and convolutions of the step come to

    def __str__(self) -> str:
        return f"{self.images_per_second:.0f} images/s, {self.share:.0%} of {self.products / 1e9:.0f} GFLOP/s"


def precisions(
    device: torch.device, short_numbers: Callable[[torch.device], float] = bfloat16_speed
) -> tuple[str, ...]:
    """What training may choose from here: bfloat16 only where it is faster, which a process of its own tries out."""
    return ("float32", "bfloat16") if short_numbers(device) > FASTER else ("float32",)


def measure_step(device: torch.device, precision: str, seconds: float = SECONDS) -> StepSpeed:
    """Steps of the quick model and products of large matrices in turn, for so many seconds: the medians."""
    learner = Learner(build(cifar10.model).to(device), cifar10.train)
    learner.set_precision(precision, compiled=False)
    batch = _noise(cifar10.train.batch_size).to(next(learner.model.parameters()))
    matrix = torch.randn(SIDE, SIDE, device=device, dtype=getattr(torch, precision))
    work = flops_per_image(learner) * len(batch.labels)
    rates: list[tuple[float, float]] = []  # of steps and of products

    def rate_of_step() -> float:
        began = time.perf_counter()
        loss, _ = learner.gradients(1, batch, progress=1.0)
        learner.update(1, share=0.1)
        float(loss)  # waits for the device
        return 1 / (time.perf_counter() - began)

    def rate_of_product() -> float:
        began = time.perf_counter()
        float((matrix @ matrix)[0, 0])
        return 2 * SIDE**3 / (time.perf_counter() - began)

    rate_of_step(), rate_of_product()  # the first ones also set things up
    started_at = time.perf_counter()
    while len(rates) < LEAST_ROUNDS or time.perf_counter() - started_at < seconds:
        rates.append((rate_of_step(), max(rate_of_product() for _ in range(3))))
    steps, products = (median(rate) for rate in zip(*rates, strict=True))
    share = median(step * work / product for step, product in rates)
    return StepSpeed(steps * len(batch.labels), products, share)


def flops_per_image(learner: Learner) -> float:
    """Of a whole step: of all products and convolutions, there and back, and of nothing else."""
    trial, images = learner.copy(), 2
    trial.set_precision("float32", compiled=False)
    batch = _noise(images).to(next(trial.model.parameters()))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # a fused attention is not counted
        trial.gradients(1, batch, progress=1.0)
    return counter.get_total_flops() / images


def _noise(count: int) -> Batch:
    labels = torch.arange(count) % cifar10.model.classes
    side = cifar10.model.image_size
    assert isinstance(side, int)
    return Batch(torch.randn(count, 3, side, side), labels, np.arange(count), labels)
