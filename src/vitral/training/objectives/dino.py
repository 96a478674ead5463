"""DINO: "Emerging Properties in Self-Supervised Vision Transformers" (Caron et al. 2021; arXiv:2104.14294).

A student, which is the model, and a teacher, which is its moving average, both say of a view which of K prototypes it
is like. What the teacher says of a large view the student is to say of every other view. That nothing else becomes of
it than the same answer for every image is left to two forces: what the teacher says is centred, so that no prototype
wins for all, and sharpened, so that not all win alike.

Shapes: V views of B images, the first two large; K prototypes. g_s and g_t are student and teacher, C the centre, τ_s
and τ_t the temperatures, l the momentum of the teacher and m that of the centre, as in the paper.
"""

import math
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from vitral.data.batches import Batch
from vitral.model.interface import Model
from vitral.training.config import DINOSettings
from vitral.training.objectives.lejepa import features_of_views, width_of_features
from vitral.training.objectives.without_labels import ComparesViews

LARGE = 2  # views that the teacher looks at
STILL = 0.02  # share of the steps in which the prototypes stay as they are, as in the paper for its first epoch


class Head(nn.Module):
    """Three layers to a bottleneck of length 1, then its likeness with each prototype, which has length 1 too."""

    def __init__(self, width: int, settings: DINOSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.mlp = nn.Sequential(
            *(nn.Linear(width, hidden), nn.GELU()),
            *(nn.Linear(hidden, hidden), nn.GELU()),
            nn.Linear(hidden, settings.bottleneck),
        )
        self.prototypes = nn.Parameter(torch.empty(settings.prototypes, settings.bottleneck))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        nn.init.normal_(self.prototypes)  # only their directions count

    def forward(self, features: Tensor, still: bool = False) -> Tensor:  # (…, F) → (…, K)
        prototypes = self.prototypes.detach() if still else self.prototypes
        return linear(normalize(self.mlp(features), dim=-1), normalize(prototypes, dim=1))


def dino_loss(  # (V, B, K), (large, B, K), (K,) → ()
    student: Tensor, teacher: Tensor, centre: Tensor, student_temperature: float, teacher_temperature: float
) -> Tensor:
    """The mean of H(P_t(x), P_s(x′)) over all pairs of a large view x and another view x′."""
    p_t = ((teacher - centre) / teacher_temperature).softmax(dim=-1).detach()
    log_p_s = (student / student_temperature).log_softmax(dim=-1)
    terms = -torch.einsum("abk,cbk->ac", p_t, log_p_s) / student.shape[1]  # (large, V)
    others = ~torch.eye(*terms.shape, dtype=torch.bool, device=terms.device)
    return terms[others].mean()


class DINO(ComparesViews):
    """The teacher, the heads and the centre; all are checkpointed, and none is part of the weights: these are the
    student's.

    >>> from vitral import ViT, ViTConfig
    >>> model = ViT(ViTConfig(image_size=16, patch_size=4, width=32, depth=1, heads=2, classes=0, head="none"))
    >>> DINO(model).momentum(progress=1.0)
    1.0
    """

    remedy = (
        "Set train.objective.teacher_temperature=0.04 and centre_momentum=0.9, if they are others; lower "
        "train.optimizer.learning_rate, or raise train.batch_size."
    )
    by_picture = True  # but for the centre
    centre: Tensor

    def __init__(self, model: Model, settings: DINOSettings | None = None, seed: int = 0) -> None:
        super().__init__()
        self.settings = settings or DINOSettings()
        self.head = Head(width_of_features(model), self.settings)
        self.teacher = deepcopy(model).requires_grad_(False)
        self.teacher_head = deepcopy(self.head).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(self.settings.prototypes))
        self.progress = 0.0  # of the step under way

    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        views, settings = (batch.images, *batch.more_views), self.settings
        student = self.head(features_of_views(model, views), still=progress < STILL).unflatten(0, (len(views), -1))
        with torch.no_grad():
            features = features_of_views(self.teacher, views[:LARGE])
            teacher = self.teacher_head(features).unflatten(0, (LARGE, -1)).float()
        with torch.autocast(teacher.device.type, enabled=False):  # products of the loss are in full precision too
            loss = dino_loss(
                student.float(), teacher, self.centre, settings.student_temperature, settings.teacher_temperature
            )
        if self.training:
            self.progress = progress
            mean = self.of_all(teacher.mean(dim=(0, 1))[None]).mean(dim=0)
            self.centre.lerp_(mean, 1 - settings.centre_momentum)  # after the loss has used it
        return loss, {}

    def outputs(self, features: Tensor) -> Tensor:
        """Probabilities of the prototypes, by the student, as sharp as the teacher's."""
        return ((self.head(features).float() - self.centre) / self.settings.teacher_temperature).softmax(dim=-1)

    @torch.no_grad()
    def after_step(self, model: Model, step: int) -> None:
        """g_t ← l g_t + (1 − l) g_s."""
        for teacher, student in ((self.teacher, model), (self.teacher_head, self.head)):
            torch._foreach_lerp_(
                list(teacher.parameters()), list(student.parameters()), 1 - self.momentum(self.progress)
            )
            for theirs, ours in zip(teacher.buffers(), student.buffers(), strict=True):
                theirs.copy_(ours)  # averages already, of a BatchNorm

    def momentum(self, progress: float) -> float:
        """l, from `momentum` to 1 along half a cosine."""
        return 1 - (1 - self.settings.momentum) * (math.cos(math.pi * progress) + 1) / 2
