"""Does a graph answer as the model that it is from? It is asked in its own runtime about real pictures, and compared
twice: the outputs for the same pixels, and the answers from the picture on disk to the label. A graph with shorter
numbers than float32 has other outputs: of it the answers are counted, and it may cost as much as its header says."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.classifier import Classifier
from vitral.deploy.cost import OF_NUMBER, Cost
from vitral.deploy.samples import Samples
from vitral.errors import DataError
from vitral.graph import Arrays, GraphModel, Pixels, Reduced, values_name
from vitral.inference import Inference
from vitral.look.maps import as_vit
from vitral.look.readings import answer_by_head
from vitral.predictions import LabelsPrediction, NumberPrediction, Prediction, TasksPrediction
from vitral.progress import Progress, Tell, silent
from vitral.targets import Target, columns

TOLERANCE = 1e-4  # of a logit; of other outputs, as a share of the largest one if that is above 1
NEAR_TIE = 2e-4  # two logits that are closer may change places, as each may be off by the tolerance
BATCH = 8  # pictures that are tried at once
FEW = 3  # examples in a sentence


@dataclass(frozen=True)
class Parity:
    """How a graph answered for real pictures, beside the model that it is from."""

    runtime: str  # with its version
    pictures: int
    split: str
    differences: dict[str, float]  # the largest one of each output, for the same pixels
    wrong: tuple[str, ...]  # outputs that differ by more than is allowed
    near_ties: tuple[str, ...]  # pictures with another answer, where the model's best two are as good as equal
    changed: tuple[str, ...]  # pictures with another answer, and both answers
    reduced: Reduced | None = None  # by which rule it is judged
    cost: Cost | None = None  # of a reduced graph

    @property
    def is_same(self) -> bool:
        """Whether it is the same model; of a reduced graph, whether its other answers cost no more than it may."""
        if self.reduced and self.cost:
            return not self.wrong and self.cost.within(self.reduced.loss)
        return not self.changed and not self.wrong

    def __str__(self) -> str:
        if self.reduced and self.cost:
            same = self.pictures - self.cost.other
            return (
                f"Tried with {self.runtime} on {self.pictures} {self.split} pictures: {same} answers are those of the "
                f"model in float32. {str(self.cost).capitalize()}, and {self.reduced.loss:g} are allowed."
            )
        same, ties = self.pictures - len(self.near_ties), ""
        if self.near_ties:
            ties = f"; near-ties, which fell the other way: {_few(self.near_ties)}"
        return (
            f"Tried with {self.runtime} on {self.pictures} {self.split} pictures: logits differ by at most "
            f"{self.differences['logits']:.1e}, and {same} of {self.pictures} answers are the same{ties}."
        )

    @property
    def faults(self) -> str:
        """What is wrong, in sentences."""
        if self.cost and not self.wrong:
            return str(self)
        words = [f"{name} by {self.differences[name]:.3g}" for name in self.wrong]
        outputs = f" For the same pixels outputs differ: {', '.join(words)}." if words else ""
        answers = f" Of the answers {len(self.changed)} changed: {_few(self.changed)}." if self.changed else ""
        return f"Tried with {self.runtime} on {self.pictures} {self.split} pictures.{outputs}{answers}"


def compare(
    graph: GraphModel,
    inference: Inference,
    samples: Samples,
    others: Collection[str] = (),
    tell: Tell = silent,
) -> Parity:
    """Ask both about the same pictures; `others` are further outputs that the graph has."""
    reduced, pictures = graph.header.reduced, samples.pictures
    model, file = Classifier(inference.weights, inference.calibration), Classifier(graph)
    names, tried = list(pictures), 0
    differences: dict[str, float] = {}
    limits: dict[str, float] = {}
    near_ties: list[str] = []
    changed: list[str] = []
    right: list[tuple[bool, bool]] = []  # the model's answer, and the graph's
    for start in range(0, len(names), BATCH):
        tell(Progress(start, len(names), "trying pictures"))
        some = [pictures[name] for name in names[start : start + BATCH]]
        answers = [
            (name, picture, ours, theirs)
            for name, picture, ours, theirs in zip(names[start:], some, model.each(some), file.each(some), strict=False)
            if isinstance(ours, Prediction)
        ]
        if not answers:
            continue
        pixels = np.stack([inference.preprocess.resized(picture) for _, picture, _, _ in answers])
        expected = _outputs(inference, pixels, others)
        for count in {len(pixels), 1}:  # also alone: a graph may have kept the number of pictures that it was made with
            actual = graph.run(pixels[:count])
            for name, array in expected.items():
                off = _difference(array[:count], actual.get(name))
                differences[name] = max(differences.get(name, 0.0), off)
                limits[name] = max(limits.get(name, 1.0), 1.0 if name == "logits" else float(np.abs(array).max()))
        tried += len(answers)
        for logits, (name, _, ours, theirs) in zip(expected["logits"], answers, strict=True):
            of_number = OF_NUMBER if reduced else TOLERANCE
            same = isinstance(theirs, Prediction) and _same(inference, ours, theirs, logits, 0, of_number)
            label = samples.labels.get(name)
            right.append((ours.label == label, _label(theirs) == label) if label else (True, same))
            if same:
                continue
            if isinstance(theirs, Prediction) and not reduced and _same(inference, ours, theirs, logits, NEAR_TIE):
                near_ties.append(name)
            else:
                changed.append(f"{name} ({ours}; the file: {theirs})")
    tell(Progress(len(names), len(names), "trying pictures"))
    if not tried:
        raise DataError("None of the pictures could be read, so the file could not be tried.")
    most = np.inf if reduced else TOLERANCE
    wrong = tuple(name for name, off in differences.items() if not off <= most * limits[name] or off == np.inf)
    ours_right, theirs_right = np.array(right).T
    cost = Cost.of(ours_right, theirs_right, len(changed), bool(samples.labels)) if reduced else None
    return Parity(
        graph.runtime, tried, samples.split, differences, wrong, tuple(near_ties), tuple(changed), reduced, cost
    )


def _label(answer: Prediction | DataError) -> str | None:
    return answer.label if isinstance(answer, Prediction) else None


def _outputs(inference: Inference, pixels: Pixels, others: Collection[str]) -> Arrays:
    """What the model itself says, by the names that a graph has for it."""
    images = inference.preprocess.normalise(torch.from_numpy(pixels))
    outputs = inference.outputs(images)
    arrays = {"logits": outputs.logits, values_name(inference.targets): inference.values(outputs)}
    if (distances := inference.distances(outputs)) is not None:
        arrays["distance"] = distances
    if "features" in others:
        arrays["features"] = outputs.features
    if "attention" in others:
        arrays["attention"] = answer_by_head(as_vit(inference.model), images)[:, 0]
    return {name: tensor.numpy() for name, tensor in arrays.items()}


def _difference(expected: NDArray[np.float32], actual: NDArray[np.float32] | None) -> float:
    if actual is None or actual.shape != expected.shape:
        return np.inf
    return float(np.nan_to_num(np.abs(actual - expected), nan=np.inf).max())


def _same(
    inference: Inference,
    ours: Prediction,
    theirs: Prediction,
    logits: NDArray[np.float32],
    slack: float,
    of_number: float = TOLERANCE,
) -> bool:
    """Whether two answers for a picture are the same; with some slack, whether those logits could give either.
    `of_number`: by how much of its standard deviation a number may be off."""
    return all(
        _same_target(target, one, other, logits[mine], slack, of_number)
        for (target, mine), one, other in zip(
            zip(inference.targets, columns(inference.targets), strict=True), _each(ours), _each(theirs), strict=True
        )
    )


def _each(prediction: Prediction) -> list[Prediction]:
    return list(prediction.tasks.values()) if isinstance(prediction, TasksPrediction) else [prediction]


def _same_target(
    target: Target,
    ours: Prediction,
    theirs: Prediction,
    logits: NDArray[np.float32],
    slack: float,
    of_number: float,
) -> bool:
    if isinstance(ours, NumberPrediction) and isinstance(theirs, NumberPrediction):
        rounding = 1e-6 * abs(ours.value)
        return abs(ours.value - theirs.value) <= of_number * target.std + rounding
    if isinstance(ours, LabelsPrediction) and isinstance(theirs, LabelsPrediction):
        limits = dict(zip(dict(ours.probabilities), ours.thresholds, strict=True))
        return all(
            name in limits and abs(dict(ours.probabilities)[name] - limits[name]) < slack
            for name in {*ours.labels} ^ {*theirs.labels}
        )
    if ours.label == theirs.label:
        return True
    known = theirs.label in target.names
    return known and logits[target.names.index(ours.label)] - logits[target.names.index(theirs.label)] < slack


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
