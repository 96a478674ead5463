"""Replies in JSON, and the headers that every reply has."""

import json
from typing import Any

from starlette.responses import Response

from vitral.deploy.serve.questions import Refusal

SAFE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


def as_json(values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, as `vitral predict --json` prints it."""
    return Response(json.dumps(values).encode(), status, {**SAFE, **(headers or {})}, "application/json")


def refused(refusal: Refusal) -> Response:
    """A sentence, and when to ask again."""
    headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = 'Bearer, Basic realm="the password is a token", charset="UTF-8"'
    return as_json({"error": str(refusal)}, refusal.status, headers)
