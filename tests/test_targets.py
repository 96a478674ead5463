"""Models that learn several labels, a number, or several tasks: from the batch to the answer."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from conftest import quick_digits
from vitral import Classifier, Epoch, Recipe, Run, ViT, ViTConfig, attention_maps, evaluate, train
from vitral.data.config import Data
from vitral.data.pack import Pack, pack
from vitral.data.sources import Index, open_source
from vitral.errors import RecipeError, WeightsError
from vitral.evaluation.baseline import compare_targets
from vitral.evaluation.metrics import Floats
from vitral.evaluation.target_metrics import LabelsMetrics, measure_labels, measure_number
from vitral.model import build
from vitral.model.shapes import shapes
from vitral.predictions import LabelsPrediction, NumberPrediction, TasksPrediction, prediction_of
from vitral.run import Baseline, TargetBaseline
from vitral.targets import Target, columns
from vitral.training.calibration import choose_margin, choose_threshold
from vitral.training.loop import events
from vitral.training.objectives.labels import Labels, mean_average_precision, positive_weights
from vitral.training.objectives.number import Number
from vitral.training.objectives.tasks import Tasks
from vitral.training.preparation import prepared
from vitral.weights.calibration import Calibration
from vitral.weights.own import read_weights, write_weights

DIGIT = Target(name="digit", names=tuple("0123456789"))
HIGH = Target(name="high", names=("no", "yes"))
TAGS = Target(name="tags", kind="labels", names=("even", "high", "round"))
VALUE = Target(name="value", kind="number", names=("value",))
KINDS = {"labels": (TAGS,), "number": (VALUE,), "tasks": (DIGIT, HIGH), "all": (DIGIT, VALUE, TAGS)}

TASKS = ViTConfig(
    image_size=8,
    patch_size=4,
    channels=1,
    width=16,
    depth=2,
    heads=2,
    classes=5,
    tokens={"kind": "tasks", "outputs": (3, 2)},  # type: ignore[arg-type]
)


def known(digits: NDArray[np.int64], target: Target) -> NDArray[np.float64]:
    """What a target is of pictures that show these digits, (n, outputs)."""
    columns = {
        "digit": [digits == digit for digit in range(10)],
        "high": [digits <= 5, digits > 5],
        "tags": [digits % 2 == 0, digits > 5, np.isin(digits, [0, 6, 8, 9])],
        "value": [digits * 10.0 + 3],
    }
    return np.stack(columns[target.name], axis=1).astype(np.float64)


def digits_with(*targets: Target, source: str = "digits") -> Index:
    index = open_source(Data(source="digits"))
    labels = np.hstack([known(index.labels, target) for target in targets])
    names = sum((target.names for target in targets), ())
    return replace(index, source=source, class_names=names, labels=labels, other_targets=targets)


def recipe_of(kind: str, **changes: Any) -> Recipe:
    tokens = {"model.tokens": "tasks"} if kind == "tasks" else {}
    return quick_digits().changed({"data.source": "digits", "train.epochs": 3, **tokens, **changes})


@pytest.fixture(scope="module", params=[*KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def index(kind: str) -> Index:
    return digits_with(*KINDS[kind])


@pytest.fixture(scope="module")
def run(kind: str, index: Index, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of each kind, that is only read."""
    return train(recipe_of(kind), source=index, out=tmp_path_factory.mktemp(kind) / "run")


@pytest.fixture(scope="module")
def packed(run: Run, index: Index) -> Pack:
    return pack(index, run.weights().preprocess, run.folder.parent)


# The model: a token and a head for each task


def test_each_task_has_a_token_and_rows_of_the_head_of_its_own() -> None:
    """Reference: the same by hand."""
    model = build(TASKS).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert isinstance(model, ViT)
    images = torch.randn(2, 1, 8, 8)
    state = model.state_dict()
    patches = model.patch_embed(images)
    tokens = torch.cat([state["cls_token"].expand(2, 2, 16), patches], dim=1) + state["pos_embed"]
    for block in model.blocks:
        tokens = block(tokens)
    tokens = model.norm(tokens)
    first = tokens[:, 0] @ state["head.weight"][:3].T + state["head.bias"][:3]
    second = tokens[:, 1] @ state["head.weight"][3:].T + state["head.bias"][3:]
    torch.testing.assert_close(model(images), torch.cat([first, second], dim=1))


def test_a_model_with_tokens_for_tasks_is_a_model_like_any_other() -> None:
    model = build(TASKS).eval()
    images = torch.randn(3, 1, 8, 8)
    assert tuple(model.get_parameter("cls_token").shape) == (1, 2, 16)
    assert sorted(name for layer in model.layers() for name in layer.parameters) == sorted(
        name for name, _ in model.named_parameters()
    )
    assert model.pool(model.features(images)).shape == (3, 2 * 16)
    assert model.at(16)(torch.randn(3, 1, 16, 16)).shape == (3, 5)
    assert sum(row.parameters * row.times for row in shapes(TASKS)) == sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(model(images), model.logits(model.features(images))[0])
    assert ViTConfig.read(TASKS.write()) == TASKS


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"tokens": {"kind": "tasks", "outputs": [2, 2]}},
            "model.tokens has the outputs 2 . 2, and model.classes is 5",
        ),
        ({"tokens": {"kind": "class", "outputs": [5]}}, "model.tokens class has one head for all"),
        ({"pool": "mean"}, "gives each task a linear head on its own token"),
        ({"tokens": "tasks"}, "does not say how many outputs each task has"),
    ],
)
def test_tokens_for_tasks_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        ViTConfig.read({**TASKS.write(), **settings})


def test_each_task_begins_with_a_copy_of_the_class_token_of_weights(trained: Run) -> None:
    """And of its position: what each task's token is after the first block is then the same for all of them."""
    index = digits_with(DIGIT, HIGH)
    plan = prepared(recipe_of("tasks", **{"init.weights": str(trained.folder)}), index=index)
    before, after = trained.weights().model.state_dict(), plan.learner.model.state_dict()
    assert after["cls_token"].shape[1] == 2 and not after["head.weight"].any()
    for name in ("cls_token", "pos_embed"):
        assert torch.equal(after[name][:, 0], before[name][:, 0]) and torch.equal(after[name][:, 1], before[name][:, 0])
    assert torch.equal(after["pos_embed"][:, 2:], before["pos_embed"][:, 1:])
    assert torch.equal(after["blocks.0.attn.qkv.weight"], before["blocks.0.attn.qkv.weight"])


def test_what_each_task_looks_at_can_be_asked() -> None:
    model, images = build(TASKS), torch.randn(1, 1, 8, 8)
    maps = attention_maps(model, images, queries="answer")
    assert maps.layout.extra == ("task 1", "task 2") and maps.shares.shape[-2:] == (2, 6)
    torch.testing.assert_close(maps.shares[..., 1:, :], attention_maps(model, images, queries=[1]).shares)
    with pytest.raises(RecipeError, match="a token for each task, and no class token"):
        attention_maps(model, images)


def test_one_task_needs_no_token_of_its_own() -> None:
    with pytest.raises(RecipeError, match="has a token per task, and digits has one: set model.tokens=class"):
        prepared(recipe_of("tasks"), index=digits_with(TAGS))


# The objectives


def test_the_loss_of_labels_is_binary_cross_entropy_smoothed_and_weighted() -> None:
    logits, labels = torch.randn(8, 3), (torch.rand(8, 3) > 0.5).double()
    p, y, w = logits.sigmoid(), labels.float() * 0.8 + 0.1, torch.tensor([1.0, 2.0, 3.0])
    by_hand = -(w * y * p.log() + (1 - y) * (1 - p).log()).mean()
    torch.testing.assert_close(Labels(w, label_smoothing=0.2).of_logits(logits, labels), by_hand)
    assert positive_weights(torch.tensor([[1, 0], [0, 0], [0, 1], [1, 1.0]])).tolist() == [1.0, 1.0]


def test_the_mean_average_precision_is_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score

    random = np.random.default_rng(0)
    scores, truth = random.normal(size=(50, 4)), random.random((50, 4)) < 0.3
    expected = average_precision_score(truth, scores, average="macro")
    assert float(mean_average_precision(torch.tensor(scores), torch.tensor(truth).double())) == pytest.approx(expected)


def test_the_loss_of_a_number_is_hubers_in_standard_deviations_and_its_figure_in_the_unit() -> None:
    objective = Number(VALUE.model_copy(update={"mean": 50.0, "std": 20.0}))
    outputs, numbers = torch.tensor([[0.5], [2.0]]), torch.tensor([[50.0], [30.0]], dtype=torch.float64)
    assert float(objective.of_logits(outputs, numbers)) == pytest.approx((0.5 * 0.5**2 + (3.0 - 0.5)) / 2)
    assert float(objective.measure(outputs, numbers)["mae"]) == pytest.approx((10 + 60) / 2)


def test_the_loss_of_tasks_is_the_weighted_sum_of_theirs() -> None:
    index = digits_with(DIGIT, VALUE, TAGS)
    plan = prepared(recipe_of("all", **{"train.task_weights": [1, 0.5, 2], "train.label_smoothing": 0}), index=index)
    objective = plan.learner.objective
    assert isinstance(objective, Tasks)
    assert objective.figures == ("digit_accuracy", "value_mae", "tags_map")
    logits, labels = torch.randn(64, 14), torch.from_numpy(index.labels[:64])
    digit, value, tags = columns(index.targets)
    number = objective.tasks[1].objective
    by_hand = (
        cross_entropy(logits[:, digit], labels[:, digit].argmax(dim=1))
        + 0.5 * number.of_logits(logits[:, value], labels[:, value])
        + 2 * binary_cross_entropy_with_logits(logits[:, tags], labels[:, tags].float())
    )
    torch.testing.assert_close(objective.of_logits(logits, labels), by_hand)
    torch.testing.assert_close(objective.validation_loss(logits, labels), by_hand)


def test_numbers_are_standardised_by_the_training_pictures() -> None:
    index = digits_with(VALUE)
    [target] = prepared(recipe_of("number"), index=index).targets
    train_numbers = index.labels[index.of("train")]
    assert target.mean == pytest.approx(train_numbers.mean()) and target.std == pytest.approx(train_numbers.std())


def test_large_numbers_that_differ_little_stay_apart() -> None:
    """As moments in time do: in float32 there is nothing between 1,700,000,000 and 1,700,000,128."""
    index = digits_with(VALUE)
    plan = prepared(recipe_of("number"), index=replace(index, labels=index.labels + 1.7e9))
    _, batch = next(plan.batches.starting_at(1))
    expected = torch.from_numpy(index.labels[batch.samples] - index.labels[index.of("train")].mean())
    torch.testing.assert_close(batch.targets - plan.targets[0].mean, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("labels", {"train.objective": "double-softmax"}, "is for one class a picture, and here it has several labels"),
        ("number", {"teacher.source": "somebody"}, "A teacher says which class .* and here it has a number .value."),
        ("number", {"train.class_weights": "balanced"}, "train.class_weights is for classes and labels"),
        ("tasks", {"train.task_weights": [1, 2, 3]}, "has 3 numbers, and there are 2 tasks, digit, high"),
        ("labels", {"train.task_weights": [1]}, "there is one task, tags"),
        ("labels", {"train.choose": "accuracy"}, "the objective tells no accuracy: set train.choose=loss"),
    ],
)
def test_what_makes_no_sense_for_a_target_is_refused(kind: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        prepared(recipe_of(kind, **settings), index=digits_with(*KINDS[kind]))


# A run


def test_a_run_learns_each_kind(run: Run, kind: str) -> None:
    first, *_, last = [line for line in run.metrics if line["event"] == "epoch"]
    assert last["validation_loss"] < first["validation_loss"]
    figures = {"labels": "map", "number": "mae", "tasks": "high_accuracy", "all": "tags_map"}
    assert {f"train_{figures[kind]}", f"validation_{figures[kind]}"} <= last.keys()


def test_weights_know_their_targets(run: Run, kind: str, index: Index, tmp_path: Path) -> None:
    weights = run.weights()
    numbers = index.labels[index.of("train")]
    for target, mine in zip(weights.targets, columns(weights.targets), strict=True):
        spread = numbers[:, mine].std() if target.kind == "number" else 1.0
        assert target.std == pytest.approx(spread)
    assert [(one.name, one.kind, one.names) for one in weights.targets] == [
        (one.name, one.kind, one.names) for one in KINDS[kind]
    ]
    again = read_weights(write_weights(tmp_path / "copy", weights))
    assert again.targets == weights.targets
    lying = replace(weights, other_targets=(*weights.targets[:-1], TAGS.model_copy(update={"names": ("a", "b", "c")})))
    with pytest.raises((WeightsError, RecipeError), match="targets"):
        read_weights(write_weights(tmp_path / "lying", lying))


def test_a_stopped_run_goes_on_to_the_bit(run: Run, kind: str, index: Index, tmp_path: Path) -> None:
    stream = events(recipe_of(kind), source=index, out=tmp_path / "run", save_every=0)
    for event in stream:
        if isinstance(event, Epoch):
            break
    stream.close()
    again = train(out=tmp_path / "run", source=index, resume=True)
    for name, tensor in run.weights().model.state_dict().items():
        assert torch.equal(tensor, again.weights().model.state_dict()[name]), name
    first, second = (
        Calibration.load(one.folder, one.weights().model, one.weights().other_targets) for one in (run, again)
    )
    assert first is not None and second is not None and torch.equal(first.temperature, second.temperature)


def test_answers_are_probabilities_and_numbers_in_their_unit(run: Run, kind: str, packed: Pack) -> None:
    """Reference: softmax, sigmoid and the stored mean and standard deviation, by hand."""
    classifier = Classifier.load(run)
    picture: Any = packed.index.storage.read(3)
    images = classifier.preprocess(picture)[None]
    with torch.no_grad():
        logits = classifier.model(images)[0]
    assert classifier.calibration is not None
    answer = classifier.predict(picture)
    parts = answer.tasks if isinstance(answer, TasksPrediction) else {KINDS[kind][0].name: answer}
    assert answer.distance is not None and list(parts) == [target.name for target in KINDS[kind]]
    places = zip(classifier.targets, columns(classifier.targets), classifier.calibration.temperature, strict=True)
    for target, mine, temperature in places:
        part, own = parts[target.name], logits[mine]
        if isinstance(part, NumberPrediction):
            assert part.value == pytest.approx(float(own[0]) * target.std + target.mean, rel=1e-5)
            assert part.low is not None and part.high is not None and part.low < part.value < part.high
            continue
        expected = (own / temperature).sigmoid() if target.kind == "labels" else (own / temperature).softmax(dim=0)
        assert dict(part.probabilities) == pytest.approx(dict(zip(target.names, expected.tolist(), strict=True)))
        if isinstance(part, LabelsPrediction):
            said = {
                name for (name, share), limit in zip(part.probabilities, part.thresholds, strict=True) if share >= limit
            }
            assert set(part.labels) == said
    assert json.loads(json.dumps(answer.write()))["distance"] == answer.distance


@pytest.mark.slow
def test_an_evaluation_has_the_figures_of_each_target(run: Run, kind: str, packed: Pack, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.folder, tmp_path / "run"))
    evaluation = evaluate(copy, source=packed)
    stored = copy.evaluation
    assert stored is not None and [one["name"] for one in stored["targets"]] == [one.name for one in KINDS[kind]]
    for target in stored["targets"]:
        main = {"class": "accuracy", "labels": "map", "number": "mae"}[target["kind"]]
        figure = target["figures"][main]
        assert figure["low"] <= figure["value"] <= figure["high"]
        if target["kind"] == "number":
            assert figure["value"] < target["figures"]["mae_of_mean"]["value"]
    assert len(stored["predictions"]) == evaluation.pictures == 360
    assert stored["predictions"][0]["targets"].keys() == {one.name for one in KINDS[kind]}
    with pytest.raises(Exception, match="Evaluation.by_target has the metrics of each"):
        _ = evaluation.metrics


def test_a_training_begins_with_weights_of_the_same_targets_or_gets_a_new_head(
    run: Run, kind: str, index: Index
) -> None:
    weights = run.weights()
    larger = np.array([2 if name == "value" else 1 for name in index.class_names])  # numbers of another spread
    pictures = replace(index, labels=index.labels * larger)
    again = prepared(recipe_of(kind, **{"init.weights": str(run.folder)}), index=pictures)
    assert torch.equal(again.learner.model.get_parameter("head.weight"), weights.model.get_parameter("head.weight"))
    assert again.targets == weights.targets  # with the same mean and standard deviation
    if kind == "tasks":
        with pytest.raises(RecipeError, match="a token for each of its tasks, so it cannot learn others"):
            prepared(recipe_of("labels", **{"init.weights": str(run.folder)}), index=digits_with(TAGS))
        return
    one = quick_digits().changed({"init.weights": str(run.folder)})
    other = prepared(one)  # one class a picture
    assert other.other_targets == () and not other.learner.model.get_parameter("head.weight").any()


def test_a_probe_learns_from_cached_features_as_from_pictures(run: Run, kind: str, index: Index) -> None:
    probe = {"init.weights": str(run.folder), "init.mode": "probe", "data.augment.crop": 0, "train.epochs": 1}
    plan = prepared(recipe_of(kind, **probe), index=index)
    figures = plan.validate()
    assert set(figures) == {"loss", *plan.learner.objective.figures}


@pytest.mark.slow
def test_the_pages_example_runs(tmp_path: Path) -> None:
    """With digits of 8 × 8 in the place of those of MNIST, and fewer steps."""
    page = (Path(__file__).parents[1] / "docs" / "targets.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    code = code.replace('"mnist"', '"digits"').replace("600steps", "200steps")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    figures = dict(line.split(": ") for line in done.stdout.splitlines() if "_accuracy: " in line)
    assert float(figures["digit_accuracy"]) > 0.9 and float(figures["high_accuracy"]) > 0.9
    answer = Classifier.load(tmp_path / "runs" / "digit-and-high")
    assert [target.name for target in answer.targets] == ["digit", "high"]


# Calibration and metrics


def test_a_threshold_is_that_of_the_best_f1() -> None:
    """Reference: all thresholds tried."""
    random = np.random.default_rng(0)
    truth = random.random(80) < 0.3
    probabilities = np.clip(random.normal(0.3 + 0.2 * truth, 0.15), 0, 1)

    def f1(threshold: float) -> float:
        said = probabilities >= threshold
        return 2 * float((said & truth).sum()) / float(said.sum() + truth.sum())

    best = max(f1(float(one)) for one in probabilities)
    assert f1(choose_threshold(probabilities, truth)) == pytest.approx(best)
    assert choose_threshold(probabilities[:4], truth[:4]) == 0.5  # too few to tell


def test_nine_of_ten_numbers_lie_within_the_margin() -> None:
    random = np.random.default_rng(0)
    inside = [
        np.mean(np.abs(random.normal(size=500)) <= choose_margin(np.abs(random.normal(size=40)))) for _ in range(200)
    ]
    assert 0.9 <= np.mean(inside) < 0.92


def test_the_metrics_of_labels_equal_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score, f1_score

    random = np.random.default_rng(0)
    truth = random.random((200, 5)) < 0.3
    probabilities: Floats = np.clip(random.normal(0.3 + 0.3 * truth, 0.2), 0, 1).round(2)  # with ties
    thresholds = np.array([0.3, 0.4, 0.5, 0.6, 0.45])
    metrics = measure_labels(truth, probabilities, tuple("abcde"), thresholds)
    said = probabilities >= thresholds
    values = {name: figure.value for name, figure in metrics.figures.items()}
    assert values["map"] == pytest.approx(average_precision_score(truth, probabilities, average="macro"))
    assert values["micro_f1"] == pytest.approx(f1_score(truth, said, average="micro"))
    assert values["macro_f1"] == pytest.approx(f1_score(truth, said, average="macro"))
    assert values["brier"] == pytest.approx(((probabilities - truth) ** 2).mean())
    assert metrics.labels[1].f1 == pytest.approx(f1_score(truth[:, 1], said[:, 1]))
    assert all(figure.low <= figure.value <= figure.high for figure in metrics.figures.values())  # type: ignore[operator]


def test_the_metrics_of_a_number_equal_scikit_learns_and_stand_beside_the_mean() -> None:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    random = np.random.default_rng(0)
    truth = random.normal(50, 20, 100)
    said = truth + random.normal(0, 5, 100)
    values = {name: figure.value for name, figure in measure_number(truth, said, 48.0, 9.0).figures.items()}
    assert values["mae"] == pytest.approx(mean_absolute_error(truth, said))
    assert values["rmse"] == pytest.approx(root_mean_squared_error(truth, said))
    assert values["r2"] == pytest.approx(r2_score(truth, said))
    assert values["mae_of_mean"] == pytest.approx(np.abs(truth - 48).mean())
    assert values["inside"] == pytest.approx((np.abs(truth - said) <= 9).mean())


def test_a_label_that_no_picture_has_is_told_and_not_counted() -> None:
    truth = np.zeros((40, 2), np.bool_)
    truth[:20, 0] = True
    metrics = measure_labels(truth, np.full((40, 2), 0.2), ("a", "b"), np.array([0.5, 0.5]))
    assert isinstance(metrics, LabelsMetrics) and metrics.labels[1].average_precision is None
    assert metrics.figures["map"].value == pytest.approx(0.5)


def test_a_model_stands_beside_the_simple_method_of_each_target() -> None:
    """A model that knows all, and one that is wrong: the gain, and the verdict."""
    random = np.random.default_rng(0)
    samples = [f"{number:03}" for number in range(100)]
    truth = np.hstack([known(random.integers(0, 10, 100), target) for target in (TAGS, VALUE)])
    vague = np.hstack([random.random((100, 3)), random.normal(48, 30, (100, 1))])
    simple = [
        TargetBaseline(
            name=target.name,
            kind=target.kind,
            method="guessing",
            validation=None,
            test=None,
            guess=None,
            said=dict(zip(samples, vague[:, mine].tolist(), strict=True)),
        )
        for target, mine in zip((TAGS, VALUE), columns((TAGS, VALUE)), strict=True)
    ]
    baseline = Baseline(method="", validation_accuracy=None, test_accuracy=None, right={}, targets=simple)
    better = compare_targets(baseline, (TAGS, VALUE), samples, truth, truth)
    assert better["tags"].ours == 1 and better["value"].ours == 0
    assert better["value"].gain.value == pytest.approx(np.abs(vague[:, 3] - truth[:, 3]).mean())
    assert all("The model is better, by" in one.verdict for one in better.values())
    other = np.hstack([random.random((100, 3)), truth[:, 3:] + 99])
    verdicts = compare_targets(baseline, (TAGS, VALUE), samples, truth, other)
    assert "may be luck" in verdicts["tags"].verdict and "is worse, and cannot be trusted" in verdicts["value"].verdict


def test_who_is_sure_that_no_label_is_there_is_not_unsure() -> None:
    kind, tags = Target(name="kind", names=("x", "y")), Target(name="tags", kind="labels", names=("a", "b"))
    halves, none = np.full(4, 0.5), np.zeros(4)
    sure, doubtful = np.array([0.9, 0.1, 0.02, 0.01]), np.array([0.9, 0.1, 0.4, 0.01])
    answer = prediction_of(sure[2:], [tags], None, halves[2:], none[2:])
    assert answer.label == "no label" and not answer.unsure(0.5) and answer.unsure(0.99)
    assert not prediction_of(sure, [kind, tags], None, halves, none).unsure(0.5)
    assert prediction_of(doubtful, [kind, tags], None, halves, none).unsure(0.7)
