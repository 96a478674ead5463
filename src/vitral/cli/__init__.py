"""The command `vitral`: thin; each command parses, calls one function, prints. One file a command."""

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO, TextIOWrapper

import click

from vitral.cli.interrupt import STOPPED, ctrl_c, end

STARTED_AT = time.perf_counter()  # when the command was called: a budget counts from here

# name: what it is for. The file of a command is only loaded when it is called, so that --help is quick.
COMMANDS = {
    "train": "Train a model, measure it on pictures it has never seen, and draw what it learnt.",
    "pretrain": "Learn to see from pictures without labels, to begin a training from.",
    "evaluate": "Measure a run again: numbers with intervals, figures.",
    "compare": "Put runs side by side: settings that differ, numbers, learning curves.",
    "predict": "Say what a picture shows, or all pictures of a folder.",
    "look": "Show where a model looked for its answer, and how far to believe that.",
    "glass": "Open a page in which one sees into a model: its attention, and what patches are worth.",
    "convert": "Write weights as transformers, timm, torchvision or Google have them.",
    "export": "Write a model as one file that runs without Vitral, once it has given the same answers.",
    "serve": "Answer over HTTP what pictures show, to programs and to clients of Triton and KServe.",
    "check": "Look at every picture before anyone trains, and say what is wrong.",
    "pack": "Decode pictures once before training, or write them as shards, for sets larger than a disk.",
    "probe": "Say whether a backbone is good for your pictures, without training it.",
    "embed": "Write what a model sees as vectors, draw a map of them, find pictures that are alike.",
    "fetch": "Fetch sets of pictures by name, or list them.",
    "ls": "List the recipes, the tutorials they are from, and the runs that are here.",
    "show": "Show a recipe, or the recipe of a run, as TOML.",
    "shapes": "Show a model as a table: each step with its shapes, parameters and operations.",
    "doctor": "Show what Vitral runs on here, and whether it works.",
}


class Commands(click.Group):
    """Loads a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"vitral.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {args[0]}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, is_set: bool) -> None:
    """What the option --version does."""
    if is_set:
        from vitral.version import __version__

        click.echo(f"vitral {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`vitral COMMAND --help` tells more. Start with: vitral train digits, or a tutorial: vitral ls tutorials",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
def vitral() -> None:
    """A Vision Transformer to read, train on pictures, look into, and hand on."""


def main(args: list[str] | None = None) -> None:
    """Run the command. An error is printed as a sentence; exit code 2: it was called wrongly, 1: it failed."""
    try:
        try:
            ctrl_c.watch()
            _write_any_sign()
            _run(args)
            ctrl_c.raise_lost()
        finally:
            ctrl_c.leave()
    except BaseException as error:
        code = _print_error(error) if _speaks() else STOPPED if isinstance(error, KeyboardInterrupt) else 1
        if code == STOPPED and args is None:
            end()
        sys.exit(code)
    finally:
        if args is not None:  # else the process ends now
            ctrl_c.restore()


def _write_any_sign() -> None:
    """A sign that the terminal's encoding has not is spelt out: LANG=C ends no command in the middle of a line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(args: list[str] | None) -> None:
    if "_VITRAL_COMPLETE" in os.environ:
        from vitral.cli import completion  # noqa: F401 (it registers itself with click)

    with warnings.catch_warnings(), _one_voice():
        warnings.filterwarnings("ignore", module=r"PIL\.")  # of a damaged picture we say what is wrong ourselves
        vitral(args, prog_name="vitral", standalone_mode=False)
    if sys.stdout is not None:
        sys.stdout.flush()  # here, where a closed pipe or a full disk is still an error of ours


@contextmanager
def _one_voice() -> Iterator[None]:
    """Of several processes the first one prints."""
    if not _is_one_of_several():
        yield
        return
    # Said by DDP, once a process, of what is meant to be so: see training/parallel.py.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from vitral.processes import join

    with open(os.devnull, "w") as nowhere, ExitStack() as stack:
        if not join().first:
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        yield


def _is_one_of_several() -> bool:
    return "WORLD_SIZE" in os.environ and os.environ["WORLD_SIZE"] != "1"


def _speaks() -> bool:
    """Whether it is this process that prints an error: it is told once."""
    if not _is_one_of_several():
        return True
    from vitral.errors import RunError
    from vitral.processes import join

    try:
        return join().speaks()
    except RunError:  # they have not met
        return os.environ.get("RANK", "0") == "0"


def _print_error(error: BaseException) -> int:
    """Print an error as a sentence, and return the exit code. What is a bug is raised."""
    if ctrl_c.raised or isinstance(error, click.Abort | KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return STOPPED

    from vitral.errors import RecipeError, VitralError, printable

    if isinstance(error, click.ClickException):
        if isinstance(error, click.NoSuchOption):
            hint = "Settings are written without dashes: name=value, such as train.epochs=5."
            error = click.UsageError(f"{error.format_message()} {hint}", error.ctx)
        text = StringIO()
        error.show(text)
        click.echo(printable(text.getvalue(), keep="\n"), err=True, nl=False)
        return error.exit_code
    if isinstance(error, VitralError):
        click.echo(f"Error: {error}", err=True)
        return 2 if isinstance(error, RecipeError) else 1
    if isinstance(error, BrokenPipeError):  # as in `vitral ls | head -1`: nobody reads on, so nothing more is printed,
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # at exit either
        return 1  # as click does where it is the one who notices
    if isinstance(error, OSError):
        sentence = VitralError(f"{error.filename or 'A file'} could not be read or written ({error.strerror}).")
        click.echo(f"Error: {sentence}", err=True)
        return 1
    raise error
