"""LeJEPA: "Provable and Scalable Self-Supervised Learning Without the Heuristics" (Balestriero and LeCun 2025;
arXiv:2511.08544).

The embeddings of all views of an image are to be one point, and those of all images to be spread like a normal
distribution, which leaves no room for a collapse. Whether they are is asked in random directions: along each of them
the embeddings are numbers, whose characteristic function is compared with that of N(0, 1) (SIGReg). There is no
teacher and no stop-gradient, and one dial, λ.

Shapes: V views of B images, embeddings of F numbers, S directions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitral.data.batches import Batch
from vitral.data.randomness import uniform
from vitral.model.interface import Model
from vitral.training.config import LeJEPASettings
from vitral.training.objectives.without_labels import ComparesViews

KNOTS, T_MAX = 17, 3.0  # where the characteristic function is looked at: from 0 to 3


def epps_pulley(samples: Tensor, t_max: float = T_MAX, knots: int = KNOTS) -> Tensor:  # (…, N, S) → (…, S)
    """How unlike N(0, 1) the N numbers of each column are: the squared distance of their characteristic function,
    mean(exp(i t s)), from exp(−t²/2), under a Gaussian window (Epps and Pulley 1983), times N. Negative t would give
    the same, and counts by doubling.

    >>> epps_pulley(torch.tensor([[-1.15, 0.0], [-0.32, 0.0], [0.32, 0.0], [1.15, 0.0]]))
    tensor([0.0275, 1.6082])
    """
    t = torch.linspace(0, t_max, knots, dtype=samples.dtype, device=samples.device)
    phi = (-t.square() / 2).exp()
    weights = torch.full_like(t, 2 * t_max / (knots - 1))  # the trapezoid rule
    weights[[0, -1]] /= 2
    angles = samples.unsqueeze(-1) * t  # (…, N, S, knots)
    off = (angles.cos().mean(dim=-3) - phi).square() + angles.sin().mean(dim=-3).square()  # (…, S, knots)
    return (off * weights * phi).sum(dim=-1) * samples.shape[-2]


def sigreg(proj: Tensor, directions: Tensor) -> Tensor:  # (V, B, F), (F, S) → ()
    """Sketched isotropic Gaussian regularisation: the mean of `epps_pulley` over views and directions of length 1."""
    return epps_pulley(proj @ directions).mean()


def invariance(proj: Tensor) -> Tensor:  # (V, B, F) → ()
    """How far the views of an image are from their mean."""
    return (proj - proj.mean(dim=0)).square().mean()


def random_directions(raw: Tensor) -> Tensor:  # (F, S) → (F, S)
    """Each column with length 1."""
    return raw / raw.norm(dim=0)


class LeJEPA(ComparesViews):
    """Views agree, and images are spread.

    >>> from vitral import ViT, ViTConfig
    >>> model = ViT(ViTConfig(image_size=16, patch_size=4, width=32, depth=1, heads=2, classes=0, head="none"))
    >>> LeJEPA(model).project(model, [torch.zeros(4, 3, 16, 16), torch.zeros(4, 3, 8, 8)]).shape
    torch.Size([2, 4, 32])
    """

    figures = ("apart", "sigreg")
    by_picture = True

    def __init__(self, model: Model, settings: LeJEPASettings | None = None, seed: int = 0) -> None:
        super().__init__()
        self.settings, self.seed = settings or LeJEPASettings(), seed
        self.projector = projector(width_of_features(model), self.settings.projector)

    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        proj = self.project(model, (batch.images, *batch.more_views)).float()
        if self.training:  # in validation every process looks at all pictures
            proj = self.of_all(proj.transpose(0, 1)).transpose(0, 1)
        with torch.autocast(proj.device.type, enabled=False):  # products of the loss are in full precision too
            apart, unlike_normal = invariance(proj), sigreg(proj, self.directions(step).to(proj.device))
        lamda = self.settings.balance
        return lamda * unlike_normal + (1 - lamda) * apart, {"apart": apart, "sigreg": unlike_normal}

    def project(self, model: Model, views: Sequence[Tensor]) -> Tensor:  # each (B, C, H, W) → (V, B, F)
        """The embeddings of all views. The projector's BatchNorms see all of them at once."""
        return self.outputs(features_of_views(model, views)).unflatten(0, (len(views), -1))

    def outputs(self, features: Tensor) -> Tensor:
        proj: Tensor = self.projector(features)
        return proj

    def directions(self, step: int) -> Tensor:  # → (F, S)
        """Others at each step: a function of seed and step."""
        shape = (self.settings.projector[-1], self.settings.directions)
        seed = int(uniform(self.seed, "directions", epoch=step, samples=[0])[0, 0] * 2**53)
        return random_directions(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def projector(width: int, sizes: Sequence[int]) -> nn.Sequential:
    """Linear, BatchNorm and ReLU for each size but the last, which is linear."""
    layers: list[nn.Module] = []
    for size in sizes[:-1]:
        layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, sizes[-1]))


def width_of_features(model: Model) -> int:
    """How many numbers the model has for an image: those that a head would see."""
    config = model.config
    with torch.no_grad():
        like = next(model.parameters())
        image = torch.zeros(2, config.channels, *config.height_width, device=like.device, dtype=like.dtype)
        training = model.training
        width = model.eval().pool(model.features(image)).shape[1]
        model.train(training)
    return width


def features_of_views(model: Model, views: Sequence[Tensor]) -> Tensor:  # V times (B, C, H, W) → (V·B, F)
    """The features of several views, one after the other; views of one size pass through the model together."""
    parts: list[Tensor] = []
    while len(parts) < len(views):
        first = len(parts)
        same = [view for view in views[first:] if view.shape == views[first].shape]
        parts += model.pool(model.features(torch.cat(same))).chunk(len(same))
    return torch.cat(parts)
