"""Convert a trusted pickle to safetensors, once, so that the pickle need not be opened again."""

import argparse
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from vitral.errors import WeightsError
from vitral.files import write_whole
from vitral.weights.names import Tensors


def convert_pickle(path: str | Path) -> Path:
    """Convert a trusted pickle (`.pth`, `.bin`, …) to a safetensors file beside it; returns its path. Which of its
    tables the weights come from stands in the metadata, under `from`.

    torch unpickles tensors and plain containers alone; `argparse.Namespace`, which training scripts like to keep beside
    their weights, holds nothing that runs.
    """
    path = Path(path)
    out = path.with_suffix(".safetensors")
    if not path.is_file():
        raise WeightsError(f"{path} is not there. A file of weights was expected.")
    if out.exists():
        raise WeightsError(f"{out} is there already, and nothing is overwritten. Move it away first.")
    try:
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        if match := re.search(r"GLOBAL (\S+)", str(error)):
            raise WeightsError(
                f"{path} holds more than tensors, {match[1]}, and was not opened. Whoever has the program that made it "
                "can save the tensors alone: torch.save(model.state_dict(), …)."
            ) from None
        raise WeightsError(f"{path} is damaged, cut, or no file of torch.save, and was not opened.") from None
    tensors, where = _tensors_in(content, path)
    write_whole(out, safetensors.torch.save(tensors, metadata={"from": where}))
    return out


TABLES = ("model", "state_dict", "teacher", "student")  # names under which training scripts keep weights; first wins


def _tensors_in(content: Any, path: Path) -> tuple[Tensors, str]:
    """The tensors of the weights in the content of a checkpoint, and the dotted names of the tables they were in."""
    inside: list[str] = []
    while isinstance(content, Mapping):
        tensors = {str(name): one for name, one in content.items() if isinstance(one, Tensor)}
        tables = {name: one for name, one in content.items() if isinstance(one, Mapping) and one}
        table = next((name for name in TABLES if name in tables), None)
        # A few numbers may lie beside the table: a score, a rate.
        beside = table is not None and len(tables[table]) > len(tensors)
        if tensors and len(tensors) >= len(tables) and not beside:
            dense = {name: one.detach().clone().contiguous() for name, one in tensors.items() if not one.is_sparse}
            return dense, ".".join(inside) or "the top"
        if table is None and len(tables) == 1:
            table = next(iter(tables))
        if table is None:
            break
        inside.append(str(table))
        content = tables[table]
    raise WeightsError(
        f"{path} has no table of tensors where one was looked for: at the top, and in {', '.join(TABLES)}."
    )
