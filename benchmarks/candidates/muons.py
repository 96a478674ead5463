"""Other ways from a gradient to the step of a matrix: what takes the place of Muon in a learner."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitral.training.learner import Learner
from vitral.training.optimizers import MuonOptimizer, Optimizers

# Amsel et al. 2025 (2505.16932): the best polynomial for each of five steps, the first for singular values from 0.001
# on. Each is made a little smaller than it could be, since products are rounded.
POLAR_EXPRESS = [
    (a / 1.01, b / 1.01**3, c / 1.01**5)
    for a, b, c in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    )
]


class PolarExpress(MuonOptimizer):
    """Singular values come nearer to 1."""

    def nearest(self, updates: Tensor) -> Tensor:
        short = updates.bfloat16() if self.short else updates
        wide = short.shape[1] <= short.shape[2]
        x = short if wide else short.mT
        x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.01 + 1e-7)
        for a, b, c in POLAR_EXPRESS:
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x if wide else x.mT


class NorMuon(MuonOptimizer):
    """Each row of a step is divided by how large it has been (Li et al. 2025, 2510.05491); the whole stays as large."""

    decay = 0.95

    def nearest(self, updates: Tensor) -> Tensor:
        steps = super().nearest(updates).float()
        rows = self.state.setdefault(tuple(steps.shape), {}).setdefault("rows", torch.zeros_like(steps[..., :1]))
        rows.lerp_(steps.square().mean(dim=2, keepdim=True), 1 - self.decay)
        even = steps / (rows.sqrt() + 1e-8)
        sizes = [x.norm(dim=(1, 2), keepdim=True) for x in (steps, even)]
        return even * (sizes[0] / sizes[1].clamp_min(1e-8))  # the head starts at zero: the first gradients are none


class RisingMomentum(MuonOptimizer):
    """Momentum rises from 0.85 to what the recipe says, in 300 steps (modded-nanogpt)."""

    steps = 0

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        full = self.defaults["momentum"]
        for group in self.param_groups:
            group["momentum"] = full + (0.85 - full) * max(0.0, 1 - self.steps / 300)
        super().step()


def instead(kind: type[MuonOptimizer]) -> Callable[[Learner], Optimizers]:
    """What makes the optimizers of a learner anew, with this one in the place of Muon."""

    def make(learner: Learner) -> Optimizers:
        muon, *rest = learner.optimizers.optimizers
        assert isinstance(muon, MuonOptimizer)
        groups: list[dict[str, Any]] = [dict(group) for group in muon.param_groups]
        return Optimizers(kind(groups, muon.matrix_counts, muon.defaults["momentum"]), *rest)

    return make
