"""Tensors as they lie on the disk, in a folder or in memory, with all that stands beside them.

Nothing here runs what it reads: safetensors and npz are numbers, and a pickle is not opened.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from vitral.data.decode import ENDINGS
from vitral.errors import WeightsError

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".th", ".pickle")
FILES = ("model.safetensors", "model.safetensors.index.json", "model.npz")  # in a folder, the first that is there


@dataclass(frozen=True)
class RawWeights:
    """Weights under their own names, and what their makers wrote beside them."""

    where: str  # the source, as the user named it
    tensors: dict[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # config.json: transformers, or timm on the Hub
    processor: Mapping[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    about: Mapping[str, Any] = field(default_factory=dict)  # about.json, or what a module tells
    about_from: str = "about.json"
    path: Path | None = None  # the file that was read


def read_raw_weights(source: Path) -> RawWeights:
    """The weights in a file, or in a folder that has one such file."""
    path = _file_in(source) if source.is_dir() else source
    if not path.is_file():
        raise WeightsError(f"{path} is not there. A file or a folder of weights was expected.")
    if path.suffix in PICKLES:
        raise WeightsError(refusal(path))
    metadata: Mapping[str, str] = {}
    try:
        if path.name.endswith(".index.json"):
            tensors = _sharded(path)
        elif path.suffix == ".npz":
            tensors = _npz(path)
        else:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
            tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is damaged, or is not a file of weights ({error}).") from None
    beside = {name: _json(path.parent / f"{name}.json") for name in ("config", "preprocessor_config", "about")}
    return RawWeights(
        str(source), tensors, metadata, beside["config"], beside["preprocessor_config"], beside["about"], path=path
    )


def refusal(path: Path) -> str:
    """Why a pickle is not opened, and what to do."""
    return (
        f"{path} is a pickle: opening one can run whatever its maker put into it. If you trust where it comes from, "
        f"turn it into safetensors once: vitral convert {path} --i-trust-this-file"
    )


def of_module(module: nn.Module) -> RawWeights:
    """The weights of a model in memory: of timm, transformers or torchvision."""
    config = getattr(module, "config", None)
    values = config.to_dict() if config is not None and hasattr(config, "to_dict") else {}
    if not values and isinstance(timms := getattr(module, "pretrained_cfg", None), dict):
        values = {"pretrained_cfg": timms, "global_pool": getattr(module, "global_pool", "token")}
    heads = {part.num_heads for part in module.modules() if isinstance(getattr(part, "num_heads", None), int)}
    eps = {part.eps for part in module.modules() if isinstance(part, nn.LayerNorm)}
    gelus = {_gelu(part) for part in module.modules()} - {None}
    candidates: dict[str, set[Any]] = {"heads": heads, "norm_eps": eps, "mlp": gelus}
    about = {name: one.pop() for name, one in candidates.items() if len(one) == 1}
    tensors = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    return RawWeights(
        f"a {type(module).__name__} in memory", tensors, config=values, about=about, about_from="the module"
    )


def digest(tensors: Iterable[Tensor]) -> str:
    """16 hex digits of the sha256 of these numbers, in float32."""
    sha256 = hashlib.sha256()
    for tensor in tensors:
        sha256.update(tensor.detach().float().cpu().contiguous().numpy().data)
    return sha256.hexdigest()[:16]


def _gelu(part: nn.Module) -> str | None:
    """The word of ours for an activation, None for another module; timm has classes of its own for two of them."""
    if isinstance(part, nn.GELU):
        return "gelu-tanh" if part.approximate == "tanh" else "gelu"
    return {"QuickGELU": "gelu-quick", "GELUTanh": "gelu-tanh"}.get(type(part).__name__)


def _file_in(folder: Path) -> Path:
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    others = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".npz"))
    if len(others) == 1:
        return others[0]
    if pickles := sorted(path for path in folder.iterdir() if path.suffix in PICKLES):
        raise WeightsError(refusal(pickles[0]))
    if others:
        raise WeightsError(f"{folder} has several files of weights: name one, such as {others[0]}.")
    if any(path.suffix.lower() in ENDINGS for path in islice(folder.rglob("*"), 1_000)):
        raise WeightsError(
            f"{folder} is a folder of pictures, and a run or weights were expected: the model comes first."
        )
    raise WeightsError(f"{folder} is no run, and has no model.safetensors.")


def _sharded(index: Path) -> dict[str, Tensor]:
    """Several files, and a table that says which tensor is where."""
    shards = _json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in shards.values()
    ):
        raise WeightsError(f"{index} should have a weight_map from tensors to files of the same folder.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(shards.values())):
        if not (index.parent / name).is_file():
            raise WeightsError(f"{index.parent / name} is not there, and {index.name} says that it holds a part.")
        tensors |= safetensors.torch.load_file(index.parent / name)
    if missing := sorted(shards.keys() - tensors.keys()):
        raise WeightsError(f"{missing[0]} is in none of the files that {index} names.")
    return tensors


def _npz(path: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > 100 * path.stat().st_size:  # numbers that were learnt hardly get smaller by packing
            raise WeightsError(f"{path} would unpack to {unpacked:,} bytes: no weights do that.")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    except (zipfile.BadZipFile, zlib.error, ValueError, TypeError, KeyError, EOFError, MemoryError) as error:
        raise WeightsError(f"{path} is damaged, or is not an npz of numbers ({error}).") from None


def _json(path: Path) -> Mapping[str, Any]:
    """A table; an empty one where there is no such file."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise WeightsError(f"{path} is damaged: it is not JSON.") from None
    if not isinstance(values, dict):
        raise WeightsError(f"{path} is damaged: a table in JSON was expected.")
    return values
