"""How the front and a worker talk: a head of JSON and raw bytes behind it, over a socket. Nothing is unpickled."""

import asyncio
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

_LENGTH = struct.Struct(">I")

Part = bytes | memoryview


class Message(NamedTuple):
    """What one says to the other."""

    head: dict[str, Any]
    parts: Sequence[Part] = ()


def packed(head: Mapping[str, Any], parts: Sequence[Part] = ()) -> list[Part]:
    """A message as it is sent, in pieces: pictures are not copied once more.

    >>> packed({"kind": "end"}, [b"seven"])
    [b'\\x00\\x00\\x00\\x1f', b'{"kind": "end", "lengths": [5]}', b'seven']
    """
    text = json.dumps({**head, "lengths": [len(part) for part in parts]}).encode()
    return [_LENGTH.pack(len(text)), text, *parts]


async def read_message(reader: asyncio.StreamReader) -> Message:
    """The next message; raises EOFError where the other has gone."""
    [length] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    head = json.loads(await reader.readexactly(length))
    return Message(head, [await reader.readexactly(length) for length in head.pop("lengths")])


def next_message(file: BinaryIO) -> Message | None:
    """The same for a worker, which does nothing else meanwhile; None: the other has gone."""
    start = file.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        return None
    head = json.loads(file.read(*_LENGTH.unpack(start)))
    return Message(head, [file.read(length) for length in head.pop("lengths")])


def write_message(file: BinaryIO, head: Mapping[str, Any], parts: Iterable[Part] = ()) -> None:
    """Send a message."""
    file.writelines(packed(head, list(parts)))
    file.flush()
