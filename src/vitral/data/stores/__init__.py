"""Where shards lie: a folder here, a web server, a bucket. Whatever it is, bytes are read from it by range.

What comes from far comes in blocks, which are kept in a cache that never grows above its bound. A server that breaks
off, stalls or is busy is asked again; bytes that are not those that were meant are named. No name that a server or an
index gives becomes a path outside of the folder.
"""

import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vitral.data.stores.blocks import BLOCK, DATA
from vitral.data.stores.cache import Cache
from vitral.data.stores.elsewhere import Bucket
from vitral.data.stores.far import Far
from vitral.data.stores.http import Web
from vitral.data.stores.near import Near
from vitral.data.stores.patience import PATIENT, Patience, Retries, Tell, silent
from vitral.data.stores.store import Expected, Found, Range, Shard, Store
from vitral.errors import DataError, RecipeError

__all__ = ["BLOCK", "FOLDER", "Expected", "Found", "Range", "Shard", "Store", "is_far", "open_store", "parse_bound"]

FOLDER = "blocks"  # of the data directory
MOST_BY_ITSELF = 32 * 10**9  # bytes
LEAST = 64 * 10**6
UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


def is_far(address: str) -> bool:
    """Whether an address is not that of a folder on this machine.

    >>> is_far("https://example.org/set"), is_far("s3://bucket/set"), is_far("data/set"), is_far("file:///data/set")
    (True, True, False, False)
    """
    return "://" in address and not address.startswith("file://")


def open_store(
    address: str, directory: Path, cache: str = "auto", *, tell: Tell = silent, patience: Patience = PATIENT
) -> Store:
    """The store at an address. `directory` is the data directory, `cache` the setting data.cache."""
    if not is_far(address):
        path = unquote(urlsplit(address).path) if address.startswith("file://") else os.path.expanduser(address)
        return Near(Path(path))
    try:
        is_web = urlsplit(address).scheme in ("http", "https")
    except ValueError as error:
        raise DataError(f"The address of the shards cannot be read ({error}).") from None
    folder = directory / FOLDER
    most = parse_bound(cache, folder)  # before anything is asked
    retries = Retries(patience, tell)
    return Far(Web(address, retries) if is_web else Bucket(address), Cache(folder, most, tell=tell), retries)


def parse_bound(cache: str, folder: Path) -> int:
    """The bytes that `data.cache` allows.

    >>> parse_bound("1.5GB", Path()), parse_bound("none", Path())
    (1500000000, 0)
    """
    if cache == "auto":
        cache = os.environ.get("VITRAL_CACHE") or "auto"
    if cache == "none":
        return 0
    if cache == "auto":
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        kept = folder / DATA  # what it takes already is not another's: else it would shrink each time it is opened
        taken = kept.stat().st_blocks * 512 if kept.exists() else 0
        return min(MOST_BY_ITSELF, (shutil.disk_usage(there).free + taken) // 2)
    amount = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([MGT]B)", cache)
    if not amount or (bound := int(float(amount[1]) * UNITS[amount[2]])) < LEAST:
        raise RecipeError(
            f"data.cache is {cache}, and should be a size such as 20GB (64MB or more), none, or auto. (VITRAL_CACHE is "
            "read where it is auto.)"
        )
    return bound
