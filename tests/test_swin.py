"""Swin Transformers: windows and their shift, the references' outputs, and all that a model here should do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from conftest import FIXTURES, quick_digits, stopped
from test_resume import assert_same
from vitral import DataError, Preprocess, RecipeError, Run, WeightsError, load_pretrained, train
from vitral.cli import vitral
from vitral.data.config import Scale
from vitral.deploy.convert import convert
from vitral.model import build
from vitral.model.config import Regularise
from vitral.model.interface import Model
from vitral.model.positions import at_distances
from vitral.model.shapes import count_parameters, shapes
from vitral.model.swin import Block, Merging, Swin, WindowAttention, Windows, pairs
from vitral.model.swin_config import SwinConfig
from vitral.recipe import Recipe
from vitral.weights.own import Weights

SMALL: dict[str, Any] = {
    "image_size": 32, "patch_size": 4, "width": 16, "depths": (2, 2), "heads": (2, 4), "window": 4, "classes": 5
}  # fmt: skip
VERSIONS = pytest.mark.parametrize("version", [1, 2])
REFERENCES = ("timm_swin", "timm_swin_patch2", "hf_swin", "timm_swinv2", "hf_swinv2")


def swin(**settings: Any) -> Swin:
    """A small model, all of whose numbers are random."""
    torch.manual_seed(0)
    model = Swin(SwinConfig(**SMALL | settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


# ---- windows

sides = st.integers(1, 9)


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    grid, size = draw(st.tuples(sides, sides)), draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    shift = tuple(draw(st.integers(0, side - 1)) for side in size)
    return Windows(grid, size, (shift[0], shift[1]), draw(st.booleans()))


@given(windows())
def test_what_is_cut_into_windows_is_put_together_again_to_the_bit(windows: Windows) -> None:
    x = torch.randn(2, *windows.grid, 3)
    cut = windows.cut(x)
    assert cut.shape[2] == windows.size[0] * windows.size[1]
    assert torch.equal(windows.join(cut), x)


@given(windows())
def test_no_token_sees_one_that_is_further_away_than_a_window(windows: Windows) -> None:
    """On the image, not on the rolled map: without the mask tokens from opposite sides would meet. Where timm pads a
    rolled map they do, and here too."""
    assume(windows.pad_first or windows.padded == windows.grid)
    height, width = windows.padded if windows.pad_first else windows.grid
    places = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1)
    rolled = Windows((height, width), windows.size, windows.shift, windows.pad_first)
    cut = rolled.cut(places[None].float() + 1)[0] - 1  # (N, K, 2); padding is at (−1, −1)
    far = (cut[:, :, None] - cut[:, None]).abs()  # (N, K, K, 2)
    seen = torch.ones(far.shape[:3], dtype=torch.bool)
    if (mask := rolled.mask(torch.device("cpu"))) is not None:
        seen = mask[:, 0] == 0
    seen &= (cut[:, :, None] >= 0).all(-1) & (cut[:, None] >= 0).all(-1)
    limit = torch.tensor(windows.size)
    assert (far[seen] < limit).all()


def test_a_shifted_window_joins_what_four_windows_had_apart() -> None:
    """The drawing at the top of swin.py: 4 × 4 tokens, windows of 2 × 2, and a shift by 1."""
    letters = torch.tensor([[ord(letter) for letter in row] for row in ("abbc", "deef", "deef", "ghhi")])
    shifted = Windows((4, 4), (2, 2), (1, 1))
    cut = ["".join(chr(int(one)) for one in window) for window in shifted.cut(letters[None, :, :, None])[0, :, :, 0]]
    assert cut == ["eeee", "fdfd", "hhbb", "igca"]
    mask = shifted.mask(torch.device("cpu"))
    assert mask is not None
    for window, word in zip(mask[:, 0] == 0, cut, strict=True):
        assert [[bool(sees) for sees in row] for row in window] == [[a == b for b in word] for a in word]


def test_two_tokens_have_the_row_of_their_distance() -> None:
    rows = pairs((2, 3), torch.device("cpu"))
    assert rows.shape == (6, 6) and rows.max() < 3 * 5
    by_distance: dict[tuple[int, int], set[int]] = {}
    for query in range(6):
        for key in range(6):
            distance = (query // 3 - key // 3, query % 3 - key % 3)
            by_distance.setdefault(distance, set()).add(int(rows[query, key]))
    assert len(by_distance) == 15 and all(len(rows) == 1 for rows in by_distance.values())
    assert len(set.union(*by_distance.values())) == 15


@VERSIONS
def test_the_map_tells_what_the_fused_attention_used(version: int) -> None:
    model = swin(version=version)
    block, cut = model.stages[0].each((8, 8))[1]  # type: ignore[operator]
    x = cut.cut(torch.randn(2, 8, 8, 16))
    shares = block.attn.map(x, cut)  # (B, N, heads, K, K)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 4, 2, 16))
    values = block.attn.queries_keys_values(x)[2]
    expected = block.attn.proj((shares @ values).transpose(2, 3).flatten(3))
    torch.testing.assert_close(block.attn(x, cut), expected, rtol=1e-4, atol=1e-5)


@VERSIONS
def test_a_block_shows_a_token_only_to_its_window_and_the_next_block_to_the_windows_beside(version: int) -> None:
    model = swin(version=version, depths=(2,), heads=(2,))
    x = torch.randn(1, 8, 8, 16)
    changed = x.clone()
    changed[0, 3, 3] += torch.randn(16)  # the last of the first window
    (first, cut), (second, shifted) = model.stages[0].each((8, 8))  # type: ignore[operator]
    once = (first(changed, cut) - first(x, cut)).abs().sum(-1)[0] > 0
    assert once[:4, :4].all() and once.sum() == 16
    twice = (second(changed, shifted) - second(x, shifted)).abs().sum(-1)[0] > 0
    assert twice[2:6, 2:6].all() and twice.sum() == 16


def test_merging_takes_each_square_column_by_column_and_zeros_beside_an_odd_side() -> None:
    numbers = torch.arange(1.0, 16.0).view(1, 3, 5, 1)
    assert Merging.squares(numbers)[0, 0, 0].tolist() == [1, 6, 2, 7]
    assert Merging.squares(numbers)[0, 1, 2].tolist() == [15, 0, 0, 0]


def test_a_table_brought_to_a_larger_window_keeps_its_middle_and_its_edges() -> None:
    table = torch.randn(7 * 7, 2)
    larger = at_distances(table, (4, 4), (6, 6)).view(11, 11, 2)
    plane = table.view(7, 7, 2)
    for far, near in ((larger[5, 5], plane[3, 3]), (larger[0, 0], plane[0, 0]), (larger[10, 5], plane[6, 3])):
        torch.testing.assert_close(far, near, rtol=0, atol=1e-4)
    assert at_distances(table, (4, 4), (4, 4)) is table


# ---- the references


def sizes(name: str) -> list[tuple[int, int]]:
    return [(h, w) for h, w in json.loads((FIXTURES / name / "about.json").read_text())["sizes"]]


@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name in REFERENCES for size in sizes(name)], ids=lambda one: str(one)
)
@torch.inference_mode()
def test_outputs_are_equal_at_every_size(name: str, size: tuple[int, int]) -> None:
    """Within 1e-5: with windows that do not divide a map, that are larger than it, or not square, and where patches do
    not divide the image; through the model as it is, and through one that was made for the size."""
    known, word = load_file(FIXTURES / name / "io.safetensors"), f"{size[0]}x{size[1]}"
    models = [load_pretrained(FIXTURES / name).model]
    if name != "hf_swinv2":  # which keeps the windows of its own size: one made for another size has others
        models.append(load_pretrained(FIXTURES / name, image_size=size).model)
    for model in models:
        images = known[f"image_{word}"]
        found = {"tokens": model.features(images), "logits": model(images)} | parts(model, images)
        compared = [key for key in found if f"{key}_{word}" in known]
        assert {"tokens", "logits"} <= set(compared)
        for key in compared:
            torch.testing.assert_close(found[key], known[f"{key}_{word}"].view_as(found[key]), rtol=0, atol=1e-5)


def parts(model: Model, images: Tensor) -> dict[str, Tensor]:
    """What the references tell beside tokens and logits."""
    assert isinstance(model, Swin)
    x = embedded = model.patch_embed(images)
    for stage in model.stages[:-1]:
        x = stage(x)
    found = {"embedded": embedded} | ({"stage1": x} if len(model.stages) == 2 else {})
    last: Any = model.stages[-1]
    x = last.downsample(x)
    for block, windows in last.each(tuple(x.shape[1:3])):
        shares = block.attn.map(windows.cut(block.attention_input(x)), windows)
        x = block(x, windows)
    return found | {"attention": shares.flatten(0, 1), "pooled": model.pool(model.features(images))}


def test_the_sizes_of_the_paper_have_their_number_of_parameters() -> None:
    counts = {name: count_parameters(shapes(SwinConfig.named(name))) for name in ("T", "S", "B", "L")}
    assert counts == {"T": 28_288_354, "S": 49_606_258, "B": 87_768_224, "L": 196_532_476}


def test_the_authors_names_are_read_too(tmp_path: Path) -> None:
    """They have merging at the end of a stage, and buffers that are made anew each time."""
    tensors = load_file(FIXTURES / "timm_swin" / "model.safetensors")
    theirs = {
        name.replace("layers.1.downsample", "layers.0.downsample").replace("head.fc", "head"): tensor
        for name, tensor in tensors.items()
    }
    theirs["layers.0.blocks.0.attn.relative_position_index"] = pairs((4, 4), torch.device("cpu"))
    theirs["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 16, 16)
    save_file(theirs, tmp_path / "model.safetensors")
    ours, authors = load_pretrained(FIXTURES / "timm_swin"), load_pretrained(tmp_path)
    assert authors.loaded is not None and authors.loaded.family == "Swin's authors"
    for name, tensor in ours.model.state_dict().items():
        assert torch.equal(tensor, authors.model.state_dict()[name])


def test_what_tensors_of_version_2_do_not_tell_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((FIXTURES / "timm_swinv2" / "model.safetensors").read_bytes())
    with pytest.raises(WeightsError, match="No tensor tells window and image_size: put the config.json"):
        load_pretrained(tmp_path)
    hub = {"architecture": "swinv2_tiny_window4_32", "pretrained_cfg": {"input_size": [3, 32, 32]}}
    (tmp_path / "config.json").write_text(json.dumps(hub))
    expected = load_pretrained(FIXTURES / "timm_swinv2").model
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(load_pretrained(tmp_path).model(images), expected(images))
    (tmp_path / "config.json").write_text(json.dumps(hub | {"architecture": "swinv2_tiny_window2to4_16to32"}))
    with pytest.raises(WeightsError, match="trained_windows is of version 2, with a number for each of 2 stages"):
        load_pretrained(tmp_path)  # of these there are four, as in every Swin that timm has


# ---- a model as every other


@VERSIONS
@pytest.mark.parametrize("size", [(32, 32), (24, 24), (28, 44), (35, 30), (64, 32), (4, 9)], ids=str)
@torch.inference_mode()
def test_made_for_a_size_it_gives_what_it_gives_at_that_size(version: int, size: tuple[int, int]) -> None:
    model, images = swin(version=version), torch.randn(2, 3, *size)
    there = model.at(size)
    torch.testing.assert_close(there(images), model(images), rtol=0, atol=1e-5)
    assert there.config.height_width == size
    down, across = model.grid_of(images)
    assert model.features(images).shape == (2, down * across, 32)


@VERSIONS
def test_every_parameter_gets_a_gradient(version: int) -> None:
    model = swin(version=version)
    model(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@VERSIONS
def test_a_block_of_version_2_starts_as_the_identity_and_the_head_at_zero(version: int) -> None:
    model = Swin(SwinConfig(**SMALL | {"version": version}))
    x = torch.randn(1, 8, 8, 16)
    block, windows = model.stages[0].each((8, 8))[1]  # type: ignore[operator]
    assert torch.equal(block(x, windows), x) == (version == 2)
    assert not model(torch.randn(2, 3, 32, 32)).any()


def test_layers_have_every_parameter_once_and_merging_goes_with_the_block_after_it() -> None:
    model = swin()
    layers = model.layers()
    names = [name for layer in layers for name in layer.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert [(layer.name, layer.depth, layer.part) for layer in layers] == [
        ("embedding", 0, "trunk"), ("blocks.0", 1, "trunk"), ("blocks.1", 2, "trunk"), ("blocks.2", 3, "trunk"),
        ("blocks.3", 4, "trunk"), ("norm", 5, "trunk"), ("head", 5, "head"),
    ]  # fmt: skip
    assert "stages.1.downsample.reduction.weight" in layers[3].parameters


@pytest.mark.slow
@VERSIONS
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's inductor, of torch's own code
def test_it_compiles_as_one_graph(version: int, backend: str) -> None:
    torch._dynamo.reset()
    model, images = swin(version=version), torch.randn(2, 3, 36, 28)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@VERSIONS
def test_it_exports_with_any_batch_size_and_another_image_size(version: int) -> None:
    model, batch = swin(version=version).at((24, 36)), torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (torch.randn(2, 3, 24, 36),), dynamic_shapes=({0: batch},)).module()
    images = torch.randn(5, 3, 24, 36)
    with torch.no_grad():
        torch.testing.assert_close(exported(images), model(images), rtol=1e-4, atol=1e-5)


@VERSIONS
def test_a_step_of_training_needs_no_cpu(version: int) -> None:
    with torch.device("meta"):
        regularise = Regularise(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1)
        model = Swin(SwinConfig(**SMALL | {"version": version}), regularise)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.empty(2, 3, 36, 28)).sum().backward()
        optimizer.step()
    assert all(parameter.device.type == "meta" for parameter in model.parameters())


def test_a_whole_branch_is_left_out_for_a_whole_image() -> None:
    model = Swin(SwinConfig(**SMALL), Regularise(stochastic_depth=1 - 1e-9)).train()
    drops = [block.drop.depth for block in model.modules() if isinstance(block, Block)]
    assert drops[0] == 0 and drops == sorted(drops)
    last, windows = model.stages[-1].each((4, 4))[1]  # type: ignore[operator]
    x = torch.randn(3, 4, 4, 32)
    assert torch.equal(last(x, windows), x)


def test_what_a_swin_cannot_do_is_said_in_a_sentence() -> None:
    model = swin()
    with pytest.raises(RecipeError, match="no patch can be left out"):
        model(torch.randn(1, 3, 32, 32), torch.tensor([[0]]))
    with pytest.raises(DataError, match="The images have 1 channels, and the model takes 3"):
        model(torch.randn(1, 1, 32, 32))
    with pytest.raises(DataError, match="3×32 have no room for a patch of 4 pixels"):
        model(torch.randn(1, 3, 3, 32))
    for settings, words in (
        ({"heads": (3, 4)}, "model.heads 3 does not divide the width 16 of its stage"),
        ({"heads": (2,)}, "a number from 1 for each stage, and depths has 2"),
        ({"image_size": 2}, "model.image_size 2 is not between model.patch_size 4"),
        ({"mlp": "swiglu"}, "model.mlp swiglu is none of a Swin"),
        ({"trained_windows": (2, 2)}, "model.trained_windows is of version 2"),
        ({"head": "none"}, "model.head none has no classes"),
    ):
        with pytest.raises(RecipeError, match=words):
            SwinConfig(**SMALL | settings)
    with pytest.raises(RecipeError, match="model.classes is 0"):
        build(SwinConfig(**SMALL | {"classes": 0}))


def test_attention_of_version_2_does_not_see_how_long_tokens_are() -> None:
    model = swin(version=2, bias=False)
    block, windows = model.stages[0].each((8, 8))[0]  # type: ignore[operator]
    x = windows.cut(torch.randn(1, 8, 8, 16))
    torch.testing.assert_close(block.attn.map(3 * x, windows), block.attn.map(x, windows))
    plain, windows = swin(bias=False).stages[0].each((8, 8))[0]  # type: ignore[operator]
    assert isinstance(plain.attn, WindowAttention)
    assert (plain.attn.map(3 * x, windows) - plain.attn.map(x, windows)).abs().max() > 0.01


# ---- a run as every other

DIGITS: dict[str, Any] = {
    "kind": "swin", "image_size": 8, "patch_size": 1, "channels": 1, "width": 8, "depths": [2, 2], "heads": [2, 2],
    "window": 3, "classes": 10,
}  # fmt: skip


def digits_recipe(version: int = 1) -> Recipe:
    """Small, and with all that draws random numbers."""
    settings = {"model": DIGITS | {"version": version}, "data.augment.mixup": 0.8, "train.regularise.dropout": 0.1}
    settings |= {"train.regularise.attention_dropout": 0.1, "train.regularise.stochastic_depth": 0.2}
    return quick_digits().changed(settings | {"train.image_size": "rising", "train.ema": 0.9, "train.accumulate": 2})


@pytest.mark.slow
@VERSIONS
def test_a_training_that_was_stopped_ends_with_the_same_bits(version: int, tmp_path: Path) -> None:
    whole = train(digits_recipe(version), out=tmp_path / "whole")
    run = stopped(digits_recipe(version), tmp_path / "run", after=7)
    assert_same(train(out=run, resume=True), whole)
    assert Run.load(run).weights().model.config == digits_recipe(version).model


@pytest.mark.slow
def test_every_command_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(quick_digits().changed({"model": DIGITS}), out="run")
    Image.new("L", (20, 12), 90).save("grey.png")
    for words in (
        "evaluate run", "predict run grey.png", "look run grey.png --out maps", "look run --model --out model",
        "probe run digits --out probe", "embed run digits --out vectors", "convert run --to timm --out timm",
        "predict timm grey.png", "shapes run", "shapes run --draw run.svg", "show run",
        "train digits init.weights=run init.mode=gentle train.epochs=1 train.baseline=false --out tuned",
        "compare run tuned",
    ):  # fmt: skip
        told = CliRunner().invoke(vitral, words.split())
        assert told.exit_code == 0, f"{words}: {told.output} {told.exception!r}"
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Where it looked" in report


# ---- to other libraries


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("to", ["hf", "timm"])
def test_converted_and_loaded_again_it_gives_the_same(name: str, to: str, tmp_path: Path) -> None:
    pretrained = load_pretrained(FIXTURES / name)
    folder = convert(FIXTURES / name, to, tmp_path / "out")
    again = load_pretrained(folder)
    images = torch.randn(2, 3, *pretrained.model.config.height_width)
    with torch.inference_mode():
        torch.testing.assert_close(again.model(images), pretrained.model(images), rtol=0, atol=1e-6)
    card = (folder / "README.md").read_text()
    assert "Swin Transformer" in card and "windows of" in card


def test_what_another_library_cannot_hold_is_refused_in_a_sentence(tmp_path: Path) -> None:
    preprocess = Preprocess(image_size=(28, 44), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    names = ("a", "b", "c", "d", "e")
    oblong = Weights(swin().at((28, 44)), preprocess, names)
    small = Weights(swin(window=(4, 2)).at((32, 32)), preprocess.model_copy(update={"image_size": (32, 32)}), names)
    quick = Weights(swin(mlp="gelu-tanh"), preprocess.model_copy(update={"image_size": (32, 32)}), names)
    for weights, to, words in (
        (oblong, "hf", "windows of 4 tokens do not divide all maps of an image of 28 × 44"),
        (small, "hf", "one for all stages"),
        (quick, "timm", "its model.mlp is gelu-tanh, and would be gelu"),
        (quick, "npz", "There is no way to write a swin for npz: choose hf or timm"),
    ):
        with pytest.raises(WeightsError, match=words):
            convert(weights, to, tmp_path / "out")
    assert convert(oblong, "timm", tmp_path / "timm").is_dir()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs are not ours
@VERSIONS
def test_transformers_answers_the_same(version: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    preprocess = Preprocess(
        image_size=(32, 48), channels=3, resize=Scale(kind="stretch"), mean=(0.5,) * 3, std=(0.5,) * 3
    )
    ours = swin(version=version, image_size=(32, 48), patch_size=2)
    folder = convert(Weights(ours, preprocess, ("a", "b", "c", "d", "e")), "hf", tmp_path / "hf")
    theirs, told = transformers.AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values())
    images = torch.randn(2, 3, 32, 48)
    with torch.inference_mode():
        torch.testing.assert_close(theirs.eval()(pixel_values=images).logits, ours(images), rtol=0, atol=1e-5)
