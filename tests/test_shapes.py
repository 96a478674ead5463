"""The table of shapes tells the truth: compared with the model as it runs, and with torch's own counter."""

# torch types what a ModuleList holds as Tensor or Module; here we look inside.
# mypy: disable-error-code="union-attr, operator"

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from conftest import TINY
from vitral import ViTConfig
from vitral.cli.shapes import command
from vitral.model import build
from vitral.model.config import ImageSize, Mlp, ModelConfig, Regularise
from vitral.model.interface import Layer, Model
from vitral.model.kinds import AnyModelConfig
from vitral.model.shapes import ShapeRow, on_meta, shapes

CONFIG: TypeAdapter[ModelConfig] = TypeAdapter(AnyModelConfig)
CONFIGS = [
    TINY,
    ViTConfig(),
    ViTConfig.named("Ti/8", image_size=(64, 96), channels=1, classes=3),
    ViTConfig(image_size=24, patch_size=4, width=36, depth=3, heads=3, classes=5, mlp=Mlp(ratio=2.5)),
]


def compare_with_torchs_own_count(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = build(config).eval()
        images = torch.empty(1, config.channels, *config.height_width)
        with FlopCounterMode(display=False) as counter:
            model.logits(model.features(images))  # of all tokens
    rows = shapes(config)
    assert sum(row.parameters * row.times for row in rows) == sum(p.numel() for p in model.parameters())
    assert sum(row.flops * row.times for row in rows) == counter.get_total_flops()


@pytest.mark.parametrize("config", CONFIGS)
def test_parameters_and_operations_equal_torchs_own_count(config: ViTConfig) -> None:
    compare_with_torchs_own_count(config)


@pytest.mark.parametrize("config", CONFIGS)
def test_shapes_are_those_of_the_running_model(config: ViTConfig) -> None:
    model, images = on_meta(config)
    seen: dict[str, tuple[torch.Size, torch.Size]] = {}
    for name, module in model.named_modules():

        def note(_: object, takes: tuple[Tensor], gives: Tensor | None, name: str = name) -> None:
            if gives is not None:  # as a bias of attention that is not there
                seen[name.replace("blocks.0.", "blocks.*.")] = takes[0].shape[1:], gives.shape[1:]

        module.register_forward_hook(note)
    tokens = model.features(images)
    model.logits(tokens)  # of all tokens
    rows = {row.name: row for row in shapes(config)}
    inside = [f"blocks.*.{name}" for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")]
    for name in ("patch_embed", *inside, "norm", "head"):
        assert (rows[name].takes, rows[name].gives) == seen[name], name
        assert rows[name].times == (config.depth if name in inside else 1)
    T, D, heads = config.grid[0] * config.grid[1] + 1, config.width, config.heads
    each = (heads, T, D // heads)
    assert (rows["blocks.*.attn"].takes, rows["blocks.*.attn"].gives) == ((3, *each), each)
    assert (rows["cls_token"].gives, rows["pos_embed"].gives) == ((1, D), (T, D))
    assert (rows["pool"].takes, rows["pool"].gives) == (tokens.shape[1:], (D,))


@pytest.mark.parametrize(
    ("head", "classes", "parameters"),
    [
        ("linear", 10, 10 * 33),
        ("mlp", 10, 32 * 33 + 10 * 33),
        ({"kind": "mlp", "size": 64}, 10, 64 * 33 + 10 * 65),
        ("hidden", 0, 32 * 33),
        ({"kind": "hidden", "size": 64}, 0, 64 * 33),
        ("none", 0, 0),
    ],
    ids=str,
)
def test_every_head_is_counted(head: object, classes: int, parameters: int) -> None:
    small = {"image_size": 8, "patch_size": 4, "width": 32, "depth": 1, "heads": 2}
    config = ViTConfig.read({**small, "classes": classes, "head": head})
    compare_with_torchs_own_count(config)
    assert sum(row.parameters for row in shapes(config) if row.name in ("pre_logits", "head")) == parameters


def test_the_steps_of_a_vit_have_words() -> None:
    what = {row.name: row.what for row in shapes(TINY)}
    assert what["blocks.*.attn.qkv"] == "queries, keys, values"
    assert what["blocks.*.norm1"] == "LayerNorm"
    assert what["pool"] == "what the head sees: class"


@pytest.mark.parametrize(
    "family",
    [
        [{"kind": "swin"}, {"kind": "swin", "version": 2}],
        [{"kind": "resnet"}, {"kind": "resnet", "stem": "3x3"}],
    ],
    ids=["swin", "resnet"],
)
def test_every_word_about_a_step_is_about_one_that_is_there(family: list[dict[str, str]]) -> None:
    told, there = set[str](), set[str]()
    for settings in family:
        config = CONFIG.validate_python(settings)
        told |= on_meta(config)[0].step_words().keys()
        there |= {re.sub(r"\b\d+\b", "*", row.name) for row in shapes(config)}
    assert told - there == set()


@pytest.mark.parametrize(
    ("name", "title", "parameters"), [("swin-T", "Swin-T", "28,288,354"), ("R50+B/32", "R50+ViT-B/32", "110,945,832")]
)
def test_a_model_is_counted_and_drawn_by_its_name(name: str, title: str, parameters: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(command, [name, "--draw", str(tmp_path / "model.svg")])
    assert told.exit_code == 0 and parameters in told.output
    drawing = (tmp_path / "model.svg").read_text()
    assert f">{title}<" in drawing and f">{parameters}<" in drawing


# Somebody's own model


class OwnConfig(ModelConfig):
    kind: str = "own"
    image_size: ImageSize = (8, 16)
    channels: int = 3
    classes: int = 5


class Own(Model):
    """What ours have not: attention of torch's own, a module that is called twice, blocks of which the first differs,
    a product in the model itself, a norm before the pool, a parameter that nobody uses."""

    config: OwnConfig

    def __init__(self, config: OwnConfig, regularise: Regularise | None = None) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.zeros(32, 12))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, 12))
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 2, 2), nn.GELU(), nn.Flatten(2))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(a, 12), nn.ReLU(), nn.Linear(12, 12)) for a in (6, 12, 12))
        self.attn = nn.MultiheadAttention(12, 2, batch_first=True)
        self.mix = nn.Linear(12, 12)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, config.classes)

    def features(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        tokens = self.stem(images).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        tokens = tokens + self.attn(query=tokens, key=tokens, value=tokens, need_weights=False)[0]
        tokens = tokens + tokens @ self.table.T @ self.table.to(self.mask_token.dtype)
        return self.mix(self.mix(tokens))

    def views(self, tokens: Tensor) -> Sequence[Tensor]:
        return [self.norm(tokens).mean(dim=1)]

    def classify(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(self.head(view) for view in views)

    def layers(self) -> list[Layer]:
        return []

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        return images.shape[2] // 2, images.shape[3] // 2


OwnConfig.built_by = Own


def test_any_model_is_measured() -> None:
    compare_with_torchs_own_count(OwnConfig())
    rows = {row.name: row for row in shapes(OwnConfig())}
    T = 32
    attention = 2 * T * 12 * 36 + 4 * T * T * 12 + 2 * T * 12 * 12
    assert rows == {
        row.name: row
        for row in (
            ShapeRow("stem.0", "Conv2d 2×2, stride 2", (3, 8, 16), (6, 4, 8), 78, 2 * T * 12 * 6),
            ShapeRow("stem.2", "Flatten", (6, 4, 8), (6, T), 0, 0),
            ShapeRow("blocks.0.0", "Linear", (T, 6), (T, 12), 84, 2 * T * 6 * 12),
            ShapeRow("blocks.0.2", "Linear", (T, 12), (T, 12), 156, 2 * T * 12 * 12),
            ShapeRow("blocks.*.*", "Linear", (T, 12), (T, 12), 156, 2 * T * 12 * 12, 4),
            ShapeRow("attn", "MultiheadAttention", (3, T, 12), (T, 12), 4 * (144 + 12), attention),
            ShapeRow("table", "learned", (), (T, 12), T * 12, 0),
            ShapeRow("features", "features", (T, 12), (T, 12), 0, 2 * 2 * T * 12 * T),
            ShapeRow("mix", "Linear", (T, 12), (T, 12), 156, 2 * 2 * T * 12 * 12),
            ShapeRow("norm", "LayerNorm", (T, 12), (T, 12), 24, 0),
            ShapeRow("pool", "what the head sees", (T, 12), (12,), 0, 0),
            ShapeRow("head", "Linear", (12,), (5,), 65, 2 * 12 * 5),
            ShapeRow("mask_token", "not used for logits", (), (1, 12), 12, 0),
        )
    }


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            'kind = "MIXER"\nimage_size = 32',
            "Image 32×32, patches of 4: 32/4 · 32/4 = 8·8 patches, 64 tokens of width 32.",
        ),
        ('kind = "OWN"\nimage_size = [8, 16]', "Image 8×16: 4·8 patches, 32 tokens of width 12."),
        ('tokens = "distilled"', "14·14 patches, with 2 extra tokens, 198 tokens of width 768."),
    ],
    ids=["mixer", "own", "distilled"],
)
def test_the_command_tells_what_it_can_of_any_recipe(tmp_path: Path, model: str, sentence: str) -> None:
    own = {"MIXER": f"{Path(__file__).parent}/own/mixer.py:Mixer", "OWN": f"{__file__}:Own"}
    for word, name in own.items():
        model = model.replace(word, name)
    (tmp_path / "recipe.toml").write_text(f"[model]\n{model}\n")
    shown = CliRunner().invoke(command, [str(tmp_path / "recipe.toml")], catch_exceptions=False)
    assert sentence in shown.output and shown.exit_code == 0
    assert "what the head sees" in shown.output
