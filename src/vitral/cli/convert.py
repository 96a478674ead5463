"""vitral convert RUN|WEIGHTS --to hf|timm|torchvision|npz"""

import json
from pathlib import Path

import click

from vitral.cli import completion
from vitral.cli.terminal import code_option, console
from vitral.errors import printable


@click.command()
@click.argument("source", metavar="RUN|WEIGHTS", shell_complete=completion.runs)
@click.option("--to", type=click.Choice(["hf", "timm", "torchvision", "npz"]), help="Whose format to write.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write; else RUN/hf, or WEIGHTS-hf beside.")
@click.option("--i-trust-this-file", "trusted", is_flag=True, help="Turn a pickle (.pth, .bin, …) into safetensors.")
@click.option(
    "--pictures",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the RUN's pictures to try in the other library.",
)
@code_option
def command(
    source: str, to: str | None, out: Path | None, trusted: bool, pictures: int, code: tuple[Path, ...]
) -> None:
    """Write the weights of a RUN, or any WEIGHTS that Vitral reads, as another library has them.

    Where that library is installed, it is asked about pictures of the RUN, and its answers are compared.

    \b
        vitral convert runs/digits --to hf
        vitral convert weights.pth --i-trust-this-file
    """
    from safetensors import safe_open

    from vitral.deploy.convert import convert
    from vitral.deploy.trial import Trial
    from vitral.errors import WeightsError
    from vitral.weights.pickles import convert_pickle
    from vitral.weights.stored import PICKLES, refusal

    is_pickle = Path(source).suffix in PICKLES
    if is_pickle and not trusted:
        raise WeightsError(refusal(Path(source)))
    if trusted and not is_pickle:
        raise click.UsageError(f"--i-trust-this-file is for pickles ({', '.join(PICKLES)}), and {source} is none.")
    if not is_pickle and to is None:
        raise click.UsageError("Say whose format to write, with --to hf, timm, torchvision or npz.")
    if is_pickle:
        path = convert_pickle(source)
        with safe_open(path, framework="pt") as file:
            table, count = (file.metadata() or {})["from"], len(file.keys())
        where = "the file itself" if table == "the top" else f"its table {table}"
        console.print(printable(f"Written {path}: {count:,} tensors, from {where}."), soft_wrap=True)
        source = str(path)
    if to is not None:
        folder = convert(source, to, out, code=code, pictures=pictures)
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        trial = Trial(**about["trial"])
        for note in about["notes"]:
            console.print(note, soft_wrap=True)
        if trial.is_different:
            click.echo(printable(f"Warning: {trial}"), err=True)
        else:
            console.print(printable(str(trial)), soft_wrap=True)
        console.print(printable(f"Written to {folder}, with a card: {folder}/README.md"), soft_wrap=True)
