"""From pooled features to logits: what each word that `head` can be in a config stands for."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vitral.errors import RecipeError
from vitral.model.config import ModelConfig, ViTConfig


class TaskHeads(nn.Linear):
    """A head for each of several tasks, which sees the token of its task alone; their rows one above the other."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config.width, config.classes)
        self.outputs = config.tokens.outputs

    def forward(self, view: Tensor) -> Tensor:  # (B, tasks · D) → (B, classes)
        tokens = view.unflatten(1, (len(self.outputs), -1)).unbind(1)  # each (B, D)
        rows = zip(tokens, self.weight.split(self.outputs), self.bias.split(self.outputs), strict=True)
        return torch.cat([linear(token, weight, bias) for token, weight, bias in rows], dim=1)


def linear_head(config: ModelConfig, width: int) -> nn.Linear:
    """A logit per class."""
    if config.classes == 0:
        headless = ", or model.head=none" if isinstance(config, ViTConfig) else ""
        raise RecipeError(
            "model.classes is 0, which in a recipe means: as the data has. "
            f"A model by itself has no data: give it, as in {type(config).__name__}(classes=10){headless}."
        )
    return nn.Linear(width, config.classes)


def classifier(config: ViTConfig, width: int) -> nn.Module:
    """A logit per class; where there are several tasks, of each on its own token."""
    return TaskHeads(config) if config.tokens.kind == "tasks" else linear_head(config, config.head.size or width)


def hidden_layer(config: ViTConfig, width: int) -> nn.Module:
    """The hidden layer with tanh that the paper has before the classifier in pre-training."""
    return nn.Sequential(OrderedDict(fc=nn.Linear(width, config.head.size or width), act=nn.Tanh()))


def nothing(config: ViTConfig, width: int) -> nn.Module:
    return nn.Identity()


PRE_LOGITS = {"linear": nothing, "mlp": hidden_layer, "hidden": hidden_layer, "none": nothing}
HEADS = {"linear": classifier, "mlp": classifier, "hidden": nothing, "none": nothing}
