"""Models with timm's attributes in memory, and files of timm: the same outputs, a question, or a refusal."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

from conftest import vit
from vitral import ViT, ViTConfig, WeightsError, load_pretrained
from vitral.weights.architectures import architecture_named, architectures

Module = Callable[..., nn.Module]


class Stem(nn.Module):
    def __init__(self, img_size: tuple[int, int], patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.img_size = img_size
        self.grid_size = (img_size[0] // patch, img_size[1] // patch)
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, act: nn.Module, gated: bool) -> None:
        super().__init__()
        self.fc1, self.act = nn.Linear(width, 4 * width if gated else 2 * width), act
        self.fc2, self.gated = nn.Linear(2 * width, width), gated

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.fc2(self.act(self.fc1(x)))
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(self.act(gate) * value)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, norm: Module, act: nn.Module, gated: bool, post: bool) -> None:
        super().__init__()
        self.norm1, self.attn = norm(width), Attention(width, heads)
        self.norm2, self.mlp, self.post = norm(width), Mlp(width, act, gated), post

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = x + self.norm1(self.attn(x))
            return x + self.norm2(self.mlp(x))
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TimmViT(nn.Module):
    """What timm's VisionTransformer keeps and does, as far as we look at it. Width 24, three heads, two blocks."""

    def __init__(
        self,
        img_size: tuple[int, int] = (32, 32),
        channels: int = 3,
        registers: int = 0,
        norm: Module = nn.LayerNorm,
        act: nn.Module | None = None,
        gated: bool = False,
        post: bool = False,
        pool: str = "token",
        fc_norm: bool = False,
        pool_include_prefix: bool = False,
        any_size: str = "",
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.global_pool, self.pool_include_prefix, self.any_size = pool, pool_include_prefix, any_size
        self.pretrained_cfg = {"input_size": (3, 224, 224), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}
        self.patch_embed = Stem(img_size, 8, channels, 24)
        self.prefix = 1 + registers
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 24))
        if registers:
            self.reg_token = nn.Parameter(torch.zeros(1, registers, 24))
        down, across = self.patch_embed.grid_size
        self.pos_embed = nn.Parameter(torch.zeros(1, self.prefix + down * across, 24))
        blocks = [Block(24, 3, norm, act or nn.GELU(), gated, post) for _ in range(2)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.Identity() if fc_norm else norm(24)
        self.fc_norm = norm(24) if fc_norm else nn.Identity()
        self.head = nn.Linear(24, 5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))

    def forward(self, images: Tensor) -> Tensor:
        x, positions = self.patch_embed(images), self.pos_embed + 0
        grid = (images.shape[2] // 8, images.shape[3] // 8)
        if grid != self.patch_embed.grid_size:
            assert self.any_size, "Input size doesn't match model."
            table = positions[:, self.prefix :].unflatten(1, self.patch_embed.grid_size).permute(0, 3, 1, 2)
            table = interpolate(table, grid, mode="bicubic", antialias=self.any_size == "antialiased")
            positions = torch.cat([positions[:, : self.prefix], table.flatten(2).transpose(1, 2)], dim=1)
        tokens = [self.cls_token, self.reg_token] if self.prefix > 1 else [self.cls_token]
        x = torch.cat([*(one.expand(len(x), -1, -1) for one in tokens), x], dim=1) + positions
        x = self.norm(self.blocks(x))
        if self.global_pool == "avg":
            x = x[:, 0 if self.pool_include_prefix else self.prefix :].mean(dim=1)
        else:
            x = x[:, 0]
        return self.head(self.fc_norm(x))


SAME: dict[str, dict[str, Any]] = {
    "plain": {},
    "oblong, 2×4 + 1 = 3²": {"img_size": (16, 32)},
    "oblong, 2×8 = 4²": {"img_size": (16, 64)},
    "grey": {"channels": 1},
    "six channels": {"channels": 6},
    "tanh": {"act": nn.GELU("tanh")},
    "gated": {"act": nn.SiLU(), "gated": True},
    "mean": {"pool": "avg", "fc_norm": True},
    "rms": {"norm": partial(nn.RMSNorm, eps=1e-6)},
    "mean, norm before": {"pool": "avg"},
    "mean of all tokens": {"pool": "avg", "pool_include_prefix": True, "registers": 2},
    "norm after the token": {"fc_norm": True},
    "4 registers, 2×2 + 5 = 3²": {"img_size": (16, 16), "registers": 4},
    "any size": {"any_size": "antialiased"},
    "any size, another rule": {"any_size": "bicubic"},
}


@pytest.mark.parametrize("arguments", SAME.values(), ids=SAME)
def test_a_model_of_timm_in_memory_gives_the_same(arguments: dict[str, Any]) -> None:
    theirs = TimmViT(**arguments)
    height, width = theirs.patch_embed.img_size
    pretrained = load_pretrained(theirs)
    sizes = [(height, width), (height + 16, width - 8)] if theirs.any_size else [(height, width)]
    for size in sizes:
        images = torch.randn(2, theirs.patch_embed.proj.in_channels, *size)
        with torch.inference_mode():
            torch.testing.assert_close(pretrained.model(images), theirs(images), rtol=0, atol=1e-5)
    assert pretrained.preprocess.image_size == (height, width)
    assert pretrained.preprocess.channels == theirs.patch_embed.proj.in_channels
    assert pretrained.loaded is not None and "compared" in dict(pretrained.loaded.rows)
    if theirs.any_size:
        assert (f"resample = {theirs.any_size}", "the module") in pretrained.loaded.facts


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "relu": ({"act": nn.ReLU()}, "The module asks for relu as act_layer"),
    "silu": ({"act": nn.SiLU()}, "The module asks for silu as act_layer"),
    "gelu in a gated MLP": ({"gated": True}, "The module asks for gelu as act_layer, and a gated MLP here has silu"),
    "post-norm": ({"post": True}, "differ by .* from block 0 on"),
    "max": ({"pool": "max"}, "The module asks for max as global_pool, which ours has not"),
}


@pytest.mark.parametrize(("arguments", "sentence"), OTHER.values(), ids=OTHER)
def test_a_part_that_ours_has_not_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WeightsError, match=sentence):
        load_pretrained(TimmViT(**arguments))


class Shifted(TimmViT):
    """Differs where it is told to."""

    place = ""

    def forward(self, images: Tensor) -> Tensor:
        if self.place == "embedding":
            images = images + 1
        output = super().forward(images)
        return output + 1 if self.place == "head" else output


@pytest.mark.parametrize(
    ("place", "words"), [("embedding", "before the first block"), ("head", "after the last block")]
)
def test_the_first_difference_is_named(place: str, words: str) -> None:
    module = Shifted()
    module.place = place
    with pytest.raises(WeightsError, match=words):
        load_pretrained(module)


def test_a_difference_in_a_later_block_is_named() -> None:
    module = TimmViT()
    module.blocks[1].register_forward_hook(lambda block, inputs, output: 2 * output)
    with pytest.raises(WeightsError, match="from block 1 on"):
        load_pretrained(module)


def test_comparing_leaves_the_module_and_the_random_numbers_as_they_were() -> None:
    module = TimmViT().train()
    module.blocks[0].eval()
    before, modes = torch.get_rng_state(), [part.training for part in module.modules()]
    load_pretrained(module)
    assert torch.equal(before, torch.get_rng_state())
    assert [part.training for part in module.modules()] == modes
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in module.parameters())


def test_a_model_that_learns_leaves_the_module_it_came_from_as_it_was() -> None:
    module = TimmViT()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = load_pretrained(module).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class InATable(TimmViT):
    def forward(self, x: Tensor) -> Any:
        return {"answer": super().forward(x)}


def test_outputs_that_cannot_be_compared_are_told() -> None:
    """The blocks are alike; what comes after them nobody has seen."""
    pretrained = load_pretrained(InATable())
    assert any("unchecked: whether outputs are the same, as its output has" in note for note in pretrained.notes)
    with pytest.raises(WeightsError, match="from block 0 on"):
        load_pretrained(InATable(post=True))


def test_half_precision_is_compared_in_full() -> None:
    half = TimmViT().to(torch.bfloat16)
    assert "compared" in dict(load_pretrained(half).loaded.rows)  # type: ignore[union-attr]
    assert half.head.weight.dtype == torch.bfloat16


class Bare(nn.Module):
    """Its tensors, and nothing that takes a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TimmViT()
        for name, child in self.inner.named_children():
            self.add_module(name, child)
        self.cls_token, self.pos_embed = self.inner.cls_token, self.inner.pos_embed
        del self.inner


def test_a_module_that_takes_no_picture_is_loaded_and_told() -> None:
    pretrained = load_pretrained(Bare())
    assert vit(pretrained.model).config.heads == 3
    assert any("unchecked: whether outputs are the same, as it does not take a picture" in n for n in pretrained.notes)


# ---- files: what no tensor tells


def saved(folder: Path, config: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A file of tensors as timm has them, and config.json beside it."""
    values = {"image_size": 32, "depth": 1, "classes": 3} | settings
    model = ViT(ViTConfig.read(values, "model."))
    save_file(model.state_dict(), folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"pretrained_cfg": {"input_size": [3, 32, 32]}} | config))
    return folder


CLIP: dict[str, Any] = {"width": 768, "stem": {"kind": "linear", "bias": False}, "blocks": {"first_norm": True}}
GAP: dict[str, Any] = {"width": 768, "tokens": "none", "pool": "mean"}
RPN = GAP | {"attention": {"bias": False}, "pool": {"kind": "mean", "norm": "after"}}


@pytest.mark.parametrize(
    ("name", "settings", "facts"),
    [
        ("vit_base_patch16_224", {"width": 768}, (12, "gelu", 1e-6)),
        ("vit_base_patch16_clip_224", CLIP, (12, "gelu", 1e-5)),
        ("vit_base_patch16_clip_quickgelu_224", CLIP, (12, "gelu-quick", 1e-5)),
        ("vit_base_patch16_gap_224", GAP, (16, "gelu", 1e-6)),
        ("vit_base_patch16_siglip_gap_224.v2_webli", GAP, (12, "gelu", 1e-6)),
        ("vit_base_patch32_siglip_gap_256", GAP, (12, "gelu-tanh", 1e-6)),
    ],
)
def test_the_name_in_config_json_tells_what_tensors_do_not(
    tmp_path: Path, name: str, settings: dict[str, Any], facts: tuple[int, str, float]
) -> None:
    folder = saved(tmp_path, {"architecture": name}, **settings)
    config = vit(load_pretrained(folder).model).config
    assert (config.heads, config.mlp.kind, config.blocks.norm_eps) == facts
    arguments = {"num_heads": 24, "act_layer": "gelu_tanh"}
    config = vit(
        load_pretrained(saved(tmp_path, {"architecture": name, "model_args": arguments}, **settings)).model
    ).config
    assert (config.heads, config.mlp.kind) == (24, "gelu-tanh")


AIMV2: dict[str, Any] = {
    "width": 1024, "patch_size": 16, "tokens": "none", "pool": "mean", "heads": 8,
    "stem": {"kind": "linear", "norm": True}, "attention": {"kind": "softmax", "bias": False},
    "mlp": {"kind": "swiglu", "ratio": 2.75}, "blocks": {"norm": "rms", "norm_eps": 1e-5, "bias": False},
}  # fmt: skip


@pytest.mark.parametrize("config", [None, {"architecture": "aimv2_large_patch14_224.apple_pt"}], ids=["bare", "name"])
def test_norms_without_a_bias_are_rmsnorm_where_all_of_such_a_shape_have_it(
    config: dict[str, Any] | None, tmp_path: Path
) -> None:
    """Also where gate and value lie apart, as timm has them, and config.json has the name alone."""
    folder = saved(tmp_path, config, **AIMV2)
    if config:
        tensors = load_file(folder / "model.safetensors")
        gate, value = tensors.pop("blocks.0.mlp.fc1.weight").clone().chunk(2)
        apart = {"blocks.0.mlp.fc1_g.weight": gate, "blocks.0.mlp.fc1_x.weight": value}
        save_file(tensors | apart, folder / "model.safetensors")
    found = vit(load_pretrained(folder).model).config
    assert found == ViTConfig.read({"image_size": 32, "depth": 1, "classes": 3} | AIMV2, "model.")


def test_norms_without_a_bias_that_no_name_has_are_asked_for(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"width": 192, "heads": 3, "blocks": {"norm": "rms"}}
    with pytest.raises(WeightsError, match='If its norms are RMSNorm, write {"norm": "rms"} into an about.json'):
        load_pretrained(saved(tmp_path, **settings))
    (tmp_path / "about.json").write_text('{"norm": "rms"}')
    assert vit(load_pretrained(tmp_path).model).config.blocks.norm == "rms"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            CLIP,
            "tells mlp: give mlp='gelu-quick' as in .*clip_quickgelu_224 or mlp='gelu' as in vit_base_patch16_clip_",
        ),
        (GAP, "tells heads and mlp: give heads=12 as in .*siglip.* or heads=16 as in vit_base_patch16_gap_224"),
        ({"width": 40, "heads": 4}, "40 is no usual width: give heads=…, or write it into an about.json"),
        (RPN, "norms stand after attention and MLP"),
    ],
    ids=["clip", "gap", "width", "post-norm"],
)
def test_what_known_models_differ_in_is_asked_for(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WeightsError, match=sentence):
        load_pretrained(saved(tmp_path, **settings))


def test_an_activation_that_is_none_of_ours_is_told_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="mlp is relu, and a ViT here has gelu, gelu-quick, gelu-tanh"):
        load_pretrained(saved(tmp_path, width=192, heads=3), mlp="relu")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["vit_small_patch16_rope_ape_224", "vit_pe_spatial_small_patch16_512.fb"])
def test_a_name_that_stands_for_turned_queries_and_keys_is_refused(tmp_path: Path, name: str) -> None:
    """No tensor of theirs tells."""
    with pytest.raises(WeightsError, match="rotary positions other than DINOv3's"):
        load_pretrained(saved(tmp_path, {"architecture": name}, width=384, heads=6))


def test_a_name_that_the_tensors_contradict_tells_nothing(tmp_path: Path) -> None:
    """Early versions of timm wrote no arguments: `create_model("vit_base_patch16_224", embed_dim=192, num_heads=3)`."""
    folder = saved(tmp_path, {"architecture": "vit_base_patch16_224"}, width=192, heads=3)
    assert vit(load_pretrained(folder).model).config.heads == 3
    folder = saved(tmp_path, {"architecture": "vit_base_patch16_224", "model_args": {"embed_dim": 192}}, width=192)
    assert vit(load_pretrained(folder).model).config.heads == 12


def test_an_answer_settles_it(tmp_path: Path) -> None:
    config = vit(load_pretrained(saved(tmp_path, **CLIP), mlp="gelu-quick").model).config
    assert (config.heads, config.mlp.kind, config.blocks.norm_eps) == (12, "gelu-quick", 1e-5)
    config = vit(load_pretrained(saved(tmp_path, **GAP), heads=16).model).config  # only one has 16, with a GELU
    assert (config.heads, config.mlp.kind) == (16, "gelu")
    with pytest.raises(WeightsError, match="No tensor tells mlp"):  # nobody has 24, which answers nothing else
        load_pretrained(tmp_path, heads=24)
    (tmp_path / "about.json").write_text('{"heads": 12, "mlp": "gelu-tanh"}')
    config = vit(load_pretrained(tmp_path).model).config
    assert (config.heads, config.mlp.kind) == (12, "gelu-tanh")


@pytest.mark.parametrize(("width", "heads"), [(192, 3), (384, 6), (768, 12), (1024, 16)])
@pytest.mark.parametrize(
    "settings",
    [{}, {"tokens": "distilled"}, {"blocks": {"layer_scale": 1.0}}, {"pool": {"kind": "mean", "norm": "after"}}],
    ids=["plain", "distilled", "layer scale", "mean"],
)
def test_common_files_are_not_asked_about(tmp_path: Path, width: int, heads: int, settings: dict[str, Any]) -> None:
    config = vit(load_pretrained(saved(tmp_path, width=width, heads=heads, **settings)).model).config
    assert (config.heads, config.mlp.kind, config.blocks.norm_eps) == (heads, "gelu", 1e-6)


def test_a_grid_that_could_be_two_is_asked_for(tmp_path: Path) -> None:
    folder = saved(tmp_path, width=192, heads=3, patch_size=16, tokens={"kind": "class", "registers": 4})
    model = vit(load_pretrained(folder).model)  # 2×2 patches, one row more
    table = torch.cat([model.pos_embed, torch.zeros(1, 4, 192)], dim=1).contiguous()  # type: ignore[list-item]
    save_file(model.state_dict() | {"pos_embed": table}, folder / "model.safetensors")
    with pytest.raises(WeightsError, match="9 rows, which is 2×2 or 3×3 of patches: give image_size"):
        load_pretrained(folder)
    assert vit(load_pretrained(folder, image_size=32).model).config.grid == (2, 2)
    assert vit(load_pretrained(folder, image_size=48).model).config.grid == (3, 3)


def test_an_oblong_is_not_taken_for_a_square_without_a_class_token(tmp_path: Path) -> None:
    folder = saved(tmp_path, width=192, heads=3, image_size=[32, 64])  # 2×4 + 1 = 3²
    with pytest.raises(WeightsError, match="9 rows, which is no square of patches: give image_size"):
        load_pretrained(folder)
    assert vit(load_pretrained(folder, image_size=(32, 64)).model).config.grid == (2, 4)


def test_the_table_of_timm_is_sound() -> None:
    names = [name for row in architectures() for name in row.names]
    assert len(names) == len(set(names)) > 120
    assert all(int(row.shape.split()[0]) % row.heads == 0 for row in architectures())
    assert all(row.mlp in ("gelu", "gelu-tanh", "gelu-quick", "silu") for row in architectures())
    assert architecture_named("deit_tiny_patch16_224.fb_in1k") is architecture_named("vit_tiny_patch16_224")
