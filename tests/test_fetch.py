"""Fetching, against a real server on this machine that breaks off, lies, and changes its files. Nothing leaves it."""

import hashlib
import io
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from conftest import FIXTURES
from vitral.cli import main
from vitral.data.fetch import WAITS, Fetched, fetch
from vitral.data.sources.named import NAMED, NamedSet, RemoteFile, locate
from vitral.errors import DataError, WeightsError
from vitral.model.cifar_resnet import CifarResNet
from vitral.recipes import RECIPES
from vitral.training.config import Teacher
from vitral.training.teacher import find_teacher
from vitral.weights.catalogue import KNOWN, NAMED_WEIGHTS, NamedWeights
from vitral.weights.fetch import fetch_weights
from vitral.weights.pretrained import raw_weights_of

CONTENT = b"".join(hashlib.sha256(bytes([number // 256, number % 256])).digest() for number in range(32_000))  # 1 MB
OTHER = CONTENT[::-1]  # as long, and different everywhere


@dataclass
class Server:
    """What it serves and how it behaves; and what it was asked for."""

    content: bytes = CONTENT
    version: str = '"one"'  # its ETag
    modified: str = ""  # its Last-Modified
    breaks_after: list[int] = field(default_factory=list)  # bytes, a number for each of the next connections
    answers: list[int] = field(default_factory=list)  # status codes of the next ones; 0: closes without a word
    knows_range: bool = True
    knows_if_range: bool = True
    sends_length: bool = True
    gate: threading.Event = field(default_factory=threading.Event)  # opened: it may go past `gate_at`
    gate_at: int = -1
    asked: list[str] = field(default_factory=list)  # the Range of each request, "" for all
    served: int = 0  # bytes
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        state, wanted = self.state, self.headers.get("Range") or ""
        state.asked.append(wanted)
        self.close_connection = True
        answer = state.answers.pop(0) if state.answers else 200
        if answer == 0:
            return
        if answer in (301, 302):
            self.send_response(answer)
            self.send_header("Location", "/moved.bin" if answer == 301 else "file:///etc/passwd")
            self.end_headers()
            return
        if answer != 200:
            self.send_error(answer)
            return
        if_range = self.headers.get("If-Range")
        current = not if_range or not state.knows_if_range or if_range == (state.version or state.modified)
        start = int(wanted[6:-1]) if wanted and state.knows_range and current else 0
        if start >= len(state.content):
            self.send_error(416)
            return
        # Before a word is sent: who has read the headers may be back for more while this thread still waits.
        stop = start + state.breaks_after.pop(0) if state.breaks_after else len(state.content)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
        if state.version:
            self.send_header("ETag", state.version)
        if state.modified:
            self.send_header("Last-Modified", state.modified)
        if state.sends_length:
            self.send_header("Content-Length", str(len(state.content) - start))
        self.end_headers()
        self.send(state.content[start:stop])

    def send(self, content: bytes) -> None:
        state = self.state
        before = state.gate_at if 0 <= state.gate_at < len(content) else len(content)
        try:
            for some in (content[:before], content[before:]):
                state.served += len(some)  # first: the one who fetches may be done before this thread goes on
                self.wfile.write(some)
                if some is not content[before:] and before < len(content):
                    state.gate.wait(60)
        except OSError:  # the one who asked is gone
            pass


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
    state.url = f"http://127.0.0.1:{http.server_address[1]}/file.bin"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    state.gate.set()
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have waited between tries: the clock is not ours. And no proxy stands before 127.0.0.1."""
    seconds: list[float] = []
    monkeypatch.setattr("vitral.data.fetch.sleep", seconds.append)
    monkeypatch.setenv("no_proxy", "*")
    return seconds


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def one_file(server: Server, digest: str | None = None, members: tuple[str, ...] = ()) -> NamedSet:
    """A set of one file, as the server has it now."""
    published = sha256(server.content) if digest is None else digest
    path = "tiny.tar.gz" if members else "tiny/file.bin"
    file = RemoteFile(server.url, path, len(server.content), published, members)
    return NamedSet("tiny", "a test", 2, 2, "none", "nobody", "official", (file,))


def files(directory: Path) -> set[str]:
    """All there is, but for the lock."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} - {".tiny.lock"}


def test_a_file_comes_once_and_is_checked(server: Server, tmp_path: Path) -> None:
    wanted = one_file(server)
    seen: list[int] = []
    fetched = fetch(wanted, tmp_path / "new" / "data", progress=lambda _, here: seen.append(here))
    assert [each.sha256 for each in fetched] == [sha256(CONTENT)]
    assert (tmp_path / "new/data/tiny/file.bin").read_bytes() == CONTENT
    assert files(tmp_path / "new/data") == {"tiny/file.bin"}
    assert seen[0] == 0 and seen[-1] == len(CONTENT) and seen == sorted(seen)
    assert fetch(wanted, tmp_path / "new" / "data") == () and len(server.asked) == 1


def test_only_the_missing_files_are_fetched(server: Server, tmp_path: Path) -> None:
    first = one_file(server).files[0]
    second = RemoteFile(first.url, "tiny/second.bin", first.size, first.sha256)
    wanted = NamedSet("tiny", "a test", 2, 2, "none", "nobody", "official", (first, second))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/file.bin").write_bytes(b"mine")
    assert [each.file for each in fetch(wanted, tmp_path)] == [second]
    assert (tmp_path / "tiny/file.bin").read_bytes() == b"mine"


def test_a_connection_that_breaks_off_again_and_again_is_gone_on_with(
    server: Server, tmp_path: Path, waited: list[float]
) -> None:
    server.breaks_after = [100_000, 1, 300_000, 7, 5_000, 250_000]  # more often than it would try in vain
    told: list[str] = []
    fetch(one_file(server), tmp_path, tell=told.append)
    assert (tmp_path / "tiny/file.bin").read_bytes() == CONTENT
    starts = [0, 100_000, 100_001, 400_001, 400_008, 405_008, 655_008]
    assert server.asked == [f"bytes={start}-" if start else "" for start in starts]
    assert server.served == len(CONTENT)  # not one byte twice
    assert waited == [WAITS[0]] * 6 and "100,000 of 1,024,000 bytes are here" in told[0]


def test_a_server_that_ignores_range_is_read_from_the_start(server: Server, tmp_path: Path) -> None:
    server.knows_range, server.breaks_after = False, [600_000, 700_000]
    fetch(one_file(server), tmp_path)
    assert (tmp_path / "tiny/file.bin").read_bytes() == CONTENT
    assert server.served == 600_000 + 700_000 + len(CONTENT)


def test_a_server_that_ignores_range_and_never_gets_further_is_given_up(
    server: Server, tmp_path: Path, waited: list[float]
) -> None:
    server.knows_range, server.breaks_after = False, [1_000] * 20
    with pytest.raises(
        DataError, match="tiny could not be fetched.*1,000 of 1,024,000 bytes are kept. Run `vitral fetch"
    ):
        fetch(one_file(server), tmp_path)
    assert waited == list(WAITS)


@pytest.mark.parametrize("knows_if_range", [True, False])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (('"one"', ""), ('"two"', "")),
        (("", "Mon, 01 Jan 2024 00:00:00 GMT"), ("", "Tue, 02 Jan 2024 00:00:00 GMT")),
        (('W/"x"', "Mon, 01 Jan 2024 00:00:00 GMT"), ('W/"x"', "Tue, 02 Jan 2024 00:00:00 GMT")),
    ],
    ids=["etag", "date", "weak etag"],
)
def test_two_versions_are_never_joined(
    server: Server, tmp_path: Path, old: tuple[str, str], new: tuple[str, str], knows_if_range: bool
) -> None:
    server.version, server.modified = old
    server.answers = [200] + [0] * len(WAITS)
    server.breaks_after = [500_000]
    with pytest.raises(DataError, match="500,000 of 1,024,000 bytes are kept"):
        fetch(one_file(server), tmp_path)
    server.content, server.asked = OTHER, []
    server.version, server.modified = new
    server.knows_if_range = knows_if_range and not old[0].startswith("W/")
    fetch(one_file(server, digest=""), tmp_path)  # no digest: nothing else would notice
    assert (tmp_path / "tiny/file.bin").read_bytes() == OTHER
    assert server.asked == (["bytes=500000-"] if server.knows_if_range else ["bytes=500000-", ""])


def test_without_a_version_and_without_a_digest_nothing_is_joined(server: Server, tmp_path: Path) -> None:
    server.version, server.breaks_after = "", [500_000]
    fetch(one_file(server, digest=""), tmp_path)
    assert server.asked == ["", ""] and (tmp_path / "tiny/file.bin").read_bytes() == CONTENT


def test_without_a_version_the_digest_notices_what_was_joined(server: Server, tmp_path: Path) -> None:
    wanted = one_file(server)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/file.bin.part").write_bytes(OTHER[:500_000])
    with pytest.raises(DataError, match="not the bytes that were meant. It was thrown away"):
        fetch(wanted, tmp_path)
    assert server.asked == ["bytes=500000-"] and files(tmp_path) == set()
    fetch(wanted, tmp_path)
    assert (tmp_path / "tiny/file.bin").read_bytes() == CONTENT


def test_wrong_bytes_are_thrown_away_and_told(server: Server, tmp_path: Path) -> None:
    wanted = one_file(server)
    server.content = OTHER
    with pytest.raises(DataError, match=f"has the sha256 {sha256(OTHER)}, and {sha256(CONTENT)} is published"):
        fetch(wanted, tmp_path)
    assert files(tmp_path) == set() and locate(wanted, tmp_path) is None


def test_another_length_is_told_before_anything_is_stored(server: Server, tmp_path: Path) -> None:
    wanted = one_file(server)
    server.content = b"<html>Please log in to the network of this hotel</html>"
    with pytest.raises(DataError, match="offers 55 bytes, and the published file has 1,024,000"):
        fetch(wanted, tmp_path)
    assert files(tmp_path) == set()


def test_a_server_that_does_not_say_the_length(server: Server, tmp_path: Path) -> None:
    wanted = one_file(server)
    server.sends_length, server.breaks_after = False, [400_000]
    fetch(wanted, tmp_path)
    assert (tmp_path / "tiny/file.bin").read_bytes() == CONTENT and server.served == len(CONTENT)


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more", b""], ids=["whole", "too long", "empty"])
def test_a_part_of_any_length_is_made_use_of(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/file.bin.part").write_bytes(part)
    fetch(one_file(server), tmp_path)
    assert (tmp_path / "tiny/file.bin").read_bytes() == CONTENT and files(tmp_path) == {"tiny/file.bin"}
    assert server.asked == ([] if part == CONTENT else [""])


def test_a_part_longer_than_what_the_server_has_now(server: Server, tmp_path: Path) -> None:
    wanted = one_file(server)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/file.bin.part").write_bytes(CONTENT[:500_000])
    server.content = CONTENT[:1_000]
    with pytest.raises(DataError, match="offers 1,000 bytes"):
        fetch(wanted, tmp_path)
    assert server.asked == ["bytes=500000-", ""]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([404], r"http://127.0.0.1:\d+/file.bin is not there \(404\)"),
        ([410], r"is not there \(410\)"),
        ([403], r"127.0.0.1:\d+ refuses .*\(403 Forbidden\)"),
        ([302], "refuses .*Redirection to url 'file:///etc/passwd' is not allowed"),
        ([503] * 9, r"is busy \(503 Service Unavailable\). Run `vitral fetch tiny` again to go on"),
        ([0] * 9, "broke the connection off .*Remote end closed connection"),
    ],
)
def test_a_server_that_does_not_give_it_is_told(server: Server, tmp_path: Path, answers: list[int], why: str) -> None:
    wanted = one_file(server)
    server.answers = answers
    with pytest.raises(DataError, match=why):
        fetch(wanted, tmp_path)
    assert files(tmp_path) == set()


def test_a_server_that_is_busy_hangs_up_or_points_elsewhere_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.answers = [503, 0, 429, 301]
    fetch(one_file(server), tmp_path)
    assert len(server.asked) == 5 and (tmp_path / "tiny/file.bin").read_bytes() == CONTENT


def test_no_network_and_no_such_address_are_told(tmp_path: Path) -> None:
    def told(url: str) -> str:
        file = RemoteFile(url, "tiny/file.bin", 5)
        with pytest.raises(DataError) as error:
            fetch(NamedSet("tiny", "a test", 2, 2, "none", "nobody", "official", (file,)), tmp_path)
        return str(error.value)

    assert "127.0.0.1:9 cannot be reached (Connection refused). Is there a network?" in told("http://127.0.0.1:9/x")
    assert "an address starts with https:// or http://" in told("file:///etc/passwd")
    with pytest.raises(DataError, match="no address to fetch it from. Put it there as a folder"):
        fetch(NAMED["imagenette-mini"], tmp_path)


# The same in a process of its own, which prints what it is told.
CHILD = """
import sys
from pathlib import Path
from vitral.data.fetch import fetch
from vitral.data.sources.named import NamedSet, RemoteFile
url, size, digest, directory = sys.argv[1:]
file = RemoteFile(url, "tiny/file.bin", int(size), digest)
wanted = NamedSet("tiny", "a test", 2, 2, "none", "nobody", "official", (file,))
print(len(fetch(wanted, Path(directory), tell=lambda told: print(told, flush=True))), flush=True)
"""


def child(server: Server, directory: Path, before: str = "") -> "subprocess.Popen[str]":
    arguments = [server.url, str(len(CONTENT)), sha256(CONTENT), str(directory)]
    return subprocess.Popen(
        [sys.executable, "-c", before + CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come true within a minute")


def test_killed_in_the_middle_it_goes_on_from_there(server: Server, tmp_path: Path) -> None:
    server.gate_at = 400_000
    part = tmp_path / "tiny/file.bin.part"
    with child(server, tmp_path) as running:
        wait_until(lambda: part.exists() and part.stat().st_size == 400_000)
        running.send_signal(signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    server.gate.set()
    fetch(one_file(server), tmp_path)  # the lock of the dead does not hold
    assert server.asked == ["", "bytes=400000-"] and (tmp_path / "tiny/file.bin").read_bytes() == CONTENT
    assert files(tmp_path) == {"tiny/file.bin"}


def test_of_two_processes_one_fetches_and_the_other_waits(server: Server, tmp_path: Path) -> None:
    server.gate_at = 400_000
    with child(server, tmp_path) as first:
        wait_until(lambda: len(server.asked) == 1)
        with child(server, tmp_path) as second:
            assert second.stdout and "Another process is fetching it" in second.stdout.readline()
            server.gate.set()
            assert (first.communicate()[0], second.communicate()[0]) == ("1\n", "0\n")
    assert (first.returncode, second.returncode) == (0, 0)
    assert server.asked == [""] and (tmp_path / "tiny/file.bin").read_bytes() == CONTENT


def test_a_disk_that_takes_no_more_is_told_and_the_part_kept(server: Server, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    with child(server, tmp_path, before=limit) as running:
        assert "cannot be written (File too large). Choose another" in running.communicate()[1]
    fetch(one_file(server), tmp_path)
    assert server.asked == ["", "bytes=300000-"] and (tmp_path / "tiny/file.bin").read_bytes() == CONTENT


def test_a_place_that_cannot_be_written_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written .*Choose another data directory with VITRAL_DATA"):
        fetch(one_file(server), tmp_path / "file" / "data")


MEMBERS = ("tiny-bin/a.bin", "tiny-bin/names.txt")


def tar(*entries: tuple[str, bytes | None]) -> bytes:
    """A tar.gz; an entry without content is a link to /etc/passwd."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            entry.size = len(content or b"")
            made.addfile(entry, io.BytesIO(content or b""))
    return out.getvalue()


GOOD = tar(
    ("tiny-bin/readme.html", b"<html>"),
    ("../evil", b"x"),
    ("/tmp/evil", b"x"),
    ("tiny-bin/a.bin", CONTENT),
    ("tiny-bin/names.txt", b"cat"),
    ("tiny-bin/link", None),
)


def test_of_a_tar_only_the_known_files_are_taken_out(server: Server, tmp_path: Path) -> None:
    server.content = GOOD
    wanted = one_file(server, members=MEMBERS)
    assert [each.sha256 for each in fetch(wanted, tmp_path / "data")] == [sha256(GOOD)]
    assert files(tmp_path / "data") == set(MEMBERS) and not (tmp_path / "evil").exists()
    assert (tmp_path / "data/tiny-bin/a.bin").read_bytes() == CONTENT
    found = locate(wanted, tmp_path / "data")
    assert found and found.path == tmp_path / "data/tiny-bin"


def test_a_tar_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    server.content = GOOD
    wanted = one_file(server, members=MEMBERS)
    (tmp_path / "tiny-bin").mkdir()
    (tmp_path / "tiny-bin/a.bin").write_bytes(b"mine")
    (tmp_path / "tiny.tar.gz").write_bytes(OTHER)
    with pytest.raises(DataError, match="not the bytes that were meant. Delete it"):
        fetch(wanted, tmp_path)
    (tmp_path / "tiny.tar.gz").write_bytes(GOOD)  # as if we had been stopped while unpacking
    fetch(wanted, tmp_path)
    assert server.asked == [] and files(tmp_path) == set(MEMBERS)
    assert (tmp_path / "tiny-bin/a.bin").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (tar((MEMBERS[0], CONTENT)), "does not contain tiny-bin/names.txt"),
        (tar((MEMBERS[0], None), (MEMBERS[1], b"cat")), "does not contain tiny-bin/a.bin"),  # a link is no file
        (GOOD[:500_000], "cannot be unpacked"),
        (b"no tar at all", "cannot be unpacked"),
    ],
    ids=["lacks a file", "link", "cut off", "no tar"],
)
def test_a_tar_that_is_not_as_it_should_be_is_told_and_removed(
    server: Server, tmp_path: Path, content: bytes, why: str
) -> None:
    server.content = content
    with pytest.raises(DataError, match=why):
        fetch(one_file(server, members=MEMBERS), tmp_path)
    assert not {"tiny.tar.gz", "tiny-bin/a.bin.part"} & files(tmp_path)


def test_a_full_disk_is_told_and_the_tar_kept(server: Server, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    server.content = GOOD
    wanted = one_file(server, members=MEMBERS)
    (tmp_path / "tiny-bin").mkdir()
    (tmp_path / "tiny-bin/a.bin.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match="The disk is full: tiny did not fit into .* `vitral fetch tiny` goes on"):
        fetch(wanted, tmp_path)
    assert files(tmp_path) == {"tiny.tar.gz"}
    fetch(wanted, tmp_path)
    assert files(tmp_path) == set(MEMBERS) and len(server.asked) == 1


def test_where_no_size_is_published_the_server_is_asked(server: Server, tmp_path: Path, waited: list[float]) -> None:
    wanted = one_file(server)
    wanted = replace(wanted, files=(replace(wanted.files[0], size=0),))
    server.answers = [503]
    server.breaks_after = [0, 400_000]  # the first connection asks for the length alone
    fetch(wanted, tmp_path)
    assert (tmp_path / "tiny/file.bin").read_bytes() == CONTENT and server.asked[-2:] == ["", "bytes=400000-"]
    server.sends_length = False
    with pytest.raises(DataError, match="does not say how long it is"):
        fetch(wanted, tmp_path / "other")


# ---- named weights


def served(server: Server, content: bytes, path: str, digest: str | None = None) -> NamedWeights:
    """Weights as the server has them, in place of those that the whole world has."""
    server.content = content
    known = sha256(content) if digest is None else digest
    file = RemoteFile(server.url, f"weights/tiny_net/{path}", 0, known)
    about = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
    return NamedWeights("tiny_net", "a test", 123, "BSD-2-Clause", "nobody", file, about)


def quietly(weights: NamedWeights, directory: Path) -> tuple[Fetched, ...]:
    return fetch_weights(weights, directory, progress=lambda *_: None, tell=lambda _: None)


def test_weights_are_fetched_resumed_checked_and_loaded_by_their_name(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path))
    content = (FIXTURES / "timm_vit" / "model.safetensors").read_bytes()
    weights = served(server, content, "model.safetensors")
    monkeypatch.setitem(NAMED_WEIGHTS, "tiny_net", weights)
    with pytest.raises(WeightsError, match="tiny_net are not in the data directory .* vitral fetch tiny_net"):
        raw_weights_of("tiny_net")
    server.breaks_after = [0, 10_000]
    assert [one.sha256 for one in quietly(weights, tmp_path)] == [sha256(content)]
    assert server.asked[-1] == "bytes=10000-"
    loaded = raw_weights_of("tiny_net")
    assert loaded.about["licence"] == "BSD-2-Clause" and loaded.about["mean"] == [0.5] * 3
    asked = len(server.asked)
    assert quietly(weights, tmp_path) == () and len(server.asked) == asked
    wrong = replace(served(server, OTHER, "model.safetensors", sha256(content)), name="wrong")
    with pytest.raises(DataError, match="not the bytes that were meant. It was thrown away"):
        quietly(wrong, tmp_path / "other")


def test_a_pickle_of_weights_becomes_safetensors_if_it_is_the_published_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the teacher is published: a table beside a score, every name behind `module.`; and it teaches."""
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path))
    model, out = CifarResNet(1, 10, (0.5,) * 3, (0.25,) * 3), io.BytesIO()
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "best_prec1": torch.tensor(93.4)}, out)
    weights = served(server, out.getvalue(), "model.th")
    monkeypatch.setitem(NAMED_WEIGHTS, "tiny_net", weights)
    folder = tmp_path / "weights" / "tiny_net"
    folder.mkdir(parents=True)
    (folder / "model.th").write_bytes(OTHER)  # put there by somebody
    with pytest.raises(DataError, match="not the bytes that were meant. Delete it"):
        quietly(weights, tmp_path)
    assert not (folder / "model.safetensors").exists()
    (folder / "model.th").unlink()
    main(["fetch", "tiny_net"])
    told = capfd.readouterr().out
    assert "(as published)" in told and "of which the tensors alone were read" in told and f"{folder}\n" in told
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "about.json"}
    teacher = find_teacher(Teacher(source="tiny_net"), tuple("abcdefghij"), {})
    assert teacher is not None and teacher.teach is not None
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(teacher.teach(images), model.eval()(images), rtol=0, atol=1e-4)
    main(["fetch", "tiny_net"])
    assert f"{folder} (already)" in capfd.readouterr().out
    unknown = replace(weights, name="unknown", file=replace(weights.file, sha256=""))
    with pytest.raises(DataError, match="is a pickle, and no sha256 is published by which to know it"):
        quietly(unknown, tmp_path)


def test_of_two_who_want_a_pickle_one_fetches_and_converts_it_and_the_other_waits(
    server: Server, tmp_path: Path
) -> None:
    """What they do not tell of themselves is there before they are: nobody finds the one without the other."""
    out, folder, seen = io.BytesIO(), tmp_path / "weights" / "tiny_net", list[bool]()
    torch.save({"weight": torch.ones(3)}, out)
    weights = served(server, out.getvalue(), "model.th")
    server.gate_at = 10

    def ask(_: int) -> tuple[Fetched, ...]:
        return fetch_weights(
            weights,
            tmp_path,
            progress=lambda *_: seen.append((folder / "about.json").is_file()),
            tell=lambda _: server.gate.set(),  # "Another process is fetching it"
        )

    with ThreadPoolExecutor(2) as pool:
        assert sorted(len(fetched) for fetched in pool.map(ask, range(2))) == [0, 1]
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "about.json"} and seen and all(seen)


def test_of_weights_that_cannot_be_reached_what_is_kept_is_told(
    server: Server, tmp_path: Path, waited: list[float]
) -> None:
    weights = served(server, CONTENT, "model.safetensors")
    part = tmp_path / "weights" / "tiny_net" / "model.safetensors.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:1000])
    server.answers = [503] * (len(WAITS) + 1)
    with pytest.raises(DataError, match=r"tiny_net could not be fetched.* 1,000 bytes are kept\. Run `vitral fetch"):
        quietly(weights, tmp_path)


def test_the_table_of_named_weights_is_sound() -> None:
    for name, each in NAMED_WEIGHTS.items():
        assert name == each.name and name not in NAMED and each.what and each.licence and each.cite
        assert each.file.url.startswith("https://") and len(each.file.sha256) == 64
        assert each.file.path.startswith(f"weights/{name}/model.")
    hub = {one.where for one in KNOWN}
    assert {each.hub for each in NAMED_WEIGHTS.values() if each.hub} <= hub
    needed = {name for recipe in RECIPES.values() for name in (recipe.init.weights, recipe.teacher.source)}
    assert {name for name in needed if not name.startswith("hf:")} - {"none", "ask"} == NAMED_WEIGHTS.keys()
    assert {name for name in needed if name.startswith("hf:")} <= hub


def test_a_recipe_says_what_it_needs(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("cifar10-deit", "cifar10-distilled"):
        main(["show", name])
        assert capfd.readouterr().out.startswith("# Needs: vitral fetch cifar10 cifar10_resnet56\n")
    main(["show", "food-features"])
    assert capfd.readouterr().out.startswith("# Needs: vitral fetch food vit_tiny_patch16_224\n")
    main(["ls"])
    assert "cannot be fetched" in capfd.readouterr().out


def test_the_command_lists_fetches_and_tells(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path))
    main(["fetch"])
    listed = capfd.readouterr().out
    assert all(name in listed for name in (*NAMED, *NAMED_WEIGHTS)) and str(tmp_path) in listed

    monkeypatch.setitem(NAMED, "tiny", one_file(server))
    monkeypatch.setitem(NAMED, "unsigned", replace(one_file(server, digest=""), name="unsigned", kind="archive"))
    server.breaks_after = [1_000]
    main(["fetch", "tiny", "digits"])
    told = capfd.readouterr()
    assert f"sha256   {sha256(CONTENT)}  file.bin (as published)" in told.out and f"{tmp_path}/tiny\n" in told.out
    assert "1.0 MB" in told.out and "licence  none" in told.out and "cite     nobody" in told.out
    assert "1,000 of 1,024,000 bytes are here" in told.err and "nothing to fetch" in told.out
    main(["fetch", "tiny"])
    assert f"{tmp_path}/tiny (already)" in capfd.readouterr().out
    (tmp_path / "tiny/file.bin").unlink()
    main(["fetch", "unsigned"])
    assert "there is no published one to compare it with" in capfd.readouterr().out

    with pytest.raises(SystemExit) as ended:
        main(["fetch", "mnits", "tiny"])
    assert ended.value.code == 2 and "Did you mean mnist?" in capfd.readouterr().err
