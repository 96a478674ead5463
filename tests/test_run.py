"""Run folders: written whole, read with distrust, the same for ever."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import FORMAT_1, TINY, quick_digits
from vitral import Classifier, Preprocess, Recipe, Run, RunError, ViT, ViTConfig, WeightsError, evaluate, train
from vitral.files import sha256_of, write_whole
from vitral.run import free_folder
from vitral.weights.own import Weights, read_weights, write_weights

PREPROCESS = Preprocess(image_size=(32, 32), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)


def weights() -> Weights:
    names = tuple(f"class {i}" for i in range(10))
    return Weights(ViT(TINY), PREPROCESS, names)


def test_a_run_of_format_1_is_read() -> None:
    """Made once, by tests/runs/make.py, and never again: what every later version must read."""
    run = Run.load(FORMAT_1)
    expected = json.loads((FORMAT_1 / "expected.json").read_text())
    assert run.recipe == Recipe.read(expected["recipe"])
    assert (run.record.format, run.record.state, run.record.steps) == (1, "finished", expected["steps"])
    answer = Classifier.load(run).predict(FORMAT_1 / "picture.png")
    assert answer.label == expected["label"]
    assert dict(answer.probabilities) == pytest.approx(expected["probabilities"], abs=1e-5)
    assert [line["event"] for line in run.metrics].count("epoch") == expected["recipe"]["train"]["epochs"]
    assert run.evaluation is not None and len(run.split) == 1797


@pytest.mark.parametrize("kind", ["labels", "number", "tasks"])
def test_a_run_of_format_1_with_other_targets_than_one_class_is_read(kind: str) -> None:
    folder = FORMAT_1.with_name(f"format-1-{kind}")
    run, expected = Run.load(folder), json.loads((folder / "expected.json").read_text())
    assert run.recipe == Recipe.read(expected["recipe"])
    assert (run.record.format, run.record.state, run.record.steps) == (1, "finished", expected["steps"])
    assert flat(Classifier.load(run).predict(folder / "picture.png").write()) == pytest.approx(
        flat(expected["answer"]), abs=1e-4
    )
    names = [target.name for target in run.weights().targets]
    assert run.evaluation is not None and [one["name"] for one in run.evaluation["targets"]] == names
    assert run.baseline is not None and [one.name for one in run.baseline.targets] == names
    assert len(run.split) == 200 and run.split[0][1] == {"labels": "even;round", "number": "0.0"}.get(
        kind, "digit=0|high=0|size=0.0"
    )


def flat(values: Any, name: str = "") -> dict[str, Any]:
    """Values within values, each by its path."""
    if not isinstance(values, dict | list):
        return {name: values}
    inside = values.items() if isinstance(values, dict) else enumerate(values)
    return {path: one for key, value in inside for path, one in flat(value, f"{name}/{key}").items()}


@pytest.mark.slow
def test_a_run_of_format_1_is_measured_as_it_was(tmp_path: Path) -> None:
    copy = shutil.copytree(FORMAT_1, tmp_path / "moved")
    before = json.loads((copy / "evaluation.json").read_text())
    again = evaluate(copy)
    assert again.accuracy == pytest.approx(before["accuracy"], abs=1.5 / 360)
    assert again.loss == pytest.approx(before["loss"], rel=1e-4)


def test_weights_come_back_to_the_bit(tmp_path: Path) -> None:
    made = weights()
    write_weights(tmp_path / "model.safetensors", made)
    read = read_weights(tmp_path / "model.safetensors")
    assert read.model.config == made.model.config
    assert (read.preprocess, read.class_names) == (made.preprocess, made.class_names)
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(read.model.state_dict()[name], tensor), name
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(read.model(images), made.model.eval()(images))


def test_the_same_weights_give_the_same_file(tmp_path: Path) -> None:
    made = weights()
    for name in ("a.safetensors", "b.safetensors"):
        write_weights(tmp_path / name, made)
    assert sha256_of(tmp_path / "a.safetensors") == sha256_of(tmp_path / "b.safetensors")


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(path: Path, header: object, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_weights(tmp_path / "model.safetensors", weights())
    return tmp_path / "model.safetensors"


def test_a_cut_file_is_refused(file: Path) -> None:
    for length in (0, 7, 100, 5_000, file.stat().st_size - 1):
        file.write_bytes(file.read_bytes()[:length])
        with pytest.raises(WeightsError, match="is damaged, or is not a safetensors file"):
            read_weights(file)
        write_weights(file, weights())


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_are_refused_by_name(file: Path, number: str) -> None:
    """They would be loaded, and every answer would be NaN: neither written nor read."""
    refused = r"blocks\.1\.mlp\.fc1\.bias holds numbers that are not finite"
    broken = weights()
    broken.model.state_dict()["blocks.1.mlp.fc1.bias"][7] = float(number)
    before = file.read_bytes()
    with pytest.raises(WeightsError, match=refused):
        write_weights(file, broken)
    assert file.read_bytes() == before
    header, _ = header_of(file)
    save_file(broken.model.state_dict(), file, metadata=header["__metadata__"])  # what another program may have left
    with pytest.raises(WeightsError, match=refused):
        read_weights(file)


def test_a_header_that_claims_huge_shapes_is_refused_without_filling_the_memory(file: Path) -> None:
    header, data = header_of(file)
    header["head.weight"] = {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}
    with_header(file, header, data)
    with pytest.raises(WeightsError, match="is damaged"):
        read_weights(file)
    file.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(WeightsError, match="is damaged"):
        read_weights(file)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("model.width", 65_536, "contradicts itself: by its config cls_token is F32 (1, 1, 65536)"),
        ("model.depth", 3, "its config describes 44 tensors, it holds 32; blocks.2"),
        ("model.depth", 10**9, "describes a model that cannot be"),
        ("model.classes", 11, "It has 10 class_names for 11 classes"),
        ("model.wdith", 3, "There is no setting model.wdith. Did you mean model.width?"),
        ("preprocess.std", [0, 0, 0], "preprocess.std has a number that is not above 0"),
        ("preprocess.image_size", [7, 7], "gives (7, 7), which its patches do not divide"),
        ("preprocess.image_size", [65536, 65536], "is not between 1 and 8,192"),
        ("preprocess.channels", 1, "preprocess.mean and preprocess.std need 1 numbers"),
        ("format", 2, "has format 2, and this Vitral reads up to 1"),
        ("class_names", 3, "class_names"),
    ],
)
def test_a_config_that_contradicts_the_weights_is_refused(file: Path, path: str, value: object, sentence: str) -> None:
    made = weights()
    header = json.loads(header_of(file)[0]["__metadata__"]["vitral"])
    *tables, last = path.split(".")
    table = header
    for name in tables:
        table = table[name]
    table[last] = value
    save_file(dict(made.model.state_dict()), file, {"vitral": json.dumps(header)})
    with pytest.raises(WeightsError) as told:
        read_weights(file)
    assert sentence in str(told.value)
    assert str(file) in str(told.value)


def test_a_file_of_somebody_else_or_with_odd_metadata_is_refused(file: Path) -> None:
    tensors = load_file(file)
    for metadata, sentence in [
        ({"format": "pt"}, "was not written by Vitral"),
        ({"vitral": "{"}, "its metadata is not a table in JSON"),
        ({"vitral": "[1]"}, "its metadata is not a table in JSON"),
    ]:
        save_file(tensors, file, metadata)
        with pytest.raises(WeightsError, match=sentence):
            read_weights(file)
    with pytest.raises(WeightsError, match="is not a file"):
        read_weights(file.with_name("missing.safetensors"))


def test_unknown_names_in_about_are_passed_over(tmp_path: Path) -> None:
    made = weights()
    with_about = Weights(made.model, made.preprocess, made.class_names, {"licence": "CC0", "mood": "fine"})
    write_weights(tmp_path / "x.safetensors", with_about)
    assert read_weights(tmp_path / "x.safetensors").about == {"licence": "CC0", "mood": "fine"}


def test_a_run_can_be_moved(trained: Run, tmp_path: Path) -> None:
    moved = shutil.copytree(trained.folder, tmp_path / "else" / "where")
    picture = torch.randint(0, 255, (8, 8), dtype=torch.uint8).numpy()
    assert Classifier.load(moved).predict(picture) == Classifier.load(trained).predict(picture)
    told = (moved / "run.json").read_text() + (moved / "recipe.toml").read_text()
    assert str(trained.folder.parent) not in told


def test_an_altered_weight_is_noticed(run_copy: Path) -> None:
    path = run_copy / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1  # one bit of one weight: still a perfect safetensors file
    path.write_bytes(bytes(content))
    with pytest.raises(WeightsError, match="was altered or cut"):
        Classifier.load(run_copy)


def test_what_is_not_a_run_is_told(tmp_path: Path, run_copy: Path) -> None:
    with pytest.raises(RunError, match="There is no run"):
        Run.load(tmp_path / "missing")
    with pytest.raises(RunError, match="is not a run"):
        Run.load(tmp_path)
    record = json.loads((run_copy / "run.json").read_text())
    for wrong, sentence in [
        ("{", "cannot be read"),
        ("[]", "is not a table"),
        (json.dumps(record | {"format": 7}), "has format 7"),
        (json.dumps(record | {"machine": 3}), "machine is missing or wrong"),
    ]:
        (run_copy / "run.json").write_text(wrong)
        with pytest.raises(RunError, match=sentence):
            Run.load(run_copy)
    (run_copy / "run.json").write_text(json.dumps(record | {"mood": "a later version tells more"}))
    (run_copy / "model.safetensors").unlink()
    with pytest.raises(RunError, match="its training has not come to an end"):
        Run.load(run_copy).weights()


def test_nothing_is_overwritten(run_copy: Path) -> None:
    before = {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="is not empty, and nothing is overwritten"):
        train(quick_digits(), out=run_copy)
    assert {path: path.read_bytes() for path in run_copy.rglob("*") if path.is_file()} == before


def test_a_line_of_metrics_that_was_cut_off_is_left_out(run_copy: Path) -> None:
    run = Run.load(run_copy)
    before = run.metrics
    with (run_copy / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert run.metrics == before


def test_damaged_records_answer_with_a_sentence(run_copy: Path) -> None:
    run = Run.load(run_copy)
    (run_copy / "metrics.jsonl").write_text("{not json}\n")
    (run_copy / "split.csv").unlink()
    (run_copy / "evaluation.json").write_text("[" * 100_000)
    for read in (lambda: run.metrics, lambda: run.split, lambda: run.evaluation):
        with pytest.raises(RunError, match="cannot be read"):
            read()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        train(quick_digits(), out=tmp_path / "file" / "run")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_the_next_free_folder_is_found(tmp_path: Path) -> None:
    assert free_folder("digits", tmp_path) == tmp_path / "digits"
    (tmp_path / "digits").mkdir()
    assert free_folder("digits", tmp_path) == tmp_path / "digits-2"


def test_a_foreign_kind_of_size_still_loads_through_the_same_door(tmp_path: Path) -> None:
    """Non-square, grey, another MLP: whatever a config can say comes back."""
    config = ViTConfig(image_size=(8, 16), patch_size=4, channels=1, width=12, depth=1, heads=3, classes=2)
    grey = Preprocess(image_size=(8, 16), channels=1, mean=(0.1,), std=(0.3,), interpolation="box", background=255)
    write_weights(tmp_path / "x.safetensors", Weights(ViT(config), grey, ("yes", "no")))
    assert read_weights(tmp_path / "x.safetensors").model.config == config
    assert read_weights(tmp_path / "x.safetensors").preprocess == grey
