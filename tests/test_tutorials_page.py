"""docs/tutorials.md: what it names is there, and every command on it runs."""

import importlib.util
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conftest import FIXTURES
from vitral.cli import main
from vitral.data.sources.named import data_directory
from vitral.recipe import Recipe, parse_setting
from vitral.recipes import RECIPES
from vitral.recipes.tiny16 import WEIGHTS
from vitral.recipes.tutorials import TUTORIALS
from vitral.settings import names

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorials.md").read_text()
NAMES = list(dict.fromkeys(name for one in TUTORIALS for name in (one.recipe, one.beyond)))

# What makes a training short: one block, small pictures; and of DINO's weights a few small ones of its own.
SHORT = {
    **{name: ["model.depth=1"] for name in ("mu-cifar10", "owen-cifar10")},
    **{name: ["model.image_size=64"] for name in ("food-features", "food-finetune")},
    "bourke-food": ["model.depth=1", "model.image_size=64"],
    "dino-walk": [
        f"init.weights={FIXTURES / 'dino_reference'}",
        *("model.width=36", "model.depth=3", "model.heads=3", "model.patch_size=4", "model.image_size=20"),
    ],
}


def commands() -> list[list[str]]:
    """Every command on the page, once, in the order of the page: in blocks, and in lines between backticks."""
    text = re.sub(r"^(vitral [^#\n]+).*$", r"`\1`", PAGE, flags=re.M)
    found = [shlex.split(command)[1:] for command in re.findall(r"`(vitral [^`]+)`", text)]
    whole = [words for words in found if len(words) > 1]  # `vitral predict` alone is a name
    return [list(words) for words in dict.fromkeys(map(tuple, whole))]


def about(name: str) -> list[list[str]]:
    """The commands about a recipe and its run."""
    return [words for words in commands() if {name, f"runs/{name}"} & set(words)]


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("make_lines", ROOT / "docs" / "make_lines.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_links_into_the_code_lead_to_what_they_name(page: Path) -> None:
    """To mend it: make reference."""
    text = page.read_text()
    assert text == loaded().with_lines(text), "run `make reference`"


def test_a_name_that_has_moved_is_told() -> None:
    with pytest.raises(ValueError, match=r"vit.py has no Blok"):
        loaded().with_lines("[`Blok`](../src/vitral/model/vit.py#L1)")


def test_every_tutorial_has_its_block_its_recipes_and_its_code_on_the_page() -> None:
    for one in TUTORIALS:
        assert {name for name in (one.recipe, one.plain, one.beyond) if name} <= set(RECIPES)
        assert f"`{one.command}`" in PAGE and one.source in PAGE and f"`{one.plain or one.recipe}`" in PAGE
        assert ["train", one.beyond] in commands()
    blocks = PAGE.split("\n## ")[1:-1]
    assert len(blocks) == len(TUTORIALS)
    assert all(len(loaded().LINK.findall(block)) >= 7 and "**What differs.**" in block for block in blocks)


def test_every_setting_on_the_page_is_one_and_its_recipe_takes_the_value() -> None:
    """That is the recipe that stands before it, else the one of the block. A part of the model also goes by its own
    name, without `model.`"""
    known, parts = set(names(Recipe)), "data init model teacher train attention mlp pool positions".split()
    for one, block in zip([TUTORIALS[0], *TUTORIALS], PAGE.split("\n## ")[:-1], strict=True):
        for typed in re.findall(r"`([^`]+)`", block):
            first, *_ = words = typed.replace(" = ", "=").split()
            named = [word for word in words if re.match(rf"({'|'.join(parts)})\.[a-z_.]+(=|$)", word)]
            settings = dict(parse_setting(f"{word}=" if "=" not in word else word) for word in named)
            whole = {name if name in known else f"model.{name}": value for name, value in settings.items()}
            assert [name for name in whole if name not in known] == []
            RECIPES.get(first, RECIPES[one.recipe]).changed(
                {name: value for name, value in whole.items() if value != ""}
            )


def test_ls_tutorials_lists_them_with_author_source_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["ls", "tutorials"])
    told = capsys.readouterr().out
    main(["ls", "tutorials", "--json"])
    listed = json.loads(capsys.readouterr().out)["tutorials"]
    assert [one["command"] for one in listed] == [one.command for one in TUTORIALS]
    for one in TUTORIALS:
        assert [part for part in (one.author, one.title, one.source, one.command) if part not in told] == []


def test_a_folder_called_tutorials_is_listed_by_its_path(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_copy.parent)
    Path("tutorials").mkdir()
    run_copy.rename("tutorials/mine")
    main(["ls", "./tutorials"])
    assert "tutorials/mine" in capsys.readouterr().out


def shortened(words: list[str]) -> list[str]:
    if words[0] == "train":
        return [*words, *SHORT.get(words[1], []), "train.budget=2steps"]
    return [("2" if before == "--examples" else word) for before, word in pairwise(["", *words])]


@pytest.fixture
def place(small_sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the page's commands are typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    return tmp_path


def type_in(commands: list[list[str]], weights: bool) -> None:
    if weights and not (data_directory() / "weights" / WEIGHTS).exists():
        pytest.skip(f"{WEIGHTS} is not in the data directory (VITRAL_DATA)")
    for words in sorted(map(shortened, commands), key=lambda words: words[0] != "train"):
        main(words)


@pytest.mark.slow
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", NAMES)
def test_every_command_about_a_recipe_and_its_run_runs(name: str) -> None:
    assert ["train", name] in about(name)
    type_in(about(name), weights=RECIPES[name].init.weights == WEIGHTS)


@pytest.mark.usefixtures("place")
def test_all_other_commands_run() -> None:
    about_recipes = [words for name in NAMES for words in about(name)]
    others = [words for words in commands() if words not in about_recipes]
    assert ["ls", "tutorials"] in others
    type_in(others, weights=True)
