"""vitral serve RUN|WEIGHTS|model.onnx [NAME=SOURCE ...] [--port 8000] [--host 127.0.0.1]"""

import re
from pathlib import Path

import click

from vitral.cli import completion
from vitral.cli.terminal import code_option
from vitral.errors import RecipeError, printable

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # what stands in an address without more ado


@click.command()
@click.argument(
    "sources", metavar="RUN|WEIGHTS|NAME=SOURCE...", nargs=-1, required=True, shell_complete=completion.runs
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at; 0.0.0.0: all.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="0: any that is free.")
@click.option("--workers", type=click.IntRange(1), help="Processes that compute. Default: by measuring.")
@click.option("--threads", type=click.IntRange(1), help="Of each worker. Default: by measuring.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, mps, or auto, the best that is there.")
@click.option(
    "--deadline",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Seconds in which a picture has to come to its turn.",
)
@click.option("--queue", type=click.IntRange(1), default=512, show_default=True, help="Pictures that may wait.")
@click.option("--most-mb", type=click.IntRange(1), default=32, show_default=True, help="Of one request.")
@click.option(
    "--most-megapixels",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Of one picture, before it is decoded.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A token a line: requests have to bring one.",
)
@click.option(
    "--glass/--no-glass", default=True, help="Whether one may look inside, at /glass, and send pictures for that."
)
@click.option("--log-requests", is_flag=True, help="Also log each request: its address and status.")
@code_option
def command(
    sources: tuple[str, ...],
    host: str,
    port: int,
    workers: int | None,
    threads: int | None,
    device: str,
    deadline: float,
    queue: int,
    most_mb: int,
    most_megapixels: int,
    token_file: Path | None,
    glass: bool,
    log_requests: bool,
    code: tuple[Path, ...],
) -> None:
    """Answer over HTTP what pictures show, until Ctrl-C or SIGTERM.

    RUN is a run folder, an exported model.onnx or model.openvino, or weights, as for `vitral predict`; several may be
    served, each with a NAME. The addresses are listed at the server's own page.

    \b
        vitral serve runs/digits
        curl --data-binary @seven.png -H "Content-Type: image/png" http://127.0.0.1:8000/predict

    POST /predict takes pictures, and answers as `vitral predict --json` prints it. /v2 speaks the Open Inference
    Protocol (Triton, KServe), /metrics Prometheus, /glass shows the inside. SIGHUP has it load its models and
    tokens anew, and take them over once they answer.
    """
    try:
        from vitral.deploy.serve.front import serve
        from vitral.deploy.serve.settings import ServeSettings
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"Serving needs {error.name}, which comes with the extra: pip install 'vitral[serve]'"
        ) from None
    settings = ServeSettings(
        models=_by_name(sources),
        host=host,
        port=port,
        workers=workers or 0,
        threads=threads or 0,
        device=device,
        deadline=deadline,
        queue=queue,
        most_mb=most_mb,
        held_mb=max(256, 2 * most_mb),
        most_megapixels=most_megapixels,
        token_file=str(token_file or ""),
        glass=glass,
        code=tuple(map(str, code)),
        log="requests" if log_requests else "events",
    )
    if not settings.is_private:
        click.echo(
            f"Whoever reaches {host} may ask{', and look inside at /glass' * glass}: there is no token. "
            "To ask for one: --token-file FILE, with a token a line.",
            err=True,
        )
    serve(settings, lambda sentence: click.echo(printable(sentence, keep="\n"), err=True))


def _by_name(sources: tuple[str, ...]) -> dict[str, str]:
    """Each source by its name: as given, or that of its folder or file."""
    models: dict[str, str] = {}
    for source in sources:
        given, found, rest = source.partition("=")
        if found and re.fullmatch(NAME, given):
            name, source = given, rest
        else:
            path = Path(source)
            stem = path.parent.name if path.name in ("model.safetensors", "model.onnx", "model.openvino") else path.stem
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64] or "model"
        if name in models:
            raise RecipeError(f"Two models are called {name}. Give them names: {name}-2={source}")
        models[name] = source
    return models
