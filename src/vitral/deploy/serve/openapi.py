"""The addresses as OpenAPI describes them."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from vitral.deploy.serve.facts import ModelFacts

FILE = {"type": "string", "format": "binary"}
TEXT, NUMBER = {"type": "string"}, {"type": "number"}
ERROR = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}
TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"enum": ["pixels", "image"]},
        "datatype": {"enum": ["UINT8", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object"},
    },
}
# What each status means, for every address.
STATUSES = {
    "400": "The request is not as it should be.",
    "401": "It needs a token.",
    "403": "Another page asked.",
    "404": "There is no such model or address.",
    "408": "The request did not come in time.",
    "413": "It is too large.",
    "415": "Its kind of content is not taken.",
    "422": "There is a picture that cannot be read.",
    "429": "More is asked than can be answered; Retry-After says when to ask again.",
    "503": "It cannot be answered now; Retry-After says when to ask again.",
}
OPTIONS = {
    "model": (TEXT, "Its name; without it, the first."),
    "top": ({"type": "integer", "minimum": 1, "maximum": 100_000, "default": 3}, "How many classes to name."),
    "unsure": (
        {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
        "What is less probable is called unsure.",
    ),
    "map": (TEXT, "Answer with a PNG of where the model looked, by this method."),
    "deadline": ({"type": "number", "exclusiveMinimum": 0}, "Seconds that the picture may wait."),
}


def openapi(models: Mapping[str, ModelFacts]) -> dict[str, Any]:
    """The description, for the models that are here."""
    images = {"type": "array", "items": TEXT, "minItems": 1}
    bodies = {
        "image/*": {"schema": FILE},
        "application/octet-stream": {"schema": FILE},
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {"image": {"type": "array", "items": FILE}}}
        },
        "application/json": {
            "schema": {
                "oneOf": [
                    {"type": "object", "properties": {key: one}, "required": [key], "additionalProperties": False}
                    for key, one in (("image", TEXT), ("images", images))
                ]
            }
        },
    }
    tensors = {
        "type": "object",
        "required": ["inputs"],
        "properties": {"id": TEXT, "inputs": {"type": "array", "items": TENSOR}},
    }
    options = [
        {"name": name, "in": "query", "schema": schema, "description": words}
        for name, (schema, words) in OPTIONS.items()
    ]
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": list(models)}}
    infer = {"application/json": {"schema": tensors}, "application/octet-stream": {"schema": FILE}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Vitral",
            "version": version("vitral"),
            "description": " ".join(f"{one.name}: {about(one)}" for one in models.values()),
        },
        "paths": {
            "/predict": {"post": _operation("What a picture shows, or several.", _answers(), options, bodies)},
            "/v2": {"get": _operation("The server.")},
            "/v2/health/live": {"get": _operation("Whether it runs.")},
            "/v2/health/ready": {"get": _operation("Whether it answers for pictures now.")},
            "/v2/models/{name}": {"get": _operation("What a model takes and gives.", parameters=[name])},
            "/v2/models/{name}/ready": {"get": _operation("Whether a model answers now.", parameters=[name])},
            "/v2/models/{name}/infer": {
                "post": _operation(
                    "The Open Inference Protocol, tensors in and out.",
                    parameters=[name],
                    bodies=infer,
                    kinds=("application/json", "application/octet-stream"),
                )
            },
            "/metrics": {"get": _operation("Figures for Prometheus.", kinds=("text/plain",))},
            "/openapi.json": {"get": _operation("This description.")},
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def about(one: ModelFacts) -> str:
    """A model in a sentence: "It takes 28 × 28 pixels and knows 10 classes."."""
    of_classes = len(one.targets) == 1 and one.targets[0].kind == "class"
    knows = f"{one.outputs:,} {'classes' if of_classes else 'outputs'}"
    return f"It takes {one.image_size[1]} × {one.image_size[0]} pixels and knows {knows}."


def _answers() -> dict[str, Any]:
    """As `vitral predict --json`: which of these there are hangs on what the model tells."""
    probabilities = {"type": "object", "properties": {"label": TEXT, "probability": NUMBER, "threshold": NUMBER}}
    known = {
        "path": TEXT,
        "label": TEXT,
        "probability": NUMBER,
        "labels": {"type": "array", "items": TEXT},
        "value": NUMBER,
        "low": {"type": ["number", "null"]},
        "high": {"type": ["number", "null"]},
        "tasks": {"type": "object"},
        "unsure": {"type": "boolean"},
        "unknown": {"type": ["boolean", "null"]},
        "distance": {"type": ["number", "null"]},
        "probabilities": {"type": "array", "items": probabilities},
        "error": TEXT,
    }
    return {"type": "array", "items": {"type": "object", "properties": known, "required": ["path"]}}


def _operation(
    summary: str,
    answer: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    bodies: dict[str, Any] | None = None,
    kinds: tuple[str, ...] = ("application/json",),
) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {"schema": answer or {}} for kind in kinds}
    if bodies and answer:
        content["image/png"] = {"schema": FILE}
    failed = {
        status: {"description": words, "content": {"application/json": {"schema": ERROR}}}
        for status, words in STATUSES.items()
    }
    return {
        "summary": summary,
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"required": True, "content": bodies}} if bodies else {}),
        "responses": {"200": {"description": "The answer.", "content": content}, **failed},
    }
