"""Is a model that learns without labels still seeing differences? What its features of some pictures are like.

Nothing of it chooses anything: labels, where there are some, only tell how near pictures of one class lie.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from vitral.data.batches import Batch
from vitral.model.interface import Model

NEIGHBOURS = 10
SAME, ONE_WAY = 0.01, 1.2  # below this spread, and this rank, features have collapsed
PENALTY = 0.01  # of ridge regression, beside features of variance 1
ENOUGH = 10  # pictures that can tell in how many directions they differ


def effective_rank(features: Tensor) -> Tensor:  # (n, F) → ()
    """In how many directions pictures differ: e to the entropy of the singular values (Roy and Vetterli 2007).

    >>> float(effective_rank(torch.eye(4)[:, :3] * 2 - 1).round())
    3.0
    """
    values = torch.linalg.svdvals((features - features.mean(dim=0)).double())
    shares = values / values.sum().clamp(min=1e-300)
    return (-(shares * shares.clamp(min=1e-300).log()).sum()).exp()


def spread(features: Tensor) -> Tensor:  # (n, F) → ()
    """How far features are from their mean, as a share of their length: 0 where all pictures look the same.

    >>> spread(torch.tensor([[1.0, 1.0], [1.0, 1.0]])), spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    (tensor(0.), tensor(1.))
    """
    from_mean = (features - features.mean(dim=0)).square().sum()
    return (from_mean / features.square().sum().clamp(min=1e-30)).sqrt()


def knn_accuracy(features: Tensor, labels: Tensor) -> Tensor:  # (n, F), (n,) → ()
    """The share of pictures whose nearest others (cosine) have mostly their class; each picture votes for the others.

    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> knn_accuracy(features, torch.tensor([0, 0, 1, 1]))
    tensor(1.)
    """
    directions = normalize(features.float(), dim=1)
    likeness = (directions @ directions.T).fill_diagonal_(-torch.inf)  # (n, n)
    near, who = likeness.topk(min(NEIGHBOURS, len(features) - 1), dim=1)
    votes = torch.zeros(len(features), int(labels.max()) + 1)
    votes.scatter_add_(1, labels[who], near.clamp(min=0) + 1e-6)
    return (votes.argmax(dim=1) == labels).float().mean()


def linear_accuracy(features: Tensor, labels: Tensor) -> Tensor:  # (n, F), (n,) → ()
    """The share of pictures to which a linear probe gives their class: ridge regression onto the classes, which has
    learnt from one half of the pictures, drawn once for all, and then from the other.

    >>> labels = torch.arange(40) % 2
    >>> linear_accuracy(torch.eye(2)[labels] + 0.1 * torch.randn(40, 2), labels)
    tensor(1.)
    """
    x = features.double() - features.double().mean(dim=0)
    x = torch.cat([x / x.std(dim=0).clamp(min=1e-12), torch.ones(len(x), 1)], dim=1)  # (n, F + 1)
    y = one_hot(labels).double()  # (n, classes)
    penalty = PENALTY * len(x) / 2 * torch.eye(x.shape[1], dtype=x.dtype)
    right = torch.zeros(len(x))
    for asked in torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).chunk(2):
        learnt = torch.ones(len(x), dtype=torch.bool).index_fill(0, asked, False)
        a = x[learnt]
        weights = torch.linalg.solve(a.T @ a + penalty, a.T @ y[learnt])  # (F + 1, classes)
        right[asked] = ((x[asked] @ weights).argmax(dim=1) == labels[asked]).float()
    return right.mean()


@torch.no_grad()
def watch(
    model: Model, batches: Iterable[Batch], outputs_of: Callable[[Tensor], Tensor] | None = None
) -> dict[str, float]:
    """Effective rank and spread of the features of some pictures; the spread of the outputs that an objective makes of
    them, where it does; kNN and a linear probe where they have classes."""
    parts = []
    for batch in batches:
        seen = model.pool(model.features(batch.images))
        outputs = outputs_of(seen) if outputs_of else seen
        parts.append((seen.float().cpu(), outputs.float().cpu(), batch.labels.cpu()))
    features, outputs, labels = map(torch.cat, zip(*parts, strict=True))
    if not features.isfinite().all():  # the training has run away, and says so
        return {"spread": float("nan")}
    figures = {"spread": float(spread(features))} | ({"output_spread": float(spread(outputs))} if outputs_of else {})
    if len(features) >= ENOUGH:
        figures["rank"] = float(effective_rank(features))
    if labels.ndim == 1 and len(labels.unique()) > 1:
        figures["knn_accuracy"] = float(knn_accuracy(features, labels))
        figures["linear_accuracy"] = float(linear_accuracy(features, labels))
    return figures


def alarm(figures: Mapping[str, float]) -> str:
    """Words on how features have collapsed, "" where they have not."""
    if figures.get("output_spread", SAME) < SAME:
        return f"it says the same of all pictures: what it says has a spread of {figures['output_spread']:.2g}"
    if figures.get("spread", SAME) < SAME:
        return (
            f"all pictures look nearly the same to the model: their features have a spread of {figures['spread']:.2g}"
        )
    if figures.get("rank", ONE_WAY) < ONE_WAY:
        return f"features differ in one direction only: their effective rank is {figures['rank']:.2f}"
    return ""
