"""From pooled features to logits: what each word that `head` can be in a config stands for."""

from collections import OrderedDict

from torch import nn

from vitral.errors import RecipeError
from vitral.model.config import ViTConfig


def classifier(config: ViTConfig, width: int) -> nn.Module:
    """A logit per class."""
    if config.classes == 0:
        raise RecipeError(
            "model.classes is 0, which in a recipe means: as the data has. "
            "A model by itself has no data: give it, as in ViTConfig(classes=10), or model.head=none."
        )
    return nn.Linear(config.head.size or width, config.classes)


def hidden_layer(config: ViTConfig, width: int) -> nn.Module:
    """The hidden layer with tanh that the paper has before the classifier in pre-training."""
    return nn.Sequential(OrderedDict(fc=nn.Linear(width, config.head.size or width), act=nn.Tanh()))


def nothing(config: ViTConfig, width: int) -> nn.Module:
    return nn.Identity()


PRE_LOGITS = {"linear": nothing, "mlp": hidden_layer, "hidden": hidden_layer, "none": nothing}
HEADS = {"linear": classifier, "mlp": classifier, "hidden": nothing, "none": nothing}
