"""Did it help to learn without labels first? By runs on the same test pictures, with and without it, in equal time.

verdict.json        what was asked, and when all is done the answer
report.html         the answer for people
verdict.png         its figure
seed-0/pretrained   a run without labels
seed-0/with         a run that goes on from it, with labels
seed-0/without      a run that had all of the time with labels
seed-0/probe-….json the features as they are: a linear probe of the first, and of a model as it is made
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from vitral.errors import RunError
from vitral.evaluation.compare import Comparison, Group, mean_sd, read_member
from vitral.evaluation.paired import PairedComparison, compare_paired
from vitral.evaluation.probe_results import ProbeResult
from vitral.files import write_whole
from vitral.run import Run, StoredTable
from vitral.settings import FORMAT, check_format
from vitral.version import __version__

VERDICT = "verdict.json"
WITH, WITHOUT = "with pre-training", "without"
PRETRAINED, FINETUNED, SUPERVISED = "pretrained", "with", "without"  # folders of runs
PROBES = ("probe-pretrained.json", "probe-untrained.json")


class Asked(StoredTable):
    """What was asked of `vitral pretrain --verdict`."""

    format: int = FORMAT
    version: str = __version__
    source: str  # the pictures to learn from without labels
    labelled: str = ""  # a source of its own with the labels; "": the same
    settings: dict[str, Any] = {}
    seeds: int
    share: float  # of the time without labels

    @property
    def labels_of(self) -> str:
        """Where the labels are."""
        return self.labelled or self.source

    def write(self, folder: Path, result: Mapping[str, Any] | None = None) -> None:
        """Write verdict.json, with the result where there is one."""
        values = self.model_dump(mode="json") | ({"result": result} if result else {})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / VERDICT, json.dumps(values, indent=1) + "\n")
        except OSError as error:
            raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another place with --out.") from None

    @classmethod
    def load(cls, folder: Path) -> "Asked | None":
        """What was asked in this folder; None: nothing."""
        path = folder / VERDICT
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            check_format(values.get("format"), str(path), RunError)
            return cls.model_validate(values)
        except (OSError, ValueError, AttributeError, ValidationError) as error:
            raise RunError(f"{path} cannot be read ({str(error).splitlines()[0]}).") from None


PHOTOGRAPH = 56  # pixels a side: what others have learnt from is photographs


def seed_folder(folder: Path, number: int) -> Path:
    return folder / f"seed-{number}"


@dataclass(frozen=True)
class Way:
    """One way to an answer, as the figure and the table show it."""

    name: str
    accuracies: tuple[float, ...]  # on the test pictures, a seed each
    pretrained: bool

    @property
    def words(self) -> str:
        """Mean, and the spread over seeds where there are several."""
        mean, sd = mean_sd(self.accuracies)
        return f"{mean:.1%}" if sd is None else f"{mean:.1%} ± {100 * sd:.1f}"


@dataclass(frozen=True)
class Verdict:
    """The answer, and what it stands on."""

    folder: Path
    asked: Asked
    pair: PairedComparison  # fine-tuned, beside from nothing
    probe: PairedComparison  # the features as they are, beside those of a model as it is made
    ways: tuple[Way, ...]
    runs: tuple[tuple[Run, Run, Run], ...]  # of each seed: without labels, then with, and with labels alone

    @property
    def kind(self) -> Literal["helped", "hurt", "luck", "few"]:
        if self.pair.few:
            return "few"
        return ("helped" if self.pair.difference > 0 else "hurt") if self.pair.is_sure else "luck"

    @property
    def sentence(self) -> str:
        """The answer in a sentence, in percentage points of test pictures."""
        pair = self.pair
        if self.kind == "few":
            return f"{pair.pictures:,} test pictures are too few to tell whether pre-training helps."
        if self.kind == "helped":
            return f"Pre-training helped by {points(pair.difference)} ({_ends(pair.low, pair.high)})."
        if self.kind == "hurt":
            return f"Pre-training did not help: it cost {points(-pair.difference)} ({_ends(-pair.high, -pair.low)})."
        return (
            f"Pre-training did not help as far as can be told: {points(pair.difference, sign=True)}, which can be luck "
            f"({_ends(pair.low, pair.high)})."
        )

    @property
    def basis(self) -> str:
        """What the numbers in brackets are, and what was equal."""
        seeds = "1 seed, taking another to change it by no more than elsewhere," if len(self.runs) == 1 else ""
        seeds = seeds or f"{len(self.runs)} seeds"
        budget = self.runs[0][2].recipe.train.budget
        equal = f"{budget} in all"
        if budget.endswith("steps"):
            equal = f"{budget.removesuffix('steps')} steps, which do not take the same time"
        return (
            f"In percentage points of {self.pair.pictures:,} test pictures, with a 95 % interval over {seeds} and "
            f"pictures. Both ways had {equal}."
        )

    @property
    def probe_sentence(self) -> str:
        """What the features say without being trained further."""
        first, second = (way.words for way in self.ways[2:])
        return f"A linear probe on the features as they are: {first}; on those of a model as it is made: {second}."

    @property
    def advice(self) -> tuple[tuple[str, str], ...]:
        """What to do: a sentence and a command each."""
        source, (pretrained, finetuned, alone) = shlex.quote(self.asked.labels_of), self.runs[0]
        if self.kind == "few":
            return (("Label some more pictures to test with, at least a hundred, and ask again.", ""),)
        if self.kind == "helped":
            return (("Use it:", f"vitral predict {shlex.quote(str(finetuned.folder))} PICTURE"),)
        budget = f"train.budget={alone.recipe.train.budget}"
        advice = [("Do this instead, which is simpler: train from nothing.", f"vitral train {source} {budget}")]
        fine, probe = (mean_sd(self.ways[place].accuracies)[0] for place in (0, 2))
        if probe > max(fine, mean_sd(self.ways[1].accuracies)[0]):
            words = "Its features as they are have more right than either: here only a head learns on them."
            advice = [
                (words, f"vitral train {source} {shlex.quote(f'init.weights={pretrained.folder}')} init.mode=probe")
            ]
        if min(alone.weights().model.config.height_width) >= PHOTOGRAPH:
            words = "What the weights of others are good for here is told in a minute."
            fetch = "vitral fetch vit_tiny_patch16_224"
            advice.append((words, f"{fetch}\nvitral probe vit_tiny_patch16_224 {source}"))
        if self.kind == "luck":
            advice.append(("More unlabelled pictures, or more time than this, may tell the two apart.", ""))
        return tuple(advice)

    def write(self) -> dict[str, Any]:
        """The result, as verdict.json has it."""
        return {
            "verdict": self.kind,
            "sentence": self.sentence,
            **{name: getattr(self.pair, name) for name in ("pictures", "difference", "low", "high", "level")},
            "probe": {name: getattr(self.probe, name) for name in ("difference", "low", "high", "level")},
            "ways": [{"name": way.name, "accuracies": list(way.accuracies)} for way in self.ways],
        }


def points(value: float, sign: bool = False) -> str:
    """A difference of shares, in percentage points.

    >>> points(0.0412), points(0.01), points(-0.004, sign=True)
    ('4.1 points', '1.0 points', '-0.4 points')
    """
    return f"{100 * value:{'+' if sign else ''}.1f} points"


def _ends(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"


def read_verdict(folder: Path, asked: Asked) -> Verdict:
    """The answer, from all that was trained and measured in a folder."""
    seeds = [seed_folder(folder, number) for number in range(asked.seeds)]
    runs = tuple(
        (Run.load(seed / PRETRAINED), Run.load(seed / FINETUNED), Run.load(seed / SUPERVISED)) for seed in seeds
    )
    groups = [
        Group(name, tuple(read_member(run.folder) for run in some))
        for name, some in ((WITHOUT, [run[2] for run in runs]), (WITH, [run[1] for run in runs]))
    ]
    pairs = Comparison(tuple(groups)).pairs
    if not pairs:
        raise RunError(f"The runs in {folder} were not tested on the same pictures: begin anew, in another folder.")
    probes = [[ProbeResult.load(seed / name) for seed in seeds] for name in PROBES]
    samples = groups[0].test_samples
    probe = compare_paired(
        "untrained", "pretrained", *(np.concatenate([_right(one, samples) for one in some]) for some in probes[::-1])
    )
    ways = (
        Way("fine-tuned after pre-training", tuple(groups[1].values("test_accuracy")), True),
        Way("trained from nothing", tuple(groups[0].values("test_accuracy")), False),
        Way("linear probe after pre-training", tuple(one.linear.accuracy.value for one in probes[0]), True),
        Way("linear probe of a model as it is made", tuple(one.linear.accuracy.value for one in probes[1]), False),
    )
    return Verdict(folder, asked, pairs[0], probe, ways, runs)


def _right(result: ProbeResult, samples: list[str]) -> NDArray[np.float64]:  # (1, n)
    wrong = set(result.linear.wrong)
    return np.array([[sample not in wrong for sample in samples]], np.float64)
