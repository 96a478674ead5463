"""Reading and writing the run folder: the only file that knows its layout (docs/schema.md).

The run folder is the contract between those who make weights and those who use them. It can be moved, zipped, mailed.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from vitral.errors import RunError, WeightsError
from vitral.files import sha256_of, write_whole
from vitral.recipe import Recipe
from vitral.settings import FORMAT, check_format

if TYPE_CHECKING:
    from vitral.weights.own import Weights

RECIPE, RECORD, WEIGHTS, METRICS = "recipe.toml", "run.json", "model.safetensors", "metrics.jsonl"
SPLIT, LEFT_OUT, EVALUATION = "split.csv", "left-out.csv", "evaluation.json"


class Told(BaseModel):
    """A table of a record: unknown names are passed over, since a later version may tell more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Machine(Told):
    """The kind of machine, never its name."""

    system: str
    processor: str
    cores: int
    python: str
    torch: str


class Choices(Told):
    """What was found out at the start."""

    device: str
    precision: str
    threads: int


class DataIdentity(Told):
    """Which pictures these were."""

    source: str
    sha256: str
    pictures: dict[str, int]


class WeightsIdentity(Told):
    """Which weights came out."""

    sha256: str
    parameters: int


class Record(Told):
    """`run.json`: what happened."""

    format: int = FORMAT
    version: str
    state: Literal["running", "finished", "stopped"]
    started_at: str
    seconds: float | None = None
    machine: Machine
    choices: Choices
    data: DataIdentity
    steps: int = 0
    weights: WeightsIdentity | None = None


@dataclass(frozen=True)
class Run:
    """A run folder.

    `Run.load("runs/digits")` reads one; `train(recipe)` returns the one that it made.
    """

    folder: Path

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Find a run; its files are read when they are asked for."""
        run = cls(Path(folder))
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

    @classmethod
    def create(cls, folder: str | Path, recipe: Recipe, record: Record, split: Iterable[tuple[str, str, str]]) -> "Run":
        """Begin a run in a folder that is new or empty: nothing is overwritten."""
        run = cls(Path(folder))
        with run._writing():
            run.folder.mkdir(parents=True, exist_ok=True)
            if any(run.folder.iterdir()):
                raise RunError(f"{folder} is not empty, and nothing is overwritten. Choose another place with --out.")
            write_whole(run.folder / RECIPE, recipe.to_toml())
            write_whole(run.folder / SPLIT, _as_csv(("sample", "label", "split"), split))
        run.write_record(record)  # last: from here on it is a run
        return run

    @property
    def recipe(self) -> Recipe:
        """What was asked."""
        return Recipe.from_file(self.folder / RECIPE)

    @property
    def record(self) -> Record:
        """What happened."""
        path = self.folder / RECORD
        values = _read_json(path)
        check_format(values.get("format"), str(path), RunError)
        try:
            return Record.model_validate(values)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise RunError(f"{path} is damaged: {where} is missing or wrong.") from None

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

    def weights(self) -> "Weights":
        """The trained model with its preprocessing and class names, checked against run.json."""
        from vitral.weights.own import read_weights  # brings torch, which listing runs does without

        path, identity = self.folder / WEIGHTS, self.record.weights
        if not self.has_weights:
            raise RunError(f"The run {self.folder} has no {WEIGHTS}: its training has not come to an end.")
        if identity and sha256_of(path) != identity.sha256:
            raise WeightsError(f"{path} was altered or cut: it is not the file that {RECORD} tells of.")
        return read_weights(path)

    def write_record(self, record: Record) -> None:
        values = record.model_dump(mode="json", exclude_none=True)
        with self._writing():
            write_whole(self.folder / RECORD, json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    def write_left_out(self, rows: Iterable[tuple[str, str, str, str]]) -> None:
        """(sample, label, split, reason) of the pictures that could not be read; without any there is no file."""
        if rows := list(rows):
            with self._writing():
                write_whole(self.folder / LEFT_OUT, _as_csv(("sample", "label", "split", "reason"), rows))

    def write_weights(self, weights: "Weights", record: Record) -> None:
        """The weights, then the record with their identity: a kill between the two leaves a run that is readable."""
        from vitral.weights.own import write_weights

        path = self.folder / WEIGHTS
        with self._writing():
            write_weights(path, weights)
            parameters = sum(parameter.numel() for parameter in weights.model.parameters())
            identity = WeightsIdentity(sha256=sha256_of(path), parameters=parameters)
        self.write_record(record.model_copy(update={"weights": identity}))

    def append_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with self._writing(), (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(text)

    def write_evaluation(self, values: Mapping[str, Any]) -> None:
        with self._writing():
            write_whole(self.folder / EVALUATION, json.dumps(values, ensure_ascii=False, indent=1) + "\n")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"The run folder {self.folder} cannot be written ({error}).") from None


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


def _as_csv(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([header, *rows])
    return table.getvalue()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}).") from None
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: it is not a table in JSON.")
    return values
