"""Tables from the tensor names of other libraries to ours, which are timm's, and the functions that apply them.

In a table `{n}` stands for the number of a block and `{p}` for weight or bias. The first row for a name of ours is the
one that is written; others are names that are read too.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitral.errors import WeightsError
from vitral.model.config import Resample

Tensors = dict[str, Tensor]
HOLES = {"{n}": r"(?P<n>\d+)", "{p}": r"(?P<p>weight|bias)"}


@dataclass(frozen=True)
class Name:
    """A row: their name, ours, and how the numbers are laid out anew, in and out."""

    theirs: str
    ours: str
    read: Callable[[Tensor], Tensor] | None = None
    write: Callable[[Tensor, int], Tensor] | None = None  # also takes the number of heads

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """For their name and for ours."""
        theirs, ours = (re.escape(name) for name in (self.theirs, self.ours))
        for hole, pattern in HOLES.items():
            theirs, ours = (name.replace(re.escape(hole), pattern) for name in (theirs, ours))
        return re.compile(theirs), re.compile(ours)


@dataclass(frozen=True)
class Family:
    """A kind of weights with the same tensor names, and what the names do not tell."""

    name: str
    table: tuple[Name, ...]
    mark: str  # a pattern that one of their names has, and no other family's
    prefix: str = ""  # a pattern of what may stand before all names
    norm_eps: float = 1e-6
    resample: Resample = "antialiased"
    asks: tuple[str, ...] = ()  # facts that no tensor tells and its models differ in: a config.json beside them does
    only_class_rows: bool = False  # whether tokens that are read out have a row of positions each, and registers none
    half: bool = False  # whether pixels are brought to −1 … 1 (mean and std 0.5), and not to ImageNet's mean and std


def renamed(tensors: Mapping[str, Tensor], family: Family) -> tuple[Tensors, list[str]]:
    """The tensors under our names, and the names for which the family's table has no row."""
    ours: Tensors = {}
    left_over: list[str] = []
    for name, tensor in tensors.items():
        bare = re.sub(f"^(?:{family.prefix})", "", name) if family.prefix else name
        for row in family.table:
            if match := row.patterns[0].fullmatch(bare):
                here = row.ours.format(**match.groupdict())
                if here in ours:
                    raise WeightsError(f"{here} is there twice, once as {name}: the file holds more than one model.")
                ours[here] = row.read(tensor) if row.read else tensor
                break
        else:
            left_over.append(name)
    return _joined(ours), left_over


def renamed_back(tensors: Mapping[str, Tensor], family: Family, heads: int) -> Tensors:
    """Our tensors under the family's names. A tensor that it has no name for is an error."""
    theirs: Tensors = {}
    apart = any(".attn.q." in row.ours for row in family.table)
    for name, tensor in (_parted(tensors) if apart else tensors).items():
        for row in family.table:
            if match := row.patterns[1].fullmatch(name):
                theirs[row.theirs.format(**match.groupdict())] = row.write(tensor, heads) if row.write else tensor
                break
        else:
            raise WeightsError(f"{family.name} has no place for {name}.")
    return theirs


# Where others keep apart what we hold in one matrix: the parts, in the order in which they are stacked.
JOINED = {".attn.qkv.": (".attn.q.", ".attn.k.", ".attn.v."), ".mlp.fc1.": (".mlp.fc1_g.", ".mlp.fc1_x.")}


def _joined(tensors: Tensors) -> Tensors:
    for whole, parts in JOINED.items():
        for name in [name for name in tensors if parts[0] in name]:
            each = [name.replace(parts[0], part) for part in parts]
            if missing := [part for part in each if part not in tensors]:
                raise WeightsError(f"{missing[0]} is missing.")
            tensors[name.replace(parts[0], whole)] = torch.cat([tensors.pop(part) for part in each])
    return tensors


def _parted(tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors with q, k and v apart."""
    whole, parts = ".attn.qkv.", JOINED[".attn.qkv."]
    split: Tensors = {}
    for name, tensor in tensors.items():
        each = zip(parts, tensor.chunk(3), strict=True) if whole in name else [(whole, tensor)]
        split |= {name.replace(whole, part): one.contiguous() for part, one in each}
    return split


def family_of(names: Iterable[str], families: Iterable[Family]) -> Family | None:
    """The family whose mark is in one of these names, or None."""
    every = list(names)
    return next((one for one in families if any(re.search(one.mark, name) for name in every)), None)
