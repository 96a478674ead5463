"""Tensors of the Open Inference Protocol, version 2: as JSON, and as the extension for binary data has them.

A body is JSON, and behind it the bytes of those tensors that say `binary_data_size`; a header of the request tells
where the JSON ends. What is here takes a hostile body: each number in it is looked at before it is used.
"""

import base64
import binascii
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.deploy.serve.questions import Refusal
from vitral.deploy.serve.settings import MOST_JSON

_LENGTH = struct.Struct("<I")
MOST_SIDES = 8  # of a shape
MOST_SIDE = 2**31 - 1
MOST_TENSORS = 16  # that go in, or out


@dataclass(frozen=True)
class Tensor:
    """What goes in: UINT8, or BYTES that are files."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8] | list[bytes]


@dataclass(frozen=True)
class InferRequest:
    """A request to infer, read and checked."""

    id: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[tuple[str, bool], ...] | None  # the names that are wanted, and whether as binary data; None: all
    binary: bool  # what is not named, as binary data
    seconds: float | None  # `timeout`, which tritonclient has in microseconds


def read_json(content: bytes | memoryview, what: str = "The body") -> dict[str, Any]:
    """A table of JSON, or a sentence."""
    if len(content) > MOST_JSON:
        raise Refusal(
            413, f"{what} has more than {MOST_JSON // 2**20} MB of JSON. Send files or tensors as they are, in bytes."
        )
    try:
        values = json.loads(bytes(content))
    except (ValueError, RecursionError):
        raise Refusal(400, f"{what} is not JSON.") from None
    if not isinstance(values, dict):
        raise Refusal(400, f"{what} should be a table of JSON, {{…}}.")
    return values


def read_request(content: bytes, json_length: str | None, most: int) -> InferRequest:
    """The body of a request with no more than `most` pictures; `json_length` is its header
    Inference-Header-Content-Length."""
    length = len(content) if json_length is None else _number(json_length, "Inference-Header-Content-Length")
    if length > len(content):
        raise Refusal(400, f"Inference-Header-Content-Length is {length}, and the body has {len(content)} bytes.")
    view = memoryview(content)
    values, rest = read_json(view[:length]), view[length:]
    inputs = values.get("inputs")
    if not isinstance(inputs, list) or not 0 < len(inputs) <= MOST_TENSORS:
        raise Refusal(400, f"`inputs` should be a list of tensors, {MOST_TENSORS} at most.")
    tensors = []
    for one in inputs:
        tensor, taken = _read_tensor(_table(one, "An input"), rest, most)
        tensors.append(tensor)
        rest = rest[taken:]
    if rest:
        raise Refusal(400, f"Behind the tensors are {len(rest)} more bytes.")
    parameters = _table(values.get("parameters", {}), "`parameters`")
    binary = parameters.get("binary_data_output") is True
    outputs = values.get("outputs") or None
    if outputs is not None and not (isinstance(outputs, list) and len(outputs) <= MOST_TENSORS):
        raise Refusal(400, f"`outputs` should be a list of tables with `name`, {MOST_TENSORS} at most.")
    id = values.get("id", "")
    if not isinstance(id, str):
        raise Refusal(400, "`id` should be a text.")
    wanted = None if outputs is None else tuple(_read_output(_table(one, "An output"), binary) for one in outputs)
    if wanted and len({name for name, _ in wanted}) < len(wanted):
        raise Refusal(400, "An output is named twice.")
    return InferRequest(
        id=id[:1_000],
        inputs=tuple(tensors),
        outputs=wanted,
        binary=binary,
        seconds=_seconds(parameters.get("timeout")),
    )


def _read_tensor(one: dict[str, Any], rest: memoryview, most: int) -> tuple[Tensor, int]:
    """A tensor, and how many bytes of the rest are its own."""
    name, datatype, shape = one.get("name"), one.get("datatype"), one.get("shape")
    if not isinstance(name, str) or datatype not in ("UINT8", "BYTES"):
        raise Refusal(400, "An input has `name`, and a `datatype`, which is UINT8 or BYTES here.")
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_SIDES
        or not all(type(side) is int and 0 < side <= MOST_SIDE for side in shape)
    ):
        raise Refusal(400, f"The `shape` of {name[:100]!r} should be a list of whole numbers above 0.")
    count = math.prod(shape)
    if shape and shape[0] > most or datatype == "BYTES" and count > most:  # before any is unpacked
        raise Refusal(413, f"There are more than {most:,} pictures, and no more may wait here. Send fewer at once.")
    parameters = _table(one.get("parameters", {}), "`parameters`")
    if any(key.startswith("shared_memory") for key in parameters):
        raise Refusal(400, "Shared memory is not read here: send the tensor itself.")
    taken = 0
    if "binary_data_size" in parameters:
        taken = parameters["binary_data_size"]
        if type(taken) is not int or not 0 <= taken < 10**12:
            raise Refusal(400, "binary_data_size should be a whole number of bytes.")
        if taken > len(rest):
            raise Refusal(400, f"binary_data_size is {taken}, and {len(rest)} bytes are left of the body.")
        raw = rest[:taken]
        data = unpack_bytes(raw, most) if datatype == "BYTES" else np.frombuffer(raw, np.uint8)
    else:
        data = _from_json(one.get("data"), datatype, most)
    if len(data) != count:
        raise Refusal(400, f"{name[:100]!r} has {len(data):,} values, and its shape {shape} has {count:,}.")
    return Tensor(name, datatype, tuple(shape), data), taken


def _from_json(data: Any, datatype: str, most: int) -> NDArray[np.uint8] | list[bytes]:
    if not isinstance(data, list):
        raise Refusal(400, "A tensor has `data`, a list, or the parameter `binary_data_size`.")
    values: list[Any] = _flat(data)
    if datatype == "BYTES":
        if len(values) > most:
            raise Refusal(413, f"There are more than {most:,} pictures, and no more may wait here.")
        return [from_base64(one) for one in values]
    # A loop in C: there may be millions.
    if set(map(type, values)) - {int} or values and not 0 <= min(values) <= max(values) <= 255:
        raise Refusal(400, "UINT8 has whole numbers from 0 to 255.")
    return np.array(values, np.uint8)


def _flat(values: list[Any]) -> list[Any]:
    """A nested list without its inner brackets."""
    for _ in range(MOST_SIDES + 1):
        kinds = set(map(type, values))
        if list not in kinds:
            return values
        if len(kinds) > 1:
            break
        values = list(chain.from_iterable(values))
    raise Refusal(400, "`data` is a list of values, or lists of equal depth.")


def from_base64(text: Any) -> bytes:
    """The bytes of a file that JSON holds as text."""
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise Refusal(400, "A picture in JSON is a text of base64.") from None


def unpack_bytes(raw: bytes | memoryview, most: int = MOST_SIDE) -> list[bytes]:
    """BYTES as binary data: each with its length before it, so many at most.

    >>> unpack_bytes(pack_bytes([b"seven", b""]))
    [b'seven', b'']
    """
    values: list[bytes] = []
    place = 0
    while place < len(raw):
        if len(values) == most:
            raise Refusal(413, f"There are more than {most:,} elements. Send fewer at once.")
        if place + _LENGTH.size > len(raw):
            raise Refusal(400, "The bytes of a tensor end in the middle of a length.")
        [length] = _LENGTH.unpack_from(raw, place)
        place += _LENGTH.size
        if place + length > len(raw):
            raise Refusal(400, f"An element of {length:,} bytes is announced, and {len(raw) - place:,} are left.")
        values.append(bytes(raw[place : place + length]))
        place += length
    return values


def pack_bytes(values: Sequence[bytes]) -> bytes:
    """The way back."""
    return b"".join(_LENGTH.pack(len(value)) + value for value in values)


Outputs = Mapping[str, NDArray[np.float32] | list[str]]  # each with a row for a picture


def write_response(head: dict[str, Any], outputs: Outputs, request: InferRequest) -> tuple[bytes, int | None]:
    """The body of a response, and the length of its JSON where binary data follows."""
    wanted = request.outputs or tuple((name, request.binary) for name in outputs)
    tables, parts = [], []
    for name, binary in wanted:
        if name not in outputs:
            raise Refusal(400, f"There is no output {name[:100]!r}. There are: {', '.join(outputs)}.")
        table, raw = _write_tensor(name, outputs[name], binary)
        tables.append(table)
        parts.append(raw)
    # In ASCII: half of a surrogate pair, which JSON can hold and UTF-8 cannot, goes back as it came.
    text = json.dumps({**head, **({"id": request.id} if request.id else {}), "outputs": tables}).encode()
    any_binary = any(binary for _, binary in wanted)
    return b"".join([text, *parts]), len(text) if any_binary else None


def _write_tensor(name: str, values: NDArray[np.float32] | list[str], binary: bool) -> tuple[dict[str, Any], bytes]:
    if isinstance(values, list):
        table: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": [len(values)]}
        raw = pack_bytes([value.encode(errors="replace") for value in values])
        data: list[Any] = values
    else:
        table = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
        raw = values.astype("<f4", copy=False).tobytes() if binary else b""
        data = [] if binary else values.ravel().tolist()
    if binary:
        return {**table, "parameters": {"binary_data_size": len(raw)}}, raw
    return {**table, "data": data}, b""


def _read_output(one: dict[str, Any], binary: bool) -> tuple[str, bool]:
    parameters = _table(one.get("parameters", {}), "`parameters`")
    name = one.get("name")
    if not isinstance(name, str):
        raise Refusal(400, "An output has a `name`.")
    if "classification" in parameters or any(key.startswith("shared_memory") for key in parameters):
        raise Refusal(400, "Outputs are tensors here: `classification` and shared memory are not there.")
    return name, parameters.get("binary_data", binary) is True


def _table(values: Any, what: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise Refusal(400, f"{what} should be a table of JSON, {{…}}.")
    return values


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise Refusal(400, f"{what} should be a whole number of bytes.")
    return int(text)


def _seconds(microseconds: Any) -> float | None:
    if microseconds is None:
        return None
    if type(microseconds) is not int or not 0 < microseconds < 10**12:
        raise Refusal(400, "`timeout` should be a whole number of microseconds above 0.")
    return microseconds / 1e6
