"""How far long work is: one type, which a generator yields or a function tells, and one way to drain such a generator.

Who does the work says first where it starts, so that a bar knows what was done before.
"""

import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from filelock import BaseFileLock

Result = TypeVar("Result")


class Progress(NamedTuple):
    """Some of the work is done."""

    done: int
    total: int
    doing: str  # in words, for a bar
    waiting: bool = False  # for another process that does the same

    @property
    def words(self) -> str:
        """What is being done, for people."""
        return "waiting for another process" if self.waiting else self.doing


Tell = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """For those who want no progress."""


class OutOfTime(Exception):
    """Work was ended because its time was over: see `until`."""


def until(ends_at: float, tell: Tell = silent) -> Tell:
    """Pass on how far the work is, and end it by OutOfTime when the time (of `time.perf_counter`) has come.

    >>> until(time.perf_counter() - 1)(Progress(1, 2, "counting"))
    Traceback (most recent call last):
    vitral.progress.OutOfTime
    """

    def tell_in_time(progress: Progress) -> None:
        if time.perf_counter() > ends_at and progress.done < progress.total:
            raise OutOfTime
        tell(progress)

    return tell_in_time


def tap(work: Generator[Progress, None, Result], tell: Tell) -> Generator[Progress, None, Result]:
    """The same work for who goes on listening; `tell` hears how far it is, and may end it by an exception."""
    try:
        while True:
            progress = next(work)
            tell(progress)
            yield progress
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        work.close()


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


def taking(lock: "BaseFileLock", waiting: Progress) -> Generator[Progress, None, None]:
    """Take a lock; yields as long as another process has it."""
    from filelock import Timeout

    while True:
        try:
            lock.acquire(timeout=0.2)
            return
        except Timeout:
            yield waiting
