"""One way to run a model: weights, preprocessing and calibration give outputs for pictures, batch by batch.

Classifier, look, evaluation and training stand on it.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vitral.data.batches import in_order
from vitral.data.pack import Pack
from vitral.data.preprocess import Preprocess
from vitral.errors import WeightsError
from vitral.files import path_of
from vitral.model.interface import Model
from vitral.plugin import Code
from vitral.progress import Progress, Tell, silent
from vitral.run import Run, name_of
from vitral.weights.calibration import Calibration
from vitral.weights.own import Weights
from vitral.weights.pretrained import load_pretrained

Source = str | Path | Run | Weights | nn.Module  # a run, weights of any library, or a model in memory

ASKING = "asking about pictures"


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model for n pictures."""

    logits: Tensor  # (n, classes)
    features: Tensor  # (n, F): the input of the classifier

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(n,) the most probable class."""
        return self.logits.argmax(dim=1).numpy()

    def loss(self, labels: Tensor) -> float:
        """Mean cross-entropy."""
        return float(cross_entropy(self.logits, labels))

    def accuracy(self, labels: Tensor) -> float:
        """Share of right predictions."""
        return float(np.mean(self.predicted == labels.numpy()))


@torch.no_grad()
def outputs_of(model: Model, images: Tensor, keep: Tensor | None = None) -> Outputs:  # (B, C, H, W)
    """The outputs for preprocessed images; `keep`, (B, K): the patches to look at. On the CPU, in float32."""
    tokens = model.head_tokens(images.to(next(model.parameters())), keep)
    logits = torch.stack(model.logits(tokens)).mean(dim=0)
    return Outputs(logits.float().cpu(), model.pool(tokens).float().cpu())


def outputs_of_pack(
    model: Model,
    pack: Pack,
    numbers: NDArray[np.int64],
    preprocess: Preprocess,
    mirrored: bool = False,
    tell: Tell = silent,
) -> Outputs:
    """The outputs for the pictures of these numbers; `mirrored`: the mean of probabilities with their mirror images.

    The model is left in evaluation mode.
    """
    model.eval()
    parts, done = [], 0
    tell(Progress(done, len(numbers), ASKING))
    for batch in in_order(pack, numbers, preprocess):
        one = outputs_of(model, batch.images)
        if mirrored:
            both = torch.stack([one.logits, outputs_of(model, batch.images.flip(3)).logits])
            one = Outputs(both.softmax(dim=2).mean(dim=0).log(), one.features)
        parts.append(one)
        done += len(one.logits)
        tell(Progress(done, len(numbers), ASKING))
    return joined(parts)


def joined(parts: Iterable[Outputs]) -> Outputs:
    """The outputs of several batches as one."""
    each = [(part.logits, part.features) for part in parts]
    return Outputs(*map(torch.cat, zip(*each, strict=True)))


class Inference:
    """A model that is ready for pictures, with its preprocessing and its calibration."""

    def __init__(self, weights: Weights, calibration: Calibration | None = None) -> None:
        self.model = weights.model.eval()
        self.preprocess = weights.preprocess
        self.class_names = weights.class_names
        self.calibration = calibration
        self.notes = weights.notes  # what to know before believing it

    @classmethod
    def load(cls, source: Source, code: Code = ()) -> "Inference":
        """From a run, weights of any library, or a model in memory. `code`: files of Python that may be run, where the
        model is in one."""
        return cls(*load_calibrated(source, code))

    def outputs(self, images: Tensor, keep: Tensor | None = None) -> Outputs:
        """The outputs for a batch as the preprocessing gives it, (B, C, H, W)."""
        return outputs_of(self.model, images, keep)

    def probabilities(self, outputs: Outputs) -> Tensor:  # → (n, classes)
        """Softmax at the calibrated temperature; without a calibration, at 1."""
        if not outputs.logits.isfinite().all():
            raise WeightsError("The model answers with numbers that are not finite: its weights are damaged.")
        return self.calibration.probabilities(outputs.logits) if self.calibration else outputs.logits.softmax(dim=1)

    def distances(self, outputs: Outputs) -> Tensor | None:  # → (n,)
        """How unlike the pictures that were learnt from each one is; above 1, unlike them all. None: not measured."""
        return self.calibration.distances(outputs.features) if self.calibration else None


def load_calibrated(source: Source, code: Code = ()) -> tuple[Weights, Calibration | None]:
    """The weights of a run, of any library or of a model in memory, and the calibration beside them, where there is
    one. What is in memory stays as it is, in its mode and on its device: the weights are a copy."""
    if (run := run_of(source)) is not None:
        weights = run.weights(code)
        return weights, run.calibration(weights.model)
    if isinstance(source, Model):
        raise WeightsError(
            f"A {type(source).__name__} by itself does not know how pictures are prepared, nor what its classes are "
            "called: give Weights(model, preprocess, class_names)."
        )
    if isinstance(source, Weights):
        return replace(source, model=deepcopy(source.model).cpu().float().eval()), None
    assert not isinstance(source, Run)
    pretrained = load_pretrained(source, code=code)
    return pretrained, Calibration.load(pretrained.folder, pretrained.model) if pretrained.folder else None


def run_of(source: Source) -> Run | None:
    """The run that this is; None: it is weights, or in memory."""
    if isinstance(source, Run):
        return source
    return Run.load(source) if isinstance(source, str | Path) and Run.is_run(path_of(source, WeightsError)) else None


def name_of_source(source: Source) -> str:
    """A word for it: of a model in memory, its class."""
    if isinstance(source, Run):
        return source.folder.resolve().name
    if isinstance(source, Weights | nn.Module):
        return type(source.model if isinstance(source, Weights) else source).__name__
    return name_of(source)
