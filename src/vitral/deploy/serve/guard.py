"""Who may ask: a token, where the server has some, and no page of a stranger."""

import base64
import hmac
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request

from vitral.deploy.serve.questions import Refusal
from vitral.errors import RecipeError


def check_origin(request: Request) -> None:
    """A page of somebody else's, open in a browser of somebody who may ask, is not answered. CORS is off."""
    origin = request.headers.get("origin")
    if origin is not None and _place(origin) != request.headers.get("host"):
        raise Refusal(403, "Another page asked, and only programs and the pages of this server are answered.")


def check_host(request: Request) -> None:
    """A server for this machine is asked by its name here: a name in the net can be made to lead here too, so that a
    page of a stranger would be of the same origin."""
    if not re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", request.headers.get("host", "")):
        raise Refusal(403, "This server is for this machine: call it 127.0.0.1 or localhost, or give it a token.")


def check_token(request: Request, tokens: Sequence[str]) -> None:
    """One of the tokens has to come with a request, as Bearer; a browser sends it as the password of Basic."""
    if not tokens:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        given = _password(given)
    elif scheme.lower() != "bearer":
        given = ""
    # All are compared, each in the same time: how long it takes tells nothing.
    if not sum(hmac.compare_digest(given.strip().encode(), token.encode()) for token in tokens):
        raise Refusal(401, "This needs a token: send the header Authorization: Bearer …")


def read_tokens(path: Path) -> tuple[str, ...]:
    """A token a line; none that can be guessed."""
    try:
        tokens = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    except (OSError, UnicodeDecodeError):
        raise RecipeError(f"{path} cannot be read as text with a token a line.") from None
    if not tokens or min(map(len, tokens)) < 16:
        raise RecipeError(
            f"{path} should have a token a line, each of 16 characters or more. To make one: "
            'python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return tokens


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _password(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
