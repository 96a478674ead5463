"""The CNN of the CIFAR-10 race, from the paper's description (Jordan 2024, "94 % on CIFAR-10 in 3.29 seconds",
2404.00498, and its successor with Muon): the honest comparator of a ViT at the same minutes.

A first layer of 2×2 pixels that is measured, then three groups of two convolutions with a max-pool between them and
BatchNorms without scale, GELUs, and a head whose output is scaled down. Filters start as the identity as far as there
are channels, learn by Muon and keep their norm; biases and head learn by SGD with Nesterov's momentum. No average of
weights and no lookahead: with Muon its author left that out.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu

from vitral.model.config import ImageSize, ModelConfig, Regularise
from vitral.model.interface import Model
from vitral.training.learner import Learner
from vitral.training.optimizers import MuonOptimizer, Optimizers, orthogonalised

MUON, HEAD, BIAS = 0.24, 0.67, 0.053  # rates; the last two for the sum over a batch, as the author gives them
NORM_MOMENTUM = 0.4  # what a BatchNorm takes of each batch


class RaceConfig(ModelConfig):
    image_size: ImageSize = 32
    channels: int = 3
    classes: int = 10
    widths: tuple[int, ...] = (64, 256, 256)


class Norm(nn.BatchNorm2d):
    """BatchNorm that learns a bias and no scale."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=NORM_MOMENTUM)
        self.weight.requires_grad_(False)


def group(takes: int, gives: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(takes, gives, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        Norm(gives),
        nn.GELU(),
        nn.Conv2d(gives, gives, 3, padding=1, bias=False),
        Norm(gives),
        nn.GELU(),
    )


class RaceCnn(Model):
    config: RaceConfig
    whiten: Tensor  # (8C, C, 2, 2)

    def __init__(self, config: RaceConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.config = config
        values = 4 * config.channels
        self.register_buffer("whiten", torch.zeros(2 * values, config.channels, 2, 2))
        self.whiten_bias = nn.Parameter(torch.zeros(2 * values))
        sizes = [2 * values, *config.widths]
        self.blocks = nn.ModuleList(group(*pair) for pair in zip(sizes, sizes[1:], strict=False))
        self.head = nn.Linear(sizes[-1], config.classes, bias=False)
        for filters in self.filters():
            nn.init.dirac_(filters[: filters.shape[1]])

    def filters(self) -> list[nn.Parameter]:
        return [layer.weight for layer in self.blocks.modules() if isinstance(layer, nn.Conv2d)]

    @torch.no_grad()
    def fit_inputs(self, images: Tensor) -> None:  # (B, C, H, W)
        """The principal components of 2×2 pixels, scaled to equal size, with both signs."""
        pixels = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)  # (n, 4C)
        sizes, components = torch.linalg.eigh(pixels.T.double() @ pixels.double() / len(pixels))
        whitened = (components / (sizes + 5e-4).sqrt()).T.reshape(-1, *self.whiten.shape[1:])
        self.whiten.copy_(torch.cat([whitened, -whitened]))

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:  # (B, C, H, W) → (B, 1, D)
        x = images.contiguous(memory_format=torch.channels_last)
        x = gelu(conv2d(x, self.whiten, self.whiten_bias))  # (B, 24, 31, 31)
        for some in self.blocks:
            x = some(x)  # 15, 7 and 3 pixels a side
        return x.amax(dim=(2, 3))[:, None]

    def classify(self, views: list[Tensor]) -> tuple[Tensor, ...]:  # type: ignore[override]
        return (self.head(views[0]) / self.head.in_features,)

    @torch.no_grad()
    def refit_norms(self, batches) -> None:  # type: ignore[no-untyped-def, override]
        norms = [layer for layer in self.modules() if isinstance(layer, Norm)]
        for layer in norms:
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over all batches
        self.train()
        for images in batches:
            self.features(images)
        for layer in norms:
            layer.momentum = NORM_MOMENTUM


class FilterMuon(MuonOptimizer):
    """Muon that keeps the norm of each filter bank: √ of the number of its filters."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for settings in self.param_groups:
            for filters in settings["params"]:
                momentum = self.state[filters].setdefault("momentum", torch.zeros_like(filters))
                momentum.mul_(settings["momentum"]).add_(filters.grad)
                update = filters.grad.add(momentum, alpha=settings["momentum"]).flatten(1)
                filters.mul_(len(filters) ** 0.5 / filters.norm())
                [step] = orthogonalised(update[None].bfloat16() if self.short else update[None])
                filters.add_(step.view_as(filters), alpha=-settings["lr"])


def optimizers(learner: Learner) -> Optimizers:
    """What learns its filters, and the rest."""
    model, batch = learner.model, learner.train.batch_size
    filters = model.filters()  # type: ignore[operator]
    muon = FilterMuon([{"params": filters, "lr": MUON, "weight_decay": 0.0}], {}, momentum=0.6)
    biases = [p for name, p in model.named_parameters() if name.endswith("bias") and p.requires_grad]
    rest = [
        {"params": model.head.parameters(), "lr": HEAD * batch},  # type: ignore[union-attr]
        {"params": biases, "lr": BIAS * batch},
    ]
    return Optimizers(muon, torch.optim.SGD(rest, momentum=0.85, nesterov=True))
