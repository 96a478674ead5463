"""All that an exact resume needs: there whole or not at all, and known by its sha256.

`checkpoints/step-00001234.safetensors` holds the tensors of the learner, and in its metadata how far the training was.
Where a model is shared out it is a folder, `checkpoints/step-00001234`, into which each process writes its share; how
far the training was is in files.json there, with the sha256 of each file, and is written last. Either is read by any
number of processes, whether the model is shared out among them or not: each reads what it needs.

The newest two are kept, so that a damaged one costs time and nothing else.
"""

import hashlib
import json
import os
import secrets
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from vitral.errors import RunError
from vitral.files import sha256_of, write_whole
from vitral.processes import Processes
from vitral.settings import FORMAT
from vitral.training.parallel import first_row, local

KEEP = 2  # checkpoints
FILES = "files.json"  # of a folder
MOVED = ("corrected_at", "corrected", "stepping", "timed")  # into run.json, or no longer needed


@dataclass
class TrainingState:
    """How far a training is."""

    step: int = 0
    planned: int = 0  # steps, before any correction, which run.json has
    seconds: float = 0.0  # of training, all sessions together
    metrics: int = 0  # bytes of metrics.jsonl up to here
    losses: list[float] = field(default_factory=list)  # of the steps of the epoch that is under way
    figures: dict[str, list[float]] = field(default_factory=dict)  # of the same steps: the objective's, by name
    best: float | None = None  # validation figure of the best epoch, where one is chosen
    least_loss: float | None = None  # in validation
    since: int = 0  # epochs without a smaller loss


class Stored(ABC):
    """The tensors of a checkpoint, on the disk."""

    sizes: dict[str, torch.Size]

    def of(self, group: str) -> dict[str, torch.Size]:
        """The sizes of those whose names begin with this word, by the rest of the name."""
        start = f"{group}."
        return {name.removeprefix(start): size for name, size in self.sizes.items() if name.startswith(start)}

    def read_into(self, room: Mapping[str, Tensor]) -> None:
        """Fill these tensors, which must be all; of one that is shared out, this process's slice."""
        if differing := sorted(room.keys() ^ self.sizes.keys()):
            where = "there" if differing[0] in room else "in the checkpoint"
            raise RunError(f"The checkpoint is of another training: {differing[0]} is not {where}.")
        self._read_into(room)

    @abstractmethod
    def _read_into(self, room: Mapping[str, Tensor]) -> None:
        """The same, of names that fit."""


class _File(Stored):
    """All tensors in one file."""

    def __init__(self, path: Path) -> None:
        self.file = cast(Any, safetensors.safe_open)(path, "pt")
        names = sorted(self.file.keys())
        self.sizes = {name: torch.Size(self.file.get_slice(name).get_shape()) for name in names}
        metadata = json.loads(self.file.metadata()["vitral"])
        if _sha256((name, self.file.get_tensor(name)) for name in names) != metadata["sha256"]:
            raise ValueError("its tensors are not those that were written")
        self.progress = _from_table(metadata["progress"])

    @torch.no_grad()
    def _read_into(self, room: Mapping[str, Tensor]) -> None:
        for name, tensor in room.items():
            mine, stored = local(tensor), self.file.get_tensor(name)
            mine.copy_(stored[first_row(tensor) :][: len(mine)] if stored.ndim else stored)


class _Folder(Stored):
    """Each file has slices, and says which."""

    def __init__(self, path: Path) -> None:
        table = json.loads((path / FILES).read_text(encoding="utf-8"))
        for name, sha256 in table["files"].items():
            if sha256_of(path / name) != sha256:
                raise ValueError(f"{name} is not as it was written")
        self.place = path / table["place"]
        self.sizes = {name: one.size for name, one in self._reader().read_metadata().state_dict_metadata.items()}
        self.progress = _from_table(table["progress"])

    def _read_into(self, room: Mapping[str, Tensor]) -> None:
        from torch.distributed.checkpoint.state_dict_loader import load

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads by itself
            load(dict(room), storage_reader=self._reader(), no_dist=True)

    def _reader(self) -> Any:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        return HuggingFaceStorageReader(str(self.place))


def write_checkpoint(folder: Path, progress: TrainingState, tensors: dict[str, Tensor]) -> Path:
    """Write a checkpoint whole (write, flush, rename), then remove all but the newest; returns its path."""
    folder.mkdir(exist_ok=True)
    tensors = _apart({name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())})
    metadata = {"format": FORMAT, "sha256": _sha256(tensors.items()), "progress": _to_table(progress)}
    path = folder / f"step-{progress.step:08}.safetensors"
    write_whole(path, safetensors.torch.save(tensors, {"vitral": json.dumps(metadata)}))
    _remove_old(folder)
    return path


def write_shares(folder: Path, progress: TrainingState, tensors: dict[str, Tensor], processes: Processes) -> Path:
    """The same of tensors that are shared out: each process writes what it has, and at last the first one a list."""
    path = folder / f"step-{progress.step:08}"
    place = processes.tell(secrets.token_hex(4))  # another one, should a checkpoint of this step be there
    with processes.explaining():
        problem = _write_slices(path / place, _apart(dict(sorted(tensors.items()))))
    if problem:  # for all, if for one of them
        shutil.rmtree(path / place, ignore_errors=True)
        raise problem
    with processes.together():
        mine = {}
        for file in (path / place).glob(f"shard-{processes.rank + 1:05}-*"):
            with file.open("rb") as written:
                os.fsync(written.fileno())  # torch does so while the last bytes are in its hands
            mine[f"{place}/{file.name}"] = sha256_of(file)
    files = {name: sha256 for each in processes.gather(mine) for name, sha256 in each.items()}
    table = {"format": FORMAT, "place": place, "files": files, "progress": _to_table(progress)}

    def write_list() -> str:
        write_whole(path / FILES, json.dumps(table, indent=1))
        for other in path.iterdir():
            if other.is_dir() and other.name != place:
                shutil.rmtree(other)
        _remove_old(folder)
        return str(path)

    return Path(processes.decide(write_list))


def _write_slices(place: Path, tensors: dict[str, Tensor]) -> Exception | None:
    """What this process has of them, and what went wrong for any. Tensors alone: of anything else torch would put a
    pickle into a file that says it is safetensors."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(place), save_distributed=True))
    except CheckpointException as error:
        problem, _ = error.failures[min(error.failures)]
        return problem if isinstance(problem, OSError) else RunError(f"A checkpoint cannot be written ({problem}).")
    return None


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two names of a user's own model may share one tensor, which safetensors refuses to write twice."""
    places: set[int] = set()
    for name, tensor in tensors.items():
        if local(tensor).data_ptr() in places:
            tensors[name] = tensor.clone()
        places.add(local(tensor).data_ptr())
    return tensors


def read_checkpoint(folder: Path) -> tuple[TrainingState, Stored, list[str]] | None:
    """The newest whole checkpoint, and a sentence on each newer, damaged one; None where there is no checkpoint."""
    damaged: list[str] = []
    for path in _newest_first(folder):
        try:
            stored = _Folder(path) if path.is_dir() else _File(path)
            return stored.progress, stored, damaged
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
    for name in MOVED:
        table.pop(name, None)
    return TrainingState(**table | {"figures": {**(right if right["accuracy"] else {}), **table.get("figures", {})}})


def _newest_first(folder: Path) -> list[Path]:
    whole = [*folder.glob("step-*.safetensors"), *(path.parent for path in folder.glob(f"step-*/{FILES}"))]
    return sorted(whole, key=lambda path: (path.stem, path.stat().st_mtime), reverse=True)


def _remove_old(folder: Path) -> None:
    """All but the newest, and folders that never got their list."""
    for path in set(folder.glob("step-*")) - set(_newest_first(folder)[:KEEP]):
        if path.is_dir():
            (path / FILES).unlink(missing_ok=True)  # first: without its list it is no checkpoint
            shutil.rmtree(path)
        else:
            path.unlink()


def _sha256(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:  # in the order of their names
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
