"""The Open Inference Protocol, version 2, as Triton, KServe and their clients speak it."""

from importlib.metadata import version
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vitral.deploy.serve.bodies import read_body
from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.messages import Part
from vitral.deploy.serve.questions import Answer, Kind, Refusal
from vitral.deploy.serve.replies import SAFE, as_json
from vitral.deploy.serve.service import Service
from vitral.deploy.serve.tensors import InferRequest, Outputs, read_request, write_response

VERSION = "1"  # of every model: a server has one at a time


class V2:
    """Its addresses."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def server(self, request: Request) -> Response:
        return as_json({"name": "vitral", "version": version("vitral"), "extensions": ["binary_tensor_data"]})

    async def live(self, request: Request) -> Response:
        return as_json({"live": True})

    async def ready(self, request: Request) -> Response:
        self._check_ready()
        return as_json({"ready": True})

    async def model(self, request: Request) -> Response:
        return as_json(metadata(self._facts(request)))

    async def model_ready(self, request: Request) -> Response:
        facts = self._facts(request)
        self._check_ready()
        return as_json({"name": facts.name, "ready": True})

    async def infer(self, request: Request) -> Response:
        self._facts(request)
        service = self.service
        service.pool.check_room()
        with service.room.hold() as take:
            content = await read_body(request, take, service.settings.most_bytes)
            asked = read_request(
                content, request.headers.get("inference-header-content-length"), service.settings.queue
            )
            pool, facts = service.pool, self._facts(request)
            pictures = _pictures_of(asked, facts)
            _check_outputs(asked, facts)
            answers = await pool.ask(facts.name, service.question(request, pictures, asked.seconds))
        if error := next((one.error for one in answers if one.error), ""):
            raise Refusal(422, error)
        head = {"model_name": facts.name, "model_version": VERSION}
        body, length = write_response(head, _outputs_of(answers, facts, asked), asked)
        if length is None:
            return Response(body, 200, SAFE, "application/json")
        return Response(body, 200, {**SAFE, "Inference-Header-Content-Length": str(length)}, "application/octet-stream")

    def _facts(self, request: Request) -> ModelFacts:
        if request.path_params.get("version", VERSION) != VERSION:
            raise Refusal(404, f"A model has version {VERSION} here, and no other.")
        return self.service.facts(request.path_params["name"])

    def _check_ready(self) -> None:
        if not self.service.is_ready:
            raise Refusal(503, "It is not ready.", retry_after=2)


def metadata(facts: ModelFacts) -> dict[str, Any]:
    """What a model takes and gives, as the protocol says it."""
    inputs = [
        {"name": "pixels", "datatype": "UINT8", "shape": [-1, *facts.pixels]},
        {"name": "image", "datatype": "BYTES", "shape": [-1]},
    ]
    outputs: list[dict[str, Any]] = [{"name": facts.values_name, "datatype": "FP32", "shape": [-1, facts.outputs]}]
    if facts.has_distance:
        outputs.append({"name": "distance", "datatype": "FP32", "shape": [-1]})
    outputs.append({"name": "label", "datatype": "BYTES", "shape": [-1]})
    platform = f"vitral_{facts.runtime.split()[0].lower()}"
    names = [name for target in facts.targets for name in target.names]  # of the columns of the first output
    return {
        "name": facts.name,
        "versions": [VERSION],
        "platform": platform,
        "inputs": inputs,
        "outputs": outputs,
        "parameters": {"names": names},
    }


def _pictures_of(asked: InferRequest, facts: ModelFacts) -> list[tuple[Kind, Part]]:
    """The pictures of the one input: `pixels`, prepared as `vitral export` says, or `image`, files as they are."""
    if len(asked.inputs) != 1:
        raise Refusal(400, "There should be one input: pixels or image.")
    [one] = asked.inputs
    if (one.name, one.datatype) == ("image", "BYTES"):
        if len(one.shape) > 2 or one.shape[1:] not in ((), (1,)):
            raise Refusal(400, f"image has the shape [N], and {list(one.shape)} was given.")
        return [("f", content) for content in one.data]
    if (one.name, one.datatype) == ("pixels", "UINT8"):
        if one.shape[1:] != facts.pixels:
            raise Refusal(
                400, f"pixels has the shape [N, {', '.join(map(str, facts.pixels))}], and {list(one.shape)} was given."
            )
        rows = np.asarray(one.data, np.uint8).reshape(len(one.data) // int(np.prod(facts.pixels)), -1)
        return [("p", row.data) for row in rows]
    raise Refusal(
        400, f"There is no input {one.name[:100]!r} of {one.datatype}. There are: pixels of UINT8, image of BYTES."
    )


def _check_outputs(asked: InferRequest, facts: ModelFacts) -> None:
    """Before anything is computed."""
    there = [one["name"] for one in metadata(facts)["outputs"]]
    for name, _ in asked.outputs or ():
        if name not in there:
            raise Refusal(400, f"There is no output {name[:100]!r}. There are: {', '.join(there)}.")


def _outputs_of(answers: list[Answer], facts: ModelFacts, asked: InferRequest) -> Outputs:
    outputs: dict[str, Any] = {facts.values_name: np.stack([one.values for one in answers])}
    if facts.has_distance:
        outputs["distance"] = np.array([one.distance for one in answers], np.float32)
    if asked.outputs is None or "label" in dict(asked.outputs):  # it takes a while to sort a thousand classes
        outputs["label"] = [facts.prediction(one.values, one.distance).label for one in answers]
    return outputs
