"""Evaluate a run on pictures that it has never seen."""

import hashlib
import math
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.data.check import UNASKED, check
from vitral.data.pack import Pack, pack
from vitral.data.sources import SPLITS, Index, open_source
from vitral.data.sources.named import data_directory
from vitral.data.sources.python import PythonSource, open_python
from vitral.data.sources.shards import is_streamed
from vitral.errors import DataError, RecipeError, RunError, VitralError
from vitral.evaluation.baseline import (
    BaselineComparison,
    TargetComparison,
    compare_targets,
    compare_with_baseline,
)
from vitral.evaluation.metrics import FEW_GROUPS, METRICS, Figure, Metrics, measure, share
from vitral.evaluation.target_metrics import AnyMetrics, measure_targets
from vitral.evaluation.write_targets import write_targets
from vitral.inference import (
    Outputs,
    Source,
    load_calibrated,
    margins_of,
    name_of_source,
    outputs_of_pack,
    run_of,
    thresholds_of,
    values_of,
)
from vitral.plugin import Code
from vitral.processes import Processes
from vitral.progress import OutOfTime, Progress, Tell, silent, until
from vitral.recipe import Recipe
from vitral.rounds import Rounds, place_of
from vitral.run import EVALUATIONS, Run, last_name
from vitral.settings import FORMAT
from vitral.targets import Target, columns, is_one_class, same
from vitral.weights.calibration import Calibration, TemperatureFit
from vitral.weights.own import Weights, identity


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model on test pictures, with the outputs and labels that they come from."""

    origin: Run | None  # the run that it is of; None: the weights are in no run
    weights: Weights
    calibration: Calibration | None  # None: there were no validation pictures to find a temperature with
    pack: Pack
    numbers: NDArray[np.int64]  # (n,) of the test pictures in the pack
    outputs: Outputs
    labels: NDArray[Any]  # (n,); or (n, outputs), where there are other targets than one class
    results: Path | None  # the folder that they are written into; None: nowhere
    own: bool = True  # whether these are the run's own test pictures, and not those of another source
    mirrored: bool = False  # whether the mean with the mirror image was taken
    notes: tuple[str, ...] = ()  # a sentence each
    left_out: list[str] = field(default_factory=list)  # what there was no time for
    task: str = ""  # of a part: the one of several targets that it is about
    first: int = 0  # of a part: the number of its first output among those of the model

    @property
    def run(self) -> Run:
        """The run; a RunError for weights that are in none."""
        if self.origin is None:
            raise RunError("The weights that were measured are in no run.")
        return self.origin

    @property
    def folder(self) -> Path:
        """The folder of the results; a RunError where they are not written."""
        if self.results is None:
            raise RunError("These results are not written: say where, with out.")
        return self.results

    @property
    def name(self) -> str:
        """A word for what was measured."""
        return "The model" if self.origin is None else str(self.origin.folder)

    @property
    def pictures(self) -> int:
        """The number of test pictures."""
        return len(self.numbers)

    @property
    def samples(self) -> list[str]:
        """The names of the test pictures."""
        return [self.pack.index.samples[number] for number in self.numbers]

    def images(self, chosen: NDArray[np.int64] | list[int]) -> NDArray[np.uint8]:
        """Some of the test pictures as the model sees them: (chosen, C, H, W)."""
        return self.weights.preprocess.centre(self.pack.images[self.numbers[chosen]])

    @cached_property
    def parts(self) -> "tuple[Evaluation, ...]":
        """One for each target, as if the model told nothing else of a picture."""
        if len(self.targets) == 1:
            return (self,)
        each = enumerate(zip(self.targets, columns(self.targets), strict=True))
        return tuple(self._part(place, target, mine) for place, (target, mine) in each)

    def _part(self, place: int, target: Target, mine: slice) -> "Evaluation":
        others = () if target.kind == "class" else (target,)
        return replace(
            self,
            weights=replace(self.weights, class_names=target.names, other_targets=others),
            calibration=self.calibration and self.calibration.of_target(place, mine, target),
            outputs=Outputs(self.outputs.logits[:, mine], self.outputs.features),
            labels=self.labels[:, mine].argmax(axis=1) if target.kind == "class" else self.labels[:, mine],
            task=target.name,
            first=mine.start,
        )

    def file(self, name: str) -> Path:
        """The path of a figure; of a part behind the name of its task."""
        task = re.sub(r"[^\w.]+", "-", self.task)
        return self.folder / (f"{task}-{name}" if task else name)

    @property
    def right(self) -> NDArray[np.bool_]:
        """(n,) whether the answer was right; of labels, whether all were said and no other. Not of a number."""
        if is_one_class(self.targets):
            return self.outputs.predicted == self.labels
        right: NDArray[np.bool_] = (self.said == (self.labels > 0.5)).all(axis=1)
        return right

    @property
    def said(self) -> NDArray[np.bool_]:
        """(n, labels) whether a label was said: its probability reaches its threshold."""
        said: NDArray[np.bool_] = self.values >= thresholds_of(self.targets, self.calibration)
        return said

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """(n, classes), as `predict` gives them."""
        logits = self.outputs.logits.double()
        return (self.calibration.probabilities(logits) if self.calibration else logits.softmax(dim=1)).numpy()

    @property
    def targets(self) -> tuple[Target, ...]:
        """What the model tells of a picture."""
        return self.weights.targets

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """(n, outputs) what each output says: a probability, as `predict` gives it, or a number."""
        return values_of(self.outputs.logits.double(), self.targets, self.calibration).numpy()

    @cached_property
    def by_target(self) -> dict[str, AnyMetrics]:
        """All metrics of each target by its name; of one class it is called `label`."""
        if is_one_class(self.targets):
            return {self.targets[0].name: self.metrics}
        if len(self.targets) > 1:
            return {part.task: part.measured for part in self.parts}
        return self._measure(self.values)

    @property
    def measured(self) -> AnyMetrics:
        """All metrics where there is one target."""
        [metrics] = self.by_target.values()
        return metrics

    @cached_property
    def uncalibrated_by_target(self) -> dict[str, AnyMetrics]:
        """The same, of the probabilities without temperatures."""
        return self._measure(values_of(self.outputs.logits.double(), self.targets).numpy())

    def _measure(self, values: NDArray[np.float64]) -> dict[str, AnyMetrics]:
        thresholds, margins = (of(self.targets, self.calibration) for of in (thresholds_of, margins_of))
        return measure_targets(self.targets, self.labels, values, thresholds, margins, self.group_of)

    @property
    def figures(self) -> dict[str, Figure]:
        """All figures by name; of several tasks each behind the name of its task: digit_accuracy."""
        return {
            name if len(self.targets) == 1 else f"{target}_{name}": figure
            for target, metrics in self.by_target.items()
            for name, figure in metrics.figures.items()
        }

    @cached_property
    def metrics(self) -> Metrics:
        """All metrics, of the calibrated probabilities. Where a picture has not one class, `by_target` has them."""
        if not is_one_class(self.targets):
            raise RunError(
                f"{self.name} tells not one class of a picture, but {', '.join(one.name for one in self.targets)}: "
                "Evaluation.by_target has the metrics of each."
            )
        return measure(self.labels, self.probabilities, self.weights.class_names, self.group_of)

    @property
    def unknown(self) -> Figure | None:
        """How many of these pictures `predict` calls unknown; None: that was not measured."""
        if self.calibration is None:
            return None
        return share(int((self.calibration.distances(self.outputs.features) > 1).sum()), self.pictures)

    @cached_property
    def uncalibrated(self) -> Metrics:
        """All metrics, of the probabilities without the temperature."""
        plain = self.outputs.logits.double().softmax(dim=1).numpy()
        return (
            measure(self.labels, plain, self.weights.class_names, self.group_of) if self.calibration else self.metrics
        )

    @property
    def loss(self) -> float:
        """Mean cross-entropy on the test pictures, as in training: without the temperature."""
        return self.uncalibrated.loss.value

    @property
    def accuracy(self) -> float:
        """Share of right answers on the test pictures."""
        return self.metrics.accuracy.value

    @property
    def baseline(self) -> BaselineComparison | None:
        """The comparison with the simple methods that were tried first, if they were."""
        baseline = self.run.baseline if self.own and is_one_class(self.targets) and not self.task else None
        return None if baseline is None else compare_with_baseline(baseline, self.samples, self.right, self.group_of)

    @cached_property
    def baselines(self) -> dict[str, TargetComparison]:
        """The same for each target, by its name, where a picture has not one class."""
        baseline = self.run.baseline if self.own and self.origin else None
        if baseline is None or is_one_class(self.targets):
            return {}
        return compare_targets(baseline, self.targets, self.samples, self.labels, self.values, self.group_of)

    @property
    def beside(self) -> BaselineComparison | None:
        """The old name of `baseline`."""
        warnings.warn("Evaluation.beside is now called baseline.", DeprecationWarning, stacklevel=2)
        return self.baseline

    @property
    def group_of(self) -> list[str] | None:
        """(n,) the group of each picture, where data.group_by says what belongs together."""
        groups = self.pack.index.groups
        return None if groups is None else [groups[number] for number in self.numbers]

    @cached_property
    def groups(self) -> dict[str, Figure]:
        """The accuracy of each group of pictures, the worst first."""
        if self.group_of is None or not is_one_class(self.targets):
            return {}
        group_of = np.array(self.group_of)
        members = {str(name): self.right[group_of == name] for name in np.unique(group_of)}
        shares = {name: share(int(right.sum()), len(right)) for name, right in members.items()}
        return dict(sorted(shares.items(), key=lambda one: one[1].value))

    @property
    def confusion(self) -> NDArray[np.int64]:
        """(classes, classes): rows are labels, columns are predictions."""
        return self.metrics.confusion

    def write(self) -> dict[str, Any]:
        """The evaluation as values for evaluation.json."""
        if not is_one_class(self.targets):
            return write_targets(self)
        names, predicted = self.weights.class_names, self.outputs.predicted
        names_with_temperature = {metric.name for metric in METRICS if metric.uses_temperature}
        figures = self.uncalibrated.figures.items()
        plain = {name: figure for name, figure in figures if name in names_with_temperature}
        return {
            "format": FORMAT,
            "split": "test" if self.own else "all",
            **({} if self.own else {"source": self.pack.index.source}),
            **({"mirrored": True} if self.mirrored else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            "pictures": self.pictures,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "accuracy_interval": [self.metrics.accuracy.low, self.metrics.accuracy.high],
            "figures": _as_dicts(self.metrics.figures),
            **{f"{name}_by_chance": value for name, value in self.metrics.by_chance.items()},
            **({"temperature": float(self.calibration.temperature)} if self.calibration else {}),
            **({"temperature_fit": _fit(self.calibration.fit)} if self.calibration and self.calibration.fit else {}),
            **({"uncalibrated": _as_dicts(plain)} if self.calibration else {}),
            **({"called_unknown": asdict(self.unknown)} if self.unknown else {}),
            "class_names": list(names),
            "per_class": [_without_none(asdict(one)) for one in self.metrics.classes],
            "reliability": [asdict(one) for one in self.metrics.reliability],
            **({"groups": {name: asdict(figure) for name, figure in self.groups.items()}} if self.groups else {}),
            "confusion": self.confusion.tolist(),
            **({"baseline": self.baseline.write()} if self.baseline else {}),
            "predictions": [
                {
                    "sample": sample,
                    "label": names[self.labels[i]],
                    "predicted": names[predicted[i]],
                    "probability": float(self.probabilities[i, predicted[i]]),
                    **({"group": self.group_of[i]} if self.group_of else {}),
                }
                for i, sample in enumerate(self.samples)
            ],
        }


def _fit(fit: TemperatureFit) -> dict[str, Any]:
    return {**asdict(fit), "kept": fit.kept}


def _as_dicts(figures: dict[str, Figure]) -> dict[str, dict[str, Any]]:
    return {name: _without_none(asdict(figure)) for name, figure in figures.items()}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _open_own(recipe: Recipe, run: Run, tell: Tell) -> Index:
    try:
        return open_source(recipe.data, tell=tell)
    except RecipeError as error:
        raise DataError(
            f"The pictures of {run.folder} cannot be found: it was trained with data.source={recipe.data.source}, "
            f"which is looked for from where you stand. {error}"
        ) from None


def evaluate(
    run: Source,
    data: str | Path | None = None,
    *,
    mirrored: bool = False,
    source: PythonSource | Pack | None = None,
    out: str | Path | None = None,
    code: Code = (),
    seconds: float = math.inf,
    tell: Tell = silent,
    processes: Processes | None = None,
) -> Evaluation:
    """Measure a run on its test pictures, write evaluation.json and draw the figures into its folder.

    With `data`, on all pictures of another source, whose classes are found by name; `mirrored` also asks about every
    picture's mirror image and takes the mean. Both are written into a folder of their own in `evaluations/`.
    `source`: the pictures that the run was trained with, where a Python program handed them over, or as a Pack that is
    open already. `code`: files of Python that may be run, where the model is in one.

    `run` may also be weights that are in no run, Weights, or a module of timm or transformers in memory: it is measured
    on all pictures of `data` or `source`. Its results are written where `out` says, or nowhere.

    After so many `seconds`, what can wait is left out: the check of all pictures, the grades of maps. `tell` hears how
    far it is. Of several `processes` each asks about a share of the pictures; then all have the same Evaluation, and
    the first one writes. After an interruption the same call does not ask again what was answered.
    """
    from vitral.evaluation.figures import draw
    from vitral.evaluation.report import write_report

    processes = processes or Processes()
    ends_at = time.perf_counter() + seconds
    if out is not None and Run.is_run(out):
        raise RunError(f"{out} is a run, and has an evaluation of its own. Choose another folder with out.")
    has_pictures = data is not None or source is not None  # else it must be a run
    if isinstance(run, str | Path) and not has_pictures and Path(run).exists() and not Run.is_run(run):
        raise RunError(f"{run} is not a run, so it has no pictures of its own. Name some: vitral evaluate {run} FOLDER")
    origin = Run.load(run) if isinstance(run, str | Path) and not has_pictures else run_of(run)
    weights, calibration = load_calibrated(origin or run, code)
    name = str(run) if isinstance(run, str | Path) else str(origin.folder) if origin else name_of_source(run)
    weights.check_head(name)
    folder = Path(out) if out is not None else _folder(origin, data, mirrored) if origin else None
    if origin and processes.first:
        origin.check_writable()
    if origin and data is None:
        packed, numbers, labels, notes = _own(origin, weights, source, tell)
    else:
        packed, numbers, labels, notes = _other(origin, name, weights, source if data is None else data, tell)
    same = {"weights": identity(weights), "pictures": packed.sha256}
    processes.agree(same)
    directory = data_directory((origin.recipe if origin else Recipe()).data.directory)
    place = place_of(directory, "evaluate", *same.values(), mirrored, numbers.tolist())
    rounds = Rounds(processes, tell, None if code else place)  # somebody's own code may have changed meanwhile
    one_class = is_one_class(weights.targets)
    outputs = outputs_of_pack(weights.model, packed, numbers, weights.preprocess, mirrored, one_class, rounds)
    if mirrored and calibration:
        notes += ("The temperature was found without mirror images: probabilities may be less well calibrated.",)
    if mirrored and origin and origin.recipe.data.augment.flip == "none":
        notes += ("It has not learnt from mirrored pictures (data.augment.flip), so they may be strange to it.",)
    evaluation = Evaluation(
        origin=origin,
        weights=weights,
        calibration=calibration,
        pack=packed,
        numbers=numbers,
        outputs=outputs,
        labels=labels,
        results=folder,
        own=origin is not None and data is None,
        mirrored=mirrored,
        notes=(*weights.notes, *notes),
    )
    if 1 < len(evaluation.groups) < 2 * FEW_GROUPS:
        few = f"The pictures are of {len(evaluation.groups)} groups only: another group may be quite different."
        evaluation = replace(evaluation, notes=(*evaluation.notes, few))
    if folder is not None and processes.first:
        results = origin or Run(folder)
        results.write_evaluation(evaluation.write(), folder)
        with results.writing():
            tell(Progress(0, 1, "drawing"))
            draw(evaluation)
            if evaluation.own:
                now = time.perf_counter()
                _check_pictures(evaluation, until(now + (ends_at - now) / 2, tell))
            if origin:
                write_report(evaluation, until(ends_at, tell))
    rounds.forget()
    return evaluation


def _check_pictures(evaluation: Evaluation, tell: Tell) -> None:
    """Write check.json, where nobody has and there is time for it."""
    run, packed = evaluation.run, evaluation.pack
    if run.checked is not None or len(packed.index.samples) > UNASKED:
        return
    try:
        report = check(packed.index, tell, packed.inspection)
    except OutOfTime:
        evaluation.left_out.append("a check of all pictures")
    else:
        run.write_checked(report.write())


def _folder(run: Run, data: str | Path | None, mirrored: bool) -> Path:
    """The folder of the results: the run's own, or one in evaluations/ that nothing else is in."""
    if data is None:
        return run.folder / EVALUATIONS / "own-mirrored" if mirrored else run.folder
    name = last_name(str(data)) + ("-mirrored" if mirrored else "")
    for number in count(1):
        folder = run.folder / EVALUATIONS / (name if number == 1 else f"{name}-{number}")
        previous = Run(folder).evaluation
        if previous is None or (previous.get("source"), previous.get("mirrored", False)) == (str(data), mirrored):
            return folder
    raise AssertionError  # there are enough numbers


Pictures = tuple[Pack, NDArray[np.int64], NDArray[Any], tuple[str, ...]]  # pack, numbers, labels, notes


def _own(run: Run, weights: Weights, source: PythonSource | Pack | None, tell: Tell) -> Pictures:
    """The run's own test pictures."""
    recipe = run.recipe
    if isinstance(source, Pack):
        packed = source
    else:
        index = _open_own(recipe, run, tell) if source is None else open_python(source, recipe.data)
        packed = pack(index, weights.preprocess, data_directory(recipe.data.directory), tell)
    if packed.sha256 != run.record.data.sha256:
        raise DataError(
            f"The pictures of {recipe.data.source} are not those that {run.folder} was trained with: "
            "they, their labels or their split have changed, so its test pictures may no longer be unseen."
        )
    numbers = packed.of("test")
    if not len(numbers):
        raise DataError(f"{recipe.data.source} has no test pictures to measure {run.folder} on.")
    return packed, numbers, packed.index.labels[numbers], tuple(packed.notes)


def _other(
    run: Run | None, model: str, weights: Weights, source: str | Path | PythonSource | Pack | None, tell: Tell
) -> Pictures:
    """All pictures of another source whose class the model knows."""
    if source is None:
        raise DataError(f"{model} is no run, so it has no test pictures of its own: name some to measure it on.")
    recipe = run.recipe if run else Recipe()
    if isinstance(source, Pack):
        index = source.index  # its pixels may have been prepared for another model
    elif isinstance(source, str | Path):
        index = open_source(recipe.changed({"data.source": str(source)}).data, tell=tell)
    else:
        index = open_python(source, recipe.data)
    if not (is_one_class(weights.targets) and is_one_class(index.targets)):
        check_same_targets(index, model, weights.targets)
    packed = pack(index, weights.preprocess, data_directory(recipe.data.directory), tell)
    source = packed.index.source
    if not is_one_class(weights.targets):
        numbers = np.concatenate([packed.of(split) for split in SPLITS])
        notes = [*packed.notes, f"All readable pictures of {source} are measured on, whatever split they are in."]
        notes += training_overlap(run, packed, numbers) if run else []
        return packed, numbers, packed.index.labels[numbers], tuple(notes)
    known = {name: label for label, name in enumerate(weights.class_names)}
    theirs = np.array([known.get(name, -1) for name in packed.index.class_names])
    numbers = np.concatenate([packed.of(split) for split in SPLITS])
    labels = theirs[packed.index.labels[numbers]]
    unknown = [name for name in packed.index.class_names if name not in known]
    if not (labels >= 0).any():
        raise DataError(
            f"{source} has no class that {model} knows: it has {_some(unknown)}, and the model {_some([*known])}."
        )
    notes = [*packed.notes, f"All readable pictures of {source} are measured on, whatever split they are in."]
    if unknown:
        notes.append(
            f"{(labels < 0).sum():,} pictures are left out, of classes that the model does not know: {_some(unknown)}."
        )
    if missing := [name for name, label in known.items() if not (labels == label).any()]:
        notes.append(f"{source} has no pictures of {_some(missing)}: nothing is known about that.")
    notes += training_overlap(run, packed, numbers[labels >= 0]) if run else []
    return packed, numbers[labels >= 0], labels[labels >= 0], tuple(notes)


def check_same_targets(index: Index, model: str, targets: tuple[Target, ...]) -> None:
    """Refuse pictures of which other things are known than a model tells."""

    def words(some: tuple[Target, ...]) -> str:
        return ", ".join(f"{one.name} ({one.kind}: {_some([*one.names])})" for one in some)

    if not same(index.targets, targets):
        raise DataError(
            f"{model} tells {words(targets)} of a picture, and {index.source} knows {words(index.targets)}: they must "
            "be the same, in columns of the same names."
        )


MOST_READ = 50_000  # pictures of shards that are decoded only to see whether they are the same


def training_overlap(run: Run, packed: Pack, numbers: NDArray[np.int64]) -> list[str]:
    """A note, where the run was trained or validated with some of these pictures; none where its own are gone."""
    recipe = run.recipe
    try:
        own = pack(open_source(recipe.data), run.weights().preprocess, data_directory(recipe.data.directory))
    except VitralError:
        return []
    learnt = np.concatenate([own.of("train"), own.of("validation")])
    if sum(len(some) for one, some in ((own, learnt), (packed, numbers)) if is_streamed(one.index)) > MOST_READ:
        return [
            "Whether any of these pictures was learnt from is not known: for that, all shards would have to be read."
        ]
    known = set(_digests(own, learnt))
    again = sum(digest in known for digest in _digests(packed, numbers))
    repeats = f"{again:,} of these {len(numbers):,} pictures were learnt from, or watched in training"
    return [f"{repeats}: as far as they go, this is no test."] if again else []


def _digests(packed: Pack, numbers: NDArray[np.int64]) -> Iterator[bytes]:
    """A digest of the pixels of each picture: equal also where files have other names."""
    for number in numbers:
        yield hashlib.blake2b(packed.images[number].tobytes(), digest_size=16).digest()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
