"""Blocks that are computed anew on the way back learn the same, to the bit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import TINY
from vitral import RecipeError
from vitral.data.batches import Batch
from vitral.model import build
from vitral.model.config import ModelConfig
from vitral.model.interface import Model
from vitral.model.kinds import BourkeConfig
from vitral.model.resnet_config import ResNetConfig
from vitral.model.swin_config import SwinConfig
from vitral.recipe import Recipe
from vitral.training.learner import Learner

DROPS = {"dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.2}
KINDS: dict[str, tuple[ModelConfig, dict[str, float]]] = {
    "vit": (TINY, DROPS),
    "bourke": (BourkeConfig(image_size=32, patch_size=8, width=32, depth=2, heads=4, classes=10), {"dropout": 0.1}),
    "swin": (SwinConfig(image_size=32, patch_size=2, width=24, depths=(2, 2), heads=(2, 4), classes=10), DROPS),
    "resnet": (
        ResNetConfig(image_size=32, depths=(1, 1), widths=(32, 128, 256), classes=10),
        {"stochastic_depth": 0.2},
    ),
}


def learnt(config: ModelConfig, **train: Any) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The losses of two steps, and all that the learner then holds."""
    recipe = Recipe().changed({f"train.{name}": value for name, value in train.items()})
    torch.manual_seed(0)
    learner = Learner(build(config, recipe.train.regularise).train(), recipe.train).copy()
    images, labels = torch.randn(8, 3, *config.height_width), torch.arange(8)
    losses = []
    for step in (1, 2):
        losses.append(learner.gradients(step, Batch(images, labels, np.arange(8), labels), progress=0.5)[0])
        learner.update(step, share=1.0)
    return losses, learner.tensors()


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_blocks_learn_the_same_bits(kind: str) -> None:
    config, regularise = KINDS[kind]
    more = {"ema": 0.9, "accumulate": 2, "regularise": regularise}
    (losses, tensors), (again, other) = (learnt(config, recompute=recompute, **more) for recompute in (False, True))
    assert losses == again
    assert tensors.keys() == other.keys()  # no name has changed
    assert [name for name in tensors if not torch.equal(tensors[name], other[name])] == []


def test_a_block_is_gone_through_twice_but_for_the_last() -> None:
    model = build(TINY.model_copy(update={"depth": 3})).train()
    model.recompute_blocks()
    model.recompute_blocks()  # twice is once
    seen: list[int] = []
    for number, block in enumerate(model.repeated_blocks()):
        block.get_submodule("norm1").register_forward_hook(lambda *_, number=number: seen.append(number))
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert seen == [0, 1, 2, 1, 0]


class Blocks(Model):
    config: ModelConfig

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.config, self.blocks = TINY, nn.Sequential(*blocks)

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        raise NotImplementedError


def test_where_it_makes_no_sense_a_sentence_says_so() -> None:
    with pytest.raises(RecipeError, match=r"has no two blocks in `blocks`: set train\.recompute=false"):
        Blocks(nn.Linear(1, 1)).recompute_blocks()
    with pytest.raises(RecipeError, match="BatchNorm .* would remember each batch twice"):
        Blocks(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), nn.Linear(1, 1)).recompute_blocks()


def test_it_is_written_only_where_somebody_asks_for_it() -> None:
    assert "recompute" not in Recipe().to_toml()
    assert "recompute = true" in Recipe().changed({"train.recompute": True}).to_toml()
