"""How far long work is: one type, which a generator yields or a function tells, and one way to drain such a generator.

Who does the work says first where it starts, so that a bar knows what was done before.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")


class Progress(NamedTuple):
    """Some of the work is done."""

    done: int
    total: int
    doing: str  # in words, for a bar
    waiting: bool = False  # for another process that does the same


Tell = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """For those who want no progress."""


def drain(work: Generator[Progress, None, Result], tell: Tell = silent) -> Result:
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
        tell(progress)
