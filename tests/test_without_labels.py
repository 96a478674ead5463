"""Objectives that need no labels are those of their papers' code: the same numbers from the same weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from conftest import FIXTURES
from vitral import RecipeError, ViT, ViTConfig, load_pretrained
from vitral.data.batches import Batch
from vitral.model.patches import unpatchify
from vitral.training.config import DINOSettings, LeJEPASettings, MAESettings
from vitral.training.objectives.dino import DINO, Head, dino_loss
from vitral.training.objectives.lejepa import LeJEPA, epps_pulley, invariance, projector, random_directions, sigreg
from vitral.training.objectives.mae import MAE, random_masking
from vitral.training.objectives.watch import alarm, effective_rank, knn_accuracy, linear_accuracy, spread

TINY = ViTConfig(image_size=16, patch_size=4, width=32, depth=1, heads=2, classes=0, head="none")  # type: ignore[arg-type]
PARTS = {
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
}


def decoder_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder of the authors' or of transformers' MAE, under the authors' names."""
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("decoder.").replace("decoder_encoder.layer.", "decoder_blocks.")
        name = name.replace("decoder_layers.", "decoder_blocks.")
        if not name.startswith(("decoder_", "mask_token")):
            continue
        for theirs, ours in PARTS.items():
            name = name.replace(theirs, ours)
        plain[name] = tensor
    for name in [name for name in plain if ".query." in name]:
        parts = [plain.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        plain[name.replace("attention.attention.query", "attn.qkv")] = torch.cat(parts)
    return plain


def mae_of(folder: Path, heads: int = 3, **settings: object) -> tuple[ViT, MAE]:
    """Encoder and decoder of a folder of weights."""
    model = load_pretrained(folder).model
    decoder = decoder_of(load_file(folder / "model.safetensors"))
    width = decoder["mask_token"].shape[2]
    depth = len({name.split(".")[1] for name in decoder if name.startswith("decoder_blocks.")})
    sizes = {"decoder_width": width, "decoder_depth": depth, "decoder_heads": heads}
    objective = MAE(model, MAESettings.read({**sizes, **settings}))
    objective.load_state_dict(decoder)
    assert isinstance(model, ViT)
    return model, objective


@pytest.mark.parametrize(
    ("name", "case", "ratio"),
    [("mae_reference", "mask75_", 0.75), ("mae_reference", "mask50_", 0.5), ("hf_mae", "", 0.75)],
)
@torch.inference_mode()
def test_mae_is_that_of_its_authors_and_of_transformers(name: str, case: str, ratio: float) -> None:
    """Masks, what the encoder makes of kept patches, what the decoder says, and both losses."""
    known = load_file(FIXTURES / name / "io.safetensors")
    images, noise = known["image_16x16"], known["noise_16x16"]
    for normalise, loss in ((False, "loss_"), (True, "loss_norm_pix_")):
        model, mae = mae_of(FIXTURES / name, mask_ratio=ratio, normalise=normalise)
        masking = random_masking(noise, ratio)
        assert torch.equal(masking.mask, known[f"mask_{case}16x16"])
        assert torch.equal(masking.ids_restore, known[f"ids_restore_{case}16x16"])
        latent = model.features(images, masking.ids_keep)
        assert_close(latent, known[f"latent_{case}16x16"], rtol=0, atol=1e-5)
        pred = mae.decode(latent, masking.ids_restore)
        assert_close(pred, known[f"pred_{case}16x16"], rtol=0, atol=1e-5)
        assert_close(mae.of_pixels(pred, images, masking.mask)[None], known[f"{loss}{case}16x16"], rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("normalise", [True, False])
def test_mae_is_a_live_one_of_transformers(normalise: bool, tmp_path: Path) -> None:
    """Losses, and their gradients for a matrix of the encoder and for the mask token."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        image_size=24,
        patch_size=4,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
        norm_pix_loss=normalise,
        initializer_range=0.2,
    )
    theirs = transformers.ViTMAEForPreTraining(config)
    theirs.save_pretrained(tmp_path)
    model, mae = mae_of(tmp_path, heads=2, normalise=normalise)
    images, noise = torch.randn(3, 3, 24, 24), torch.rand(3, 36)
    expected = theirs(images, noise=noise).loss
    masking = random_masking(noise, 0.75)
    loss = mae.of_pixels(
        mae.decode(model.features(images, masking.ids_keep), masking.ids_restore), images, masking.mask
    )
    assert_close(loss, expected, rtol=1e-5, atol=0)
    loss.backward()
    expected.backward()
    named = dict(theirs.named_parameters())
    patches = next(p for name, p in named.items() if name.endswith("patch_embeddings.projection.weight"))
    assert_close(model.get_parameter("patch_embed.proj.weight").grad, patches.grad, rtol=1e-3, atol=1e-6)
    assert_close(mae.mask_token.grad, named["decoder.mask_token"].grad, rtol=1e-3, atol=1e-6)


def test_what_mae_hides_follows_from_seed_step_and_picture() -> None:
    model = ViT(TINY)
    batch = batch_of(4)
    mae, other = MAE(model, seed=1), MAE(model, seed=2)
    hidden = mae.masking(model, batch, step=3).mask
    assert torch.equal(hidden.sum(dim=1), torch.full((4,), 12.0))  # three of four patches
    assert torch.equal(hidden[1:3], mae.masking(model, batch.rows(slice(1, 3)), step=3).mask)  # whoever stands beside
    assert not torch.equal(hidden, mae.masking(model, batch, step=4).mask)
    assert not torch.equal(hidden, other.masking(model, batch, step=3).mask)


@pytest.mark.parametrize("stem", ["linear", "conv", "whitened"])
def test_what_is_hidden_reaches_no_token_whatever_the_stem(stem: str) -> None:
    """A stem of convolutions looks across the edges of patches, so patches are hidden before it."""
    model = ViT(ViTConfig.model_validate({**TINY.write(), "channels": 3, "stem": stem})).eval()
    mae, batch = MAE(model), batch_of(2)
    masking = mae.masking(model, batch, step=3)
    is_hidden = unpatchify(masking.mask[:, :, None].expand(-1, -1, 48), 4, 16, 16) > 0  # (B, C, H, W)
    others = torch.where(is_hidden, batch.images + 1, batch.images)
    seen, other = (
        model.features(mae.visible(images, masking.mask), masking.ids_keep) for images in (batch.images, others)
    )
    assert torch.equal(seen, other) and seen.std() > 0


def test_a_reconstruction_has_the_pixels_that_were_not_hidden() -> None:
    model, batch = ViT(TINY), batch_of(2)
    said, mask = MAE(model).reconstruct(model, batch)
    kept = (1 - mask).view(2, 1, 4, 4).repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    assert_close(said * kept, batch.images * kept, rtol=0, atol=1e-6)
    assert not torch.allclose(said, batch.images)


def batch_of(count: int) -> Batch:
    labels = torch.zeros(count, dtype=torch.int64)
    return Batch(torch.randn(count, 3, 16, 16), labels, np.arange(count), labels)


def test_sigreg_and_the_loss_are_those_of_lejepa() -> None:
    known = load_file(FIXTURES / "lejepa_sigreg" / "io.safetensors")
    assert_close(random_directions(known["directions_raw"]), known["directions"])
    assert_close(epps_pulley(known["samples"]), known["epps_pulley_3_17"], rtol=1e-5, atol=1e-6)
    assert_close(epps_pulley(known["samples"], 5.0, 21), known["epps_pulley_5_21"], rtol=1e-5, atol=1e-6)
    proj = known["proj"].clone().requires_grad_(True)
    assert_close(epps_pulley(proj @ known["directions"]), known["statistic"], rtol=1e-5, atol=1e-6)
    unlike = sigreg(proj, known["directions"])
    assert_close(unlike[None], known["sigreg"], rtol=1e-5, atol=0)
    [gradient] = torch.autograd.grad(unlike, proj, retain_graph=True)
    assert_close(gradient, known["gradient_sigreg_proj"], rtol=1e-4, atol=1e-7)
    assert_close(invariance(proj)[None], known["invariance_loss"], rtol=1e-5, atol=0)
    for balance in ("0.02", "0.05", "0.5"):
        loss = float(balance) * unlike + (1 - float(balance)) * invariance(proj)
        assert_close(loss[None], known[f"lejepa_loss_{balance}"], rtol=1e-5, atol=0)
        [gradient] = torch.autograd.grad(loss, proj, retain_graph=True)
        assert_close(gradient, known[f"gradient_lejepa_proj_{balance}"], rtol=1e-4, atol=1e-7)


def test_the_projector_is_that_of_lejepa() -> None:
    """With its BatchNorms, through the loss to the embeddings."""
    known = load_file(FIXTURES / "lejepa_sigreg" / "io.safetensors")
    weights = load_file(FIXTURES / "lejepa_sigreg" / "model.safetensors")
    ours = projector(16, (20, 20, 10))
    numbers = {"0": "0", "1": "1", "4": "3", "5": "4", "8": "6"}  # theirs has dropouts between
    state = {}
    for name, tensor in weights.items():
        _, number, rest = name.split(".")
        state[f"{numbers[number]}.{rest}"] = tensor
    ours.load_state_dict(state)
    embeddings = known["embeddings"].clone().requires_grad_(True)
    proj = ours(embeddings).reshape(12, 4, 10).transpose(0, 1)
    assert_close(proj, known["projected"], rtol=1e-4, atol=1e-5)
    loss = 0.02 * sigreg(proj, random_directions(known["projector_directions_raw"])) + 0.98 * invariance(proj)
    assert_close(loss[None], known["projector_lejepa_loss_0.02"], rtol=1e-5, atol=0)
    [gradient] = torch.autograd.grad(loss, embeddings)
    assert_close(gradient, known["projector_gradient_embeddings"], rtol=1e-3, atol=1e-6)
    assert_close(ours.get_buffer("1.running_var"), known["projector_after_1.running_var"], rtol=1e-5, atol=1e-6)


def test_lejepa_puts_views_of_one_size_together_and_keeps_their_order() -> None:
    model = ViT(TINY).eval()
    lejepa = LeJEPA(model, LeJEPASettings(projector=(8,)))
    views = [torch.randn(2, 3, side, side) for side in (16, 16, 8, 8)]
    expected = torch.stack([lejepa.projector(model.pool(model.features(view))) for view in views])
    assert_close(lejepa.project(model, views), expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(lejepa.directions(5), lejepa.directions(5)) and not torch.equal(
        lejepa.directions(5), lejepa.directions(6)
    )


def plain_head(prefix: str) -> Head:
    head = Head(24, DINOSettings(prototypes=40, hidden=32, bottleneck=16))
    state = {
        name.removeprefix(prefix): tensor
        for name, tensor in load_file(FIXTURES / "dino_head" / "model.safetensors").items()
        if name.startswith(prefix + "mlp")
    }
    tensors = load_file(FIXTURES / "dino_head" / "model.safetensors")
    assert bool((tensors[f"{prefix}last_layer.weight_g"] == 1).all())  # prototypes have length 1
    head.load_state_dict({**state, "prototypes": tensors[f"{prefix}last_layer.weight_v"]})
    return head


def test_the_head_the_loss_and_the_centre_are_those_of_dino() -> None:
    known = load_file(FIXTURES / "dino_head" / "io.safetensors")
    assert_close(plain_head("plain.")(known["head_input"]), known["output_plain"], rtol=1e-4, atol=1e-6)
    for call, epoch in enumerate((0, 1, 5)):
        student = known[f"student_output_{call}"].view(6, 3, 40).requires_grad_(True)
        teacher = known[f"teacher_output_{call}"].view(2, 3, 40)
        centre, after = known[f"center_{call}"][0], known[f"center_{call + 1}"][0]
        loss = dino_loss(student, teacher, centre, 0.1, float(known["teacher_temp_schedule"][epoch]))
        assert_close(loss[None], known[f"loss_{call}"], rtol=1e-5, atol=0)
        [gradient] = torch.autograd.grad(loss, student)
        assert_close(gradient.view(18, 40), known[f"gradient_student_output_{call}"], rtol=1e-4, atol=1e-6)
        assert_close(centre.lerp(teacher.mean(dim=(0, 1)), 0.1), after, rtol=1e-5, atol=1e-6)


def test_a_step_of_dino_is_that_of_its_authors() -> None:
    """The gradients of the student's head, the centre, and the teacher that follows."""
    known = load_file(FIXTURES / "dino_head" / "io.safetensors")
    dino = DINO(ViT(TINY), DINOSettings(prototypes=40, hidden=32, bottleneck=16))
    dino.head, dino.teacher_head = plain_head("plain."), plain_head("teacher_plain.").requires_grad_(False)
    with torch.no_grad():  # its weights in the file are those after the step
        for teacher_weight, weight in zip(dino.teacher_head.parameters(), dino.head.parameters(), strict=True):
            teacher_weight.sub_(0.004 * weight).div_(0.996)
    teacher = dino.teacher_head(known["step_teacher_features"]).view(2, 3, 40)
    student = dino.head(known["step_student_features"]).view(6, 3, 40)
    loss = dino_loss(student, teacher, known["center_0"][0], 0.1, float(known["teacher_temp_schedule"][2]))
    assert_close(loss[None], known["step_loss"], rtol=1e-5, atol=0)
    assert_close(
        known["center_0"][0].lerp(teacher.mean(dim=(0, 1)), 0.1), known["step_center"][0], rtol=1e-4, atol=1e-6
    )
    loss.backward()
    assert_close(dino.head.prototypes.grad, known["step_gradient_last_layer.weight_v"], rtol=1e-3, atol=1e-6)
    assert_close(dino.head.mlp[0].weight.grad, known["step_gradient_mlp.0.weight"], rtol=1e-3, atol=1e-6)
    dino.after_step(dino.teacher, step=1)  # at the beginning: momentum 0.996
    for name in ("mlp.0.weight", "mlp.4.bias"):
        assert_close(
            dino.teacher_head.get_parameter(name).data, known[f"ema_teacher_plain.{name}"], rtol=1e-5, atol=1e-7
        )
    prototypes = known["ema_teacher_plain.last_layer.weight_v"]
    assert_close(dino.teacher_head.prototypes.data, prototypes, rtol=1e-5, atol=1e-7)


def test_the_prototypes_of_dino_stay_at_first() -> None:
    dino = DINO(ViT(TINY))
    dino.head(torch.randn(2, 32), still=True).sum().backward()
    assert dino.head.prototypes.grad is None and dino.head.mlp[0].weight.grad is not None


def test_figures_of_features_tell_a_collapse() -> None:
    random = torch.randn(200, 8)
    assert 7 < float(effective_rank(random)) <= 8 and float(spread(random)) > 0.9
    one_way = torch.randn(200, 1) * torch.ones(8)
    assert float(effective_rank(one_way)) == pytest.approx(1, abs=1e-3)
    same = torch.ones(200, 8) + 1e-4 * random
    assert float(spread(same)) < 1e-3
    labels = torch.arange(200) % 2
    near = torch.randn(200, 8) * 0.1 + torch.eye(8)[labels]
    assert float(knn_accuracy(near, labels)) == 1 and float(knn_accuracy(random, labels)) < 0.7
    assert float(linear_accuracy(near, labels)) == 1 and float(linear_accuracy(random, labels)) < 0.7
    assert "all pictures look nearly the same" in alarm({"spread": 1e-3, "rank": 5.0})
    assert "in one direction only" in alarm({"spread": 0.5, "rank": 1.0})
    assert alarm({"spread": 0.5, "rank": 5.0}) == alarm({"spread": 0.5}) == ""


@pytest.mark.parametrize("ratio", [0.0, 1.0, 1.5, -1])
def test_a_mask_ratio_that_leaves_nothing_is_a_sentence(ratio: float) -> None:
    with pytest.raises(RecipeError, match="mask_ratio is .*, and should be between 0 and 1: .* The paper has 0.75."):
        MAESettings(mask_ratio=ratio)
