"""Walk through `vitral …`, and at many moments let a copy of the process get Ctrl-C.

    python tests/interrupts.py EVERY UNTIL WORDS…

A moment is a call or a return, in Python or into C. The copies are made by fork, so that one walk has them all: at the
1st, 2nd, 4th, 8th … moment, but at least at every EVERY-th (0: at these only), and at the first call of each of PLACES.
The walk goes from the first line of `main` to the place UNTIL, and prints what became of each copy. Those of PLACES
live until Python itself has ended; the others until `main` has answered, which takes a tenth of the time.
"""

import faulthandler
import json
import os
import signal
import sys
import tempfile
from types import FrameType
from typing import Any

from vitral.cli import main

# Functions by their names and files, and what their first call stands for.
PLACES = {
    "_call_with_frames_removed": ("<frozen importlib._bootstrap>", "import"),
    "_shortest": ("vitral/settings.py", "serialiser"),
    "_load_global_deps": ("torch/__init__.py", "import of torch"),
    "prepare": ("vitral/training/preparation.py", "preparation"),
    "measure_pace": ("vitral/training/budget.py", "trial of steps"),
    "_begin": ("vitral/cli/display.py", "begin"),
}
HANGS = 60  # seconds


class Walk:
    """A profile function: Python calls it at every moment."""

    def __init__(self, every: int, until: str) -> None:
        self.every, self.until = every, until
        self.moment, self.next = 0, 1
        self.brief = False  # whether this is a copy that ends with the answer
        self.places = dict(PLACES)
        self.copies: list[dict[str, Any]] = []

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        self.moment += 1
        if self.moment == self.next:
            self.next = min(2 * self.next, self.next + (self.every or self.next))
            self.copy("", frame)
        elif event == "call" and frame.f_code.co_name in self.places:
            self.arrive(frame)

    def arrive(self, frame: FrameType) -> None:
        """At one of the places, or at a function of the same name."""
        file, place = self.places[frame.f_code.co_name]
        if not frame.f_code.co_filename.endswith(file):
            return
        del self.places[frame.f_code.co_name]
        self.copy(place, frame)
        if place == self.until:
            self.end()

    def copy(self, place: str, frame: FrameType) -> None:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                faulthandler.dump_traceback_later(HANGS, exit=True)
                self.brief = not place
                signal.raise_signal(signal.SIGINT)
                return
            _, status = os.waitpid(child, 0)
            said.seek(0)
            told = {"moment": self.moment, "place": place, "at": f"{frame.f_code.co_filename}:{frame.f_lineno}"}
            self.copies.append({**told, "code": os.waitstatus_to_exitcode(status), "said": said.read().decode()})

    def end(self) -> None:
        sys.setprofile(None)
        print(json.dumps(self.copies), flush=True)
        os._exit(0)


if __name__ == "__main__":
    walk = Walk(int(sys.argv[1]), sys.argv[2])
    sys.argv = ["vitral", *sys.argv[3:]]

    def begin(frame: FrameType, event: str, called: Any) -> None:
        """The call of `main` itself is the moment before its first line."""
        if event == "call" and frame.f_code is main.__code__:
            sys.setprofile(walk)

    sys.setprofile(begin)
    try:
        main()
    except SystemExit as answer:
        if walk.brief:
            os._exit(int(answer.code or 0))
        raise
