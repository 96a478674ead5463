"""A page in a real Chromium without a window, which is told what to do over a pipe (the DevTools protocol)."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Self

from vitral.errors import WeightsError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
ELSEWHERE = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
PATIENCE = 180.0  # seconds without a word from it
# Chromium reads orders from 3 and answers on 4, and Python passes a pipe on by the number that it has.
PASS_ON = """
import os, sys
_, orders, answers, *command = sys.argv
os.dup2(int(orders), 3), os.dup2(int(answers), 4), os.execv(command[0], command)
"""


def find_chromium() -> str | None:
    """The program, if there is one on this machine."""
    here = (path for path in ELSEWHERE if os.access(path, os.X_OK))
    return next((path for path in map(shutil.which, NAMES) if path), None) or next(here, None)


class CannotStart(WeightsError):
    """There is a Chromium, and it does not run here."""


class Chromium:
    """A browser with a page."""

    def __init__(self, orders: int, answers: int) -> None:
        self.orders, self.answers = orders, answers
        self.buffer, self.count = b"", 0
        self.session: dict[str, str] = {}
        self.happened: list[tuple[str, str]] = []  # which page, and what it has reached
        self.version = str(self.ask("Browser.getVersion")["product"]).replace("Headless", "").replace("/", " ")

    @classmethod
    @contextmanager
    def start(cls, program: str) -> Iterator[Self]:
        """A browser of its own, which is ended with all that it wrote."""
        with TemporaryDirectory(prefix="vitral-", ignore_cleanup_errors=True) as profile:
            ours, theirs = _pipes()
            options = ["--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
            options += ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # root has none
            command = [sys.executable, "-c", PASS_ON, *map(str, theirs), program, *options]
            process = subprocess.Popen(
                command, pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                for end in theirs:
                    os.close(end)
                try:
                    browser = cls(*ours)
                except WeightsError as error:
                    raise CannotStart(f"{program} does not start here ({error}).") from None
                yield browser
            finally:
                for end in ours:
                    os.close(end)  # which ends it
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def open(self, url: str) -> None:
        """Open a page, and wait until its scripts have run."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.ask("Page.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)
        loader = self.ask("Page.navigate", url=url)["loaderId"]
        while not any(event == (loader, "DOMContentLoaded") for event in self.happened):
            self._hear()

    def evaluate(self, script: str, **how: bool) -> Any:
        """What a script in the page gives; of a promise, what it becomes."""
        answer = self.ask("Runtime.evaluate", expression=script, **{"awaitPromise": True, "returnByValue": True} | how)
        if "exceptionDetails" in answer:
            raise WeightsError(f"The page failed: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value", answer["result"])

    def choose(self, selector: str, path: Path) -> None:
        """Choose a file, where the page asks for one."""
        element = self.evaluate(f"document.querySelector({json.dumps(selector)})", returnByValue=False)
        self.ask("DOM.setFileInputFiles", files=[str(path.absolute())], objectId=element["objectId"])

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give an order, and wait for its answer."""
        self.count += 1
        order = {"id": self.count, "method": method, "params": parameters, **self.session}
        left = json.dumps(order).encode() + b"\0"
        try:
            while left:
                left = left[os.write(self.orders, left) :]
        except BrokenPipeError:
            raise WeightsError("Chromium ended by itself.") from None
        while (message := self._hear()).get("id") != self.count:
            pass
        if "error" in message:
            raise WeightsError(f"Chromium does not do {method}: {message['error'].get('message')}")
        return dict(message["result"])

    def _hear(self) -> dict[str, Any]:
        """What it says next: an answer, or that something happened."""
        message = self._message()
        if message.get("method") == "Page.lifecycleEvent":
            self.happened.append((message["params"]["loaderId"], message["params"]["name"]))
        return message

    def _message(self) -> dict[str, Any]:
        until = monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            if not select.select([self.answers], [], [], max(0.0, until - monotonic()))[0]:
                raise WeightsError(f"Chromium said nothing for {PATIENCE:.0f} s.")
            if not (some := os.read(self.answers, 1 << 20)):
                raise WeightsError("Chromium ended by itself.")
            self.buffer += some
        message, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(message))


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Our ends and Chromium's, for orders and for answers; its own with numbers that stay clear of 3 and 4."""
    their_orders, orders = os.pipe()
    answers, their_answers = os.pipe()
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (their_orders, their_answers)]
    for end in (their_orders, their_answers):
        os.close(end)
    return (orders, answers), (theirs[0], theirs[1])
