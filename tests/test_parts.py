"""All the parts a ViT can have: whatever a config can say builds, runs, learns, compiles, exports and comes back."""

# torch types what a ModuleList holds as Tensor or Module; here we look inside.
# mypy: disable-error-code="union-attr, operator, arg-type, index"

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from safetensors.torch import load_file
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from conftest import FIXTURES, TINY
from test_shapes import compare_with_torchs_own_count
from vitral import DataError, Preprocess, RecipeError, ViT, ViTConfig, load_pretrained
from vitral.look.maps import attention_maps
from vitral.look.readings import rollout
from vitral.model.attend import MOST_WRITTEN_OUT, attend
from vitral.model.config import Head, Regularise
from vitral.model.positions import RESAMPLE, Learned, rotated, sincos_1d, sincos_2d
from vitral.model.shapes import shapes
from vitral.model.stems import Whitened
from vitral.weights.own import Weights, read_weights, write_weights


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    """Any combination of words and settings, possible or not."""
    patch = draw(st.sampled_from([1, 2, 3, 4]))
    kind = draw(st.sampled_from(["learned", "learned-2d", "relative", "sincos-1d", "sincos-2d", "rotary", "none"]))
    positions: dict[str, Any] = {"kind": kind, "class_token": draw(st.sampled_from([True, True, False]))}
    if kind.startswith("learned"):
        positions["resample"] = draw(st.sampled_from(sorted(RESAMPLE)))
    head = draw(st.sampled_from(["linear", "mlp", {"kind": "mlp", "size": 3}, "hidden", "none"]))
    return {
        "image_size": [patch * draw(st.integers(1, 4)), patch * draw(st.integers(1, 4))],
        "patch_size": patch,
        "channels": draw(st.integers(1, 4)),
        "width": draw(st.sampled_from([4, 6, 8])),
        "heads": draw(st.sampled_from([1, 2])),
        "depth": draw(st.integers(1, 2)),
        "classes": 0 if head in ("hidden", "none") else draw(st.integers(1, 5)),
        "tokens": {
            "kind": draw(st.sampled_from(["class", "distilled", "none"])),
            "registers": draw(st.integers(0, 2)),
        },
        "positions": positions,
        "stem": {
            "kind": draw(st.sampled_from(["linear", "conv", "whitened"])),
            "bias": draw(st.booleans()),
            "channels": draw(st.sampled_from([3, 48])),
            "norm": draw(st.sampled_from([False, False, True])),
        },
        "attention": {
            "kind": "softmax",
            "bias": draw(st.sampled_from([True, False, "query-value"])),
            "qk_norm": draw(st.booleans()),
        },
        "mlp": {"kind": draw(st.sampled_from(["gelu", "gelu-tanh", "gelu-quick", "swiglu"])), "ratio": 1.5},
        "blocks": {
            "kind": "pre-norm",
            "norm": draw(st.sampled_from(["layer", "layer", "rms"])),
            "first_norm": draw(st.booleans()),
            "bias": draw(st.booleans()),
            "layer_scale": draw(st.sampled_from([0.0, 0.1])),
            **draw(st.sampled_from([{}, {"init_std": 0.5}, {"start": "torch"}])),
        },
        "pool": {
            "kind": draw(st.sampled_from(["class", "mean", "class-mean", "map"])),
            "norm": draw(st.sampled_from(["before", "after", "none"])),
        },
        "head": head,
    }


def possible(values: dict[str, Any]) -> ViTConfig | None:
    try:
        return ViTConfig.read(values)
    except RecipeError as error:
        assert str(error).startswith("model.") and str(error).endswith(".")
        return None


@given(values=asked())
@settings(max_examples=300)
def test_what_cannot_be_answers_with_a_sentence_and_the_rest_survives_writing(values: dict[str, Any]) -> None:
    config = possible(values)
    if config:
        assert ViTConfig.read(config.write()) == config


@given(values=asked(), grid=st.tuples(st.integers(1, 5), st.integers(1, 5)))
@settings(max_examples=120, suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_can_be_runs_learns_and_has_the_stated_shapes(values: dict[str, Any], grid: tuple[int, int]) -> None:
    config = possible(values)
    assume(config is not None)
    assert config is not None
    model = ViT(config, Regularise(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    B, N = 2, grid[0] * grid[1]
    images = torch.randn(B, config.channels, grid[0] * config.patch_size, grid[1] * config.patch_size)
    tokens = model.features(images)
    assert tokens.shape == (B, config.extra + N, config.width)
    seen = config.width * (2 if config.pool.kind == "class-mean" else 1)
    assert model.pool(tokens).shape == (B, seen)
    logits = model(images)
    assert logits.shape == (B, config.classes or seen)
    logits.pow(2).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

    model.eval()
    with torch.no_grad():
        block = model.blocks[0]
        x, rotation = block.norm1(model.embed(images)), model.rotation(images)
        q, k, v = block.attn.queries_keys_values(x, rotation)
        fused = scaled_dot_product_attention(q, k, v, attn_mask=block.attn.position_bias(q))
        torch.testing.assert_close(block.attn.map(x, rotation) @ v, fused, rtol=0, atol=1e-5)
        baked = model.at((images.shape[2], images.shape[3]))
        torch.testing.assert_close(baked(images), model(images), rtol=1e-4, atol=1e-4)
        keep = torch.stack([torch.randperm(N)[: max(1, N // 2)] for _ in range(B)])
        if config.positions.kind == "relative":
            with pytest.raises(RecipeError, match="no patch can be left out"):
                model.embed(images, keep=keep)
            return
        assert model.embed(images, keep=keep).shape == (B, config.extra + keep.shape[1], config.width)


@pytest.mark.slow
@given(values=asked())
@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much])
def test_the_table_of_shapes_agrees_with_torchs_own_count(values: dict[str, Any]) -> None:
    config = possible(values)
    assume(config is not None)
    assert config is not None
    compare_with_torchs_own_count(config)


PARTS = """
[paper]

[distilled]
tokens = "distilled"
positions = "learned-2d"
mlp = "swiglu"
blocks = {kind = "pre-norm", layer_scale = 0.1}

[relative]
tokens = {kind = "class", registers = 2}
positions = "relative"
pool = "class-mean"
head = "mlp"

[conv]
tokens = "none"
positions = "sincos-2d"
stem = "conv"
mlp = "gelu-tanh"
pool = {kind = "mean", norm = "after"}

[whitened]
tokens = "none"
stem = "whitened"
pool = "mean"
attention = {kind = "softmax", bias = true, qk_norm = true}

[waves]
positions = "sincos-1d"
mlp = "gelu-quick"
attention = {kind = "softmax", bias = false, qk_norm = true}

[rotary]
tokens = {kind = "class", registers = 2}
positions = "rotary"
attention = {kind = "softmax", bias = "query-value"}
mlp = "swiglu"
blocks = {kind = "pre-norm", layer_scale = 0.1}

[map]
tokens = {kind = "none", registers = 1}
pool = "map"
blocks = {kind = "pre-norm", norm = "rms"}

[aimv2]
tokens = "none"
stem = {kind = "linear", norm = true}
attention = {kind = "softmax", bias = false}
mlp = "swiglu"
pool = "mean"
blocks = {kind = "pre-norm", norm = "rms", bias = false}

[bare]
positions = "none"
head = "none"
classes = 0
pool = {kind = "class", norm = "none"}
blocks = {kind = "pre-norm", first_norm = true}
"""


def every_part() -> dict[str, ViTConfig]:
    """A few configs that have, together, every word of every part."""
    base = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "classes": 3}
    return {name: ViTConfig.read(base | more) for name, more in tomllib.loads(PARTS).items()}


each_config = pytest.mark.parametrize("config", every_part().values(), ids=every_part().keys())


@each_config
def test_the_table_of_shapes_counts_every_part(config: ViTConfig) -> None:
    compare_with_torchs_own_count(config)


@pytest.mark.slow
@each_config
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's inductor, of torch's own code
def test_it_compiles_as_one_graph(config: ViTConfig, backend: str) -> None:
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("no C++ compiler")
    torch._dynamo.reset()
    model = ViT(config).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@each_config
def test_it_exports_with_any_batch_size_and_another_image_size(config: ViTConfig) -> None:
    model = ViT(config).eval().at((24, 16))
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (torch.randn(2, 3, 24, 16),), dynamic_shapes=({0: batch},)).module()
    images = torch.randn(5, 3, 24, 16)
    with torch.no_grad():
        torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


@each_config
def test_a_step_of_training_needs_no_cpu(config: ViTConfig) -> None:
    with torch.device("meta"):
        model = ViT(config, Regularise(dropout=0.1, stochastic_depth=0.1))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.empty(2, 3, 16, 16)).sum().backward()
        optimizer.step()
    assert all(p.is_meta for p in model.parameters())


@each_config
def test_every_part_survives_the_file_of_weights(config: ViTConfig, tmp_path: Path) -> None:
    preprocess = Preprocess(image_size=(16, 16), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    made = Weights(ViT(config).eval(), preprocess, tuple("abc"[: config.classes]))
    write_weights(tmp_path / "model.safetensors", made)
    read = read_weights(tmp_path / "model.safetensors")
    images = torch.randn(2, 3, 16, 16)
    assert read.model.config == config and torch.equal(read.model(images), made.model(images))


# Positions at any size


@pytest.mark.parametrize("resample", sorted(RESAMPLE))
@pytest.mark.parametrize(
    ("native", "patch", "sizes"),
    [
        # Sizes at which a scale factor without + 0.1 gives one row too few.
        (224, 16, [976, 1840, 1952]),
        (518, 14, [546, 602, 1092, 1204, 1610, 1722]),
    ],
)
def test_every_size_gives_a_row_a_patch(resample: str, native: int, patch: int, sizes: list[int]) -> None:
    config = ViTConfig.read(
        {"image_size": native, "patch_size": patch, "width": 2, "heads": 1}
        | {"positions": {"kind": "learned", "resample": resample}}
    )
    positions = Learned(config)
    table = torch.randn(positions.shape)
    for size in sizes:
        n = size // patch
        assert positions(table, (n, n)).shape == (1, 1 + n * n, 2)


def test_a_grid_of_the_same_number_of_patches_and_another_shape_is_resampled() -> None:
    positions = Learned(ViTConfig(image_size=(8, 32), patch_size=1, width=2, heads=1))
    table = torch.randn(positions.shape)
    square = positions(table, (16, 16))
    assert square.shape == table.shape and not torch.allclose(square, table)
    assert torch.equal(positions(table, (8, 32)), table)


def test_fixed_tables_equal_the_references() -> None:
    expected = load_file(FIXTURES / "sincos" / "io.safetensors")
    ours = {
        "vaswani_1d_10x8": sincos_1d((2, 5), 8, 0),
        "mae_2d_grid4x6_width32": sincos_2d((4, 6), 32, 0),
        "mae_2d_grid4x4_width32": sincos_2d((4, 4), 32, 0),
        "mae_2d_grid4x4_width32_with_class": sincos_2d((4, 4), 32, 1),
    }
    for name, table in ours.items():
        torch.testing.assert_close(table, expected[name].double(), rtol=0, atol=1e-6, msg=name)


def test_relative_attention_equals_a_slow_literal_one() -> None:
    config = ViTConfig.read({**TINY.write(), "positions": "relative", "tokens": {"kind": "class", "registers": 1}})
    attention = ViT(config).eval().blocks[0].attn
    x = torch.randn(1, 18, 32)
    with torch.no_grad():
        q, k, _ = attention.queries_keys_values(x)
        scores = q @ k.transpose(-2, -1)
        for head in range(4):
            for i in range(16):
                for j in range(16):
                    scores[0, head, 2 + i, 2 + j] += q[0, head, 2 + i] @ attention.position_bias.keys[i - j + 15]
        expected = (scores / 8**0.5).softmax(dim=-1)
        torch.testing.assert_close(attention.map(x), expected, rtol=0, atol=1e-5)


def test_attention_pooling_is_torchs_multihead_attention_with_one_query_and_then_an_mlp() -> None:
    config = every_part()["map"]
    model, tokens = ViT(config).eval(), torch.randn(2, 9, 16)
    pool: Any = model.attn_pool
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        theirs.in_proj_weight.copy_(torch.cat([pool.q.weight, pool.kv.weight]))
        theirs.in_proj_bias.copy_(torch.cat([pool.q.bias, pool.kv.bias]))
        theirs.out_proj.load_state_dict(pool.proj.state_dict())
        patches = tokens[:, 1:]  # without the register
        taken, _ = theirs(pool.latent.expand(2, -1, -1), patches, patches)
        expected = taken + pool.mlp(torch.nn.functional.rms_norm(taken, (16,), pool.norm.weight, 1e-6))
        torch.testing.assert_close(model.pool(tokens), expected[:, 0], rtol=0, atol=1e-5)


def test_a_model_whose_answer_is_read_above_its_blocks_is_not_looked_into() -> None:
    model = ViT(every_part()["map"])
    for ask in (attention_maps, rollout):
        with pytest.raises(RecipeError, match=r"reads its answer by an attention above the blocks \(model.pool map\)"):
            ask(model, torch.zeros(1, 3, 16, 16))
    assert not model.attends and ViT(TINY).attends


# Rotary positions

ROTARY = every_part()["rotary"]


def test_rotary_angles_are_those_of_dinov3() -> None:
    """Class token and registers stay as they are: cosine 1, sine 0."""
    expected = load_file(FIXTURES / "hf_dinov3" / "io.safetensors")
    model = load_pretrained(FIXTURES / "hf_dinov3").model
    for size in ((16, 16), (12, 24)):
        cos, sin = model.rotation(torch.empty(1, 3, *size))[:, 0, 0]
        for name, found in (("cos", cos), ("sin", sin)):
            torch.testing.assert_close(found[5:], expected[f"rope_{name}_{size[0]}x{size[1]}"], rtol=0, atol=1e-6)
        assert (cos[:5] == 1).all() and (sin[:5] == 0).all()


def test_turned_queries_and_keys_know_how_far_apart_they_are() -> None:
    """The same query and key in two places have a product that the rows and columns between them decide alone."""
    turn = ViT(ROTARY).rotation(torch.empty(1, 3, 16, 24))  # 4×6 patches after 3 tokens
    q, k = (rotated(torch.randn(1, 1, 1, 8).expand(-1, -1, 27, -1), turn)[0, 0, 3:].view(4, 6, 8) for _ in range(2))
    for row, column in ((0, 1), (1, 0), (2, 3)):
        products = (q[: 4 - row, : 6 - column] * k[row:, column:]).sum(dim=-1)
        torch.testing.assert_close(products, products[0, 0].expand_as(products), rtol=0, atol=1e-5)


def test_a_patch_keeps_its_place_where_others_are_left_out() -> None:
    model, images = ViT(ROTARY).eval(), torch.randn(2, 3, 16, 24)
    order = torch.stack([torch.randperm(24), torch.randperm(24)])
    with torch.no_grad():
        whole, shuffled = model.features(images), model.features(images, keep=order)
        torch.testing.assert_close(shuffled[:, :3], whole[:, :3], rtol=0, atol=1e-5)
        some, elsewhere = (model.features(images, keep=keep) for keep in (order[:, :8], order[:, 8:16]))
    assert not torch.allclose(some[:, 0], elsewhere[:, 0])


def test_a_block_that_is_not_told_where_its_tokens_stand_refuses() -> None:
    model = ViT(ROTARY)
    with pytest.raises(RecipeError, match=r"give its blocks model.rotation\(images\) too"):
        model.blocks[0](model.embed(torch.zeros(1, 3, 16, 16)))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"width": 12}, "width / heads is 6, and should be a multiple of 4"),
        ({"positions": {"kind": "rotary", "resample": "dino"}}, "model.positions rotary has no table to learn"),
        ({"positions": {"kind": "rotary", "class_token": False}}, "gives the class token no place anyway"),
        ({"positions": {"kind": "learned", "base": 10.0}}, "base goes with rotary alone"),
    ],
)
def test_what_does_not_go_with_rotary_positions_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        ViTConfig.read({**ROTARY.write(), **settings})


@pytest.mark.parametrize(
    ("name", "parameters"), [("S", 21_596_544), ("S+", 28_692_864), ("B", 85_660_416), ("L", 303_129_600)]
)
def test_dinov3_has_as_many_parameters_as_in_transformers(name: str, parameters: int) -> None:
    """There it also has a mask token, for its own training."""
    config = ViTConfig.named(f"dinov3-{name}/16").model_copy(update={"classes": 0, "head": Head(kind="none")})
    with torch.device("meta"):
        model = ViT(config)
    assert sum(parameter.numel() for parameter in model.parameters()) + config.width == parameters


@each_config
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_part_runs_in_other_precisions_at_other_sizes(
    config: ViTConfig, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    if dtype == torch.bfloat16:
        request.getfixturevalue("bfloat16")
    model = ViT(config).eval().to(dtype)
    images = torch.randn(2, 3, 12, 24, dtype=dtype)
    with torch.no_grad():
        assert model(images).dtype == dtype
        assert model.at((12, 24))(images).isfinite().all()


def test_a_model_made_for_another_size_is_a_copy_and_keeps_its_state() -> None:
    strong = Regularise(dropout=0.5, stochastic_depth=0.5)
    model = ViT(TINY, strong)
    model.cls_token.requires_grad_(False)
    other = model.at(64)
    assert other.training and other.regularise == strong and other.config.image_size == 64
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in model.parameters()]
    with torch.no_grad():
        before = [p.clone() for p in model.parameters()]
        for parameter in other.parameters():
            parameter.add_(1)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_models_share_no_module() -> None:
    one, two = ViT(TINY), ViT(TINY)
    assert {id(m) for m in one.modules()} & {id(m) for m in two.modules()} == set()
    assert len(list(one.modules())) == len({id(m) for m in one.modules()})
    assert {f"blocks.{i}.mlp.act" for i in range(2)} <= {name for name, _ in one.named_modules()}


def test_keep_that_is_not_patch_numbers_is_told() -> None:
    tokens = torch.zeros(2, 3, 32, 32)
    for wrong in (torch.zeros(2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int64), torch.zeros(2, 2)):
        with pytest.raises(DataError, match="it takes patch numbers"):
            ViT(TINY).embed(tokens, keep=wrong)


# Leaving out at random


def test_regularisation_acts_in_training_only_and_keeps_the_mean() -> None:
    strong = Regularise(dropout=0.5, attention_dropout=0.5, stochastic_depth=0.5)
    plain, model = ViT(TINY).eval(), ViT(TINY, strong)
    torch.nn.init.normal_(model.head.weight)
    plain.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert not torch.equal(model(images), model(images))
        assert torch.equal(model.eval()(images), plain(images))
    drop = ViT(TINY, Regularise(stochastic_depth=0.25)).blocks[-1].drop
    kept = drop(torch.ones(4000, 1, 1))
    assert kept.mean().item() == pytest.approx(1, abs=0.05)
    assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert ViT(TINY, Regularise(stochastic_depth=0.25)).blocks[0].drop.depth == 0


# What the paper and the tutorials state

TABLE_1 = {"B": (12, 768, 3072, 12, "86M"), "L": (24, 1024, 4096, 16, "307M"), "H": (32, 1280, 5120, 16, "632M")}


@pytest.mark.parametrize("name", TABLE_1)
def test_the_papers_table_1(name: str) -> None:
    """Layers, hidden size D, MLP size, heads, parameters (L's are 304M with 1,000 classes; the table says 307M)."""
    depth, width, mlp_size, heads, parameters = TABLE_1[name]
    config = ViTConfig.named(f"{name}/16")
    assert (config.depth, config.width, config.mlp_size, config.heads) == (depth, width, mlp_size, heads)
    counted = sum(row.parameters * row.times for row in shapes(config)) / 1e6
    assert counted == pytest.approx(float(parameters[:-1]), rel=0.012)


def test_the_model_of_the_cifar_10_tutorial_has_its_number_of_parameters() -> None:
    config = ViTConfig(image_size=32, patch_size=4, width=192, depth=6, heads=3, classes=10)
    assert sum(row.parameters * row.times for row in shapes(config)) == 2_693_578


def test_the_config_has_few_fields_at_the_top() -> None:
    assert len(ViTConfig.model_fields) <= 16


def test_the_whitened_stem_makes_principal_components_equally_large() -> None:
    """Property: of the pictures that were measured, the first layer's numbers are uncorrelated and of variance 1."""
    torch.manual_seed(0)
    config = every_part()["whitened"]
    smooth = torch.nn.functional.interpolate(torch.randn(50, 3, 4, 4), (16, 16), mode="bicubic")  # neighbours alike
    images = smooth + 0.2 * torch.randn(50, 3, 16, 16)
    stem = ViT(config).patch_embed
    assert isinstance(stem, Whitened)
    stem.fit(images)
    seen = torch.nn.functional.conv2d(images, stem.whiten).transpose(0, 1).flatten(1)  # (24, n)
    plus, minus = seen.chunk(2)
    assert torch.equal(plus, -minus)
    torch.testing.assert_close(plus @ plus.T / plus.shape[1], torch.eye(12), rtol=0, atol=0.02)


def test_a_black_picture_can_be_whitened() -> None:
    stem = ViT(every_part()["whitened"]).patch_embed
    assert isinstance(stem, Whitened)
    stem.fit(torch.zeros(2, 3, 16, 16))
    assert stem.whiten.isfinite().all()


@each_config
@torch.no_grad()
def test_forward_spares_work_and_gives_the_logits_of_all_tokens(config: ViTConfig) -> None:
    """Of the last block it computes only the tokens that a classifier sees."""
    model = ViT(config).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    images = torch.randn(2, 3, 16, 16)
    expected = torch.stack(model.logits(model.features(images))).mean(dim=0)
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)

    def flops(run: Callable[[], object]) -> int:
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    spared, all_of_it = flops(lambda: model(images)), flops(lambda: model.logits(model.features(images)))
    if config.tokens_seen is None:
        assert spared == all_of_it
    else:
        mlp = 2 * 2 * config.width * config.mlp_size * len(images)  # FLOPs that a token of the last block costs there
        assert all_of_it - spared >= mlp * (16 + config.extra - config.tokens_seen)


def test_batch_norms_settle_on_what_the_weights_make_of_the_pictures() -> None:
    """Property: settled on the very batches that it is asked about, a stem gives them as it does in training."""
    torch.manual_seed(0)
    stem = ViT(every_part()["whitened"]).patch_embed.eval()
    assert isinstance(stem, Whitened)
    images = 3 * torch.randn(64, 3, 16, 16) + 1
    far = stem(images)
    stem.refit_norms([images])
    assert not stem.training
    with torch.no_grad():
        settled, trained = stem(images), stem.train()(images)
    torch.testing.assert_close(settled, trained, rtol=0, atol=0.02)  # but for n and n - 1 in the variance
    assert (far - trained).abs().max() > 0.5


@pytest.mark.parametrize("tokens", [5, 65, MOST_WRITTEN_OUT + 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_attention_in_short_numbers_is_that_of_long_ones(bfloat16: None, tokens: int, with_bias: bool) -> None:
    """Written out or fused: values and gradients, as far as eight bits of precision go."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, tokens, 16) for _ in "qkv")
    bias = torch.randn(3, tokens, tokens) if with_bias else None
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        asked, keys, values = (each.to(dtype).requires_grad_() for each in (q, k, v))
        taken = attend(asked, keys, values, None if bias is None else bias[None].to(dtype))
        results.append([taken, *torch.autograd.grad(taken.square().sum(), (asked, keys, values))])
    for long, short in zip(*results, strict=True):
        assert short.dtype == torch.bfloat16
        assert (long - short.float()).norm() / long.norm() < 0.02


def test_attention_in_short_numbers_leaves_out_as_many_as_it_is_told(bfloat16: None) -> None:
    q, k = (torch.randn(8, 4, 64, 8, dtype=torch.bfloat16) for _ in "qk")
    v = torch.eye(64, dtype=torch.bfloat16).expand(8, 4, 64, 64)  # what is taken are the shares themselves
    taken = attend(q, k, v, dropped=0.25)
    assert (taken == 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert taken.float().sum(dim=-1).mean() == pytest.approx(1, abs=0.02)
