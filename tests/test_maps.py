"""Maps are what the fused forward pass used, for every family and size; looking leaves no trace."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import FIXTURES, TINY, vit, with_groups
from vitral import RecipeError, ViT, ViTConfig, VitralError, load_pretrained
from vitral.look.maps import Queries, Some, attention_maps, each_block, layout_of
from vitral.model.config import Regularise, Stem
from vitral.model.vit import Block

NO_MODEL = {
    "hf_pixels",
    "sincos",
    "dino_head",
    "lejepa_sigreg",
    "vit_pytorch_lucidrains",
    "vit_pytorch_lucidrains_mean",
}
OTHERS = ("bit", "resnet", "swin")  # no ViTs: ResNets have no attention; of Swin's windows other tests ask
MODELS = sorted(
    path.name
    for path in FIXTURES.iterdir()
    if path.name not in NO_MODEL and not path.name.partition("_")[2].startswith(OTHERS)
)


def fixture(name: str, tmp_path: Path) -> ViT:
    return vit(load_pretrained(with_groups(name, tmp_path) if "hybrid" in name else FIXTURES / name).model)


def trained_looking(config: ViTConfig = TINY) -> ViT:
    """Random weights, all of them: a fresh model has a head of zeros and attention that is almost even."""
    model = ViT(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_maps_are_those_of_the_fused_pass_in_every_family(name: str, tmp_path: Path) -> None:
    """The values, taken as the maps say, are what the fused kernel hands on; at the model's size and at another."""
    model = fixture(name, tmp_path)
    patch, weights = model.config.patch_size, {key: value.clone() for key, value in model.state_dict().items()}
    for height, width in (model.config.height_width, (5 * patch, 3 * patch)):
        images = torch.randn(2, model.config.channels, height, width)
        before, tokens, rotation = model(images), model.embed(images), model.rotation(images)
        for number, shares in each_block(model, images):
            block: Block = model.blocks[number]  # type: ignore[assignment]
            values = block.attn.queries_keys_values(block.norm1(tokens), rotation)[2]
            taken = block.attn.proj((shares @ values).transpose(1, 2).flatten(2))
            fused = block.attn(block.norm1(tokens), rotation=rotation)
            torch.testing.assert_close(taken, fused, rtol=0, atol=1e-5)
            torch.testing.assert_close(shares.sum(dim=-1), torch.ones(shares.shape[:3]))
            tokens = block(tokens, rotation=rotation)
        assert torch.equal(model(images), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_the_last_maps_of_dino_are_its_references_at_all_sizes() -> None:
    """Within 3e-6. 18×16 is no whole number of patches, which DINO cuts off and Vitral refuses."""
    known = load_file(FIXTURES / "dino_reference" / "io.safetensors")
    model, compared = load_pretrained(FIXTURES / "dino_reference").model, []
    for key, reference in known.items():
        word = key.removeprefix("attention_")
        if word == key or word == "18x16":
            continue
        shares = attention_maps(model, known[f"image_{word}"], queries="all").shares[:, 0]
        torch.testing.assert_close(shares, reference, rtol=0, atol=3e-6)
        compared.append(word)
    assert sorted(compared) == ["12x12", "12x24", "16x16", "20x20", "24x16", "8x32"]


@pytest.mark.parametrize("name", MODELS)
def test_every_reference_that_tells_its_attention_is_met(name: str, tmp_path: Path) -> None:
    known = load_file(FIXTURES / name / "io.safetensors")
    model = fixture(name, tmp_path)
    patch = json.loads((FIXTURES / name / "about.json").read_text())["patch_size"]
    for key in known:
        word = key.removeprefix("attention_")
        if word == key or name == "hf_mae" or any(int(side) % patch for side in word.split("x")):
            continue
        shares = attention_maps(model, known[f"image_{word}"], queries="all").shares[:, 0]
        torch.testing.assert_close(shares, known[key].view_as(shares), rtol=0, atol=1e-5)


def test_what_each_token_is() -> None:
    registers = vit(load_pretrained(FIXTURES / "timm_vit_reg4_layerscale").model)
    patch = registers.config.patch_size
    layout = layout_of(registers, (2 * patch, 3 * patch))
    assert layout.extra == ("class", "register 1", "register 2", "register 3", "register 4")
    assert layout.names[5:7] == ("patch 0, 0", "patch 0, 1") and layout.names[-1] == "patch 1, 2"
    assert layout.patches == slice(5, 11) and layout.grid == (2, 3)
    assert layout_of(vit(load_pretrained(FIXTURES / "timm_deit_distilled").model), 16).extra == (
        "class",
        "distillation",
    )
    assert layout_of(vit(load_pretrained(FIXTURES / "timm_vit_gap_noclass").model), 16).extra == ()


def test_register_columns_are_left_out_of_the_picture() -> None:
    model = vit(load_pretrained(FIXTURES / "timm_vit_reg4_layerscale").model)
    patch = model.config.patch_size
    maps = attention_maps(model, torch.randn(1, 3, 2 * patch, 3 * patch), queries="all")
    assert maps.over_patches().shape == (1, 1, model.config.heads, 11, 2, 3)
    assert torch.equal(maps.over_patches().flatten(-2), maps.shares[..., 5:])
    rest = maps.shares[..., :5].sum(dim=-1)
    assert rest.min() > 0
    torch.testing.assert_close(maps.over_patches().sum(dim=(-1, -2)), 1 - rest)


@pytest.mark.parametrize(
    ("blocks", "heads", "queries", "numbers"),
    [
        (-1, "all", "class", ((1,), (0, 1, 2, 3), (0,))),
        ([1, 0], [2, -1], [3, 0, -1], ((1, 0), (2, 3), (3, 0, 16))),
        ("all", 1, "patches", ((0, 1), (1,), tuple(range(1, 17)))),
        (0, 0, "answer", ((0,), (0,), (0,))),
    ],
)
def test_any_blocks_heads_and_tokens(
    blocks: Some, heads: Some, queries: Queries, numbers: Sequence[tuple[int, ...]]
) -> None:
    model, images = trained_looking(), torch.randn(2, 3, 32, 32)
    everything = attention_maps(model, images, blocks="all", queries="all").shares
    maps = attention_maps(model, images, blocks=blocks, heads=heads, queries=queries)
    assert [maps.blocks, maps.heads, maps.queries] == list(numbers)
    expected = everything[:, maps.blocks][:, :, maps.heads][:, :, :, maps.queries]
    assert torch.equal(maps.shares, expected) and expected.std() > 0.01


def test_the_answer_is_asked_for_by_the_tokens_that_are_read() -> None:
    images = torch.randn(1, 3, 16, 16)
    asked = {name: attention_maps(vit(load_pretrained(FIXTURES / name).model), images, queries="answer").queries
             for name in ("timm_vit", "timm_deit_distilled", "timm_vit_reg4_gap", "timm_vit_gap_noclass")}  # fmt: skip
    patches = layout_of(vit(load_pretrained(FIXTURES / "timm_vit_reg4_gap").model), images)
    assert asked["timm_vit"] == (0,) and asked["timm_deit_distilled"] == (0, 1)
    assert asked["timm_vit_reg4_gap"] == tuple(range(patches.patches.start, patches.patches.stop))
    assert asked["timm_vit_gap_noclass"][0] == 0 and len(asked["timm_vit_gap_noclass"]) > 1


def test_a_model_in_training_is_looked_at_as_it_is_used_and_trains_on() -> None:
    """Dropout would give other maps each time, and a BatchNorm would learn from being looked at."""
    config = ViTConfig(
        image_size=16, patch_size=4, width=16, depth=3, heads=2, classes=3, stem=Stem(kind="whitened", channels=8)
    )
    model = ViT(config, Regularise(dropout=0.5, attention_dropout=0.5, stochastic_depth=0.5)).train()
    model.blocks[1].eval()  # somebody's choice, which is kept
    modes = [part.training for part in model.modules()]
    images = torch.randn(4, 3, 16, 16)
    stem = {key: value.clone() for key, value in model.patch_embed.state_dict().items()}
    walk = each_block(model, images)
    first = next(walk)[1]
    assert [part.training for part in model.modules()] == modes  # between two blocks, too
    found = torch.stack([first, *(maps for _, maps in walk)], dim=1)
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, stem[key]) for key, value in model.patch_embed.state_dict().items())
    assert torch.equal(found, attention_maps(model.eval(), images, blocks="all", queries="all").shares)
    assert not found.requires_grad


def test_looking_draws_no_random_numbers_and_leaves_no_hook() -> None:
    model, state = ViT(TINY, Regularise(dropout=0.5)), torch.get_rng_state()
    attention_maps(model, torch.zeros(1, 3, 32, 32))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"blocks": 99}, "There is no block 99: the model has 2, numbered 0 to 1."),
        ({"blocks": [0, -3]}, "There is no block -3: the model has 2, numbered 0 to 1."),
        ({"heads": 4}, "There is no head 4: the model has 4, numbered 0 to 3."),
        ({"queries": 17}, "There is no token 17: such a picture has 17, numbered 0 to 16."),
        ({"blocks": []}, '[] names no block: give a number, several, or "all".'),
        ({"queries": "clas"}, "queries is 'clas': it takes token numbers, or one of class, answer, patches, all."),
    ],
)
def test_what_is_not_there_is_told_at_once(wrong: dict[str, Some], sentence: str) -> None:
    model, images = ViT(TINY), torch.zeros(1, 3, 32, 32)
    for look in (attention_maps, each_block):
        with pytest.raises(RecipeError) as told:
            look(model, images, **wrong)
        assert str(told.value) == sentence


def test_without_a_class_token_the_patches_are_named() -> None:
    model = vit(load_pretrained(FIXTURES / "timm_vit_gap_noclass").model)
    images = torch.zeros(1, 3, *model.config.height_width)
    with pytest.raises(RecipeError, match='no class token that could ask: give queries="patches"'):
        attention_maps(model, images)
    assert attention_maps(model, images, queries="patches").shares.sum() > 0
    with pytest.raises(VitralError, match="do not divide"):
        attention_maps(model, torch.zeros(1, 3, 33, 32), queries="patches")


# In a process of its own, for the most memory that a process has had never falls again.
WALK = """
import sys, torch
from pathlib import Path
from vitral import ViT, ViTConfig
from vitral.look.maps import each_block
model = ViT(ViTConfig(image_size=64, patch_size=16, width=32, depth=int(sys.argv[1]), heads=2, classes=3)).eval()
def most():  # not ru_maxrss, which a process has from the one that started it
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = most()
for number, maps in each_block(model, torch.zeros(1, 3, int(sys.argv[2]), int(sys.argv[2]))):
    tokens = maps.shape[-1]
    del maps
print(tokens, most() - before)
"""


def most_memory(depth: int, size: int) -> tuple[int, int]:  # tokens, KiB
    command = [sys.executable, "-c", WALK, str(depth), str(size)]
    tokens, most = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(tokens), int(most)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells how much memory was used at most")
def test_a_large_picture_needs_the_memory_of_one_block_however_many_there_are() -> None:
    """Softmax holds what it gets and what it gives, so twice the maps; a second block adds nothing to that."""
    tokens, shallow = most_memory(depth=1, size=1024)
    one = 2 * tokens * tokens * 4 // 1024  # two heads in float32
    assert tokens == 4097 and one < shallow < 3.5 * one
    _, deep = most_memory(depth=8, size=1024)
    assert deep < shallow + one / 2
