"""What the glass answers, whoever owns the socket: a request becomes a reply.

Files are a fixed list that is read at the start; pictures come as bytes or by a number that was given out here: no path
comes from a page. Who may ask is the server's affair.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any
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


@dataclass(frozen=True)
class Reply:
    """What goes back, in pieces: all attention of a picture need not be in memory at once."""

    status: int
    kind: str  # as Content-Type has it
    length: int
    pieces: Iterable[bytes]

    @classmethod
    def of(cls, kind: str, content: bytes, status: int = 200) -> "Reply":
        return cls(status, kind, len(content), [content])

    @classmethod
    def json(cls, values: dict[str, Any], status: int = 200) -> "Reply":
        content = json.dumps(values, ensure_ascii=False).encode()
        return cls.of("application/json; charset=utf-8", content, status)

    @classmethod
    def failed(cls, error: RequestError | VitralError) -> "Reply":
        """A sentence, which the page shows."""
        return cls.json({"error": str(error)}, error.status if isinstance(error, RequestError) else 400)


class GlassAnswers:
    """The answers about one model. Paths are matched as a whole against the tables GET and POST.

    >>> import numpy as np
    >>> from vitral.data.preprocess import Preprocess
    >>> from vitral.model.vit import ViT, ViTConfig
    >>> from vitral.weights.own import Weights
    >>> model = ViT(ViTConfig(image_size=8, patch_size=4, channels=1, width=16, depth=1, heads=2, classes=2))
    >>> preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    >>> inspected = InspectedModel("cats", Weights(model, preprocess, ("cat", "dog")))
    >>> GlassAnswers(inspected, Shelf(preprocess, [])).reply("GET", "/api/model").status
    200
    """

    def __init__(self, inspected: InspectedModel, shelf: Shelf) -> None:
        self.inspected, self.shelf = inspected, shelf
        # The answer to the whole picture is needed again with each patch that is switched off.
        self._whole = lru_cache(maxsize=64)(lambda number: inspected.answer(shelf[number].pixels))
        page = files("vitral.look.glass") / "page"
        names = [*PAGE, *(f"{name}.js" for name in MODULES)]
        self._static = {
            f"/{name}": (f"{TYPES[Path(name).suffix]}; charset=utf-8", (page / name).read_bytes()) for name in names
        }
        self._static["/"] = self._static.pop("/index.html")

    @classmethod
    def open(cls, source: str | Path, code: Code = ()) -> "GlassAnswers":
        """Of a run or of weights, with example pictures."""
        return cls.of(InspectedModel.load(source, code), source)

    @classmethod
    def of(
        cls,
        inspected: InspectedModel,
        source: str | Path,
        own: bool = True,
        new_number: Callable[[], int] | None = None,
    ) -> "GlassAnswers":
        """Of a model that is loaded. Examples are the run's own test pictures only with `own`; `new_number` says which
        number a picture that is sent will have."""
        if len(inspected.targets) > 1 or inspected.targets[0].kind == "number":
            words = ", ".join(f"{target.name} ({target.kind})" for target in inspected.targets)
            raise RecipeError(
                f"The glass shows the probabilities of classes or of labels, and {inspected.name} has {words}. "
                f"vitral look {source} PICTURE explains what it says."
            )
        return cls(inspected, Shelf(inspected.preprocess, examples(source, inspected.preprocess, own), new_number))

    def reply(self, method: str, target: str, body: bytes = b"") -> Reply:
        """The reply to a request for `target`, a path with its query; raises RequestError or VitralError."""
        path = urlsplit(target).path
        if method in ("GET", "HEAD") and path in self._static:
            return Reply.of(*self._static[path])
        for pattern, route in GET if method in ("GET", "HEAD") else POST:
            if match := re.fullmatch(pattern, path):
                return route(self, target, body, *match.groups())
        raise RequestError(404, "There is nothing at this address.")

    def _model(self, target: str, body: bytes) -> Reply:
        shelf = self.shelf
        pictures = [{"number": i, "name": shelf[i].name, "label": shelf[i].label} for i in range(shelf.examples)]
        return Reply.json({**self.inspected.page_facts(), "examples": pictures, "most_bytes": MOST_BYTES})

    def _add(self, target: str, body: bytes) -> Reply:
        return self._picture(target, b"", str(self.shelf.add(body)))

    def _picture(self, target: str, body: bytes, number: str) -> Reply:
        picture, whole = self.shelf[int(number)], self._whole(int(number))
        answer = self._rows(whole, whole)
        return Reply.json({"number": int(number), "name": picture.name, "label": picture.label, "answer": answer})

    def _png(self, target: str, body: bytes, number: str) -> Reply:
        return Reply.of("image/png", self.shelf[int(number)].png)

    def _maps(self, target: str, body: bytes, number: str) -> Reply:
        blocks = self.inspected.maps(self.shelf[int(number)].pixels)
        first = next(blocks)  # most errors come here, before the headers are sent
        return Reply(200, "application/octet-stream", self.inspected.maps_bytes, chain([first], blocks))

    def _reading(self, target: str, body: bytes, number: str, method: str) -> Reply:
        classes = parse_qs(urlsplit(target).query).get("class")
        if classes and not re.fullmatch(r"\d{1,6}", classes[0]):
            raise RequestError(400, "class takes the number of a class.")
        label = int(classes[0]) if classes else None
        map = self.inspected.reading(self.shelf[int(number)].pixels, method, label)
        return Reply.of("application/octet-stream", map.astype("<f4", copy=False).tobytes())

    def _answer_without(self, target: str, body: bytes, number: str) -> Reply:
        """For {"off": [3, 4]}: the answer without these patches, beside the answer to the whole picture."""
        now = self.inspected.answer(self.shelf[int(number)].pixels, _numbers(body))
        return Reply.json({"answer": self._rows(now, self._whole(int(number)))})

    def _rows(self, now: Answer | None, whole: Answer | None) -> dict[str, Any] | None:
        if now is None or whole is None:
            return None
        labels = now.top(ROWS)
        # The first answer to the whole picture stays in sight.
        labels += [label for label in whole.top(1) if label not in labels]
        names = self.inspected.class_names
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


Routes = Iterable[tuple[str, Callable[..., Reply]]]
PICTURE = r"/api/pictures/(\d{1,15})"
GET: Routes = (
    (r"/api/model", GlassAnswers._model),
    (PICTURE, GlassAnswers._picture),
    (PICTURE + r"\.png", GlassAnswers._png),
    (PICTURE + r"/maps", GlassAnswers._maps),
    (PICTURE + r"/readings/([a-z-]{1,40})", GlassAnswers._reading),
)
POST: Routes = (
    (r"/api/pictures", GlassAnswers._add),
    (PICTURE + r"/answer", GlassAnswers._answer_without),
)
