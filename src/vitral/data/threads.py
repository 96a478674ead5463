"""Threads that take one core each."""

import os
from concurrent.futures import ThreadPoolExecutor


def one_core_each(threads: int = 0) -> ThreadPoolExecutor:
    """A pool of this many threads, or of as many as there are cores.

    In them torch does not share an operation out to all cores, which waits for the slowest of them every time: work on
    many small tensors is several times faster so, and more where the machine has other work. Other threads of the
    process keep the number that they had; `torch.set_num_threads` would change it for all.
    """
    return ThreadPoolExecutor(threads or cores(), initializer=_on_one_core)


def cores() -> int:
    """The number of cores that this process may use: on a shared machine not all that there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_is_busy() -> bool:
    """Whether others have used half of the cores in the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > cores() / 2


def _on_one_core() -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.get_num_threads()  # its first call sets a new thread up: later that would undo the next line
    threadpool_limits(1, user_api="openmp")
