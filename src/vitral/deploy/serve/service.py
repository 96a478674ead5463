"""What is behind the addresses: the pool of today, and room for the bytes of requests."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request

from vitral.deploy.serve.bodies import Room
from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.guard import read_tokens
from vitral.deploy.serve.messages import Part
from vitral.deploy.serve.metrics import Metrics
from vitral.deploy.serve.pool import Pool, Tell
from vitral.deploy.serve.questions import Kind, Question, Refusal
from vitral.deploy.serve.settings import ServeSettings


class Service:
    """One server."""

    def __init__(self, settings: ServeSettings, pool: Pool, tell: Tell, tokens: Sequence[str] = ()) -> None:
        self.settings, self.tell = settings, tell
        self.room, self.metrics = Room(settings), Metrics()
        self.tokens = tokens
        self.ends = False
        self.use(pool)

    def use(self, pool: Pool) -> None:
        """Ask this pool from now on."""
        pool.batches = self.metrics.batch
        self.pool = pool

    def read_tokens(self) -> None:
        """Those that are in the file now; a RecipeError where it cannot be, and the old ones stay."""
        if self.settings.token_file:
            self.tokens = read_tokens(Path(self.settings.token_file))

    @property
    def is_ready(self) -> bool:
        """Whether a picture would be answered now."""
        return bool(self.pool.workers) and not self.ends

    def facts(self, name: str | None) -> ModelFacts:
        """The model of this name; None: the first."""
        models = self.pool.models
        if name is None:
            return next(iter(models.values()))
        if name not in models:
            raise Refusal(404, f"There is no model {name[:100]!r} here. There are: {', '.join(models)}.")
        return models[name]

    def expires(self, seconds: float | None) -> float:
        """When a request that comes now has waited long enough: as the server says, or the client, if that is less."""
        return asyncio.get_running_loop().time() + min(seconds or self.settings.deadline, self.settings.deadline)

    def question(self, request: Request, pictures: Sequence[tuple[Kind, Part]], seconds: float | None) -> Question:
        """What is asked. Once the client has gone, nobody works on it."""
        connection = request.state.connection
        return Question(pictures, self.expires(seconds), lambda: connection.is_gone)
