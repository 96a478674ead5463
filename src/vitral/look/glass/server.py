"""The server of the page, which answers this machine only.

Any web page that is open in a browser can send requests to 127.0.0.1, and its host name can be made to lead here. So
each request has to carry our own address as Host, and Origin (which a browser adds, and no page can forge) has to be
the same. Files are a fixed list that is read at the start; pictures come as bytes or by a number that was given out
here: no path comes from a page. A bad request is answered with a sentence, which the page shows.
"""

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlsplit

from vitral.errors import RecipeError, VitralError
from vitral.look.glass.shelf import Shelf, examples
from vitral.look.inspected_model import Answer, InspectedModel
from vitral.plugin import Code

MOST_BYTES = 64 * 2**20  # of an uploaded picture
ROWS = 5  # classes in an answer
PAGE = ("index.html", "glass.css", "icon.svg")
MODULES = ("glass", "answers", "asking", "colours", "maps", "stage", "state", "strips", "telling")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RequestError(Exception):
    """A bad request: the status and the sentence of its reply."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Glass(ThreadingHTTPServer):
    """The server. `Glass.open("runs/digits")` binds it to 127.0.0.1; `serve_forever` answers until it is stopped."""

    daemon_threads = True  # a page that is still open does not keep the command from ending
    request_queue_size = 64

    def __init__(self, inspected: InspectedModel, shelf: Shelf, port: int = 0) -> None:
        self.inspected, self.shelf = inspected, shelf
        # The answer to the whole picture is needed again with each patch that is switched off.
        self.whole = lru_cache(maxsize=64)(lambda number: inspected.answer(shelf[number].pixels))
        page = files("vitral.look.glass") / "page"
        names = [*PAGE, *(f"{name}.js" for name in MODULES)]
        self.static = {f"/{name}": (TYPES[Path(name).suffix], (page / name).read_bytes()) for name in names}
        self.static["/"] = self.static.pop("/index.html")
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            sentence = f"Port {port} cannot be had ({error.strerror}). Choose another with --port."
            raise RecipeError(sentence if port else f"No free port can be had ({error.strerror}).") from None

    @classmethod
    def open(cls, source: str | Path, port: int = 0, code: Code = ()) -> "Glass":
        """The server of a run or of weights, with example pictures. Port 0: any that is free."""
        inspected = InspectedModel.load(source, code)
        if len(inspected.targets) > 1 or inspected.targets[0].kind == "number":
            words = ", ".join(f"{target.name} ({target.kind})" for target in inspected.targets)
            raise RecipeError(
                f"The glass shows the probabilities of classes or of labels, and {inspected.name} has {words}. "
                f"vitral look {source} PICTURE explains what it says."
            )
        return cls(inspected, Shelf(inspected.preprocess, examples(source, inspected.preprocess)), port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a page that was closed in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection. Paths are matched as a whole against the tables GET and POST."""

    server: Glass
    protocol_version = "HTTP/1.1"  # the connection stays open: a drag over twenty patches needs one
    disable_nagle_algorithm = True  # else the body of an answer waits 40 ms for the head to be acknowledged
    timeout = 60  # seconds of silence

    def do_GET(self) -> None:
        self._answer(GET)

    def do_POST(self) -> None:
        self._answer(POST)

    def _answer(self, routes: "Routes") -> None:
        self.headers_sent = False
        try:
            self._route(routes)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client has gone, or is silent
        except RequestError as error:
            self._fail(str(error), error.status)
        except VitralError as error:
            self._fail(str(error), 400)
        except MemoryError:
            self._fail("The memory of this machine is not enough for that.", 500)
        except Exception:
            traceback.print_exc()
            self._fail("Something went wrong here; the terminal has the details.", 500)

    def _route(self, routes: "Routes") -> None:
        path = urlsplit(self.path).path
        self._check_sender(path)
        body = self._body()
        if file := self.server.static.get(path) if routes is GET else None:
            return self._send(200, *file)
        for pattern, route in routes:
            if match := re.fullmatch(pattern, path):
                return route(self, body, *match.groups())
        raise RequestError(404, "There is nothing at this address.")

    def _fail(self, sentence: str, status: int) -> None:
        if self.headers_sent:
            self.close_connection = True  # a sentence would be taken for the rest of the answer; its end is noticed
        else:
            self._send_json({"error": sentence}, status)

    def _check_sender(self, path: str) -> None:
        hosts = self.headers.get_all("Host") or []
        # The port is not compared: through `ssh -L` it is another one. The name is what a stranger cannot have.
        if len(hosts) != 1 or not re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", hosts[0]):
            self._refuse(403, f"This page is for this machine only: open it as {self.server.url}")
        if self.headers.get("Origin", f"http://{hosts[0]}") != f"http://{hosts[0]}":
            self._refuse(403, "Another page asked, and only this one is answered.")
        # A picture or script of ours in a stranger's page comes without Origin; but a link to the page is fine.
        if path != "/" and self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            self._refuse(403, "Another page asked, and only this one is answered.")

    def _body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            self._refuse(411, "A request has to say how long it is.")
        length = self.headers.get("Content-Length", "0")
        if not re.fullmatch(r"\d{1,15}", length):
            self._refuse(400, "A request has to say how long it is.")
        if int(length) > MOST_BYTES:
            self._refuse(413, f"The picture has more than {MOST_BYTES // 2**20} MB. Make it smaller, and try again.")
        return self.rfile.read(int(length))

    def _refuse(self, status: int, sentence: str) -> NoReturn:
        self.close_connection = True  # the body is not read
        raise RequestError(status, sentence)

    def _model(self, body: bytes) -> None:
        shelf = self.server.shelf
        pictures = [{"number": i, "name": shelf[i].name, "label": shelf[i].label} for i in range(shelf.examples)]
        self._send_json({**self.server.inspected.page_facts(), "examples": pictures, "most_bytes": MOST_BYTES})

    def _add(self, body: bytes) -> None:
        self._send_json(self._picture_of(self.server.shelf.add(body)))

    def _picture(self, body: bytes, number: str) -> None:
        self._send_json(self._picture_of(int(number)))

    def _picture_of(self, number: int) -> dict[str, Any]:
        picture, whole = self.server.shelf[number], self.server.whole(number)
        return {"number": number, "name": picture.name, "label": picture.label, "answer": self._rows(whole, whole)}

    def _png(self, body: bytes, number: str) -> None:
        self._send(200, "image/png", self.server.shelf[int(number)].png)

    def _maps(self, body: bytes, number: str) -> None:
        inspected, pixels = self.server.inspected, self.server.shelf[int(number)].pixels
        blocks = inspected.maps(pixels)
        first = next(blocks)  # most errors come here, before the headers are sent
        self._head(200, "application/octet-stream", inspected.maps_bytes)
        self.wfile.write(first)
        for block in blocks:
            self.wfile.write(block)

    def _reading(self, body: bytes, number: str, method: str) -> None:
        classes = parse_qs(urlsplit(self.path).query).get("class")
        if classes and not re.fullmatch(r"\d{1,6}", classes[0]):
            raise RequestError(400, "class takes the number of a class.")
        label = int(classes[0]) if classes else None
        map = self.server.inspected.reading(self.server.shelf[int(number)].pixels, method, label)
        self._send(200, "application/octet-stream", map.astype("<f4", copy=False).tobytes())

    def _answer_without(self, body: bytes, number: str) -> None:
        """For {"off": [3, 4]}: the answer without these patches, beside the answer to the whole picture."""
        off = _numbers(body)
        now = self.server.inspected.answer(self.server.shelf[int(number)].pixels, off)
        self._send_json({"answer": self._rows(now, self.server.whole(int(number)))})

    def _rows(self, now: Answer | None, whole: Answer | None) -> dict[str, Any] | None:
        if now is None or whole is None:
            return None
        labels = now.top(ROWS)
        # The first answer to the whole picture stays in sight.
        labels += [label for label in whole.top(1) if label not in labels]
        names = self.server.inspected.class_names
        rows = [
            {
                "label": label,
                "name": names[label],
                "now": round(float(now.probabilities[label]), 6),
                "whole": round(float(whole.probabilities[label]), 6),
            }
            for label in labels
        ]
        return {"rows": rows, "distance": now.distance}

    def _send_json(self, values: dict[str, Any], status: int = 200) -> None:
        self._send(status, "application/json", json.dumps(values, ensure_ascii=False).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self._head(status, kind, len(content))
        self.wfile.write(content)

    def _head(self, status: int, kind: str, length: int) -> None:
        self.headers_sent = True
        self.send_response(status)
        is_text = kind.startswith("text/") or kind == "application/json"
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if is_text else kind)
        self.send_header("Content-Length", str(length))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def version_string(self) -> str:
        return "vitral"

    def log_message(self, *what: object) -> None:
        """Log nothing: the terminal stays as it is."""


def _numbers(body: bytes) -> list[int]:
    """The list of patches in {"off": [...]}."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(400, 'This is not JSON. Send {"off": [numbers of patches]}.') from None
    off = values.get("off") if isinstance(values, dict) and set(values) == {"off"} else None
    if not isinstance(off, list) or not all(type(number) is int for number in off):
        raise RequestError(400, 'Send {"off": [numbers of patches]}, and nothing else.')
    return off


Routes = Iterable[tuple[str, Callable[..., None]]]
PICTURE = r"/api/pictures/(\d{1,9})"
GET: Routes = (
    (r"/api/model", Handler._model),
    (PICTURE, Handler._picture),
    (PICTURE + r"\.png", Handler._png),
    (PICTURE + r"/maps", Handler._maps),
    (PICTURE + r"/readings/([a-z-]{1,40})", Handler._reading),
)
POST: Routes = (
    (r"/api/pictures", Handler._add),
    (PICTURE + r"/answer", Handler._answer_without),
)
