"""What lies beside shards: `shards.json`, which names them, and `index.safetensors`, which says where each picture is.

The index is columns, a row for each picture in the order of the tars: so that a million of them are 50 MB on the disk,
are mapped into memory and not read, and a picture is found without its tar having been looked at.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt, ValidationError

from vitral.data.decode import MOST_BYTES, MOST_CHANNELS
from vitral.data.sources import SPLITS
from vitral.errors import DataError, RecipeError
from vitral.files import sha256_of, write_whole
from vitral.settings import FORMAT, Settings, check_format
from vitral.targets import Target, is_one_class

INDEX, ABOUT = "index.safetensors", "shards.json"
MOST_ABOUT = 2**28  # bytes of shards.json: a million shards and the names of a million classes
MOST_HEADER = 2**16  # bytes of the header of index.safetensors, which has eight columns

COLUMNS: dict[str, tuple[str, type[np.generic]]] = {
    "offset": ("U64", np.uint64),  # in its tar: of the first byte of the picture
    "size": ("U32", np.uint32),  # bytes
    "crc": ("U32", np.uint32),  # zlib.crc32 of these bytes
    "label": ("I32", np.int32),  # (n,) the number of the class; of other targets (n, outputs), F64
    "split": ("U8", np.uint8),  # its place in SPLITS; behind them: nobody says
    "end": ("U64", np.uint64),  # of its name in `names`; it begins where the one before ends
    "names": ("U8", np.uint8),  # UTF-8, one after the other
}
_TYPES: dict[str, type[np.generic]] = {word: kind for word, kind in COLUMNS.values()} | {"F64": np.float64}


class Shard(Settings):
    """A tar."""

    name: str  # of the file, beside shards.json; of tars that others wrote their address
    size: StrictInt = Field(ge=0)  # bytes
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    pictures: StrictInt = Field(ge=0)


class About(Settings):
    """What shards.json says."""

    format: int = FORMAT
    shards: tuple[Shard, ...]
    targets: tuple[Target, ...]
    channels: StrictInt = Field(ge=1, le=MOST_CHANNELS)
    index: str = Field(pattern="^[0-9a-f]{64}$")  # sha256 of index.safetensors; of a far one the name of a file here
    left_out: tuple[tuple[str, str], ...] = ()  # pictures that could not be read: name, why
    notes: tuple[str, ...] = ()  # what the source had to say of itself, and how the pictures were stored

    @property
    def digest(self) -> str:
        """Another one when anything is another: a name, a label, a split, a byte of a picture."""
        words = [self.index, [target.write() for target in self.targets], [shard.sha256 for shard in self.shards]]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()


@dataclass(frozen=True)
class Names(Sequence[str]):
    """The names of the pictures, each made when it is asked for."""

    end: NDArray[np.uint64]
    names: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.end)

    @overload
    def __getitem__(self, number: int, /) -> str: ...
    @overload
    def __getitem__(self, number: slice, /) -> list[str]: ...
    def __getitem__(self, number: int | slice, /) -> str | list[str]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        start = int(self.end[number - 1]) if number else 0
        return self.names[start : int(self.end[number])].tobytes().decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Columns:
    """The rows of an index, or of one shard of it."""

    offset: NDArray[np.uint64]
    size: NDArray[np.uint32]
    crc: NDArray[np.uint32]
    label: NDArray[Any]
    split: NDArray[np.uint8]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.offset)


def write_index(folder: Path, rows: Sequence[Columns], about: dict[str, Any]) -> About:
    """Write both files from the rows of all shards, in their order; shards.json last. `about` is what it also says."""
    from safetensors.numpy import save

    names = [name.encode("utf-8", "surrogateescape") for part in rows for name in part.names]
    tensors = {
        name: np.concatenate([getattr(part, name) for part in rows])
        for name in ("offset", "size", "crc", "label", "split")
    }
    tensors["end"] = np.cumsum([len(name) for name in names], dtype=np.uint64)
    tensors["names"] = np.frombuffer(b"".join(names), np.uint8)
    write_whole(folder / INDEX, save(tensors))
    written = About.read({**about, "index": sha256_of(folder / INDEX)})
    write_whole(folder / ABOUT, json.dumps(written.write(), indent=1) + "\n")
    return written


def read_about(content: bytes, where: str) -> About:
    """What the bytes of a shards.json say, wherever they are from."""
    try:
        values = json.loads(content)
        check_format(values.get("format"), f"{ABOUT} of {where}", DataError)
        about = About.model_validate(values)
    except (ValueError, AttributeError, RecursionError, ValidationError, RecipeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DataError(f"{ABOUT} of {where} is damaged, or not one of Vitral's ({reason}).") from None
    if not about.targets or not any(shard.pictures for shard in about.shards):
        raise DataError(f"{ABOUT} of {where} names no picture, or nothing that is to be learnt about one.")
    return about


def read_columns(path: Path, about: About, where: str) -> Columns:
    """The columns of an index, mapped into memory; an index that cannot be true of these shards is refused."""
    if sha256_of(path) != about.index:
        raise DataError(f"{INDEX} of {where} is not the one that {ABOUT} was written with: make or copy both again.")
    try:
        tensors = _mapped(path)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{INDEX} of {where} is damaged ({error}).") from None
    names = Names(tensors.pop("end"), tensors.pop("names"))
    columns = Columns(names=names, **tensors)
    _check(columns, names, about, where)
    return columns


def _mapped(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, not read: the library would copy all of them into memory."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MOST_HEADER:
            raise ValueError(f"its header has {length:,} bytes")
        header: dict[str, dict[str, Any]] = json.loads(file.read(length))
    tensors: dict[str, NDArray[Any]] = {}
    whole = np.memmap(path, np.uint8, "r")[8 + length :]
    for name, (word, _) in COLUMNS.items():
        about = header[name]
        start, end = about["data_offsets"]
        shape = tuple(about["shape"])
        if about["dtype"] != ("F64" if name == "label" and len(shape) == 2 else word):
            raise ValueError(f"its column {name} is of {about['dtype']}")
        if len(shape) not in ((1, 2) if name == "label" else (1,)) or not 0 <= start <= end <= len(whole):
            raise ValueError(f"its column {name} is of shape {shape}")
        tensors[name] = whole[start:end].view(_TYPES[about["dtype"]]).reshape(shape)
    return tensors


def _check(columns: Columns, names: Names, about: About, where: str) -> None:
    """Refuse an index that lies: about how many there are, where they are, or what they show."""

    def refuse(what: str) -> None:
        raise DataError(f"{INDEX} of {where} is not true of its shards: {what}.")

    count = sum(shard.pictures for shard in about.shards)
    lengths = {len(one) for one in (columns.offset, columns.size, columns.crc, columns.label, columns.split, names.end)}
    if lengths != {count}:
        refuse(f"it has columns of {', '.join(f'{one:,}' for one in sorted(lengths))} rows for {count:,} pictures")
    outputs = sum(target.outputs for target in about.targets)
    if is_one_class(about.targets):
        if columns.label.ndim != 1 or columns.label.min() < 0 or columns.label.max() >= outputs:
            refuse(f"a label is none of its {outputs:,} classes")
    elif columns.label.shape[1:] != (outputs,) or not np.isfinite(columns.label).all():
        refuse(f"a label is not {outputs} numbers")
    if columns.split.max() > len(SPLITS):
        refuse("a split is none of train, validation and test")
    if (np.diff(names.end.astype(np.int64), prepend=0) < 0).any() or int(names.end[-1]) > len(names.names):
        refuse("its names end before they begin")
    ends = np.cumsum([shard.pictures for shard in about.shards])
    for shard, end in zip(about.shards, ends, strict=True):
        rows = slice(end - shard.pictures, end)
        sizes = columns.size[rows].astype(np.uint64)
        if shard.pictures and (
            int(sizes.max()) > MOST_BYTES
            or int(columns.offset[rows].max()) > shard.size
            or int((columns.offset[rows] + sizes).max()) > shard.size
        ):
            refuse(f"a picture would lie outside of {shard.name}")
