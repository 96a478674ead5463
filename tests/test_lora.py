"""LoRA: thin matrices learn beside frozen ones, and in the end there is a plain model."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from conftest import FIXTURES, slowly, stopped
from test_resume import assert_same
from vitral import Classifier, RecipeError, Run, Started, ViTConfig, events, load_pretrained, train
from vitral.model import build
from vitral.model.config import ModelConfig
from vitral.model.interface import Model
from vitral.model.kinds import BourkeConfig, MuConfig, OwenConfig, PulferConfig
from vitral.model.lora import LoraLinear, add_lora, merged
from vitral.recipe import Recipe
from vitral.recipes.choose import choose
from vitral.training.feature_cache import CachedFeatures
from vitral.training.preparation import prepared

WEIGHTS = str(FIXTURES / "timm_vit")
SMALL = {"image_size": 16, "patch_size": 8, "width": 32, "depth": 2, "heads": 4, "classes": 5}
OWN = Path(__file__).parent / "own"


def recipe(pictures: Path, **settings: object) -> Recipe:
    given = {"init.weights": WEIGHTS, "init.mode": "lora", "train.epochs": 3, "train.batch_size": 8}
    given |= {"train.baseline": False} | {name.replace("__", "."): value for name, value in settings.items()}
    return choose(str(pictures), given).recipe


def adapted(config: ModelConfig, rank: int = 4, alpha: float = 6.0) -> tuple[Model, Model]:
    """A model in double precision; and the same with thin matrices beside it that are anything but zero."""
    model = build(config).double()
    nn.init.normal_(model.get_submodule("head").get_parameter("weight"))
    lora = build(config).double()
    lora.load_state_dict(model.state_dict())
    add_lora(lora, rank, alpha)
    for layer in lora_layers(lora):
        nn.init.normal_(layer.lora_b.weight, std=0.1)
    return model.eval(), lora.eval()


def lora_layers(model: nn.Module) -> list[LoraLinear]:
    return [layer for layer in model.modules() if isinstance(layer, LoraLinear)]


def learnt(run: Run) -> dict[str, Tensor]:
    """What was added to each tensor of the weights that a run began with, but for the head."""
    before, after = load_pretrained(WEIGHTS).model.state_dict(), run.weights().model.state_dict()
    assert before.keys() == after.keys()
    return {name: after[name] - before[name] for name in before if not name.startswith("head")}


def test_a_layer_computes_what_the_paper_writes() -> None:
    """h = W₀ x + α/r · B A x (equation 3), and its gradients by hand."""
    W, bias, x, g = (torch.randn(*shape, dtype=torch.float64) for shape in ((6, 5), (6,), (3, 5), (3, 6)))
    plain = nn.Linear(5, 6).double()
    plain.load_state_dict({"weight": W, "bias": bias})
    layer = LoraLinear(plain, rank=2, alpha=3.0)
    nn.init.normal_(layer.lora_b.weight)
    A, B = layer.lora_a.weight.detach(), layer.lora_b.weight.detach()
    h = layer(x)
    torch.testing.assert_close(h, x @ W.T + bias + 1.5 * x @ A.T @ B.T)
    h.backward(g)
    torch.testing.assert_close(layer.lora_b.weight.grad, 1.5 * g.T @ (x @ A.T))
    torch.testing.assert_close(layer.lora_a.weight.grad, 1.5 * (g @ B).T @ x)
    torch.testing.assert_close(layer.merged()(x), h)


def test_gradients_of_a_whole_model_are_those_of_finite_differences() -> None:
    _, model = adapted(ViTConfig.model_validate({**SMALL, "width": 8, "depth": 1, "heads": 2}), rank=2)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    thin = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if ".lora_" in name}

    def loss(*values: Tensor) -> Tensor:
        result: Tensor = functional_call(model, dict(zip(thin, values, strict=True)), (images,)).logsumexp(1).sum()
        return result

    assert len(thin) == 8 and torch.autograd.gradcheck(loss, tuple(thin.values()), fast_mode=True)


@pytest.mark.parametrize("config", [MuConfig, OwenConfig, PulferConfig, BourkeConfig, ViTConfig])
def test_merged_it_is_a_plain_model_with_the_same_outputs(config: type[ViTConfig]) -> None:
    model, lora = adapted(config.model_validate(SMALL))
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    plain = merged(lora)
    assert [(name, type(part)) for name, part in plain.named_modules()] == [
        (name, type(part)) for name, part in model.named_modules()
    ]
    assert plain.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(plain(images), lora(images), rtol=0, atol=1e-6)
    assert (plain(images) - model(images)).abs().max() > 0.1
    assert merged(model) is model


def test_at_first_it_is_the_model_that_it_was_to_the_bit(pictures: Path) -> None:
    plan = prepared(recipe(pictures))
    assert plan.start is not None and len(lora_layers(plan.learner.model)) == 4 * 2
    before, model = plan.start.model.eval(), plan.learner.model.eval()
    images = torch.randn(2, model.config.channels, *model.config.height_width)
    assert torch.equal(model.features(images), before.features(images))


def test_what_was_frozen_stays_and_what_is_added_is_of_low_rank(pictures: Path, tmp_path: Path) -> None:
    run = train(recipe(pictures, init__rank=3), out=tmp_path / "run")
    matrices = {
        name for name in learnt(run) if name.startswith("blocks.") and name.endswith("weight") and "norm" not in name
    }
    for name, change in learnt(run).items():
        if name not in matrices:
            assert not change.any(), name
            continue
        values = torch.linalg.svdvals(change.double())
        assert values[2] > 0 and values[3:].max() < 1e-4 * values[0], name
    assert Classifier.load(run.folder).predict(next(pictures.rglob("*.png"))).label in ("bright", "dark")
    assert "lora" not in (run.folder / "model.safetensors").read_bytes()[:20_000].decode(errors="ignore")


def test_only_thin_matrices_and_the_head_have_gradients_and_states(pictures: Path, tmp_path: Path) -> None:
    happening = events(recipe(pictures, init__freeze=1), out=tmp_path / "run")
    plan = next(event.plan for event in happening if isinstance(event, Started))
    next(event for event in happening if getattr(event, "step", 0) == 2)
    happening.close()
    learner = plan.learner
    learns = {name for name, p in learner.model.named_parameters() if p.requires_grad}
    inside = {
        f"blocks.1.{layer}.{thin}.weight"
        for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
        for thin in ("lora_a", "lora_b")
    }
    assert learns == {*inside, "head.weight", "head.bias"}
    held = {id(p) for one in learner.optimizers.optimizers for p in one.state}
    assert held == {id(p) for p in learner.model.parameters() if p.requires_grad}
    rates = [part.rate for part in learner.optimizers.groups(learner.layers) if part.learns]
    assert len(set(rates)) == 1


def test_blocks_below_are_computed_once(pictures: Path) -> None:
    plan = prepared(recipe(pictures, init__freeze=1, data__augment__crop=0.0, data__augment__flip="none"))
    assert isinstance(plan.batches, CachedFeatures)
    for layer in lora_layers(plan.learner.model):
        nn.init.normal_(layer.lora_b.weight)
    nn.init.normal_(plan.learner.model.get_submodule("head").get_parameter("weight"))
    _, batch = next(plan.batches.starting_at(1))
    images = plan.preprocess.normalise(torch.from_numpy(plan.preprocess.centre(plan.pack.images[batch.samples])))
    model = plan.learner.model.eval()
    torch.testing.assert_close(plan.batches.forward(model, batch.images), model(images))


def test_earlier_layers_learn_less_where_that_is_asked_for(pictures: Path) -> None:
    learner = prepared(recipe(pictures, train__layer_decay=0.5)).learner
    rates = {part.name: part.rate for part in learner.optimizers.groups(learner.layers) if part.learns}
    assert list(rates) == ["blocks.0", "blocks.1", "head"]
    assert [low / high for low, high in pairwise(rates.values())] == pytest.approx([0.5, 0.5])


EVERYTHING = {
    "train.ema": 0.9,
    "train.choose": "loss",
    "train.accumulate": 2,
    "train.regularise.dropout": 0.1,
    "train.regularise.stochastic_depth": 0.2,
    "init.rank": 2,
}


@pytest.mark.parametrize("after", [4, *slowly(1, 9)])
def test_stopped_anywhere_it_goes_on_to_the_same_bits(pictures: Path, tmp_path: Path, after: int) -> None:
    asked = recipe(pictures, **{name.replace(".", "__"): value for name, value in EVERYTHING.items()})
    whole = train(asked, out=tmp_path / "whole")
    stopped(asked, tmp_path / "run", after)
    assert not any("lora" in name for name in Run.load(tmp_path / "run").weights().model.state_dict())
    assert_same(train(out=tmp_path / "run", resume=True), whole)


def test_with_short_numbers_it_learns_too(bfloat16: None, pictures: Path, tmp_path: Path) -> None:
    run = train(recipe(pictures, train__precision="bfloat16"), out=tmp_path / "run")
    assert learnt(run)["blocks.0.attn.qkv.weight"].any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch, by its own compiler
def test_compiled_it_learns_the_same(pictures: Path, tmp_path: Path) -> None:
    plain, compiled = (
        train(recipe(pictures, train__compile=word, train__epochs=1), out=tmp_path / word) for word in ("no", "yes")
    )
    for name, change in learnt(plain).items():
        torch.testing.assert_close(learnt(compiled)[name], change, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train__optimizer": "muon"}, "muon is for whole matrices"),
        ({"init__freeze": 1, "init__thaw": 0.5}, "leave init.thaw out"),
        (
            {"init__mode": "gentle", "init__rank": 4},
            "init.rank and init.alpha go with init.mode lora, and it is gentle",
        ),
        ({"init__rank": 33}, "init.rank is 33, and the thinnest matrix beside which it learns is 32 wide"),
        ({"init__freeze": 2}, "has none above the first 2 blocks"),
        ({"init__views": 2}, "init.views is for frozen blocks, and none is"),
        ({"init__rank": 0}, "init.rank"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    pictures: Path, settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        prepared(recipe(pictures, **settings))


def test_a_new_model_has_nothing_to_learn_beside() -> None:
    with pytest.raises(RecipeError, match="need init.weights"):
        Recipe().changed({"init.mode": "lora"})


@pytest.fixture
def own_run(tmp_path: Path, pictures: Path) -> Recipe:
    """A recipe that goes on from a run of a model in a file of one's own, by LoRA. Of which is said by its kind."""
    for name in ("mixer.py", "encoder.py"):
        shutil.copy(OWN / name, tmp_path)
    return Recipe().changed({"data.source": str(pictures), "train.epochs": 1})


@pytest.mark.parametrize("name", ["mixer.py:Mixer", "encoder.py:Encoder"])
def test_ones_own_model_learns_too_unless_it_goes_round_its_layers(own_run: Recipe, tmp_path: Path, name: str) -> None:
    own = {"model": {"kind": f"{tmp_path}/{name}", "image_size": 8, "channels": 3, "classes": 0}}
    before = train(own_run.changed(own), out=tmp_path / "before")
    again = own_run.changed({**own, "init.weights": str(before.folder), "init.mode": "lora", "init.rank": 2})
    code = [tmp_path / name.split(":")[0]]
    if "encoder" in name:
        with pytest.raises(RecipeError, match="uses weights without calling the layer that holds them"):
            train(again, out=tmp_path / "after", code=code)
        return
    after = train(again, out=tmp_path / "after", code=code).weights(code).model.state_dict()
    changed = {
        name for name, tensor in before.weights(code).model.state_dict().items() if not tensor.equal(after[name])
    }
    assert "blocks.0.tokens.weight" in changed and "embed.weight" not in changed and "norm.weight" not in changed


def test_a_recipe_with_lora_is_written_and_read(pictures: Path) -> None:
    plain, ranked = recipe(pictures), recipe(pictures, init__rank=16, init__alpha=4.0)
    assert "rank" not in plain.to_toml() and "rank = 16" in ranked.to_toml()
    assert Recipe.from_toml(plain.to_toml()) == plain and Recipe.from_toml(ranked.to_toml()) == ranked
