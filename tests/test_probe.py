"""Frozen features, simple methods: what is chosen, what is measured, what is kept."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from conftest import FIXTURES
from vitral import train
from vitral.cli import vitral
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.errors import DataError, RunError
from vitral.evaluation import probe as module
from vitral.evaluation.metrics import share
from vitral.evaluation.patch_probe import Patches, _mean_answers
from vitral.evaluation.probe import FOLDS, Task, _folds, _method, _neighbours, _regression, probe
from vitral.evaluation.probe_results import ProbeResult
from vitral.progress import silent
from vitral.recipes.choose import choose
from vitral.run import name_of

WEIGHTS = FIXTURES / "timm_vit"
NAMES = np.array([f"{number}.png" for number in range(60)])


@pytest.fixture(scope="module")
def digits() -> ProbeResult:
    result = probe(WEIGHTS, "digits")
    assert isinstance(result, ProbeResult)
    return result


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Two classes that differ in brightness, 12 pictures each, parted."""
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("test", 4)):
        for name, level in (("dark", 60), ("light", 190)):
            folder = tmp_path / "set" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.normal(level, 20, (32, 32, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "set"


def task(test_labels: np.ndarray | None = None) -> Task:
    """150 training and 60 test rows of three classes that overlap; the second features are noise."""
    random = np.random.default_rng(3)
    labels = np.arange(210) % 3
    good = (np.eye(3)[labels] * 2 + random.normal(size=(210, 3))).astype(np.float32)
    noise = random.normal(size=(210, 8)).astype(np.float32)
    test = labels[150:] if test_labels is None else test_labels
    return Task({"noise": noise, "good": good}, 150, labels[:150], test, np.arange(150) // 3 % FOLDS, silent)


def test_a_backbone_that_knows_nothing_still_tells_digits_apart(digits: ProbeResult) -> None:
    """Random weights are a random projection: far above one in ten, and far below what is learnt."""
    assert digits.tested == 360 and digits.learnt == 1_437 and digits.classes == 10
    for method in (digits.knn, digits.linear):
        assert 0.5 < method.accuracy.value < 0.99
        assert method.accuracy == share(method.right, 360)
        assert len(method.wrong) == 360 - method.right
        assert abs(method.validation_accuracy - method.accuracy.value) < 0.08


def test_features_and_settings_are_chosen_where_they_matter() -> None:
    for name, settings, ask in (("k", (1, 10), _neighbours), ("C", (0.001, 1.0), _regression)):
        found = _method(task(), name, settings, ask, NAMES)
        assert found.features == "good"
        assert found.accuracy.value > 0.7


def test_the_test_pictures_choose_nothing() -> None:
    other = task(test_labels=np.zeros(60, np.int64))
    for name, settings, ask in (("k", (1, 5, 20), _neighbours), ("C", (0.01, 1.0), _regression)):
        one, two = (_method(each, name, settings, ask, NAMES) for each in (task(), other))
        assert (one.features, one.setting, one.validation_accuracy) == (
            two.features,
            two.setting,
            two.validation_accuracy,
        )
        assert one.wrong != two.wrong


def test_the_linear_probe_is_logistic_regression_on_standardised_features() -> None:
    given = task()
    seen = given.features["good"] * np.array([1, 1_000, 0.001], np.float32) + 5
    scaler = StandardScaler().fit(seen[:150])
    expected = LogisticRegression(C=0.1).fit(scaler.transform(seen[:150]), given.labels)
    _, probabilities = _regression(seen[:150], given.labels, seen[150:], 0.1)
    np.testing.assert_allclose(probabilities, expected.predict_proba(scaler.transform(seen[150:])), atol=1e-4)


def test_a_class_with_one_picture_is_no_obstacle() -> None:
    given = task()
    labels = given.labels.copy()
    labels[labels == 2] = 0
    labels[7] = 2
    for name, settings, ask in (("k", (1, 50), _neighbours), ("C", (1.0,), _regression)):
        assert _method(replace(given, labels=labels), name, settings, ask, NAMES).right > 25  # by chance 20 of the 60


def test_every_class_is_in_every_fold_and_groups_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_source(Data(source="digits"))
    learn = np.flatnonzero(index.splits != "test")
    folds = _folds(index, learn)
    counts = np.array([np.bincount(index.labels[learn][folds == fold], minlength=10) for fold in range(FOLDS)])
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
    groups = [str(number // 7) for number in range(len(index.samples))]
    folds = _folds(replace(index, groups=groups), learn)
    assert all(len({folds[at] for at in np.flatnonzero(np.array(groups)[learn] == one)}) == 1 for one in set(groups))
    monkeypatch.setattr(module, "MOST_TO_CHOOSE", 100)
    assert (_folds(index, learn) >= 0).sum() == 100


def test_what_is_kept_can_be_read_again(digits: ProbeResult, tmp_path: Path) -> None:
    assert ProbeResult.load(digits.save(tmp_path / "deep" / "folder")) == digits
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(RunError, match="broken.json is not a probe"):
        ProbeResult.load(tmp_path / "broken.json")


def test_only_probes_of_the_same_pictures_stand_beside_it(digits: ProbeResult, tmp_path: Path) -> None:
    better = replace(
        digits, weights="better", weights_sha256="b" * 64, linear=replace(digits.linear, right=360, wrong=())
    )
    elsewhere = replace(digits, weights="elsewhere", weights_sha256="e" * 64, pictures_sha256="0" * 64)
    for one in (digits, better, elsewhere):
        one.save(tmp_path)
    assert digits.others(tmp_path) == [better]
    found = digits.against(better)
    assert found.difference == pytest.approx(digits.linear.accuracy.value - 1)
    assert found.high < 0 and "better has" in found.verdict


def test_other_weights_of_one_name_stand_beside_it_too(digits: ProbeResult, tmp_path: Path) -> None:
    namesake = replace(digits, weights_sha256="a" * 64)
    saved = [one.save(tmp_path) for one in (digits, namesake, digits, namesake)]
    assert saved[:2] == saved[2:] and len(set(saved)) == 2
    assert digits.others(tmp_path) == [replace(namesake, weights=f"{digits.weights}-aaaaaaaa")]
    assert [one.weights_sha256 for one in namesake.others(tmp_path)] == [digits.weights_sha256]


def test_the_command_keeps_and_compares(photographs: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(vitral, ["probe", *arguments, str(photographs), "--out", str(out)])
        assert result.exit_code == 0, result.output
        return result.stdout  # on a slow machine stderr has how far it is

    environment = {"VITRAL_DATA": str(tmp_path / "data")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*environment.popitem())
        first = said(str(WEIGHTS))
        assert "16 pictures of 2 classes to learn from (train and validation), 8 to test." in first
        assert "8 of 8     100.0%" in first and "C = " in first and "k = " in first
        assert "Of some use for these pictures: 100% right (68% to 100%); always saying the most" in first
        assert f"A model of your own: vitral train {photographs} init.weights={WEIGHTS}" in first
        both = said(str(FIXTURES / "timm_vit_gap"))
        assert "timm_vit_gap" in both and "what its head sees" in both and "8 test pictures are too few" in both
        told = json.loads(said(str(WEIGHTS), "--json"))
    assert told["weights"] == "timm_vit" and told["linear"]["right"] == 8
    assert [one["weights"] for one in told["others"]] == ["timm_vit_gap"]
    assert {path.name for path in out.iterdir()} == {"timm_vit.json", "timm_vit_gap.json"}


def test_patches_answer_together(photographs: Path, tmp_path: Path) -> None:
    """Each patch of a light picture is light. The test pictures choose nothing, and what is kept can be read again."""
    result = probe(WEIGHTS, photographs, patches=True)
    assert isinstance(result, ProbeResult) and result.patches
    assert result.patches.right == result.tested == 8 and result.patches.wrong == ()
    assert ProbeResult.load(result.save(tmp_path)) == result
    assert probe(WEIGHTS, photographs).patches is None  # type: ignore[union-attr]
    done = CliRunner().invoke(
        vitral, ["probe", str(WEIGHTS), str(photographs), "--patches", "--out", str(tmp_path / "probes")]
    )
    assert "patches   8 of 8" in done.output and "; for patches C = " in done.output


def test_what_one_patch_knows_is_heard_among_many() -> None:
    """Of 10 patches, of which a regression saw 8, one knows the class; the others say nothing."""
    rng, labels = np.random.default_rng(0), np.arange(120) % 2
    tokens = rng.normal(size=(120, 8, 3)).astype(np.float32)
    tokens[np.arange(120), rng.integers(0, 8, 120), 0] += np.where(labels, 8, -8)
    known = Patches(tokens[:60], labels[:60])
    classes, answers = _mean_answers(known.fit(module.fit_regression, 1.0), tokens[60:])
    assert np.mean(classes[answers.argmax(axis=1)] == labels[60:]) > 0.9


def test_one_class_cannot_be_probed(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    (photographs / "train" / "dark").rename(photographs / "train" / ".dark")
    with pytest.raises(DataError, match="has no training picture of dark"):
        probe(WEIGHTS, photographs)


def test_pictures_that_a_run_has_learnt_from_are_told(photographs: Path, tmp_path: Path) -> None:
    asked = {"init.weights": str(WEIGHTS), "train.budget": "2steps", "train.batch_size": 4, "train.baseline": False}
    run = train(choose(str(photographs), asked).recipe, out=tmp_path / "run")
    assert not any("no test" in note for note in probe(run.folder, photographs).notes)
    other = tmp_path / "other"
    for ours, theirs in (("train", "test"), ("test", "train")):
        shutil.copytree(photographs / ours, other / theirs)
    assert "16 of these 16 pictures were learnt from" in " ".join(probe(run.folder, other).notes)


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("hf:org/model", "org--model"),
        ("runs/flowers", "flowers"),
        ("runs/flowers/model.safetensors", "flowers"),
        ("some/ViT.B-16.npz", "ViT.B-16"),
        ("vit_tiny_patch16_224", "vit_tiny_patch16_224"),
    ],
)
def test_weights_have_a_name(weights: str, name: str) -> None:
    assert name_of(weights) == name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("food", 71 / 75), ("ants-bees", 0.95), ("imagenette-mini", 0.96)])
def test_vit_tiny_is_good_for_photographs(large_data: Callable[[str], Path], name: str, least: float) -> None:
    """Measured: 72 of 75, 148 of 153, 197 of 200; in 12 to 75 seconds from the command on, on 2 busy cores."""
    large_data(name)
    result = probe(large_data("weights") / "vit_tiny_patch16_224", name)
    assert isinstance(result, ProbeResult)
    assert result.linear.accuracy.value >= least
