"""The tutorials' own models, written anew for benchmarks/tutorials/theirs.py: they are what their authors describe."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vitral.recipes import find_recipe

THEIRS: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[1] / "benchmarks" / "tutorials" / "theirs.py"), run_name="theirs"
)
COUNTS = {"tutorial-mnist": 1_642, "tutorial-cifar10-a": 2_693_578, "tutorial-cifar10-b": 119_098}


def build(name: str) -> Any:
    return THEIRS["build"](name, 0)


def test_there_are_three() -> None:
    assert list(THEIRS["TUTORIALS"]) == list(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_a_model_has_the_parameters_of_the_tutorial(name: str) -> None:
    assert sum(parameter.numel() for parameter in build(name).parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_images_become_classes_and_every_parameter_takes_part(name: str) -> None:
    model, config = build(name), find_recipe(name).model
    outputs = model(torch.rand(3, config.channels, *config.height_width))
    assert outputs.shape == (3, config.classes)
    outputs.square().sum().backward()
    assert [part for part, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", COUNTS)
def test_both_are_trained_alike(name: str) -> None:
    tutorial, train = THEIRS["TUTORIALS"][name], find_recipe(name).train
    ours = train.optimizer
    assert (train.warmup, train.schedule.kind) == (0.0, "constant")
    assert tutorial.optimizer.__name__.lower() == ours.kind
    assert {"weight_decay": 0.0} | tutorial.settings == {
        "weight_decay": ours.weight_decay,
        "lr": getattr(ours, "learning_rate", None),
    }


def test_mnist_gives_probabilities() -> None:
    torch.testing.assert_close(build("tutorial-mnist")(torch.rand(5, 1, 28, 28)).sum(dim=1), torch.ones(5))


def test_mnist_has_the_waves_of_our_recipe() -> None:
    from vitral.model.positions import sincos_1d

    torch.testing.assert_close(build("tutorial-mnist").positions[0], sincos_1d((7, 7), 8, 1).float())


def test_a_head_of_mnist_sees_only_its_share() -> None:
    heads = THEIRS["Heads"](8, 2, sliced=True)
    tokens = torch.rand(1, 5, 8)
    changed = tokens.clone()
    changed[..., 4:] += 1.0
    before, after = heads(tokens), heads(changed)
    assert torch.equal(before[..., :4], after[..., :4]) and not torch.allclose(before[..., 4:], after[..., 4:])


def test_cifar10_a_begins_with_zeros_where_it_says_so() -> None:
    model = build("tutorial-cifar10-a")
    assert not model.positions.any() and not model.token.any()
    assert isinstance(model.positions, nn.Parameter)
    assert model.head[1].weight.any()  # unlike ours


def test_cifar10_b_begins_small() -> None:
    model = build("tutorial-cifar10-b")
    weights = torch.cat([layer.weight.flatten() for layer in model.modules() if isinstance(layer, nn.Linear)])
    assert weights.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.1)
    biases = [tensor for part, tensor in model.named_parameters() if part.endswith("bias")]
    assert not any(bias.any() for bias in biases)
