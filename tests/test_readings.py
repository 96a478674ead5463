"""Readings against slow, literal references, or by what has to be true of them."""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import FIXTURES, TINY, vit
from vitral import RecipeError, ViT, ViTConfig, VitralError, load_pretrained
from vitral.look.maps import attention_maps
from vitral.look.readings import (
    METHODS,
    answer_by_head,
    attention_distance,
    class_attention,
    class_token_map,
    feature_colours,
    first_filters,
    patch_features,
    position_similarity,
    resampled_positions,
    rollout,
    sine_table,
    tokens_through_depth,
    top_mass,
)
from vitral.model.config import Regularise
from vitral.model.positions import RESAMPLE

# One of each kind of token, pool, position and stem.
KINDS: dict[str, dict[str, Any]] = {
    "paper": {},
    "distilled": {"tokens": "distilled"},
    "registers": {"tokens": {"kind": "class", "registers": 2}},
    "mean": {"pool": "mean"},
    "class-mean": {"pool": "class-mean"},
    "no class token": {"tokens": "none", "pool": "mean"},
    "relative": {"positions": "relative"},
    "learned-2d": {"positions": "learned-2d"},
    "sincos-1d": {"positions": "sincos-1d"},
    "sincos-2d": {"positions": "sincos-2d"},
    "rotary": {"positions": "rotary", "tokens": {"kind": "class", "registers": 2}},
    "no positions": {"positions": "none"},
    "conv": {"stem": {"kind": "conv", "channels": 8}},
    "whitened": {"stem": {"kind": "whitened", "channels": 8}},
    "qk_norm": {"attention": {"kind": "softmax", "qk_norm": True}},
}


def a_model(kind: str = "paper", **changes: Any) -> ViT:
    """Random weights, all of them: a fresh model has a head of zeros and attention that is almost even."""
    shape = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 3, "heads": 2, "classes": 5}
    model = ViT(ViTConfig.model_validate(shape | KINDS[kind] | changes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def literally(model: ViT, images: Tensor) -> tuple[list[Tensor], Tensor]:
    """The whole model with attention written out: A of each block, and the logits that came of them."""
    tokens, rotation, maps = model.embed(images), model.rotation(images), []
    for block in model.blocks:
        attn: Any = block.attn
        q, k, v = attn.queries_keys_values(block.norm1(tokens), rotation)  # type: ignore[operator]
        scores, bias = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), attn.position_bias(q)
        A = (scores if bias is None else scores + bias).softmax(dim=-1)
        A.retain_grad()
        maps.append(A)
        tokens = tokens + block.ls1(attn.proj((A @ v).transpose(1, 2).flatten(2)))  # type: ignore[operator]
        tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))  # type: ignore[operator]
    return maps, torch.stack(model.logits(model.norm(tokens))).mean(dim=0)


def readers(model: ViT, T: int) -> Tensor:
    """How far the answer is read from each token, written out for each way to pool."""
    config, weights = model.config, torch.zeros(T)
    of_patches = {"class": 0.0, "mean": 1.0, "class-mean": 0.5}[config.pool.kind]
    weights[config.extra :] = of_patches / (T - config.extra)
    if of_patches < 1:
        weights[: config.read_out] = (1 - of_patches) / config.read_out
    return weights


@pytest.mark.parametrize("kind", KINDS)
def test_class_attention_is_that_of_a_literal_reference(kind: str) -> None:
    """With autograd's own gradient of A, picture by picture."""
    model, images = a_model(kind), torch.randn(3, 3, 12, 16)
    told, logits = class_attention(model, images), model(images)
    asked = class_attention(model, images, torch.tensor([4, 0, 2]))
    for number, image in enumerate(images):
        for found, label in ((told, int(logits[number].argmax())), (asked, [4, 0, 2][number])):
            maps, logit = literally(model, image[None])
            torch.testing.assert_close(logit[0], logits[number], rtol=1e-4, atol=1e-4)
            logit[0, label].backward()
            T = maps[0].shape[-1]
            R = torch.eye(T)
            for A in maps:
                assert A.grad is not None
                bar = (A.grad[0] * A[0]).clamp(min=0).mean(dim=0)
                R = R + bar @ R
            expected = (readers(model, T) @ (R - torch.eye(T)))[model.config.extra :].view(3, 4)
            torch.testing.assert_close(found[number], expected.detach(), rtol=1e-4, atol=1e-6)
            assert expected.max() > 1e-4


@pytest.mark.parametrize(("fuse", "discard"), [("mean", 0.0), ("max", 0.5), ("min", 0.0), ("mean", 0.9)])
@pytest.mark.parametrize(
    "kind", ["paper", "distilled", "registers", "no class token", "class-mean", "relative", "rotary"]
)
def test_rollout_is_that_of_a_literal_reference(kind: str, fuse: Any, discard: float) -> None:
    """Loops over tokens, in place of products of matrices."""
    model, images = a_model(kind), torch.randn(2, 3, 8, 12)
    found = rollout(model, images, fuse=fuse, discard=discard)
    maps, _ = literally(model, images)
    for number in range(2):
        T = maps[0].shape[-1]
        flow = [[float(i == j) for j in range(T)] for i in range(T)]
        for A in maps:
            heads = A[number].tolist()
            fused = [
                [{"mean": sum(of) / len(of), "max": max(of), "min": min(of)}[fuse] for of in zip(*rows, strict=True)]
                for rows in zip(*heads, strict=True)
            ]
            least = sorted(value for row in fused for value in row)
            count = int(discard * T * T)
            fused = [[value if value > ([-1.0, *least])[count] else 0.0 for value in row] for row in fused]
            with_residual = [[fused[i][j] + (i == j) for j in range(T)] for i in range(T)]
            even = [[value / sum(row) for value in row] for row in with_residual]
            flow = [[sum(even[i][k] * flow[k][j] for k in range(T)) for j in range(T)] for i in range(T)]
        expected = (readers(model, T) @ torch.tensor(flow))[model.config.extra :].view(2, 3)
        torch.testing.assert_close(found[number], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_attention_is_the_mean_of_all_blocks_and_heads(kind: str) -> None:
    model, images = a_model(kind), torch.randn(2, 3, 8, 20)
    expected = answer_by_head(model, images, blocks="all").mean(dim=(1, 2))
    torch.testing.assert_close(METHODS["mean-attention"](model, images), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_maps_every_kind_of_model_at_another_size(method: str, kind: str) -> None:
    model, images = a_model(kind), torch.randn(2, 3, 8, 20)
    model.train()
    state, before = torch.get_rng_state(), {key: value.clone() for key, value in model.state_dict().items()}
    found = METHODS[method](model, images)
    assert found.shape == (2, 2, 5) and found.dtype == torch.float32 and not found.requires_grad
    assert bool(found.isfinite().all()) and bool((found >= 0).all()) and found.max() > 0
    assert not torch.allclose(found[0], found[1])
    # No trace: no gradient, no hook, no mode, no random number, no weight.
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    # A picture's map does not depend on its neighbours in the batch, nor on how somebody else computes.
    with torch.inference_mode():
        torch.testing.assert_close(METHODS[method](model, images[1:]), found[1:], rtol=1e-4, atol=1e-6)


def test_a_hook_goes_even_when_the_model_fails() -> None:
    model = a_model()
    model.blocks[1].mlp = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError):
        class_attention(model, torch.randn(1, 3, 16, 16))
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_frozen_weights_do_not_hinder_class_attention() -> None:
    model, images = a_model(), torch.randn(1, 3, 16, 16)
    before = class_attention(model, images)
    assert torch.equal(class_attention(model.requires_grad_(False), images), before)


MEDIAN: Any = "median"


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda m, x: class_attention(m, x, torch.tensor([5])),
            "There is no class 5: the model has 5, numbered 0 to 4.",
        ),
        (lambda m, x: class_attention(m, x, torch.tensor([1, 2])), "it takes one number for each image"),
        (lambda m, x: rollout(m, x, discard=1.0), "from 0 up to, and not including, 1"),
        (lambda m, x: rollout(m, x, fuse=MEDIAN), "heads are fused by mean, max or min"),
        (lambda m, x: class_token_map(m, x, block=3), "There is no block 3: the model has 3, numbered 0 to 2."),
        (lambda m, x: top_mass(x, 0), "a share above 0 and up to 1"),
        (lambda m, x: sine_table(100, 3), "an even width"),
        (lambda m, x: resampled_positions(m, (0, 3)), "has no patches"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(ask: Any, sentence: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        ask(a_model(), torch.zeros(1, 3, 16, 16))


def test_a_model_without_classes_says_so() -> None:
    model = vit(load_pretrained(FIXTURES / "dino_reference").model)
    images = torch.randn(1, 3, 16, 16)
    with pytest.raises(VitralError, match="This model has no classes"):
        class_attention(model, images)
    assert class_token_map(model, images).sum() > 0 and rollout(model, images).sum() > 0


def test_the_class_token_map_is_the_mean_of_its_rows() -> None:
    model, images = a_model("registers"), torch.randn(2, 3, 16, 16)
    rows = attention_maps(model, images, blocks=1).shares[:, 0, :, 0, 3:]  # (B, heads, N)
    torch.testing.assert_close(class_token_map(model, images, block=1).flatten(1), rows.mean(dim=1))


@pytest.mark.parametrize("kind", ["paper", "registers", "no class token"])
def test_distance_is_that_of_a_literal_reference(kind: str) -> None:
    model, images = a_model(kind), torch.randn(2, 3, 8, 12)
    found, extra = attention_distance(model, images), model.config.extra
    maps, _ = literally(model, images)
    places = [(4 * row, 4 * column) for row in range(2) for column in range(3)]
    for block, head in ((0, 0), (2, 1)):
        total = 0.0
        for rows in maps[block][:, head, extra:, extra:].tolist():
            for row, here in zip(rows, places, strict=True):
                distances = [math.dist(here, there) for there in places]
                total += sum(w * d for w, d in zip(row, distances, strict=True)) / sum(row)
        assert found[block, head].item() == pytest.approx(total / (2 * 6), rel=1e-4)


def test_a_head_that_looks_everywhere_has_the_mean_distance_of_patches() -> None:
    model = a_model()
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight)  # type: ignore[union-attr, arg-type]
    places = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)) * 4
    everywhere = torch.cdist(places, places).mean()
    found = attention_distance(model, torch.randn(1, 3, 16, 16))
    torch.testing.assert_close(found, everywhere.expand(3, 2))


ROWS = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12).filter(lambda row: sum(row) > 0.01)


@given(ROWS, st.floats(0.05, 1))
def test_no_fewer_patches_hold_so_much(row: list[float], mass: float) -> None:
    kept = top_mass(torch.tensor(row), mass).tolist()
    held = sorted((value for value, keep in zip(row, kept, strict=True) if keep), reverse=True)
    assert held and sum(held) >= (mass - 1e-6) * sum(row)
    assert sum(held[:-1]) < (mass + 1e-6) * sum(row)  # without the least of them it is too little
    dropped = [value for value, keep in zip(row, kept, strict=True) if not keep]
    assert max(dropped, default=0.0) <= min(held)


def test_rows_are_thresholded_each_for_itself() -> None:
    rows = torch.tensor([[[0.7, 0.1, 0.2]], [[0.2, 0.3, 0.3]]])
    assert top_mass(rows).tolist() == [[[True, False, False]], [[False, True, True]]]


def test_features_are_those_of_the_patches_as_the_model_is_used() -> None:
    model = ViT(TINY, Regularise(dropout=0.5)).train()
    images = torch.randn(2, 3, 32, 16)
    found = patch_features(model, images)
    assert found.shape == (2, 4, 2, 32) and model.training
    assert torch.equal(found, model.eval().features(images)[:, 1:].view(2, 4, 2, 32))


def test_a_subject_in_the_middle_is_told_from_its_ground() -> None:
    """Two kinds of patches with noise; the subject has a left and a right half, which get different colours."""
    features = torch.zeros(2, 6, 8, 10)
    features[..., 0] = 5
    features[:, 2:5, 2:6] = 0
    features[:, 2:5, 2:6, 1] = 5
    features[:, 2:5, 4:6, 2] = 2
    features += 0.01 * torch.randn_like(features)
    found = feature_colours(features)
    inside = torch.zeros(2, 6, 8, dtype=torch.bool)
    inside[:, 2:5, 2:6] = True
    assert torch.equal(found.subject, inside) and not found.rgb[~inside].any()
    assert found.rgb.shape == (2, 6, 8, 3) and 0 <= found.rgb.min() and found.rgb.max() <= 1
    left, right = found.rgb[:, 2:5, 2:4, 0].flatten(), found.rgb[:, 2:5, 4:6, 0].flatten()
    assert (left.mean() - right.mean()).abs() > 0.8
    assert torch.equal(feature_colours(-features).subject, inside)  # which side is positive means nothing
    assert feature_colours(torch.randn(1, 1, 1, 4)).rgb.shape == (1, 1, 1, 3)


@torch.no_grad()
def test_tokens_through_depth_are_those_of_a_literal_reference() -> None:
    model, images = a_model("registers"), torch.randn(3, 3, 8, 12)
    found = tokens_through_depth(model, images)
    assert found.length.shape == found.like_last.shape == (4, 9) and found.alike.shape == (4,)
    states = [model.embed(images)]
    for block in model.blocks:
        states.append(block(states[-1]))
    assert found.length[2, 4].item() == pytest.approx(sum(float(one[4].norm()) for one in states[2]) / 3, rel=1e-4)
    pairs_of_states = zip(states[1], states[3], strict=True)
    cosines = [float(one[4] @ last[4] / one[4].norm() / last[4].norm()) for one, last in pairs_of_states]
    assert found.like_last[1, 4].item() == pytest.approx(sum(cosines) / 3, abs=1e-5)
    assert found.like_last[3].tolist() == pytest.approx([1.0] * 9)
    pairs = [
        float(one[i] @ one[j] / one[i].norm() / one[j].norm())
        for one in states[1]
        for i in range(3, 9)
        for j in range(3, 9)
        if i != j
    ]
    assert found.alike[1].item() == pytest.approx(sum(pairs) / len(pairs), abs=1e-5)


@pytest.mark.parametrize("kind", ["paper", "registers", "learned-2d", "sincos-1d", "sincos-2d", "no class token"])
def test_positions_are_compared_by_their_angle(kind: str) -> None:
    model = a_model(kind, image_size=[8, 12])
    found = position_similarity(model)
    assert found.shape == (2, 3, 2, 3)
    extra = model.config.extra
    rows = model.positions(model.pos_embed, (2, 3))[0, extra:].detach().double().view(2, 3, -1)
    expected = rows[1, 2] @ rows[0, 1] / rows[1, 2].norm() / rows[0, 1].norm()
    assert found[1, 2, 0, 1].item() == pytest.approx(float(expected), abs=1e-5)
    flat = found.reshape(6, 6)
    torch.testing.assert_close(flat, flat.T)
    torch.testing.assert_close(flat.diagonal(), torch.ones(6))


@pytest.mark.parametrize(
    ("kind", "why"),
    [("no positions", "knows no positions"), ("relative", "compares distances"), ("rotary", "turns queries and keys")],
)
def test_positions_that_are_not_added_are_not_drawn(kind: str, why: str) -> None:
    for ask in (position_similarity, lambda model: resampled_positions(model, (2, 2))):
        with pytest.raises(RecipeError, match=f"adds no positions to its tokens: .*{why}"):
            ask(a_model(kind))


def test_the_three_cases_of_a_table_at_another_grid() -> None:
    model = vit(load_pretrained(FIXTURES / "dino_reference").model)
    table = model.pos_embed[0, 1:].detach().view(4, 4, -1)  # type: ignore[index]
    same, larger, wide = (resampled_positions(model, grid) for grid in ((4, 4), (6, 6), (3, 6)))
    assert torch.equal(same.own, table) and torch.equal(same.other, table)
    for found, grid in ((larger, (6, 6)), (wide, (3, 6))):
        assert torch.equal(found.own, table)
        expected = RESAMPLE["dino"](table.permute(2, 0, 1)[None], grid)[0].permute(1, 2, 0)
        torch.testing.assert_close(found.other, expected)
    assert [one.how for one in (same, larger, wide)] == [
        "the same grid: as it is",
        "another size: dino, ×1.5 both ways",
        "another shape: dino, ×0.75 down, ×1.5 across",
    ]
    waves = resampled_positions(a_model("sincos-2d"), (5, 5))
    assert waves.how.startswith("another grid: the waves") and waves.other.shape == (5, 5, 16)


@pytest.mark.parametrize(("kind", "side"), [("paper", 4), ("conv", 3), ("whitened", 2)])
def test_filters_are_principal_components_of_the_first_layer(kind: str, side: int) -> None:
    """Of length one, at right angles, and the first takes more of the spread than any other direction."""
    model = a_model(kind)
    found = first_filters(model, count=5)
    assert found.shape == (5, side, side, 3)
    flat = found.flatten(1).double()
    torch.testing.assert_close(flat @ flat.T, torch.eye(5, dtype=torch.float64), atol=1e-5, rtol=0)
    layer = next(value for value in model.patch_embed.state_dict().values() if value.ndim == 4)
    rows = layer.permute(0, 2, 3, 1).flatten(1).double()
    rows = rows - rows.mean(dim=0)
    spread = (rows @ flat.T).square().sum(dim=0)
    assert bool((spread.diff() <= 1e-6).all())
    others = torch.nn.functional.normalize(torch.randn(200, rows.shape[1], dtype=torch.float64), dim=1)
    assert (rows @ others.T).square().sum(dim=0).max() <= spread[0] + 1e-6


def test_there_are_no_more_filters_than_directions() -> None:
    assert first_filters(a_model("whitened"), count=28).shape == (12, 2, 2, 3)
    assert first_filters(a_model(), count=28).shape == (15, 4, 4, 3)  # 16 filters spread along 15 directions


def test_the_sine_table_is_the_tutorials() -> None:
    """One hundred positions of 300 numbers, by the formula as the MNIST tutorial has it."""
    found = sine_table(100, 300)
    for i, j in ((0, 0), (1, 0), (99, 1), (50, 120), (50, 121), (99, 299)):
        angle = i / 10_000 ** ((j - j % 2) / 300)
        assert found[i, j].item() == pytest.approx(math.cos(angle) if j % 2 else math.sin(angle), abs=1e-6)
    assert len(found.unique(dim=0)) == 100


@pytest.mark.parametrize("features", [torch.ones(1, 4, 4, 8), torch.ones(1, 1, 1, 8)])
def test_patches_that_are_all_alike_are_one_subject(features: Tensor) -> None:
    assert bool(feature_colours(features).subject.all())


def test_one_patch_that_stands_out_is_the_subject() -> None:
    """It has no neighbour on its side; and without it there is no subject."""
    features = torch.ones(1, 5, 5, 8)
    features[0, 2, 2] = torch.tensor([-1.0, 1.0] * 4)
    assert feature_colours(features).subject.nonzero().tolist() == [[0, 2, 2]]
