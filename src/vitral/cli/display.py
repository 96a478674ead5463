"""What a person sees of a training: a line an epoch, and on a terminal a bar below."""

from typing import TYPE_CHECKING, Any

from vitral.cli.terminal import EVERY, ProgressBar, ProgressLog, console, duration
from vitral.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.progress import TaskID

    from vitral.data.pack import Pack
    from vitral.data.sources import Index
    from vitral.processes import Processes
    from vitral.progress import Progress
    from vitral.run import Baseline, Run
    from vitral.training.loop import Event, Started, Step
    from vitral.training.session import Epoch

WORTH_TELLING = 0.05  # of the steps: a correction of less is made without a word


class TrainingDisplay:
    """A listener: a line an epoch, and on a terminal a bar below."""

    task: "TaskID"  # of the bar, and the steps in all: from the event Started on
    steps: int

    def __init__(self, processes: "Processes") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.processes = processes
        self.run: Run | None = None
        self.untested = False  # whether there are no test pictures
        self.labels = True  # whether it learns from labels
        self.watched: tuple[str, ...] = ()  # figures that are told of validation pictures alone
        self.pack: Pack | None = None  # its pictures, once they are open
        self.before = ProgressBar()  # the first step
        self.log = None if console.is_terminal else ProgressLog()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[speed]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __call__(self, event: "Event") -> None:
        from vitral.progress import Progress
        from vitral.training.loop import Corrected, Finished, Started, Step
        from vitral.training.session import Epoch

        match event:
            case Progress() if self.run is None:
                self.before(event)
            case Progress(doing=doing):
                self.bar.update(self.task, description=doing)
                self._tell_log(event)
            case Started():
                self._begin(event)
            case Step(step=step):
                self.bar.update(self.task, completed=step, speed=self._status(event))
                self._tell_log(Progress(step, self.steps, "training"))
                if self.processes.stopping:
                    raise KeyboardInterrupt
            case Epoch():
                self._print_epoch(event)
                if self.log:
                    self.log.wait(EVERY)
            case Corrected(step=step, before=before, steps=steps):
                self.steps = steps
                self.bar.update(self.task, total=steps)
                if abs(steps - before) > WORTH_TELLING * before:
                    console.print(f"At step {step:,} of {before:,}: by now {steps:,} steps fit into the time.")
            case Finished(seconds=seconds, run=run):
                self.close()
                console.print(f"Trained in {seconds:.1f} s: {run.folder}/model.safetensors")

    def close(self) -> None:
        self.before.stop()
        self.bar.stop()
        if self.log:
            self.log.stop()

    def _tell_log(self, progress: "Progress") -> None:
        if self.log:
            self.log(progress)

    def _begin(self, event: "Started") -> None:
        """Print what is going to be trained, and start the bar."""
        plan, objective = event.plan, event.plan.learner.objective
        self.run, self.untested, self.pack = event.run, not len(plan.pack.of("test")), plan.pack
        self.epochs, self.batch_size = event.steps / plan.batches.steps_per_epoch, plan.batches.batch_size
        measured = {"train": True, "validation": plan.validates, "test": plan.test_curve}
        self.splits: list[Any] = [split for split, is_measured in measured.items() if is_measured]
        self.grouped = len(self.splits) > 2  # a line of names above, so that all columns fit into 80 letters
        self.figures, self.watched, self.labels = objective.figures, objective.watched, objective.needs_labels
        self.steps = event.steps
        self.before.stop()
        self._print_notes(event)
        self._print_setup(event)
        self._print_header()
        self.task = self.bar.add_task("training", total=event.steps, completed=event.step, speed="")
        self.bar.start()

    def _print_notes(self, event: "Started") -> None:
        """Print what is worth knowing of the pictures and of a run that goes on."""
        pack, index = event.plan.pack, event.plan.pack.index
        for note in (*index.notes, *pack.notes, *event.notes):
            console.print(printable(note))
        tested = index.counts(pack.of("test"))
        missing = [name for name, count in zip(index.class_names, tested, strict=True) if count == 0]
        if missing and not self.untested:
            console.print(f"No test picture shows {printable(', '.join(missing[:5]))}: nobody will know about that.")
        if event.step:
            console.print(f"Goes on after step {event.step:,}.")

    def _print_setup(self, event: "Started") -> None:
        """Print the device, the pictures, the model, a baseline, the number of steps and the time they will take."""
        plan, choices, index = event.plan, event.choices, event.plan.pack.index
        cores = f"{choices.threads} thread{'s' if choices.threads > 1 else ''}"
        compiled = ", compiled" if choices.compiled else ""
        if self.processes.many:
            share = " and a share of the model" if choices.parallel == "shard" else ""
            cores = f"{self.processes} with {cores}{share} each"
        console.print(f"Device {choices.device}, {cores}, precision {choices.precision}{compiled}.")
        train, validation, test = (len(plan.pack.of(split)) for split in ("train", "validation", "test"))
        learnt = _learnt(index) if self.labels else "no label is looked at"
        console.print(
            f"{printable(index.source)}: {train:,} pictures to learn from, "
            f"{validation:,} to validate, {test:,} to test; {learnt}."
        )
        console.print(repr(plan.learner.model))
        if baseline := event.run.baseline:
            for line in _to_compare(baseline):
                console.print(printable(line))
        epochs = f"{self.epochs:.3g} epoch{'s' if self.epochs > 1 else ''}"
        console.print(f"{event.steps:,} step{'s' if event.steps > 1 else ''} in {epochs}, into {event.run.folder}")
        recipe = event.run.recipe.train
        after = f", and then up to {duration(recipe.seconds_after(recipe.seconds))} to measure it"
        expected = f"{duration(event.expected)}{after if recipe.seconds else ''}"
        console.print(f"Expected to take about {expected}, with {_memory()} of memory.")
        if plan.test_curve:
            console.print(f"The {test:,} test pictures are measured after every epoch: a curve that chooses nothing.")
        console.print()

    def _print_header(self) -> None:
        """Print the names of the columns of `_print_epoch`."""
        widths = {split: self._widths(split) for split in self.splits}
        if self.grouped:
            groups = (f" {split} ".center(sum(one.values()) + 2 * (len(one) - 1), "─") for split, one in widths.items())
            console.print(" " * 5 + "".join(f"   {group}" for group in groups), style="bold")
        columns = "".join(" " + "".join(f"  {name:>{width}}" for name, width in one.items()) for one in widths.values())
        console.print(f"epoch{columns}   seconds   waited", style="bold")

    def _print_epoch(self, epoch: "Epoch") -> None:
        """Print a line an epoch; where there are many, about thirty in all."""
        every = -(-int(self.epochs) // 30) or 1
        if epoch.epoch % every and 1 < epoch.epoch < int(self.epochs):
            return
        columns = "".join(" " + self._columns(split, epoch.of(split)) for split in self.splits)
        console.print(f"{epoch.epoch:>5}{columns}   {epoch.seconds:>7.1f}   {epoch.waited:>6.1%}")

    def _widths(self, split: str) -> dict[str, int]:
        """The columns of a split, and how wide they are: its loss, then the objective's figures."""
        loss = {"loss": 5} if self.grouped else {f"{split} loss": len(f"{split} loss")}
        figures = (*self.figures, *self.watched) if split == "validation" else self.figures
        return loss | {name: max(8, len(name)) for name in figures}

    def _columns(self, split: str, figures: "Mapping[str, float]") -> str:
        """The values in these columns: an accuracy is a share, and what is no number a dash."""
        names = [(name.rpartition(" ")[2], width) for name, width in self._widths(split).items()]
        values = {name: f"{value:{'.1%' if _is_share(name) else '.3f'}}" for name, value in figures.items()}
        return "".join(f"  {values.get(name, '–'):>{width}}" for name, width in names)

    def _status(self, event: "Step") -> str:
        """The text behind the bar: how fast, how good, how much of the last second was waiting."""
        rate = self.bar.tasks[-1].speed or 0.0
        speed = f"{rate * self.batch_size:,.0f} pictures/s" if rate else ""
        waiting = min(1.0, event.waited * rate)
        return f"{speed}  loss {float(event.loss):.3f}  rate {event.learning_rate:.2g}  waiting {waiting:.0%}"


def _is_share(figure: str) -> bool:
    """Whether a figure is shown in percent: of several tasks it stands behind the name of its task."""
    return figure.rpartition("_")[2] in ("accuracy", "map")


def _memory() -> str:
    """The most that this process has had so far: a few steps have been tried out by now."""
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30:.1f} GiB"


def _learnt(index: "Index") -> str:
    """What is to be learnt, as the line on the pictures ends."""
    targets = index.targets
    words = [
        ("a number" if len(targets) > 1 else f"the number {target.name}")
        if target.kind == "number"
        else f"{target.outputs} {'classes' if target.kind == 'class' else 'labels'}"
        for target in targets
    ]
    if len(targets) > 1:
        parts = (f"{target.name} ({word})" for target, word in zip(targets, words, strict=True))
        return f"{len(targets)} tasks: {printable(', '.join(parts))}"
    return printable(words[0])


def _to_compare(baseline: "Baseline") -> "Iterator[str]":
    """How simple methods do in validation; with several targets a line for each."""
    if not baseline.targets:
        accuracy = baseline.validation_accuracy
        score = "" if accuracy is None else f": {accuracy:.1%} of the validation pictures"
        yield f"To compare with, {baseline.method}{score}."
    for one in baseline.targets:
        name = {"class": "accuracy", "labels": "mean average precision", "number": "mean absolute error"}[one.kind]
        score = "" if one.validation is None else f"{one.validation:.{'3g' if one.kind == 'number' else '1%'}}"
        of_target = f" {one.name}" if len(baseline.targets) > 1 else ""
        yield f"To compare{of_target} with, {one.method}{f': {name} {score} in validation' if score else ''}."
