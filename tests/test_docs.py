"""The pages: what they show is what the commands print, what they list is what is there."""

import difflib
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import vitral
from conftest import slowly
from vitral.cli import COMMANDS, doctor

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": ROOT / "README.md", **{path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}}
DATA = ("ants-bees", "vit_tiny_patch16_224")  # what only some machines have
QUICK = re.compile(r"(\.venv/bin/)?vitral (shapes|show|ls|fetch|doctor|--help|--version)\b(?!.* runs/)[^>]*$")


@dataclass(frozen=True)
class Sample:
    """A command, and what a page shows that it prints; nothing: it is run, and what it prints is not looked at."""

    command: str
    shown: str


@dataclass(frozen=True)
class Block:
    """A ```console block of a page."""

    page: str
    number: int
    samples: tuple[Sample, ...]

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"

    @property
    def needs(self) -> list[str]:
        return [name for name in DATA if any(name in sample.command for sample in self.samples)]

    @property
    def is_quick(self) -> bool:
        """Nothing is trained for it."""
        return all(QUICK.match(one.command) or one.shown.startswith("Error:") for one in self.samples)


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page].read_text(), re.M | re.S)


def samples_of(block: str) -> Iterator[Sample]:
    """`$ ` begins a command, `> ` goes on with it, all else is what it prints."""
    for piece in re.split(r"^\$ ", block, flags=re.M)[1:]:
        first, *rest = piece.splitlines()
        typed = [line[2:] for line in rest if line.startswith("> ")]
        shown = [line for line in rest if not line.startswith("> ")]
        yield Sample("\n".join([first, *typed]), "\n".join(shown).strip("\n"))


def console_blocks() -> list[Block]:
    return [
        Block(page, number, tuple(samples_of(block)))
        for page in PAGES
        for number, block in enumerate(code_blocks(page, "console"))
    ]


BLOCKS = console_blocks()


def masked(text: str) -> list[str]:
    """Lines without what differs from run to run: numbers, durations, spaces between columns, the machine."""
    lines = [" ".join(line.split()) for line in text.strip("\n").splitlines()]
    lines = [re.sub(r"\d[\d,.]*(e-\d+)?(?<![,.])", "#", line) for line in lines]
    lines = [re.sub(r"(# h )?(# min )?# s\b", "# s", line) for line in lines]
    return [re.sub(r"^Device .*", "Device …", line) for line in lines]


def matches(shown: str, printed: str) -> bool:
    """Line by line, numbers masked. A line that is `…` stands for any lines, and `…` in a line for any text.

    >>> matches("a 1\\n…\\nb … d", "a 2\\nx\\ny\\nb c d"), matches("a\\nb", "a\\nc\\nb")
    (True, False)
    """
    pattern = ""
    for line in masked(shown):
        if line == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in masked(printed))) is not None


MAKES = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # what `make test-slow` would tell the `make` of a page
FINDINGS = 1  # what `vitral check` ends with where something serious was found


class Place:
    """A folder in which the pages' commands are typed: with a Makefile and a .venv as after `make demo`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "vitral").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vitral "$@"\n')
        (programs / "vitral").chmod(0o755)
        (programs / "python").symlink_to(sys.executable)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "docs").symlink_to(ROOT / "docs")
        (folder / ".venv" / "installed").touch()
        for page in PAGES:
            for code in code_blocks(page, "python"):
                if named := re.match(r"# (\w+\.py)\n", code):
                    (folder / named[1]).write_text(code)

    def types(self, command: str) -> tuple[str, int]:
        """What it prints, errors too, and how it ends."""
        path = f"{self.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**{name: value for name, value in os.environ.items() if name not in MAKES}, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # How long work takes is the machine's affair, and whether a line says so.
        return re.sub(r"(?m)^(.* so far|There was no time for .*)\n", "", done.stdout), done.returncode

    def check(self, block: Block) -> None:
        for sample in block.samples:
            printed, code = self.types(sample.command)
            if code and sample.shown and "Error" not in sample.shown and code != FINDINGS:
                pytest.fail(f"{block} $ {sample.command} ends with {code}\n{printed}", pytrace=False)
            if sample.shown and not matches(sample.shown, printed):
                both = masked(sample.shown), masked(printed)
                lines = difflib.unified_diff(*both, "shown", "printed", n=99, lineterm="")
                pytest.fail(f"{block} $ {sample.command}\n" + "\n".join(lines), pytrace=False)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/digits as README's first command leaves it, checked against what README shows."""
    place = Place(tmp_path_factory.mktemp("demo"))
    for block in BLOCKS:
        if block.page == "README.md" and not block.needs:
            place.check(block)
    return place.folder / "runs" / "digits"


@pytest.fixture
def furnished(place: Place, demo: Path) -> Place:
    """With what the pages take for granted: the run of the demo, pictures of one's own, a pickle, a bee."""
    shutil.copytree(demo, place.folder / "runs" / "digits")
    drawing = next(code for code in code_blocks("maker.md", "python") if "seven.png" in code)
    subprocess.run([sys.executable, "-c", drawing], cwd=place.folder, check=True)
    (place.folder / "mine" / "notes.png").write_text("hello\n")
    torch.save({"model": vitral.Run.load(demo).weights().model.state_dict()}, place.folder / "weights.pth")
    return place


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_quick], ids=str)
def test_what_a_page_shows_is_what_the_command_prints(block: Block, place: Place) -> None:
    place.check(block)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_the_readme_shows_is_what_happens(demo: Path) -> None:
    assert (demo / "report.html").is_file()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", slowly(*sorted({block.page for block in BLOCKS} - {"README.md"})))
def test_what_a_page_shows_is_what_happens(page: str, furnished: Place) -> None:
    for block in BLOCKS:
        if block.page == page and not block.needs:
            furnished.check(block)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", slowly(*(block for block in BLOCKS if block.needs)), ids=str)
def test_what_a_page_shows_of_photographs_is_what_happens(
    block: Block, place: Place, large_data: Callable[[str], Path]
) -> None:
    for name in block.needs:
        large_data(f"weights/{name}" if name.startswith("vit_") else name)
    bees = sorted((large_data("ants-bees") / "val" / "bees").glob("*.jpg"))
    shutil.copy(bees[0], place.folder / "bee.jpg")
    place.check(block)


def test_there_are_samples_on_the_pages() -> None:
    """So that a change of how they are written does not leave the tests above with nothing to do."""
    assert {block.page for block in BLOCKS} >= {"README.md", "engineer.md", "maker.md", "reader.md", "researcher.md"}
    assert sum(bool(sample.shown) for block in BLOCKS for sample in block.samples) >= 12


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_is_one(page: str) -> None:
    """With options that it has."""
    from click import Context

    from vitral.cli import vitral as command_line

    text = PAGES[page].read_text()
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.M | re.S)
    typed = [line for block in blocks for line in block.splitlines()]
    typed += re.findall(r"^ {4,}vitral .*|`vitral [^`]+`", text, re.M)
    for line in typed:
        for name, rest in re.findall(r"\bvitral ([a-z]+)\b([^`|#;&]*)", line):
            assert name in COMMANDS, line
            command = command_line.get_command(Context(command_line), name)
            assert command is not None
            known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            assert set(re.findall(r"(?<=\s)--[a-z-]+", rest)) <= known, line


def made_reference() -> str:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text: str = module.reference()
    return text


def test_the_reference_is_what_is_made_of_the_code_and_has_all_of_it() -> None:
    """To mend it: make reference."""
    page = PAGES["reference.md"].read_text()
    assert page == made_reference(), "run `make reference`"
    assert [name for name in COMMANDS if f"### vitral {name}\n" not in page] == []
    assert [name for name in vitral.__all__ if f"#### `{name}`\n" not in page] == []


def test_the_page_on_limits_tells_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Its tables are those that the scripts make of the files beside it, and the operations those of today's model."""
    from vitral.model.config import ViTConfig

    page, folder = PAGES["limits.md"].read_text(), ROOT / "docs" / "limits"
    cost, shares, positions = (
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py")) for name in ("cost", "shares", "positions")
    )
    shares["table"](shares["read"](folder / "shares.tsv"))
    positions["table"](positions["read"](folder / "positions.tsv", "digits", 450), 450)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 9 and [line for line in lines if line not in page] == []

    found = json.loads((folder / "cost.json").read_text())
    for row in found["rows"][:5]:
        counted = cost["operations"](ViTConfig.named(found["model"], image_size=row["image_size"]))
        assert counted == tuple(row["operations"].values())
    for what in ("operations", "seconds"):
        for part in ("attention", "rest"):
            assert f"{cost['exponent'](found['rows'], what, part):.2f}" in page


def test_the_page_on_limits_tells_what_a_swin_costs_beside_a_vit() -> None:
    from vitral.model.config import ViTConfig
    from vitral.model.shapes import shapes
    from vitral.model.swin_config import SwinConfig

    page = " ".join(PAGES["limits.md"].read_text().split())
    swin, vit = (
        [sum(row.flops * row.times for row in shapes(config)) / 1e9 for config in configs]
        for configs in (
            [SwinConfig(image_size=size, classes=1000) for size in (224, 896)],
            [ViTConfig.named("S/16", image_size=size, classes=1000) for size in (224, 896)],
        )
    )
    assert f"a Swin-T takes {swin[0]:.1f} GFLOPs at 224 pixels and {swin[1]:.0f} at 896" in page
    assert f"A ViT-S/16 takes {vit[0]:.1f} and {vit[1]:.0f}." in page
    windows = runpy.run_path(str(ROOT / "benchmarks" / "windows.py"))
    found = json.loads((ROOT / "docs" / "limits" / "windows.json").read_text())["rows"]
    for row in found:
        config = windows["config_of"](row["model"], row["image_size"])
        assert sum(step.flops * step.times for step in shapes(config)) == row["operations"]
    for name in windows["NAMES"]:
        rows = [row for row in found if row["model"] == name]
        for what in ("operations", "seconds"):
            assert all(f"| {power:.2f} |" in page for power in windows["exponents"](rows, what))


# Settings that came after format 1: not written where they are the default.
UNWRITTEN = {
    "train.objective": "classification",
    "train.restarts": [],
    "train.test_curve": False,
    "train.recompute": False,
    "train.parallel": "auto",
    "data.augment.own": "none",
    "data.augment.crop_most": 1.0,
    "data.target": "auto",
    "data.cache": "auto",
    "data.profile": "ignore",
    "data.labelled": 1.0,
    "data.window": 64,
    "data.shards": "stream",
    "train.task_weights": [],
    "init.rank": 8,
    "train.budget_covers": "weights",
    "init.alpha": 8.0,
}


def test_the_schemas_settings_and_defaults_are_those_of_a_recipe() -> None:
    from vitral.recipe import Recipe
    from vitral.settings import names

    page, stored = PAGES["schema.md"].read_text(), Recipe().write()
    assert [name for name in names(Recipe) if name.rpartition(".")[2] not in page] == []
    rows = re.findall(r"^\| (`(?:data|init|teacher|train)\.[^|]+) \| [^|]+ \| ([^|]+) \|", page, re.M)
    for cell, default in rows:
        for name in re.findall(r"`([\w.]+)`", cell):
            value: Any = stored
            for key in name.split("."):
                value = value.get(key, UNWRITTEN.get(name))
            assert str(value).lower() == default.strip('`" '), name
    assert len(rows) > 50


def test_the_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned and project["optional-dependencies"]["tested"] == [f"torch=={pinned[1]}"]
    assert doctor.tested_torch() == pinned[1], "the installed package is older than pyproject.toml: run `make test`"
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_make_help_tells_of_every_target() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    told = subprocess.run(["make", "--silent", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make ([a-z-]+)", told, re.M) == targets


def test_doctor_says_so_where_torch_is_not_the_tested_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a newcomer, who has the newest one: only what is installed is stood in for."""
    real = importlib.metadata.version
    for installed, told in (("2.99.0", True), (f"{doctor.tested_torch()}+cpu", False)):
        monkeypatch.setattr(doctor, "version", lambda name, torch=installed: torch if name == "torch" else real(name))
        doctor.command.main([], standalone_mode=False)
        assert (f"the tests are run with {doctor.tested_torch()}" in capsys.readouterr().out) == told
