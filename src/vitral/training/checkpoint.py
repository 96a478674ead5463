"""All that an exact resume needs, in one file: there whole or not at all, and known by its sha256.

`checkpoints/step-00001234.safetensors` holds the tensors of the learner, and in its metadata how far the training was.
The newest two are kept, so that a damaged one costs time and nothing else.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from vitral.errors import RunError
from vitral.files import write_whole
from vitral.settings import FORMAT

KEEP = 2  # checkpoints


@dataclass
class TrainingState:
    """How far a training is."""

    step: int = 0
    planned: int = 0  # steps
    corrected_at: int = 0  # the step after which that number was corrected; 0: it was not
    corrected: int = 0  # the new number
    stepping: float = 0.0  # seconds, of steps and validation alone
    timed: int = 0  # steps that these seconds are of: without the first of a session, which also sets things up
    seconds: float = 0.0  # of training, all sessions together
    metrics: int = 0  # bytes of metrics.jsonl up to here
    losses: list[float] = field(default_factory=list)  # of the steps of the epoch that is under way
    figures: dict[str, list[float]] = field(default_factory=dict)  # of the same steps: the objective's, by name
    best: float | None = None  # validation figure of the best epoch, where one is chosen
    least_loss: float | None = None  # in validation
    since: int = 0  # epochs without a smaller loss


def write_checkpoint(folder: Path, progress: TrainingState, tensors: dict[str, Tensor]) -> Path:
    """Write a checkpoint whole (write, flush, rename), then remove all but the newest; returns its path."""
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    # Two names of a user's own model may share one tensor, which safetensors refuses to write twice.
    places: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.data_ptr() in places:
            tensors[name] = tensor.clone()
        places.add(tensor.data_ptr())
    metadata = {"format": FORMAT, "sha256": _sha256(tensors), "progress": _to_table(progress)}
    path = folder / f"step-{progress.step:08}.safetensors"
    write_whole(path, safetensors.torch.save(tensors, {"vitral": json.dumps(metadata)}))
    for old in _newest_first(folder)[KEEP:]:
        old.unlink()
    return path


def read_checkpoint(folder: Path) -> tuple[TrainingState, dict[str, Tensor], list[str]] | None:
    """The newest whole checkpoint, and a sentence on each newer, damaged one; None where there is no checkpoint."""
    damaged: list[str] = []
    for path in _newest_first(folder):
        try:
            tensors = safetensors.torch.load_file(path)
            with safetensors.safe_open(path, "pt") as file:
                metadata = json.loads(file.metadata()["vitral"])
            if _sha256(tensors) != metadata["sha256"]:
                raise ValueError("its tensors are not those that were written")
            return _from_table(metadata["progress"]), tensors, damaged
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            damaged.append(f"The checkpoint {path.name} is damaged ({error}) and was passed over.")
    if damaged:
        raise RunError(f"No checkpoint in {folder} is whole: {' '.join(damaged)}")
    return None


def _to_table(state: TrainingState) -> dict[str, Any]:
    """A state as JSON has it. In format 1 an epoch's accuracies are `right`; other figures keep their names."""
    table = asdict(state)
    table["right"] = table["figures"].pop("accuracy", [])
    return table if table["figures"] else {name: value for name, value in table.items() if name != "figures"}


def _from_table(table: dict[str, Any]) -> TrainingState:
    """The state that `_to_table` wrote."""
    right = {"accuracy": table.pop("right")}
    return TrainingState(**table | {"figures": {**(right if right["accuracy"] else {}), **table.get("figures", {})}})


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _sha256(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
