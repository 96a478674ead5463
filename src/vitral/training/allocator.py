"""Memory that one step frees is kept for the next one.

The C library may give large free blocks back to the system, and fetch them again page by page, filled with zeros: for a
step of `cifar10` up to 12,000 pages (docs/decisions/0033-the-ladder.md).
"""

import ctypes
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h
KEEPING = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1}  # bytes
GIVING = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26}  # where its own thresholds arrive with large blocks


def keep_freed_memory(keep: bool) -> None:
    """Keep it from now on, or give back what is free, now and later. Where the library is not glibc nothing changes."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    for name, size in (KEEPING if keep else GIVING).items():
        libc.mallopt(name, size)
    if not keep:
        libc.malloc_trim(0)
