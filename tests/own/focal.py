"""Focal loss (Lin et al. 2017; arXiv:1708.02002): what is right already counts less."""

from torch import Tensor
from torch.nn.functional import cross_entropy


def focal(logits: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:  # (B, classes), (B,) → ()
    surprise = cross_entropy(logits, targets, reduction="none")  # −log p, (B,)
    return ((1 - (-surprise).exp()) ** gamma * surprise).mean()
