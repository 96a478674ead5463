"""What is true of every ViT. (That it equals the references: test_pretrained.py.)"""

# torch types what a ModuleList holds as Tensor or Module; here we look inside.
# mypy: disable-error-code="union-attr, operator, index"

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from conftest import TINY
from vitral import DataError, RecipeError, ViT, ViTConfig, patchify, unpatchify
from vitral.model import vit
from vitral.model.config import Blocks, Regularise, Resample
from vitral.model.heads import HEADS, PRE_LOGITS
from vitral.model.mlps import MLPS
from vitral.model.pools import POOLED_WIDTHS, POOLS
from vitral.model.positions import BIASES, POSITIONS, RESAMPLE
from vitral.model.stems import STEMS


def randomised(config: ViTConfig) -> ViT:
    """A model in which nothing is zero by its initialisation."""
    model = ViT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize(
    ("name", "parameters"), [("B/16", 86_567_656), ("L/16", 304_326_632), ("H/14", 632_045_800), ("Ti/16", 5_717_416)]
)
def test_the_sizes_of_the_paper_have_their_number_of_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = ViT(ViTConfig.named(name, classes=1000))
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_each_equation_of_the_paper_is_marked_once() -> None:
    source = Path(vit.__file__).read_text()
    marks = re.findall(r"# \((\d)\)", source)
    assert sorted(marks) == list("12345678")
    attention = source[source.index("class Attention") : source.index("class Block")]
    assert sorted(re.findall(r"# \((\d)\)", attention)) == list("5678")


def test_every_part_has_a_class_for_every_word_and_no_other() -> None:
    homes: dict[str, list[Mapping[str, object]]] = {
        "positions": [POSITIONS, BIASES],
        "stem": [STEMS],
        "mlp": [MLPS],
        "pool": [POOLS, POOLED_WIDTHS],
        "head": [HEADS, PRE_LOGITS],
    }
    for part, found in homes.items():
        settings_of = ViTConfig.model_fields[part].annotation
        assert settings_of is not None
        words = set(get_args(settings_of.model_fields["kind"].annotation))
        assert all(set(home) == words for home in found), part
    assert set(RESAMPLE) == set(get_args(Resample))


@torch.no_grad()
def test_the_map_tells_what_the_fused_attention_used() -> None:
    attention = randomised(TINY).blocks[0].attn
    x = torch.randn(3, 17, 32)
    q, k, v = attention.queries_keys_values(x)
    seen = attention.map(x)
    torch.testing.assert_close(seen @ v, scaled_dot_product_attention(q, k, v), rtol=0, atol=1e-5)
    torch.testing.assert_close(seen.sum(dim=-1), torch.ones(3, 4, 17))


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 4, 8])
def test_with_the_same_weights_pytorchs_attention_gives_the_same(heads: int) -> None:
    """Outputs, and maps: each head's, and their mean, which is what it tells by default."""
    torch.manual_seed(heads)
    ours = vit.Attention(TINY.model_copy(update={"heads": heads}), Regularise())
    theirs = nn.MultiheadAttention(TINY.width, heads, batch_first=True).eval()
    theirs.in_proj_weight.copy_(ours.qkv.weight)
    theirs.in_proj_bias.copy_(ours.qkv.bias)
    theirs.out_proj.load_state_dict(ours.proj.state_dict())
    x = torch.randn(3, 17, TINY.width)
    for average in (False, True):
        out, shares = theirs(x, x, x, average_attn_weights=average)
        expected = ours.map(x).mean(dim=1) if average else ours.map(x)
        torch.testing.assert_close(out, ours(x), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(shares, expected, rtol=1e-6, atol=1e-6)
    fused, nothing = theirs(x, x, x, need_weights=False)
    torch.testing.assert_close(fused, ours(x), rtol=1e-6, atol=1e-6)
    assert nothing is None


@given(permutation=st.permutations(range(16)), seed=st.integers(0, 1000))
@settings(max_examples=20)
@torch.no_grad()
def test_without_positions_the_order_of_patches_does_not_matter(permutation: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    model = randomised(TINY)
    assert model.pos_embed is not None
    nn.init.zeros_(model.pos_embed)
    images = torch.randn(2, 3, 32, 32)
    shuffled = unpatchify(patchify(images, 8)[:, permutation], 8, 32, 32)
    torch.testing.assert_close(model(images), model(shuffled), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_with_positions_the_order_of_patches_does_matter() -> None:
    model = randomised(TINY)
    images = torch.randn(2, 3, 32, 32)
    shuffled = unpatchify(patchify(images, 8).flip(1), 8, 32, 32)
    assert (model(images) - model(shuffled)).abs().max() > 1e-2


@given(patch=st.integers(1, 9), down=st.integers(1, 4), across=st.integers(1, 4), channels=st.integers(1, 4))
@settings(max_examples=25)
@torch.no_grad()
def test_convolution_is_cut_flatten_linear(patch: int, down: int, across: int, channels: int) -> None:
    size = (patch * down, patch * across)
    config = ViTConfig(image_size=size, patch_size=patch, channels=channels, width=8, depth=1, heads=2, classes=2)
    embed = randomised(config).patch_embed
    images = torch.randn(2, channels, *size)
    matrix = embed.proj.weight.permute(0, 2, 3, 1).flatten(1)  # (D, P·P·C)
    by_hand = patchify(images, patch) @ matrix.T + embed.proj.bias
    torch.testing.assert_close(embed(images), by_hand, rtol=1e-4, atol=1e-5)


@given(patch=st.integers(1, 5), down=st.integers(1, 5), across=st.integers(1, 5), channels=st.integers(1, 5))
def test_unpatchify_undoes_patchify_to_the_bit(patch: int, down: int, across: int, channels: int) -> None:
    images = torch.randn(2, channels, patch * down, patch * across)
    assert torch.equal(unpatchify(patchify(images, patch), patch, *images.shape[2:]), images)


def test_patches_are_in_reading_order_and_flattened_by_row_column_channel() -> None:
    images = torch.arange(2 * 4 * 4).view(1, 2, 4, 4)
    patches = patchify(images, 2)
    assert patches.shape == (1, 4, 8)
    assert patches[0, 1].tolist() == [2, 18, 3, 19, 6, 22, 7, 23]


def test_every_parameter_gets_a_gradient() -> None:
    model = randomised(TINY).train()
    model(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@torch.no_grad()
def test_the_class_token_comes_first() -> None:
    model = randomised(TINY)
    tokens = model.embed(torch.randn(3, 3, 32, 32))
    assert tokens.shape == (3, 17, 32)
    expected = model.cls_token[0, 0] + model.pos_embed[0, 0]
    torch.testing.assert_close(tokens[:, 0], expected.expand(3, -1))


@torch.no_grad()
def test_answers_are_equal_to_the_bit_at_the_same_batch_size_and_nearly_at_others() -> None:
    model = randomised(TINY)
    images = torch.randn(8, 3, 32, 32)
    assert torch.equal(model(images), model(images))
    torch.testing.assert_close(torch.cat([model(image[None]) for image in images]), model(images), rtol=0, atol=1e-5)


@torch.no_grad()
def test_patches_that_are_not_kept_are_not_there() -> None:
    model = randomised(TINY)
    images = torch.randn(2, 3, 32, 32)
    keep = torch.tensor([[3, 0, 15], [7, 8, 9]])
    kept, all_tokens = model.embed(images, keep=keep), model.embed(images)
    assert kept.shape == (2, 4, 32)
    assert torch.equal(kept[0], all_tokens[0, [0, 4, 1, 16]])
    assert torch.equal(kept[1], all_tokens[1, [0, 8, 9, 10]])


@torch.no_grad()
def test_forward_is_the_mean_of_the_heads_logits_of_the_pooled_features() -> None:
    model = randomised(TINY)
    images = torch.randn(2, 3, 32, 32)
    (logits,) = model.logits(model.features(images))
    assert torch.equal(logits, model.head(model.features(images)[:, 0]))
    # Of the last block `forward` computes only the token that the head sees: the sums may be ordered otherwise.
    torch.testing.assert_close(model(images), logits, rtol=0, atol=1e-6)


def test_initial_values_are_as_stated() -> None:
    model = ViT(ViTConfig(image_size=64, patch_size=8, width=256, depth=2, heads=4, classes=7))
    qkv = model.blocks[1].attn.qkv.weight
    for matrix, fans in [*((m, 512) for m in qkv.chunk(3)), (model.blocks[0].mlp.fc1.weight, 1280)]:
        bound = (6 / fans) ** 0.5  # Xavier-uniform
        assert matrix.abs().max() <= bound
        assert matrix.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.patch_embed.proj.weight.std().item() == pytest.approx((8 * 8 * 3) ** -0.5, rel=0.03)
    assert not model.cls_token.any() and not model.head.weight.any()
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))
    as_torch = ViT(model.config.model_copy(update={"blocks": Blocks(start="torch")}))
    for layer in (as_torch.head, as_torch.patch_embed.proj, as_torch.blocks[1].attn.qkv, as_torch.blocks[0].mlp.fc2):
        bound = layer.weight[0].numel() ** -0.5  # uniform, biases too
        assert bound * 0.98 < layer.weight.abs().max() <= bound and 0 < layer.bias.abs().max() <= bound
    assert not as_torch.cls_token.any() and as_torch.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 5 and all((m.weight == 1).all() for m in norms)


def test_a_model_prints_itself_in_one_line() -> None:
    assert repr(ViT(TINY)) == (
        "ViT(32×32×3 → 4×4 patches of 8 px + 1 extra token → 2 blocks of width 32, 4 heads → 10 classes; "
        f"{sum(p.numel() for p in ViT(TINY).parameters()):,} parameters)"
    )


def test_a_size_that_the_patches_do_not_divide_names_the_nearest_that_they_do() -> None:
    with pytest.raises(DataError, match=r"8 pixels do not divide images of 30×40\. Try 24×40 or 32×40"):
        ViT(TINY)(torch.zeros(1, 3, 30, 40))
    with pytest.raises(DataError, match="Try 8×8 or 8×16"):
        ViT(TINY)(torch.zeros(1, 3, 5, 9))
    with pytest.raises(DataError, match="1 channels, and the model takes 3"):
        ViT(TINY)(torch.zeros(1, 1, 32, 32))


def test_what_only_a_recipe_can_leave_open_is_refused() -> None:
    for open_setting in ({"classes": 0}, {"channels": 0}):
        with pytest.raises(RecipeError, match="as the data has"):
            ViT(ViTConfig(**open_setting))  # type: ignore[arg-type]


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="do not divide"):
        patchify(torch.zeros(1, 3, 30, 32), 8)
    with pytest.raises(DataError, match="that takes 16 patches"):
        unpatchify(torch.zeros(1, 15, 192), 8, 32, 32)
