"""What a worker shows of its models: where one looked, as a picture, and the glass."""

import io
import secrets
import traceback
from typing import Any
from urllib.parse import urlsplit

from vitral.classifier import Classifier
from vitral.deploy.serve.messages import Part
from vitral.deploy.serve.settings import MOST_MAPS, ServeSettings
from vitral.errors import RecipeError, VitralError
from vitral.graph import GraphModel
from vitral.look.glass.answers import HEADERS, GlassAnswers, Reply, RequestError
from vitral.look.inspected_model import InspectedModel
from vitral.look.overlay import overlay_map
from vitral.look.readings import FOR_A_CLASS, METHODS


class Looking:
    """Models that are looked into, made when somebody first asks."""

    def __init__(self, settings: ServeSettings, most_maps: int = MOST_MAPS) -> None:
        self.settings, self.most_maps = settings, most_maps
        self._inspected: dict[str, InspectedModel] = {}
        self._glasses: dict[str, GlassAnswers] = {}

    def overlay(self, name: str, one: Classifier, method: str, content: bytes) -> bytes:
        """The picture with a map over it, as a PNG; by class, the map is for what the model answers."""
        inspected = self._inspect(name, one)
        if method not in inspected.methods:
            raise RecipeError(f"There is no map {method} of {name}. There are: {', '.join(inspected.methods)}.")
        pixels = inspected.preprocess.resized(content)
        answer = inspected.answer(pixels)
        first = inspected.target_of(0)[1]  # of several tasks
        label = int(answer.probabilities[first].argmax()) if answer and method == FOR_A_CLASS else None
        file = io.BytesIO()
        overlay_map(pixels, inspected.reading(pixels, method, label)).save(file, "PNG")
        return file.getvalue()

    def glass(self, name: str, one: Classifier, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[Part]]:
        """The reply of the glass of a model to a request for `head["path"]`, and its pieces."""
        try:
            reply = self._reply(name, one, head, body)
            pieces: list[Part] = list(reply.pieces)  # some of what can go wrong goes wrong here
        except (RequestError, VitralError) as error:
            reply = Reply.failed(error)
        except MemoryError:
            reply = Reply.json({"error": "The memory of this machine is not enough for that."}, 500)
        except Exception:
            traceback.print_exc()
            reply = Reply.json({"error": "Something went wrong here; the log has the details."}, 500)
        else:
            return _head(reply), pieces
        return _head(reply), list(reply.pieces)

    def _reply(self, name: str, one: Classifier, head: dict[str, Any], body: bytes) -> Reply:
        if name not in self._glasses:
            # Of what answers, and not loaded once more: the file may have become another one meanwhile.
            self._glasses[name] = GlassAnswers.of(
                self._inspect(name, one), self.settings.models[name], self.settings.is_private, any_number
            )
        answers = self._glasses[name]
        try:
            path = urlsplit(head["path"]).path
        except ValueError:
            raise RequestError(404, "There is nothing at this address.") from None
        if path.endswith("/maps") and answers.inspected.maps_bytes > self.most_maps:
            most = f"{self.most_maps / 2**20:.0f} MB"
            raise RequestError(413, f"All attention of one picture has more than {most} here.")
        return answers.reply("GET" if head["method"] == "HEAD" else head["method"], head["path"], body)

    def _inspect(self, name: str, one: Classifier) -> InspectedModel:
        if isinstance(one.inference, GraphModel):
            raise RecipeError(f"{name} is an exported file, which has no maps: serve the run that it is from.")
        if name not in self._inspected:
            self._inspected[name] = InspectedModel(name, one.inference.weights, one.calibration)
        return self._inspected[name]


def any_number() -> int:
    """For a picture that somebody sends: nobody else finds it out. A page can hold it as a number."""
    return 10**14 + secrets.randbelow(9 * 10**14)


def _head(reply: Reply) -> dict[str, Any]:
    return {"status": reply.status, "headers": {**HEADERS, "Content-Type": reply.kind}}


def methods_of(one: Classifier) -> tuple[str, ...]:
    """The names of the maps that a model may have."""
    return () if isinstance(one.inference, GraphModel) else tuple(METHODS)
