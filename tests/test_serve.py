"""What a server is made of: bodies, tensors, the queue; whatever comes is read, or refused with a sentence."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitral import RecipeError
from vitral.cli.serve import _by_name, command
from vitral.deploy.serve import replies
from vitral.deploy.serve.bodies import Room, pictures_of
from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.messages import next_message, packed
from vitral.deploy.serve.openapi import openapi
from vitral.deploy.serve.options import Options
from vitral.deploy.serve.page import page
from vitral.deploy.serve.questions import Answer, Kind, Question, Queue, Refusal
from vitral.deploy.serve.settings import MOST_JSON, PER_BATCH, ServeSettings
from vitral.deploy.serve.tensors import InferRequest, pack_bytes, read_request, unpack_bytes, write_response
from vitral.targets import Target

SETTINGS = ServeSettings(models={"digits": "runs/digits"})
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # also halves of surrogate pairs, which JSON can hold
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**4000, -(10**4000)]) | st.floats() | TEXT,
    lambda some: st.lists(some, max_size=4) | st.dictionaries(TEXT, some, max_size=4),
)
SIDES = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 2**40, 10**4000]) | st.integers(), max_size=4)


@given(st.dictionaries(st.text(max_size=5), st.integers()), st.lists(st.binary(max_size=50), max_size=4))
def test_a_message_arrives_as_it_was_sent(head: dict[str, int], parts: list[bytes]) -> None:
    head.pop("lengths", None)
    file = BytesIO(b"".join(packed(head, parts)))
    assert next_message(file) == (head, parts) and next_message(file) is None


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_bytes_are_unpacked_as_they_were_packed(values: list[bytes]) -> None:
    assert unpack_bytes(pack_bytes(values)) == values


def refused(call: Callable[[], object]) -> str:
    """The sentence; whatever else is raised fails the test."""
    with pytest.raises(Refusal) as caught:
        call()
    assert 400 <= caught.value.status < 500 and str(caught.value)[-1] in ".?…"
    return str(caught.value)


@given(st.binary(max_size=200), st.none() | st.text(max_size=5) | st.integers(-5, 250).map(str))
def test_whatever_comes_as_tensors_is_read_or_refused(content: bytes, length: str | None) -> None:
    try:
        read_request(content, length, 512)
    except Refusal as refusal:
        assert refusal.status in (400, 413)


@given(JSON, JSON | SIDES, JSON, st.binary(max_size=40), TEXT)
def test_no_table_of_json_breaks_the_reader(one: Any, shape: Any, parameters: Any, rest: bytes, id: str) -> None:
    """Nor the writer of what is answered to it."""
    tensors = [
        {"name": "image", "datatype": "BYTES", "shape": shape, "data": one, "parameters": parameters},
        {"name": "pixels", "datatype": "UINT8", "shape": [2], "data": one},
        one,
    ]
    for tensor in tensors:
        for more in ({}, {"outputs": one}, {"parameters": parameters}, {"id": one}):
            text = json.dumps({"id": id, "inputs": [tensor], **more}).encode()
            try:
                asked = read_request(text + rest, str(len(text)), 512)
                write_response({"model_name": "a"}, {"label": [id]}, asked)
            except Refusal as refusal:
                assert refusal.status in (400, 413) and replies.refused(refusal).body


def test_what_json_can_hold_goes_back_as_it_came() -> None:
    good = {"name": "pixels", "datatype": "UINT8", "shape": [1], "data": [1]}
    body, _ = write_response({}, {"label": ["x"]}, infer(good, id="\ud800"))
    assert json.loads(body)["id"] == "\ud800"
    for shape in ([10**4000, 10**4000], [2**31]):
        assert "whole numbers above 0" in refused(lambda shape=shape: infer({**good, "shape": shape}))  # type: ignore[misc]
    deep = b'{"id": ' + b"[" * 500 + b"]" * 500 + b', "inputs": [{}]}'
    refused(lambda: read_request(deep, None, 512))


def test_more_pictures_than_may_wait_are_refused_before_they_are_unpacked() -> None:
    """However many they are: who counts them all stops the server meanwhile."""
    many = 200_000
    raw = bytes(4 * many)
    head = {"name": "image", "datatype": "BYTES", "shape": [many], "parameters": {"binary_data_size": len(raw)}}
    part = b"--x\r\nContent-Disposition: form-data; filename=a\r\n\r\n\r\n"
    field = b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n"
    text = json.dumps({"images": ["?"] * many}).encode()  # the first that is read would be refused for another reason
    for call in (
        lambda: infer(head, raw),
        lambda: infer({**head, "shape": [512]}, raw),
        lambda: infer({"name": "image", "datatype": "BYTES", "shape": [5], "data": ["?"] * many}),
        lambda: infer({"name": "pixels", "datatype": "UINT8", "shape": [many, 1], "data": []}),
        lambda: pictures_of(part * many + b"--x--\r\n", "multipart/form-data; boundary=x", 512),
        lambda: pictures_of(field * many + b"--x--\r\n", "multipart/form-data; boundary=x", 512),
        lambda: pictures_of(text, "application/json", 512),
    ):
        with pytest.raises(Refusal) as caught:
            call()
        assert caught.value.status == 413
    assert len(pictures_of(part * 512 + b"--x--\r\n", "multipart/form-data; boundary=x", 512)) == 512


def infer(tensor: dict[str, Any], raw: bytes = b"", **more: Any) -> InferRequest:
    text = json.dumps({"inputs": [tensor], **more}).encode()
    return read_request(text + raw, str(len(text)), 512)


def test_a_tensor_is_the_same_as_json_and_as_bytes() -> None:
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    head = {"name": "pixels", "datatype": "UINT8", "shape": [2, 3, 4]}
    for one in (
        infer({**head, "data": pixels.tolist()}),
        infer({**head, "data": pixels.ravel().tolist()}),
        infer({**head, "parameters": {"binary_data_size": 24}}, pixels.tobytes()),
    ):
        assert np.array_equal(np.asarray(one.inputs[0].data).reshape(one.inputs[0].shape), pixels)
    files = [b"\x89PNG", b""]
    head = {"name": "image", "datatype": "BYTES", "shape": [2]}
    raw = pack_bytes(files)
    assert infer({**head, "parameters": {"binary_data_size": len(raw)}}, raw).inputs[0].data == files
    assert infer({**head, "data": [base64.b64encode(one).decode() for one in files]}).inputs[0].data == files


@pytest.mark.parametrize(
    ("change", "raw", "sentence"),
    [
        ({"shape": [3]}, b"", "has 2 values, and its shape"),
        ({"shape": [-2]}, b"", "whole numbers above 0"),
        ({"shape": [True, 2]}, b"", "whole numbers above 0"),
        ({"data": [1, 256]}, b"", "from 0 to 255"),
        ({"data": [1, 2.0]}, b"", "from 0 to 255"),
        ({"data": [1, [2]]}, b"", "lists of equal depth"),
        ({"datatype": "FP32"}, b"", "UINT8 or BYTES"),
        ({"parameters": {"binary_data_size": 3}}, b"ab", "2 bytes are left"),
        ({"parameters": {"binary_data_size": -1}}, b"ab", "whole number of bytes"),
        ({"parameters": {"shared_memory_region": "x"}}, b"", "Shared memory is not read"),
        ({}, b"more", "4 more bytes"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused_with_the_reason(change: dict[str, Any], raw: bytes, sentence: str) -> None:
    good = {"name": "pixels", "datatype": "UINT8", "shape": [2], "data": [1, 2]}
    assert sentence in refused(lambda: infer({**good, **change}, raw))


def test_an_output_that_is_named_twice_is_refused_and_so_is_much_json() -> None:
    good = {"name": "pixels", "datatype": "UINT8", "shape": [2], "data": [1, 2]}
    assert "named twice" in refused(lambda: infer(good, outputs=[{"name": "label"}] * 2))
    assert "MB of JSON" in refused(lambda: read_request(b"[" * (MOST_JSON + 1), None, 512))
    assert "not JSON" in refused(lambda: read_request(b"[" * 100_000, None, 512))


def test_outputs_go_out_in_the_way_that_was_asked_for() -> None:
    values = np.array([[0.25, 0.75]], np.float32)
    asked = infer(
        {"name": "pixels", "datatype": "UINT8", "shape": [1], "data": [1]},
        id="7",
        outputs=[{"name": "probabilities", "parameters": {"binary_data": True}}, {"name": "label"}],
    )
    body, length = write_response({"model_name": "pets"}, {"probabilities": values, "label": ["dog"]}, asked)
    head = json.loads(body[:length])
    assert head["id"] == "7" and head["outputs"][1]["data"] == ["dog"]
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 8} and body[length:] == values.tobytes()


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_files_come_out_of_multipart_as_they_went_in(files: list[bytes]) -> None:
    boundary = b"-a-boundary-that-is-in-none-of-them-"
    head = b'--%s\r\nContent-Disposition: form-data; name="image"; filename="%d.png"\r\n\r\n%s\r\n'
    body = b"".join(head % (boundary, number, one) for number, one in enumerate(files)) + b"--%s--\r\n" % boundary
    found = pictures_of(body, f"multipart/form-data; boundary={boundary.decode()}", 512)
    assert found == [(f"{number}.png", one) for number, one in enumerate(files)]
    assert "ends before" in refused(
        lambda: pictures_of(body[:-8], f"multipart/form-data; boundary={boundary.decode()}", 512)
    )


@given(
    st.binary(max_size=300),
    st.sampled_from(["multipart/form-data; boundary=x", "application/json", "text/plain", "a;b=c"]),
)
def test_whatever_comes_as_pictures_is_read_or_refused(content: bytes, kind: str) -> None:
    try:
        pictures_of(content, kind, 512)
    except Refusal as refusal:
        assert refusal.status in (400, 413, 415)


def test_a_picture_comes_raw_or_as_base64() -> None:
    text = base64.b64encode(b"seven").decode()
    for body, kind in (
        (b"seven", "image/png"),
        (b"seven", ""),
        (json.dumps({"image": text}).encode(), "application/json"),
        (json.dumps({"images": [text]}).encode(), "application/json; charset=utf-8"),
    ):
        assert pictures_of(body, kind, 512) == [("", b"seven")]
    for body in (b'{"image": "?"}', b'{"image": 1}', b'{"url": "http://127.0.0.1/"}', b'{"images": []}', b"[]"):
        refused(lambda body=body: pictures_of(body, "application/json", 512))  # type: ignore[misc]


def test_room_is_given_back_whatever_happens() -> None:
    room = Room(SETTINGS)
    with room.hold() as take:
        take(30 * 2**20)
        with pytest.raises(Refusal, match="more than 32 MB"):
            take(3 * 2**20)
        with pytest.raises(Refusal, match="Too much"), room.hold() as other:
            room.held = room.most
            other(1)
        room.held = 30 * 2**20
    assert room.held == 0


@pytest.mark.parametrize(
    "query", [{"top": "0"}, {"top": "x"}, {"unsure": "2"}, {"deadline": "-1"}, {"deadline": "nan"}, {"tpo": "1"}]
)
def test_an_option_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    assert next(iter(query)) in refused(lambda: Options.read(query))


def question(count: int, expires: float = 1.0, gone: bool = False) -> Question:
    pictures: list[tuple[Kind, bytes]] = [("f", bytes([number])) for number in range(count)]
    return Question(pictures, expires, lambda: gone)


def test_a_worker_is_given_its_share_of_what_waits_the_oldest_first() -> None:
    async def run() -> None:
        queue = Queue(512)
        queue.put("a", question(10, expires=2))
        queue.put("b", question(1, expires=1))
        assert len(queue) == 11
        first, second = queue.take(workers=2), queue.take(workers=2)
        assert first and first[0] == "b" and len(first[1]) == 1
        assert second and second[0] == "a" and [item.place for item in second[1]] == [0, 1, 2, 3, 4]
        queue.put("a", question(100, expires=3))
        third = queue.take(workers=1)
        assert third and len(third[1]) == PER_BATCH and third[1][0].place == 5

    asyncio.run(run())


def test_what_nobody_waits_for_is_not_computed() -> None:
    async def run() -> None:
        queue, late, gone, good = Queue(9), question(2), question(2, gone=True), question(1)
        for one in (late, gone, good):
            queue.put("a", one)
        late.expire()
        taken = queue.take(workers=1)
        assert taken and taken[1] == good.items and queue.take(workers=1) is None
        good.expire()  # a worker has it: it is answered
        good.answer(0, Answer(np.zeros(1, np.float32), None))
        assert len(await good.done) == 1
        with pytest.raises(Refusal, match="in time"):
            await late.done

    asyncio.run(run())


def test_those_whose_worker_ended_go_first_and_alone() -> None:
    async def run() -> None:
        queue, lost = Queue(9), question(3)
        queue.put("a", question(2))
        queue.put_back("a", lost.items)
        sizes = [len(taken[1]) for _ in range(4) if (taken := queue.take(workers=1))]
        assert sizes == [1, 1, 1, 2]

    asyncio.run(run())


def test_the_front_loads_no_torch() -> None:
    """Nor what would be slow, or could be broken by a picture."""
    code = "import sys, vitral.cli.serve, vitral.deploy.serve.front\nprint({'torch', 'PIL', 'scipy'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_page_shows_every_address_and_nothing_from_elsewhere() -> None:
    targets = (Target(names=("<b>cat", "dog")),)
    facts = ModelFacts(
        name="pets",
        runtime="torch",
        identity="1",
        channels=3,
        image_size=(8, 8),
        targets=targets,
        thresholds=(0.5, 0.5),
        margins=(0, 0),
        has_distance=False,
    )
    described = openapi({"pets": facts})
    html = page({"pets": facts}, "127.0.0.1:8000", has_tokens=False)
    assert all(path in html for path in described["paths"]) and "<b>" not in html and "<script" not in html
    assert html.replace("http://127.0.0.1:8000/predict", "").count("//") == 0  # nothing is loaded from elsewhere
    assert "Look inside" not in html and json.dumps(described)  # an exported file has no inside
    maps = facts.model_copy(update={"methods": ("rollout",)})
    assert 'href="glass/pets/"' in page({"pets": maps}, "127.0.0.1:8000", has_tokens=True)


def test_models_are_called_by_their_folders_or_as_they_are_told() -> None:
    given = ("runs/digits", "runs/pets/model.safetensors", "a=b/c.onnx", "hf:org/a b")
    assert list(_by_name(given)) == ["digits", "pets", "a", "a-b"]
    with pytest.raises(RecipeError, match="Two models are called digits"):
        _by_name(("runs/digits", "old/digits"))


def test_what_cannot_be_served_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("short\n")
    for arguments, sentence in (
        (["runs/digits", "--token-file", str(tmp_path / "tokens")], "16 characters"),
        (["runs/digits", "--host", "nowhere.invalid"], "cannot be had"),
    ):
        done = CliRunner().invoke(command, arguments)
        assert isinstance(done.exception, RecipeError) and sentence in str(done.exception)


@pytest.fixture(scope="module")
def looking() -> Callable[..., tuple[int, bytes]]:
    """The glass of a small model: status and body of a request."""
    from vitral.classifier import Classifier
    from vitral.data.preprocess import Preprocess
    from vitral.deploy.serve.looking import Looking
    from vitral.model.config import ViTConfig
    from vitral.model.vit import ViT
    from vitral.weights.own import Weights

    model = ViT(ViTConfig(image_size=8, patch_size=4, channels=1, width=16, depth=1, heads=2, classes=2))
    preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    one = Classifier(Weights(model, preprocess, ("cat", "dog")))
    several = {most: Looking(ServeSettings(models={"a": "nowhere"}), most) for most in (1, 2**20)}

    def ask(method: str, path: str, body: bytes = b"", most: int = 2**20) -> tuple[int, bytes]:
        head, pieces = several[most].glass("a", one, {"method": method, "path": path}, body)
        return head["status"], b"".join(bytes(piece) for piece in pieces)

    return ask


def test_whatever_is_asked_of_the_glass_its_worker_goes_on(looking: Callable[..., tuple[int, bytes]]) -> None:
    assert looking("GET", "//[x?")[0] == 404
    assert looking("HEAD", "/") == looking("GET", "/") and looking("HEAD", "/api/pictures")[0] == 404
    for path in ("/api/pictures/0/maps", "/api/pictures/0/maps?", "/api/pictures/0/maps?x=/y"):
        assert looking("GET", path, most=1)[0] == 413 and looking("GET", path)[0] == 200
    for off in (b"[99999999999999999999999]", b"[-1]"):
        assert looking("POST", "/api/pictures/0/answer", b'{"off":' + off + b"}")[0] in (400, 500)


def test_a_picture_that_somebody_sends_to_the_glass_has_a_number_that_nobody_guesses(
    looking: Callable[..., tuple[int, bytes]],
) -> None:
    picture = BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(picture, "PNG")
    numbers = [json.loads(looking("POST", "/api/pictures", picture.getvalue())[1])["number"] for _ in range(40)]
    assert len(set(numbers)) == 40 and 10**14 <= min(numbers) and max(numbers) < 2**53
    assert max(numbers) - min(numbers) > 10**13
    found = [looking("GET", f"/api/pictures/{number}.png")[0] for number in numbers]
    assert found == 8 * [400] + 32 * [200]  # the newest stay


def test_ones_own_pictures_are_examples_only_where_not_everybody_can_ask() -> None:
    private = {"host": "0.0.0.0", "token_file": "x"}
    for more, expected in (({}, True), ({"host": "0.0.0.0"}, False), (private, True)):
        assert ServeSettings(models={}, **more).is_private == expected  # type: ignore[arg-type]
