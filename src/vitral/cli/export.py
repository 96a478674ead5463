"""vitral export RUN|WEIGHTS OUT.onnx|OUT.pt2|OUT.openvino|PAGE.html [--with features] [--on FOLDER] [--pictures 100]"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitral.cli import completion
from vitral.cli.terminal import ProgressBar, code_option, console, print_table, table
from vitral.errors import printable

if TYPE_CHECKING:
    from vitral.evaluation.metrics import Figure
    from vitral.graph import Precision


@click.command()
@click.argument("source", metavar="RUN|WEIGHTS", shell_complete=completion.runs)
@click.argument(
    "out", metavar="[OUT.onnx|OUT.pt2|OUT.openvino|PAGE.html]", required=False, type=click.Path(path_type=Path)
)
@click.option(
    "--with",
    "others",
    multiple=True,
    type=click.Choice(["features", "attention"]),
    help="Further outputs: what the head sees; where the last block looked, by head.",
)
@click.option("--on", "folder", type=click.Path(exists=True, path_type=Path), help="Try it on these pictures.")
@click.option(
    "--pictures", type=click.IntRange(1), help="On how many pictures to try it. Default: 100; 1,000 where it may cost."
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "float16", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="Of its numbers. Shorter ones may cost answers.",
)
@click.option(
    "--loss",
    type=click.FloatRange(0, 100),
    default=0.5,
    show_default=True,
    help="How many of 100 answers shorter numbers may cost.",
)
@click.option("--fastest", is_flag=True, help="Keep what is fastest here, in the folder OUT; default: RUN/fastest.")
@code_option
def command(
    source: str,
    out: Path | None,
    others: tuple[str, ...],
    folder: Path | None,
    pictures: int | None,
    precision: "Precision",
    loss: float,
    fastest: bool,
    code: tuple[Path, ...],
) -> None:
    """Write a RUN, or any WEIGHTS that Vitral reads, as one file that runs without Vitral.

    OUT.onnx is for onnxruntime, in any language; OUT.pt2 for torch.export; OUT.openvino is a folder for OpenVINO. The
    input is `pixels`, uint8 (N, C, H, W), decoded and resized; all else is inside: scale, mean and standard deviation,
    class names, temperature, what is unknown. PAGE.html is a page that a person opens by a double-click, without a
    server or a network; a name without an ending is the same as a folder, for a web server.

    Before the file is kept it is run on test pictures of the RUN, or on those of a folder: if it does not give the
    model's own answers, the difference is shown and nothing is left behind.

    \b
        vitral export runs/digits digits.onnx
        vitral export vit_tiny_patch16_224 tiny.onnx --on photos --with attention
        vitral export runs/digits digits.onnx --precision int8
        vitral export runs/digits page.html
        vitral export runs/digits --fastest

    --fastest tries torch, onnxruntime and OpenVINO, in float32, bfloat16 and int8, as far as they are here, and keeps
    the fastest that costs no more than --loss: chosen on validation pictures, measured on test pictures.
    """
    if fastest:
        if others or precision != "float32":
            raise click.UsageError("--fastest tries all precisions, and has no further outputs: leave the others out.")
        if out and out.suffix:
            raise click.UsageError("--fastest writes a folder: give it a name without an ending.")
        _find_fastest(source, out, loss, folder, pictures, code)
        return
    given = click.get_current_context().get_parameter_source("loss")
    if precision == "float32" and given != click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--loss is for --precision and --fastest: in float32 answers are the same.")
    if out is None:
        raise click.UsageError("Say what to write: a name that ends in .onnx, .pt2, .openvino or .html; or --fastest.")
    from vitral.deploy.export import export
    from vitral.deploy.writers import OPSET

    with ProgressBar() as tell:
        exported = export(
            source,
            out,
            others=others,
            precision=precision,
            loss=loss,
            folder=folder,
            pictures=pictures,
            code=code,
            tell=tell,
        )
    size = sum(file.stat().st_size for file in [exported.path, *exported.path.rglob("*")] if file.is_file()) / 1e6
    opset = f", opset {OPSET}" if exported.path.suffix == ".onnx" else ""
    shapes = {"pixels, uint8": exported.takes} | exported.outputs
    pixels, *outputs = (f"{name} ({', '.join(map(str, ('N', *shape)))})" for name, shape in shapes.items())
    console.print(printable(str(exported.parity)), soft_wrap=True)
    if exported.header.reduced and exported.header.reduced.in_float:
        layers = ", ".join(exported.header.reduced.in_float)
        console.print(printable(f"In float32 stayed what costs answers: {layers}"), soft_wrap=True)
    if exported.page:
        for line in str(exported.page).splitlines():
            console.print(printable(line), soft_wrap=True)
        return
    console.print(printable(f"Written to {exported.path}: {size:.1f} MB{opset}"), soft_wrap=True)
    console.print(f"    takes {pixels}", soft_wrap=True)
    console.print(f"    gives {', '.join(outputs)}", soft_wrap=True)


def _find_fastest(
    source: str, out: Path | None, loss: float, folder: Path | None, pictures: int | None, code: tuple[Path, ...]
) -> None:
    from vitral.deploy.export import TRIED
    from vitral.deploy.fastest import BATCHES, find_fastest

    with ProgressBar() as tell:
        fastest = find_fastest(source, out, loss=loss, folder=folder, pictures=pictures or TRIED, code=code, tell=tell)
    numbers = [*(f"{batch} at once" for batch in BATCHES), "× torch", "accuracy", "costs", "MB"]
    listing = table("", *numbers, right=tuple(numbers))
    for one in fastest.tried:
        times, least, most = one.times(fastest.eager, BATCHES[-1])
        assert one.test is not None
        listing.add_row(
            one.way.name,
            *(f"{one.rate(batch):,.1f}" for batch in BATCHES),
            f"{times:.2f} ({least:.2f} to {most:.2f})",
            _interval(one.accuracy) if one.accuracy else "–",
            "{:.1f} ({:.1f} to {:.1f})".format(one.test.points, *one.test.interval),
            f"{one.megabytes:.1f}",
        )
    print_table(listing)
    pictures_tried = fastest.eager.test.pictures if fastest.eager.test else 0
    console.print(
        f"Pictures a second, the median of rounds in which all took turns; × torch with {BATCHES[-1]} at once. "
        f"Accuracy in %, and the points of it that it costs, on {pictures_tried:,} pictures, with 95 % intervals.",
        soft_wrap=True,
    )
    for one in fastest.candidates:
        if one.reason:
            console.print(printable(f"Not tried: {one.way.name}, for {one.reason}"), soft_wrap=True)
    for note in fastest.notes:
        console.print(printable(note), soft_wrap=True)
    console.print(printable(fastest.verdict), soft_wrap=True)
    if fastest.path is None:
        raise SystemExit(1)
    console.print(printable(f"Kept: {fastest.best.way.name}, in {fastest.path}"), soft_wrap=True)
    console.print(printable(f"Look at {fastest.path.parent / 'frontier.png'}"), soft_wrap=True)


def _interval(figure: "Figure") -> str:
    return f"{100 * figure.value:.1f} ({100 * (figure.low or 0):.1f} to {100 * (figure.high or 0):.1f})"
