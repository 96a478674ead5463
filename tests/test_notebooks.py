"""The walk and the notebooks: one source, nothing of a machine in them, and all of it runs."""

import ast
import base64
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitral import train
from vitral.recipes import digits
from vitral.recipes.tutorials import TUTORIALS

nbformat = pytest.importorskip("nbformat", reason="nbclient and ipykernel are not installed: pip install -e '.[test]'")
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "walk.md"
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("notebooks_make", ROOT / "notebooks" / "make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = loaded()


def notebook(name: str) -> Any:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def code_cells(name: str) -> list[Any]:
    return [cell for cell in notebook(name).cells if cell.cell_type == "code"]


def test_there_is_a_notebook_for_the_walk_for_cifar10_for_ones_own_and_for_each_tutorial_that_trains() -> None:
    assert sorted([*make.TRIED, "cifar10", "own-pictures", "walk"]) == NAMES
    assert [*make.TRIED] == [one.recipe.partition("-")[0] for one in TUTORIALS if one.plain]


@pytest.mark.parametrize("name", make.TRIED)
def test_a_tutorials_notebook_is_what_is_made_of_its_source(name: str) -> None:
    """To mend it: python notebooks/make.py tutorials."""
    made = make.tutorial(name)
    assert [(cell.cell_type, cell.source) for cell in notebook(name).cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ]
    assert "$" not in "".join(cell.source for cell in made.cells)


def test_a_notebook_that_is_in_no_checkout_says_what_to_fill_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was uploaded alone, and nothing is installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cell = compile(make.INSTALL.replace("%pip", "...  #"), "the first cell", "exec")
    with pytest.raises(SystemExit, match="in no checkout of Vitral: fill in where Vitral is"):
        exec(cell, {})


def test_the_walk_and_its_notebook_are_the_same() -> None:
    """To mend it: python notebooks/make.py."""
    page, written = PAGE.read_text(), notebook("walk")
    assert [(cell.cell_type, cell.source) for cell in written.cells] == [
        (cell.cell_type, cell.source) for cell in make.as_notebook(page).cells
    ]
    assert make.told(page, written) == page


def test_the_walks_figures_are_those_of_its_notebook() -> None:
    shown = re.findall(r"^!\[.+\]\(walk/(.+)\)$", PAGE.read_text(), re.M)
    assert sorted(shown) == sorted(path.name for path in PAGE.with_suffix("").iterdir())
    outputs = [output for cell in code_cells("walk") for output in cell.outputs if "data" in output]
    pngs = [base64.b64decode(output.data["image/png"]) for output in outputs]
    assert pngs == [(PAGE.with_suffix("") / name).read_bytes() for name in shown]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_starts_with_its_title_and_an_installation_and_its_code_is_code(name: str) -> None:
    first, second, *_ = notebook(name).cells
    assert first.source.startswith("# ") and second.source == make.INSTALL
    for cell in code_cells(name):
        ast.parse(cell.source.replace("%pip", "...  #"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_small_and_tells_nothing_of_the_machine_that_ran_it(name: str) -> None:
    assert (ROOT / "notebooks" / f"{name}.ipynb").stat().st_size < 500_000
    assert notebook(name).metadata == make.KERNEL
    for cell in code_cells(name):
        assert cell.execution_count is None and cell.metadata == {}
        assert all(output.get("execution_count") is None for output in cell.outputs)
        assert not [output for output in cell.outputs if output.output_type == "error" or "stderr" in output.values()]
        text = make.printed(cell) + "".join(
            str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs
        )
        assert not re.search(r"(?<![\w.…])/\w+/|\\Users\\|[A-Z]:\\", text), text
        assert len(platform.node()) < 4 or platform.node() not in text, text


@pytest.mark.parametrize("name", ["cifar10", *make.TRIED])
def test_pictures_of_others_are_not_handed_on(name: str) -> None:
    assert [cell.outputs for cell in code_cells(name) if cell.outputs] == []


def masked(text: str) -> str:
    """Without the numbers that depend on how long a model was trained."""
    return re.sub(r"says .*", "says …", re.sub(r"-?\d+\.\d+", "#", text))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of `digits` in it: the model of the walk, hardly trained."""
    folder = tmp_path_factory.mktemp("walk")
    train(digits.changed({"train.epochs": 4}), out=folder / "runs" / "digits")
    return folder


@pytest.mark.slow
def test_the_walks_code_runs_and_prints_what_the_page_says(place: Path) -> None:
    pieces = list(make.PIECE.finditer(PAGE.read_text()))
    code = "\n".join(piece["code"] for piece in pieces)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=place, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert masked(done.stdout) == masked("".join(piece["printed"] or "" for piece in pieces))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(
    name: str,
    place: Path,
    tmp_path: Path,
    large_data: Callable[[str], Path],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITRAL_STEPS", "2" if name in make.TRIED else "20")
    if name in make.TRIED:
        request.getfixturevalue("small_sets")
    elif name == "cifar10":
        large_data("cifar-10-batches-bin")
    else:  # it fills a data directory of its own; weights it may have, if there are any
        (tmp_path / "data").mkdir()
        weights = Path(os.environ.get("VITRAL_DATA", "")) / "weights"
        if weights.is_dir():
            (tmp_path / "data" / "weights").symlink_to(weights.resolve())
        monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    ran = notebook(name)
    make.run(ran, place if name == "walk" else tmp_path)
    shown = [cell for cell in ran.cells if "Image.open(" in cell.source.split("\n")[-1]]
    assert len(shown) >= 4
    assert all(cell.outputs[-1].data["image/png"] for cell in shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"), [("cifar10", "CIFAR-10 is not here. Fetch it"), ("mu", "cifar10 is not ")]
)
def test_without_its_pictures_a_notebook_stops_with_a_sentence(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path))
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError, match=sentence):
        make.run(notebook(name), tmp_path)
