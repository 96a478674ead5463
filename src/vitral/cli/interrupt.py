"""Ctrl-C: answered with "Stopped." and 130, wherever it falls and whatever a library makes of it.

The first one raises KeyboardInterrupt and is remembered, because a library may turn it into an error of its own: what
reaches `main` afterwards, of whatever type, is the interrupt. Where a library swallows it, or where Python cannot raise
it (in a destructor, in a callback from C), it is raised again after a moment. A second Ctrl-C ends the process at once.
"""

import os
import signal
import sys
import threading
from typing import NoReturn

AGAIN = 0.5  # seconds after which an interrupt that got lost is raised again
SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class CtrlC:
    """What SIGINT does while a command runs."""

    def __init__(self) -> None:
        self.raised: KeyboardInterrupt | None = None
        self.before: signal._HANDLER = None

    def watch(self) -> None:
        """From now on. A thread other than the first hears no signals; a script's background ignores this one."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and before is not signal.SIG_IGN:
            self.before, self.hook = before, sys.unraisablehook
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: object) -> NoReturn:
        if self.raised:
            end(number, frame)
        self.raised = KeyboardInterrupt()
        sys.unraisablehook = lambda _: None  # it would print a traceback where the interrupt cannot be raised
        signal.signal(signal.SIGALRM, self._again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)
        raise self.raised

    def _again(self, number: int, frame: object) -> None:
        if self.raised and not _on_its_way(self.raised):
            raise self.raised

    def _rest(self) -> None:
        if self.raised:  # else the timer is somebody else's
            signal.setitimer(signal.ITIMER_REAL, 0)

    def heard(self) -> None:
        """Somebody has done what Ctrl-C asks for: the next one is the first again."""
        self._rest()
        self.raised = None

    def look(self) -> None:
        """The command has come to its end: did an interrupt get lost just before?"""
        if self.raised:
            raise self.raised

    def leave(self) -> None:
        """`main` gives its answer, and Python's own end follows: an interrupt has nothing to unwind any more."""
        self._rest()
        if self.before is not None:
            signal.signal(signal.SIGINT, end)

    def forget(self) -> None:
        """As it was before: for a caller that goes on."""
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
            self.before, sys.unraisablehook = None, self.hook
        self.heard()


def end(number: int, frame: object) -> NoReturn:
    """Say so and end, without any cleaning up: no file needs it, as after a kill."""
    try:
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)
        os.write(2, b"Stopped.\n")
    finally:
        os._exit(130)


def _on_its_way(interrupt: KeyboardInterrupt) -> bool:
    """Whether what runs now, a `finally` or `except`, runs because of it: it may be saving something."""
    error = sys.exception()
    while error is not None and error is not interrupt:
        error = error.__context__
    return error is interrupt


ctrl_c = CtrlC()  # of the process, as signals are
