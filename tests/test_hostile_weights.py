"""Files of weights that are not what they say: each is refused at once, with a sentence that is short and printable."""

import io
import json
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file

from conftest import FIXTURES
from vitral import Classifier, Recipe, Run, VitralError, WeightsError, load_pretrained
from vitral.errors import LONGEST
from vitral.weights.facts import facts_of
from vitral.weights.stored import RawWeights

pytestmark = pytest.mark.timeout(60)

RUN = Path(__file__).parent / "runs" / "format-1"


def refusal(
    source: Any, load: Callable[[Any], object] = load_pretrained, kind: type[VitralError] = WeightsError
) -> str:
    """The sentence that a source is refused with, in a second or two."""
    started_at = time.process_time()
    with pytest.raises(kind) as caught:
        load(source)
    sentence = str(caught.value)
    assert sentence.isprintable() and len(sentence) <= LONGEST and time.process_time() - started_at < 5
    return sentence


def npz(path: Path, method: int = zipfile.ZIP_STORED) -> bytearray:
    """An npz of one array in one entry, to be damaged."""
    array = io.BytesIO()
    np.save(array, np.arange(1000.0))
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("a.npy", array.getvalue())
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("harm", ["encrypted", "another method", "lzma", "bzip2", "deflate", "shape"])
def test_an_npz_whose_entry_cannot_be_unpacked(tmp_path: Path, harm: str) -> None:
    methods = {"lzma": zipfile.ZIP_LZMA, "bzip2": zipfile.ZIP_BZIP2, "deflate": zipfile.ZIP_DEFLATED}
    path = tmp_path / "model.npz"
    content = npz(path, methods.get(harm, zipfile.ZIP_STORED))
    directory = content.index(b"PK\1\2")
    if harm == "encrypted":
        content[6] |= 1
        content[directory + 8] |= 1
    elif harm == "another method":
        content[8:10] = content[directory + 10 : directory + 12] = struct.pack("<H", 97)
    elif harm == "shape":
        place = content.index(b"(1000,)")
        content[place : place + 7] = b"(9**9,)"
    else:
        content[60:90] = bytes(30)
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path} is damaged, or is not an npz of numbers")


NONSENSE = {
    "a name of a million letters": json.dumps({"x" * 10**6: 1}),
    "a hundred thousand settings": json.dumps({f"train.epoch{n}": n for n in range(100_000)}),
    "tables in tables": "[" * 100_000,
    "a long number": '{"format": ' + "9" * 100_000 + "}",
    "a long word": json.dumps({"format": 1, "model": {"width": "\x1b" * 10**6}}),
    "too much": '{"a": "' + "x" * (17 * 2**20) + '"}',
}


@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE)
def test_a_header_of_nonsense(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"vitral": text})
    refusal(path)


@pytest.mark.parametrize("name", ["config", "preprocessor_config", "about"])
@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE)
def test_a_table_of_nonsense_beside_weights(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "model.safetensors").symlink_to(FIXTURES / "timm_vit" / "model.safetensors")
    (tmp_path / f"{name}.json").write_text(text)
    try:
        load_pretrained(tmp_path)  # what it does not know, it passes over
    except WeightsError:
        refusal(tmp_path)


@pytest.mark.parametrize("value", [3, True, float("nan"), "DeiT", {"a": 1}, [[]]], ids=repr)
def test_a_config_whose_lists_are_none(tmp_path: Path, value: Any) -> None:
    (tmp_path / "model.safetensors").symlink_to(FIXTURES / "hf_vit" / "model.safetensors")
    config = json.loads((FIXTURES / "hf_vit" / "config.json").read_text())
    for change in ({"architectures": value}, {"architectures": ["ViTBackbone"], "out_features": value}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        try:
            load_pretrained(tmp_path)
        except WeightsError:
            refusal(tmp_path)


@pytest.mark.slow
def test_more_tensors_than_any_model_has(tmp_path: Path) -> None:
    header = {f"blocks.{n}.a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(200_000)}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "holds 200,000 tensors" in refusal(tmp_path / "model.safetensors")
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as file:
        for n in range(10_001):
            file.writestr(f"{n}.npy", b"")
    assert "holds 10,001 tensors" in refusal(tmp_path / "model.npz")


def test_an_npz_with_some_noise_beside_a_bomb(tmp_path: Path) -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(2**20), np.uint8)
    np.savez_compressed(tmp_path / "model.npz", noise=noise, bomb=np.zeros(20 * 2**20, np.uint8))
    assert "would unpack to 22," in refusal(tmp_path / "model.npz")


def test_a_header_that_claims_a_thousand_blocks(tmp_path: Path) -> None:
    with safe_open(RUN / "model.safetensors", "pt") as file:
        header = json.loads(file.metadata()["vitral"])
    header["model"]["depth"] = 1_000
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", {"vitral": json.dumps(header)})
    sentence = refusal(tmp_path / "a.safetensors")
    assert sentence.endswith("contradicts itself: its config describes 1000 blocks, and it holds 1 tensors.")


def test_a_patch_of_no_pixels(tmp_path: Path) -> None:
    save_file(
        {"cls_token": torch.zeros(1, 1, 8), "patch_embed.proj.weight": torch.zeros(8, 3, 0, 0)},
        tmp_path / "a.safetensors",
    )
    (tmp_path / "config.json").write_text('{"image_size": 224}')
    assert "patch_embed.proj.weight is 8×3×0×0" in refusal(tmp_path / "a.safetensors")


def test_a_block_number_is_not_a_depth(tmp_path: Path) -> None:
    tensors = {
        "cls_token": torch.zeros(1, 1, 8),
        "patch_embed.proj.weight": torch.zeros(8, 3, 4, 4),
        "blocks.999999999.norm1.weight": torch.zeros(8),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    assert "It has 1 blocks, and blocks.0 is not among them." in refusal(tmp_path / "a.safetensors")


@pytest.mark.parametrize("source", [None, 3, b"run", "a\0b", "\ud800", "x" * 5_000, ["run"]], ids=repr)
def test_what_is_no_path(source: Any) -> None:
    for load in (load_pretrained, Classifier.load, Run.load, Recipe.from_file):
        assert " is not a path (" in refusal(source, load, VitralError)


def test_a_message_that_quotes_a_file_is_short_and_says_what_to_do(tmp_path: Path) -> None:
    save_file({f"{'x' * 10_000}\x1b[31m{n}": torch.zeros(1) for n in range(9)}, tmp_path / "a.safetensors")
    refusal(tmp_path / "a.safetensors")
    error = VitralError("What is wrong. " + "\x1b" * 10_000 + " What to do.")
    assert str(error).startswith("What is wrong. \\x1b") and str(error).endswith(" What to do.")
    assert len(str(error)) <= LONGEST and str(error).isprintable()


def test_finite_numbers_that_overflow_are_told_and_not_answered(trained: Run, seven: NDArray[np.uint8]) -> None:
    weights = trained.weights()
    with torch.no_grad():
        for parameter in weights.model.parameters():
            parameter.fill_(3e38)
    with pytest.raises(WeightsError, match="answers with numbers that are not finite"):
        Classifier.load(weights).predict(seven)


def test_class_names_that_are_no_table_are_a_sentence() -> None:
    with pytest.raises(WeightsError, match="What stands beside x cannot be read"):
        facts_of(RawWeights("x", {}, config={"id2label": [1, 2]}))
