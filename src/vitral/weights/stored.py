"""Tensors as they lie on the disk, in a folder or in memory, with all that stands beside them.

Nothing here runs what it reads: safetensors and npz are numbers, and a pickle is not opened.
"""

import hashlib
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from vitral.files import MOST_JSON, parse_table

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".th", ".pickle")
EXPORTED = {  # no files of weights, though there are some inside
    ".onnx": "a graph, and no weights: `vitral predict` asks it",
    ".pt2": "a graph, and no weights: torch.export.load opens it, if you trust it",
    ".html": "a page, and no weights: a browser opens it",
}
MOST_TENSORS = 10_000  # the largest ViTs have about a thousand
MOST_GROWTH = 10  # of an npz: numbers that were learnt hardly get smaller by packing
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
    prefix: str = ""  # what stood before every name, and was taken off


def read_raw_weights(source: Path) -> RawWeights:
    """The weights in a file, or in a folder that has one such file."""
    path = _file_in(source) if source.is_dir() else source
    if not path.is_file():
        raise WeightsError(f"{path} is not there. A file or a folder of weights was expected.")
    if what := EXPORTED.get(path.suffix):
        raise WeightsError(f"{path} is {what}. For all else give the run that it is from.")
    if path.suffix in PICKLES:
        raise WeightsError(refusal(path))
    metadata: Mapping[str, str] = {}
    try:
        if path.name.endswith(".index.json"):
            tensors = _sharded(path)
        elif path.suffix == ".npz":
            tensors = _npz(path)
        else:
            tensors, metadata = _safetensors(path)
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


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that has all of its tensors: what was given to torch.compile, DataParallel, nn.Sequential, or to
    transformers' TimmWrapper. What is inside knows itself."""
    children = dict(module.named_children())
    if len(children) != 1:
        return module
    ((name, child),) = children.items()
    return unwrapped(child) if all(one.startswith(f"{name}.") for one in module.state_dict()) else module


def of_module(module: nn.Module) -> RawWeights:
    """The weights of a model in memory: of timm, transformers or torchvision."""
    state, module = module.state_dict(), unwrapped(module)
    where = f"the {type(module).__name__} in memory"
    if any(tensor.is_meta for tensor in state.values()):
        raise WeightsError(f"{where} has shapes and no numbers: it was built on the meta device. Load its weights.")
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}  # or both would learn at once
    config = getattr(module, "config", None)
    values = config.to_dict() if config is not None and hasattr(config, "to_dict") else {}
    if values:
        values["architectures"] = [type(module).__name__]
    if not values and isinstance(timms := getattr(module, "pretrained_cfg", None), dict):
        values = {"pretrained_cfg": timms}
    return RawWeights(where, tensors, config=values, about=_about(module), about_from="the module")


def _about(module: nn.Module) -> dict[str, Any]:
    """What the parts of a module tell, where they agree, and what timm's keep as attributes."""
    parts = list(module.modules())
    children = [pair for part in parts for pair in part.named_children()]
    values: dict[str, set[Any]] = {
        "heads": {part.num_heads for part in parts if isinstance(getattr(part, "num_heads", None), int)},
        "norm_eps": {part.eps for part in parts if norm_word(part)},
        "norm": {norm_word(part) for part in parts} - {""},
        "groups": {part.num_groups for part in parts if isinstance(part, nn.GroupNorm)},
        "weight_eps": {part.eps for part in parts if isinstance(part, nn.Conv2d) and hasattr(part, "eps")},
        "mlp": {activation_word(child) for name, child in children if name == "act" or isinstance(child, nn.GELU)},
        "image_size": {part.img_size for part in parts if isinstance(getattr(part, "img_size", None), tuple)},
    }
    about = {name: one.pop() for name, one in values.items() if len(one) == 1}
    about |= _about_windows(module)
    if isinstance(pool := getattr(module, "global_pool", None), str):
        about["global_pool"] = pool
        about["pool_include_prefix"] = getattr(module, "pool_include_prefix", False)
    return about


def _about_windows(module: nn.Module) -> dict[str, Any]:
    """What a Swin of timm tells of the windows of its stages, and of those that version 2 was trained with."""
    stages = [
        [part for part in stage.modules() if hasattr(part, "target_shift_size")]
        for stage in getattr(module, "layers", ())
    ]
    if not stages or not all(stages):
        return {}
    sides = [max(max(block.window_size) for block in stage) for stage in stages]
    trained = [max(getattr(stage[0].attn, "pretrained_window_size", (0,))) for stage in stages]
    grids = [min(stage[0].input_resolution) for stage in stages]
    cut = all(side >= min(max(sides), grid) for side, grid in zip(sides, grids, strict=True))
    return {"window_size": max(sides) if cut else sides, "pretrained_window_sizes": trained}


def without_prefix(raw: RawWeights) -> RawWeights:
    """The same without the words that all of its names begin with, such as `module.` of a DataParallel.

    >>> without_prefix(RawWeights("x", {"_orig_mod.a.b": torch.zeros(1), "_orig_mod.c": torch.zeros(1)})).prefix
    '_orig_mod.'
    """
    if len(raw.tensors) < 2:
        return raw
    words = os.path.commonprefix([name.split(".") for name in raw.tensors])
    prefix = "".join(f"{word}." for word in words)
    tensors = {name.removeprefix(prefix): tensor for name, tensor in raw.tensors.items()}
    return replace(raw, tensors=tensors, prefix=prefix)


@torch.no_grad()
def check_finite(where: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that hold NaN or infinity: whatever is asked, the answer would be NaN."""
    for name, tensor in tensors.items():
        # The smallest and the largest number tell, twelve times as fast as `isfinite` of all.
        if tensor.is_floating_point() and tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise WeightsError(
                f"{where}: {name} holds numbers that are not finite. It is damaged, or its training diverged."
            )


def digest(tensors: Iterable[Tensor]) -> str:
    """16 hex digits of the sha256 of these numbers, in float32."""
    sha256 = hashlib.sha256()
    for tensor in tensors:
        sha256.update(tensor.detach().float().cpu().contiguous().numpy().data)
    return sha256.hexdigest()[:16]


def norm_word(part: nn.Module) -> str:
    """Our word for a norm, "" for another part; timm has an RMSNorm of its own."""
    if isinstance(part, nn.LayerNorm):
        return "layer"
    return "rms" if type(part).__name__ in ("RMSNorm", "RmsNorm") else ""


def activation_word(part: nn.Module) -> str:
    """The word of ours for a GELU, else the name of its class; timm has classes of its own for two GELUs."""
    if isinstance(part, nn.GELU):
        return "gelu-tanh" if part.approximate == "tanh" else "gelu"
    name = type(part).__name__
    return {"QuickGELU": "gelu-quick", "GELUTanh": "gelu-tanh"}.get(name, name.lower())


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
        tensors |= _safetensors(index.parent / name)[0]
    if missing := sorted(shards.keys() - tensors.keys()):
        raise WeightsError(f"{missing[0]} is in none of the files that {index} names.")
    return tensors


def _safetensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    with safetensors.safe_open(path, framework="pt") as file:
        check_number(path, len(file.keys()))
        metadata: Mapping[str, str] = file.metadata() or {}
    return safetensors.torch.load_file(path), metadata


def check_number(path: Path, tensors: int) -> None:
    """Refuse a file of more tensors than any model has: each takes its time, also where it is empty."""
    if tensors > MOST_TENSORS:
        raise WeightsError(f"{path} holds {tensors:,} tensors. No model here has more than {MOST_TENSORS:,}.")


def _npz(path: Path) -> dict[str, Tensor]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        check_number(path, len(entries))
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > MOST_GROWTH * path.stat().st_size + 2**20:
            raise WeightsError(f"{path} would unpack to {unpacked:,} bytes: no weights do that.")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    except WeightsError:
        raise
    except Exception as error:  # what numpy and its zip raise depends on where the file is damaged: anything
        raise WeightsError(f"{path} is damaged, or is not an npz of numbers ({error}).") from None


def _json(path: Path) -> Mapping[str, Any]:
    """A table; an empty one where there is no such file."""
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8") as file:
            return parse_table(file.read(MOST_JSON + 1))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} is damaged: it is not JSON, or no table ({error}).") from None
