"""What the tests share: a tiny model, a tiny run, pictures, and where the large data lies if it is there."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

# Before torch is loaded, and for the processes that tests start: these models are too small for two threads, which only
# wait for each other where the machine has other work.
os.environ["OMP_NUM_THREADS"] = "1"

# What a script starts in the background ignores Ctrl-C, and so would every process that a test sends one.
signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
import torch
from hypothesis import settings
from numpy.typing import NDArray
from PIL import Image

from vitral import Run, ViT, ViTConfig, events, train
from vitral.cli import main
from vitral.model.config import ModelConfig
from vitral.model.interface import Model
from vitral.recipe import Recipe
from vitral.recipes import digits
from vitral.training.speed import bfloat16_speed

settings.register_profile("shared", deadline=None)  # machines are shared: no test asks how long something took
settings.load_profile("shared")

FIXTURES = Path(__file__).parent / "fixtures"
FORMAT_1 = Path(__file__).parent / "runs" / "format-1"

TINY = ViTConfig(image_size=32, patch_size=8, width=32, depth=2, heads=4, classes=10)


def vit(model: Model) -> ViT:
    """A model of which a test knows what it is."""
    assert isinstance(model, ViT)
    return model


def vit_config(config: ModelConfig) -> ViTConfig:
    assert isinstance(config, ViTConfig)
    return config


def with_groups(name: str, folder: Path, weights: str = "model.safetensors") -> Path:
    """A fixture with a ResNet of four groups before its ViT, which the fixture's about.json has in words only."""
    facts = json.loads((FIXTURES / name / "about.json").read_text())
    folder.mkdir(exist_ok=True)
    shutil.copy(FIXTURES / name / weights, folder / weights)
    (folder / "about.json").write_text(json.dumps(facts | {"groups": 4}))
    return folder


def slowly(*cases: object) -> list[object]:
    """Cases of a parametrized test that `make test-slow` runs: one that stands for them stays with `make test`."""
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


def stopped(recipe: Recipe, out: Path, after: int, **given: Any) -> Path:
    """A run that was stopped after so many steps."""
    happening = events(recipe, out=out, **given)
    next(event for event in happening if getattr(event, "step", 0) == after)
    happening.close()
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The real one; without it these tests skip, and say so. A module each: its loop must not outlive them."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()


@pytest.fixture(params=[(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")], ids=str)
def window(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    """A window of this width and theme, which keeps what the browser complains of in `complaints`."""
    width, theme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    window = context.new_page()
    window.complaints = []
    window.on("console", lambda message: window.complaints.append(message.text))
    window.on("pageerror", lambda error: window.complaints.append(str(error)))
    yield window
    context.close()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def quick_digits() -> Recipe:
    """The digits recipe, made so small that it trains in a second."""
    return digits.changed({"model.width": 16, "model.depth": 1, "model.heads": 2, "train.epochs": 2})


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is only read."""
    return train(quick_digits(), out=tmp_path_factory.mktemp("session") / "run")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of noise, bright and dark, 32×32."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, level in (("dark", 60), ("bright", 180)):
        (folder / name).mkdir()
        for number in range(24):
            pixels = np.clip(random.normal(level, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves a hundredth of a second whenever it is looked at: a training takes as long on any machine."""
    ticks = count()
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks) / 100)


@pytest.fixture
def run_copy(trained: Run, tmp_path: Path) -> Path:
    """A run that may be damaged."""
    shutil.copytree(trained.folder, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="session")
def seven() -> NDArray[np.uint8]:
    """A real handwritten seven, 8×8, white on black."""
    from vitral.data.config import Data
    from vitral.data.sources import open_source

    index = open_source(Data(source="digits"))
    picture = index.storage.read(int(np.flatnonzero(index.labels == 7)[0]))
    assert isinstance(picture, np.ndarray)
    return picture


class Called(NamedTuple):
    """What a command printed, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def called(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Called]:
    """The command `vitral` in this process: where one of its own adds nothing, it saves the start."""

    def call(*args: object, cwd: Path | None = None) -> Called:
        if cwd:
            monkeypatch.chdir(cwd)
        capfd.readouterr()
        code = 0
        try:
            main([str(arg) for arg in args])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        told = capfd.readouterr()
        return Called(code, told.out, told.err)

    return call


@pytest.fixture
def bfloat16() -> None:
    """Short numbers; on a machine that stops at them the test skips, and says so."""
    if not bfloat16_speed(torch.device("cpu")):
        pytest.skip("this machine cannot compute with bfloat16")


@pytest.fixture
def large_data() -> Callable[[str], Path]:
    """A folder of the data directory; where it is not, the test skips and says so."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = Path(os.environ.get("VITRAL_DATA") or cache / "vitral")

    def find(name: str) -> Path:
        if not (directory / name).exists():
            pytest.skip(f"{name} is not in the data directory (VITRAL_DATA)")
        return directory / name

    return find


@pytest.fixture
def small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a few pictures of chance under the names of the sets that the tutorials train on; weights
    are those of the real one, where it has some."""
    directory, chance = tmp_path / "data", np.random.default_rng(0)
    for name, classes, shape in (("mnist", 10, (28, 28)), ("cifar10", 10, (32, 32, 3)), ("food", 3, (96, 96, 3))):
        for file, label in product(("train/{}/a", "train/{}/b", "test/{}/a"), range(classes)):
            path = directory / name / f"{file.format(label)}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(chance.integers(0, 256, shape, dtype=np.uint8)).save(path)
    weights = Path(os.environ.get("VITRAL_DATA") or Path.home() / ".cache" / "vitral") / "weights"
    if weights.is_dir():
        (directory / "weights").symlink_to(weights.resolve())
    monkeypatch.setenv("VITRAL_DATA", str(directory))
    return directory
