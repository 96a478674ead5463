"""A model becomes one file, which is kept only if it answers as the model does."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from conftest import Called, slowly
from test_docs import code_blocks
from vitral import Classifier, Preprocess, Run, ViT, ViTConfig, Weights, load_pretrained
from vitral.deploy import export as exporter
from vitral.deploy.export import export
from vitral.deploy.writers import OPSET, WholeModel, Writer, write_pt2
from vitral.errors import DataError, RecipeError, VitralError, WeightsError
from vitral.graph import GraphModel
from vitral.inference import Inference, load_calibrated
from vitral.model import build
from vitral.model.config import ModelConfig
from vitral.model.resnet_config import ResNetConfig
from vitral.model.swin_config import SwinConfig
from vitral.predictions import TasksPrediction
from vitral.targets import Target

RUNS = Path(__file__).parent / "runs"
SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 4, "classes": 5}
RESNET = {"kind": "resnet", "depths": [1, 1], "widths": [32, 64, 128], "groups": 8}


def small(**parts: Any) -> ViTConfig:
    return ViTConfig.model_validate(SMALL | parts)


CONFIGS: dict[str, ModelConfig] = {
    "grey": small(channels=1),
    "colour-224": small(image_size=224, patch_size=16),
    "not-square": small(image_size=[32, 64]),
    "registers": small(tokens={"kind": "class", "registers": 4}),
    "distilled": small(tokens="distilled"),
    "mean": small(tokens="none", pool={"kind": "mean", "norm": "after"}, positions="sincos-2d"),
    "attention-pooling": small(tokens="none", pool="map"),
    "whitened": small(stem="whitened", pool="class-mean"),
    "relative": small(positions="relative"),
    "rotary": small(positions="rotary", attention={"bias": "query-value"}, mlp="swiglu", blocks={"layer_scale": 0.1}),
    "learned-2d": small(positions="learned-2d", attention={"qk_norm": True}, head="mlp"),
    "hybrid": small(image_size=64, patch_size=16, stem=RESNET),
    "swin": SwinConfig(image_size=64, width=24, depths=(2, 2), heads=(2, 4), window=4, classes=5),
    "swin-2": SwinConfig(image_size=64, version=2, width=24, depths=(2, 2), heads=(2, 4), window=4, classes=5),
    "resnet": ResNetConfig(image_size=64, depths=(1, 1), widths=(32, 64, 128), groups=8, classes=5),
}


ASK = "import sys; from vitral import Classifier; print(Classifier.load(sys.argv[1]).predict(sys.argv[2]))"


def weights_of(config: ModelConfig, image_size: tuple[int, int] | None = None, **given: Any) -> Weights:
    """A model of chance in which no parameter is zero: a head starts there, and would hide all mistakes before it."""
    model = build(config).eval()
    model.fit_inputs(torch.randn(64, config.channels, *config.height_width))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter) * (parameter.std().nan_to_num() + 0.1))
    preprocess = Preprocess(
        image_size=image_size or config.height_width,
        channels=config.channels,
        mean=(0.4, 0.5, 0.6)[: config.channels],
        std=(0.2, 0.25, 0.3)[: config.channels],
    )
    return Weights(model, preprocess, tuple(f"class {n}" for n in range(config.classes)), **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes and formats."""
    folder, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number, ending in enumerate(["png", "jpg", "webp"] * 3):
        blocks = chance.integers(0, 256, (6, 7, 3), dtype=np.uint8)
        size = (60 + 17 * number, 90 - 6 * number)
        Image.fromarray(blocks).resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.{ending}")
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_onnxruntime_answers_as_the_model_for_every_kind(name: str, folder: Path, tmp_path: Path) -> None:
    weights = weights_of(CONFIGS[name])
    others = ("features", "attention") if isinstance(weights.model, ViT) and weights.model.attends else ("features",)
    exported = export(weights, tmp_path / "model.onnx", others=others, folder=folder)
    assert list(tmp_path.iterdir()) == [tmp_path / "model.onnx"]
    assert exported.parity.pictures == 9 and exported.parity.differences["logits"] < 1e-4
    assert exported.parity.differences.keys() == exported.outputs.keys() == {"logits", "probabilities", *others}
    stored = onnx.load(tmp_path / "model.onnx")
    assert [one.version for one in stored.opset_import if not one.domain] == [OPSET]
    # Looked at once more, with none of our code between the file and its answer.
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    [given], outputs = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape[0]) == ("pixels", "tensor(uint8)", "N")
    assert {output.shape[0] for output in outputs} == {"N"}
    pixels = np.random.default_rng(1).integers(
        0, 256, (3, weights.model.config.channels, *weights.preprocess.image_size), dtype=np.uint8
    )
    [logits] = session.run(["logits"], {"pixels": pixels})
    with torch.no_grad():
        expected = weights.model(weights.preprocess.normalise(torch.from_numpy(pixels)))
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("ending", ["pt2", *slowly("onnx")])
def test_positions_are_baked_for_the_size_of_the_pictures(ending: str, folder: Path, tmp_path: Path) -> None:
    weights = weights_of(CONFIGS["registers"], image_size=(48, 40))
    exported = export(weights, tmp_path / f"model.{ending}", others=("attention",), folder=folder)
    assert exported.takes == (3, 48, 40) and exported.outputs["attention"] == (4, 6, 5)


@pytest.mark.slow
def test_a_folder_for_openvino_answers_as_the_model_and_tells_nobody(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'vitral[openvino]'")
    weights = weights_of(CONFIGS["hybrid"])
    exported = export(weights, tmp_path / "model.openvino", others=("features",), folder=folder)
    assert "Tried with OpenVINO" in str(exported.parity) and exported.parity.differences["logits"] < 1e-4
    assert sorted(path.name for path in exported.path.iterdir()) == ["model.bin", "model.xml"]
    # In a process of its own: what openvino_telemetry does, it does when OpenVINO is imported.
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-c", ASK, str(exported.path), str(folder / "0.png")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": str(home)})
    assert done.returncode == 0, done.stderr
    assert list(home.rglob("*")) == []
    assert done.stdout == f"{Classifier(weights).predict(folder / '0.png')}\n"
    (exported.path / "model.xml").write_text("no graph")
    with pytest.raises(WeightsError, match="is damaged, or is nothing that OpenVINO runs"):
        Classifier.load(exported.path)
    with pytest.raises(WeightsError, match="There is no folder .* with a model.xml"):
        Classifier.load(tmp_path / "none.openvino")


@pytest.mark.slow
def test_a_file_says_nothing_of_the_machine_that_wrote_it(trained: Run, tmp_path: Path) -> None:
    path = export(trained.folder, tmp_path / "digits.onnx", pictures=3).path
    assert str(Path(exporter.__file__).parent).encode() not in path.read_bytes()
    names = [node.name for node in onnx.load(path).graph.node]
    assert {"blocks.0.attn.qkv", "head"} <= {*names}


@pytest.mark.slow
def test_a_run_is_tried_on_its_test_pictures_and_knows_what_is_unknown(
    trained: Run, tmp_path: Path, called: Any
) -> None:
    done: Called = called("export", trained.folder, tmp_path / "digits.onnx", "--pictures", 30)
    assert done.returncode == 0, done.stderr
    assert "on 30 test pictures" in done.stdout and "30 of 30 answers are the same" in done.stdout
    assert "takes pixels, uint8 (N, 1, 8, 8)" in done.stdout and "distance (N)" in done.stdout
    metadata = onnxruntime.InferenceSession(tmp_path / "digits.onnx").get_modelmeta().custom_metadata_map
    header = json.loads(metadata["vitral"])
    calibration = trained.calibration(trained.weights())
    assert calibration is not None
    assert header["temperature"] == pytest.approx([float(calibration.temperature)])
    assert header["targets"][0]["names"] == [str(digit) for digit in range(10)]
    assert header["preprocess"] == trained.weights().preprocess.write()
    assert header["fingerprint"] == Inference.load(trained.folder).identity
    again: Called = called("export", trained.folder, tmp_path / "digits.onnx")
    assert again.returncode == 1 and "is there already, and nothing is overwritten" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["labels", "number", "tasks"])
def test_other_targets_are_answered_from_the_file(kind: str, folder: Path, tmp_path: Path) -> None:
    run = RUNS / f"format-1-{kind}"
    exported = export(run, tmp_path / "model.onnx", folder=folder)
    assert ("probabilities" if kind == "labels" else "values") in exported.outputs
    ours, theirs = Classifier.load(run), Classifier.load(tmp_path / "model.onnx")
    for path in sorted(folder.glob("[0-9].*")):
        one, other = ours.predict(path), theirs.predict(path)
        assert type(one) is type(other) and one.unknown == other.unknown
        assert one.distance == pytest.approx(other.distance, rel=1e-3)
        if isinstance(one, TasksPrediction):
            assert isinstance(other, TasksPrediction) and one.tasks.keys() == other.tasks.keys()
        assert str(one) == str(other)


@pytest.mark.slow
def test_the_programs_of_the_guide_give_the_models_answers(
    trained: Run, seven: NDArray[np.uint8], tmp_path: Path
) -> None:
    """The one for Node where it is with its package: npm install --ignore-scripts onnxruntime-node, and NODE_PATH."""
    export(trained.folder, tmp_path / "digits.onnx")
    (tmp_path / "mine").mkdir()
    Image.fromarray(seven).resize((50, 40)).save(tmp_path / "mine" / "seven.png")
    answer = Classifier.load(trained.folder).predict(tmp_path / "mine" / "seven.png")
    expected = [answer.label, f"{answer.probability:.3f}", *["unknown"] * answer.unknown]

    def lines(language: str, *command: str) -> list[str]:
        [code] = [code for code in code_blocks("engineer.md", language) if "ask." in code.splitlines()[0]]
        done = subprocess.run([*command, code], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert lines("python", sys.executable, "-c") == expected
    find = ["node", "-e", "require.resolve('onnxruntime-node')"]
    if not shutil.which("node") or subprocess.run(find, capture_output=True).returncode:
        pytest.skip("onnxruntime-node is not in NODE_PATH")
    assert lines("js", "node", "-e") == expected


def planted(change: Any) -> Writer:
    """A writer that writes another model than the one it is given."""

    def write(model: Any, header: Any, path: Path) -> GraphModel:
        weights = Weights(model.model, model.preprocess, header.class_names)
        return write_pt2(WholeModel(Inference(change(weights))), header, path)

    return write


def with_mean(weights: Weights) -> Weights:
    preprocess = weights.preprocess.model_copy(update={"mean": (0.5, 0.5, 0.5)})
    return replace(weights, preprocess=preprocess)


def otherwise_resampled(weights: Weights) -> Weights:
    """Positions that were brought to the size of the pictures by a smoother filter than the model's own."""
    original = weights_of(CONFIGS["registers"])
    positions = {"kind": "learned", "resample": "corners"}
    changed = build(small(tokens={"kind": "class", "registers": 4}, positions=positions))
    changed.load_state_dict(original.model.state_dict())
    return replace(weights, model=changed.at(weights.preprocess.image_size).eval())


def one_class_for_another(weights: Weights) -> Weights:
    head = weights.model.get_submodule("head")
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.roll(1, 0))
    return weights


@pytest.mark.parametrize("change", [with_mean, *slowly(otherwise_resampled, one_class_for_another)])
def test_a_file_that_answers_otherwise_is_not_kept(
    change: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    weights = weights_of(CONFIGS["registers"], image_size=(48, 48))
    torch.manual_seed(1)  # so that the changed one is made of the same numbers
    monkeypatch.setitem(exporter.WRITERS, ".pt2", planted(change))
    with pytest.raises(WeightsError, match=r"was not kept: it does not answer as ViT does.*outputs differ: logits by"):
        export(weights, tmp_path / "model.pt2", folder=folder)
    assert list(tmp_path.iterdir()) == []


def test_names_in_another_order_are_seen_from_the_picture_on_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of(CONFIGS["registers"])

    def write(model: Any, header: Any, path: Path) -> GraphModel:
        names = (*header.class_names[1:], header.class_names[0])
        return write_pt2(model, header.model_copy(update={"targets": (Target(names=names),)}), path)

    monkeypatch.setitem(exporter.WRITERS, ".pt2", write)
    with pytest.raises(WeightsError, match=r"Of the answers 9 changed: .*0\.png \(class . \(.*; the file: class "):
        export(weights, tmp_path / "model.pt2", folder=folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_near_ties_are_counted_and_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(CONFIGS["registers"])
    head: Any = weights.model.get_submodule("head")
    with torch.no_grad():  # the first two classes are the best, and equal but for a hair
        head.weight[1] = head.weight[0]
        head.bias[:2] = torch.tensor([50.0, 49.9999])

    def write(model: Any, header: Any, path: Path) -> GraphModel:
        with torch.no_grad():
            model.model.head.bias[1] = 50.00005
        graph = write_pt2(model, header, path)
        with torch.no_grad():
            model.model.head.bias[1] = 49.9999
        return graph

    monkeypatch.setitem(exporter.WRITERS, ".pt2", write)
    monkeypatch.setattr("vitral.deploy.parity.TOLERANCE", 2e-4)  # else the planted hair is seen before
    parity = export(weights, tmp_path / "model.pt2", folder=folder).parity
    assert len(parity.near_ties) == 9 and not parity.changed
    assert "0 of 9 answers are the same; near-ties, which fell the other way: " in str(parity)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"out": "model.tflite"}, WeightsError, "should end in one of .onnx, .pt2, .openvino"),
        ({"others": ("maps",)}, RecipeError, "There is no output maps. There are: features, attention"),
        ({"folder": None}, WeightsError, "name a folder of some with --on FOLDER"),
        pytest.param({"folder": "broken.png"}, DataError, "None of the pictures could be read", marks=pytest.mark.slow),
        ({"config": "swin", "others": ("attention",)}, RecipeError, "each stage has another number of tokens"),
    ],
)
def test_mistakes_are_told_in_sentences(
    given: dict[str, Any], error: type[VitralError], words: str, folder: Path, tmp_path: Path
) -> None:
    if "folder" in given and given["folder"]:
        given = given | {"folder": folder / given["folder"]}
    arguments: dict[str, Any] = {"out": "model.pt2", "folder": folder} | given
    weights = weights_of(CONFIGS[arguments.pop("config", "grey")])
    with pytest.raises(error, match=words):
        export(weights, tmp_path / arguments.pop("out"), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_others_is_refused(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["pixels"], ["logits"])
    result = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([node], "other", [value], [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(WeightsError, match="was not written by Vitral"):
        Classifier.load(tmp_path / "other.onnx")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "other.onnx").read_bytes()[:40])
    with pytest.raises(WeightsError, match="is damaged, or is no ONNX file"):
        Classifier.load(tmp_path / "cut.onnx")
    with pytest.raises(WeightsError, match="There is no file"):
        Classifier.load(tmp_path / "nowhere.onnx")


def test_a_graph_is_no_weights(tmp_path: Path) -> None:
    for name, words in (
        ("model.onnx", "`vitral predict` asks it"),
        ("model.pt2", "torch.export.load opens it"),
        ("page.html", "is a page, and no weights: a browser opens it"),
    ):
        (tmp_path / name).write_bytes(b"a graph")
        with pytest.raises(WeightsError, match=words):
            load_pretrained(tmp_path / name)


def test_the_weights_of_the_caller_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    weights = weights_of(CONFIGS["grey"])
    weights.model.train()
    before = {name: tensor.clone() for name, tensor in weights.model.state_dict().items()}
    export(weights, tmp_path / "model.pt2", folder=folder)
    assert weights.model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in weights.model.state_dict().items())
    assert load_calibrated(weights)[0].model is not weights.model
