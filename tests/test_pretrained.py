"""Everybody's weights: equal outputs at every size, and nothing silently skipped."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import FIXTURES
from vitral import ViT, load_pretrained

REFUSED = {"vit_pytorch_lucidrains", "vit_pytorch_lucidrains_mean"}
NO_MODEL = {"hf_pixels", "sincos"}
MODELS = sorted(path.name for path in FIXTURES.iterdir() if path.name not in REFUSED | NO_MODEL)


def sizes(name: str) -> list[tuple[int, int]]:
    about = json.loads((FIXTURES / name / "about.json").read_text())
    patch = about["patch_size"]
    return [(h, w) for h, w in about["sizes"] if not h % patch and not w % patch]


CASES = [(name, size) for name in MODELS for size in sizes(name)]


def outputs(model: ViT, images: Tensor) -> dict[str, Tensor]:
    block, tokens = model.blocks[-1], model.embed(images)
    for earlier in model.blocks[:-1]:
        tokens = earlier(tokens)
    found = {"embedded": model.embed(images), "tokens": model.features(images)}
    found["attention"] = block.attn.map(block.norm1(tokens))  # type: ignore[operator, union-attr]
    return found | {"logits" if model.config.classes else "pooled": model(images)}


@pytest.mark.parametrize(("name", "size"), CASES, ids=lambda one: one if isinstance(one, str) else f"{one[0]}x{one[1]}")
@torch.inference_mode()
def test_outputs_are_equal_at_every_size(name: str, size: tuple[int, int]) -> None:
    """Within 1e-5, through the model as it is, and through one that was made for the size."""
    known = load_file(FIXTURES / name / "io.safetensors")
    word = f"{size[0]}x{size[1]}"
    if name.endswith("mae_reference"):  # it speaks of masks only: nothing masked, the patches in its random order
        latent, order = known.pop("latent_mask0_16x16"), known["ids_restore_mask0_16x16"]
        patches = latent[:, 1:].gather(1, order[:, :, None].expand(-1, -1, latent.shape[2]))
        known["tokens_16x16"] = torch.cat([latent[:, :1], patches], dim=1)
    for pretrained in (load_pretrained(FIXTURES / name), load_pretrained(FIXTURES / name, image_size=size)):
        found = outputs(pretrained.model, known[f"image_{word}"])
        compared = [key for key in found if f"{key}_{word}" in known and not (name == "hf_mae" and key == "attention")]
        assert {"tokens", "logits"} & set(compared)
        for key in compared:
            torch.testing.assert_close(found[key], known[f"{key}_{word}"], rtol=0, atol=1e-5)
