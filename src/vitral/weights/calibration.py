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
from vitral.settings import FORMAT, check_format

CALIBRATION = "calibration.safetensors"


@dataclass(frozen=True)
class Calibration:
    """Measured on validation pictures, which the weights were not fitted to."""

    temperature: Tensor  # (): logits are divided by it (Guo et al. 2017)
    means: Tensor  # (classes, F): of the features of each class's training pictures
    metric: Tensor  # (F, F): times this, features spread equally far in every direction within the classes
    far: Tensor  # (): 95 % of the validation pictures are nearer to some class than this

    def probabilities(self, logits: Tensor) -> Tensor:  # (B, classes) → (B, classes)
        """Answers stay the same; how sure they are does not."""
        return (logits / self.temperature).softmax(dim=1)

    def distances(self, features: Tensor) -> Tensor:  # (B, F) → (B,)
        """To the nearest class (Lee et al. 2018), in units of `far`: above 1 a picture is unlike those learnt from."""
        return torch.cdist(features @ self.metric, self.means @ self.metric).amin(dim=1) / self.far

    def write(self, folder: Path) -> None:
        """Beside the weights; whole or not at all."""
        tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in vars(self).items()}
        metadata = {"vitral": json.dumps({"format": FORMAT})}
        write_whole(folder / CALIBRATION, safetensors.torch.save(tensors, metadata=metadata))

    @classmethod
    def beside(cls, folder: Path, classes: int) -> Self | None:
        """That of the weights in a folder; None where there is none: probabilities are then as the model holds them."""
        path = folder / CALIBRATION
        return cls.read(path, classes) if path.is_file() else None

    @classmethod
    def read(cls, path: Path, classes: int) -> Self:
        """What `write` wrote, for a model with so many classes."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("vitral", "{}"))
            tensors = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise WeightsError(f"{path} is damaged, or is not a safetensors file ({error}).") from None
        check_format(header.get("format") if isinstance(header, dict) else None, str(path), WeightsError)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        size = shapes.get("metric", (0,))[0]
        expected = {"temperature": (), "means": (classes, size), "metric": (size, size), "far": ()}
        if shapes != expected or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise WeightsError(f"{path} does not belong to a model with {classes} classes, or it is damaged.")
        return cls(**tensors)
