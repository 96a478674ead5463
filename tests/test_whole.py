"""About the whole: imports go one way, importing is quiet and quick, what README says is true."""

import ast
import doctest
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import vitral
from conftest import slowly, vit

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "vitral"

# Each may import what stands left of it. A tuple: rooms that do not know each other.
ORDER = [
    ("errors", "version", "progress", "regressions"),
    ("files", "settings", "processes"),
    ("plugin", "rounds", "targets"),
    ("model", "data"),
    ("training.config",),  # settings alone, as the other rooms' config.py
    ("recipe", "weights"),
    ("run", "graph"),
    ("inference",),
    ("predictions",),
    ("classifier",),
    ("look",),
    ("evaluation", "training"),
    ("deploy",),
    ("recipes",),
    ("cli",),
]


def room_of(module: str) -> str:
    """`vitral.training.config` and `vitral.training.loop` stand in two places of the order."""
    return "training.config" if module == "vitral.training.config" else module.split(".")[1]


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {room_of(name) for name in names if name.startswith("vitral.")}
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(".".join(["vitral", *path.relative_to(SOURCE).with_suffix("").parts]))
    if room in ("__init__", "__main__"):
        return
    place = next(i for i, rooms in enumerate(ORDER) if room in rooms)
    allowed = {name for rooms in ORDER[:place] for name in rooms} | {room}
    assert imported_rooms(path) - allowed == set()


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_importing_loads_nothing_heavy_prints_nothing_and_changes_nothing() -> None:
    code = """
import os, random, sys, threading, warnings
state = random.getstate(), dict(os.environ), list(warnings.filters), threading.active_count()
import vitral
assert (random.getstate(), dict(os.environ), list(warnings.filters), threading.active_count()) == state
heavy = {"torch", "numpy", "PIL", "pydantic", "matplotlib", "sklearn", "scipy", "safetensors", "rich", "tomlkit"}
print(sorted(heavy & set(sys.modules)))
"""
    done = python(code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("from vitral.cli import main; main(['--help'])", "torch numpy PIL pydantic matplotlib sklearn rich"),
        ("from vitral.cli import main; main(['show', 'digits'])", "torch matplotlib sklearn scipy"),
        ("from vitral.cli import main; main(['ls'])", "torch matplotlib sklearn scipy"),
        ("import vitral.recipes, vitral.recipe", "torch numpy matplotlib sklearn tomlkit"),
        ("import vitral.classifier", "matplotlib sklearn scipy"),
        ("import vitral.training.loop", "matplotlib sklearn scipy"),
    ],
)
def test_a_door_loads_only_what_is_behind_it(code: str, absent: str) -> None:
    loaded = f"import sys; print('|', *(set({absent.split()!r}) & set(sys.modules)))"
    done = python(f"try:\n    {code}\nexcept SystemExit: pass\n{loaded}")
    assert done.stdout.splitlines()[-1].strip() == "|"


def test_help_loads_nothing_but_click() -> None:
    """Which is why it is quick: benchmarks/start.py has the times."""
    code = """
import sys
before = set(sys.modules)  # of this Python, however it was installed
from vitral.cli import main
main(["--help"])
print({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
"""
    assert python(code).stdout.splitlines()[-1] in ("{'click', 'vitral'}", "{'vitral', 'click'}")


@pytest.mark.slow
def test_every_public_name_is_there_documented_and_seen_by_type_checkers(tmp_path: Path) -> None:
    for name in vitral.__all__:
        found = getattr(vitral, name)
        assert isinstance(found, str) or (found.__doc__ or "").strip(), name
    assert set(dir(vitral)) == set(vitral.__all__)
    (tmp_path / "user.py").write_text(
        "from vitral import Classifier, Recipe, Run, ViT, ViTConfig, train\n"
        "reveal_type(ViTConfig(width=3))\nreveal_type(ViT(ViTConfig()))\n"
        "reveal_type(train(Recipe()))\nreveal_type(Classifier.load('x').predict('y'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    told = re.findall(r'Revealed type is "([\w.]+)"', done.stdout)
    assert [name.rpartition(".")[2] for name in told] == ["ViTConfig", "ViT", "Run", "Prediction"]
    with pytest.raises(AttributeError, match="has no attribute 'vit'"):
        vitral.vit  # noqa: B018


def test_a_room_does_not_hide_a_public_name() -> None:
    """Importing a submodule sets its name on the package: no public name may be that of a room."""
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms & set(vitral.__all__) == set()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("number", slowly(*range(len(code_blocks("python")))))
def test_the_readmes_python_runs(number: int, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    code = code_blocks("python")[number]
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True, timeout=120)


def tree(page: Path) -> list[tuple[int, list[str], str]]:
    """The lines of its tree of src/vitral: how deep, which names, what is said of them."""
    text = page.read_text()
    lines = text[text.index("    src/vitral/\n") :].split("\n\n")[0].splitlines()[1:]
    rows = []
    for line in lines:
        names, _, said = line.strip().partition("  ")
        rows.append(((len(line) - len(line.lstrip())) // 2 - 2, names.split(", "), said.strip()))
    return rows


def test_the_architectures_tree_is_the_tree() -> None:
    """Every file has its place in it, and all that it names is there.

    A name with a star stands for several files, and a folder with nothing below it for all that is in it.
    """
    told: list[str] = []
    folders: list[str] = []
    for depth, names, said in tree(ROOT / "docs" / "architecture.md"):
        del folders[depth - 1 :]
        above = "".join(folders)
        told += [above + name for name in names]
        told += [f"{above}{name}.py" for name in re.findall(r"(?<!\w)\*\w+", said)]
        folders += names if names[0].endswith("/") else []
    real = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    real = {name for name in real if name == "__init__.py" or not name.endswith("/__init__.py")}
    whole = [name for name in told if name.endswith("/") and sum(one.startswith(name) for one in told) == 1]
    named = {path for name in told for path in real if fnmatch(path, name)}
    named |= {path for name in whole for path in real if path.startswith(name)}
    assert real - named == set()
    missing = [name for name in told if not name.endswith("/") and not any(fnmatch(path, name) for path in real)]
    assert missing + [name for name in told if name.endswith("/") and not (SOURCE / name).is_dir()] == []


def test_the_readme_names_every_room() -> None:
    rooms = {f"{path.name}/" for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= {name for _, names, _ in tree(ROOT / "README.md") for name in names}


def test_the_readers_page_says_what_happens(
    trained: vitral.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its examples, run as a doctest. They ask a run called runs/digits; a small one has fewer heads, and no more."""
    blocks = examples_of("reader.md")
    heads = vit(trained.weights().model).config.heads
    blocks = blocks.replace("torch.Size([1, 4, 17, 17])", f"torch.Size([1, {heads}, 17, 17])")
    blocks = blocks.replace("torch.Size([4, 4, 4])", f"torch.Size([{heads}, 4, 4])")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(trained.folder)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    assert_they_hold(blocks, at_least=20)


def test_the_page_on_looking_inside_says_what_happens() -> None:
    assert_they_hold(examples_of("look.md"), at_least=8)


def examples_of(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S))


def assert_they_hold(examples: str, at_least: int) -> None:
    failed, tried = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(examples, {}, "page", "page", 0))
    assert tried >= at_least and failed == 0


@pytest.mark.slow
def test_the_docs_build_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", ROOT / "docs", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_no_trace_of_a_machine_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        content = (ROOT / name).read_bytes()
        assert str(ROOT).encode() not in content, name
        assert str(Path.home()).encode() + b"/" not in content, name
