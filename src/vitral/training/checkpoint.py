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

KEPT = 2


@dataclass
class TrainingState:
    """How far a training is."""

    step: int = 0
    planned: int = 0  # steps, and if that was corrected after a while: when, and to how many
    corrected_at: int = 0
    corrected: int = 0
    stepping: float = 0.0  # seconds, of steps and validation alone
    timed: int = 0  # steps that these seconds are of: the first of a session also sets things up, and is not
    seconds: float = 0.0  # of training, all sessions together
    metrics: int = 0  # bytes of metrics.jsonl that belong to it
    losses: list[float] = field(default_factory=list)  # of the steps of the epoch that is under way
    figures: dict[str, list[float]] = field(default_factory=dict)  # and what else their objective tells of them
    best: float | None = None  # validation figure of the best epoch, where one is chosen
    least_loss: float | None = None  # in validation
    since: int = 0  # epochs without a smaller one


def write_checkpoint(folder: Path, progress: TrainingState, tensors: dict[str, Tensor]) -> Path:
    """Write, flush, rename; then remove the oldest."""
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    told = {"format": FORMAT, "sha256": _sha256(tensors), "progress": _stored(progress)}
    path = folder / f"step-{progress.step:08}.safetensors"
    write_whole(path, safetensors.torch.save(tensors, {"vitral": json.dumps(told)}))
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()
    return path


def read_checkpoint(folder: Path) -> tuple[TrainingState, dict[str, Tensor], list[str]] | None:
    """The newest that is whole, and a sentence on each newer one that is not; None where there is none."""
    damaged: list[str] = []
    for path in _newest_first(folder):
        try:
            tensors = safetensors.torch.load_file(path)
            with safetensors.safe_open(path, "pt") as file:
                told = json.loads(file.metadata()["vitral"])
            if _sha256(tensors) != told["sha256"]:
                raise ValueError("its tensors are not those that were written")
            return _state(told["progress"]), tensors, damaged
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            damaged.append(f"The checkpoint {path.name} is damaged ({error}) and was passed over.")
    if damaged:
        raise RunError(f"No checkpoint in {folder} is whole: {' '.join(damaged)}")
    return None


def _stored(state: TrainingState) -> dict[str, Any]:
    """In format 1 the accuracies of an epoch's steps are called `right`; other figures have the names they have."""
    stored = asdict(state)
    stored["right"] = stored["figures"].pop("accuracy", [])
    return stored if stored["figures"] else {name: value for name, value in stored.items() if name != "figures"}


def _state(stored: dict[str, Any]) -> TrainingState:
    """What `_stored` gave."""
    right = {"accuracy": stored.pop("right")}
    return TrainingState(**stored | {"figures": {**(right if right["accuracy"] else {}), **stored.get("figures", {})}})


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _sha256(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
