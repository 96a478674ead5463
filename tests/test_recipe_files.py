"""Recipes in a Python file of one's own: `mine.py:flowers`."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Called
from vitral import Recipe, RecipeError
from vitral.recipes import digits, find_recipe

GOOD = """
from dataclasses import dataclass
from vitral.recipes import digits

@dataclass
class Plan:
    epochs: "int"

flowers = digits.changed({"train.epochs": Plan(3).epochs})
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def test_a_recipe_is_taken_from_a_file_and_nothing_is_left_behind(mine: Path) -> None:
    modules = set(sys.modules)
    assert find_recipe(f"{mine}:flowers") == digits.changed({"train.epochs": 3})
    assert find_recipe(f"{mine}:digits") == digits
    assert [path.name for path in mine.parent.iterdir()] == ["mine.py"]
    assert set(sys.modules) == modules
    mine.write_text(GOOD.replace("Plan(3)", "Plan(4)"))  # as long as before, and at once: nothing old is used
    assert find_recipe(f"{mine}:flowers").train.epochs == 4


def test_a_relative_path_and_one_with_colons_will_do(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    odd = mine.with_name("a:b.py")
    odd.write_text(GOOD)
    assert find_recipe("mine.py:flowers") == find_recipe("a:b.py:flowers")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mine.py:flower", "mine.py: There is no recipe flower. Did you mean flowers?"),
        ("mine.py:x", "mine.py: There is no recipe x. Known are: digits, flowers."),
        ("mine.py:number", "mine.py: number is of type int, and should be a Recipe."),
        ("mine.py", "Say which: mine.py:digits"),
        ("mine.py:", "Say which: mine.py:digits"),
        ("other.py:flowers", "There is no file other.py."),
        ("other.py", "There is no file other.py."),
    ],
)
def test_a_wrong_name_is_told(mine: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str) -> None:
    monkeypatch.chdir(mine.parent)
    with pytest.raises(RecipeError) as told:
        find_recipe(name)
    assert str(told.value) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "mine.py holds no recipe."),
        ("x = 1\nflowers = 1 / 0\n", "mine.py, line 2: ZeroDivisionError: division by zero"),
        ("x = 1\n\nflowers = (\n", "mine.py, line 3: SyntaxError: '(' was never closed"),
        ("def f():\n    return y\n\nf()\n", "mine.py, line 2: NameError: name 'y' is not defined"),
        ("import json\njson.loads('')\n", "mine.py, line 2: JSONDecodeError: Expecting value"),
        ("import nowhere_at_all\n", "mine.py, line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("import sys\nsys.exit(3)\n", "mine.py, line 2: SystemExit: 3"),
        (
            "from vitral.recipes import digits\nflowers = digits.changed({'train.epohcs': 3})\n",
            "mine.py, line 2: There is no setting train.epohcs. Did you mean train.epochs?",
        ),
    ],
)
def test_an_error_in_the_file_is_told_with_its_line(
    mine: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.chdir(mine.parent)
    mine.write_text(text)
    with pytest.raises(RecipeError, match=re.escape(sentence)) as told:
        find_recipe("mine.py:flowers")
    assert str(told.value).startswith(sentence)


def test_a_file_that_is_no_text_is_told(mine: Path) -> None:
    mine.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="mine.py"):
        find_recipe(f"{mine}:flowers")


def test_the_commands_take_it(called: Callable[..., Called], mine: Path) -> None:
    shown = called("show", "mine.py:flowers", cwd=mine.parent)
    assert Recipe.from_toml(shown.stdout) == digits.changed({"train.epochs": 3})
    assert "data.source is not given" in called("train", "mine.py:flowers", "data.source=ask").stderr
    wrong = called("train", "mine.py:flower")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "Error: mine.py: There is no recipe flower. Did you mean flowers?\n"


def test_what_no_one_sees_is_spelt_out_and_read_back() -> None:
    recipe = Recipe.read({"data": {"source": "a\x1b\x9b\u202e\U000e0001\t\"'\\ é"}})
    text = recipe.to_toml()
    assert text.replace("\n", "").isprintable() and Recipe.from_toml(text) == recipe
