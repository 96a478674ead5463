"""A real server, asked over real sockets: it says what `Classifier` says, and refuses the rest with a sentence."""

import base64
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving import Serving, digits, png, same
from test_docs import code_blocks
from test_glass import bomb
from vitral import Classifier, Run
from vitral.deploy.serve.settings import MOST_HEAD

PICTURES = digits(20)


@pytest.fixture(scope="module")
def server(trained: Run) -> Iterator[Serving]:
    with Serving(
        f"digits={trained.folder}", "--workers", 1, "--threads", 1, "--deadline", 60, "--log-requests"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def expected(trained: Run) -> list[dict[str, Any]]:
    return [one.write(top=100) for one in Classifier.load(trained.folder).predict(PICTURES)]


def test_a_picture_is_answered_as_the_classifier_answers(server: Serving, expected: list[dict[str, Any]]) -> None:
    for picture, one in zip(PICTURES, expected, strict=True):
        [said] = server.predict(picture, "?top=100").json
        assert said.keys() == {"path", *one} and same(said, one)
        assert (said["unknown"], said["unsure"]) == (one["unknown"], one["unsure"])


def test_many_come_as_multipart_or_json_and_each_has_its_answer(
    server: Serving, expected: list[dict[str, Any]]
) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="%d.png"\r\n\r\n%s\r\n'
    body = b"".join(part % pair for pair in enumerate(PICTURES)) + part % (99, b"no picture") + b"--x--\r\n"
    reply = server.ask("POST", "/predict?top=100", body, Content_Type="multipart/form-data; boundary=x")
    *rows, broken = reply.json
    assert [row["path"] for row in rows] == [f"{number}.png" for number in range(20)]
    assert all(same(row, one) for row, one in zip(rows, expected, strict=True))
    assert broken == {"path": "99.png", "error": broken["error"]} and "not a picture" in broken["error"]
    text = json.dumps({"images": [base64.b64encode(one).decode() for one in PICTURES]})
    reply = server.ask("POST", "/predict?top=100", text, Content_Type="application/json")
    assert all(same(row, one) for row, one in zip(reply.json, expected, strict=True))
    assert len(server.predict(PICTURES[0], "?top=2&unsure=1").json[0]["probabilities"]) == 2


def test_tensors_are_answered_as_json_and_as_bytes(
    server: Serving, expected: list[dict[str, Any]], trained: Run
) -> None:
    classifier = Classifier.load(trained.folder)
    pixels = np.stack([classifier.preprocess.resized(one) for one in PICTURES])
    head: dict[str, Any] = {"name": "pixels", "datatype": "UINT8", "shape": list(pixels.shape)}
    asked = {"inputs": [{**head, "data": pixels.ravel().tolist()}], "id": "seven"}
    said = server.ask("POST", "/v2/models/digits/infer", json.dumps(asked)).json
    outputs = {one["name"]: one for one in said["outputs"]}
    values = np.reshape(outputs["probabilities"]["data"], outputs["probabilities"]["shape"])
    right, distances = classifier.inference.answers(pixels)
    assert said["id"] == "seven" and np.abs(values - right).max() < 1e-5 and distances is not None
    assert np.allclose(outputs["distance"]["data"], distances, rtol=1e-4)
    assert outputs["label"]["data"] == [one["label"] for one in expected]
    head["parameters"] = {"binary_data_size": pixels.nbytes}
    text = json.dumps({"inputs": [head], "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}]})
    reply = server.ask(
        "POST",
        "/v2/models/digits/versions/1/infer",
        text.encode() + pixels.tobytes(),
        Inference_Header_Content_Length=str(len(text)),
    )
    length = int(reply.headers["Inference-Header-Content-Length"])
    assert np.abs(np.frombuffer(reply.content[length:], "<f4").reshape(right.shape) - right).max() < 1e-5


def test_where_the_model_looked_comes_as_a_picture(server: Serving) -> None:
    for method in ("class-attention", "rollout"):
        reply = server.predict(PICTURES[0], f"?map={method}")
        assert reply.headers["Content-Type"] == "image/png"
        with Image.open(BytesIO(reply.content)) as image:
            assert min(image.size) >= 384
    assert "There are: " in server.predict(PICTURES[0], "?map=x").error


def test_the_glass_is_there_with_its_pictures_and_its_checks(server: Serving) -> None:
    assert server.ask("GET", "/glass").headers["Location"] == "/glass/digits/"
    page = server.ask("GET", "/glass/digits/")
    assert page.status == 200 and b"<script" in page.content and "'none'" in page.headers["Content-Security-Policy"]
    assert server.ask("GET", "/glass/digits/glass.js").headers["Content-Type"].startswith("text/javascript")
    number = server.ask("POST", "/glass/digits/api/pictures", PICTURES[0]).json["number"]
    off = server.ask("POST", f"/glass/digits/api/pictures/{number}/answer", json.dumps({"off": [3]}))
    assert len(off.json["answer"]["rows"]) >= 5
    assert server.ask("GET", "/glass/digits/api/pictures/../../etc/passwd").status == 404
    assert server.ask("GET", "/glass/digits/api/model", Sec_Fetch_Site="cross-site").status == 403


def test_addresses_for_those_who_look_after_it(server: Serving) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready", "/v2", "/v2/models/digits", "/"):
        reply = server.ask("GET", path)
        assert reply.status == 200 and reply.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in reply.headers and "Server" not in reply.headers
    metrics = server.ask("GET", "/metrics").content.decode()
    assert "vitral_workers 1.0" in metrics and 'vitral_requests_total{path="/predict",status="200"}' in metrics
    assert "/predict" in server.ask("GET", "/openapi.json").json["paths"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v2/models/cats", 404), ("/v2/models/digits/versions/2", 404), ("/nowhere", 404), ("/predict", 405)]
    + [("//etc/passwd", 404), ("/glass/cats/", 404), ("/v2/models/%00", 404), ("/glass/digits/%2e%2e/server.py", 404)],
)
def test_what_is_not_there_is_said_in_a_sentence(server: Serving, path: str, status: int) -> None:
    reply = server.ask("GET", path)
    assert reply.status == status and reply.error.endswith(".")


def test_a_page_of_somebody_else_is_refused(server: Serving) -> None:
    assert server.predict(PICTURES[0], Origin="http://evil.example").status == 403
    assert server.predict(PICTURES[0], Origin="null").status == 403
    assert server.predict(PICTURES[0], Origin=f"http://127.0.0.1:{server.port}").status == 200
    for host in ("evil.example", "127.0.0.1.evil.example:80", "0.0.0.0", ""):  # a name that was made to lead here
        assert "this machine" in server.ask("GET", "/glass/digits/api/model", Host=host).error


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "The picture is empty"),
        (b"Dear Sir or Madam,\n", "not a picture that Vitral reads"),
        (bomb(50_000), "50,000 × 50,000 pixels"),
        (bomb(9_000), "more than 64 million are not opened here"),
        (png(np.zeros((40, 40, 3)))[:-30], "damaged"),
    ],
)
def test_what_is_no_picture_is_told_so(server: Serving, content: bytes, sentence: str) -> None:
    reply = server.predict(content)
    assert reply.status == 422 and sentence in reply.error


def test_other_bodies_are_refused_with_the_way_out(server: Serving) -> None:
    for kind, body, status in (
        ("text/html", b"<p>", 415),
        ("application/json", b'{"url": "file:///etc/passwd"}', 400),
        ("multipart/form-data", b"x", 400),
    ):
        reply = server.ask("POST", "/predict", body, Content_Type=kind)
        assert reply.status == status and reply.error
    assert server.predict(PICTURES[0], Content_Encoding="gzip").status == 415
    assert server.predict(PICTURES[0], "?model=cats").status == 404


def raw(server: Serving, content: bytes) -> bytes:
    """What is answered to these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        told = b""
        while piece := client.recv(65_536):
            told += piece
        return told


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: -1",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 99999999999999999999999",
        f"X: {'a' * MOST_HEAD}",
        "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF",
        "Content Length: 5",
    ],
)
def test_headers_that_cannot_be_are_refused(server: Serving, head: str) -> None:
    told = raw(server, f"POST /predict HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
    assert told.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))
    assert server.predict(PICTURES[0]).status == 200


@pytest.mark.parametrize("first", ["HTTP/1.0", "HTTP/1.1\r\nConnection: close"])
def test_who_ends_its_side_after_the_last_request_has_its_answer(server: Serving, first: str) -> None:
    rest = f"Host: localhost\r\nContent-Type: image/png\r\nContent-Length: {len(PICTURES[0])}\r\n\r\n"
    told = raw(server, f"POST /predict {first}\r\n{rest}".encode() + PICTURES[0])
    assert told.startswith(b"HTTP/1.1 200") and told.endswith(b"}]")


def test_a_body_is_cut_off_where_it_is_too_long(server: Serving) -> None:
    """It says so in advance, or it only goes on and on."""
    told = raw(server, b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99000000\r\n\r\nbegun")
    assert told.startswith(b"HTTP/1.1 413") and b"more than 32 MB" in told
    chunk = b"100000\r\n" + b"\0" * 2**20 + b"\r\n"
    told = raw(
        server,
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + 34 * chunk + b"0\r\n\r\n",
    )
    assert told.startswith(b"HTTP/1.1 413")
    assert b"vitral_held_bytes 0.0" in server.ask("GET", "/metrics").content


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "command"),
    [("bash", ["bash", "-ec"]), ("js", ["node", "--input-type=module", "-e"]), ("python", ["-c"])],
)
def test_the_examples_of_the_guide_give_the_models_answer(
    server: Serving, expected: list[dict[str, Any]], tmp_path: Path, language: str, command: list[str]
) -> None:
    program = [sys.executable, *command] if language == "python" else command
    if not shutil.which(program[0]):
        pytest.skip(f"there is no {program[0]}")
    (tmp_path / "seven.png").write_bytes(PICTURES[7])
    [code] = code_blocks("serve.md", language)
    code = code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    done = subprocess.run([*program, code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if language == "bash":
        first, second = map(json.loads, done.stdout.replace("][", "]\n[").splitlines())
        assert [first[0]["label"], *(one["label"] for one in second)] == 3 * [expected[7]["label"]]
        with Image.open(tmp_path / "where.png") as image:
            assert image.format == "PNG"
    else:
        assert done.stdout.split() == [expected[7]["label"], f"{expected[7]['probability']:.3f}"]


@pytest.mark.slow
def test_the_client_of_triton_is_content(server: Serving, trained: Run) -> None:
    """Its calls as they are, in a process of its own: it brings gevent."""
    classifier = Classifier.load(trained.folder)
    pixels = np.stack([classifier.preprocess.resized(one) for one in PICTURES])
    values, _ = classifier.inference.answers(pixels)
    given = json.dumps({"url": f"127.0.0.1:{server.port}", "pixels": pixels.tolist(), "values": values.tolist()})
    script = Path(__file__).parent / "ask_triton.py"
    done = subprocess.run([sys.executable, script], input=given, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "content\n"), done.stderr


def test_nothing_that_was_asked_stands_in_the_log(server: Serving) -> None:
    """Only the address, of those that there are, and the status; of a failed request too."""
    part = b'--x\r\nContent-Disposition: form-data; name="a"; filename="my-secret"\r\n\r\n%s\r\n--x--\r\n'
    for content, status in ((PICTURES[0], 200), (b"my-secret", 422)):
        kind = "multipart/form-data; boundary=x"
        assert server.ask("POST", "/predict?top=7", part % content, Content_Type=kind).status == status
        server.wait_for(f"^POST /predict {status}$")
    assert server.predict(PICTURES[0], "?model=my-secret", Authorization="Bearer my-secret").status == 404
    assert server.ask("GET", "/glass/digits/my-secret").status == 404
    assert server.ask("HEAD", "/glass/digits/").status == 200
    server.wait_for("^GET /glass/{name}/{path:path} 404$")
    assert not any("secret" in line or "png" in line or "Traceback" in line for line in server.lines), server.lines
