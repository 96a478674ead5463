"""Ctrl-C: answered with "Stopped." and 130, wherever it falls and whatever a library makes of it.

The first one raises KeyboardInterrupt and is remembered, because a library may turn it into an error of its own: what
reaches `main` afterwards, of whatever type, is the interrupt. Where a library swallows it, or where Python cannot raise
it (in a destructor, in a callback from C), it is raised again after a moment. A second Ctrl-C ends the process at once;
so does one while torch is loaded, whose C++ cannot be left by an error at every moment, and nothing is to be saved yet.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

STOPPED = 130  # the exit code
AGAIN = 0.5  # seconds after which an interrupt that got lost is raised again
SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class CtrlC:
    """What SIGINT does while a command runs."""

    def __init__(self) -> None:
        self.raised: KeyboardInterrupt | None = None
        self.before: signal._HANDLER = None

    def watch(self) -> None:
        """Answer SIGINT from now on; not in a thread other than the first, nor where a script's `&` ignores it."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and before is not signal.SIG_IGN:
            self.before, self.hook = before, sys.unraisablehook
            signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: object) -> NoReturn:
        if self.raised or _is_loading("torch"):
            _end_at_once(number, frame)
        self.raised = KeyboardInterrupt()
        sys.unraisablehook = lambda _: None  # it would print a traceback where the interrupt cannot be raised
        signal.signal(signal.SIGALRM, self._raise_again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)
        raise self.raised

    def _raise_again(self, number: int, frame: object) -> None:
        if self.raised and not _is_unwinding(self.raised):
            raise self.raised

    def _stop_timer(self) -> None:
        if self.raised:  # else the timer is not ours
            signal.setitimer(signal.ITIMER_REAL, 0)

    def reset(self) -> None:
        """Forget an interrupt that a command has answered: the next one is the first again."""
        self._stop_timer()
        self.raised = None

    def raise_lost(self) -> None:
        """Raise an interrupt that got lost just before the command came to its end."""
        if self.raised:
            raise self.raised

    def leave(self) -> None:
        """From now on an interrupt ends the process at once: `main` is done, and there is nothing to unwind."""
        self._stop_timer()
        if self.before is not None:
            signal.signal(signal.SIGINT, _end_at_once)

    def restore(self) -> None:
        """Bring the signal handlers back as they were, for a caller that goes on."""
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
            self.before, sys.unraisablehook = None, self.hook
        self.reset()


def end() -> NoReturn:
    """End the process once all is said. Python's own end would be another one where the interrupt fell into a library
    in C: it remembers that, and kills the process with the same signal (exit code -2)."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # nobody reads any more, or it was closed
                stream.flush()
    finally:
        os._exit(STOPPED)


def _end_at_once(number: int, frame: object) -> NoReturn:
    """Print "Stopped." and end the process, without any cleaning up: no file needs it, as after a kill."""
    try:
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)
        os.write(2, b"Stopped.\n")
    finally:
        os._exit(STOPPED)


def _is_loading(module: str) -> bool:
    return getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False) is True


def _is_unwinding(interrupt: KeyboardInterrupt) -> bool:
    """Whether a `finally` or `except` runs now because of this interrupt: it may be saving something."""
    error = sys.exception()
    while error is not None and error is not interrupt:
        error = error.__context__
    return error is interrupt


ctrl_c = CtrlC()  # of the process, as signals are
