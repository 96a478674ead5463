"""Grades: patches are really left out in the order of the map, and chance is really chance."""

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import TINY, slowly, vit
from vitral import Run, ViT, ViTConfig
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.errors import DataError, RecipeError
from vitral.look.grading import RANDOM, Grade, curves, grade, scores, with_random_weights
from vitral.look.readings import class_attention
from vitral.model import build
from vitral.model.kinds import PulferConfig


@pytest.fixture
def model() -> ViT:
    """One that has opinions: all its weights are random, its head too."""
    return with_random_weights(ViT(TINY))


def opinionated(**parts: object) -> ViT:
    return with_random_weights(ViT(ViTConfig.read({**TINY.write(), **parts})))


def digits(count: int, run: Run) -> Tensor:  # → (count, C, 8, 8)
    index, preprocess = open_source(Data(source="digits")), run.weights().preprocess
    return torch.stack([preprocess(index.storage.read(int(number))) for number in index.of("test")[:count]])


def test_curves_are_those_of_patches_left_out_by_hand(model: ViT) -> None:
    images, maps, classes = torch.randn(2, 3, 32, 32), torch.rand(2, 4, 4), torch.tensor([3, 7])
    found = curves(model, images, maps, classes, steps=4, temperature=0.5)
    assert found.shares_kept.tolist() == [1.0, 11 / 16, 6 / 16, 1 / 16]
    for one in range(2):
        falling = maps[one].flatten().argsort(descending=True)
        for step, count in enumerate((16, 11, 6, 1)):
            for order, curve in ((falling.flip(0), found.deletion), (falling, found.insertion)):
                keep = order[None, :count].sort().values
                expected = (model(images[one : one + 1], keep) / 0.5).softmax(dim=1)[0, classes[one]]
                torch.testing.assert_close(curve[one, step], expected, rtol=0, atol=1e-6)


def test_what_a_map_deletes_its_negative_inserts(model: ViT) -> None:
    images, maps, classes = torch.randn(3, 3, 32, 32), torch.randn(3, 4, 4), torch.tensor([0, 1, 2])
    one, other = curves(model, images, maps, classes), curves(model, images, -maps, classes)
    assert torch.equal(one.deletion, other.insertion) and torch.equal(one.insertion, other.deletion)


def test_a_score_is_the_mean_of_its_curve_however_the_steps_lie() -> None:
    shares = torch.tensor([1.0, 0.9, 0.2])
    assert scores(shares, torch.full((2, 3), 0.7)).tolist() == pytest.approx([0.7, 0.7])
    assert scores(shares, torch.tensor([1.0, 1.0, 0.0])).item() == pytest.approx((0.1 + 0.35) / 0.8)
    assert scores(torch.ones(1), torch.tensor([[0.3]])).tolist() == pytest.approx([0.3])  # one patch


def test_the_patches_that_matter_most_have_the_lowest_deletion(trained: Run) -> None:
    model, images = vit(trained.weights().model), digits(24, trained)
    whole, said = model(images).softmax(dim=1).max(dim=1)
    # What the answer loses without each patch alone: the plainest explanation that there is.
    others = torch.tensor([[number for number in range(16) if number != out] for out in range(16)])
    alone = torch.stack(
        [model(images, keep.expand(24, -1)).softmax(dim=1).gather(1, said[:, None])[:, 0] for keep in others]
    )
    occlusion = (whole - alone).T.reshape(24, 4, 4).detach()
    best, worst = (curves(model, images, maps, said).deletion_scores.mean() for maps in (occlusion, -occlusion))
    chance = curves(model, images, torch.rand(24, 4, 4), said).deletion_scores.mean()
    assert best < chance < worst


def test_equal_patches_do_not_come_in_reading_order(model: ViT) -> None:
    image, label = torch.randn(1, 3, 32, 32), torch.tensor([1])
    flat = curves(model, image, torch.zeros(1, 4, 4), label)
    reading = curves(model, image, -torch.arange(16.0).view(1, 4, 4), label)
    assert not torch.allclose(flat.deletion, reading.deletion)
    assert torch.equal(flat.deletion, curves(model, image, torch.ones(1, 4, 4), label).deletion)


def test_a_model_that_has_learnt_nothing_gets_no_praise() -> None:
    found = grade(ViT(TINY).eval(), torch.rand(3, 32, 32), torch.rand(4, 4), 0)
    assert not found.better and found.as_good == RANDOM
    assert found.sentence.startswith("No better than chance: ") and "19 of these do as well" in found.sentence


def made(deletion: float, random: list[float], untrained: float | None = None) -> Grade:
    """A grade with these scores."""
    values = torch.tensor([deletion, 0.9, *random])
    return Grade(torch.tensor([1.0, 0.5, 0.1]), values[:, None].expand(-1, 3), untrained)


def test_better_is_better_than_every_random_map_and_the_sentence_says_which_it_is() -> None:
    random = [0.3, 0.4] + 17 * [0.5]
    good, unclear, bad = made(0.2, random, untrained=0.45), made(0.35, random), made(0.5, random)
    assert (good.better, unclear.better, bad.better) == (True, False, False)
    assert "the answer keeps 20% on average, and 48% in 19 random orders (30% to 50%)." in good.sentence
    assert "learnt nothing" not in good.sentence
    assert unclear.sentence.startswith("Not shown to be better than chance") and "1 of these does" in unclear.sentence
    assert bad.sentence.startswith("No better than chance") and "19 of these do" in bad.sentence
    assert "But the map of a model that has learnt nothing does as well (15%)." in made(0.2, random, 0.15).sentence
    assert good.write()["better_than_chance"] and good.write()["untrained_deletion"] == 0.45
    assert "untrained_deletion" not in bad.write()


def test_grades_are_the_same_each_time_and_each_image_has_its_own_luck(model: ViT) -> None:
    images, map = torch.randn(2, 3, 32, 32), torch.rand(4, 4)
    first, again, other = (grade(model, images[number], map, 0) for number in (0, 0, 1))
    assert torch.equal(first.curves, again.curves) and first.write() == again.write()
    found = curves(model, images[:1], map[None], torch.tensor([0]))
    assert first.deletion == pytest.approx(found.deletion_scores.item(), abs=1e-6)
    assert first.insertion == pytest.approx(found.insertion_scores.item(), abs=1e-6)
    assert not torch.equal(first.curves[2:].argsort(dim=0), other.curves[2:].argsort(dim=0))


def test_a_random_map_is_better_than_chance_one_time_in_twenty(trained: Run) -> None:
    model, images = vit(trained.weights().model), digits(120, trained)
    said = model(images).argmax(dim=1).tolist()
    better = [
        grade(model, image, torch.rand(4, 4), label, steps=6).better for image, label in zip(images, said, strict=True)
    ]
    assert 0 < sum(better) <= 14  # 6 expected; binomial, outside this 4 times in 1,000


@pytest.mark.parametrize(
    "parts",
    [
        {"tokens": {"kind": "none"}, "pool": "mean"},
        *slowly(
            {"tokens": {"kind": "class", "registers": 3}},
            {"tokens": {"kind": "distilled"}},
            {"pool": "class-mean"},
            {"positions": {"kind": "sincos-2d"}, "image_size": [16, 48]},
        ),
    ],
    ids=str,
)
def test_every_kind_of_model_can_be_graded_down_to_one_patch(parts: dict[str, object]) -> None:
    model = opinionated(**parts)
    image = torch.randn(3, *model.config.height_width)
    found = grade(model, image, torch.rand(model.config.grid), 2)
    assert found.curves.isfinite().all() and found.curves.shape[0] == 2 + RANDOM
    assert found.shares_kept[-1] == 1 / np.prod(model.config.grid)


def test_relative_positions_and_maps_of_another_shape_are_answered_with_a_sentence(model: ViT) -> None:
    with pytest.raises(RecipeError, match="no patch can be left out"):
        grade(opinionated(positions={"kind": "relative"}), torch.rand(3, 32, 32), torch.rand(4, 4), 0)
    with pytest.raises(DataError, match=r"it takes \(1, 4, 4\)"):
        curves(model, torch.rand(1, 3, 32, 32), torch.rand(1, 4, 3), torch.tensor([0]))


def test_random_weights_are_others_and_draw_nothing_from_the_programs_own_numbers(trained: Run) -> None:
    model, state = vit(trained.weights().model), torch.get_rng_state()
    untrained = with_random_weights(model)
    assert torch.equal(torch.get_rng_state(), state) and untrained.config == model.config and not untrained.training
    assert not torch.equal(untrained.head.weight, model.head.weight)  # type: ignore[arg-type]
    assert torch.equal(untrained.head.weight, with_random_weights(model).head.weight)  # type: ignore[arg-type]
    assert class_attention(untrained, digits(2, trained)).std() > 0  # its head gives gradients


def test_random_weights_are_of_the_same_kind_of_model() -> None:
    model = vit(build(PulferConfig(image_size=8, patch_size=2, channels=1, width=8, depth=1, heads=2, classes=3)))
    untrained = with_random_weights(model)
    assert [*untrained.state_dict()] == [*model.state_dict()] and type(untrained) is type(model)
