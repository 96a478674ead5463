"""The body of a request becomes pictures: capped while it streams in, and as raw bytes, multipart or JSON."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from vitral.deploy.serve.questions import Refusal
from vitral.deploy.serve.settings import ServeSettings
from vitral.deploy.serve.tensors import from_base64, read_json

MOST_NAME = 200  # characters of a picture's name
# Besides image/…: of a file that is one picture. curl calls whatever it is given by --data-binary the third.
AS_IT_IS = (b"application/octet-stream", b"", b"application/x-www-form-urlencoded")
MOST_FIELDS = 16  # of a form, beside its pictures


class Named(NamedTuple):
    """A picture with the name that the client gave it; it names nothing here."""

    name: str
    content: bytes


class Room:
    """The bytes of all requests that are here, of which there may be so many."""

    def __init__(self, settings: ServeSettings) -> None:
        self.most, self.most_of_one = settings.held_mb * 2**20, settings.most_bytes
        self.held = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """What is given back is called with each piece that comes in; at the end all of them are let go."""
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if mine + count > self.most_of_one:
                raise too_large(self.most_of_one)
            if self.held + count > self.most:
                raise Refusal(429, "Too much is being sent at once. Ask again later.", retry_after=1)
            self.held += count
            mine += count

        try:
            yield take
        finally:
            self.held -= mine


async def read_body(request: Request, take: Callable[[int], None], most: int) -> bytes:
    """All of the body, if there is room for it. What is only announced takes none: a few who announce much and send
    nothing would keep the others out."""
    if int(request.headers.get("content-length", "0")) > most:
        raise too_large(most)  # before anything is read
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "A compressed body is not taken: pictures are compressed already.")
    pieces = []
    try:
        async for piece in request.stream():
            take(len(piece))
            pieces.append(piece)
    except ClientDisconnect:
        raise Refusal(400, "The request ended before its body did.") from None
    return b"".join(pieces)


def too_large(most: int) -> Refusal:
    return Refusal(413, f"The request has more than {most // 2**20} MB. Send less at once.")


def too_many(most: int) -> Refusal:
    return Refusal(413, f"There are more than {most:,} pictures, and no more may wait here. Send fewer at once.")


def pictures_of(content: bytes, content_type: str, most: int) -> list[Named]:
    """The pictures of a body, of which there may be so many: multipart, JSON, or one file as it is."""
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        pictures = _from_multipart(content, options.get(b"boundary", b""), most)
    elif kind == b"application/json":
        pictures = _from_json(content, most)
    elif kind.startswith(b"image/") or kind in AS_IT_IS:
        pictures = [Named("", content)]
    else:
        raise Refusal(
            415,
            f"The Content-Type is {kind.decode(errors='replace')[:100]}. Send a picture as it is (image/… or "
            "application/octet-stream), as multipart/form-data, or as JSON.",
        )
    if not pictures:
        raise Refusal(400, "There is no picture in the request.")
    return pictures


def _from_json(content: bytes, most: int) -> list[Named]:
    """{"image": "…base64…"}, or {"images": ["…", …]}."""
    values = read_json(content)
    given = values["images"] if set(values) == {"images"} else [values["image"]] if set(values) == {"image"} else None
    if not isinstance(given, list):
        raise Refusal(400, 'Send {"image": "…"} or {"images": ["…", "…"]}, and each picture as a text of base64.')
    if len(given) > most:
        raise too_many(most)
    return [Named("", from_base64(one)) for one in given]


def _from_multipart(content: bytes, boundary: bytes, most: int) -> list[Named]:
    """Every part that is a file."""
    if not boundary:
        raise Refusal(400, "A multipart body has a boundary, which its Content-Type names.")
    reader = _Parts(most)
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.write(content)
        parser.finalize()
    except (FormParserError, ValueError):
        raise Refusal(400, "The multipart body is damaged.") from None
    if not reader.ended:
        raise Refusal(400, "The multipart body ends before its last boundary.")
    return reader.pictures


class _Parts:
    """What the parser of multipart tells, put together."""

    def __init__(self, most: int) -> None:
        self.pictures: list[Named] = []
        self.ended = False
        self._most, self._parts = most, 0

    def callbacks(self) -> Any:
        names = (
            "on_part_begin",
            "on_header_field",
            "on_header_value",
            "on_header_end",
            "on_part_data",
            "on_part_end",
            "on_end",
        )
        return {name: getattr(self, f"_{name}") for name in names}

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > self._most + MOST_FIELDS:
            raise too_many(self._most)
        self._field, self._value, self._disposition = b"", b"", b""
        self._pieces: list[bytes] = []

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._pieces.append(data[start:end])

    def _on_part_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"filename" in options:
            name = options[b"filename"].decode(errors="replace")[:MOST_NAME]
            if len(self.pictures) == self._most:
                raise too_many(self._most)
            self.pictures.append(Named(re.sub(r"[^ -~\w]", "", name), b"".join(self._pieces)))

    def _on_end(self) -> None:
        self.ended = True
