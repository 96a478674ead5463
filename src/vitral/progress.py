"""How far long work is: one type, and one way to drain a generator that tells it."""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")


class Progress(NamedTuple):
    """Some of the work is done."""

    done: int
    total: int
    doing: str  # in words, for a bar
    waiting: bool = False  # for another process that does the same


def drain(work: Generator[Progress, None, Result], tell: Callable[[Progress], None] | None = None) -> Result:
    """Do the work; `tell` hears how far it is. The result is what the generator returns.

    >>> def count() -> Generator[Progress, None, str]:
    ...     yield Progress(1, 2, "counting")
    ...     return "done"
    >>> drain(count(), lambda progress: print(progress.doing))
    counting
    'done'
    """
    while True:
        try:
            progress = next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
        if tell:
            tell(progress)
