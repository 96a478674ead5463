"""About the whole: imports go one way, importing is quiet and quick, what README says is true."""

import ast
import doctest
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitral
from conftest import slowly, vit

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "vitral"

# Each may import what stands left of it. A tuple: rooms that do not know each other.
ORDER = [
    ("errors", "version", "progress"),
    ("files", "settings"),
    ("plugin",),
    ("model", "data"),
    ("training.config",),  # settings alone, as the other rooms' config.py
    ("recipe", "weights"),
    ("run",),
    ("inference",),
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


def test_help_is_quick() -> None:
    """At most 8 times the time of a Python that does nothing: medians, interleaved."""
    commands = {"nothing": [sys.executable, "-c", "pass"], "help": [sys.executable, "-m", "vitral", "--help"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(11):
        for name, command in commands.items():
            started_at = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            seconds[name].append(time.perf_counter() - started_at)
    nothing, helped = (sorted(seconds[name])[5] for name in commands)
    print(f"vitral --help takes {helped / nothing:.1f} times as long as python -c pass")
    assert helped <= 8 * nothing


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


def test_the_readmes_commands_are_commands() -> None:
    from vitral.cli import COMMANDS

    lines = [line for block in code_blocks("sh") + code_blocks("console") for line in block.splitlines()]
    called = {match for line in lines for match in re.findall(r"\bvitral ([a-z]+)", line)}
    assert called and called <= set(COMMANDS)


def test_the_readmes_tree_is_the_tree() -> None:
    readme = (ROOT / "README.md").read_text()
    lines = readme[readme.index("    src/vitral/") :].split("\n\n")[0].splitlines()[1:]
    told: set[str] = set()
    room = ""
    for line in lines:
        indent, words = len(line) - len(line.lstrip()), line.split()
        files = [word for word in words if word.endswith(".py")] if words[0].endswith(".py") else [words[0]]
        room = "" if indent == 6 else room
        told |= {room + name for name in files}
        room = words[0] if indent == 6 and words[0].endswith("/") else room
    real = set()
    for path in SOURCE.rglob("*"):
        name = str(path.relative_to(SOURCE)) + ("/" if path.is_dir() else "")
        inner = path.name == "__init__.py" and path.parent != SOURCE
        deep = name.count("/") > 1 and not name.endswith("/") or name.count("/") > 2  # docs/architecture.md has them
        if "__pycache__" in name or inner or deep or path.suffix not in ("", ".py"):
            continue
        real.add(name)
    assert told == real


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
