"""The server of the page, which answers this machine only.

Any web page that is open in a browser can send requests to 127.0.0.1, and its host name can be made to lead here. So
each request has to carry our own address as Host, and Origin (which a browser adds, and no page can forge) has to be
the same. A bad request is answered with a sentence, which the page shows. What is answered stands in answers.py.
"""

import re
import sys
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from vitral.errors import RecipeError, VitralError
from vitral.look.glass.answers import HEADERS, MOST_BYTES, GlassAnswers, Reply, RequestError
from vitral.look.inspected_model import InspectedModel
from vitral.plugin import Code


class Glass(ThreadingHTTPServer):
    """The server. `Glass.open("runs/digits")` binds it to 127.0.0.1; `serve_forever` answers until it is stopped."""

    daemon_threads = True  # a page that is still open does not keep the command from ending
    request_queue_size = 64

    def __init__(self, answers: GlassAnswers, port: int = 0) -> None:
        self.answers = answers
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            sentence = f"Port {port} cannot be had ({error.strerror}). Choose another with --port."
            raise RecipeError(sentence if port else f"No free port can be had ({error.strerror}).") from None

    @classmethod
    def open(cls, source: str | Path, port: int = 0, code: Code = ()) -> "Glass":
        """The server of a run or of weights, with example pictures. Port 0: any that is free."""
        return cls(GlassAnswers.open(source, code), port)

    @property
    def inspected(self) -> InspectedModel:
        """The model under glass."""
        return self.answers.inspected

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback for a page that was closed in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Glass
    protocol_version = "HTTP/1.1"  # the connection stays open: a drag over twenty patches needs one
    disable_nagle_algorithm = True  # else the body of an answer waits 40 ms for the head to be acknowledged
    timeout = 60  # seconds of silence

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        self.headers_sent = False
        try:
            self._check_sender(urlsplit(self.path).path)
            self._send(self.server.answers.reply(method, self.path, self._body()))
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client has gone, or is silent
        except (RequestError, VitralError) as error:
            self._fail(Reply.failed(error))
        except MemoryError:
            self._fail(Reply.json({"error": "The memory of this machine is not enough for that."}, 500))
        except Exception:
            traceback.print_exc()
            self._fail(Reply.json({"error": "Something went wrong here; the terminal has the details."}, 500))

    def _fail(self, reply: Reply) -> None:
        if self.headers_sent:
            self.close_connection = True  # a sentence would be taken for the rest of the answer; its end is noticed
        else:
            self._send(reply)

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

    def _send(self, reply: Reply) -> None:
        self.headers_sent = True
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(reply.length))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        for piece in reply.pieces:
            self.wfile.write(piece)

    def version_string(self) -> str:
        return "vitral"

    def log_message(self, *what: object) -> None:
        """Log nothing: the terminal stays as it is."""
