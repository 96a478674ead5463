"""What a worker shows of its models: where one looked, as a picture, and the glass."""

import io
from typing import Any

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

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
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

    def glass(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[Part]]:
        """The reply of the glass to a request for `head["path"]` of the model `head["model"]`."""
        try:
            if head["model"] not in self._glasses:
                self._glasses[head["model"]] = GlassAnswers.open(
                    self.settings.models[head["model"]], self.settings.code
                )
            answers = self._glasses[head["model"]]
            if head["path"].endswith("/maps") and answers.inspected.maps_bytes > MOST_MAPS:
                raise RequestError(413, f"All attention of one picture has more than {MOST_MAPS // 2**20} MB here.")
            reply = answers.reply(head["method"], head["path"], body)
        except (RequestError, VitralError) as error:
            reply = Reply.failed(error)
        return {"status": reply.status, "headers": {**HEADERS, "Content-Type": reply.kind}}, list(reply.pieces)

    def _inspect(self, name: str, one: Classifier) -> InspectedModel:
        if isinstance(one.inference, GraphModel):
            raise RecipeError(f"{name} is an exported file, which has no maps: serve the run that it is from.")
        if name not in self._inspected:
            self._inspected[name] = InspectedModel(name, one.inference.weights, one.calibration)
        return self._inspected[name]


def methods_of(one: Classifier) -> tuple[str, ...]:
    """The names of the maps that a model may have."""
    return () if isinstance(one.inference, GraphModel) else tuple(METHODS)
