"""Training: what is told, what is kept, and that the same request gives the same bits."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import TINY, quick_digits, slowly
from vitral import (
    Classifier,
    Epoch,
    Finished,
    Progress,
    RecipeError,
    Run,
    RunError,
    Started,
    Step,
    ViT,
    evaluate,
    events,
    train,
)
from vitral.model.config import Mlp, Stem
from vitral.model.tutorials import PulferViT
from vitral.training.averages import Average
from vitral.training.config import AdamW, Muon, Schedule, Train
from vitral.training.optimizers import make_optimizers, orthogonalised
from vitral.training.preparation import prepared
from vitral.training.schedules import learning_rate_share


def test_events_tell_the_whole_story_in_order(tmp_path: Path) -> None:
    told = list(events(quick_digits(), out=tmp_path / "run"))
    while isinstance(told[0], Progress):
        told.pop(0)
    assert isinstance(told[0], Started) and isinstance(told[-1], Finished)
    steps = [event for event in told if isinstance(event, Step)]
    epochs = [event for event in told if isinstance(event, Epoch)]
    assert [event.step for event in steps] == list(range(1, 33))
    assert [(event.epoch, event.step) for event in epochs] == [(1, 16), (2, 32)]
    assert told.index(epochs[0]) == told.index(steps[15]) + 1
    mean = float(torch.stack([event.loss for event in steps[:16]]).mean())
    assert epochs[0].train_loss == pytest.approx(mean)
    assert epochs[1].train_loss < epochs[0].train_loss


def test_the_run_folder_tells_the_same(trained: Run) -> None:
    assert trained.recipe == quick_digits()
    record = trained.record
    assert (record.state, record.steps, record.choices.device) == ("finished", 32, "cpu")
    assert record.data.pictures == {"train": 1078, "validation": 359, "test": 360}
    lines = trained.metrics
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, 33))
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [1, 2]
    assert lines[16]["event"] == "epoch"
    assert {split for _, _, split in trained.split} == {"train", "validation", "test"}


def tensors(run: Run) -> dict[str, torch.Tensor]:
    return run.weights().model.state_dict()


def test_the_same_request_gives_the_same_bits_and_another_seed_others(trained: Run, tmp_path: Path) -> None:
    torch.manual_seed(12345)  # what the caller does with random numbers must not matter
    again = train(quick_digits(), out=tmp_path / "again")
    other = train(quick_digits().changed({"train.seed": 1}), out=tmp_path / "other")
    assert all(torch.equal(tensor, tensors(trained)[name]) for name, tensor in tensors(again).items())
    assert (again.folder / "model.safetensors").read_bytes() == (trained.folder / "model.safetensors").read_bytes()
    assert not torch.equal(tensors(other)["pos_embed"], tensors(trained)["pos_embed"])
    assert again.record.data == other.record.data  # the split is the same for every seed


def test_training_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    state, threads, dtype = torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    train(quick_digits().changed({"train.epochs": 1}), out=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)


def test_closed_at_once_it_still_tells_what_happened(tmp_path: Path) -> None:
    happening = events(quick_digits(), out=tmp_path / "run")
    assert any(isinstance(event, Started) for event in happening)  # no further than that
    happening.close()
    assert (Run.load(tmp_path / "run").record.state, Run.load(tmp_path / "run").record.steps) == ("stopped", 0)
    Run.load(tmp_path / "run").weights()


@pytest.mark.parametrize("stop_at", [1, 16, 20])
def test_what_is_stopped_is_kept(tmp_path: Path, stop_at: int) -> None:
    def impatient(event: object) -> None:
        if isinstance(event, Step) and event.step == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(quick_digits(), out=tmp_path / "run", listeners=[impatient])
    run = Run.load(tmp_path / "run")
    assert (run.record.state, run.record.steps) == ("stopped", stop_at)
    assert len([line for line in run.metrics if line["event"] == "step"]) == stop_at
    full = train(quick_digits(), out=tmp_path / "full")
    lines = full.metrics[: len(run.metrics)]
    timeless = [{key: value for key, value in line.items() if key not in ("seconds", "waited")} for line in lines]
    assert [{k: v for k, v in line.items() if k not in ("seconds", "waited")} for line in run.metrics] == timeless
    run.weights()


def test_a_mistake_is_told_before_anything_is_written(tmp_path: Path) -> None:
    for wrong in (
        {"model.classes": 7},
        {"model.head": "none", "model.classes": 0},
        {"train.device": "cuda"},
        {"model.channels": 2},
    ):
        if wrong == {"train.device": "cuda"} and torch.cuda.is_available():
            continue
        with pytest.raises(RecipeError):
            train(quick_digits().changed(wrong), out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("batch_size", [64, 1000])
def test_a_loss_that_runs_away_stops_with_a_sentence(tmp_path: Path, batch_size: int) -> None:
    """With batches of 1,000 there is one step an epoch: its loss is fine, and that of validation after it is not."""
    optimizer = {"kind": "adamw", "learning_rate": 1e30}
    wild = quick_digits().changed({"train.optimizer": optimizer, "train.ema": 0, "train.batch_size": batch_size})
    with pytest.raises(RunError, match="The loss is no longer a number at step"):
        train(wild, out=tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert run.record.state == "stopped" and not (run.folder / "model.safetensors").exists()
    assert "NaN" not in (run.folder / "metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        {"tokens": "none", "pool": "mean", "positions": "sincos-2d"},
        {"positions": "rotary", "attention": {"bias": "query-value"}},
        *slowly(
            {"positions": "relative", "stem": "conv", "head": "mlp", "pool": "class-mean"},
            {"tokens": {"kind": "distilled", "registers": 2}, "positions": "learned-2d", "mlp": "swiglu"},
        ),
    ],
)
def test_models_of_other_parts_are_trained_measured_and_asked(tmp_path: Path, model: dict[str, object]) -> None:
    changes = {f"model.{name}": value for name, value in model.items()} | {"train.epochs": 1}
    run = train(quick_digits().changed(changes), out=tmp_path / "run")
    assert evaluate(run).pictures == 360
    assert (run.folder / "attention.png").is_file()
    assert Classifier.load(run).predict(np.zeros((8, 8), np.uint8)).label in "0123456789"


def test_grey_pictures_can_be_learnt_in_colour_at_another_size(tmp_path: Path) -> None:
    asked = quick_digits().changed({"model.channels": 3, "model.image_size": [8, 12], "train.epochs": 1})
    run = train(asked, out=tmp_path / "run")
    assert run.weights().preprocess.image_size == (8, 12)
    assert run.weights().model.config.channels == 3


# The parts


def test_the_learning_rate_rises_then_falls_and_never_reaches_zero() -> None:
    for kind in ("cosine", "linear", "constant"):
        share = learning_rate_share(Train(warmup=0.1, schedule=Schedule(kind=kind)), steps=100)
        assert [share(step) for step in (1, 5, 10, 11)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
        after = [share(step) for step in range(11, 101)]
        assert after == sorted(after, reverse=True) and after[-1] > 0
    assert learning_rate_share(Train(warmup=0.0), 1)(1) == 1.0
    assert learning_rate_share(Train(warmup=1.0), 4)(4) == 1.0


def test_the_average_is_as_the_schema_says() -> None:
    model = ViT(TINY)
    average = Average(model, 0.9)
    trained, averaged = next(model.parameters()), next(average.model.parameters())
    expected = trained.detach().clone()
    for step in range(1, 120):
        with torch.no_grad():
            trained.add_(1.0)
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * trained.detach()
    torch.testing.assert_close(averaged, expected)
    assert Average(model, 0.0).model is model


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 32, 8), (2, 8, 32)])
def test_orthogonalised_brings_singular_values_near_one_and_keeps_directions(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, dtype=torch.float64)
    out = orthogonalised(matrices)
    values = torch.linalg.svdvals(out)
    assert values.min() > 0.3 and values.max() < 1.3
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    turned = u.mT @ out @ vh.mT  # diagonal: the same singular vectors
    off_diagonal = turned - torch.diag_embed(torch.diagonal(turned, dim1=1, dim2=2))
    assert off_diagonal.abs().max() < 1e-6


def test_muon_takes_q_k_and_v_apart_and_batches_what_is_alike() -> None:
    """One step by the batched code equals one step matrix by matrix, written out."""
    model = ViT(TINY.model_copy(update={"mlp": Mlp(ratio=3.0)})).double()  # so that fc1 has the shape of qkv
    torch.nn.init.normal_(next(model.head.parameters()))
    model(torch.randn(4, 3, 32, 32, dtype=torch.float64)).logsumexp(1).sum().backward()
    before = {name: (p.detach().clone(), p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    muon = Muon(learning_rate=0.1, momentum=0.9, weight_decay=0.5)
    make_optimizers(model, muon).step()
    for name, parameter in model.blocks.named_parameters("blocks"):
        if parameter.ndim == 2:
            old, grad = before[name]
            update = grad.lerp(0.1 * grad, 0.9)
            parts = update.chunk(3) if name.endswith("qkv.weight") else [update]
            steps = [orthogonalised(part[None])[0] * max(1, part.shape[0] / part.shape[1]) ** 0.5 for part in parts]
            torch.testing.assert_close(parameter.detach(), old * 0.95 - 0.1 * torch.cat(steps))


def test_muon_takes_the_filters_of_a_stem_as_rows_and_leaves_a_linear_stem_to_adamw() -> None:
    for stem, there in ((Stem(kind="whitened"), {"convs.0.weight", "convs.4.weight"}), (Stem(), set())):
        model = ViT(TINY.model_copy(update={"stem": stem, "patch_size": 4}))
        muon, _ = make_optimizers(model, Muon()).optimizers
        held = {id(parameter) for group in muon.param_groups for parameter in group["params"]}
        assert {name for name, parameter in model.patch_embed.named_parameters() if id(parameter) in held} == there
    model = ViT(TINY.model_copy(update={"stem": Stem(kind="whitened"), "patch_size": 4})).double()
    filters = model.patch_embed.get_parameter("convs.4.weight")
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    old = filters.detach().clone()
    assert filters.grad is not None
    update = filters.grad.lerp(0.1 * filters.grad, 0.9).flatten(1)
    make_optimizers(model, Muon(learning_rate=0.1, momentum=0.9)).step()
    scale = max(1, update.shape[0] / update.shape[1]) ** 0.5
    torch.testing.assert_close(filters.detach(), old - 0.1 * scale * orthogonalised(update[None])[0].view_as(old))


def test_a_batch_that_is_forgotten_leaves_no_trace() -> None:
    """A BatchNorm remembers a batch that is no number before the loss is looked at."""
    plan = prepared(quick_digits().changed({"model.stem": "whitened"}))
    stream = plan.batches.starting_at(1)
    _, batch = next(stream)
    stream.close()
    before = {name: tensor.clone() for name, tensor in plan.learner.model.state_dict().items()}
    loss, _ = plan.learner.gradients(1, replace(batch, images=batch.images * float("nan")), progress=0.0)
    assert not loss.isfinite()
    assert not all(tensor.isfinite().all() for tensor in plan.learner.model.state_dict().values())
    plan.learner.discard()
    after = plan.learner.model.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert all(parameter.grad is None for parameter in plan.learner.model.parameters())


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=1.0), Muon(weight_decay=1.0, adamw_weight_decay=1.0)])
@pytest.mark.parametrize("kind", [ViT, PulferViT])
def test_weight_decay_acts_on_layer_weights_only(kind: type[ViT], optimizer: AdamW | Muon) -> None:
    model = kind(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    optimizers = make_optimizers(model, optimizer)
    optimizers.step()
    shrunk = {name for name, parameter in model.named_parameters() if (parameter < 1).any()}
    layers = {name for name, parameter in model.named_parameters() if name.endswith("weight") and parameter.ndim > 1}
    assert shrunk == layers


def test_every_parameter_is_optimised_once() -> None:
    model = ViT(TINY)
    for optimizer in (AdamW(), Muon()):
        made = make_optimizers(model, optimizer)
        held = [id(p) for one in made.optimizers for group in one.param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())
        made.set_share(0.5)
        assert made.rate == pytest.approx(optimizer.learning_rate / 2)


def test_an_epochs_figures_are_finite_numbers(trained: Run) -> None:
    for line in trained.metrics:
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float))
