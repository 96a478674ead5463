"""Models that somebody has in memory, and models on the Hub: with the real libraries."""

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import FIXTURES
from vitral.weights.pretrained import load_pretrained

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their warnings are not ours


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


SHAPE = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_labels": 5}
PLAIN = SHAPE | {"intermediate_size": 96, "image_size": 32, "patch_size": 8}
ODD = PLAIN | {"layer_norm_eps": 1e-4, "hidden_act": "gelu_new", "num_channels": 1, "qkv_bias": False}
SQUARE = SHAPE | {"image_size": 28, "patch_size": 7, "mlp_ratio": 2}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ViT", PLAIN),
        ("ViT", ODD),
        ("DeiT", PLAIN),
        ("Dinov2", SQUARE),
        ("Dinov2", SQUARE | {"use_swiglu_ffn": True, "layerscale_value": 0.3}),
        ("Dinov2WithRegisters", SQUARE | {"num_register_tokens": 3}),
        ("IJepa", PLAIN),
    ],
    ids=str,
)
def test_a_model_of_transformers_is_taken_from_memory(kind: str, settings: dict[str, Any], transformers: Any) -> None:
    """Heads, epsilon, activation, biases and class names are those of the module: nobody names them again."""
    torch.manual_seed(1)
    labels = {number: name for number, name in enumerate(("ant", "bee", "cat", "dog", "eel"))}
    config = getattr(transformers, f"{kind}Config")(**settings, id2label=labels)
    theirs = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # first values are too tame to tell a wrong norm or a lost bias
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours = load_pretrained(theirs)
    images = torch.randn(2, settings.get("num_channels", 3), settings["image_size"], settings["image_size"])
    with torch.inference_mode():
        torch.testing.assert_close(ours.model(images), theirs(pixel_values=images).logits, rtol=0, atol=1e-5)
    assert ours.class_names == tuple(labels.values())
    assert ours.loaded is not None
    guessed = [fact.split(" = ")[0] for fact, who in ours.loaded.facts if who.startswith("as is usual")]
    assert set(guessed) <= {"pixels", "pool", "resample"}  # which a module does not know


def test_the_encoder_of_a_masked_autoencoder_is_taken_from_memory(transformers: Any) -> None:
    settings = {name: value for name, value in PLAIN.items() if name != "num_labels"}
    theirs = transformers.ViTMAEModel(transformers.ViTMAEConfig(**settings, mask_ratio=0.0)).eval()
    ours, images = load_pretrained(theirs), torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        in_order = theirs(pixel_values=images, noise=torch.arange(16.0).expand(2, -1)).last_hidden_state
        torch.testing.assert_close(ours.model.features(images), in_order, rtol=0, atol=1e-5)


# ---- hf:org/model


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the Hub as a download needs, over a folder; and a pickle, which nobody should ask for."""

    asked: list[str]
    folder: Path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        body, headers, name = b"", {"X-Repo-Commit": "c" * 40}, self.path.split("?")[0].rpartition("/")[2]
        if "/tree/" in self.path:
            sizes = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in files.items()]
            body = json.dumps(
                [*sizes, {"type": "file", "path": "pytorch_model.bin", "size": 9, "oid": "evil"}]
            ).encode()
        elif "/api/models/" in self.path:
            names = [{"rfilename": name} for name in (*files, "pytorch_model.bin")]
            body = json.dumps({"id": "org/model", "sha": "c" * 40, "siblings": names}).encode()
        elif name in files:
            body, headers["ETag"] = files[name], f'"{abs(hash(name)):x}"'
        self.send_response(200 if body else 404)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    Hub.asked, Hub.folder = [], FIXTURES / "hf_vit"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", Hub.asked
        server.shutdown()


def test_a_model_of_the_hub_is_fetched_once_and_then_is_in_the_cache(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    address, asked = hub
    name = "hf:facebook/dinov2-small"
    code = f"from vitral.weights.pretrained import load_pretrained as load; print(load({name!r}).about)"
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    ask = functools.partial(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)

    def asking(**more: str) -> subprocess.CompletedProcess[str]:
        return ask(env=kept | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), **more})

    first = asking()
    assert first.returncode == 0, first.stderr
    assert "'licence': 'Apache-2.0'" in first.stdout  # of weights that are known, though no file tells
    assert any("model.safetensors" in path for path in asked)
    assert not any("pytorch_model.bin" in path for path in asked)  # no pickle is even fetched
    asked.clear()
    offline = asking(HF_HUB_OFFLINE="1")
    assert (offline.stdout, asked) == (first.stdout, [])
    nowhere = asking(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "empty"))
    assert nowhere.returncode == 1 and f"{name} could not be fetched, and is not in the cache" in nowhere.stderr


STARTS = """
import sys
from vitral.recipe import Recipe
from vitral.training.preparation import prepared
name, how = sys.argv[1:]
model = {"image_size": 32, "patch_size": 8, "channels": 3, "width": 32, "depth": 2, "heads": 4, "classes": 0}
if how == "init":
    from vitral.recipes.choose import choose
    plan = prepared(choose("pictures", {"init.weights": name, "train.budget": "2steps"}).recipe)
    print(plan.about["origin"])
else:
    given = {"model": model, "data": {"source": "pictures"}, "teacher": {"source": name}}
    plan = prepared(Recipe.read(given | {"train": {"budget": "2steps", "batch_size": 4, "compile": "no"}}))
    print(len(plan.teacher))
"""


@pytest.mark.parametrize("how", ["init", "teacher"])
def test_a_training_starts_from_the_hub_or_learns_from_it(hub: tuple[str, list[str]], tmp_path: Path, how: str) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    address, asked = hub
    labels = json.loads((FIXTURES / "hf_vit" / "config.json").read_text())["id2label"]
    for label in labels.values():
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(8):
            pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / label / f"{number}.png")
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    ran = subprocess.run(
        [sys.executable, "-c", STARTS, "hf:org/model", how],
        cwd=tmp_path,
        env=kept | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "VITRAL_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == ("hf:org/model" if how == "init" else "16")
    assert any("model.safetensors" in path for path in asked)
