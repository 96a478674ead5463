"""Files in shorter numbers, which may cost a little, and what is fastest on this machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from conftest import Called
from vitral import Classifier, Preprocess, Run, ViTConfig, Weights
from vitral.deploy import reduce
from vitral.deploy.cost import Cost, cost_of
from vitral.deploy.export import export, header_of
from vitral.deploy.fastest import EAGER, WAYS, find_fastest
from vitral.deploy.parity import compare
from vitral.deploy.reduce import Quantiser, store_as_float16, to_int8
from vitral.deploy.samples import Prepared, samples_of
from vitral.deploy.writers import WholeModel, graph_of, save_onnx
from vitral.errors import RecipeError, WeightsError
from vitral.graph import GraphModel, Reduced
from vitral.inference import Inference
from vitral.model import build
from vitral.targets import Target

CONFIG = ViTConfig(image_size=32, patch_size=8, width=32, depth=2, heads=4, classes=5)


def chance() -> Weights:
    """A model of chance, in which no parameter is zero."""
    torch.manual_seed(0)
    model = build(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter) * (parameter.std().nan_to_num() + 0.1))
    preprocess = Preprocess(image_size=(32, 32), channels=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    return Weights(model, preprocess, tuple(f"class {n}" for n in range(5)))


def test_a_cost_counts_what_only_one_of_both_has_right() -> None:
    cost = Cost(pictures=200, right=190, worse=3, better=1, other=6, has_labels=True)
    assert cost.points == 1.0
    low, high = cost.interval
    assert low < 0 < cost.points < high
    assert cost.within(1) and not cost.within(0.9) and not cost.surely_within(1)
    assert "188 are right, 190 of the model's: it costs 1 points" in str(cost)
    assert Cost(100, 100, 0, 0, 0, True).surely_within(0)
    assert not Cost(60, 57, 0, 1, 1, True).surely_within(0.5)  # better by luck: another answer is another answer


def test_what_another_answer_is_depends_on_the_target() -> None:
    targets = (
        Target(name="kind", names=("a", "b")),
        Target(name="tags", kind="labels", names=("x", "y")),
        Target(name="weight", kind="number", names=("weight",), mean=50, std=10),
    )
    ours = np.array([[0.6, 0.4, 0.9, 0.1, 50.0]] * 4)
    theirs = ours.copy()
    theirs[1, :2] = 0.4, 0.6  # another class
    theirs[2, 3] = 0.6  # a label more
    theirs[3, 4] = 50.2  # farther off than a hundredth of the standard deviation
    cost = cost_of(targets, np.full(5, 0.5), ours, theirs, None)
    assert (cost.other, cost.worse, cost.better, cost.has_labels) == (3, 3, 0, False)


@pytest.mark.slow
def test_torch_computes_in_bfloat16_and_the_file_says_so(trained: Run, tmp_path: Path, called: Any) -> None:
    done: Called = called("export", trained.folder, tmp_path / "m.pt2", "--precision", "bfloat16", "--loss", 5)
    assert done.returncode == 0, done.stderr
    assert "answers are those of the model in float32" in done.stdout and "5 are allowed" in done.stdout
    assert b'"reduced": {"precision": "bfloat16", "loss": 5.0' in (tmp_path / "m.pt2").read_bytes()


def test_a_reduced_file_that_costs_more_than_it_may_is_not_the_same(trained: Run) -> None:
    inference = Inference.load(trained.folder)
    whole = WholeModel(inference)
    [samples] = samples_of(trained, None, {"test": 40})
    header = header_of(inference).model_copy(update={"reduced": Reduced(precision="int8", loss=0.5)})

    @torch.no_grad()
    def run(pixels: Any, first: int = 0) -> Any:
        outputs = {name: tensor.numpy() for name, tensor in whole(torch.from_numpy(pixels)).items()}
        return outputs | {"probabilities": np.roll(outputs["probabilities"], first, axis=1)}

    same = compare(GraphModel(header, run, "mine 1"), inference, samples)
    assert same.is_same and same.cost and same.cost.other == 0 and same.cost.has_labels
    parity = compare(GraphModel(header, lambda pixels: run(pixels, 1), "mine 1"), inference, samples)
    assert not parity.is_same and parity.cost and parity.cost.points > 20
    assert "and 0.5 are allowed" in parity.faults
    broken = GraphModel(header, lambda pixels: run(pixels) | {"logits": np.full((len(pixels), 10), np.nan)}, "mine 1")
    assert compare(broken, inference, samples).wrong == ("logits",)  # the answers come from probabilities
    assert GraphModel(header, run, "").identity != inference.identity


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m.pt2", "--precision", "int8"], "A .pt2 is not written in int8, but in: float32, bfloat16"),
        (["m.onnx", "--precision", "bfloat16"], "A .onnx is not written in bfloat16, but in: float32, float16, int8"),
        (["page.html", "--precision", "int8"], "A .html is not written in int8, but in: float32, float16"),
        (["m.onnx", "--loss", "1"], "--loss is for --precision and --fastest"),
        ([], "Say what to write: a name that ends in .onnx, .pt2, .openvino or .html; or --fastest"),
        (["fast", "--fastest", "--precision", "int8"], "--fastest tries all precisions"),
        (["m.onnx", "--fastest"], "--fastest writes a folder: give it a name without an ending"),
    ],
)
def test_mistakes_are_told_in_sentences(
    arguments: list[str], words: str, trained: Run, tmp_path: Path, called: Any
) -> None:
    arguments = [str(tmp_path / one) if one.startswith(("m.", "fast")) else one for one in arguments]
    done: Called = called("export", trained.folder, *arguments)
    assert done.returncode == 2 and words in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_weights_have_no_folder_for_what_is_fastest() -> None:
    with pytest.raises(WeightsError, match="Say where to put what is fastest"):
        find_fastest(chance())


@pytest.mark.slow
def test_layers_that_cost_answers_stay_in_float_and_halves_are_storage_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = chance()
    with torch.no_grad():  # numbers before a layer of which one is a thousand times the others: no steps suit both
        fc1, fc2 = (weights.model.get_submodule(f"blocks.1.mlp.{name}") for name in ("fc1", "fc2"))
        fc1.bias[0], fc2.weight[:, 0] = 3000.0, fc2.weight[:, 0] / 1000  # type: ignore[index, operator]
    inference = Inference(weights)
    graph, header = graph_of(WholeModel(inference)), header_of(inference)
    pixels = np.random.default_rng(0).integers(0, 256, (96, 3, 32, 32), dtype=np.uint8)
    choose = Prepared(pixels[32:], None)
    header = header.model_copy(update={"reduced": Reduced(precision="int8", loss=10)})
    smaller, said = to_int8(Quantiser(graph, pixels[:32]), header, choose)
    assert said.reduced and said.reduced.in_float[0] == "blocks.1.mlp.fc2" and said.reduced.calibrated_on == 32
    assert not said.reduced.reduced_range or reduce.sums_of_bytes_overflow()
    save_onnx(smaller, said, tmp_path / "int8.onnx")
    session = Classifier.load(tmp_path / "int8.onnx")
    assert isinstance(session.inference, GraphModel) and session.inference.header.reduced == said.reduced
    quantised = {node.name for node in smaller.graph.node if node.op_type == "DequantizeLinear"}
    assert any("blocks.0.mlp.fc2" in name or "weight" in name for name in quantised)
    # 7 bits where sums of products of bytes overflow
    monkeypatch.setattr(reduce, "sums_of_bytes_overflow", lambda: True)
    smaller, said = to_int8(Quantiser(graph, pixels[:32]), header, choose)
    assert said.reduced and said.reduced.reduced_range
    bytes_ = [onnx.numpy_helper.to_array(one) for one in smaller.graph.initializer]
    assert max(abs(one.astype(int)).max() for one in bytes_ if one.dtype == np.int8 and one.size > 1) == 64
    # No layer at all is left that would do
    with pytest.raises(WeightsError, match="int8 costs too much on 64 validation pictures, even where half"):
        none = header.model_copy(update={"reduced": Reduced(precision="int8", loss=0)})
        monkeypatch.setattr(Cost, "surely_within", lambda self, loss: False)
        to_int8(Quantiser(graph, pixels[:32]), none, choose)
    plain = len(graph.SerializeToString())
    store_as_float16(graph)
    halves = save_onnx(graph, header, tmp_path / "halves.onnx")
    assert (tmp_path / "halves.onnx").stat().st_size < 0.6 * plain + 40_000
    with torch.no_grad():
        expected = WholeModel(inference)(torch.from_numpy(pixels[:4]))["logits"].numpy()
    off = np.abs(halves.run(pixels[:4])["logits"] - expected).max()
    assert 0 < off < 0.02 * np.abs(expected).max()


@pytest.mark.slow
def test_what_is_fastest_is_kept_with_its_table_and_its_picture(trained: Run, tmp_path: Path) -> None:
    ways = [way for way in WAYS if way == EAGER or way.name in ("onnxruntime", "onnxruntime, int8")]
    ways += [way for way in WAYS if way.name == "OpenVINO, bfloat16" and not way.missing]
    fastest = find_fastest(trained, tmp_path / "fast", loss=4, pictures=100, ways=ways)
    assert [one.reason for one in fastest.candidates] == [""] * len(ways)
    assert fastest.path and {path.name for path in fastest.path.parent.iterdir()} == {
        "candidates.json",
        "frontier.png",
        fastest.path.name,
    }
    assert fastest.eager.test == Cost(100, fastest.eager.test.right, 0, 0, 0, True)  # type: ignore[union-attr]
    assert fastest.best.chosen_on and fastest.best.chosen_on.surely_within(fastest.loss)
    assert fastest.best.rate(32) == max(
        one.rate(32) for one in fastest.tried if one.chosen_on and one.chosen_on.surely_within(fastest.loss)
    )
    stored = json.loads((fastest.path.parent / "candidates.json").read_text())
    assert stored["kept"] == fastest.best.way.name and len(stored["candidates"]) == len(ways)
    with Image.open(fastest.path.parent / "frontier.png") as picture:
        assert picture.width > 500
    # Where int8 is slower, or costs too much, it is said.
    slow = replace(fastest.candidates[2], rates={batch: (1e-3,) * 7 for batch in (1, 32)})
    assert "is slower here than in float32" in " ".join(
        replace(fastest, candidates=(*fastest.candidates[:2], slow)).notes
    )
    with pytest.raises(WeightsError, match="is there already"):
        find_fastest(trained, tmp_path / "fast")


def test_a_folder_has_labels_where_its_folders_bear_names_of_classes(tmp_path: Path) -> None:
    for name in ("class 0", "class 1"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{number}.png")
    counts = {"test": 10, "train": 10}
    test, train = samples_of(chance(), tmp_path, counts, ("class 0", "class 1"))
    assert all(Path(path).parent.name == label for some in (test, train) for path, label in some.labels.items())
    assert len(test.labels) == len(train.labels) == 3
    assert not {*test.pictures} & {*train.pictures} and len(test.pictures) + len(train.pictures) == 6
    assert samples_of(chance(), tmp_path, counts, ("class 0",))[0].labels == {}


def test_an_unknown_precision_is_refused_before_anything_is_done(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="A .onnx is not written in int4"):
        export(trained, tmp_path / "m.onnx", precision="int4")  # type: ignore[arg-type]
