"""What signals do to a real server, and what it does when its files are others than before."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import quick_digits
from serving import PATIENCE, Serving, digits
from vitral import Run, train

pytestmark = pytest.mark.slow

ONE = ("--workers", 1, "--threads", 1, "--deadline", 60)
PICTURES = digits(2)


def test_tokens_are_read_again_with_the_models_and_no_signal_is_lost(trained: Run, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("an-old-token-of-ours\n")
    with Serving(trained.folder, *ONE, "--token-file", file) as server:

        def status(token: str) -> int:
            return server.predict(PICTURES[0], Authorization=f"Bearer {token}").status

        def taken_over() -> int:
            return sum("Taken over" in line for line in server.lines)

        assert f"(process {server.process.pid}; Ctrl-C ends it)" in server.lines[-1]
        assert status("an-old-token-of-ours") == 200
        file.write_text("a-new-token-of-ours\n")
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: len(server.workers()) > 1)  # in the middle of a takeover
        file.write_text("short\n")
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: taken_over() == 2)
        assert sum("The tokens stay as they are" in line for line in server.lines) == 1
        assert (status("an-old-token-of-ours"), status("a-new-token-of-ours")) == (401, 200)
        assert not any("of-ours" in line for line in server.lines)


def test_a_second_signal_does_not_wait_for_anybody(trained: Run) -> None:
    with (
        Serving(trained.folder, *ONE) as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client,
    ):
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nbegun")
        server.until(lambda: b"vitral_held_bytes 5.0" in server.ask("GET", "/metrics").content)
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: not can_connect(server.port))
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0 and server.lines[-1] == "Ended before all was answered."


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_when_its_terminal_is_closed_it_ends_and_does_not_reload(trained: Run) -> None:
    ours, theirs = os.openpty()
    begin = (
        "import fcntl, os, sys, termios\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'vitral', 'serve', *sys.argv[1:]])"
    )
    arguments = [*map(str, ONE), "--port", "0"]
    command = [sys.executable, "-c", begin, str(trained.folder), *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as server:
        try:
            os.close(theirs)
            told = b""
            while b"Ctrl-C ends it" not in told:
                told += os.read(ours, 65_536)
            server.send_signal(signal.SIGHUP)  # somebody's who wants new models: the terminal is there
            while b"Taken over" not in told:
                told += os.read(ours, 65_536)
            os.close(ours)
            assert server.wait(PATIENCE) == 0
        finally:
            server.kill()


def test_maps_are_of_the_model_that_answers(trained: Run, tmp_path: Path) -> None:
    """Their worker is started late, when the files may be others."""
    serves, other = tmp_path / "run", train(quick_digits().changed({"train.seed": 5}), out=tmp_path / "other")
    shutil.copytree(trained.folder, serves)
    with Serving(serves, *ONE) as server:
        shutil.copytree(other.folder, serves, dirs_exist_ok=True)
        reply = server.predict(PICTURES[0], "?map=rollout")
        assert reply.status == 503 and "being taken over" in reply.error
        server.wait_for("Taken over: run")
        assert server.predict(PICTURES[0], "?map=rollout").status == 200
        shutil.rmtree(serves)  # the glass needs no second load
        assert server.ask("GET", "/glass/run/api/model").status == 200


def test_a_worker_for_maps_that_was_killed_is_replaced(trained: Run) -> None:
    with Serving(trained.folder, *ONE) as server:
        others = server.workers()
        assert server.predict(PICTURES[0], "?map=rollout").status == 200
        [draws] = set(server.workers()) - set(others)
        os.kill(draws, signal.SIGKILL)
        assert server.predict(PICTURES[0], "?map=rollout").status == 200
        server.until(lambda: draws not in server.workers())


def test_the_glass_can_be_left_out_and_everybody_sees_no_pictures_of_ours(trained: Run) -> None:
    with Serving(trained.folder, *ONE, "--no-glass") as server:
        assert server.ask("GET", "/glass/").status == 404
        assert b"glass" not in server.ask("GET", "/").content
    with Serving(trained.folder, *ONE, "--host", "0.0.0.0") as server:
        assert f"on all addresses of this machine, as at http://{socket.gethostname()}:" in server.lines[-1]
        number = server.ask("POST", "/glass/run/api/pictures".replace("run", trained.folder.name), PICTURES[0])
        assert number.json["number"] >= 10**14
