"""The processes that do one command together: torchrun starts them, and each has a number, its rank.

The first one writes, prints, and decides whatever depends on a clock; the others hear of it. A process alone is the
first of one: then nothing here costs anything or changes anything.

Words go through the store that the launcher keeps, tensors through torch.distributed. Whoever waits for a word watches
that the others are alive; whoever waits for tensors gives up after the timeout, and then looks who is silent.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vitral import errors
from vitral.errors import RunError, VitralError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from torch._C._distributed_c10d import Store

Item = TypeVar("Item")

TIMEOUT = 300.0  # seconds that a process waits for one that is silent; VITRAL_TIMEOUT says otherwise
BEAT = 1.0  # seconds between two signs of life
LOST = ("gloo", "NCCL", "Connection closed", "Broken pipe", "Connection reset", "process group")  # words of torch's


class LostProcess(RunError):
    """Another process has ended, or says nothing any more."""


class _OtherFailed(Exception):
    """Another process has failed; with what is heard where they come together."""


def shared_out(count: int, parts: int = 1) -> "list[NDArray[np.int64]]":
    """The rows of each part of a batch in the order in which processes take their shares: the first process the first
    of them, and so on; a row beside its mirror image.

    >>> shared_out(6)
    [array([0, 5, 1, 4, 2, 3])]
    """
    import numpy as np

    every = np.arange(count)
    edge = np.minimum(every, count - 1 - every)
    each = (every[count * part // parts : count * (part + 1) // parts] for part in range(parts))
    return [some[np.argsort(edge[some], kind="stable")] for some in each]


class Processes:
    """All processes of a command, as one of them sees them.

    >>> Processes().decide(lambda: 2)
    2
    """

    def __init__(self, rank: int = 0, world: int = 1, board: "Board | None" = None) -> None:
        self.rank, self.world = rank, world
        self.board = board  # None: alone
        self.stop_asked = False  # of this process, by a signal
        self.stop_agreed = False  # by all, after this step
        self.told_at = 0.0  # what time the first one said it is

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @property
    def first(self) -> bool:
        """Whether it is this process that writes and prints."""
        return self.rank == 0

    @property
    def many(self) -> bool:
        return self.world > 1

    @property
    def lost(self) -> bool:
        """Whether this process has stopped to hear of the others."""
        return self.board is not None and self.board.lost

    @property
    def stopping(self) -> bool:
        """Whether to stop after this step."""
        return self.stop_agreed if self.many else self.stop_asked

    def __str__(self) -> str:
        return f"{self.world} processes" if self.many else "one process"

    # What each does

    def rows(self, count: int, parts: int = 1) -> "NDArray[np.int64]":
        """The rows of a batch that this process works on: an equal share of each of its parts.

        A row and its mirror image are with the same process wherever that can be, since mixup and cutmix mix these.

        >>> Processes(rank=1, world=2).rows(8), Processes(rank=1, world=2).rows(8, parts=2)
        (array([2, 3, 4, 5]), array([2, 3, 4, 5]))
        """
        import numpy as np

        chosen = []
        for some in shared_out(count, parts):
            start, end = len(some) * self.rank // self.world, len(some) * (self.rank + 1) // self.world
            chosen.append(np.sort(some[start:end]))
        return np.concatenate(chosen)

    def deal(self, items: Iterable[Item]) -> Iterator[Item]:
        """Those of the items that are this process's: dealt like cards. `collect` puts results in order again.

        >>> list(Processes(rank=1, world=3).deal("abcdefgh"))
        ['b', 'e', 'h']
        """
        return islice(items, self.rank, None, self.world)

    # What they tell each other: plain values, as JSON has them

    def gather(self, value: Any) -> list[Any]:
        """What each of them says, as JSON has it, by rank; returns when all have said it."""
        return self.board.gather(value) if self.board else [value]

    def tell(self, value: Item) -> Item:
        """What the first one says."""
        if self.board is None:
            return value
        said: Item = self.gather(value if self.first else None)[0]
        return said

    def decide(self, choose: Callable[[], Item]) -> Item:
        """What the first one chooses; the others do not try. What it does so goes on where they are lost."""
        if self.board is None or (self.lost and self.first):
            return choose()
        with self.together():
            value = choose() if self.first else None
        said: Item = self.gather(value)[0]
        return said

    def collect(self, results: list[Any]) -> list[Any]:
        """Results of items that were dealt, of all processes in the order of the items."""
        each = self.gather(results)
        return [each[place % self.world][place // self.world] for place in range(sum(map(len, each)))]

    def exchange(self, content: bytes) -> list[bytes]:
        """What each of them hands over, by rank: of more than words are for."""
        lengths = self.gather(len(content))
        most = max(lengths)
        if not self.many or not most:
            return [content] * self.world
        import torch
        from torch import distributed

        mine = torch.zeros(most, dtype=torch.uint8)
        mine[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else mine[:0]
        each = [torch.empty_like(mine) for _ in lengths]
        with self.explaining():
            distributed.all_gather(each, mine)
        return [one[:length].numpy().tobytes() for one, length in zip(each, lengths, strict=True)]

    @contextmanager
    def together(self) -> Generator[None]:
        """What is done here is done by all, or by none: where it fails for one, it fails for all, with one sentence."""
        if self.board is None or (self.lost and self.first):
            yield
            return
        mine: VitralError | OSError | None = None
        try:
            yield
        except LostProcess:
            raise
        except _OtherFailed:
            pass
        except (VitralError, OSError) as error:
            mine = error
            self.board.store.set("failing", str(self.rank))
        failures = self.gather(None if mine is None else [type(mine).__name__, str(mine)])
        failed = [rank for rank, failure in enumerate(failures) if failure is not None]
        if not failed:
            return
        kind, sentence = failures[failed[0]]
        where = "" if len({json.dumps(one) for one in failures}) == 1 else f"{self.board.name(failed[0])}: "
        raise getattr(errors, kind, RunError)(f"{where}{sentence}") from mine

    def hear(self, progress: object = None) -> None:
        """Leave long work within `together` where another process has failed meanwhile. Takes progress, as who tells
        how far the work is."""
        if self.board is not None and self.board.store.check(["failing"]):
            raise _OtherFailed

    def agree(self, values: Mapping[str, Any]) -> None:
        """Refuse a process for which any of these is another than for the first."""
        if self.board is None:
            return
        each = self.gather(dict(values))
        for rank, theirs in enumerate(each):
            differing = [name for name in sorted({*each[0], *theirs}) if each[0].get(name) != theirs.get(name)]
            if differing:
                words = "; ".join(
                    f"{name} is {theirs.get(name, 'not set')} there, and {each[0].get(name, 'not set')} for the first"
                    for name in differing[:3]
                )
                raise RunError(
                    f"{self.board.name(rank)} does not fit to the first: {words}. Start all with the same command, the "
                    "same versions and the same pictures."
                )

    # The clock and the steps

    def now(self) -> float:
        """Seconds, by the clock of the first one: as of the last time that they heard of each other."""
        return self.told_at if self.many else time.perf_counter()

    def clock(self) -> float:
        """Seconds, by the clock of the first one, at this moment."""
        if not self.many:
            return time.perf_counter()
        self.average({})
        return self.told_at

    def average(self, values: "Mapping[str, Tensor]") -> "dict[str, Tensor]":  # each ()
        """The mean of each value over the processes. On the way they hear what time it is, and whether to stop."""
        if not self.many:
            return dict(values)
        import torch
        from torch import distributed

        first = [float(self.stop_asked), time.perf_counter() if self.first else 0.0]
        sums = torch.tensor([*first, *(float(value) for value in values.values())], dtype=torch.float64)
        with self.explaining():
            distributed.all_reduce(sums)
        self.stop_agreed, self.told_at = bool(sums[0]), float(sums[1])
        return {
            name: (total / self.world).to(value) for (name, value), total in zip(values.items(), sums[2:], strict=True)
        }

    def stack(self, tensor: "Tensor") -> "Tensor":  # (…) → (world, …)
        """A tensor of each process, by rank; of the same shape everywhere."""
        import torch
        from torch import distributed

        each = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.world)]
        with self.explaining():
            distributed.all_gather(each, tensor.contiguous())
        return torch.stack(each)

    # How it ends

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Say which process is gone or silent, where torch would say what became of a socket."""
        try:
            yield
        except BaseException as error:
            if self.board is None:
                raise
            self.board.lost = True  # whatever it is, the others wait for what does not come
            if isinstance(error, RuntimeError) and any(word in str(error) for word in LOST):
                raise self.board.missing(error) from error
            raise

    def speaks(self) -> bool:
        """Whether this process is the one that tells an error that has come to it: an error is told once."""
        return self.board is None or self.board.claim()


class Board:
    """Where processes write what all shall know: the launcher's store. A thread shows there that this one is alive."""

    def __init__(self, store: "Store", rank: int, world: int, timeout: float) -> None:
        self.store, self.rank, self.world, self.timeout = store, rank, world, timeout
        self.rounds = 0
        self.lost = False
        self.names: list[str] = []
        self.parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else 0
        own: Store = store.clone()  # type: ignore[attr-defined]  # torch's stubs lack it; waiting would block the other
        threading.Thread(target=self._beat, args=(own,), daemon=True).start()
        self.names = [
            f"Process {number} of {world} ({pid} on {host})"
            for number, (pid, host) in enumerate(self.gather([os.getpid(), socket.gethostname()]))
        ]

    def name(self, rank: int) -> str:
        return self.names[rank] if self.names else f"Process {rank} of {self.world}"

    def gather(self, value: Any) -> list[Any]:
        """The first one collects what all say, and writes it down for all."""
        if self.lost:
            raise LostProcess("The processes do not hear each other any more.")
        place, self.rounds = f"round {self.rounds}", self.rounds + 1
        everybody = f"{place}: all"
        if self.rank:
            self.store.set(f"{place}: {self.rank}", json.dumps(value))
            self._wait({0: everybody})
            said: list[Any] = json.loads(self.store.get(everybody))
            return said
        others = {rank: f"{place}: {rank}" for rank in range(1, self.world)}
        self._wait(others)
        said = [json.loads(json.dumps(value)), *(json.loads(self.store.get(key)) for key in others.values())]
        self.store.set(everybody, json.dumps(said))
        for key in [*others.values(), f"round {self.rounds - 3}: all"]:  # all have read what is two rounds old
            self.store.delete_key(key)
        return said

    def claim(self) -> bool:
        """Whether nobody else has told of an error so far."""
        with suppress(RuntimeError):
            return self.store.compare_set("failed", "", str(self.rank)) == str(self.rank).encode()
        return self.rank == 0  # the store went with the launcher

    def missing(self, error: Exception) -> LostProcess:
        """Who is it that says nothing? A process that beats no more, within three beats."""
        before = self._beats()
        time.sleep(3 * BEAT)
        after = self._beats()
        silent = [rank for rank in range(self.world) if before.get(rank) == after.get(rank) and rank != self.rank]
        if not after or not silent:
            reason = str(error).strip().split("\n")[0]
            return LostProcess(f"The processes do not hear each other any more ({reason}).")
        return self._lost(silent)

    def _lost(self, silent: list[int]) -> LostProcess:
        who = " and ".join(self.name(rank) for rank in silent)
        return self._end(
            f"{who} says nothing any more: it was killed or stopped, or its machine cannot be reached. Processes wait "
            f"{self.timeout:g} s for each other. Go on from the last checkpoint with --resume."
        )

    def _end(self, sentence: str) -> LostProcess:
        self.lost = True
        return LostProcess(sentence)

    def _wait(self, keys: dict[int, str]) -> None:
        """Until what these processes have to say is there; not longer than the timeout for one that is not alive."""
        beats, heard_at = dict[int, int](), dict.fromkeys(keys, time.monotonic())
        while True:
            try:
                return self.store.wait(list(keys.values()), timedelta(seconds=BEAT))
            except RuntimeError as error:
                if "wait timeout" not in str(error):
                    raise self._end("The store of the launcher cannot be reached any more.") from None
            if self.store.check(["failed"]):
                raise self._end("Another process has failed.")
            now, later = time.monotonic(), self._beats()
            heard_at |= {rank: now for rank in keys if later.get(rank) != beats.get(rank)}
            beats = later
            if silent := [rank for rank, at in heard_at.items() if now - at > self.timeout]:
                raise self._lost(silent)

    def _beats(self) -> dict[int, int]:
        """How often each process has shown that it is alive."""
        with suppress(RuntimeError):
            return {rank: self.store.add(f"beat {rank}", 0) for rank in range(self.world)}
        return {}

    def _beat(self, store: "Store") -> None:
        """Show again and again that this process is alive; end it where the launcher is not."""
        while True:
            with suppress(RuntimeError):
                store.add(f"beat {self.rank}", 1)
            if self.parent and os.getppid() != self.parent:
                self.lost = True  # the store was the launcher's
                os.kill(os.getpid(), signal.SIGTERM)  # as the launcher would have done: there is a checkpoint to write
                time.sleep(self.timeout)
                os._exit(1)
            time.sleep(BEAT)


def started_as_many() -> bool:
    """Whether a launcher has started several processes.

    >>> started_as_many()
    False
    """
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


def join(timeout: float | None = None) -> Processes:
    """The processes of this command, after waiting for all: torchrun, or another launcher, has set RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT. Without them this process is alone. `timeout`: seconds that they wait for one that is
    silent; without it what VITRAL_TIMEOUT says, or 300.

    >>> join().world
    1
    """
    return _meet(timeout or _timeout()) if started_as_many() else Processes()


def _timeout() -> float:
    text = os.environ.get("VITRAL_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise RunError(f"VITRAL_TIMEOUT is {text}, and should be seconds, such as 600.")
    return seconds


@cache  # a process joins once
def _meet(timeout: float) -> Processes:
    import torch
    from torch import distributed
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        words = PrefixStore(f"vitral {attempt}", store)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=PrefixStore(f"tensors {attempt}", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise RunError(
            f"The processes did not meet within {timeout:g} s at {os.environ.get('MASTER_ADDR')}, port "
            f"{os.environ.get('MASTER_PORT')} ({reason}). Is the port taken, or one of them missing?"
        ) from None
    return Processes(rank, world, Board(words, rank, world, timeout))
