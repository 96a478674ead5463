"""Tables from the tensor names of other libraries to ours, which are timm's, and the functions that apply them.

In a table `{n}` stands for the number of a block, `{s}` for that of a stage and `{p}` for weight or bias; where others
count from 1, `{s+1}`, `{n+1}` and, with two digits, `{n+01}`. The first row for a name of ours is the one that is
written; others are names that are read too.
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
HOLES = {"{s}": r"(?P<s>\d+)", "{n}": r"(?P<n>\d+)", "{p}": r"(?P<p>weight|bias)"}
FROM_1 = {"{s+1}": ("{s}", "d"), "{n+1}": ("{n}", "d"), "{n+01}": ("{n}", "02d")}


@dataclass(frozen=True)
class Name:
    """A row: their name, ours, and how the numbers are laid out anew, in and out."""

    theirs: str
    ours: str
    read: Callable[[Tensor], Tensor] | None = None
    write: Callable[[Tensor, int], Tensor] | None = None  # also takes the number of heads

    def reads(self, theirs: str) -> str | None:
        """Our name for one of theirs; None: it is of another row."""
        match = self._patterns[0].fullmatch(theirs)
        return self.ours.format(**self._counted(match.groupdict(), -1)) if match else None

    def writes(self, ours: str) -> str | None:
        """Their name for one of ours; None: it is of another row."""
        match = self._patterns[1].fullmatch(ours)
        if not match:
            return None
        holes, theirs = self._counted(match.groupdict(), +1), self.theirs
        for hole, (plain, digits) in FROM_1.items():
            theirs = theirs.replace(hole, f"{int(holes.get(plain[1], 0)):{digits}}")
        return theirs.format(**holes)

    def _counted(self, holes: dict[str, str], by: int) -> dict[str, str]:
        """Numbers as the other side counts them."""
        counted = {plain[1] for hole, (plain, _) in FROM_1.items() if hole in self.theirs}
        return {hole: str(int(value) + by) if hole in counted else value for hole, value in holes.items()}

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """For their name and for ours."""
        theirs = self.theirs
        for hole, (plain, _) in FROM_1.items():
            theirs = theirs.replace(hole, plain)
        theirs, ours = (re.escape(name) for name in (theirs, self.ours))
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
    rotary: bool = False  # whether positions turn queries and keys: there is no table then, which `resample` is for
    resample: Resample = "antialiased"
    asks: tuple[str, ...] = ()  # facts that no tensor tells and its models differ in: a config.json beside them does
    only_class_rows: bool = False  # whether tokens that are read out have a row of positions each, and registers none
    without: str = ""  # a pattern that none of their names has
    kind: str = "vit"  # `model.kind` of what they are
    half: bool = False  # whether pixels are brought to −1 … 1 (mean and std 0.5), and not to ImageNet's mean and std


def renamed(tensors: Mapping[str, Tensor], family: Family) -> tuple[Tensors, list[str]]:
    """The tensors under our names, and the names for which the family's table has no row."""
    ours: Tensors = {}
    left_over: list[str] = []
    for name, tensor in tensors.items():
        bare = re.sub(f"^(?:{family.prefix})", "", name) if family.prefix else name
        for row in family.table:
            if here := row.reads(bare):
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
    for name, tensor in _parted(tensors, family).items():
        for row in family.table:
            if there := row.writes(name):
                theirs[there] = row.write(tensor, heads) if row.write else tensor
                break
        else:
            raise WeightsError(f"{family.name} has no place for {name}.")
    return theirs


# Where others keep apart what we hold in one matrix: the parts, in the order in which they are stacked.
JOINED = {".attn.qkv.": (".attn.q.", ".attn.k.", ".attn.v."), ".mlp.fc1.": (".mlp.fc1_g.", ".mlp.fc1_x.")}
# Where keys have no bias, those of queries and values stay apart.
KEYLESS = {".attn.q.bias": ".attn.qv_bias.q", ".attn.v.bias": ".attn.qv_bias.v"}


def _joined(tensors: Tensors) -> Tensors:
    for name in [name for name in tensors if name.endswith(".attn.q.bias")]:
        block = name.removesuffix(".attn.q.bias")
        if f"{block}.attn.k.bias" not in tensors and f"{block}.attn.v.bias" in tensors:
            tensors |= {block + ours: tensors.pop(block + theirs) for theirs, ours in KEYLESS.items()}
    for name in [name for name in tensors if name.endswith(".attn.qkv.bias_mask")]:
        _masked(tensors, name.removesuffix("_mask"))
    for whole, parts in JOINED.items():
        for name in [name for name in tensors if parts[0] in name]:
            each = [name.replace(parts[0], part) for part in parts]
            if missing := [part for part in each if part not in tensors]:
                raise WeightsError(f"{missing[0]} is missing.")
            tensors[name.replace(parts[0], whole)] = torch.cat([tensors.pop(part) for part in each])
    return tensors


def _masked(tensors: Tensors, bias: str) -> None:
    """DINOv3's authors store a bias of keys, and a mask that puts it to zero."""
    q, k, v = tensors.pop(bias).chunk(3)
    if [part.unique().tolist() for part in tensors.pop(f"{bias}_mask").chunk(3)] != [[1], [0], [1]]:
        raise WeightsError(f"{bias}_mask masks something else than the bias of the keys.")
    tensors |= {bias.replace("qkv.bias", f"qv_bias.{part}"): one for part, one in (("q", q), ("v", v))}


def _parted(tensors: Mapping[str, Tensor], family: Family) -> Tensors:
    """The tensors with those apart that the family has apart."""
    ours, block = "\n".join(row.ours for row in family.table), "blocks.{n}"
    apart = {whole: parts for whole, parts in JOINED.items() if parts[0] in ours and block + whole not in ours}
    split: Tensors = {}
    for name, tensor in tensors.items():
        whole = next((one for one in apart if "blocks." in name and one in name), "")
        parts = apart.get(whole, (whole,))
        each = zip(parts, tensor.chunk(len(parts)), strict=True)
        split |= {name.replace(whole, part): one.contiguous() for part, one in each}
    return split


def family_of(names: Iterable[str], families: Iterable[Family]) -> Family | None:
    """The family whose mark is in one of these names, or None."""
    every = list(names)

    def has(pattern: str) -> bool:
        return any(re.search(pattern, name) for name in every)

    return next((one for one in families if has(one.mark) and not (one.without and has(one.without))), None)
