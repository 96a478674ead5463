"""How gradients become steps: AdamW, or Muon for the matrices of the blocks and AdamW for the rest."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitral.model.vit import Attention, ViT
from vitral.recipe import AdamW, Muon, Train

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steepest at 0, so that five steps are enough


class Optimizers:
    """One or more optimizers that step together, each at its own full rate times a common share."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        self.full_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    @property
    def rate(self) -> float:
        """The learning rate of the first, as it stands."""
        return self.optimizers[0].param_groups[0]["lr"]

    def set_share(self, share: float) -> None:
        for optimizer, rates in zip(self.optimizers, self.full_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def make_optimizers(model: ViT, train: Train) -> Optimizers:
    """As the recipe asks. Weight decay acts on weights of linear and convolution layers only."""
    match train.optimizer:
        case AdamW(learning_rate=rate, betas=betas, weight_decay=decay):
            return Optimizers(_adamw(list(model.parameters()), layer_weights(model), rate, betas, decay))
        case Muon() as muon:
            matrices = layer_weights(model.blocks)
            others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
            three_in_one = [module.qkv.weight for module in model.modules() if isinstance(module, Attention)]
            return Optimizers(
                MuonOptimizer(matrices, three_in_one, muon.learning_rate, muon.momentum, muon.weight_decay),
                _adamw(
                    others,
                    layer_weights(model),
                    muon.adamw_learning_rate,
                    muon.adamw_betas,
                    muon.adamw_weight_decay,
                ),
            )


def layer_weights(module: nn.Module) -> list[Tensor]:
    """The weights of all linear and convolution layers: not biases, norms, the class token or the position table."""
    return [layer.weight for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def _adamw(
    parameters: list[nn.Parameter], decaying: list[Tensor], rate: float, betas: tuple[float, float], decay: float
) -> torch.optim.AdamW:
    ids = {id(weight) for weight in decaying}
    groups = [
        {"params": [p for p in parameters if id(p) in ids], "weight_decay": decay},
        {"params": [p for p in parameters if id(p) not in ids], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=betas)


class MuonOptimizer(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): momentum, then the nearest matrix whose singular values are all about 1.

    Ours and not `torch.optim.Muon`, which casts to bfloat16: where that is emulated it is many times slower.
    """

    def __init__(
        self,
        matrices: list[Tensor],
        three_in_one: list[Tensor],  # those of them that hold q, k and v, one above the other: three matrices
        learning_rate: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        super().__init__(matrices, {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay})
        self.parts = {id(matrix): 3 for matrix in three_in_one}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrices, updates in self._alike(group):
                steps = orthogonalised(torch.stack(updates))  # (K, rows, columns): one product for all K
                scale = max(1, steps.shape[1] / steps.shape[2]) ** 0.5
                for matrix, step in zip(matrices, steps, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(step, alpha=-group["lr"] * scale)

    def _alike(self, group: dict[str, Any]) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Matrices and their updates, put together by shape."""
        alike = defaultdict[torch.Size, tuple[list[Tensor], list[Tensor]]](lambda: ([], []))
        for parameter in group["params"]:
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            momentum.lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(momentum, group["momentum"])  # Nesterov: a look ahead
            parts = self.parts.get(id(parameter), 1)
            for matrix, part in zip(parameter.chunk(parts), update.chunk(parts), strict=True):
                matrices, updates = alike[matrix.shape]
                matrices.append(matrix)
                updates.append(part)
        return list(alike.values())


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:  # (K, rows, columns)
    """Each matrix with its singular values brought near 1, by Newton-Schulz iteration: products only."""
    a, b, c = NEWTON_SCHULZ
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT  # the smaller side first: its Gram matrix is smaller
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT
