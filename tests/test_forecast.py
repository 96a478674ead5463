"""What a training will take is told before it begins."""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from conftest import quick_digits
from test_choose import folder_of
from vitral import DataError, Recipe
from vitral.cli.train import command
from vitral.data.config import Data
from vitral.data.pack import PackForecast, forecast_packing, pack
from vitral.data.sources import open_source
from vitral.data.sources.python import open_python
from vitral.recipes.choose import choose
from vitral.training.forecast import forecast_training
from vitral.training.preparation import complete, preprocess_of
from vitral.training.sample import some_of

Usage = namedtuple("Usage", "total used free")


def recipe_of(tmp_path: Path, each: int) -> Recipe:
    source = str(folder_of(tmp_path / "pictures", each, (8, 8)))
    settings = {"data.source": source, "data.directory": str(tmp_path / "data"), "train.epochs": 3}
    return quick_digits().changed(settings)


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10_000, 9_000, 1_000))


def test_what_packing_takes_is_told_and_nothing_where_it_is_done(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, 4)
    index = open_source(recipe.data)
    preprocess = preprocess_of(recipe, complete(recipe.model, index))
    told = forecast_packing(index, preprocess, tmp_path / "data")
    assert told.bytes == 12 * 3 * 8 * 8 and told.seconds > 0 and told.free > told.bytes
    assert not (tmp_path / "data").exists()
    pack(index, preprocess, tmp_path / "data")
    assert forecast_packing(index, preprocess, tmp_path / "data") == PackForecast(0, 0, 0.0)


@pytest.mark.usefixtures("small_disk")
def test_a_pack_that_the_disk_cannot_hold_is_refused_before_a_picture_is_packed(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, 4)
    index = open_source(recipe.data)
    preprocess = preprocess_of(recipe, complete(recipe.model, index))
    with pytest.raises(DataError, match="take 0.0 MB, and 0.0 MB are free .* Set a smaller model.image_size, or a lar"):
        pack(index, preprocess, tmp_path / "data")
    assert [path.name for path in (tmp_path / "data" / "packs").iterdir() if path.is_file()] != ["pixels.bin"]
    with pytest.raises(DataError, match="are free for"):
        forecast_training(recipe)


def test_of_many_pictures_some_tell_what_all_will_take(tmp_path: Path) -> None:
    """Nothing of them stays on the disk, and the steps are those of all of them."""
    recipe = recipe_of(tmp_path, 120)
    told = forecast_training(recipe)
    assert len(told.plan.pack.index.samples) < 360 and told.packing.bytes == 360 * 3 * 8 * 8
    assert told.steps == 3 * (told.pictures // recipe.train.batch_size) and told.step is not None
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("several", [False, True])
def test_some_of_many_pictures_have_one_to_train_with_of_each_class_or_label(several: bool) -> None:
    """Else a rare one would be refused as if it were only tested."""
    random, pictures = np.random.default_rng(0), list[tuple[Any, Any]]()
    for number in range(400):
        common = [name for name in ("a", "b") if random.random() < 0.5]
        label: Any = [*common, *(["rare"] if number in (7, 77, 177, 277) else [])] if several else f"{number % 80:02}"
        pictures.append((random.integers(0, 255, (8, 8), np.uint8), label))
    index = open_python(pictures, Data())
    some = some_of(index, np.arange(400), 90)
    assert len(some.samples) <= 90 + 80 + 1 and len(some.of("test"))
    assert some.counts(some.of("train")).min() > 0


def test_a_time_becomes_steps_that_fit(tmp_path: Path) -> None:
    told = forecast_training(recipe_of(tmp_path, 4).changed({"train.budget": "1h"}))
    assert told.step and told.steps == pytest.approx(0.98 * 3600 / told.step, rel=0.01)


def test_a_dry_run_says_how_long_it_would_take(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(recipe_of(tmp_path, 4).to_toml())
    done = CliRunner().invoke(command, [str(tmp_path / "mine.toml"), "--dry-run"])
    assert done.exit_code == 0, done.output
    for words in (
        "Packing takes about 1 s and 0.0 MB, once",
        "a step takes",
        "A step takes up to",
        "Nothing was trained",
    ):
        assert words in done.stdout


def test_where_packing_takes_long_so_does_the_time_that_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitral.recipes.choose.MANY", 10)
    source = str(folder_of(tmp_path / "pictures", 8, (60, 60)))
    assert choose(source, {"init.weights": "none"}).recipe.train.budget == "30s"
    monkeypatch.setattr("vitral.data.pack.cores", lambda: 1e-4)  # as if packing took ten thousand times as long
    slow = choose(source, {"init.weights": "none"})
    assert slow.recipe.train.budget.endswith(("m", "h")) and "Packing takes about" in slow.why[-1]
    assert choose(source, {"init.weights": "none", "train.budget": "45s"}).recipe.train.budget == "45s"
