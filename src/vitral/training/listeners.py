"""Listeners by name: TensorBoard, Weights & Biases and MLflow by one word, somebody's own as mine.py:log.

A tracker is imported when it is named, and never before.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from vitral.errors import RecipeError
from vitral.plugin import is_plugin, load_plugins
from vitral.run import Run
from vitral.settings import unknown
from vitral.training.loop import Event, Finished, Listener, Scored, Started, Step
from vitral.training.session import Epoch

MOST_ROWS = 900  # that MLflow is sent at once: it takes 1,000


class Tracker:
    """Hands the settings of a run, the figures of its steps and epochs and its score to an experiment tracker, under
    the names that metrics.jsonl has; those of the score begin with `test_`."""

    finished = False

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self.begin(event.run)
            case Step():
                self.log(event.step, {"loss": event.loss, "learning_rate": event.learning_rate, **event.figures})
            case Epoch():
                self.log(event.step, vars(event))
                self.flush()
            case Finished():
                self.finished = True
            case Scored():
                self.log(event.run.record.steps, {f"test_{name}": value for name, value in event.figures.items()})
                self.flush()

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Write those figures that are numbers."""
        numbers = {name: float(value) for name, value in figures.items() if value is not None}
        self.write(step, {name: number for name, number in numbers.items() if math.isfinite(number)})

    def begin(self, run: Run) -> None:
        raise NotImplementedError

    def write(self, step: int, figures: dict[str, float]) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        return

    def close(self) -> None:
        raise NotImplementedError


class TensorBoard(Tracker):
    """Writes into RUN/tensorboard: `tensorboard --logdir runs`."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.make: Callable[[str], Any] = SummaryWriter
        self.writer: Any = None

    def begin(self, run: Run) -> None:
        self.writer = self.make(str(run.folder / "tensorboard"))
        self.writer.add_text("recipe", f"```toml\n{run.recipe.to_toml()}\n```")

    def write(self, step: int, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        if self.writer:
            self.writer.close()


class WandB(Tracker):
    """Sends to the project `vitral`, or to what the environment says (WANDB_PROJECT, WANDB_MODE=offline)."""

    def __init__(self) -> None:
        import os

        import wandb

        if not hasattr(wandb, "init"):  # a folder wandb/, which its runs leave behind
            raise ImportError
        self.wandb, self.project = wandb, os.environ.get("WANDB_PROJECT", "vitral")

    def begin(self, run: Run) -> None:
        name, settings = run.folder.resolve().name, run.recipe.write()
        self.wandb.init(project=self.project, name=name, config=settings, dir=str(run.folder))

    def write(self, step: int, figures: dict[str, float]) -> None:
        self.wandb.log(figures, step=step)

    def close(self) -> None:
        self.wandb.finish(exit_code=0 if self.finished else 1)


class MLflow(Tracker):
    """Writes where MLFLOW_TRACKING_URI says, an epoch at a time."""

    def __init__(self) -> None:
        import mlflow

        self.mlflow, self.rows = mlflow, list[Any]()
        self.run_id = ""

    def begin(self, run: Run) -> None:
        self.run_id = self.mlflow.start_run(run_name=run.folder.resolve().name).info.run_id
        settings = list(_flat(run.recipe.write()).items())
        for first in range(0, len(settings), 100):  # as many as it takes at once
            self.mlflow.log_params(dict(settings[first : first + 100]))

    def write(self, step: int, figures: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        self.rows += [self.mlflow.entities.Metric(name, value, now, step) for name, value in figures.items()]
        if len(self.rows) >= MOST_ROWS:
            self.flush()

    def flush(self) -> None:
        rows, self.rows = self.rows, []
        self.mlflow.MlflowClient().log_batch(self.run_id, metrics=rows)

    def close(self) -> None:
        if self.run_id:
            self.flush()
            self.mlflow.end_run("FINISHED" if self.finished else "KILLED")


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def make_listener(name: str) -> Listener:
    """The listener of a name: a word of TRACKERS; or a function of an event in a Python file, which is run, or a class
    that is made without arguments and can be called like one."""
    if not is_plugin(name):
        if name not in TRACKERS:
            raise RecipeError(f"{unknown(name, list(TRACKERS), 'listener')} One of your own is named as mine.py:log.")
        try:
            return TRACKERS[name]()
        except ImportError:
            raise RecipeError(f"The listener {name} needs the package {name}: pip install {name}") from None
    value = load_plugins([name])[name].value
    try:
        listener: Any = value() if isinstance(value, type) else value
    except Exception as error:
        raise RecipeError(f"{name} cannot be made: {type(error).__name__}: {error}.") from None
    if not callable(listener):
        raise RecipeError(f"{name} is of type {type(value).__name__}, and should be a function of an event.")
    return listener


class SafeListener:
    """A listener whose failure ends no training: it is told once, and then the listener hears no more."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self.name, self.tell, self.listener = name, tell, make_listener(name)
        self.failed = False

    def __call__(self, event: Event) -> None:
        self._try(self.listener, event)

    def close(self) -> None:
        """Close it, where it can be."""
        self._try(getattr(self.listener, "close", lambda: None))

    def _try(self, function: Callable[..., Any], *arguments: Any) -> None:
        if self.failed:
            return
        try:
            function(*arguments)
        except (Exception, SystemExit) as error:
            self.failed = True
            self.tell(
                f"The listener {self.name} failed ({type(error).__name__}: {error}). It hears no more, and the "
                "training goes on."
            )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables, by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
