"""Training that starts from weights: what is frozen stays as it was, to the bit, and is computed once."""

import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from conftest import FIXTURES, slowly, stopped, vit, vit_config
from vitral import RecipeError, Run, RunError, Started, events, load_pretrained, train
from vitral.cli import vitral
from vitral.inference import outputs_of_pack
from vitral.recipe import Recipe
from vitral.recipes.choose import choose
from vitral.training.feature_cache import DOING, CachedFeatures
from vitral.training.preparation import prepare, prepared

WEIGHTS = str(FIXTURES / "timm_vit")


def asked(pictures: Path, **settings: object) -> Recipe:
    given = {"init.weights": WEIGHTS, "train.epochs": 3, "train.batch_size": 8, "train.baseline": False}
    return choose(str(pictures), given | {name.replace("__", "."): value for name, value in settings.items()}).recipe


def same(run: Run, name: str) -> bool:
    before, after = load_pretrained(WEIGHTS).model.state_dict(), run.weights().model.state_dict()
    return torch.equal(before[name], after[name])


def test_the_recipe_is_that_of_the_weights_and_a_few_pictures_get_a_probe(pictures: Path) -> None:
    recipe, pretrained = asked(pictures), load_pretrained(WEIGHTS)
    assert recipe.init.mode == "probe" and recipe.model.words == pretrained.model.config.words
    assert recipe.data.mean == pretrained.preprocess.mean and recipe.model.classes == 0
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_a_probe_changes_nothing_but_the_head(pictures: Path, tmp_path: Path) -> None:
    plan = prepared(asked(pictures))
    assert isinstance(plan.batches, CachedFeatures)
    learns = {name for name, parameter in plan.learner.model.named_parameters() if parameter.requires_grad}
    assert learns == {"head.weight", "head.bias"}
    run = train(asked(pictures), out=tmp_path / "run")
    names = [name for name in load_pretrained(WEIGHTS).model.state_dict() if not name.startswith("head")]
    assert all(same(run, name) for name in names)
    assert run.weights().model.state_dict()["head.weight"].abs().max() > 0
    assert run.weights().class_names == ("bright", "dark")


def test_what_was_not_done_before_is_not_told_as_done(pictures: Path) -> None:
    work = prepare(asked(pictures))
    assert [progress.done for progress in work if progress.doing == DOING][0] == 0


def test_frozen_blocks_have_no_gradient_and_no_state(pictures: Path, tmp_path: Path) -> None:
    happening = events(asked(pictures, init__mode="gentle", init__freeze=1), out=tmp_path / "run")
    plan = next(event.plan for event in happening if isinstance(event, Started))
    next(event for event in happening if getattr(event, "step", 0) == 2)
    for name, parameter in plan.learner.model.named_parameters():
        frozen = name.startswith(("blocks.0.", "patch_embed", "pos_embed", "cls_token"))
        assert parameter.requires_grad != frozen and (not frozen or parameter.grad is None)
    held = {id(parameter) for one in plan.learner.optimizers.optimizers for parameter in one.state}
    assert held == {id(parameter) for parameter in plan.learner.model.parameters() if parameter.requires_grad}
    happening.close()
    run = train(out=tmp_path / "run", resume=True)
    assert (
        same(run, "blocks.0.attn.qkv.weight") and same(run, "pos_embed") and not same(run, "blocks.1.attn.qkv.weight")
    )


@pytest.mark.parametrize("mode", ["probe", "freeze"])
@pytest.mark.parametrize("weights", ["timm_vit", "timm_vit_reg4_gap", "timm_deit_distilled", "hf_dinov2"])
def test_kept_tokens_give_what_the_whole_model_gives(pictures: Path, weights: str, mode: str) -> None:
    settings = {"init__mode": "probe"} if mode == "probe" else {"init__mode": "full", "init__freeze": 1}
    plain = {"data__augment__crop": 0.0, "data__augment__flip": "none"}
    plan = prepared(asked(pictures, init__weights=str(FIXTURES / weights), **settings, **plain))
    batches = plan.batches
    assert isinstance(batches, CachedFeatures)
    step, batch = next(batches.starting_at(1))
    model = vit(plan.learner.model).eval()
    for name in model.config.classifiers:  # they start at zero, and anything times zero is equal
        torch.nn.init.normal_(getattr(model, name).weight)
    with torch.inference_mode():
        images = torch.from_numpy(plan.preprocess.centre(plan.pack.images[batch.samples]))
        whole = model(plan.preprocess.normalise(images))
        torch.testing.assert_close(batches.forward(model, batch.images), whole, rtol=0, atol=1e-5)
    for numbers in (plan.pack.of("validation"), plan.pack.of("train")[::-2]):
        found, whole_too = batches.outputs(model, numbers), outputs_of_pack(model, plan.pack, numbers, plan.preprocess)
        for name in ("logits", "features"):
            torch.testing.assert_close(getattr(found, name), getattr(whole_too, name), rtol=0, atol=1e-5)
    assert step == 1


def test_views_are_fixed_and_come_in_turn(pictures: Path) -> None:
    flipped = asked(pictures, data__augment__flip="random", init__views=2)
    plan = prepared(flipped)
    assert isinstance(plan.batches, CachedFeatures) and len(plan.batches.train) == 2
    assert not torch.equal(plan.batches.train[0], plan.batches.train[1])
    epochs: list[dict[int, torch.Tensor]] = [{}, {}, {}]
    for step, batch in islice(plan.batches.starting_at(1), 3 * plan.batches.steps_per_epoch):
        seen = epochs[(step - 1) // plan.batches.steps_per_epoch]
        seen.update(zip(batch.samples.tolist(), batch.images, strict=True))
    first, second, third = epochs
    assert all(torch.equal(first[sample], third[sample]) for sample in first.keys() & third.keys())
    assert any(not torch.equal(first[sample], second[sample]) for sample in first.keys() & second.keys())
    anew = prepared(asked(pictures, data__augment__flip="random"))
    assert not isinstance(anew.batches, CachedFeatures)  # other pictures in every epoch: nothing to keep


def test_a_run_from_weights_resumes_to_the_bit(pictures: Path, tmp_path: Path) -> None:
    recipe = asked(pictures, init__mode="full", init__freeze=2, init__thaw=0.6, train__epochs=2)
    whole = train(recipe, out=tmp_path / "whole")
    again = train(out=stopped(recipe, tmp_path / "stopped", after=3), resume=True)
    for name, tensor in whole.weights().model.state_dict().items():
        assert torch.equal(tensor, again.weights().model.state_dict()[name])
    assert not same(whole, "blocks.0.attn.qkv.weight")  # it has thawed


@pytest.mark.slow
def test_a_measured_stem_that_thaws_resumes_to_the_bit_and_its_average_is_settled(
    pictures: Path, tmp_path: Path
) -> None:
    """Frozen, its BatchNorms stay as they are; from the thaw on they learn, with a stop in between or without."""
    given: dict[str, object] = {"train.baseline": False, "train.batch_size": 8, "data.validation": 0}
    before = train(choose(str(pictures), given | {"train.budget": "3steps"}).recipe, out=tmp_path / "first")
    given |= {"init.weights": str(before.folder), "init.freeze": 1, "init.thaw": 0.3, "train.budget": "10steps"}
    recipe = choose(str(pictures), given | {"train.ema": 0.9}).recipe
    assert recipe.init.mode == "gentle"  # who freezes some blocks does not want a probe
    whole = train(recipe, out=tmp_path / "whole")
    start, state = (run.weights().model.state_dict() for run in (before, whole))
    for after in (6, 10):
        again = train(out=stopped(recipe, tmp_path / f"stopped-{after}", after), resume=True)
        resumed = again.weights().model.state_dict()
        assert all(torch.equal(tensor, resumed[name]) for name, tensor in state.items())
    # Measured anew for the averaged weights, and not those of the last step.
    plan = prepared(recipe)
    plan.learner.average.model.load_state_dict(state)
    plan.learner.refit_norms(plan.batches, after=10, progress=1.0)
    norms = [name for name in state if name.endswith(("running_mean", "running_var"))]
    assert norms and not all(torch.equal(start[name], state[name]) for name in norms)
    for name in norms:
        torch.testing.assert_close(plan.learner.average.model.state_dict()[name], state[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["muon", *slowly("adamw", "sgd")])
def test_a_probe_from_a_run_of_our_own_keeps_all_but_the_head(pictures: Path, tmp_path: Path, optimizer: str) -> None:
    """With a whitened stem, whose BatchNorms remember things too; stopped, resumed and averaged."""
    first = choose(str(pictures), {"train.budget": "3steps", "train.baseline": False, "train.batch_size": 8}).recipe
    before = train(first, out=tmp_path / "first")
    assert vit_config(first.model).stem.kind == "whitened"
    given = {"init.weights": str(before.folder), "train.epochs": 2, "train.batch_size": 8, "train.baseline": False}
    recipe = choose(str(pictures), given | {"train.ema": 0.9, "train.optimizer": optimizer}).recipe
    whole = train(recipe, out=tmp_path / "whole")
    again = train(out=stopped(recipe, tmp_path / "stopped", after=3), resume=True)
    start, state, resumed = (run.weights().model.state_dict() for run in (before, whole, again))
    for name, tensor in state.items():
        assert torch.equal(tensor, resumed[name])
        assert name.startswith("head") or torch.equal(tensor, start[name])


def test_other_weights_in_between_are_noticed(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "weights")
    recipe = asked(pictures).changed({"init.weights": str(tmp_path / "weights")})
    run = stopped(recipe, tmp_path / "run", after=2)
    path = tmp_path / "weights" / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"norm.bias": tensors["norm.bias"] + 1}, path)
    with pytest.raises(RunError, match="are not those that .* was begun with"):
        train(out=run, resume=True)


@pytest.mark.parametrize("settings", [{"model.image_size": 48}, {"model.image_size": [48, 32]}, {"model.channels": 1}])
def test_another_size_or_grey_pictures(pictures: Path, settings: dict[str, object], tmp_path: Path) -> None:
    given = {"init.weights": WEIGHTS, "train.budget": "2steps", "train.baseline": False}
    run = train(choose(str(pictures), given | settings).recipe, out=tmp_path / "run")
    config = run.weights().model.config
    assert run.weights().preprocess.image_size == config.height_width
    assert run.weights().preprocess.channels == config.channels


def test_with_all_blocks_frozen_the_last_norm_still_learns(pictures: Path, tmp_path: Path) -> None:
    run = train(
        asked(pictures, init__mode="full", init__freeze=2, data__augment__crop=0.0, data__augment__flip="none"),
        out=tmp_path / "run",
    )
    assert not same(run, "norm.weight") and same(run, "blocks.1.mlp.fc2.weight")


def numbers(module: torch.nn.Module, at_least: int = 0) -> int:
    return sum(tensor.numel() for tensor in module.parameters() if tensor.ndim >= at_least)


def test_the_rates_are_told_part_by_part(pictures: Path) -> None:
    learner = prepared(asked(pictures, init__mode="gentle", train__optimizer__learning_rate=0.001)).learner
    told = learner.optimizers.groups(learner.layers)
    parts = {part.name: part.rate for part in told}
    assert parts["head"] == pytest.approx(0.001) and parts["blocks.1"] == pytest.approx(0.00075)
    assert parts["blocks.0"] == pytest.approx(0.001 * 0.75**2) and parts["embedding"] == pytest.approx(0.001 * 0.75**3)
    assert len(told) == len(parts) and sum(part.numbers for part in told) == numbers(learner.model)
    block, first = vit(learner.model).blocks[0], told[1]
    assert first.numbers == numbers(block) and first.decayed == numbers(block, at_least=2)  # dimensions: matrices


def test_with_weights_a_set_that_is_a_recipe_too_is_its_pictures() -> None:
    """What `vitral probe` proposes at its end."""
    asked = ["train", "digits", f"init.weights={WEIGHTS}"]
    told = CliRunner().invoke(vitral, [*asked, "train.budget=2m", "--dry-run"])
    assert told.exit_code == 0 and "As many steps as fit into 2m, of 64 pictures." in told.output, told.output
    assert f"The model is that of {WEIGHTS}" in told.output and "10 classes" in told.output
    shown = CliRunner().invoke(vitral, ["show", *asked[1:]]).output
    assert Recipe.from_toml(shown).model.stride == 8 and Recipe.from_toml(shown).data.source == "digits"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"init.freeze": 3}, "the model has 2 blocks"),
        ({"init.thaw": 0.5}, "init.thaw goes with init.freeze"),
        ({"model.width": 64}, "model.width is 64, and"),
        ({"init.mode": "probe", "init.freeze": 1}, "init.mode probe freezes all blocks"),
        ({"init.weights": "none", "init.mode": "probe"}, "need init.weights"),
        ({"init.views": 2}, "init.views is for frozen blocks"),
    ],
)
def test_what_cannot_be_is_told(pictures: Path, settings: dict[str, object], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        prepared(asked(pictures, init__mode="full").changed(settings))


def test_a_misspelt_mode_is_told(pictures: Path) -> None:
    with pytest.raises(RecipeError, match="init.mode"):
        asked(pictures, init__mode="prob")
