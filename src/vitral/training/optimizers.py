"""How gradients become steps."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitral.model.interface import Layer, Model, layer_weights
from vitral.training.config import SGD, Adam, AdamW, Muon, Optimizer
from vitral.training.parallel import first_row, is_slice, local, whole

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steepest at 0, so that five steps are enough


class Optimizers:
    """One or more optimizers that step together, each at its own full rate times a common share."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        self.full_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    @property
    def rate(self) -> float:
        """The learning rate of the first group, as it stands."""
        return self.optimizers[0].param_groups[0]["lr"]

    def set_share(self, share: float) -> None:
        """Set every learning rate to this share of its full one."""
        for optimizer, rates in zip(self.optimizers, self.full_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def set_precision(self, precision: str) -> None:
        """In which numbers products are computed from now on: those of Muon."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, MuonOptimizer):
                optimizer.short = precision == "bfloat16"

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def groups(self, layers: Iterable[Layer]) -> list["ParameterGroup"]:
        """The parameters of each layer by rate, from the embedding to the head."""
        members: dict[tuple[str, float, bool, bool], list[tuple[int, float]]] = defaultdict(list)
        settings = {
            id(parameter): (rate, group["weight_decay"])
            for optimizer, rates in zip(self.optimizers, self.full_rates, strict=True)
            for group, rate in zip(optimizer.param_groups, rates, strict=True)
            for parameter in group["params"]
        }
        for layer in layers:
            for parameter in layer.parameters.values():
                rate, decay = settings.get(id(parameter), (0.0, 0.0))
                key = (layer.name, rate, id(parameter) in settings, parameter.requires_grad)
                members[key].append((parameter.numel(), decay))
        return [
            ParameterGroup(
                *key,
                numbers=sum(count for count, _ in counts),
                decay=max(decay for _, decay in counts),
                decayed=sum(count for count, decay in counts if decay),
            )
            for key, counts in members.items()
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Their states, by name: number of the optimizer, of the parameter, name of the tensor."""
        return {
            f"{i}.{parameter}.{name}": tensor
            for i, optimizer in enumerate(self.optimizers)
            for parameter, state in optimizer.state_dict()["state"].items()
            for name, tensor in state.items()
        }

    def room(self, sizes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Tensors of these sizes, for states by the same names: what is as large as its parameter is shared out as that
        is."""
        room = {}
        for name, size in sizes.items():
            i, number, _ = name.split(".")
            parameters = [one for group in self.optimizers[int(i)].param_groups for one in group["params"]]
            like = parameters[int(number)]
            room[name] = torch.empty_like(like) if like.shape == size else torch.empty(size)
        return room

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimizers]
        for name, tensor in tensors.items():
            i, parameter, entry = name.split(".")
            states[int(i)].setdefault(int(parameter), {})[entry] = tensor
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@dataclass(frozen=True)
class ParameterGroup:
    """Some of a model's numbers that learn at one rate."""

    name: str  # embedding, blocks.0, …, head
    rate: float  # the full one
    learns: bool  # now or later
    at_once: bool  # from the first step
    numbers: int
    decay: float
    decayed: int  # of the numbers: often the matrices alone


def make_optimizers(
    model: Model, settings: Optimizer, layer_decay: float = 1.0, later: bool = False, extra: nn.Module | None = None
) -> Optimizers:
    """The recipe's optimizers for a model, and for the modules of its objective, `extra`. What is frozen is left out,
    unless it learns `later`. Each layer learns at `layer_decay` of the next one's rate."""
    modules = [model] if extra is None else [model, extra]
    everything = [p for module in modules for p in module.parameters() if p.requires_grad or later]
    weights = [model.get_parameter(name) for name in model.layer_weights()]
    weights += [] if extra is None else [extra.get_parameter(name) for name in layer_weights(extra)]
    share = _layer_shares(model, layer_decay)
    if isinstance(settings, Muon):
        return _muon(model, settings, share, everything, weights)
    decaying = everything if settings.decay_on == "all" else weights
    groups = _groups(everything, decaying, share, settings.learning_rate, settings.weight_decay)
    match settings:
        case AdamW(betas=betas):
            return Optimizers(torch.optim.AdamW(groups, betas=betas, fused=True))
        case Adam(betas=betas):
            return Optimizers(torch.optim.Adam(groups, betas=betas, fused=True))
        case SGD(momentum=momentum):
            return Optimizers(torch.optim.SGD(groups, momentum=momentum, fused=True))


def _muon(
    model: Model, settings: Muon, share: dict[int, float], everything: list[nn.Parameter], weights: list[nn.Parameter]
) -> Optimizers:
    matrix_counts = {id(model.get_parameter(name)): count for name, count in model.matrices().items()}
    matrices = [parameter for parameter in everything if id(parameter) in matrix_counts]
    others = [parameter for parameter in everything if id(parameter) not in matrix_counts]
    muon = _groups(matrices, matrices, share, settings.learning_rate, settings.weight_decay)
    adamw = _groups(others, weights, share, settings.adamw_learning_rate, settings.adamw_weight_decay)
    rest = torch.optim.AdamW(adamw, betas=settings.adamw_betas, fused=True)
    return Optimizers(MuonOptimizer(muon, matrix_counts, settings.momentum), rest) if muon else Optimizers(rest)


def _layer_shares(model: Model, decay: float) -> dict[int, float]:
    """For each parameter, by its id, its share of the rate: the head has all of it, the embedding the least."""
    layers = model.layers()
    top = max(layer.depth for layer in layers)
    return {id(p): decay ** (top - layer.depth) for layer in layers for p in layer.parameters.values()}


def _groups(
    parameters: Sequence[Tensor], decaying: Sequence[Tensor], share: dict[int, float], rate: float, decay: float
) -> list[dict[str, Any]]:
    """Parameters with the same rate and decay, together; those that decay come first."""
    ids = {id(weight) for weight in decaying}
    groups: dict[tuple[float, float], list[Any]] = {(rate, decay): [], (rate, 0.0): []}
    for parameter in parameters:
        key = (rate * share.get(id(parameter), 1.0), decay if id(parameter) in ids else 0.0)
        groups.setdefault(key, []).append(parameter)
    return [{"params": some, "lr": lr, "weight_decay": wd} for (lr, wd), some in groups.items() if some]


class MuonOptimizer(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): momentum, then the nearest matrix whose singular values are all about 1.

    Ours and not `torch.optim.Muon`, which always casts to bfloat16: where that is emulated it is many times slower.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],  # with lr and weight_decay each
        matrix_counts: Mapping[int, int],  # by the id of a parameter: how many matrices lie in it, one above the other
        momentum: float,
    ) -> None:
        super().__init__(groups, {"momentum": momentum})
        self.matrix_counts = matrix_counts
        self.short = False  # whether products are computed in bfloat16: momentum and weights never are

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shared = [one for one in group["params"] if is_slice(one)]  # each comes together alone: whole it is large
            for some in [[one for one in group["params"] if not is_slice(one)], *([one] for one in shared)]:
                for matrices, updates in self._by_shape(some, group["momentum"]):
                    steps = self.nearest(torch.stack(updates))  # (K, rows, columns): one product for all K
                    scale = max(1, steps.shape[1] / steps.shape[2]) ** 0.5
                    for (matrix, rows), step in zip(matrices, steps, strict=True):
                        matrix.mul_(1 - group["lr"] * group["weight_decay"])
                        matrix.add_(step[rows], alpha=-group["lr"] * scale)

    def nearest(self, updates: Tensor) -> Tensor:  # (K, rows, columns) → the same
        """The steps for these updates, at a full rate of 1."""
        return orthogonalised(updates.bfloat16() if self.short else updates)

    def _by_shape(
        self, parameters: Iterable[Tensor], share: float
    ) -> list[tuple[list[tuple[Tensor, slice]], list[Tensor]]]:
        """Matrices, as far as this process has them, with the rows which that is, and their updates: a pair of lists
        for each shape."""
        shapes = defaultdict[torch.Size, tuple[list[tuple[Tensor, slice]], list[Tensor]]](lambda: ([], []))
        for parameter in parameters:
            if parameter.grad is None:  # still frozen
                continue
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            momentum.lerp_(parameter.grad, 1 - share)
            update = whole(parameter.grad.lerp(momentum, share))  # Nesterov: a look ahead
            parts = self.matrix_counts[id(parameter)]
            mine, start = local(parameter).flatten(1), first_row(parameter)
            # A filter of a convolution is a row.
            for number, part in enumerate(update.flatten(1).chunk(parts)):
                above = number * len(part)  # rows of the parameter
                rows = slice(max(start - above, 0), max(min(start + len(mine) - above, len(part)), 0))
                matrices, updates = shapes[part.shape]
                matrices.append((mine[max(above - start, 0) :][: max(rows.stop - rows.start, 0)], rows))
                updates.append(part)
        return list(shapes.values())


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
