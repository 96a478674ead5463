"""Bytes of shards from anywhere: the same to the bit whatever the server does, and a cache that keeps its bound."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faulty_server import FaultyServer
from vitral.data.stores import BLOCK, FOLDER, Store, is_far, open_store, parse_bound
from vitral.data.stores.blocks import HEAD, TABLE, DiskBlocks
from vitral.data.stores.cache import Cache
from vitral.data.stores.far import Far
from vitral.data.stores.http import Web
from vitral.data.stores.patience import Patience, Retries
from vitral.errors import DataError, RecipeError

QUICK = Patience(tries=6, first=0.002, longest=0.02, silence=20.0)


@dataclass(frozen=True)
class File:
    """A shard, as an index knows it."""

    name: str
    size: int
    sha256: str


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


CONTENT = noise(5 * BLOCK + 12_345)


def shard(content: bytes = CONTENT, name: str = "a.tar") -> File:
    return File(name, len(content), sha256(content).hexdigest())


def places(count: int, size: int = len(CONTENT), seed: int = 1) -> list[tuple[int, int]]:
    """(start, size) as pictures have them."""
    chance = random.Random(seed)
    starts = [chance.randrange(size) for _ in range(count)]
    return [(start, min(chance.randrange(1, 150_000), size - start)) for start in starts]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    for name in ("http_proxy", "VITRAL_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """A store of a server; closed before the server is."""
    with ExitStack() as stack:

        def open_it(server: FaultyServer, most: int = 64 * BLOCK, patience: Patience = QUICK, **given: Any) -> Store:
            retries = Retries(patience, given.pop("tell", lambda sentence: None))
            store = Far(Web(server.url, retries), Cache(tmp_path / FOLDER, most, **given), retries)
            stack.callback(store.close)
            return store

        yield open_it


FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "breaks off every third answer": {"break_every": 3},
    "stalls in every fourth answer": {"stall_every": 4},
    "gives less than was asked for": {"truncate_every": 2},
    "is busy": {"busy_every": 3},
    "gives other bytes": {"swap_every": 4},
    "closes without a word, and fails": {"answers": [0, 500, 0, 502, 408]},
    "all of it": {"break_every": 5, "truncate_every": 3, "busy_every": 7, "swap_every": 11, "stall_every": 13},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bytes_are_the_same_whatever_the_server_does(fault: str, opened: Callable[..., Store]) -> None:
    patience = replace(QUICK, silence=0.2)  # a stall of 5 s is not waited for
    with FaultyServer({"a.tar": CONTENT}, **FAULTS[fault]) as server:
        store, file = opened(server, patience=patience, most=4 * BLOCK), shard()
        for start, size in places(40):
            crc = zlib.crc32(CONTENT[start : start + size])
            assert store.read(file, start, size, crc) == CONTENT[start : start + size]
        if "swap_every" not in FAULTS[fault]:  # there only a crc can tell
            assert b"".join(store.chunks("a.tar")) == CONTENT == store.whole("a.tar", len(CONTENT))
        store.close()


def test_a_stall_shorter_than_patience_is_waited_for(opened: Callable[..., Store]) -> None:
    with FaultyServer({"a.tar": CONTENT}, stall_every=2, stall=0.3) as server:
        store = opened(server)
        assert b"".join(store.chunks("a.tar")) == CONTENT
        assert len(server.requests) == 2  # its size, and all of it


def test_what_broke_off_goes_on_where_it_was(opened: Callable[..., Store]) -> None:
    with FaultyServer({"a.tar": CONTENT}, break_every=2) as server:
        assert b"".join(opened(server).chunks("a.tar")) == CONTENT
        asked = [int(wanted.partition("=")[2].partition("-")[0]) for _, wanted in server.requests[1:]]
        assert asked[0] == 0 and asked == sorted(set(asked))
        assert server.served < len(CONTENT) + BLOCK


def test_a_block_is_fetched_once_and_connections_are_kept(opened: Callable[..., Store]) -> None:
    with FaultyServer({"a.tar": CONTENT}) as server:
        store, file = opened(server), shard()
        with ThreadPoolExecutor(8) as pool:
            read = pool.map(lambda place: store.read(file, *place), places(300))
            assert list(read) == [CONTENT[start : start + size] for start, size in places(300)]
        assert len(server.requests) == 6 and server.served == len(CONTENT)
        assert server.connections <= 6
        again = opened(server)  # another process, tomorrow
        assert again.read(file, 0, len(CONTENT)) == CONTENT
        assert len(server.requests) == 6
        mirrored = replace(file, name="elsewhere/b.tar")  # its blocks are known by what they are
        assert again.read(mirrored, 7, 100) == CONTENT[7:107] and len(server.requests) == 6


def test_the_same_is_waited_whatever_the_machine_and_not_by_all_at_once() -> None:
    patience = Patience()
    waits = [patience.seconds("http://here/a.tar 0", tries) for tries in range(12)]
    assert waits == [patience.seconds("http://here/a.tar 0", tries) for tries in range(12)]
    for tries, seconds in enumerate(waits):
        most = min(30.0, 0.5 * 2**tries)
        assert most / 2 <= seconds < most
    others = {patience.seconds(f"http://here/a.tar {place}", 0) for place in range(100)}
    assert len(others) == 100 and max(others) - min(others) > 0.2
    assert 120 < sum(waits) < 240


@pytest.mark.parametrize(("retry_after", "least"), [("3", 3.0), ("Thu, 01 Jan 2026 00:00:20 GMT", 20.0), ("", 0.0)])
def test_a_busy_server_is_asked_when_it_wants_to_be(retry_after: str, least: float, tmp_path: Path) -> None:
    waited: list[float] = []

    class Recorded(Retries):  # the clock is not ours
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    with FaultyServer({"a.tar": CONTENT}, answers=[429, 503], retry_after=retry_after) as server:
        server.headers["Date"] = "Thu, 01 Jan 2026 00:00:00 GMT"
        retries = Recorded(QUICK)
        store = Far(Web(server.url, retries), Cache(tmp_path, 0), retries)
        assert store.read(shard(), 5, 5) == CONTENT[5:10]
        assert sum(seconds >= 0.99 * least for seconds in waited) >= 2 and max(waited) <= max(1.01 * least, 0.02)
        server.answers, server.retry_after = [503], "86400"
        with pytest.raises(DataError, match=r"is busy \(503 Service Unavailable\)\. It asks to come back in 1,440 min"):
            store.read(shard(), BLOCK, 5)
        store.close()


def test_patience_ends_with_a_sentence_and_begins_anew_with_every_byte(opened: Callable[..., Store]) -> None:
    told: list[str] = []
    with FaultyServer({"a.tar": CONTENT}) as server:
        store = opened(server, tell=told.append)
        server.answers = [0] * 7
        with pytest.raises(
            DataError, match=r"a\.tar cannot be read: 127\.0\.0\.1 cannot be reached, or broke .* 7 times"
        ):
            store.read(shard(), 0, 10)
        assert len(told) == 1 and "It is tried again" in told[0]
        server.truncate_every = 1  # a third of what is wanted each time: many answers, no failure
        assert store.read(shard(), 0, 10) == CONTENT[:10]
    with pytest.raises(DataError, match="cannot be reached"):
        store.read(shard(), BLOCK, 10)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"files": {}}, r"/a\.tar is not there \(404\): it has moved, or is gone\."),
    "not for us": ({"answers": [403]}, r"/a\.tar is refused by the server \(403 Forbidden\)\."),
    "whole": ({"knows_ranges": False}, r"is not given in parts: the server answers a Range request with all .* nginx"),
    "longer": ({"files": {"a.tar": CONTENT + b"!"}}, rf"has {len(CONTENT) + 1:,} bytes, and {len(CONTENT):,} were exp"),
    "shorter": ({"files": {"a.tar": CONTENT[:9]}}, rf"has 9 bytes, and {len(CONTENT):,} were expected: it has changed"),
    "empty": ({"files": {"a.tar": b""}}, rf"has 0 bytes, and {len(CONTENT):,} were expected"),
    "other bytes": ({"swap_every": 1}, r"has other bytes than its index was made of, 30 from byte 2,000,000 on"),
    "compressed": ({"headers": {"Content-Encoding": "gzip"}}, r"comes as gzip, which was not asked for"),
    "another part": (
        {"headers": {"Content-Range": "bytes 0-29/50"}},
        r"were asked for, and the server gave bytes 0-29",
    ),
    "no part": ({"headers": {"Content-Range": "bytes x"}}, r"the server gave bytes x\."),
    "to a file": (
        {"redirects": {"a.tar": "file:///etc/passwd"}},
        r"leads to file:///etc/passwd, which is not followed",
    ),
    "to no address": ({"redirects": {"a.tar": "http://[x/a.tar"}}, "leads to something that is not an address"),
    "to no name": ({"redirects": {"a.tar": f"http://{'a' * 70}.org/a.tar"}}, "is not an address"),
    "in circles": ({"redirects": {"a.tar": "/b.tar", "b.tar": "/a.tar"}}, r"from one address to another, more than 5"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_is_named(why: str, opened: Callable[..., Store]) -> None:
    given, sentence = REFUSED[why]
    with FaultyServer(**{"files": {"a.tar": CONTENT}, **given}) as server:
        start = 2_000_000
        with pytest.raises(DataError, match=sentence):
            opened(server).read(shard(), start, 30, zlib.crc32(CONTENT[start : start + 30]))
        assert len(server.requests) <= 7


def test_a_redirect_is_followed_remembered_and_left_when_it_has_gone(opened: Callable[..., Store]) -> None:
    with FaultyServer({"c.tar": CONTENT}, redirects={"a.tar": "/b.tar?signed=1", "b.tar": "c.tar"}) as server:
        store, file = opened(server), shard()
        assert store.read(file, 0, 10) == CONTENT[:10]
        assert [path for path, _ in server.requests] == ["a.tar", "b.tar", "c.tar"]
        assert store.read(file, BLOCK, 10) == CONTENT[BLOCK : BLOCK + 10]
        assert [path for path, _ in server.requests[3:]] == ["c.tar"]
        server.files, server.redirects = {"d.tar": CONTENT}, {"a.tar": "/d.tar"}  # the signature is too old
        assert store.read(file, 2 * BLOCK, 10) == CONTENT[2 * BLOCK : 2 * BLOCK + 10]
        assert [path for path, _ in server.requests[4:]] == ["c.tar", "a.tar", "d.tar"]


def test_a_file_that_is_replaced_while_it_is_read_is_never_joined(opened: Callable[..., Store]) -> None:
    other = CONTENT[::-1]
    with FaultyServer({"a.tar": CONTENT}, break_every=1) as server:
        store = opened(server)
        chunks = store.chunks("a.tar")
        next(chunks)
        server.files, server.version = {"a.tar": other}, '"two"'
        with pytest.raises(DataError, match=r"a\.tar changes while it is read\. Wait until it is whole there"):
            list(chunks)
        assert store.look("a.tar") == (len(other), '"two"')
        # What was kept of the old one is still what its index says; what was not kept is not what it says.
        server.break_every = 0
        assert store.whole("a.tar", len(other)) == other


def test_what_is_kept_and_wrong_is_fetched_again(opened: Callable[..., Store], tmp_path: Path) -> None:
    with FaultyServer({"a.tar": CONTENT}) as server:
        store, file = opened(server), shard()
        assert store.read(file, 0, len(CONTENT)) == CONTENT
        data = tmp_path / FOLDER / "blocks.bin"
        with data.open("r+b") as damaged:
            damaged.seek(3 * BLOCK + 70_000)
            damaged.write(b"damage")
        before = len(server.requests)
        assert store.read(file, 0, len(CONTENT)) == CONTENT
        assert len(server.requests) == before + 1
        server.swap_every = before + 2  # the next answer: kept with good checksums, but not what it should be
        (tmp_path / FOLDER / "blocks.table").write_bytes(b"")
        again = opened(server)
        crc = zlib.crc32(CONTENT[:500])
        assert again.read(file, 0, 500, crc) == CONTENT[:500]
        assert len(server.requests) == before + 3
        assert again.read(file, 0, 500, crc) == CONTENT[:500]
        assert len(server.requests) == before + 3


@pytest.mark.parametrize("name", ["../a.tar", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\\..\\b", "a\nb", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, opened: Callable[..., Store], tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    with FaultyServer({}) as server:
        for store in (opened(server), open_store(str(tmp_path / "inside"), tmp_path)):
            with pytest.raises(DataError, match="is no name of a file in .*: it lies somewhere else"):
                store.read(shard(name=name), 0, 1)
            with pytest.raises(DataError, match="is no name of a file"):
                store.look(name)
            with pytest.raises(DataError, match="is no name of a file"):
                store.whole(name, 9)
            with pytest.raises(DataError, match="is no name of a file"):
                list(store.chunks(name))
        assert server.requests == []


def test_names_become_addresses_and_signatures_are_kept_but_not_told(
    opened: Callable[..., Store], tmp_path: Path
) -> None:
    name = "größe/a b#1?.tar"
    with FaultyServer({f"the set/{name}": CONTENT}) as server:
        store = open_store(f"{server.url}/the set/?token=secret", tmp_path, "none", patience=QUICK)
        assert store.look(name).size == len(CONTENT)
        server.files = {}
        with pytest.raises(DataError) as refused:
            store.whole(name, 10**9)
        assert "secret" not in str(refused.value) and "secret" not in store.address
        store.close()
    for address in ("http://me:password@127.0.0.1/set", "https://me@example.org/"):
        with pytest.raises(DataError, match="name or a password in it") as refused:
            open_store(address, tmp_path)
        assert "me" not in str(refused.value).split()[0] and "password@" not in str(refused.value)
    with pytest.raises(DataError, match="address of the shards cannot be read"):
        open_store("http://[x/set", tmp_path)
    with pytest.raises(DataError, match="has no server"):
        open_store("http:///set", tmp_path)


def test_a_proxy_is_asked_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultyServer({"set/a.tar": CONTENT}) as proxy:
        monkeypatch.delenv("no_proxy")
        monkeypatch.setenv("http_proxy", proxy.url)
        store = open_store("http://example.invalid/set", tmp_path, "none", patience=QUICK)
        assert store.read(shard(), 3, 4) == CONTENT[3:7]
        store.close()
        proxy.permission = "Basic bWU6YSBzZWNyZXQ="  # me:a secret
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:a%20secret@"))
        store = open_store("http://example.invalid/set", tmp_path, "none", patience=QUICK)
        assert store.read(shard(), 3, 4) == CONTENT[3:7]
        store.close()
        monkeypatch.setenv("http_proxy", proxy.url)
        store = open_store("http://example.invalid/set", tmp_path, "none", patience=QUICK)
        with pytest.raises(DataError, match=r"refused by the server \(407"):
            store.read(shard(), 3, 4)
        store.close()


# Near


def test_a_folder_is_a_store(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    (tmp_path / "deeper").mkdir()
    for address in (str(tmp_path), f"file://{tmp_path}"):
        store = open_store(address, tmp_path)
        assert store.is_near and store.room == 0 and store.names() == ["a.tar"]
        assert store.read(shard(), 70, 30, zlib.crc32(CONTENT[70:100])) == CONTENT[70:100]
        assert store.whole("a.tar", len(CONTENT)) == b"".join(store.chunks("a.tar")) == CONTENT
        assert store.look("a.tar").size == len(CONTENT)
        store.expect([(shard(), 0, 10)]).wait()
    with pytest.raises(DataError, match="has other bytes than its index was made of"):
        store.read(shard(), 70, 30, 1)
    with pytest.raises(DataError, match=r"has 5,255,225 bytes, and not 30 from byte 5,255,200 on: its index is wrong"):
        store.read(shard(), len(CONTENT) - 25, 30)
    with pytest.raises(DataError, match="has more than 10 bytes"):
        store.whole("a.tar", 10)
    with pytest.raises(DataError, match=r"b\.tar cannot be read \(No such file"):
        store.look("b.tar")
    (tmp_path / "a.tar").write_bytes(CONTENT[:50])
    with pytest.raises(DataError, match="is cut off: it ends before byte 100"):
        store.read(shard(), 70, 30)


# In other stores


def test_a_store_of_fsspec_gives_the_same(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/set/a.tar", CONTENT)
    try:
        store = open_store("memory://bucket/set", tmp_path, "64MB", patience=QUICK)
        assert not store.is_near and store.names() == ["a.tar"]
        assert store.look("a.tar").size == len(CONTENT)
        with store.expect([(shard(), *place) for place in places(30)]):
            for start, size in places(30):
                crc = zlib.crc32(CONTENT[start : start + size])
                assert store.read(shard(), start, size, crc) == CONTENT[start : start + size]
        assert b"".join(store.chunks("a.tar")) == CONTENT == store.whole("a.tar", 10**9)
        with pytest.raises(DataError, match=r"memory://bucket/set/b\.tar is not there"):
            store.look("b.tar")
        memory.pipe("/bucket/set/a.tar", CONTENT + b"!")
        changed = open_store("memory://bucket/set", tmp_path / "other", "64MB", patience=QUICK)
        with pytest.raises(DataError, match=r"has 5,255,226 bytes, and 5,255,225 were expected"):
            changed.read(shard(), 0, 10)
    finally:
        memory.rm("/bucket", recursive=True)


def test_what_no_store_is_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(DataError, match=r"nothing://set cannot be opened \(Protocol not known: nothing"):
        open_store("nothing://set", tmp_path)
    with pytest.raises(DataError, match="is a chain of stores"):
        open_store("simplecache::memory://set", tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(DataError, match=r"s3://bucket/set needs the extra: pip install 'vitral\[stores\]'\."):
        open_store("s3://bucket/set", tmp_path)


# Ahead


def test_what_is_expected_is_there_before_it_is_wanted(opened: Callable[..., Store]) -> None:
    with FaultyServer({"a.tar": CONTENT}) as server:
        store, file = opened(server), shard()
        ranges = [(file, start, size) for start, size in places(200)]
        store.expect(ranges).wait()
        assert len(server.requests) == 6
        assert [store.read(*place) for place in ranges] == [CONTENT[a : a + n] for _, a, n in ranges]
        assert len(server.requests) == 6
        store.expect(ranges).wait()  # it is there
        assert len(server.requests) == 6


def test_no_more_is_fetched_ahead_than_half_of_the_cache_and_its_threads_end(opened: Callable[..., Store]) -> None:
    many = noise(24 * BLOCK)
    with FaultyServer({"a.tar": many}) as server:
        store, file = opened(server, most=17 * BLOCK), shard(many)
        expected = store.expect((file, number * BLOCK, 10) for number in range(24))
        wait_until(lambda: server.served == 8 * BLOCK)
        time.sleep(0.1)
        assert server.served == 8 * BLOCK  # 16 slots, half of them
        for number in range(24):
            assert store.read(file, number * BLOCK, 10) == many[number * BLOCK : number * BLOCK + 10]
        expected.wait()
        assert len(server.requests) == 24  # each once
        expected = store.expect((file, number * BLOCK, 10) for number in range(24))
        expected.close()
        expected.wait()


def test_what_is_expected_in_vain_is_told_to_the_one_who_reads(opened: Callable[..., Store]) -> None:
    with FaultyServer({}) as server:
        store = opened(server)
        store.expect([(shard(), 0, 10)]).wait()
        with pytest.raises(DataError, match="is not there"):
            store.read(shard(), 0, 10)


def wait_until(true: Callable[[], bool]) -> None:
    """For what other threads do."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


# The cache

SMALL = 1 << 12  # bytes of a block


def key(number: int) -> bytes:
    return blake2b(str(number).encode(), digest_size=16).digest()


def value(number: int) -> bytes:
    return noise(SMALL if number % 5 else 77, seed=number)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["read", "write", "has", "discard", "open"]), st.integers(0, 9)), max_size=60
    ),
    slots=st.integers(0, 6),
)
def test_the_cache_keeps_its_bound_and_those_used_last(
    steps: list[tuple[str, int]], slots: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    row = DiskBlocks(folder, 0, block=SMALL)._row.itemsize
    most = HEAD + slots * (SMALL + row) + 17
    cache = DiskBlocks(folder, most, block=SMALL, reserve=0)
    there: OrderedDict[int, bytes] = OrderedDict()
    for what, number in steps:
        if what == "read":
            assert cache.read(key(number), 3, 50) == (there[number][3:50] if number in there else None)
        elif what == "has":
            assert cache.has(key(number)) == (number in there)
        elif what == "write":
            cache.write(key(number), value(number))
            if number not in there:
                there[number] = value(number)
                while len(there) > slots:
                    there.popitem(last=False)
                continue
        elif what == "discard":
            cache.discard(key(number))
            there.pop(number, None)
        else:
            cache = DiskBlocks(folder, most, block=SMALL, reserve=0)
        if number in there and what in ("read", "has"):
            there.move_to_end(number)
        assert bytes_in(folder) <= most
    assert {number for number in range(10) if cache.has(key(number))} == set(there)


def test_a_block_whose_row_was_damaged_is_kept_anew(tmp_path: Path) -> None:
    cache = DiskBlocks(tmp_path, 10 * SMALL, block=SMALL, reserve=0)
    cache.write(key(1), value(1))
    with (tmp_path / TABLE).open("r+b") as table:
        table.seek(HEAD + len(key(1)) + 5)  # in its checksums
        table.write(b"damage")
    assert cache.read(key(1), 0, 20) is None
    cache.write(key(1), value(1))
    assert cache.read(key(1), 0, 20) == value(1)[:20]


def test_another_bound_counts_for_all_from_then_on(tmp_path: Path) -> None:
    wide = DiskBlocks(tmp_path, 40 * SMALL, block=SMALL, reserve=0)
    for number in range(30):
        wide.write(key(number), value(number))
    narrow = DiskBlocks(tmp_path, 10 * SMALL, block=SMALL, reserve=0)
    assert bytes_in(tmp_path) <= 10 * SMALL
    for number in range(30):
        assert wide.read(key(number), 0, 20) in (None, value(number)[:20])
        wide.write(key(100 + number), value(100 + number))
    assert bytes_in(tmp_path) <= 10 * SMALL
    assert sum(narrow.has(key(number)) for number in range(200)) == narrow.room
    other = DiskBlocks(tmp_path, 10 * SMALL, block=2 * SMALL, reserve=0)  # of another version, say
    assert not any(other.has(key(number)) for number in range(200))


def test_a_disk_without_room_goes_on_in_memory_and_says_so(tmp_path: Path) -> None:
    """The system lets no file grow above 3 MiB."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_stores import *
limit = 3 * BLOCK
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
told = []
with FaultyServer({{"a.tar": CONTENT}}) as server:
    retries = Retries(QUICK, told.append)
    store = Far(Web(server.url, retries), Cache(Path(sys.argv[1]), 64 * BLOCK, tell=told.append), retries)
    for place in places(100):
        assert store.read(shard(), *place) == CONTENT[place[0] : sum(place)]
    store.close()
    print(len(server.requests), *told)
"""
    environment = {**os.environ, "no_proxy": "*"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=environment, check=True
    )
    assert (
        "cannot be kept in" in done.stdout and "File too large" in done.stdout and done.stdout.count("it goes on") == 1
    )
    assert int(done.stdout.split()[0]) <= 12
    unwritable = tmp_path / "a file"
    unwritable.touch()
    told: list[str] = []
    assert Cache(unwritable, 64 * BLOCK, tell=told.append).blocks.room and "File exists" in told[0]


READER = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from vitral.data.stores.blocks import DiskBlocks
keys, values = eval(sys.stdin.readline())
folder, seed, count, most = Path(sys.argv[1]), *map(int, sys.argv[2:])
cache = DiskBlocks(folder, most, block=len(values[1]), reserve=0)
print("begun", flush=True)
def work(seed):
    chance, hits = random.Random(seed), 0
    for _ in range(count):
        number = chance.randrange(40)
        there = cache.read(keys[number], 0, cache.block)
        assert there in (None, values[number]), number
        hits += there is not None
        cache.write(keys[number], values[number])
    return hits
with ThreadPoolExecutor(3) as pool:
    print(sum(pool.map(work, range(seed, seed + 3))))
"""


def reader(folder: Path, seed: int, count: int, most: int) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", READER, str(folder), str(seed), str(count), str(most)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(f"{([key(number) for number in range(40)], [value(number) for number in range(40)])}\n")
    process.stdin.flush()
    return process


def test_threads_and_processes_share_a_cache_that_keeps_its_bound(tmp_path: Path) -> None:
    most = 20 * SMALL
    processes = [reader(tmp_path, seed, 100, most) for seed in (10, 20, 30)]
    while any(process.poll() is None for process in processes):
        assert not (tmp_path / "blocks.bin").exists() or bytes_in(tmp_path) <= most
        time.sleep(0.01)
    hits = [int(process.communicate()[0].split()[1]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert all(40 < hit < 3 * 100 for hit in hits)


@pytest.mark.slow
def test_a_process_killed_while_it_writes_leaves_blocks_whole_or_not_at_all(tmp_path: Path) -> None:
    most, chance = 20 * SMALL, random.Random(0)
    for turn in range(12):
        process = reader(tmp_path, turn, 10**9, most)
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        time.sleep(chance.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert bytes_in(tmp_path) <= most
        cache = DiskBlocks(tmp_path, most, block=SMALL, reserve=0)
        there = [number for number in range(40) if (found := cache.read(key(number), 0, SMALL)) is not None
                 and found == value(number)]  # fmt: skip
        assert len(there) == sum(cache.has(key(number)) for number in range(40))
        assert len(there) >= cache.room - 3 or turn == 0


def test_the_bound_is_a_setting_or_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_bound("20GB", tmp_path) == 20 * 10**9
    assert parse_bound("64MB", tmp_path) == 64 * 10**6
    assert 0 < parse_bound("auto", tmp_path / "not" / "yet") <= 32 * 10**9
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setattr("vitral.data.stores.MOST_BY_ITSELF", 2**60)
    (tmp_path / "blocks.bin").write_bytes(noise(64 * 2**20))  # what it takes itself does not make it smaller
    assert parse_bound("auto", tmp_path) > free // 2 - 24 * 2**20 or shutil.disk_usage(tmp_path).free < free - 2**27
    monkeypatch.setenv("VITRAL_CACHE", "2TB")
    assert parse_bound("auto", tmp_path) == 2 * 10**12 and parse_bound("none", tmp_path) == 0
    for wrong in ("much", "1MB", "-5GB", "5", "1e9GB", ""):
        with pytest.raises(RecipeError, match="and should be a size such as 20GB"):
            parse_bound(wrong, tmp_path)
    assert is_far("gs://a/b") and not is_far("a/b")
