"""Honest doubt, kept beside the weights in `calibration.safetensors`: what makes probabilities mean what they say, and
what tells a picture that is unlike all that was learnt from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vitral.errors import WeightsError
from vitral.files import write_whole
from vitral.model.interface import Model
from vitral.settings import FORMAT, check_format
from vitral.weights.stored import digest

CALIBRATION = "calibration.safetensors"


@dataclass(frozen=True)
class Calibration:
    """Measured on validation pictures, which the weights were not fitted to."""

    head: str  # which weights it was measured for: a digest of their classifier
    temperature: Tensor  # (): logits are divided by it (Guo et al. 2017)
    means: Tensor  # (classes, F): of the features of each class's training pictures
    metric: Tensor  # (F, F): times this, features spread equally far in every direction within the classes
    far: Tensor  # (): 95 % of the validation pictures are nearer to some class than this

    def probabilities(self, logits: Tensor) -> Tensor:  # (B, classes) → (B, classes)
        """Softmax at the measured temperature: the most probable class stays, its probability does not."""
        return (logits / self.temperature).softmax(dim=1)

    def distances(self, features: Tensor) -> Tensor:  # (B, F) → (B,)
        """To the nearest class (Lee et al. 2018), in units of `far`: above 1 a picture is unlike those learnt from."""
        return torch.cdist(features @ self.metric, self.means @ self.metric).amin(dim=1) / self.far

    def write(self, folder: Path) -> None:
        """Beside the weights; whole or not at all."""
        fields = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in fields.items()}
        metadata = {"vitral": json.dumps({"format": FORMAT, "head": self.head})}
        write_whole(folder / CALIBRATION, safetensors.torch.save(tensors, metadata=metadata))

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self | None:
        """The calibration beside the weights in a folder; None where there is none."""
        path = folder / CALIBRATION
        return cls.read(path, model) if path.is_file() else None

    @classmethod
    def read(cls, path: Path, model: Model) -> Self:
        """The file that `write` wrote; a `WeightsError` if it was measured for another model."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("vitral", "{}"))
            tensors = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise WeightsError(f"{path} is damaged, or is not a safetensors file ({error}).") from None
        check_format(header.get("format") if isinstance(header, dict) else None, str(path), WeightsError)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        size = shapes.get("metric", (0,))[0]
        expected = {"temperature": (), "means": (model.config.classes, size), "metric": (size, size), "far": ()}
        if shapes != expected or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise WeightsError(f"{path} is damaged, or was measured for another model. Delete it, or train again.")
        if header.get("head") != head_of(model):
            raise WeightsError(
                f"{path} was measured for other weights than those beside it. Delete it, or train again."
            )
        if min(float(tensors["temperature"]), float(tensors["far"])) <= 0:
            raise WeightsError(f"{path} is damaged: a temperature and a distance are above 0.")
        return cls(header["head"], **tensors)


def head_of(model: Model) -> str:
    """A digest of a model's classifiers: two trainings that end in the same one are the same training."""
    heads = (layer.parameters for layer in model.layers() if layer.part == "head")
    return digest(parameter for parameters in heads for parameter in parameters.values())
