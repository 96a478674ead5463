"""What the ladder tries: each candidate learns, is a model like others, and starts where it says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitral import ViT
from vitral.data.batches import Batch
from vitral.files import run_python
from vitral.model import build, check_own, resolve
from vitral.model.interface import Model
from vitral.plugin import load_plugins
from vitral.recipes.cifar10 import cifar10
from vitral.recipes.quick import quick_model
from vitral.training.learner import Learner

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import ladder  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from ladder_candidates import CANDIDATES  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

sys.path.remove(str(BENCHMARKS))
IMAGES = torch.randn(8, 3, 32, 32)
CONFIG = quick_model(image_size=32, patch_size=4, channels=3, classes=10)


def model_of(candidate: str) -> Model:
    recipe = CANDIDATES[candidate].recipe()
    torch.manual_seed(0)
    return build(resolve(recipe.model, load_plugins(recipe.plugins)), recipe.train.regularise)


def batch_of(images: Tensor) -> Batch:
    labels = torch.arange(len(images)) % 10
    return Batch(images, labels, labels.numpy(), labels)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_candidate_learns(candidate: str) -> None:
    """At first steps, which may see few patches, and at later ones."""
    recipe, model = CANDIDATES[candidate].recipe(), model_of(candidate)
    model.fit_inputs(IMAGES)
    learner = Learner(model.train(), recipe.train)
    if make := CANDIDATES[candidate].optimizers:
        learner.optimizers = make(learner)
    losses = []
    for step in range(1, 9):
        loss, _ = learner.gradients(step, batch_of(IMAGES), progress=step / 9)
        learner.update(step, share=0.3)
        losses.append(float(loss))
    assert losses[-1] < losses[0] - 0.05 and losses[0] == pytest.approx(2.3026, abs=0.05)


@pytest.mark.parametrize("kind", sorted({one.kind for one in CANDIDATES.values() if one.kind}))
def test_a_candidate_is_a_model_like_others(kind: str) -> None:
    model = model_of(next(name for name, one in CANDIDATES.items() if one.kind == kind))
    check_own(model)  # features, logits and layers
    tokens = model.features(IMAGES)
    assert tokens.shape[0] == 8 and tokens.isfinite().all()
    names = dict(model.named_parameters())
    assert all(names[name].ndim >= 2 for name in model.matrices())
    assert bool(model.matrices()) == isinstance(model, ViT)


@pytest.mark.parametrize("candidate", ["near-mlp", "near-shortcut", "gelu-erf"])
@pytest.mark.parametrize("keep", [None, torch.tensor([[3, 17, 40]] * 8)])
def test_what_is_added_starts_as_the_vit_without_it(candidate: str, keep: Tensor | None) -> None:
    other, model = model_of(candidate), ViT(CONFIG)
    left = other.load_state_dict(model.state_dict(), strict=False)
    assert all(name.endswith("near.filters") for name in left.missing_keys) and not left.unexpected_keys
    tolerance = 0.02 if candidate == "gelu-erf" else 1e-5  # by tanh it is nearly the same
    assert_close(other.features(IMAGES, keep), model.features(IMAGES, keep), rtol=0, atol=tolerance)


def test_other_stems_have_the_filters_of_the_vit_and_see_fewer_places() -> None:
    whole = model_of("baseline").state_dict()
    for candidate in ("stem-strided", "stem-pooled"):
        model = model_of(candidate)
        assert model.state_dict().keys() == whole.keys() and all(
            torch.equal(tensor, whole[name]) for name, tensor in model.state_dict().items()
        )
        assert model.features(IMAGES).shape == (8, 64, 96)


def test_filters_see_the_neighbours_that_are_there() -> None:
    near = run_python(str(BENCHMARKS / "candidates" / "near.py"))[0]["Near"](2)
    with torch.no_grad():
        near.filters.zero_()[:, 0, 1, 2] = 1.0  # each place takes what is to its right
    tokens = torch.arange(24.0).view(1, 12, 2)  # 3 × 4
    taken = near(tokens, ((3, 4), None))
    assert_close(taken[0, 0], tokens[0, 1]) and not taken[0, 3].any()  # nothing is to the right of the edge
    keep = torch.tensor([[0, 1, 4, 6]])
    some = near(tokens[:, keep[0]], ((3, 4), keep[0]))
    assert_close(some[0, 0], tokens[0, 1])
    assert not some[0, 1:].any()  # 2, 5 and 7 are not there


def test_merged_tokens_start_as_means_of_four_neighbours() -> None:
    model = model_of("merged")
    tokens = torch.randn(1, 64, 96)
    merged = model.get_submodule("blocks.2.merge")(tokens, (8, 8))
    expected = torch.nn.functional.avg_pool2d(tokens.transpose(1, 2).view(1, 96, 8, 8), 2).flatten(2).transpose(1, 2)
    assert_close(merged, expected)
    assert model.features(IMAGES).shape == (8, 16, 96)


def test_mimetic_queries_look_for_keys_like_themselves_and_values_are_taken_away() -> None:
    attention = model_of("mimetic").get_submodule("blocks.1.attn")
    queries, keys, values = attention.get_parameter("qkv.weight").detach().chunk(3)
    for one, other in zip(queries.chunk(3), keys.chunk(3), strict=True):  # of each head, which has room for a third
        product = one.T @ other
        assert product.diagonal().mean().item() > 4 * product.std().item() > 40 * product.mean().item()
    product = values.T @ attention.get_parameter("proj.weight").detach().T
    assert product.diagonal().mean() == pytest.approx(-0.4, abs=0.05)
    assert (product + 0.4 * torch.eye(96)).std() == pytest.approx(0.4 / 96**0.5, rel=0.1)


def test_impulse_heads_look_at_one_neighbour_each() -> None:
    model = model_of("impulse")
    assert isinstance(model, ViT)
    places = model.positions(None, (8, 8)).float()
    attention: Any = model.blocks[0].attn
    scores = attention.map(places - places.mean(dim=1, keepdim=True))[0]  # (heads, N, N)
    rows = torch.arange(64)
    for head in scores:
        seen = head.argmax(dim=1)
        steps = torch.stack([(seen // 8 - rows // 8 + 1) % 8, (seen % 8 - rows % 8 + 1) % 8])  # from 0, round the edges
        usual = steps.mode(dim=1).values
        assert (usual <= 2).all() and (steps == usual[:, None]).all(dim=0).float().mean() > 0.5


def test_values_of_the_first_block_are_half_of_the_later_ones() -> None:
    model = model_of("value-skip")
    v, x = list[Tensor](), torch.randn(2, 5, 96)
    first, second = (model.get_submodule(f"blocks.{n}.attn") for n in (0, 1))
    first(x, None, v)
    taken: Any = second(x, None, v)
    own = second.queries_keys_values(x)[2]  # type: ignore[operator]
    assert len(v) == 2 and torch.equal(v[1], own)
    plain: Any = ViT(CONFIG).blocks[1].attn
    plain.load_state_dict(second.state_dict(), strict=False)
    assert not torch.allclose(taken, plain(x))
    assert torch.equal(first(x, None, []), first(x, None, []))


def test_own_positions_are_all_that_tells_places_apart() -> None:
    model = model_of("own-positions")
    alike = torch.ones(1, 3, 32, 32)
    with torch.no_grad():
        model.get_parameter("pos_embed").zero_()
        inside = model.eval().features(alike)[0].view(8, 8, 96)[2:6, 2:6]
    assert_close(inside, inside[:1, :1].expand_as(inside), rtol=0, atol=1e-4)


def test_polar_express_brings_singular_values_nearer_to_1_than_muon() -> None:
    muons = run_python(str(BENCHMARKS / "candidates" / "muons.py"))[0]
    updates = torch.randn(3, 48, 96)
    far = {}
    for kind in ("MuonOptimizer", "PolarExpress"):
        optimizer = muons[kind]([{"params": [torch.nn.Parameter(torch.zeros(2, 2))], "lr": 1.0}], {}, 0.95)
        far[kind] = float((torch.linalg.svdvals(optimizer.nearest(updates)) - 1).abs().max())
    assert far["PolarExpress"] < 0.15 < far["MuonOptimizer"] < 0.6


def test_normuon_makes_rows_equally_large_and_the_whole_stays_as_large() -> None:
    muons = run_python(str(BENCHMARKS / "candidates" / "muons.py"))[0]
    make = {"params": [torch.nn.Parameter(torch.zeros(2, 2))], "lr": 1.0}
    plain, even = (muons[kind]([dict(make)], {}, 0.95) for kind in ("MuonOptimizer", "NorMuon"))
    updates = torch.randn(1, 96, 48) * torch.linspace(0.1, 3, 96)[:, None]
    before, after = plain.nearest(updates), even.nearest(updates)
    assert_close(after.norm(), before.norm())
    assert after.norm(dim=2).std() < 0.01 * before.norm(dim=2).std()
    assert not even.nearest(torch.zeros(1, 48, 48)).any()  # the head starts at zero: at first there are none


def test_the_cnn_keeps_the_norm_of_its_filters_and_starts_as_the_identity() -> None:
    model, make = model_of("cnn"), CANDIDATES["cnn"].optimizers
    model.fit_inputs(IMAGES)
    first = model.get_submodule("blocks.0")[0]  # type: ignore[index]
    seen = torch.randn(1, 24, 9, 9)
    assert_close(first(seen)[:, :24], seen)
    learner = Learner(model.train(), CANDIDATES["cnn"].recipe().train)
    learner.optimizers = make(learner)
    for step in (1, 2):
        learner.gradients(step, batch_of(IMAGES), progress=1.0)
        learner.update(step, share=0.0)  # at this rate nothing moves but to that norm
    for filters in model.filters():  # type: ignore[operator]
        assert filters.norm().item() == pytest.approx(len(filters) ** 0.5, rel=1e-4)


def test_the_queue_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs, one of them a ratio; how steps are timed and what is learnt is stood in for: each takes minutes."""
    monkeypatch.setattr(ladder, "LINES", tmp_path / "ladder.jsonl")
    monkeypatch.setattr(ladder, "measure_ratio", lambda name: {"ratio": 0.8, "baseline_step": 0.2})
    monkeypatch.setattr(ladder, "learn", lambda job, ratio: {"steps": round(800 / ratio)})
    monkeypatch.setattr(ladder, "queue", lambda: iter([ladder.Job("2m", "silu", 0), ladder.Job("ratio", "silu")]))
    (tmp_path / "go").touch()
    ladder.work_off(1, "", tmp_path, tmp_path / "go")
    assert list(ladder.lines()) == ["ratio/silu"]  # a training waits for its ratio
    ladder.work_off(9, "", tmp_path, tmp_path / "none")
    assert len(ladder.lines()) == 1
    ladder.work_off(9, "", tmp_path, tmp_path / "go")
    rows = [json.loads(line) for line in (tmp_path / "ladder.jsonl").read_text().splitlines()]
    assert [(row["job"], row.get("steps")) for row in rows] == [("ratio/silu", None), ("2m/silu/0", 1000)]


def test_the_table_tells_the_gain_over_the_same_seeds(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    accuracies = {("baseline", 0): 0.70, ("baseline", 1): 0.72, ("silu", 0): 0.71, ("silu", 1): 0.75}
    known = {
        f"2m/{name}/{seed}": {"accuracy": accuracy, "loss": 1.0, "steps": 800}
        for (name, seed), accuracy in accuracies.items()
    }
    monkeypatch.setattr(ladder, "lines", lambda: known)
    ladder.table()
    told = capsys.readouterr().out
    assert "| silu | 800 | 2 | 73.00 ± 2.83 | 1.000 | +2.00 ± 1.00 |" in told
    ladder.plan()
    assert "2m" in capsys.readouterr().out


def test_every_candidate_is_asked_for_at_equal_time() -> None:
    jobs = list(ladder.queue())
    assert len({job.name for job in jobs}) == len({*jobs})
    assert {job.candidate for job in jobs if job.kind == "ratio"} == CANDIDATES.keys() - {"baseline"}
    kinds = [job.kind.partition("/")[0] for job in jobs]
    assert "test" not in kinds[: kinds.index("test")] and set(kinds[kinds.index("test") :]) == {"test"}


def test_the_baseline_is_the_recipe_itself() -> None:
    assert CANDIDATES["baseline"].recipe() == cifar10 and cifar10.model == CONFIG
