"""Rooms that use weights, for pictures that have several labels, a number or several tasks: report, look, convert."""

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image, ImageDraw
from sklearn.linear_model import LogisticRegression, Ridge

from conftest import FIXTURES, quick_digits
from test_report import Page
from vitral import Classifier, Evaluation, Run, ViT, ViTConfig, evaluate, train
from vitral.cli import vitral
from vitral.cli.compare import cell
from vitral.cli.evaluate import _accusers
from vitral.data.config import Data
from vitral.data.folds import OutOfFold
from vitral.data.pack import pack
from vitral.data.sources import Index, open_source
from vitral.deploy.convert import convert
from vitral.errors import RecipeError, RunError, WeightsError
from vitral.evaluation.compare import compare, draw, words
from vitral.evaluation.embed import embed
from vitral.evaluation.probe import probe
from vitral.evaluation.probe_results import TargetsProbeResult
from vitral.evaluation.report import write_report
from vitral.evaluation.seeds import spread_over_seeds
from vitral.evaluation.suspects import suspects, write_suspects
from vitral.inference import Inference
from vitral.look.embedding_map import COLOURS, REST, Names, Scale
from vitral.look.explain import Explainer
from vitral.look.glass.server import Glass
from vitral.look.grading import grade
from vitral.look.readings import class_attention
from vitral.model import build
from vitral.predictions import LabelsPrediction, NumberPrediction
from vitral.progress import drain
from vitral.regressions import logistic, ridge
from vitral.targets import Target, columns
from vitral.training.folds import out_of_fold
from vitral.weights.pretrained import load_pretrained

DIGIT = Target(name="digit", names=tuple("0123456789"))
TAGS = Target(name="tags", kind="labels", names=("even", "high", "round"))
VALUE = Target(name="value", kind="number", names=("value",))
KINDS = {"labels": (TAGS,), "number": (VALUE,), "tasks": (DIGIT, VALUE)}


def index_of(kind: str) -> Index:
    index = open_source(Data(source="digits"))
    digits = index.labels
    known = {
        "digit": np.eye(10)[digits],
        "tags": np.stack([digits % 2 == 0, digits > 5, np.isin(digits, [0, 6, 8, 9])], axis=1).astype(np.float64),
        "value": digits[:, None] * 10.0 + 3,
    }
    targets = KINDS[kind]
    labels = np.hstack([known[target.name] for target in targets])
    return replace(index, class_names=sum((t.names for t in targets), ()), labels=labels, other_targets=targets)


@pytest.fixture(scope="module", params=[*KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def evaluation(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """A tiny run of each kind, measured."""
    changes = {"data.source": "digits", "train.epochs": 2}
    if kind == "tasks":
        changes["model.tokens"] = "tasks"
    index = index_of(kind)
    run = train(quick_digits().changed(changes), source=index, out=tmp_path_factory.mktemp(kind) / "run")
    return evaluate(run, source=pack(index, run.weights().preprocess, run.folder.parent))


@pytest.fixture(scope="module")
def run(evaluation: Evaluation) -> Run:
    return evaluation.run


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("picture") / "digit.png"
    Image.fromarray(np.asarray(open_source(Data(source="digits")).storage.read(0)).squeeze()).save(path)
    yield path


@pytest.fixture(scope="module")
def table(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Sixty digits in a table, with all that is known of them."""
    folder = tmp_path_factory.mktemp("table")
    index, tags = open_source(Data(source="digits")), index_of("labels")
    lines = ["path,split,labels,value,digit"]
    for number in range(60):
        Image.fromarray(np.asarray(index.storage.read(number)).squeeze()).save(folder / f"{number}.png")
        digit, split = int(index.labels[number]), "test" if number // 10 % 2 else "train"
        lines.append(f"{number}.png,{split},{tags.label_of(number)},{digit * 10 + 3},{digit}")
    (folder / "digits.csv").write_text("\n".join(lines) + "\n")
    target = {"labels": "labels", "number": "value", "tasks": "digit,value"}[kind]
    return Data(source=str(folder / "digits.csv"), directory=str(folder / "data"), target=target)


def part_of(evaluation: Evaluation, name: str) -> Evaluation:
    return next(part for part in evaluation.parts if name in (part.task, part.targets[0].name))


# The report


def test_the_report_has_all_figures_of_each_target(evaluation: Evaluation) -> None:
    found = Page((evaluation.folder / "report.html").read_text(encoding="utf-8"))
    written = json.loads((evaluation.folder / "evaluation.json").read_text(encoding="utf-8"))["targets"]
    shown = {one["id"].rpartition("figure-")[::2]: float(one["value"]) for one in found.all("data")}
    places = [f"{place}-" if len(written) > 1 else "" for place in range(1, len(written) + 1)]
    assert shown == {
        (place, name): figure["value"]
        for place, target in zip(places, written, strict=True)
        for name, figure in target["figures"].items()
    }
    assert {link["href"] for link in found.all("a")} == {f"#{heading['id']}" for heading in found.all("h2")}
    assert all(image["alt"] for image in found.all("img"))


@pytest.mark.slow
def test_what_there_was_no_time_for_is_told_task_by_task(evaluation: Evaluation, kind: str, tmp_path: Path) -> None:
    copy = shutil.copytree(evaluation.run.folder, tmp_path / "copy")
    left_out = evaluate(copy, source=evaluation.pack, seconds=0.0).left_out
    maps = ["grades of 8 maps of digit", "grades of 8 maps of value"] if kind == "tasks" else ["grades of 8 maps"]
    assert left_out[-len(maps) :] == maps


def test_every_figure_that_a_kind_has_is_drawn(evaluation: Evaluation, kind: str) -> None:
    figures = {path.stem for path in evaluation.folder.glob("*.png")}
    number = {"said", "errors", "predictions", "attention"}
    labels = {"labels", "precision-recall", "reliability", "predictions", "attention"}
    classes = {"classes", "confusion", "reliability", "predictions", "attention"}
    tasks = {f"digit-{name}" for name in classes} | {f"value-{name}" for name in number}
    assert figures == {"curves"} | {"labels": labels, "number": number, "tasks": tasks}[kind]


def test_a_part_says_of_its_target_what_the_whole_says(evaluation: Evaluation) -> None:
    for part, target in zip(evaluation.parts, evaluation.targets, strict=True):
        assert part.measured.figures == evaluation.by_target[target.name].figures
        assert len(part.parts) == 1 and part.weights.class_names == target.names


def test_labels_of_a_picture_are_right_missed_or_false(evaluation: Evaluation, kind: str) -> None:
    from vitral.evaluation.figures import labels_of

    if kind != "labels":
        return
    for row in range(20):
        parts = labels_of(evaluation, row)
        has = {name for name, one in zip(TAGS.names, evaluation.labels[row], strict=True) if one}
        assert has == {*parts["right"], *parts["missed"]} and not has & set(parts["false"])
        assert bool(evaluation.right[row]) is (not parts["missed"] and not parts["false"])


def test_names_of_labels_are_text_and_never_markup(evaluation: Evaluation, kind: str, tmp_path: Path) -> None:
    if kind != "labels":
        return
    target = TAGS.model_copy(update={"names": ("<script>alert(1)</script>", "$x$", "round")})
    weights = replace(evaluation.weights, class_names=target.names, other_targets=(target,))
    found = Page(write_report(replace(evaluation, weights=weights, results=tmp_path)).read_text(encoding="utf-8"))
    assert not found.all("script") and "<script>alert(1)</script>" in found.text


# Several seeds


def test_seeds_are_told_for_each_target_with_its_main_figure(evaluation: Evaluation, kind: str) -> None:
    other = replace(evaluation, outputs=replace(evaluation.outputs, logits=-evaluation.outputs.logits))
    spreads = spread_over_seeds([evaluation, other])
    assert [spread.target for spread in spreads] == [target.name for target in evaluation.targets]
    for spread in spreads:
        name = {"digit": "accuracy", "tags": "map", "value": "mae"}[spread.target]
        assert spread.values == tuple(one.by_target[spread.target].figures[name].value for one in (evaluation, other))
        assert f"± {spread._text(float(np.std(spread.values, ddof=1)))} (mean ± sd of 2 seeds: " in str(spread)
    starts = {"labels": "tags: test mean average precision", "number": "value: test mean absolute error"}
    assert str(spreads[0]).startswith(starts.get(kind, "digit: test accuracy"))


# Runs side by side


def second_run(run: Run, folder: Path, better: bool, seed: int = 0) -> Path:
    """A copy of a run under another recipe; `better`: as if it had been right, or half as far off."""
    shutil.copytree(
        run.folder, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.png", "*.html", "checkpoints")
    )
    changes = {"train.seed": seed} | ({"train.batch_size": 32} if better else {})
    (folder / "recipe.toml").write_text(run.recipe.changed(changes).to_toml())
    stored = json.loads((folder / "evaluation.json").read_text())
    for line in stored["predictions"] if better else ():
        for answer in line["targets"].values():
            if "value" in answer:
                answer["predicted"] = (answer["predicted"] + answer["value"]) / 2
            elif "label" in answer:
                answer["predicted"] = answer["label"]
            else:
                answer["probabilities"] = [float(name in answer["labels"]) for name in TAGS.names]
    (folder / "evaluation.json").write_text(json.dumps(stored))
    return folder


def test_runs_of_each_kind_are_compared_picture_by_picture(evaluation: Evaluation, kind: str, tmp_path: Path) -> None:
    folders = [second_run(evaluation.run, tmp_path / name, name == "better") for name in ("plain", "better")]
    comparison = compare(folders)
    assert [pair.target for pair in comparison.pairs] == [target.name for target in evaluation.targets]
    for pair in comparison.pairs:
        value = evaluation.by_target[pair.target].figures[pair.figure].value
        gain = value / 2 if pair.figure == "mae" else 1 - value
        # Probabilities are stored with six digits: two that are then the same may change places in a ranking.
        assert pair.difference == pytest.approx(gain, abs=1e-3) and 0 < pair.low < pair.difference < pair.high
        assert pair.level == 1 - 0.05 / len(evaluation.targets)
        assert pair.lacks_seeds is (pair.figure != "accuracy")
    tested = {"labels": ["test_map"], "number": ["test_mae"], "tasks": ["test_digit_accuracy", "test_value_mae"]}[kind]
    assert [name for name in comparison.measures if name.startswith("test_")] == tested
    for name in tested:
        value = evaluation.figures[name.removeprefix("test_")].value
        assert comparison.write()["groups"][0][name]["mean"] == pytest.approx(value)
        assert cell(comparison.groups[0], name).startswith(f"{words(value, name)} (")
        assert comparison.groups[0].values(name.replace("test_", "validation_"))
    assert draw(comparison, tmp_path / "drawn").is_file()


def test_with_several_seeds_of_each_the_verdict_covers_them(run: Run, kind: str, tmp_path: Path) -> None:
    for name, seed in product(("plain", "better"), (0, 1)):
        second_run(run, tmp_path / name / f"seed-{seed}", name == "better", seed)
    pairs = compare([tmp_path]).pairs
    assert all(pair.runs == (2, 2) and not pair.lacks_seeds for pair in pairs)
    assert all("over seeds and pictures" in pair.verdict for pair in pairs)


def test_runs_that_learnt_something_else_are_not_compared(run: Run, kind: str, tmp_path: Path) -> None:
    folders = [second_run(run, tmp_path / name, name == "better") for name in ("plain", "better")]
    path = folders[1] / "evaluation.json"
    stored = json.loads(path.read_text())
    stored["targets"][0]["name"] = "weight"
    for line in stored["predictions"]:
        line["targets"]["weight"] = line["targets"].pop(run.weights().targets[0].name)
    path.write_text(json.dumps(stored))
    with pytest.raises(RunError, match=r"plain tells .* of a picture, and .*better weight .*: runs are compared that"):
        compare(folders)


# Doubtful labels


def test_who_is_accused_is_labelled_otherwise_than_said(evaluation: Evaluation, kind: str, tmp_path: Path) -> None:
    made, numbers = evaluation.pack, np.arange(200)
    index, random = made.index, np.random.default_rng(0)
    values = index.labels[numbers].copy()
    for target, mine in zip(evaluation.targets, columns(evaluation.targets), strict=True):
        if target.kind == "number":
            values[:, mine] += random.normal(size=(200, 1))
            values[7, mine] += 500
        else:
            values[:, mine] = 0.05 + 0.9 * values[:, mine]
            values[7, mine] = 0.99 - 0.98 * index.labels[7, mine]  # sure of all that is not so
    found = suspects(OutOfFold(made, numbers, values))
    assert {one.number for one in found} == {7}
    of_targets = {"labels": ["tags"] * 3, "number": ["value"], "tasks": ["digit", "value"]}[kind]
    assert [one.target for one in found] == of_targets
    write_suspects(found, made, tmp_path)
    rows = list(csv.DictReader((tmp_path / "suspects.csv").read_text().splitlines()))
    assert [(row["sample"], row["target"]) for row in rows] == [(index.samples[7], one.target) for one in found]
    if kind == "labels":
        has = {name for name, one in zip(TAGS.names, index.labels[7], strict=True) if one}
        assert {(one.label, one.suggested) for one in found} == {
            (name, f"not {name}") if name in has else (f"not {name}", name) for name in TAGS.names
        }
    else:
        assert rows[-1]["label_probability"] == "" and float(rows[-1]["suggested"]) > 400


def test_each_picture_is_doubted_by_a_model_that_has_not_learnt_from_it(tmp_path: Path) -> None:
    index = open_source(Data(source="digits"))
    lines = ["path,tags,weight"]
    for number in range(24):
        Image.fromarray(np.asarray(index.storage.read(number)).squeeze()).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{'even;low' if number % 2 else 'low'},{100 + number / 3:.3f}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    changes = {"data.source": str(tmp_path / "table.csv"), "data.target": "tags:labels,weight:number"}
    outputs = drain(out_of_fold(quick_digits().changed(changes | {"train.batch_size": 8}), 1, 2), lambda _: None)
    said = outputs.probabilities
    assert said.shape == (24, 3) and ((0 < said[:, :2]) & (said[:, :2] < 1)).all()
    assert (np.abs(said[:, 2] - 104) < 60).all()  # in the unit of the data
    assert [line.split(" has ")[0] for line in _accusers(outputs)] == ["Who doubts tags", "Who doubts weight"]


# Look


def test_look_explains_each_kind(run: Run, kind: str, picture: Path) -> None:
    explanation = Explainer.load(run).explain(picture)
    prediction = Classifier.load(run).predict(picture)
    assert explanation.grade is not None and explanation.map.shape == (4, 4)
    if kind == "labels":
        assert isinstance(explanation.prediction, LabelsPrediction) and isinstance(prediction, LabelsPrediction)
        assert explanation.prediction.labels == prediction.labels
        assert explanation.explained == prediction.probabilities[0][0]  # the most probable
    elif kind == "number":
        assert isinstance(explanation.prediction, NumberPrediction) and isinstance(prediction, NumberPrediction)
        assert explanation.prediction.value == pytest.approx(prediction.value, rel=1e-5)
        assert explanation.says.startswith(f"It says {prediction.label}")
    else:
        assert explanation.says.startswith("digit: It says “")  # the first task


def test_look_explains_the_label_that_is_named(run: Run, kind: str, picture: Path) -> None:
    named = {"labels": ("round", "round"), "number": ("value", None), "tasks": ("7", "7")}[kind]
    explanation = Explainer.load(run, label=named[0]).explain(picture)
    if named[1]:
        assert explanation.explained == named[1] and f"explained is “{named[1]}”" in explanation.says
    with pytest.raises(RecipeError, match="There is no label rond"):
        Explainer.load(run, label="rond")


def test_of_tasks_the_one_that_is_named_is_explained(run: Run, kind: str, picture: Path) -> None:
    if kind != "tasks":
        return
    explanation = Explainer.load(run, label="value").explain(picture)
    assert isinstance(explanation.prediction, NumberPrediction) and explanation.task == "value"
    with pytest.raises(RecipeError, match="shows the probabilities of classes or of labels, and run has digit .class."):
        Glass.open(run.folder)


def test_the_glass_shows_each_label_and_calls_it_so(run: Run, kind: str) -> None:
    if kind != "labels":
        return
    with Glass.open(run.folder) as glass:
        assert glass.inspected.page_facts()["output"] == "label" and glass.inspected.page_facts()["classes"] == 3
        pixels = glass.answers.shelf[0].pixels
        answer = glass.inspected.answer(pixels)
        assert answer is not None and isinstance(answer.prediction, LabelsPrediction)
        assert [TAGS.names[row] for row in answer.top(3)] == [name for name, _ in answer.prediction.probabilities]
        assert glass.inspected.reading(pixels, "class-attention", 2).shape == (4, 4)


def test_a_task_with_a_token_of_its_own_is_explained_from_there() -> None:
    """What another task's token took does not matter: a head that is zero there has no map."""
    tokens: Any = {"kind": "tasks", "outputs": (2, 1)}
    model = build(
        ViTConfig(image_size=8, patch_size=2, channels=1, width=16, depth=2, heads=2, classes=3, tokens=tokens)
    )
    assert isinstance(model, ViT)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images = torch.randn(1, 1, 8, 8)
    before = class_attention(model, images, torch.tensor([0]))
    with torch.no_grad():
        model.get_parameter("head.weight")[2] = 0
        assert torch.equal(class_attention(model, images, torch.tensor([0])), before)
        assert not class_attention(model, images, torch.tensor([2])).any()


def test_what_lowers_a_number_explains_it_as_well_as_what_raises_it() -> None:
    model = build(ViTConfig(image_size=8, patch_size=2, channels=1, width=16, depth=2, heads=2, classes=1))
    assert isinstance(model, ViT)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images, first = torch.randn(1, 1, 8, 8), torch.tensor([0])
    map = class_attention(model, images, first, of_number=True)
    with torch.no_grad():
        for parameter in model.get_parameter("head.weight"), model.get_parameter("head.bias"):
            parameter.neg_()
    torch.testing.assert_close(class_attention(model, images, first, of_number=True), map)
    result = grade(model, images[0], map[0], 0, target=VALUE)
    assert torch.equal(result.curves[:, 0], torch.ones(len(result.curves)))  # with all patches it is the answer


# Vectors


def test_vectors_lie_beside_all_that_is_known_of_a_picture(run: Run, kind: str, table: Data, tmp_path: Path) -> None:
    embeddings = embed(run, table, tmp_path / "embedded")
    index = open_source(table)
    with np.load(embeddings.folder / "embeddings.npz", allow_pickle=False) as told:
        np.testing.assert_array_equal(told["labels"], index.labels)
        assert told["class_names"].tolist() == list(index.class_names) and len(told["vectors"]) == 60
    with (embeddings.folder / "pictures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sample"] for row in rows] == embeddings.samples
    digits = open_source(Data(source="digits")).labels[:60]
    for row, digit, tags in zip(rows, digits, index_of("labels").labels, strict=False):
        known = {
            "labels": {"labels": ";".join(np.array(TAGS.names)[tags > 0])},
            "number": {"value": f"{digit * 10.0 + 3}"},
            "tasks": {"digit": f"{digit}", "value": f"{digit * 10.0 + 3}"},
        }[kind]
        assert {name: row[name] for name in row if name not in ("sample", "split")} == known
    with Image.open(embeddings.folder / "map.png") as drawn:
        assert drawn.width > 1_000
    assert embeddings.nearest(open_source(table).storage.read(7), 1)[0].label == index.label_of(7)


def test_a_frame_has_a_stripe_of_each_label_and_a_shade_for_a_number() -> None:
    def frame(key: Names | Scale, row: int) -> list[str]:
        image = Image.new("RGB", (30, 30))
        key.frame(ImageDraw.Draw(image), 0, 0, 30, row)
        return ["#" + np.asarray(image)[29, across].tobytes().hex().upper() for across in (1, 15, 28)]

    names = Names(TAGS, np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]) > 0)
    assert [frame(names, row) for row in range(4)] == [
        [COLOURS[0], COLOURS[2], COLOURS[2]],
        [REST] * 3,
        [COLOURS[1]] * 3,
        [*COLOURS[:3]],
    ]
    scale = Scale("value", np.array([*np.linspace(0, 1, 200), 1e9]))  # one that is far off takes no colour away
    first, middle, last, stray = (frame(scale, row)[0] for row in (0, 100, 199, 200))
    assert len({first, middle, last}) == 3 and last == stray


# Probes


def test_a_probe_measures_each_target_beside_a_guess(
    kind: str, table: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitral.evaluation.target_probe.STRENGTHS", (0.01, 1.0))
    result = probe(FIXTURES / "timm_vit", table)
    assert isinstance(result, TargetsProbeResult) and (result.learnt, result.tested) == (30, 30)
    test = open_source(table).of("test")
    for target, one in zip(KINDS[kind], result.targets, strict=True):
        figures = {"class": ["accuracy"], "labels": ["map"], "number": ["mae", "mae_of_mean", "r2"]}[target.kind]
        assert [*one.figures] == figures and one.kind == target.kind
        value, low = one.figures[figures[0]].value, one.figures[figures[0]].low
        assert low is not None and value < one.guess if target.kind == "number" else value > one.guess
        if target.kind == "number":
            assert one.guess == one.figures["mae_of_mean"].value
    if kind == "labels":
        shares = open_source(table).labels[test].mean(axis=0)
        assert result.targets[0].guess == pytest.approx(shares.mean())
    assert TargetsProbeResult.load(result.save(tmp_path)) == result
    other = replace(result, weights="other", weights_sha256="0" * 64)
    assert other.others(tmp_path) == [result]


def test_the_command_says_what_a_probe_found(kind: str, table: Data, tmp_path: Path) -> None:
    settings = [f"data.target={table.target}", f"data.directory={table.directory}"]
    asked = ["probe", str(FIXTURES / "timm_vit"), table.source, *settings, "--out", str(tmp_path / "kept")]
    said = CliRunner().invoke(vitral, asked)
    assert said.exit_code == 0, said.output
    assert "30 pictures to learn from (train and validation), 30 to test." in said.output
    words = {
        "labels": ["Mean average precision", "saying the same of every picture has"],
        "number": ["MAE", "R²", "always saying the mean has"],
        "tasks": ["digit: accuracy", "value: mean absolute error"],
    }
    assert all(word in said.output for word in [*words[kind], " luck. ", "Chosen by cross-validation"])


def test_regressions_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    for shape in ((80, 5), (20, 40)):  # more rows than columns, and fewer
        x = random.normal(size=shape)
        x -= x.mean(axis=0)
        labels = (x[:, :2] + random.normal(size=(len(x), 2)) > 0).astype(float)
        says = logistic(x, labels, 0.3, 500)(x)
        for column in range(2):
            theirs = LogisticRegression(C=0.3, tol=1e-8, max_iter=1_000).fit(x, labels[:, column])
            np.testing.assert_allclose(says[:, column], theirs.predict_proba(x)[:, 1], atol=2e-3)
        numbers = 100 + 7 * x[:, :1]
        (ours,) = ridge(x, numbers, [0.1])
        theirs = Ridge(alpha=0.1 * len(x) * x.var()).fit(x, numbers[:, 0])
        np.testing.assert_allclose(ours(x)[:, 0], theirs.predict(x), rtol=1e-6)


# Convert


@pytest.mark.slow
@pytest.mark.parametrize("to", ["hf", "timm"])
def test_other_libraries_say_the_same(run: Run, kind: str, to: str, picture: Path, tmp_path: Path) -> None:
    if kind == "tasks":
        with pytest.raises(WeightsError, match="run has several tasks, digit .class., value .number."):
            convert(run, to, tmp_path / to)
        return
    folder = convert(run, to, tmp_path / to)
    about = json.loads((folder / "about.json").read_text())
    assert about["trial"]["error"] == "" and about["trial"]["difference"] < 1e-4, about["trial"]
    assert about["trial"]["changed"] == 0
    assert [target.kind for target in load_pretrained(folder).targets] == [kind]
    card = (folder / "README.md").read_text()
    if to == "timm":
        assert (".sigmoid()" in card) is (kind == "labels") and "softmax" not in card
        return
    import transformers

    assert about["trial"]["pictures"] == 20
    model: Any = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    inference = Inference.load(run)
    images = inference.preprocess(picture)[None]
    values = inference.values(inference.outputs(images))
    with torch.no_grad():
        logits = model(images.expand(-1, 3, -1, -1) if model.config.num_channels == 3 else images).logits
    if kind == "labels":
        assert model.config.problem_type == "multi_label_classification"
        assert tuple(model.config.id2label.values()) == TAGS.names
        torch.testing.assert_close(logits.sigmoid(), values, atol=1e-4, rtol=0)
        assert "Each label has a sigmoid of its own" in card and "| Mean average precision" in card
    else:
        assert model.config.problem_type == "regression"
        torch.testing.assert_close(logits, values, atol=1e-2, rtol=1e-4)
        assert 'function_to_apply="none"' in card and "It tells a number: value" in card
