"""vitral glass RUN|WEIGHTS [--port 8000] [--no-browser]"""

import os
import sys
from pathlib import Path

import click

from vitral.cli import completion
from vitral.cli.interrupt import ctrl_c
from vitral.cli.terminal import code_option
from vitral.errors import printable


@click.command()
@click.argument("source", metavar="RUN|WEIGHTS", shell_complete=completion.runs)
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Where to listen; else any that is free.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open nothing.")
@code_option
def command(source: str, port: int, no_browser: bool, code: tuple[Path, ...]) -> None:
    """Open a page on this machine in which one sees into a model.

    Drop in a picture; hover over a patch and see what it attends to, in any block and head; switch patches off and
    watch the prediction change. RUN is a run folder, or weights as for `vitral predict`; those may have no classes.
    The page is for this machine only, and nothing leaves it. Ctrl-C ends it.
    """
    from vitral.look.glass.server import Glass

    with Glass.open(source, port, code) as server:
        for note in server.inspected.notes:
            click.echo(printable(note), err=True)
        click.echo(f"{printable(server.inspected.name)} is under glass at {server.url} (Ctrl-C ends it)")
        sys.stdout.flush()  # a program may wait for the address in a pipe
        try:
            if not no_browser and _has_windows():
                import webbrowser

                webbrowser.open(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            ctrl_c.reset()
            click.echo("")  # behind the ^C that the terminal shows


def _has_windows() -> bool:
    """Whether a browser would open a window; a text browser would take the terminal until it ends."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
