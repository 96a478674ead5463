"""vitral train RECIPE [key=value …] [--out RUN]"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import console, settings_of

if TYPE_CHECKING:
    from rich.progress import TaskID

    from vitral.run import Run
    from vitral.training.loop import Epoch, Event, Packing, Started


@click.command()
@click.argument("recipe", shell_complete=completion.recipes)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=completion.settings)
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder. Default: the next free one in runs/.")
def command(recipe: str, settings: tuple[str, ...], out: Path | None) -> None:
    """Train a model, measure it on pictures it has never seen, and draw what it learnt.

    RECIPE is a name (`vitral ls`) or a TOML file (`vitral show digits > mine.toml`). Any setting of it can be changed:

    \b
        vitral train digits train.epochs=5 train.seed=3 --out runs/x
    """
    from vitral.recipes import find_recipe

    asked = find_recipe(recipe).changed(settings_of(settings))
    # Loading torch takes a second or two; a mistake in the recipe has been told by now.
    from vitral.cli.evaluate import tell
    from vitral.evaluation.evaluate import evaluate
    from vitral.training.loop import train

    progress = Progress()
    try:
        run = train(asked, out=out, listeners=[progress])
    except KeyboardInterrupt:
        if progress.run and progress.run.has_weights:
            console.print(f"What it has learnt so far is in {progress.run.folder}", soft_wrap=True)
        raise
    finally:
        progress.close()
    with console.status("Measuring on the test pictures, drawing …"):
        evaluation = evaluate(run)
    tell(evaluation)


class Progress:
    """A listener: a line an epoch, and on a terminal a bar below."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.run: Run | None = None
        self.bar = Bar(
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
        from vitral.training.loop import Epoch, Finished, Packing, Started, Step

        match event:
            case Packing():
                self._pack(event)
            case Started():
                self._begin(event)
            case Step(step=step):
                self.bar.update(self.task, completed=step, speed=self._speed(self.task, self.batch_size))
            case Epoch():
                self._line(event)
            case Finished(seconds=seconds, run=run):
                self.close()
                console.print(f"Trained in {seconds:.1f} s: {run.folder}/model.safetensors")

    def close(self) -> None:
        self.bar.stop()

    def _pack(self, event: "Packing") -> None:
        if not self.bar.tasks:
            self.packing = self.bar.add_task("", total=event.total, speed="")
            self.bar.start()
        what = "another process packs these pictures" if event.waiting else "packing pictures, once"
        self.bar.update(self.packing, completed=event.done, description=what, speed=self._speed(self.packing, 1))

    def _begin(self, event: "Started") -> None:
        plan, choices, index = event.plan, event.choices, event.plan.pack.index
        counts = {split: len(plan.pack.of(split)) for split in ("train", "validation", "test")}
        cores = f"{choices.threads} thread{'s' if choices.threads > 1 else ''}"
        self.run = event.run
        self.epochs, self.batch_size = plan.steps // plan.batches.steps_per_epoch, plan.batches.batch_size
        self.validates = plan.validates
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        for note in (*index.notes, *plan.pack.notes):
            console.print(note)
        console.print(f"Device {choices.device}, {cores}, precision {choices.precision}.")
        console.print(
            f"{index.source}: {counts['train']:,} pictures to learn from, {counts['validation']:,} to validate, "
            f"{counts['test']:,} to test; {len(index.class_names)} classes."
        )
        console.print(repr(plan.model))
        console.print(
            f"{plan.steps:,} steps in {self.epochs} epoch{'s' if self.epochs > 1 else ''}, into {event.run.folder}\n"
        )
        validation = "   validation loss  accuracy" if self.validates else ""
        console.print(f"epoch   train loss  accuracy{validation}   seconds   waited for pictures", style="bold")
        self.task = self.bar.add_task("training", total=plan.steps, speed="")
        self.bar.start()

    def _line(self, epoch: "Epoch") -> None:
        console.print(
            f"{epoch.epoch:>5}   {epoch.train_loss:>10.3f}  {epoch.train_accuracy:>8.1%}"
            + (f"   {epoch.validation_loss:>15.3f}  {epoch.validation_accuracy:>8.1%}" if self.validates else "")
            + f"   {epoch.seconds:>7.1f}   {epoch.waited:>7.1%}"
        )

    def _speed(self, task: "TaskID", pictures: int) -> str:
        speed = next(known.speed for known in self.bar.tasks if known.id == task)
        return f"{speed * pictures:,.0f} pictures/s" if speed else ""
