"""The table of shapes tells the truth: compared with the model as it runs, and with torch's own counter."""

# torch types what a ModuleList holds as Tensor or Module; here we look inside.
# mypy: disable-error-code="union-attr, operator"

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conftest import TINY
from vitral import ViT, ViTConfig
from vitral.model.config import Mlp
from vitral.model.shapes import shapes

CONFIGS = [
    TINY,
    ViTConfig(),
    ViTConfig.named("Ti/8", image_size=(64, 96), channels=1, classes=3),
    ViTConfig(image_size=24, patch_size=4, width=36, depth=3, heads=3, classes=5, mlp=Mlp(ratio=2.5)),
]


def compare_with_torchs_own_count(config: ViTConfig) -> None:
    with torch.device("meta"):
        model = ViT(config).eval()
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
    with torch.device("meta"):
        model = ViT(config).eval()
        images = torch.empty(1, config.channels, *config.height_width)
    seen: dict[str, tuple[torch.Size, torch.Size]] = {}
    for name, module in model.named_modules():

        def note(_: object, takes: tuple[torch.Tensor], gives: torch.Tensor | None, name: str = name) -> None:
            assert gives is not None or name.endswith("position_bias")  # nothing, unless positions are relative
            seen[name.removeprefix("blocks.0.")] = takes[0].shape[1:], (takes[0] if gives is None else gives).shape[1:]

        module.register_forward_hook(note)
    model.logits(model.features(images))  # of all tokens
    rows = {row.name: row for row in shapes(config)}
    for name in ("patch_embed", "norm1", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2", "norm", "head"):
        assert (rows[name].takes, rows[name].gives) == seen[name], name
    q, _, _ = model.blocks[0].attn.queries_keys_values(model.embed(images))
    assert rows["attn.qkv"].gives == (3, *q.shape[1:])
    assert rows["pos_embed"].gives == model.embed(images).shape[1:]
