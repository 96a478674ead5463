"""The glass's server: it tells what Python computes, to our own page alone, and answers nonsense with a sentence."""

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from conftest import FIXTURES
from vitral import Classifier, DataError, Preprocess, RecipeError, Run, ViT, ViTConfig
from vitral.look import inspected_model
from vitral.look.glass.answers import MODULES, MOST_BYTES, PAGE
from vitral.look.glass.server import Glass, Handler
from vitral.look.glass.shelf import MOST_UPLOADS, Shelf, ShelfPicture, examples
from vitral.look.inspected_model import InspectedModel
from vitral.look.maps import attention_maps
from vitral.look.readings import METHODS, class_attention
from vitral.model.config import Head, Positions, Tokens
from vitral.weights.own import Weights, write_weights

CONFIG = ViTConfig(
    image_size=(32, 40), patch_size=8, width=32, depth=3, heads=2, classes=7, tokens=Tokens(registers=2)
)  # 4 × 5 patches, 23 tokens
PREPROCESS = Preprocess(image_size=(32, 40), channels=3, mean=(0.5, 0.4, 0.3), std=(0.3, 0.2, 0.25))
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "<script>alert(1)</script>")


def lively(config: ViTConfig) -> ViT:
    """A model whose attention and answers differ from place to place, as those of a trained one do."""
    torch.manual_seed(5)
    model = ViT(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1 if name == "head.weight" else 0.3)
    return model.eval()


def weights_file(folder: Path, config: ViTConfig = CONFIG) -> Path:
    path = folder / "model.safetensors"
    write_weights(path, Weights(lively(config), PREPROCESS, NAMES[: config.classes]))
    return path


def noise(seed: int = 0, height: int = 90, width: int = 70) -> bytes:
    """A picture of coloured noise, as a PNG."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 5, width // 5, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels.repeat(5, axis=0).repeat(5, axis=1)).save(file, format="PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weights_file(tmp_path_factory.mktemp("insects"))


@pytest.fixture(scope="module")
def glass(path: Path) -> Iterator[Glass]:
    yield from served(path)


def served(path: Path) -> Iterator[Glass]:
    with Glass.open(path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Reply:
    """What came back."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.content = answer.status, answer.headers, answer.read()

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        assert self.status >= 400
        return str(self.json["error"])


def ask(glass: Glass, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    """Over a real socket; nothing is added to the headers but a length and, unless given, Host."""
    connection = http.client.HTTPConnection("127.0.0.1", glass.server_address[1], timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        return Reply(connection.getresponse())
    finally:
        connection.close()


def put(glass: Glass, content: bytes) -> Any:
    return ask(glass, "POST", "/api/pictures", content).json


def without(glass: Glass, number: int, off: list[int]) -> Reply:
    return ask(glass, "POST", f"/api/pictures/{number}/answer", json.dumps({"off": off}))


def images_of(content: bytes) -> torch.Tensor:
    return PREPROCESS(content)[None]


def probabilities(rows: list[dict[str, Any]], which: str = "now") -> dict[str, float]:
    return {row["name"]: row[which] for row in rows}


def test_the_page_comes_whole_and_may_load_nothing_from_elsewhere(glass: Glass) -> None:
    for name in ["", *PAGE[1:], *(f"{name}.js" for name in MODULES)]:
        reply = ask(glass, "GET", f"/{name}")
        assert reply.status == 200 and reply.content
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        text = reply.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text
    folder = Path(inspected_model.__file__).parent / "glass" / "page"
    assert {found.name for found in folder.iterdir()} == {*PAGE, *(f"{name}.js" for name in MODULES)}


@pytest.mark.parametrize(
    "address",
    [
        "/server.py",
        "/../server.py",
        "/page/glass.js",
        "/%2e%2e/server.py",
        "//etc/passwd",
        "/api/pictures/../model",
        "/api/pictures/0.png/../../../../etc/passwd",
        "/api/pictures/etc.png",
        "/index.html",
    ],
)
def test_no_path_is_opened_that_a_page_names(glass: Glass, address: str) -> None:
    assert ask(glass, "GET", address).status == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil", "[::1]", "", "0.0.0.0"]
)
def test_a_name_that_was_made_to_lead_here_is_refused(glass: Glass, host: str) -> None:
    for method, path in (("GET", "/"), ("GET", "/api/model"), ("POST", "/api/pictures")):
        assert "this machine only" in ask(glass, method, path, b"", Host=host).error


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", ""])
def test_the_page_of_a_stranger_is_refused(glass: Glass, origin: str) -> None:
    for method, path in (("GET", "/api/model"), ("POST", "/api/pictures"), ("POST", "/api/pictures/0/answer")):
        assert (
            "Another page asked" in ask(glass, method, path, noise() if method == "POST" else None, Origin=origin).error
        )


def test_our_own_page_is_answered_also_through_another_port(glass: Glass) -> None:
    own = glass.url.rstrip("/")
    assert ask(glass, "GET", "/api/model", Origin=own).status == 200
    assert ask(glass, "GET", "/api/model", Host="localhost:99", Origin="http://localhost:99").status == 200
    for path, status in (("/api/model", 403), ("/api/pictures/0.png", 403), ("/", 200)):  # a link to it is fine
        assert ask(glass, "GET", path, Sec_Fetch_Site="cross-site").status == status
    assert glass.server_address[0] == "127.0.0.1"


def bomb(side: int) -> bytes:
    """A few bytes that say they are a picture of so many pixels a side."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"Dear Sir or Madam,\n", "The picture is not a picture that Vitral reads"),
        (b"", "The picture is empty."),
        (bomb(50_000), "50,000 × 50,000 pixels"),
        (noise()[:200], "is damaged"),
    ],
    ids=["text", "empty", "bomb", "cut"],
)
def test_what_is_no_picture_is_told_in_a_sentence(glass: Glass, content: bytes, sentence: str) -> None:
    assert sentence in ask(glass, "POST", "/api/pictures", content).error


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("{", "This is not JSON"),
        ("[" * 100_000, "This is not JSON"),
        ("9" * 10_000, "This is not JSON"),
        ("[]", 'Send {"off": [numbers of patches]}'),
        ('{"off": [1.5]}', 'Send {"off": [numbers of patches]}'),
        ('{"off": [true]}', 'Send {"off": [numbers of patches]}'),
        ('{"off": [], "path": "/etc/passwd"}', 'Send {"off": [numbers of patches]}'),
        ('{"off": [20]}', "There is no patch 20: the picture has 20, numbered 0 to 19."),
        ('{"off": [-1]}', "There is no patch -1"),
        (json.dumps({"off": list(range(20))}), "All patches are switched off"),
    ],
)
def test_wrong_questions_are_told_in_a_sentence(glass: Glass, body: str, sentence: str) -> None:
    assert sentence in ask(glass, "POST", "/api/pictures/0/answer", body).error


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/api/pictures/99999", "There is no picture 99999 any more"),
        ("/api/pictures/99999/maps", "There is no picture 99999 any more"),
        (
            "/api/pictures/0/readings/tea-leaves",
            "There is no method tea-leaves. There are: attention, mean-attention, rollout",
        ),
        ("/api/pictures/0/readings/rollout?class=1", "is the same for every class"),
        ("/api/pictures/0/readings/class-attention?class=99", "There is no class 99: the model has 7"),
        ("/api/pictures/0/readings/class-attention?class=cat", "class takes the number of a class"),
    ],
)
def test_what_is_not_there_is_told_in_a_sentence(glass: Glass, address: str, sentence: str) -> None:
    assert sentence in ask(glass, "GET", address).error


def test_a_body_that_is_too_long_or_endless_is_not_read(glass: Glass) -> None:
    for head, status in ((f"Content-Length: {MOST_BYTES + 1}", 413), ("Transfer-Encoding: chunked", 411)):
        with socket.create_connection(glass.server_address[:2], timeout=10) as client:  # type: ignore[arg-type]
            client.sendall(f"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n\r\n".encode())
            told = b"".join(iter(lambda: client.recv(65_536), b""))  # noqa: B023 (used at once); it ends: closed
        assert told.startswith(f"HTTP/1.1 {status} ".encode()) and b'"error": "' in told
    for length in ("-1", "x", "1" * 30):
        assert ask(glass, "POST", "/api/pictures", None, Content_Length=length).status == 400


def test_an_upload_that_stalls_is_dropped_without_a_word(
    glass: Glass, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(glass.server_address[:2], timeout=10) as client:  # type: ignore[arg-type]
        client.sendall(b"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nbegun")
        assert client.recv(65_536) == b""  # closed
    assert capfd.readouterr() == ("", "")


def test_what_goes_wrong_in_the_middle_of_an_answer_ends_it(glass: Glass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glass.inspected, "maps", breaks_after_one_block(glass))
    with socket.create_connection(glass.server_address[:2], timeout=10) as client:  # type: ignore[arg-type]
        client.sendall(b"GET /api/pictures/0/maps HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        told = b"".join(iter(lambda: client.recv(65_536), b""))  # it ends: closed
    head, _, body = told.partition(b"\r\n\r\n")
    assert f"Content-Length: {glass.inspected.maps_bytes}".encode() in head
    assert len(body) == glass.inspected.maps_bytes // 3 and b"HTTP/1.1" not in body


def breaks_after_one_block(glass: Glass) -> Callable[[Any], Iterator[bytes]]:
    """As its maps where the memory of the machine ends."""
    whole = glass.inspected.maps

    def broken(pixels: Any) -> Iterator[bytes]:
        yield next(whole(pixels))
        raise MemoryError

    return broken


def test_only_the_newest_pictures_are_kept(glass: Glass) -> None:
    shown = ShelfPicture(np.zeros((3, 32, 40), np.uint8), "example")
    shelf = Shelf(PREPROCESS, [shown])
    numbers = [shelf.add(noise(seed)) for seed in range(MOST_UPLOADS + 1)]
    assert shelf[0] is shown and numbers == list(range(1, MOST_UPLOADS + 2))
    assert shelf[numbers[1]].pixels.tolist() == PREPROCESS.resized(noise(1)).tolist()
    with pytest.raises(DataError, match="There is no picture 1 any more"):
        shelf[numbers[0]]


def test_the_maps_are_those_of_attention_maps(glass: Glass) -> None:
    reply = ask(glass, "GET", f"/api/pictures/{put(glass, noise(3))['number']}/maps")
    expected = attention_maps(lively(CONFIG), images_of(noise(3)), blocks="all", queries="all").shares[0]
    found = np.frombuffer(reply.content, "<f2").reshape(expected.shape).astype(np.float32)
    assert reply.headers["Content-Length"] == str(glass.inspected.maps_bytes) == str(found.size * 2)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-7)
    assert found.std() > 0.03  # there is something to see


def test_the_answer_is_the_classifiers(glass: Glass, path: Path) -> None:
    told = put(glass, noise(4))
    expected = Classifier.load(path).predict(Image.open(BytesIO(noise(4))))
    rows = told["answer"]["rows"]
    assert [row["name"] for row in rows] == [name for name, _ in expected.probabilities[:5]]
    assert probabilities(rows) == pytest.approx(dict(expected.probabilities[:5]), abs=1e-5)
    assert ask(glass, "GET", f"/api/pictures/{told['number']}").json == told


def test_patches_that_are_off_are_left_out(glass: Glass) -> None:
    number, off = put(glass, noise(6))["number"], [0, 3, 7, 19, 7]
    rows = without(glass, number, off).json["answer"]["rows"]
    keep = torch.tensor([[patch for patch in range(20) if patch not in off]])
    with torch.no_grad():
        now = lively(CONFIG)(images_of(noise(6)), keep).softmax(dim=1)[0].tolist()
        whole = lively(CONFIG)(images_of(noise(6))).softmax(dim=1)[0].tolist()
    assert [row["name"] for row in rows[:5]] == [NAMES[i] for i in np.argsort(now)[::-1][:5]]
    for row in rows:
        assert NAMES[row["label"]] == row["name"]
        assert (row["now"], row["whole"]) == pytest.approx((now[row["label"]], whole[row["label"]]), abs=1e-5)
    assert probabilities(without(glass, number, []).json["answer"]["rows"]) != probabilities(rows)


def test_what_it_said_of_the_whole_picture_stays_in_sight(glass: Glass) -> None:
    told = put(glass, noise(8))
    for off in range(1, 20):
        rows = without(glass, told["number"], list(range(off))).json["answer"]["rows"]
        assert told["answer"]["rows"][0]["name"] in [row["name"] for row in rows] and len(rows) in (5, 6)


@pytest.mark.parametrize("method", METHODS)
def test_the_readings_are_those_of_python(glass: Glass, method: str) -> None:
    number = put(glass, noise(7))["number"]
    found = np.frombuffer(ask(glass, "GET", f"/api/pictures/{number}/readings/{method}").content, "<f4")
    expected = METHODS[method](lively(CONFIG), images_of(noise(7)))[0]
    np.testing.assert_allclose(found.reshape(4, 5), expected.numpy(), rtol=1e-4, atol=1e-7)


def test_each_class_has_a_map_of_its_own(glass: Glass) -> None:
    number = put(glass, noise(7))["number"]
    for label in (0, 5):
        reply = ask(glass, "GET", f"/api/pictures/{number}/readings/class-attention?class={label}")
        expected = class_attention(lively(CONFIG), images_of(noise(7)), torch.tensor([label]))[0]
        found = np.frombuffer(reply.content, "<f4").reshape(4, 5)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-7)


def test_many_ask_at_once_and_all_get_what_is_theirs(glass: Glass) -> None:
    number, expected = put(glass, noise(7))["number"], {}
    paths = [f"/api/pictures/{number}{end}" for end in ("", "/maps", "/readings/class-attention", "/readings/rollout")]
    for path in paths:
        expected[path] = ask(glass, "GET", path).content
    wrong: list[str] = []

    def again(path: str) -> None:
        wrong.extend(path for _ in range(5) if ask(glass, "GET", path).content != expected[path])

    threads = [threading.Thread(target=again, args=[path]) for path in paths * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_page_is_told_what_the_model_is(glass: Glass, path: Path) -> None:
    told = ask(glass, "GET", "/api/model").json
    assert (told["grid"], told["extra"], told["depth"], told["heads"]) == (
        [4, 5],
        ["class", "register 1", "register 2"],
        3,
        [2, 2, 2],
    )
    assert told["methods"] == ["rollout", "class-attention"] and told["no_maps"] == told["fixed"] == ""
    assert [one["name"] for one in told["examples"]] == ["temple", "flower"]
    assert told["name"] == path.parent.name


@pytest.mark.parametrize(
    ("weights", "extra", "answer"),
    [
        ("timm_vit", 1, "class"),
        ("timm_deit_distilled", 2, "extra"),
        ("timm_vit_gap", 1, "patches"),
        ("timm_vit_reg4_gap", 4, "patches"),
        ("timm_vit_gap_noclass", 0, "patches"),
    ],
)
def test_the_page_is_told_which_tokens_the_answer_is_read_from(weights: str, extra: int, answer: str) -> None:
    facts = InspectedModel.load(FIXTURES / weights).page_facts()
    tokens = list(range(extra + facts["grid"][0] * facts["grid"][1]))
    expected = {"class": tokens[:1], "extra": tokens[:extra], "patches": tokens[extra:]}[answer]
    assert (len(facts["extra"]), list(facts["answer"])) == (extra, expected)


def test_a_run_brings_its_own_test_pictures(trained: Run, seven: NDArray[np.uint8]) -> None:
    inspected = InspectedModel.load(trained.folder)
    shown = examples(trained.folder, inspected.preprocess)
    tested = {sample: label for sample, label, split in trained.split if split == "test"}
    assert [one.label for one in shown] == [str(digit) for digit in range(10)]
    assert all(tested[one.name] == one.label for one in shown)
    answer = inspected.answer(inspected.preprocess.resized(seven))
    expected = Classifier.load(trained).predict(seven)
    assert answer is not None and answer.probabilities.max() == pytest.approx(expected.probability, abs=1e-5)
    assert answer.distance == pytest.approx(expected.distance, rel=1e-4)  # calibrated, as elsewhere


def test_a_run_whose_pictures_are_gone_has_others(run_copy: Path) -> None:
    recipe = (run_copy / "recipe.toml").read_text().replace('source = "digits"', 'source = "gone/away"')
    (run_copy / "recipe.toml").write_text(recipe)
    assert (
        len(examples(run_copy, InspectedModel.load(run_copy).preprocess)) == 10
    )  # digits: it takes small grey pictures


def test_weights_without_classes_have_maps_and_no_answer(tmp_path: Path) -> None:
    inspected = InspectedModel.load(
        weights_file(tmp_path, CONFIG.model_copy(update={"classes": 0, "head": Head(kind="none")}))
    )
    pixels = PREPROCESS.resized(noise())
    assert inspected.answer(pixels) is None and len(list(inspected.maps(pixels))) == 3
    assert inspected.page_facts()["methods"] == ["rollout"] and inspected.reading(pixels, "rollout").shape == (4, 5)


def test_with_relative_positions_it_says_why_no_patch_goes_off(tmp_path: Path) -> None:
    relative = ViTConfig(
        image_size=(32, 40), patch_size=8, width=32, depth=1, heads=2, classes=7, positions=Positions(kind="relative")
    )
    inspected = InspectedModel.load(weights_file(tmp_path, relative))
    assert "no patch can be left out" in inspected.page_facts()["fixed"]
    with pytest.raises(RecipeError, match="no patch can be left out"):
        inspected.answer(PREPROCESS.resized(noise()), [1])


def test_maps_that_no_page_could_hold_are_refused(glass: Glass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspected_model, "MOST_MAPS", glass.inspected.maps_bytes - 1)
    assert "too much for a page" in ask(glass, "GET", "/api/pictures/0/maps").error
    assert "23 tokens" in ask(glass, "GET", "/api/model").json["no_maps"]


def test_numbers_that_stand_for_no_names_are_called_classes(path: Path) -> None:
    own, theirs = InspectedModel.load(path), InspectedModel.load(FIXTURES / "timm_vit")
    count = theirs.model.config.classes
    assert count not in (0, 1_000) and theirs.class_names == tuple(f"class {label}" for label in range(count))
    assert own.class_names == NAMES
    # Of a run, numbers are names: those of digits.
    assert InspectedModel("x", Weights(own.model, PREPROCESS, tuple("0123456"))).class_names == tuple("0123456")


def test_a_port_that_is_taken_is_told(glass: Glass, path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be had .*--port"):
        Glass.open(path, glass.server_address[1])


def test_where_no_port_is_free_none_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Glass) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(Glass, "server_bind", full)
    with pytest.raises(RecipeError, match=r"^No free port can be had \(Address already in use\)\.$"):
        Glass.open(path)


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c_and_ends_quietly(path: Path) -> None:
    command = [sys.executable, "-m", "vitral", "glass", str(path), "--no-browser"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ, **pipes) as process:
        try:
            line = process.stdout.readline()  # type: ignore[union-attr]
            assert "is under glass at http://127.0.0.1:" in line
            port = int(line.split("127.0.0.1:")[1].split("/")[0])
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
                connection.request("GET", "/api/model")
                assert json.loads(connection.getresponse().read())["depth"] == 3
                process.send_signal(signal.SIGINT)  # while a page is open
                rest, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, rest.strip(), errors) == (0, "", "")
