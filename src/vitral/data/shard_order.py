"""The order of an epoch where pictures lie in shards: runs of neighbours are shuffled, then pictures inside a window of
some runs.

So what is read at a time is a few megabytes from each of some places, and not a picture from everywhere. The order is a
function of seed and epoch, whatever the number of processes; and yet each process finds its pictures in few runs. For
the rows of a batch are shared out in lanes, as many as a window has runs: a lane takes its pictures from one stretch of
the window, about one run, in a random order.
"""

import numpy as np
from numpy.typing import NDArray

from vitral.data.randomness import permutation, uniform
from vitral.processes import shared_out


def shard_order(
    runs: NDArray[np.int32], *, seed: int, epoch: int, window: int, lanes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The places 0 … n − 1 of an epoch in their order. `runs`, (n,): the run of each; `lanes`, (n,): the lane that
    the first, second, … of the order belongs to.

    >>> shard_order(np.repeat([0, 1, 2], 3), seed=0, epoch=0, window=1, lanes=np.zeros(9, int)).tolist()
    [3, 4, 5, 8, 7, 6, 1, 0, 2]
    """
    which = np.unique(runs)
    turns = np.zeros(int(which.max()) + 1, np.int64)
    turns[which[permutation(seed, "runs", epoch=epoch, count=len(which))]] = np.arange(len(which))
    windows = turns[runs] // window
    by_run = np.argsort(turns[runs], kind="stable")  # places, run after run
    random = uniform(seed, "order", epoch=epoch, samples=np.arange(len(runs)))[:, 0]
    order = np.empty(len(runs), np.int64)
    ends = np.cumsum(np.bincount(windows))
    for start, end in zip(np.concatenate([[0], ends]), ends, strict=False):
        by_lane = np.argsort(lanes[start:end], kind="stable")  # where in the order of this window each lane stands
        places = by_run[start:end]
        order[start + by_lane] = places[np.lexsort((random[places], lanes[start:end][by_lane]))]
    return order


def lanes_of(batch_size: int, parts: int, window: int) -> NDArray[np.int64]:
    """(batch_size,): the lane of each row of a batch, so that rows of one process are in lanes that stand together."""
    lanes = np.empty(batch_size, np.int64)
    for rows in shared_out(batch_size, parts):
        lanes[rows] = np.arange(len(rows)) * window // max(1, len(rows))
    return lanes
