"""What a Swin looked at: windows put back on the picture, and the readings, grades and pages made of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from test_swin import VERSIONS, swin
from vitral import Preprocess, RecipeError, attention_maps
from vitral.look import windows
from vitral.look.explain import Explainer
from vitral.look.grading import curves, grade
from vitral.look.inspected_model import InspectedModel
from vitral.look.readings import METHODS, answer_by_head, class_attention, rollout
from vitral.model.swin import Block
from vitral.weights.own import Weights

SIZES = pytest.mark.parametrize("size", [(32, 32), (32, 64), (28, 44), (35, 30), (4, 9)], ids=str)


def weights(**settings: Any) -> Weights:
    preprocess = Preprocess(image_size=(32, 32), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    return Weights(swin(**settings), preprocess, ("a", "b", "c", "d", "e"))


@VERSIONS
@pytest.mark.parametrize("size", [(32, 32), (32, 64)], ids=str)
@pytest.mark.parametrize("number", range(4))
@torch.no_grad()
def test_what_windows_took_is_what_their_map_on_the_picture_says(number: int, size: Any, version: int) -> None:
    """Shifted or not: the values of all tokens, by the map over the whole picture, are what attention handed on."""
    model, given = swin(version=version), []
    block = [part for part in model.modules() if isinstance(part, Block)][number]
    block.attn.register_forward_pre_hook(lambda _, args: given.append(args))
    images = torch.randn(2, 3, *size)
    model(images)
    cut, grid = given[0]
    maps = windows.window_maps(model, images, number)  # (B, heads, H, W, H, W)
    torch.testing.assert_close(maps.sum((4, 5)), torch.ones(maps.shape[:4]))
    values = block.attn.queries_keys_values(cut)[2]  # (B, N, heads, K, d)
    on_map = [grid.join(head) for head in values.unbind(2)]  # each (B, H, W, d)
    taken = [torch.einsum("bijkl,bkld->bijd", maps[:, head], on_map[head]) for head in range(len(on_map))]
    expected = grid.join(block.attn(cut, grid))
    torch.testing.assert_close(block.attn.proj(torch.cat(taken, dim=3)), expected, rtol=1e-4, atol=1e-5)


def test_a_token_of_a_shifted_window_takes_from_across_the_edge_and_not_from_the_other_side() -> None:
    maps = windows.window_maps(swin(), torch.randn(1, 3, 32, 32), 1)[0].sum(0) > 1e-6  # 8 × 8 tokens, windows of 4
    assert maps[3, 3].nonzero().tolist() == [[row, column] for row in range(2, 6) for column in range(2, 6)]
    assert maps[0, 0].nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert maps[0, 7].nonzero().tolist() == [[0, 6], [0, 7], [1, 6], [1, 7]]


@SIZES
@pytest.mark.parametrize("borders", ["timm", "transformers"])
def test_maps_by_place_are_those_of_tokens_added_up(size: Any, borders: str) -> None:
    model, images = swin(borders=borders, depths=(2, 2, 2), heads=(2, 2, 4)), torch.randn(1, 3, *size)
    down, across = model.grid_of(images)
    for number, maps in windows.each_block(model, images):
        fine = windows.window_maps(model, images, number)
        H, W = fine.shape[2:4]
        times = next(times for times in (1, 2, 4) if (-(-H // times), -(-W // times)) == (down, across))
        for query in range(down * across):
            top, left = query // across * times, query % across * times
            asks = fine[:, :, top : top + times, left : left + times].flatten(2, 3).mean(dim=2)
            for key in range(down * across):
                above, before = key // across * times, key % across * times
                took = asks[:, :, above : above + times, before : before + times].sum((2, 3))
                torch.testing.assert_close(maps[:, :, query, key], took, rtol=1e-4, atol=1e-6)
    assert number == 5


@VERSIONS
@SIZES
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_map_over_the_places_of_the_last_map(method: str, size: Any, version: int) -> None:
    model, images = swin(version=version), torch.randn(2, 3, *size)
    before = model(images)
    map = METHODS[method](model, images)
    assert map.shape == (2, *model.grid_of(images)) and map.isfinite().all() and map.min() >= 0 and map.max() > 0
    if method != "class-attention":
        divides = size in [(32, 32), (32, 64)]
        assert (map.sum((1, 2)) <= 1 + 1e-5).all()  # what padding got is missing
        assert not divides or torch.allclose(map.sum((1, 2)), torch.ones(2))
    assert torch.equal(model(images), before)
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_rollout_and_class_attention_are_products_of_whole_maps() -> None:
    """Of two stages of two blocks, written down with one matrix each, and one for merging."""
    model, images = swin(), torch.randn(1, 3, 32, 32)
    maps = [windows.window_maps(model, images, number)[0] for number in range(4)]
    first, second, third, fourth = (map.flatten(3).flatten(1, 2).mean(0) for map in maps)  # (T, T)
    of = torch.arange(64)
    merged = torch.zeros(16, 64)
    merged[(of // 8) // 2 * 4 + of % 8 // 2, of] = 1 / 4
    half = [(map + torch.eye(len(map))) / 2 for map in (first, second, third, fourth)]
    row = torch.full((1, 16), 1 / 16) @ half[3] @ half[2] @ merged @ half[1] @ half[0]
    expected = (row @ (4 * merged).T).view(1, 4, 4)
    torch.testing.assert_close(rollout(model, images), expected)


def test_class_attention_is_of_the_pixels_that_a_class_is_read_from() -> None:
    """A model of one window a place: what is nothing in the logit of a class has nothing in its map."""
    model, images = swin(), torch.randn(1, 3, 32, 32)
    both = [class_attention(model, images, torch.tensor([label]))[0] for label in (0, 1)]
    assert not torch.allclose(both[0], both[1])
    torch.nn.init.zeros_(model.get_parameter("head.weight"))
    assert not class_attention(model, images, torch.tensor([0])).any()


def test_heads_of_a_later_stage_are_more() -> None:
    model, images = swin(), torch.randn(1, 3, 32, 32)
    assert answer_by_head(model, images, [0, 1]).shape == (1, 2, 2, 4, 4)
    assert answer_by_head(model, images, -1).shape == (1, 1, 4, 4, 4)


def test_of_all_tokens_it_has_no_map_and_says_which_it_has() -> None:
    with pytest.raises(RecipeError, match="vitral.look.windows.window_maps has the maps of a block"):
        attention_maps(swin(), torch.randn(1, 3, 32, 32))
    with pytest.raises(RecipeError, match="fused by mean, and nothing is discarded"):
        rollout(swin(), torch.randn(1, 3, 32, 32), fuse="max")


@pytest.mark.parametrize("size", [(32, 32), (35, 30)], ids=str)
def test_where_no_patch_can_be_left_out_it_is_painted_over(size: Any) -> None:
    model, images = swin(), torch.randn(1, 3, *size)
    down, across = model.grid_of(images)
    map = torch.rand(1, down, across)
    both = curves(model, images, map, torch.tensor([2]), steps=4)
    kept = round(float(both.shares_kept[1]) * down * across)
    painted = images.clone()
    for place in map.flatten().argsort(descending=True)[: down * across - kept].tolist():
        top, left = place // across * 8, place % across * 8
        painted[:, :, top : top + 8, left : left + 8] = 0
    expected = model(painted).softmax(1)[0, 2]
    torch.testing.assert_close(both.deletion[0, 1], expected.detach())
    told = grade(model, images[0], map[0], 2)
    assert told.painted and "while patches are painted over in the order of this map" in told.sentence


def test_a_map_of_the_patch_that_decides_is_better_than_chance() -> None:
    """One window is the whole map, and its head reads how bright the picture is: one patch is bright."""
    model = swin(window=8)
    images = torch.zeros(1, 3, 32, 32)
    images[:, :, 8:16, 16:24] = 3.0
    label = int((model(images) - model(torch.zeros_like(images)))[0].argmax())
    map = torch.zeros(4, 4)
    map[1, 2] = 1.0
    result = grade(model, images[0], map, label)
    assert result.better == (result.deletion < result.random[0])
    assert result.deletion < result.random_deletion


def test_look_explains_a_swin_with_maps_heads_and_a_grade(tmp_path: Path) -> None:
    explainer = Explainer(InspectedModel("swin", weights()), blocks="all")
    picture = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)).save(picture)
    explanation = explainer.explain(picture)
    assert set(explanation.maps) == set(METHODS) and all(map.shape == (4, 4) for map in explanation.maps.values())
    assert [maps.shape for maps in explanation.heads.values()] == [(2, 4, 4), (2, 4, 4), (4, 4, 4), (4, 4, 4)]
    assert explanation.patch_size == 8 and "painted over" in explanation.verdict
    assert explanation.grade is not None and explanation.grade.untrained is not None


def test_the_glass_has_each_block_and_says_that_no_patch_can_be_left_out() -> None:
    inspected = InspectedModel("swin", weights())
    facts = inspected.page_facts()
    assert facts["heads"] == [2, 2, 4, 4] and facts["grid"] == (4, 4) and facts["answer"] == list(range(16))
    assert facts["fixed"] == "A Swin Transformer looks at whole windows: no patch can be left out."
    pixels = np.zeros((3, 32, 32), np.uint8)
    blocks = [np.frombuffer(block, "<f2").reshape(-1, 16, 16) for block in inspected.maps(pixels)]
    assert sum(block.nbytes for block in blocks) == inspected.maps_bytes
    assert [len(block) for block in blocks] == facts["heads"]
    for block in blocks:
        np.testing.assert_allclose(block.astype(np.float32).sum(axis=2), 1, atol=2e-3)
