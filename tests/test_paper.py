"""The trainings of the paper: their numbers are those of its table 3, and its models learn."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import vit_config
from vitral import Recipe, RecipeError, ViT, train
from vitral.data.batches import Batch
from vitral.data.config import Augment
from vitral.model import build
from vitral.model.config import ModelConfig, Stem, ViTConfig
from vitral.model.resnet_config import ResNetConfig
from vitral.recipes import RECIPES, about, find_recipe
from vitral.training.config import SGD, AdamW
from vitral.training.learner import Learner

# Dosovitskiy et al. 2021, table 3, as printed: models, dataset, epochs, base LR, LR decay,
# weight decay, dropout. Then the recipes of the row, where two are two numbers of epochs.
TABLE_3 = """
ViT-B/{16,32} | JFT-300M     | 7     | 8e-4  | linear | 0.1  | 0.0 | paper-b16-jft paper-b32-jft
ViT-L/32      | JFT-300M     | 7     | 6e-4  | linear | 0.1  | 0.0 | paper-l32-jft
ViT-L/16      | JFT-300M     | 7/14  | 4e-4  | linear | 0.1  | 0.0 | paper-l16-jft-7 paper-l16-jft
ViT-H/14      | JFT-300M     | 14    | 3e-4  | linear | 0.1  | 0.0 | paper-h14-jft
R50x{1,2}     | JFT-300M     | 7     | 1e-3  | linear | 0.1  | 0.0 | paper-r50x1-jft paper-r50x2-jft
R101x1        | JFT-300M     | 7     | 8e-4  | linear | 0.1  | 0.0 | paper-r101x1-jft
R152x{1,2}    | JFT-300M     | 7     | 6e-4  | linear | 0.1  | 0.0 | paper-r152x1-jft paper-r152x2-jft
R50+ViT-B/{16,32} | JFT-300M | 7     | 8e-4  | linear | 0.1  | 0.0 | paper-r50-b16-jft paper-r50-b32-jft
R50+ViT-L/32  | JFT-300M     | 7     | 2e-4  | linear | 0.1  | 0.0 | paper-r50-l32-jft
R50+ViT-L/16  | JFT-300M     | 7/14  | 4e-4  | linear | 0.1  | 0.0 | paper-r50-l16-jft-7 paper-r50-l16-jft
ViT-B/{16,32} | ImageNet-21k | 90    | 1e-3  | linear | 0.03 | 0.1 | paper-b16-imagenet21k paper-b32-imagenet21k
ViT-L/16      | ImageNet-21k | 30/90 | 1e-3  | linear | 0.03 | 0.1 | paper-l16-imagenet21k-30 paper-l16-imagenet21k
ViT-L/32      | ImageNet-21k | 30/90 | 1e-3  | linear | 0.03 | 0.1 | paper-l32-imagenet21k-30 paper-l32-imagenet21k
ViT-B/{16,32} | ImageNet     | 300   | 3e-3  | cosine | 0.3  | 0.1 | paper-b16-imagenet paper-b32-imagenet
ViT-L/{16,32} | ImageNet     | 300   | 3e-3  | cosine | 0.3  | 0.1 | paper-l16-imagenet paper-l32-imagenet
"""  # ImageNet-21k has L/{16,32} in one row, and ImageNet all four, as ViT-*
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE_3.strip().splitlines()]

# Table 1: layers, width, MLP size, heads, parameters in millions.
TABLE_1 = {"B": (12, 768, 3072, 12, 86), "L": (24, 1024, 4096, 16, 307), "H": (32, 1280, 5120, 16, 632)}
PICTURES = {"JFT-300M": 303e6, "ImageNet-21k": 14.2e6, "ImageNet": 1.28e6}
LARGE = [
    "paper-l16-imagenet", "paper-l32-imagenet21k", "paper-h14-jft", "paper-r50x2-jft", "paper-r101x1-jft",
    "paper-r152x1-jft", "paper-r152x2-jft", "paper-r50-b32-jft", "paper-r50-l32-jft", "paper-r50-l16-jft",
]  # fmt: skip
PAPER = [name for name in RECIPES if name.startswith("paper-")]
FINETUNED = {
    "paper-b16-finetune": 384,
    "paper-b32-finetune": 384,
    "paper-l16-finetune": 512,
    "paper-l32-finetune": 384,
    "paper-h14-finetune": 518,
}


def test_the_table_has_every_recipe_once() -> None:
    assert sorted(name for row in ROWS for name in row[-1].split()) == sorted(set(PAPER) - set(FINETUNED))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_a_recipe_has_the_numbers_of_its_row(row: list[str]) -> None:
    models, dataset, epochs, rate, decay, weight_decay, dropout, named = row
    recipes = [RECIPES[name] for name in named.split()]
    name, numbers = re.fullmatch(r"(.*?)\{?([\d,]+)\}?", models).groups()  # type: ignore[union-attr]
    asked = [(f"{name}{one}", int(times)) for one in numbers.split(",") for times in epochs.split("/")]
    for recipe, recipe_name, (model, times) in zip(recipes, named.split(), asked, strict=True):
        told, steps = recipe.train, int(PICTURES[dataset] / 4096) * times
        assert told.epochs == times
        check_model(recipe.model, model)
        assert told.optimizer == AdamW(learning_rate=float(rate), betas=(0.9, 0.999), weight_decay=float(weight_decay))
        assert (told.schedule.kind, told.regularise.dropout) == (decay, float(dropout))
        assert (told.batch_size, recipe.model.image_size) == (4096, 224)
        assert told.warmup * steps == pytest.approx(10_000, rel=0.005)
        assert told.clip == (1.0 if dataset == "ImageNet" else 0.0)
        assert (recipe.data.source, recipe.data.augment) == ("ask", Augment(crop=0.05, flip="random"))
        assert about(recipe_name) == f"The paper's {model} on {dataset}, {times} epochs."


# Blocks of each stage of a ResNet (He et al. 2016, table 1); before a ViT of patches of 16, as the paper's section 4.1
# has it: no fourth stage, and its blocks in the third.
STAGES = {
    "R50": (3, 4, 6, 3),
    "R101": (3, 4, 23, 3),
    "R152": (3, 8, 36, 3),
    "R50+16": (3, 4, 9),
    "R50+32": (3, 4, 6, 3),
}


def check_model(config: ModelConfig, name: str) -> None:
    """Whether a model is what the table calls so: ViT-B/16, R50x1, R50+ViT-B/16."""
    backbone, _, plain = name.rpartition("ViT-")
    if not plain.startswith("R"):
        model, (size, patch) = vit_config(config), plain.split("/")
        assert (model.patch_size, model.head.kind) == (int(patch), "mlp")
        assert (model.depth, model.width, model.mlp_size, model.heads) == TABLE_1[size][:4]
        assert model.stem == (Stem(kind="resnet", depths=STAGES[f"{backbone}{patch}"]) if backbone else Stem())
        return
    layers, _, times = plain.partition("x")
    assert isinstance(config, ResNetConfig)
    assert config.depths == STAGES[layers]
    assert config.all_widths == tuple(int(times) * width for width in (64, 256, 512, 1024, 2048))


@pytest.mark.parametrize("name", FINETUNED)
def test_fine_tuning_has_the_numbers_of_the_text(name: str) -> None:
    """Appendix B.1.1, table 4 (ImageNet), and section 4.1 for what is not 384 pixels."""
    recipe, pixels = RECIPES[name], FINETUNED[name]
    told = recipe.train
    assert told.optimizer == SGD(learning_rate=0.03, momentum=0.9, weight_decay=0)
    assert (told.batch_size, told.clip, told.schedule.kind, told.budget) == (512, 1.0, "cosine", "20000steps")
    assert (recipe.model.image_size, told.ema) == (pixels, 0.0 if pixels == 384 else 0.9999)
    assert (recipe.init.weights, recipe.data.source) == ("ask", "ask")


def test_fine_tuning_without_weights_is_refused(tmp_path: Path) -> None:
    recipe = RECIPES["paper-b16-finetune"].changed({"data.source": "digits"})
    with pytest.raises(RecipeError, match=r"init.weights is not given. .*`vitral ls weights` names some"):
        train(recipe, out=tmp_path / "run")


@pytest.mark.parametrize("size", TABLE_1)
def test_the_models_have_as_many_parameters_as_table_1_says(size: str) -> None:
    """Within 1 %: it does not say with which patch and head. Here 1,000 classes, and 86.6, 304.3 and 632.0 million."""
    with torch.device("meta"):
        model = ViT(ViTConfig.named({"B": "B/16", "L": "L/16", "H": "H/14"}[size]))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(TABLE_1[size][-1], rel=0.01)


def learner_of(name: str, device: str) -> Learner:
    recipe = RECIPES[name].changed({"model.classes": 1000})
    with torch.device(device):
        return Learner(build(recipe.model, recipe.train.regularise).train(), recipe.train)


def batch_of_two(device: str) -> Batch:
    labels = torch.tensor([3, 5], device=device)
    return Batch(torch.randn(2, 3, 224, 224, device=device), labels, np.arange(2), labels)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper-b16-imagenet", "paper-r50x1-jft", "paper-r50-b16-jft"])
def test_the_base_model_takes_a_step(name: str) -> None:
    learner = learner_of(name, "cpu")
    before = {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}
    loss, _ = learner.gradients(1, batch_of_two("cpu"), 0.0)
    assert loss.item() == pytest.approx(np.log(1000), rel=1e-4)  # the head starts at zero: no class is preferred
    learner.update(1, 0.1)
    after = dict(learner.model.named_parameters())
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert all(bool(parameter.isfinite().all()) for parameter in after.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_every_number_of_the_large_models_gets_a_gradient(name: str) -> None:
    """On torch's meta device, which has shapes and no numbers: nothing here has room for these."""
    learner = learner_of(name, "meta")
    loss, _ = learner.gradients(1, batch_of_two("meta"), 0.0)
    assert loss.shape == ()
    for parameter in learner.model.parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_of_the_paper_survives_toml(name: str) -> None:
    assert Recipe.from_toml(find_recipe(name).to_toml()) == RECIPES[name]


def test_without_pictures_it_is_refused(tmp_path: Path) -> None:
    sentence = "data.source is not given. Set it to a folder of pictures, or to one of "
    with pytest.raises(RecipeError, match=sentence):
        train(RECIPES["paper-b32-jft"], out=tmp_path / "run")
    command = [sys.executable, "-m", "vitral", "train", "paper-b32-jft"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(f"Error: {sentence}")
    assert not list(tmp_path.iterdir())
