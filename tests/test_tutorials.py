"""The tutorials' models are theirs, layer for layer: the same outputs, and the same first values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from conftest import FIXTURES, quick_digits
from transcripts import Bourke, Mu, Owen, Pulfer, Transcript
from vitral import Classifier, RecipeError, Run, ViT, attention_maps, train
from vitral.data.preprocess import Preprocess
from vitral.deploy.convert import WRITERS, convert
from vitral.errors import WeightsError
from vitral.model import build
from vitral.model.config import ModelConfig, Regularise, ViTConfig
from vitral.model.kinds import BourkeConfig, MuConfig, OwenConfig, PulferConfig
from vitral.recipes import RECIPES
from vitral.training.objectives.classification import Classification, DoubleSoftmax
from vitral.weights.own import Weights
from vitral.weights.pretrained import load_pretrained

SIZES: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "heads": 3, "classes": 5}
DIGIT: dict[str, Any] = {
    "image_size": 28,
    "patch_size": 4,
    "channels": 1,
    "width": 8,
    "depth": 2,
    "heads": 2,
    "classes": 10,
}

# Ours, small; and the transcript of it.
PAIRS: dict[str, tuple[ModelConfig, Callable[[], Transcript]]] = {
    "mu": (MuConfig(**SIZES), lambda: Mu(32, 8, 24, 2, 3, 5)),
    "owen": (OwenConfig(**SIZES), lambda: Owen(32, 8, 24, 2, 3, 5)),
    "pulfer": (PulferConfig(**DIGIT), lambda: Pulfer((1, 28, 28), 7, 2, 8, 2, 10)),
    "pulfer-colour": (PulferConfig(**SIZES), lambda: Pulfer((3, 32, 32), 4, 2, 24, 3, 5)),
    "bourke": (BourkeConfig(**SIZES), lambda: Bourke(32, 8, 2, 24, 3, 5)),
    "bourke-random": (BourkeConfig(**SIZES, start="random"), lambda: Bourke(32, 8, 2, 24, 3, 5, first=torch.randn)),
}
EACH = pytest.mark.parametrize("name", PAIRS)


def images_for(config: ModelConfig) -> torch.Tensor:
    return torch.rand(3, config.channels, *config.height_width)


def with_random_numbers(theirs: Transcript) -> Transcript:
    """Where zeros and ones stand at first, a wrong place would not show."""
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs


@EACH
def test_the_outputs_are_those_of_the_tutorial(name: str) -> None:
    config, make = PAIRS[name]
    theirs, ours = with_random_numbers(make()).eval(), build(config).eval()
    ours.load_state_dict(theirs.tensors())
    logits = ours(images := images_for(config))
    expected = theirs(images)
    if config.kind == "pulfer":  # it ends in a softmax, which ours has in the objective
        logits = logits.softmax(dim=1)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@EACH
def test_gradients_are_those_of_the_tutorial(name: str) -> None:
    config, make = PAIRS[name]
    theirs, ours = with_random_numbers(make()).eval(), build(config).eval()
    ours.load_state_dict(theirs.tensors())
    images, labels = images_for(config), torch.tensor([0, 1, 2])
    objective = DoubleSoftmax() if config.kind == "pulfer" else Classification()
    objective.of_logits(ours(images), labels).backward()
    cross_entropy(theirs(images), labels).backward()
    for parameter in theirs.parameters():
        assert parameter.grad is not None
        parameter.data = parameter.grad  # so that `tensors` gives them under our names
    expected = theirs.tensors()
    for tensor, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[tensor], atol=1e-5, rtol=1e-4, msg=tensor)


@EACH
def test_every_tensor_starts_with_the_mean_and_spread_of_the_tutorial(name: str) -> None:
    """Over 40 models each: means and spreads within about 5 standard errors, and what is fixed is the same."""
    config, make = PAIRS[name]
    torch.manual_seed(0)
    ours = [build(config).state_dict() for _ in range(40)]
    theirs = [make().tensors() for _ in range(40)]
    assert ours[0].keys() == theirs[0].keys()
    for tensor in ours[0]:
        mine, other = (torch.stack([one[tensor] for one in some]).double() for some in (ours, theirs))
        spread, error = float(other.std()), 5 * (2 / mine.numel()) ** 0.5
        assert float(mine.mean()) == pytest.approx(float(other.mean()), abs=error * spread + 1e-9), tensor
        assert float(mine.std()) == pytest.approx(spread, rel=0.01 + error), tensor
        # The largest tells a uniform from a normal distribution of the same spread.
        assert float(mine.abs().max()) == pytest.approx(float(other.abs().max()), rel=0.35), tensor


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [("mu-cifar10", 2_693_578), ("owen-cifar10", 119_098), ("pulfer-mnist", 1_642), ("bourke-food", 85_799_427)],
)
def test_the_recipes_have_the_parameters_of_the_tutorials(recipe: str, parameters: int) -> None:
    with torch.device("meta"):
        model = build(RECIPES[recipe].model)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_dropout_is_where_the_slides_have_it() -> None:
    """With the same draws the same numbers fall away: after the GELU, and after the second layer; nowhere else."""
    config, make = PAIRS["bourke"]
    theirs, ours = with_random_numbers(make()).train(), build(config, Regularise(dropout=0.1)).train()
    ours.load_state_dict(theirs.tensors())
    images = images_for(config)
    torch.manual_seed(3)
    expected = theirs(images)
    # `forward` computes the class token alone in the last block, so its draws differ: without that shortcut.
    torch.manual_seed(3)
    (logits,) = ours.logits(ours.features(images))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, theirs.eval()(images))


def test_what_has_no_place_in_a_tutorial_is_refused_in_a_sentence() -> None:
    with pytest.raises(RecipeError, match=r"model.kind mu is its tutorial's model, which has one model.positions"):
        RECIPES["mu-cifar10"].changed({"model.positions": "none"})
    with pytest.raises(RecipeError, match="model.kind bourke leaves no branches out"):
        build(BourkeConfig(**SIZES), Regularise(stochastic_depth=0.1))
    with pytest.raises(RecipeError, match="model.kind is muu, and should be vit, mu, owen, .*, or a class"):
        RECIPES["mu-cifar10"].changed({"model.kind": "muu"})


@pytest.mark.parametrize("recipe", ["mu-cifar10", "owen-cifar10", "pulfer-mnist", "bourke-food"])
def test_the_hidden_layer_of_the_mlp_can_be_set_as_in_the_tutorials_and_its_kind_cannot(recipe: str) -> None:
    """Mu's and Pulfer's `mlp_ratio`, Owen's `intermediate_size`, Bourke's `mlp_size`."""
    changed = RECIPES[recipe].changed({"model.mlp.ratio": 2, "model.depth": 1})
    with torch.device("meta"):
        matrix = build(changed.model).get_parameter("blocks.0.mlp.fc1.weight")
    assert matrix.shape[0] == 2 * matrix.shape[1]
    with pytest.raises(RecipeError, match="which has one model.mlp"):
        RECIPES[recipe].changed({"model.mlp": "swiglu"})


def test_sliced_heads_are_a_plain_vit_with_zeros_in_its_matrices() -> None:
    config, _ = PAIRS["pulfer"]
    model = build(config).eval()
    assert isinstance(model, ViT)
    plain = model.plain()
    assert type(plain) is ViT and type(plain.config) is ViTConfig
    images = images_for(config)
    torch.testing.assert_close(plain(images), model(images), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(attention_maps(plain, images).shares, attention_maps(model, images).shares)


@pytest.mark.parametrize("kind", ["mu", "owen", "pulfer", "bourke"])
def test_a_tutorials_model_is_trained_kept_and_asked_like_any_other(kind: str, tmp_path: Path) -> None:
    sizes = {"kind": kind, "image_size": 8, "patch_size": 2, "channels": 1, "width": 8, "depth": 2, "heads": 2}
    recipe = quick_digits().changed({"model": {**sizes, "classes": 10}})
    run = train(recipe, out=tmp_path / kind)
    assert Run.load(run.folder).recipe == recipe
    classifier = Classifier.load(run)
    assert classifier.model.config == recipe.model and type(classifier.model).__name__.lower() == f"{kind}vit"
    assert classifier.model.at((16, 8)).config.height_width == (16, 8)


def test_a_softmax_before_the_loss_is_no_part_of_the_answer() -> None:
    logits, labels = torch.tensor([[8.0, 0.0], [0.0, 8.0]]), torch.tensor([0, 1])
    objective = DoubleSoftmax()
    twice = cross_entropy(logits.softmax(dim=1), labels)
    assert objective.of_logits(logits, labels) == twice == objective.validation_loss(logits, labels)
    assert Classification().validation_loss(logits, labels) < 0.001 < 0.31 < twice  # it cannot fall below ln(1 + 1/e)


@EACH
def test_other_libraries_get_the_same_outputs_or_a_sentence(name: str, tmp_path: Path) -> None:
    config, make = PAIRS[name]
    model = build(config).eval()
    model.load_state_dict(with_random_numbers(make()).tensors())
    C, images, written = config.channels, images_for(config), list[str]()
    pixels = Preprocess(image_size=config.height_width, channels=C, mean=(0.0,) * C, std=(1.0,) * C)
    weights = Weights(model, pixels, tuple(str(number) for number in range(config.classes)))
    for to in WRITERS:
        try:
            other = load_pretrained(convert(weights, to, tmp_path / to)).model.eval()
        except WeightsError as error:
            assert "cannot hold this model" in str(error)
            continue
        written.append(to)
        # Some take colour alone: a grey picture is the same in each of its channels.
        torch.testing.assert_close(other(images.expand(-1, other.config.channels, -1, -1)), model(images))
    assert written == (["hf", "timm", "torchvision", "npz"] if name == "mu" else ["timm"])


def test_weights_of_another_kind_are_refused_in_a_sentence(trained: Run, tmp_path: Path) -> None:
    sizes = {"kind": "bourke", "image_size": 8, "patch_size": 2, "channels": 1, "width": 16, "depth": 1, "heads": 2}
    recipe = quick_digits().changed({"model": {**sizes, "classes": 10}, "init.weights": str(trained.folder)})
    with pytest.raises(RecipeError, match="model.kind is bourke, and .* has vit: the recipe's model must be"):
        train(recipe, out=tmp_path / "run")


def test_the_walk_resamples_positions_as_dino_does(tmp_path: Path) -> None:
    """From DINO's own weights, small: the features at another size are those that DINO's own code gave."""
    fixture = FIXTURES / "dino_reference"
    for number in range(12):
        picture = Image.fromarray(np.full((24, 24, 3), 20 * number, np.uint8))
        folder = tmp_path / "pictures" / ("dark" if number < 6 else "light")
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number}.png")
    sizes = {"width": 36, "depth": 3, "heads": 3, "patch_size": 4, "image_size": 20}
    small = {f"model.{name}": value for name, value in sizes.items()}
    settings = {"data.source": str(tmp_path / "pictures"), "init.weights": str(fixture), "train.epochs": 1}
    run = train(RECIPES["dino-walk"].changed({**small, **settings}), out=tmp_path / "run")
    model = Classifier.load(run).model
    assert model.config.resampling == "dino"
    known = load_file(fixture / "io.safetensors")
    torch.testing.assert_close(model.features(known["image_20x20"]), known["tokens_20x20"], atol=1e-5, rtol=0)
