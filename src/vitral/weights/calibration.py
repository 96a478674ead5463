"""Honest doubt, kept beside the weights in `calibration.safetensors`: what makes probabilities mean what they say, and
what tells a picture that is unlike all that was learnt from."""

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vitral.errors import WeightsError
from vitral.files import parse_table, write_whole
from vitral.model.interface import Model
from vitral.plugin import is_plugin
from vitral.settings import FORMAT, check_format
from vitral.targets import Target
from vitral.weights.stored import digest

CALIBRATION = "calibration.safetensors"


@dataclass(frozen=True)
class TemperatureFit:
    """What a temperature does to the log-loss of validation pictures that it was not fitted to, by cross-validation.

    >>> str(TemperatureFit(1.3, before=0.521, after=0.474, error=0.021, pictures=300))
    'held-out log-loss 0.521 → 0.474 ± 0.021 on 300 validation pictures'
    """

    fitted: float  # to all of them
    before: float
    after: float
    error: float  # the standard error of the difference
    pictures: int

    @property
    def kept(self) -> bool:
        """Whether it helps, by more than its error; else the temperature is left at 1."""
        return self.before - self.after > self.error

    def __str__(self) -> str:
        pictures = f"{self.pictures:,} validation picture{'s' if self.pictures > 1 else ''}"
        return f"held-out log-loss {self.before:.3f} → {self.after:.3f} ± {self.error:.3f} on {pictures}"


@dataclass(frozen=True)
class Calibration:
    """Measured on validation pictures, which the weights were not fitted to."""

    head: str  # which weights it was measured for: a digest of their classifier
    temperature: Tensor  # (): logits are divided by it (Guo et al. 2017); with other targets than one class (targets,)
    means: Tensor  # (classes, F): of the features of each class's training pictures; with other targets (1, F), of all
    metric: Tensor  # (F, F): times this, features spread equally far in every direction within the classes
    far: Tensor  # (): 95 % of the validation pictures are nearer to some class than this
    fit: TemperatureFit | None = None  # why the temperature is what it is; None: of an older version, which kept any
    # Where there are other targets than one class, (outputs,): the probability from which on a label is said; how far a
    # number may be off, in its unit, so that 90 % of the validation pictures are not farther. 0: it is no such output.
    thresholds: Tensor | None = None
    margins: Tensor | None = None

    def probabilities(self, logits: Tensor) -> Tensor:  # (B, classes) → (B, classes)
        """Softmax at the measured temperature: the most probable class stays, its probability does not."""
        return (logits / self.temperature).softmax(dim=1)

    def distances(self, features: Tensor) -> Tensor:  # (B, F) → (B,)
        """To the nearest class (Lee et al. 2018), in units of `far`: above 1 a picture is unlike those learnt from."""
        return torch.cdist(features @ self.metric, self.means @ self.metric).amin(dim=1) / self.far

    def of_target(self, place: int, mine: slice, target: Target) -> "Calibration":
        """What of it is about one of several targets: that at this place, with these outputs."""
        if target.kind == "class":
            return replace(self, temperature=self.temperature[place], thresholds=None, margins=None)
        assert self.thresholds is not None and self.margins is not None  # as it has several targets
        temperature = self.temperature[place : place + 1]
        return replace(self, temperature=temperature, thresholds=self.thresholds[mine], margins=self.margins[mine])

    def write(self, folder: Path) -> Path:
        """Beside the weights, whole or not at all; returns the path."""
        measured = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        why = {"fit": asdict(self.fit)} if self.fit else {}
        tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in measured.items()}
        metadata = {"vitral": json.dumps({"format": FORMAT, "head": self.head} | why)}
        path = folder / CALIBRATION
        write_whole(path, safetensors.torch.save(tensors, metadata=metadata))
        return path

    @classmethod
    def load(cls, folder: Path, model: Model, other_targets: tuple[Target, ...] = ()) -> Self | None:
        """The calibration beside the weights in a folder; None where there is none."""
        path = folder / CALIBRATION
        return cls.read(path, model, other_targets) if path.is_file() else None

    @classmethod
    def read(cls, path: Path, model: Model, other_targets: tuple[Target, ...] = ()) -> Self:
        """The file that `write` wrote; a `WeightsError` if it was measured for another model, or for other targets."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                header = parse_table((file.metadata() or {}).get("vitral", "{}"))
            tensors = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise WeightsError(f"{path} is damaged, or is not a safetensors file ({error}).") from None
        check_format(header.get("format"), str(path), WeightsError)
        specs = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        size, outputs = _features(model), model.config.classes
        shapes: dict[str, tuple[int, ...]] = {"metric": (size, size), "far": ()}
        if other_targets:
            shapes |= {"temperature": (len(other_targets),), "means": (1, size)}
            shapes |= {"thresholds": (outputs,), "margins": (outputs,)}
        else:
            shapes |= {"temperature": (), "means": (outputs, size)}
        expected = {name: (torch.float32, shape) for name, shape in shapes.items()}
        if specs != expected or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise WeightsError(f"{path} is damaged, or was measured for another model. Delete it, or train again.")
        if header.get("head") != head_of(model):
            raise WeightsError(
                f"{path} was measured for other weights than those beside it. Delete it, or train again."
            )
        temperature = tensors["temperature"]
        if not bool(((temperature >= 0.01) & (temperature <= 100)).all()) or float(tensors["far"]) <= 0:
            raise WeightsError(f"{path} is damaged: a temperature is 0.01 to 100, and a distance above 0.")
        thresholds, margins = (tensors.get(name, torch.zeros(1)) for name in ("thresholds", "margins"))
        if not 0 <= float(thresholds.min()) <= float(thresholds.max()) <= 1 or float(margins.min()) < 0:
            raise WeightsError(f"{path} is damaged: a threshold is 0 to 1, and a margin not below 0.")
        return cls(header["head"], fit=_read_fit(header.get("fit"), path), **tensors)


def _read_fit(values: Any, path: Path) -> TemperatureFit | None:
    names = [field.name for field in fields(TemperatureFit)]
    if values is None:
        return None
    if not isinstance(values, dict) or sorted(values) != sorted(names):
        raise WeightsError(f"{path} is damaged: fit has {', '.join(names)}.")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values.values()):
        raise WeightsError(f"{path} is damaged: in fit there are numbers only.")
    return TemperatureFit(**values)


@torch.no_grad()
def _features(model: Model) -> int:
    """F: how many features a picture has. No picture is needed to see it, but for a user's own model, perhaps."""
    images = torch.zeros(int(is_plugin(model.config.kind)), model.config.channels, *model.config.height_width)
    return model.pool(model.head_tokens(images.to(next(model.parameters())))).shape[1]


def head_of(model: Model) -> str:
    """A digest of a model's classifiers: two trainings that end in the same one are the same training."""
    heads = (layer.parameters for layer in model.layers() if layer.part == "head")
    return digest(parameter for parameters in heads for parameter in parameters.values())
