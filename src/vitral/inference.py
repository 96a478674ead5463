"""One way to run a model: weights, preprocessing and calibration give outputs for pictures, batch by batch.

Classifier, look, evaluation and training stand on it.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vitral.data.batches import in_order, most_in_order
from vitral.data.pack import Pack
from vitral.data.preprocess import Preprocess
from vitral.errors import RecipeError, WeightsError
from vitral.files import path_of
from vitral.graph import Pixels
from vitral.model.interface import Model
from vitral.plugin import Code, is_plugin
from vitral.rounds import ALONE, Rounds, Rows
from vitral.run import Run, name_of
from vitral.targets import Target, columns, is_one_class
from vitral.weights.calibration import Calibration
from vitral.weights.own import Weights, identity
from vitral.weights.pretrained import load_pretrained
from vitral.weights.stored import digest

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
    one_class: bool = True,
    rounds: Rounds = ALONE,
) -> Outputs:
    """The outputs for the pictures of these numbers; `mirrored`: the mean of probabilities with their mirror images;
    where the outputs are not of one class, the mean of the outputs themselves.

    The model is left in evaluation mode.
    """
    model.eval()

    def ask(rows: range) -> Rows:
        [batch] = in_order(pack, numbers[rows.start : rows.stop], preprocess, len(rows))
        one = outputs_of(model, batch.images)
        logits = one.logits
        if mirrored:
            both = torch.stack([logits, outputs_of(model, batch.images.flip(3)).logits])
            logits = both.softmax(dim=2).mean(dim=0).log() if one_class else both.mean(dim=0)
        return {"logits": logits.numpy(), "features": one.features.numpy()}

    parts = rounds.of(len(numbers), most_in_order(preprocess), ask, ASKING)
    return joined(Outputs(*(torch.from_numpy(part[name]) for name in ("logits", "features"))) for part in parts)


def joined(parts: Iterable[Outputs]) -> Outputs:
    """The outputs of several batches as one."""
    each = [(part.logits, part.features) for part in parts]
    return Outputs(*map(torch.cat, zip(*each, strict=True)))


def values_of(
    logits: Tensor, targets: Sequence[Target], calibration: Calibration | None = None
) -> Tensor:  # (n, outputs) → (n, outputs)
    """What each output says: the probability of a class among those of its target, that of a label by itself, and a
    number in the unit of the data.

    >>> weight = Target(name="weight", kind="number", names=("weight",), mean=50.0, std=10.0)
    >>> values_of(torch.tensor([[1.5]]), [weight]).tolist()
    [[65.0]]
    """
    temperatures = torch.ones(len(targets)) if calibration is None else calibration.temperature.reshape(-1)
    parts = []
    for target, mine, temperature in zip(targets, columns(targets), temperatures.to(logits), strict=True):
        if target.kind == "number":
            parts.append(logits[:, mine] * target.std + target.mean)
        else:
            scaled = logits[:, mine] / temperature
            parts.append(scaled.softmax(dim=1) if target.kind == "class" else scaled.sigmoid())
    return torch.cat(parts, dim=1)


def thresholds_of(targets: Sequence[Target], calibration: Calibration | None) -> NDArray[np.float64]:
    """(outputs,) from which probability on a label is said: as validation found; else one half."""
    if calibration is not None and calibration.thresholds is not None:
        return calibration.thresholds.double().numpy()
    return np.full(sum(target.outputs for target in targets), 0.5)


def margins_of(targets: Sequence[Target], calibration: Calibration | None) -> NDArray[np.float64]:
    """(outputs,) how far a number may be off; 0: nobody knows."""
    if calibration is not None and calibration.margins is not None:
        return calibration.margins.double().numpy()
    return np.zeros(sum(target.outputs for target in targets))


class Inference:
    """A model that is ready for pictures, with its preprocessing and its calibration."""

    def __init__(self, weights: Weights, calibration: Calibration | None = None) -> None:
        self.weights, self.model = weights, weights.model.eval()
        self.preprocess = weights.preprocess
        self.class_names, self.targets = weights.class_names, weights.targets
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

    def answers(self, pixels: Pixels) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """What each output says, (N, outputs), and how unlike the pictures that were learnt from each one is, (N,)."""
        outputs = self.outputs(self.preprocess.normalise(torch.from_numpy(pixels)))
        distances = self.distances(outputs)
        return self.values(outputs).numpy(), None if distances is None else distances.numpy()

    def values(self, outputs: Outputs) -> Tensor:  # → (n, outputs)
        """What each output says: the probability of a class or of a label, at the calibrated temperatures; a number."""
        self._check(outputs)
        return values_of(outputs.logits, self.targets, self.calibration)

    @property
    def identity(self) -> str:
        """Which weights and calibration these are: the same for the same numbers, whatever file they come from."""
        measured = vars(self.calibration).values() if self.calibration else ()
        return f"{identity(self.weights)} {digest(one for one in measured if isinstance(one, Tensor))}"

    @property
    def alone(self) -> bool:
        """Whether one thread at a time should ask: nobody knows what somebody's own model keeps in itself."""
        return is_plugin(self.model.config.kind)

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """(outputs,) from which probability on a label is said: as validation found; else one half."""
        return thresholds_of(self.targets, self.calibration)

    @property
    def margins(self) -> NDArray[np.float64]:
        """(outputs,) how far a number may be off, so that 90 % of pictures are not farther; 0: nobody knows."""
        return margins_of(self.targets, self.calibration)

    def probabilities(self, outputs: Outputs) -> Tensor:  # → (n, classes)
        """Softmax at the calibrated temperature; without a calibration, at 1. Of pictures that have one class."""
        self._check(outputs)
        if not is_one_class(self.targets):
            raise WeightsError(
                "This model does not tell one class of a picture: Classifier.predict says what it tells."
            )
        return self.calibration.probabilities(outputs.logits) if self.calibration else outputs.logits.softmax(dim=1)

    def _check(self, outputs: Outputs) -> None:
        if not outputs.logits.isfinite().all():
            raise WeightsError("The model answers with numbers that are not finite: its weights are damaged.")

    def distances(self, outputs: Outputs) -> Tensor | None:  # → (n,)
        """How unlike the pictures that were learnt from each one is; above 1, unlike them all. None: not measured."""
        return self.calibration.distances(outputs.features) if self.calibration else None


def load_calibrated(source: Source, code: Code = ()) -> tuple[Weights, Calibration | None]:
    """The weights of a run, of any library or of a model in memory, and the calibration beside them, where there is
    one. What is in memory stays as it is, in its mode and on its device: the weights are a copy."""
    if (run := run_of(source)) is not None:
        weights = run.weights(code)
        return weights, run.calibration(weights)
    if isinstance(source, Model):
        raise WeightsError(
            f"A {type(source).__name__} by itself does not know how pictures are prepared, nor what its classes are "
            "called: give Weights(model, preprocess, class_names)."
        )
    if isinstance(source, Weights):
        return replace(source, model=deepcopy(source.model).cpu().float().eval()), None
    assert not isinstance(source, Run)
    pretrained = load_pretrained(source, code=code)
    if pretrained.folder is None:
        return pretrained, None
    return pretrained, Calibration.load(pretrained.folder, pretrained.model, pretrained.other_targets)


def run_of(source: Source) -> Run | None:
    """The run that this is; None: it is weights, or in memory."""
    if isinstance(source, Run):
        return source
    return Run.load(source) if isinstance(source, str | Path) and Run.is_run(path_of(source, WeightsError)) else None


def choose_device(name: str, setting: str = "device") -> torch.device:
    """The device of this name; auto: the best that is there. CUDA and MPS are written for, and not tested."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(device for device, is_there in available.items() if is_there))
    if not available.get(name):
        raise RecipeError(f"{setting} is {name}, and torch finds none here. Set {setting}=auto or cpu.")
    return torch.device(name)


def name_of_source(source: Source) -> str:
    """A word for it: of a model in memory, its class."""
    if isinstance(source, Run):
        return source.folder.resolve().name
    if isinstance(source, Weights | nn.Module):
        return type(source.model if isinstance(source, Weights) else source).__name__
    return name_of(source)
