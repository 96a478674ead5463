"""Runs side by side: the settings in which they differ, their results, and their learning curves.

Runs whose recipes differ only in `train.seed` are one group, with mean ± sd. Nothing is trained or measured here.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitral.errors import RunError
from vitral.evaluation.paired import PairedComparison, compare_paired
from vitral.evaluation.paired_targets import compare_labels, compare_numbers
from vitral.look.figures import BLUE, GREEN, GREY, INK, ORANGE, RED, figure
from vitral.predictions import number_words
from vitral.recipe import Recipe
from vitral.run import EVALUATION, METRICS, Record, Run
from vitral.settings import Part, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = {"class": "accuracy", "labels": "map", "number": "mae"}  # the main one of each kind of target
COLOURS = (BLUE, ORANGE, GREEN, RED, "#CC79A7", "#56B4E9", INK, GREY)  # Okabe and Ito's, and grey
# Where one of these differs, the train loss is of something else.
OTHER_LOSS = (
    *("data.augment", "data.sampling"),
    *("train.objective", "train.label_smoothing", "train.class_weights", "train.regularise"),
)
# Recipes that differ in these alone give the same weights, but for the seed.
ALIKE: dict[str, Any] = {"train.seed": 0, "train.test_curve": False, "reported": {}}


@dataclass(frozen=True)
class Member:
    """A run, as read from its folder."""

    run: Run
    recipe: Recipe
    record: Record
    epochs: list[dict[str, Any]]
    evaluation: dict[str, Any] | None

    @property
    def measures(self) -> dict[str, float]:
        """Losses and figures of the last epoch, the main figures of the evaluation, seconds and steps."""
        values = {name: self.epochs[-1][name] for name in self.epochs[-1] if name.startswith(("train_", "validation_"))}
        values["seconds"], values["steps"] = self.record.seconds, self.record.steps
        values["steps"] = values["steps"] or self.epochs[-1]["step"]  # run.json has them when the training ends
        values |= {name: value for name, (value, _) in self.tested.items()}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def targets(self) -> list[dict[str, Any]]:
        """What evaluation.json has of each target; none where a picture has one class, or nobody has measured."""
        return list((self.evaluation or {}).get("targets", []))

    @property
    def tells(self) -> str:
        """What it tells of a picture, in words: equal where two runs can be compared."""
        if not self.targets:
            return "one class"
        names = [
            one.get("class_names") or [label["name"] for label in one.get("per_label", [])] for one in self.targets
        ]
        return ", ".join(
            f"{one['name']} ({one['kind']}{': ' if some else ''}{', '.join(some)})"
            for one, some in zip(self.targets, names, strict=True)
        )

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of its main figures: of several tasks each is behind the name of its task."""
        if self.targets:
            alone = len(self.targets) == 1
            return tuple(("" if alone else f"{one['name']}_") + FIGURES[one["kind"]] for one in self.targets)
        told = [name.removeprefix("train_") for name in self.epochs[-1] if name.startswith("train_")]
        others = [name for name in told if name.rpartition("_")[2] in FIGURES.values()]
        return ("accuracy",) if self.evaluation or "accuracy" in told or not others else tuple(others)

    @property
    def tested(self) -> dict[str, tuple[float, tuple[float, float] | None]]:
        """The main figures on the test pictures, as measures, each with its 95 % interval."""
        if not self.evaluation:
            return {}
        if not self.targets:
            low, high = self.evaluation["accuracy_interval"]
            return {"test_accuracy": (float(self.evaluation["accuracy"]), (float(low), float(high)))}
        each = [one["figures"][FIGURES[one["kind"]]] for one in self.targets]
        intervals = [(float(one["low"]), float(one["high"])) if "low" in one else None for one in each]
        values = [(float(one["value"]), interval) for one, interval in zip(each, intervals, strict=True)]
        return {f"test_{name}": value for name, value in zip(self.figures, values, strict=True)}


@dataclass(frozen=True)
class Group:
    """Runs of one recipe, each with a seed of its own."""

    name: str
    members: tuple[Member, ...]

    def values(self, measure: str) -> list[float]:
        """The measure of each run that has it."""
        return [member.measures[measure] for member in self.members if measure in member.measures]

    def interval(self, measure: str) -> tuple[float, float] | None:
        """The 95 % interval of a test figure of a single run."""
        return self.members[0].tested.get(measure, (0.0, None))[1] if len(self.members) == 1 else None

    @property
    def test_samples(self) -> list[str]:
        """The names of the test pictures, if all runs have the same; else none."""
        labels = [_test_labels(member) for member in self.members]
        return sorted(labels[0]) if all(one == labels[0] for one in labels) else []

    @property
    def pictures(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """An identity of the test pictures and their labels, equal where both are the same."""
        return self.members[0].record.data.sha256, frozenset(_test_labels(self.members[0]).items())

    def answers(self, value: Callable[[dict[str, Any]], Any], target: str = "") -> NDArray[np.float64]:
        """(runs, n, …): a value of each run's answer to each of `test_samples`, and of several targets to this one; of
        several runs with one seed, the first."""
        by_seed: dict[int, list[Any]] = {}
        for member in self.members:
            lines = member.evaluation["predictions"] if member.evaluation else []
            values = {line["sample"]: value(line["targets"][target] if target else line) for line in lines}
            by_seed.setdefault(member.recipe.train.seed, [values[sample] for sample in self.test_samples])
        return np.array([*by_seed.values()], dtype=np.float64)

    @property
    def test_groups(self) -> list[str] | None:
        """The group of each of `test_samples`, where data.group_by said what belongs together."""
        lines = self.members[0].evaluation["predictions"] if self.members[0].evaluation else []
        groups = {line["sample"]: line["group"] for line in lines if "group" in line}
        return [groups[sample] for sample in self.test_samples] if groups else None

    def curve(self, name: str) -> dict[int, float]:
        """The mean of a figure over the runs, at the epochs that all of them have."""
        curves = [_curve(member, name) for member in self.members]
        shared = set.intersection(*(set(curve) for curve in curves))
        return {epoch: float(np.mean([curve[epoch] for curve in curves])) for epoch in sorted(shared)}


@dataclass(frozen=True)
class Comparison:
    """Groups, in the order in which they were named."""

    groups: tuple[Group, ...]

    @property
    def settings(self) -> dict[str, list[Any]]:
        """The settings in which they differ: a value per group; None: the group's kind of part has no such setting."""
        recipes = [dict(flat(group.members[0].recipe.changed(ALIKE))) for group in self.groups]
        names = dict.fromkeys(name for recipe in recipes for name in recipe)
        by_name = {name: [recipe.get(name) for recipe in recipes] for name in names}
        return {name: values for name, values in by_name.items() if any(value != values[0] for value in values)}

    @property
    def measures(self) -> tuple[str, ...]:
        """What is told of each group, in this order. Losses and validation figures are those of the last epoch."""
        members = [member for group in self.groups for member in group.members]
        figures = next((member for member in members if member.evaluation), members[0]).figures
        validated, tested = ([f"{split}_{name}" for name in figures] for split in ("validation", "test"))
        return ("train_loss", "validation_loss", *validated, *tested, "seconds", "steps")

    @property
    def pairs(self) -> list[PairedComparison]:
        """Each group beside the first, target by target, where all their runs were tested on the same pictures.

        Of several pairs each has a wider interval (Bonferroni): so that luck rarely makes one of them all seem better.
        """
        first, *others = self.groups
        targets = first.members[0].targets or [{"kind": "class", "name": ""}]
        shared: Any = {"groups": first.test_groups, "level": 1 - 0.05 / max(1, len(others) * len(targets))}
        return [
            _pair(first, other, target, **shared)
            for other in others
            if first.test_samples and other.test_samples and first.pictures == other.pictures
            for target in targets
        ]

    @property
    def notes(self) -> list[str]:
        """Sentences to know before believing the table."""
        return list(_notes(self))

    def write(self) -> dict[str, Any]:
        """The comparison as values for JSON."""
        names = [group.name for group in self.groups]
        return {
            "settings": {name: dict(zip(names, values, strict=True)) for name, values in self.settings.items()},
            "groups": [_group_values(group, self.measures) for group in self.groups],
            "pairs": [asdict(pair) for pair in self.pairs],
            "notes": self.notes,
        }


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the standard deviation of a sample (n - 1), which one number does not have.

    >>> mean_sd([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def compare(places: Iterable[str | Path]) -> Comparison:
    """Read runs, or folders that hold runs, and put those together that differ only in their seed."""
    folders = list(dict.fromkeys(folder for place in places for folder in _runs_in(Path(place))))
    if len(folders) < 2:
        raise RunError("One run alone cannot be compared: name two or more, or a folder that holds several.")
    together: dict[Recipe, list[Member]] = {}
    for folder in folders:
        member = read_member(folder)
        together.setdefault(member.recipe.changed(ALIKE), []).append(member)
    groups = [sorted(members, key=lambda member: member.recipe.train.seed) for members in together.values()]
    _check_same_targets([member for members in groups for member in members if member.evaluation])
    names = _names([[member.run.folder.resolve() for member in members] for members in groups])
    return Comparison(tuple(Group(name, tuple(members)) for name, members in zip(names, groups, strict=True)))


def flat(settings: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted name; a part's word stands under the name of the part: train.optimizer, muon."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(settings, Part) and name == "kind":
            yield prefix.rstrip("."), value
        else:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


def place_for(comparison: Comparison) -> Path:
    """The folder that a comparison is written to by default, such as comparisons/adamw-muon."""
    names = [group.name.replace("/", "-") for group in comparison.groups]
    more = [f"and-{len(names) - 3}-more"] if len(names) > 3 else []
    return Path("comparisons") / "-".join([*(name[:24] for name in names[:3]), *more])


def draw(comparison: Comparison, folder: Path) -> Path:
    """Draw `curves.png` into the folder, a colour per group, the mean thick, the runs thin; returns its path."""
    if Run.is_run(folder):
        raise RunError(f"{folder} is a run, and has its own curves.png. Choose another place with --out.")
    path, groups = folder / "curves.png", comparison.groups[: len(COLOURS)]
    members = [member for group in groups for member in group.members]
    # The first of these that all runs have: an objective of the user's own may have no accuracy.
    first = next(name for name in comparison.measures if name.startswith("test_")).removeprefix("test_")
    figures = (f"validation_{first}", f"train_{first}", "validation_loss", "train_loss")
    right = next(name for name in figures if all(name in member.epochs[-1] for member in members))
    what = "Thick: the mean over seeds; thin: each run." if any(len(group.members) > 1 for group in groups) else ""
    if len(groups) < len(comparison.groups):
        what += f" The first {len(groups)} of {len(comparison.groups)}."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with figure(path, 10, 4.4, "Learning curves, side by side", what.strip()) as canvas:
            for axes, name in zip(canvas.subplots(1, 2), ("train_loss", right), strict=True):
                _panel(axes, groups, name)
            _legend(axes, groups, right)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}). Choose another place with --out.") from None
    return path


def _panel(axes: "Axes", groups: Sequence[Group], name: str) -> None:
    for group, colour in zip(groups, COLOURS, strict=False):
        if len(group.members) > 1:
            for member in group.members:
                _line(axes, _curve(member, name), colour, 0.8, alpha=0.45)
        _line(axes, group.curve(name), colour, 2.2 if len(groups) < 5 else 1.6)
    title = in_words(name)
    axes.set(title=title[0].upper() + title[1:], xlabel="epoch")
    axes.grid(axis="y")
    axes.margins(x=0.01)
    axes.locator_params(axis="x", integer=True)
    if is_share(name):
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def _line(axes: "Axes", curve: dict[int, float], colour: str, width: float, alpha: float = 1.0) -> None:
    marker = "o" if len(curve) == 1 else ""
    axes.plot(list(curve), list(curve.values()), color=colour, marker=marker, linewidth=width, alpha=alpha)


def _legend(axes: "Axes", groups: Sequence[Group], name: str) -> None:
    """A legend beside the curves, in the order in which they end: the highest first, as the eye finds them."""
    from matplotlib.lines import Line2D

    entries = []
    for group, colour in zip(groups, COLOURS, strict=False):
        last = float(np.mean([member.epochs[-1][name] for member in group.members]))
        n = f", mean of {len(group.members)}" if len(group.members) > 1 else ""
        entries.append(
            (last, Line2D([], [], color=colour, linewidth=3, label=f"{_caption(group.name)}\n{words(last, name)}{n}"))
        )
    handles = [handle for _, handle in sorted(entries, key=lambda entry: -entry[0])]
    beside: Any = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.03), "borderaxespad": 0, "alignment": "left"}
    axes.legend(handles=handles, title="At the last epoch", frameon=False, fontsize=9, handlelength=1.4, **beside)


def _caption(name: str, most: int = 27) -> str:
    """A name shortened in the middle; matplotlib would take $ for a formula, and leave out what begins with _."""
    short = name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2) :]}"
    return re.sub("^_", " _", short).replace("$", r"\$")


def _curve(member: Member, name: str) -> dict[int, float]:
    return {line["epoch"]: float(line[name]) for line in member.epochs if line.get(name) is not None}


def _runs_in(place: Path) -> list[Path]:
    """The run at a place; of a folder, the runs in it and in folders in it: runs/muon/seed-0."""
    if Run.is_run(place) or not place.is_dir():
        return [Run.load(place).folder.resolve()]
    children = [child for child in sorted(place.iterdir()) if child.is_dir()]
    inside = [[child] if Run.is_run(child) else sorted(child.iterdir()) for child in children]
    runs = [folder.resolve() for folders in inside for folder in folders if Run.is_run(folder)]
    if not runs:
        raise RunError(f"{place} is not a run and holds none. `vitral ls` lists the runs that are here.")
    return runs


def read_member(folder: Path) -> Member:
    """A run, with all that is compared checked to be there."""
    run, near = Run.load(folder), Run(Path(os.path.relpath(folder)))
    epochs = [line for line in run.metrics if isinstance(line, dict) and line.get("event") == "epoch"]
    if not epochs:
        raise RunError(f"{near.folder} has no epoch in {METRICS} yet: there is nothing to compare.")
    member = Member(near, run.recipe, run.record, epochs, run.evaluation)
    try:
        _check(member)
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{near.folder} is damaged: {METRICS} or {EVALUATION} lacks numbers.") from None
    return member


def _check(member: Member) -> None:
    """Access all values that are used later, so that an error for a missing one names this run."""
    alone = Group("", (member,))
    _ = member.measures, member.tells, alone.test_groups
    for target in member.targets or [{"kind": "class", "name": ""}]:
        _values(alone, target)
    for line in member.epochs:
        _ = int(line["epoch"]), int(line["step"]), float(line["train_loss"])


def _check_same_targets(members: Sequence[Member]) -> None:
    for member in members:
        if member.tells != members[0].tells:
            raise RunError(
                f"{members[0].run.folder} tells {members[0].tells} of a picture, and {member.run.folder} "
                f"{member.tells}: runs are compared that learn the same."
            )


def _values(group: Group, target: dict[str, Any]) -> NDArray[np.float64]:
    """What a target is compared by: of a class, (runs, n), 1 where it is right; of labels their probabilities,
    (runs, n, labels); of a number how far it is off, (runs, n)."""
    name = target["name"]
    match target["kind"]:
        case "labels":
            return group.answers(lambda answer: answer["probabilities"], name)
        case "number":
            return group.answers(lambda answer: abs(answer["predicted"] - answer["value"]), name)
    return group.answers(lambda answer: answer["label"] == answer["predicted"], name)


def _pair(first: Group, other: Group, target: dict[str, Any], **shared: Any) -> PairedComparison:
    values, name = (_values(first, target), _values(other, target)), target["name"]
    match target["kind"]:
        case "labels":
            labels = [one["name"] for one in target["per_label"]]
            truth = first.answers(lambda answer: [label in answer["labels"] for label in labels], name)[0]
            return compare_labels(first.name, other.name, truth > 0, *values, target=name, **shared)
        case "number":
            return compare_numbers(first.name, other.name, *values, target=name, **shared)
    return replace(compare_paired(first.name, other.name, *values, **shared), target=name)


def _test_labels(member: Member) -> dict[str, str]:
    """The label of each test picture; of other targets what is true of it, as text."""
    lines = member.evaluation["predictions"] if member.evaluation else []
    return {line["sample"]: _truth(line["targets"]) if "targets" in line else line["label"] for line in lines}


def _truth(answers: dict[str, dict[str, Any]]) -> str:
    known = ("label", "labels", "value")
    return json.dumps({name: [answer[one] for one in known if one in answer] for name, answer in answers.items()})


def _names(groups: list[list[Path]]) -> list[str]:
    """A short name for each group, all different: as many last parts of the path as it takes."""
    places = [_place(folders) for folders in groups]
    places = [folders[0] if places.count(place) > 1 else place for place, folders in zip(places, groups, strict=True)]
    return [_tail(place, [other for other in places if other != place]) for place in places]


def _tail(place: Path, others: list[Path]) -> str:
    for parts in range(1, len(place.parts)):
        if all(other.parts[-parts:] != place.parts[-parts:] for other in others):
            break
    return "/".join(place.parts[-parts:])


def _place(folders: list[Path]) -> Path:
    """The path that runs share: runs/muon-seed-0 and runs/muon-seed-1 have runs/muon, and so have runs/muon/0 and 1."""
    if len(folders) == 1:
        return folders[0]
    shared = os.path.commonprefix([folder.name for folder in folders])
    word = re.sub(r"[-_. ]*(seed)?[-_. ]*\d*$", "", shared)
    return folders[0].parent / word


def _notes(comparison: Comparison) -> Iterator[str]:
    groups = comparison.groups
    members = [member for group in groups for member in group.members]
    for member in members:
        if member.record.state != "finished":
            yield f"{member.run.folder} is {member.record.state}, not finished: its numbers are those so far."
    for group in groups:
        seeds = [member.recipe.train.seed for member in group.members]
        if len(set(seeds)) < len(seeds):
            twice = "its sd is not one over seeds, and the verdict counts it once"
            yield f"{group.name} has the same seed more than once: {twice}."
        if len({member.record.data.sha256 for member in group.members}) > 1:
            yield f"The runs of {group.name} were not trained with the same pictures: they changed in between."
    if others := [name for name in comparison.settings if name.startswith(OTHER_LOSS)]:
        differ = "differs" if len(others) == 1 else "differ"
        yield f"Train losses are not of the same thing, since {', '.join(others)} {differ}."
    tests = [(member.record.data.sha256, _test_labels(member)) for member in members if member.evaluation]
    if any(test != tests[0] for test in tests):
        figures = "figures" if members[0].targets else "accuracies"
        yield f"Test {figures} are not of the same pictures with the same labels, so no verdict is given."
    if any(_machine(member) != _machine(members[0]) for member in members):
        yield "Seconds are not of the same kind of machine, device or number of threads."


def _machine(member: Member) -> tuple[object, object]:
    return member.record.machine, member.record.choices


def is_share(measure: str) -> bool:
    """Whether a measure is told in percent."""
    return measure.rpartition("_")[2] in ("accuracy", "map")


def in_words(measure: str) -> str:
    """The name of a measure as people write it.

    >>> in_words("test_value_mae")
    'test value MAE'
    """
    *before, figure = measure.split("_")
    return " ".join([*before, {"map": "mAP", "mae": "MAE"}.get(figure, figure)])


def words(value: float, measure: str) -> str:
    """The value of a measure as text."""
    if is_share(measure):
        return f"{value:.1%}"
    if measure == "steps":
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    if measure.rpartition("_")[2] == "mae":
        return number_words(value)
    return f"{value:.1f}" if measure == "seconds" else f"{value:.3f}"


def _group_values(group: Group, measures: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": group.name,
        "n": len(group.members),
        "runs": [str(member.run.folder) for member in group.members],
        "seeds": [member.recipe.train.seed for member in group.members],
    }
    for measure in measures:
        values = group.values(measure)
        mean, sd = mean_sd(values) if values else (None, None)
        row[measure] = {"mean": mean, "sd": sd, "values": values}
    return row | {f"{measure}_interval": group.interval(measure) for measure in measures if measure.startswith("test_")}
