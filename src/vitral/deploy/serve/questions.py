"""What waits for a worker: pictures, each with the question that it belongs to, and a queue that has an end."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitral.deploy.serve.messages import Part
from vitral.deploy.serve.settings import PER_BATCH

Kind = Literal["f", "p"]  # a file as it is; pixels


class Refusal(Exception):
    """Why something is not answered: a status and a sentence; with `retry_after`, when to ask again."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True)
class Answer:
    """What a model says of one picture."""

    values: NDArray[np.float32]  # (outputs,)
    distance: float | None
    error: str = ""  # why the picture cannot be read


class Question:
    """Some pictures of one request. It is done when each has an answer, or when one is refused."""

    def __init__(
        self, pictures: Sequence[tuple[Kind, Part]], expires: float, gone: Callable[[], bool] = lambda: False
    ) -> None:
        self.items = [Item(self, place, kind, content) for place, (kind, content) in enumerate(pictures)]
        self.expires, self.gone = expires, gone
        self.started = False  # a worker has one of its pictures: the others are not late any more
        self.done: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._answers: list[Answer | None] = [None] * len(self.items)
        self._left = len(self.items)

    def answer(self, place: int, answer: Answer) -> None:
        """The answer to one of its pictures."""
        self._answers[place] = answer
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(self._answers)  # type: ignore[arg-type]

    def refuse(self, refusal: Refusal) -> None:
        """All of it."""
        if not self.done.done():
            self.done.set_exception(refusal)

    def expire(self) -> None:
        """Its time is over: refuse it, if no worker has begun with it."""
        if not self.started:
            self.refuse(LATE)

    def waits(self) -> bool:
        """Whether somebody still wants the answer; if not, it is done with."""
        if self.gone():
            self.refuse(LATE)
        return not self.done.done()


@dataclass(eq=False, slots=True)
class Item:
    """One picture of a question."""

    question: Question
    place: int
    kind: Kind
    content: Part
    _name: str = field(default="", init=False)

    @property
    def name(self) -> str:
        """Its sha256: the same picture is the same, whoever sends it."""
        self._name = self._name or hashlib.sha256(self.content).hexdigest()
        return self._name


class Queue:
    """Pictures that wait, by model, the oldest first. Those that were with a worker when it ended come first, and go
    alone: whichever of them it was, the others do not end with it again."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[str, deque[Item]] = {}
        self._suspects: deque[tuple[str, Item]] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + len(self._suspects)

    def put(self, model: str, question: Question, suspects: Collection[Item] = ()) -> None:
        """Its pictures wait behind all others; suspects of them go alone."""
        self.put_back(model, suspects)
        self._waiting.setdefault(model, deque()).extend(item for item in question.items if item not in suspects)

    def put_back(self, model: str, items: Collection[Item]) -> None:
        """Those that a worker had when it ended."""
        self._suspects.extend((model, item) for item in items)

    def take(self, workers: int, most: int = PER_BATCH) -> tuple[str, list[Item]] | None:
        """A batch for a worker that is free: its share of what waits, and no more than `most`. What nobody waits
        for any more, or is past its time, is left out."""
        while self._suspects:
            model, item = self._suspects.popleft()
            if item.question.waits():
                item.question.started = True
                return model, [item]
        for model in sorted(self._waiting, key=self._since):
            waiting = self._waiting[model]
            share = min(most, -(-len(waiting) // workers))
            batch: list[Item] = []
            while waiting and len(batch) < share:
                item = waiting.popleft()
                if item.question.waits():
                    item.question.started = True
                    batch.append(item)
            if batch:
                return model, batch
        return None

    def _since(self, model: str) -> float:
        waiting = self._waiting[model]
        return waiting[0].question.expires if waiting else float("inf")

    def refuse_all(self, refusal: Refusal) -> None:
        """Nothing is left."""
        for item in [*(item for _, item in self._suspects), *(item for one in self._waiting.values() for item in one)]:
            item.question.refuse(refusal)
        self._suspects.clear()
        self._waiting.clear()


LATE = Refusal(503, "It did not come to its turn in time. Ask again later.", retry_after=1)
