"""Random numbers as a function: (seed, purpose, epoch, sample, copy, view) → numbers. No hidden state anywhere.

Sample 1234 in epoch 7 is treated the same whatever the batch size, the number of workers, or how often a run was
stopped. The hash is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), chained over the key. A test holds golden
values: they never change.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ divided by the golden ratio, odd: the step of SplitMix64


def uniform(
    seed: int,
    purpose: str,
    *,
    epoch: int = 0,
    samples: Sequence[int] | NDArray[np.int64],
    copy: int | NDArray[np.int64] = 0,
    view: int = 0,
    draws: int = 1,
) -> NDArray[np.float64]:
    """Numbers in [0, 1), evenly spread: (samples, draws).

    >>> uniform(0, "example", samples=[3, 4], draws=2).round(3).tolist()
    [[0.486, 0.114], [0.377, 0.627]]
    """
    key = _hash(np.zeros(1, np.uint64), seed, zlib.crc32(purpose.encode()), epoch)  # (1,)
    each = _hash(key, np.asarray(samples, np.int64), copy, view)  # (samples,)
    bits = _hash(each[:, None], np.arange(draws))  # (samples, draws)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, purpose: str, *, epoch: int = 0, count: int) -> NDArray[np.int64]:
    """The numbers 0 … count − 1 in a random order."""
    return np.argsort(uniform(seed, purpose, epoch=epoch, samples=np.arange(count))[:, 0], kind="stable")


def _hash(state: NDArray[np.uint64], *values: int | NDArray[np.int64]) -> NDArray[np.uint64]:
    for value in values:
        # Whole numbers that run over, as a hash wants them; in arrays, because NumPy warns of it in single numbers.
        state = _mix(state + GOLDEN * (np.atleast_1d(value).astype(np.uint64) + np.uint64(1)))
    return state


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
