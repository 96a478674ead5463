"""The walk's figures, its outputs and its notebook; the notebook of one's own pictures, run anew; the tutorials'.

    python notebooks/make.py            trains `digits` first, a minute or two
    python notebooks/make.py RUN        asks a run of `digits` that is there
    python notebooks/make.py tutorials  only the tutorials' notebooks, of which nothing is run

docs/walk.md is the source. Its code is run once, as a notebook: what it prints goes below each piece of code into the
page, its figures into docs/walk/, and all of it into notebooks/walk.ipynb. tutorial.md is the source of a notebook for
each tutorial that trains. Those and cifar10.ipynb are kept without outputs.
"""

import base64
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from string import Template

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image
from traitlets.config import Config

from vitral.recipes import RECIPES
from vitral.recipes.tutorials import TUTORIALS

NOTEBOOKS = Path(__file__).parent
TUTORIAL = NOTEBOOKS / "tutorial.md"
PAGE = NOTEBOOKS.parent / "docs" / "walk.md"
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
INSTALL = """\
# Where Vitral is not installed (a hosted notebook, say), this does it. It is not on PyPI, so fill in where it is: the
# folder of a checkout, or the address of a wheel (`python -m build` makes one): https://…/vitral-0.1.0-py3-none-any.whl
import importlib.util
from pathlib import Path

if importlib.util.find_spec("vitral") is None:
    VITRAL = ".."  # the checkout that this notebook lies in
    if VITRAL == ".." and not Path("../pyproject.toml").exists():
        raise SystemExit("This notebook is in no checkout of Vitral: fill in where Vitral is, and run this again.")
    %pip install -q {VITRAL}

from PIL import Image"""

# The tutorials that train: how many epochs their notebooks begin with, and how long one takes (benchmarks/tutorials).
TRIED = {
    "mu": (1, "13 minutes"),
    "owen": (2, "4 minutes"),
    "pulfer": (5, "20 seconds"),
    "bourke": (1, "10 minutes"),
}

# Code; then, perhaps, what it prints, the end of what is folded, and a figure.
PIECE = re.compile(
    r"^```python\n(?P<code>.*?)\n```\n"
    r"(?:\n```text\n(?P<printed>.*?)```\n)?"
    r"(?:\n</details>\n)?"
    r"(?:\n!\[[^\]]*\]\((?P<figure>[^)]*)\)\n)?",
    re.M | re.S,
)


def tutorial(name: str) -> NotebookNode:
    """The notebook of a tutorial, not run."""
    (one,) = [one for one in TUTORIALS if one.recipe.startswith(f"{name}-")]
    recipe, (epochs, minutes) = RECIPES[one.recipe], TRIED[name]
    facts = {**asdict(one), "data": recipe.data.source, "all_epochs": recipe.train.epochs}
    return as_notebook(Template(TUTORIAL.read_text()).substitute(facts, epochs=epochs, minutes=minutes))


def as_notebook(page: str) -> NotebookNode:
    """The page as a notebook that has not been run."""
    cells: list[NotebookNode] = []
    at = 0
    for piece in PIECE.finditer(page):
        cells += _prose(page[at : piece.start()])
        shown = f'\n\nImage.open("{piece["figure"]}")' if piece["figure"] else ""
        cells.append(new_code_cell(piece["code"] + shown))
        at = piece.end()
    title, *rest = [*cells, *_prose(page[at:])]
    return _numbered(new_notebook(cells=[title, new_code_cell(INSTALL), *rest], metadata=KERNEL))


def _prose(text: str) -> Iterator[NotebookNode]:
    text = re.sub(r"<details>.*\n", "", text)  # a notebook does not fold across its cells
    text = re.sub(r"\]\((\w+\.md)\)", r"](../docs/\1)", text).replace("](../notebooks/", "](").strip()
    if text:
        yield new_markdown_cell(text)


def _numbered(notebook: NotebookNode) -> NotebookNode:
    """Cells with names that stay the same from run to run."""
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


def run(notebook: NotebookNode, folder: Path) -> None:
    """Run a notebook in a folder. What differs from run to run, and says nothing, is taken away."""
    where = {"metadata": {"path": folder.resolve()}}
    with tempfile.TemporaryDirectory() as sockets:  # and not a port that others could listen to
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        NotebookClient(notebook, timeout=1800, kernel_name="python3", resources=where, config=config).execute()
    notebook.metadata = KERNEL
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
            if "image/png" in output.get("data", {}):
                png = small(base64.b64decode(output.data["image/png"]))
                output.data = {"image/png": base64.b64encode(png).decode()}


def small(png: bytes) -> bytes:
    """The same figure in 256 colours: a third of the bytes, and no colour is off by more than a few levels of 255."""
    written = BytesIO()
    few = Image.open(BytesIO(png)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(written, "PNG", optimize=True)
    return written.getvalue()


def printed(cell: NotebookNode) -> str:
    """What a cell that was run has printed."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def told(page: str, notebook: NotebookNode) -> str:
    """The page, with what its code has printed in the notebook."""
    cells = iter([cell for cell in notebook.cells if cell.cell_type == "code"][1:])

    def piece(match: re.Match[str]) -> str:
        text, found = match.group(), printed(next(cells))
        if (found == "") != (match["printed"] is None):
            raise ValueError(f"What this prints, and only that, has a block for it below:\n{match['code']}")
        start, end = match.span("printed")
        return text if not found else text[: start - match.start()] + found + text[end - match.start() :]

    return PIECE.sub(piece, page)


def main() -> None:
    for name in TRIED:
        nbformat.write(tutorial(name), NOTEBOOKS / f"{name}.ipynb")
    if sys.argv[1:] == ["tutorials"]:
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if len(sys.argv) > 1:
            (folder / "runs").mkdir()
            (folder / "runs" / "digits").symlink_to(Path(sys.argv[1]).resolve())
        notebook = as_notebook(PAGE.read_text())
        run(notebook, folder)
        PAGE.write_text(told(PAGE.read_text(), notebook))
        shutil.rmtree(PAGE.with_suffix(""), ignore_errors=True)
        PAGE.with_suffix("").mkdir()
        for figure in (folder / "walk").iterdir():
            (PAGE.with_suffix("") / figure.name).write_bytes(small(figure.read_bytes()))
        nbformat.write(notebook, NOTEBOOKS / "walk.ipynb")
    own = nbformat.read(NOTEBOOKS / "own-pictures.ipynb", as_version=4)
    with tempfile.TemporaryDirectory() as place:
        run(own, Path(place))
    nbformat.write(_numbered(own), NOTEBOOKS / "own-pictures.ipynb")


if __name__ == "__main__":
    main()
