"""Reading and writing the run folder: the only file that knows its layout (docs/schema.md).

The run folder is the contract between those who make weights and those who use them. It can be moved, zipped, mailed.
"""

import csv
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vitral.errors import RunError, WeightsError
from vitral.files import as_csv, path_of, sha256_of, write_whole
from vitral.plugin import Code, Plugin, is_plugin, load_stored_plugins
from vitral.processes import Processes
from vitral.recipe import Recipe
from vitral.settings import FORMAT, check_format
from vitral.targets import TargetKind

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from vitral.weights.calibration import Calibration
    from vitral.weights.own import Weights

RECIPE, RECORD, WEIGHTS, METRICS = "recipe.toml", "run.json", "model.safetensors", "metrics.jsonl"
EVALUATIONS = "evaluations"  # of the weights on other pictures
MOMENTS = "moments"  # what a model saw that learnt without labels, as it learnt
SPLIT, LEFT_OUT, EVALUATION, CHECKPOINTS, LOCK = "split.csv", "left-out.csv", "evaluation.json", "checkpoints", ".lock"
SIGN = ".sign.part"  # by which processes see that they share a folder
BASELINE, CHECKED, REPORT = "baseline.json", "check.json", "report.html"


class StoredTable(BaseModel):
    """A table of a record: unknown names are passed over, since a later version may write more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


AnyStoredTable = TypeVar("AnyStoredTable", bound=StoredTable)


class CheckFinding(StoredTable):
    """Something that `vitral check` found in the pictures, and what to do about it."""

    serious: bool
    what: str
    advice: str = ""


class Checked(StoredTable):
    """What `vitral check --json` printed: check.json."""

    findings: tuple[CheckFinding, ...]


class Machine(StoredTable):
    """The kind of machine, never its name."""

    system: str
    processor: str
    cores: int
    python: str
    torch: str


class Choices(StoredTable):
    """What was chosen for this machine at the start."""

    device: str
    precision: str
    threads: int
    compiled: bool = False
    processes: int = Field(default=1, exclude_if=lambda processes: processes == 1)  # it came after format 1
    parallel: str = Field(default="replicate", exclude_if=lambda parallel: parallel == "replicate")  # or shard


class DataIdentity(StoredTable):
    """Which pictures these were."""

    source: str
    sha256: str
    pictures: dict[str, int]


class WeightsIdentity(StoredTable):
    """Which weights came out."""

    sha256: str
    parameters: int


class Stretch(StoredTable):
    """A training that came to its end before the run was trained longer."""

    steps: int  # all, up to its end
    seconds: float
    weights: WeightsIdentity | None = None


class Way(StoredTable):
    """One way to learn from the pictures, and how far it came in a short time."""

    name: str  # from nothing, probe or gentle
    steps: int = 0  # of its longer short training
    value: float | None = None  # the figure after these; None: it was not tried
    planned: int = 0  # steps that fit into the rest of the time
    expected: float | None = None  # the figure after those
    why_not: str | None = None  # it was not tried


class Comparison(StoredTable):
    """Ways that were tried before one of them went on."""

    weights: str  # whose weights probe and gentle start from
    figure: str  # by which one was chosen: accuracy, or loss
    pictures: int  # that it was measured on
    seconds: float
    ways: tuple[Way, ...]
    chosen: str  # the name of a way


class Record(StoredTable):
    """`run.json`: what happened."""

    format: int = FORMAT
    version: str
    state: Literal["running", "finished", "stopped"]
    started_at: str
    seconds: float | None = None
    machine: Machine
    choices: Choices
    data: DataIdentity
    start: str | None = None  # a digest of the weights that it started from, where these were pretrained
    teacher: str | None = None  # a digest of its teacher, where it had one
    code: dict[str, str] | None = None  # the names in a user's own files, and the sha256 of each file
    planned: int = 0
    corrected_at: int = 0
    corrections: tuple[tuple[int, int], ...] | None = None  # all of them: step, and steps in all from then on
    steps: int = 0
    stretches: tuple[Stretch, ...] | None = None  # earlier ones, where it was trained longer
    weights: WeightsIdentity | None = None
    calibration: str | None = None  # the sha256 of its file, where there is one
    comparison: Comparison | None = None  # where several ways were tried first


class TargetBaseline(StoredTable):
    """How far a simple method came with one of several targets, with labels or with a number."""

    name: str  # of the target
    kind: TargetKind
    method: str
    validation: float | None  # the figure: accuracy of a class, mean average precision of labels, mean absolute error
    test: float | None
    guess: float | None  # on the test pictures, of one who says the same of each: how often each is, or the mean
    said: dict[str, list[float]]  # test picture → the probability of each output, or the number


class Baseline(StoredTable):
    """`baseline.json`: how far a simple method came. Of other targets than one class `targets` says so, one by one."""

    format: int = FORMAT
    method: str
    validation_accuracy: float | None  # None: there are no validation pictures; then it is logistic regression
    test_accuracy: float | None
    right: dict[str, bool]  # test picture → whether its answer was right
    targets: list[TargetBaseline] = Field(default=[], exclude_if=lambda targets: not targets)  # it came after format 1


@dataclass(frozen=True)
class Run:
    """A run folder.

    `Run.load("runs/digits")` reads one; `train(recipe)` returns the one that it made.
    """

    folder: Path

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Find a run; its files are read when they are used."""
        run = cls(path_of(folder, RunError))
        if not run.folder.exists():
            in_runs = Path("runs") / folder
            hint = f"Did you mean {in_runs}?" if cls.is_run(in_runs) else "`vitral ls` lists the runs that are here."
            raise RunError(f"There is no run {folder}. {hint}")
        if not cls.is_run(folder):
            raise RunError(f"{folder} is not a run: it has no {RECORD}. `vitral ls` lists the runs that are here.")
        _ = run.record
        return run

    @staticmethod
    def is_run(folder: str | Path) -> bool:
        """Whether there is a run, whole or damaged."""
        return (Path(folder) / RECORD).is_file()

    def reserve(self) -> "BaseFileLock":
        """The lock of a folder that is new or empty, or was left by a run that did not get as far as run.json."""
        with self.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
        self.check_free()
        return self.lock()

    def check_shared(self, processes: Processes) -> None:
        """Refuse a folder that not all processes see: after a restart another one may be the first, which writes."""
        if not processes.many:
            return
        sign, is_new = self.folder / SIGN, not self.folder.exists()
        word = processes.decide(lambda: self._leave(sign))
        try:
            with processes.together():
                if not _reads(sign, word):
                    raise RunError(
                        f"{self.folder} is another folder there than for the first process. Choose a place with --out "
                        "that all machines share."
                    )
        finally:
            if processes.first:  # all have looked
                sign.unlink(missing_ok=True)
                if is_new:
                    with suppress(OSError):
                        self.folder.rmdir()
        processes.gather(None)  # nobody looks into a folder that is about to go

    def _leave(self, sign: Path) -> str:
        word = secrets.token_hex()
        with self.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            sign.write_text(word)
        return word

    def check_free(self) -> None:
        """Whether a run may begin here: nothing is overwritten."""
        leftovers = {RECIPE, SPLIT, LEFT_OUT, LOCK}
        with self.writing():
            there = list(self.folder.iterdir()) if self.folder.exists() else []
        if any(path.name not in leftovers and path.suffix != ".part" for path in there):
            choose = "Go on there with --resume, or choose" if self.is_run(self.folder) else "Choose"
            raise RunError(
                f"{self.folder} is not empty, and nothing is overwritten. {choose} another place with --out."
            )

    def lock(self, patience: float = 0.0) -> "BaseFileLock":
        """One training at a time: the lock of the system, which goes with the process that has it. `patience`: seconds
        to wait for one that is about to end."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            raise RunError(
                f"Another training is writing into {self.folder}. Choose another place with --out."
            ) from None
        return lock

    def begin(
        self,
        recipe: Recipe,
        record: Record,
        split: Iterable[tuple[str, str, str]],
        left_out: Iterable[tuple[str, str, str, str]],
    ) -> None:
        """Write what is known before the first step."""
        with self.writing():
            self.write_recipe(recipe)
            write_whole(self.folder / SPLIT, as_csv(("sample", "label", "split"), split))
            if unreadable := list(left_out):
                write_whole(self.folder / LEFT_OUT, as_csv(("sample", "label", "split", "reason"), unreadable))
        self.write_record(record)  # last: from here on it is a run

    def write_recipe(self, recipe: Recipe) -> None:
        with self.writing():
            write_whole(self.folder / RECIPE, recipe.to_toml())

    def begin_stretch(self, recipe: Recipe) -> Path:
        """Put the files of a finished run aside, where they are a run by themselves, and write the recipe that goes on
        from it; returns the folder. A kill before the record is written leaves a run that can be asked again."""
        aside = self.folder / f"stretch-{len(recipe.train.restarts)}"
        with self.writing():
            if not aside.exists():  # else a kill came before the record
                part = aside.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                for path in self.folder.iterdir():
                    if path.is_file() and path.name != LOCK:
                        shutil.copy2(path, part)
                if (self.folder / EVALUATIONS).is_dir():
                    shutil.copytree(self.folder / EVALUATIONS, part / EVALUATIONS)
                part.rename(aside)
            self.write_recipe(recipe)
        return aside

    def clear_results(self) -> None:
        """Remove what was measured of weights that are replaced next."""
        from vitral.weights.calibration import CALIBRATION  # brings torch, which listing runs does without

        with self.writing():
            for name in (CALIBRATION, EVALUATION, REPORT):
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self.folder / EVALUATIONS, ignore_errors=True)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return Recipe.from_file(self.folder / RECIPE)

    @property
    def record(self) -> Record:
        """What happened."""
        return _read_table(Record, self.folder / RECORD)

    def plugins(self, code: Code) -> dict[str, Plugin]:
        """The user's own code that the recipe names, if its files are in `code`."""
        record, teacher = self.record, self.recipe.teacher.source
        teachers = {teacher: record.teacher or ""} if is_plugin(teacher) else {}
        return load_stored_plugins({**(record.code or {}), **teachers}, code, str(self.folder))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line that was cut off by a kill is left out."""
        path = self.folder / METRICS
        if not path.is_file():
            return []
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
            return [json.loads(line) for line in lines[:-1]]
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} cannot be read ({error}).") from None

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """What evaluation.json says, if the run has been evaluated."""
        path = self.folder / EVALUATION
        return _read_json(path) if path.is_file() else None

    @property
    def baseline(self) -> Baseline | None:
        """What baseline.json says, if simple methods were tried."""
        path = self.folder / BASELINE
        return _read_table(Baseline, path) if path.is_file() else None

    @property
    def checked(self) -> Checked | None:
        """What check.json says, if the pictures were looked at."""
        path = self.folder / CHECKED
        return _read_table(Checked, path) if path.is_file() else None

    @property
    def moments(self) -> dict[int, Path]:
        """The pictures of what it saw as it learnt, by the number of steps so far."""
        paths = sorted((self.folder / MOMENTS).glob("*.png"))
        return {int(path.stem): path for path in paths if path.stem.isdecimal()}

    @property
    def split(self) -> list[tuple[str, str, str]]:
        """(sample, label, split) of every picture."""
        path = self.folder / SPLIT
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return [(row["sample"], row["label"], row["split"]) for row in csv.DictReader(file)]
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise RunError(f"{path} cannot be read ({error}).") from None

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to use."""
        return (self.folder / WEIGHTS).is_file()

    def weights(self, code: Code = ()) -> "Weights":
        """The trained model with its preprocessing and class names, checked against run.json. `code`: files of Python
        that may be run, where the model is in one."""
        from vitral.weights.own import read_weights  # brings torch, which listing runs does without

        path, identity = self.folder / WEIGHTS, self.record.weights
        if not self.has_weights:
            raise RunError(f"The run {self.folder} has no {WEIGHTS}: its training has not come to an end.")
        if identity and sha256_of(path) != identity.sha256:
            raise WeightsError(f"{path} was altered or cut: it is not the file that {RECORD} tells of.")
        return read_weights(path, code)

    def calibration(self, weights: "Weights") -> "Calibration | None":
        """The calibration of these weights, checked against run.json; None where there is none."""
        from vitral.weights.calibration import CALIBRATION, Calibration

        path, sha256 = self.folder / CALIBRATION, self.record.calibration
        if sha256 and path.is_file() and sha256_of(path) != sha256:
            raise WeightsError(
                f"{path} was altered or cut: it is not the file that {RECORD} tells of. Delete it, or train again."
            )
        return Calibration.load(self.folder, weights.model, weights.other_targets)

    def finish(self, calibration: "Calibration | None") -> None:
        """The calibration, then the record with its sha256, by which the run is finished."""
        with self.writing():
            sha256 = sha256_of(calibration.write(self.folder)) if calibration else None
        self.write_record(self.record.model_copy(update={"state": "finished", "calibration": sha256}))

    def write_record(self, record: Record) -> None:
        values = record.model_dump(mode="json", exclude_none=True)
        with self.writing():
            write_whole(self.folder / RECORD, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def write_weights(self, weights: "Weights", record: Record) -> None:
        """The weights, then the record with their identity: a kill between the two leaves a run that is readable."""
        from vitral.weights.own import write_weights

        path = self.folder / WEIGHTS
        with self.writing():
            write_weights(path, weights)
            parameters = sum(parameter.numel() for parameter in weights.model.parameters())
            identity = WeightsIdentity(sha256=sha256_of(path), parameters=parameters)
        self.write_record(record.model_copy(update={"weights": identity, "calibration": None}))

    def append_metrics(self, lines: Iterable[Mapping[str, Any]]) -> int:
        """Append to metrics.jsonl, and return how many bytes it has then."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with self.writing(), (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a checkpoint will say how long it is
            return file.tell()

    def cut_back(self, metrics: int) -> list[str]:
        """Go back to a checkpoint, at which metrics.jsonl had this many bytes. What a killed writer left goes as well.

        Returns warnings.
        """
        with self.writing():
            path = self.folder / METRICS
            size = path.stat().st_size if path.exists() else 0
            if size > metrics:
                os.truncate(path, metrics)
            for leftover in [*self.folder.glob(".*.part"), *self.checkpoints.rglob(".*.part")]:
                leftover.unlink()
        return [f"{METRICS} is shorter than the checkpoint says: lines of it are lost."] if size < metrics else []

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.folder / CHECKPOINTS

    def write_evaluation(self, values: Mapping[str, Any], folder: Path | None = None) -> None:
        """Write evaluation.json into a folder of the run, or into the run folder itself."""
        self._write_json((folder or self.folder) / EVALUATION, values)

    def write_baseline(self, baseline: Baseline) -> None:
        self._write_json(self.folder / BASELINE, baseline.model_dump(mode="json"))

    def write_checked(self, values: Mapping[str, Any]) -> None:
        """Write check.json, as `vitral check --json` prints it."""
        self._write_json(self.folder / CHECKED, values)

    def _write_json(self, path: Path, values: Mapping[str, Any]) -> None:
        with self.writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(values, ensure_ascii=False, indent=1) + "\n")

    def check_writable(self) -> None:
        """Refuse a folder that cannot be written: before a long work, and not after it."""
        if not os.access(self.folder, os.W_OK):
            raise RunError(f"{self.folder} cannot be written, and what is found belongs into it. Copy it first.")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """An error of the disk becomes a RunError."""
        try:
            yield
        except OSError as error:
            raise RunError(f"The run folder {self.folder} cannot be written ({error}).") from None


def _reads(path: Path, word: str, patience: float = 5.0) -> bool:
    """Whether this is in a file, which another machine has just written: a shared disk may take its time."""
    ends_at = time.monotonic() + patience
    while True:
        with suppress(OSError):
            if path.read_text() == word:
                return True
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.1)


def free_folder(name: str, parent: Path = Path("runs")) -> Path:
    """runs/digits, or runs/digits-2 where that is taken, and so on."""
    name = last_name(name)
    number = 1
    while (folder := parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder


def last_name(source: str) -> str:
    """A word for a source of pictures: of a path its last name without the ending."""
    name = Path(source).expanduser().resolve().name if "/" in source or source in (".", "..") else source
    return name.split(".")[0] or name


def name_of(weights: str | Path) -> str:
    """A word for weights.

    >>> name_of("hf:google/vit-base-patch16-224"), name_of("weights/dino/model.safetensors")
    ('google--vit-base-patch16-224', 'dino')
    """
    if str(weights).startswith("hf:"):
        return str(weights).removeprefix("hf:").replace("/", "--")
    path = Path(weights)
    named = path.absolute().parent.name if path.stem == "model" else ""  # each folder has a file of this name
    return named or (path.stem if path.suffix in (".safetensors", ".npz") else last_name(str(path)))


def _read_table(kind: type[AnyStoredTable], path: Path) -> AnyStoredTable:
    """A table of the run folder, validated."""
    values = _read_json(path)
    check_format(values.get("format"), str(path), RunError)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise RunError(f"{path} is damaged: {where} is missing or wrong.") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}).") from None
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: it is not a table in JSON.")
    return values
