"""Pictures that a Python program hands over, and changes of one's own to them: as good as a folder."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from conftest import stopped
from vitral import DataError, Recipe, RecipeError, RunError, evaluate, train
from vitral.data.config import Data
from vitral.data.sources.python import open_python
from vitral.training.preparation import prepared

RECIPE = Recipe.read(
    {
        "model": {"image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "heads": 2, "channels": 3, "classes": 0},
        "train": {"epochs": 2, "batch_size": 8, "device": "cpu", "precision": "float32", "compile": "no"},
    }
)


class Squares(Dataset[Any]):
    """Bright and dark ones, as a torch Dataset has them: a tensor of 0 to 1 and a number."""

    classes = ("bright", "dark")

    def __init__(self, count: int = 48, seed: int = 0) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        noise = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(100 * self.seed + number)) / 2
        return noise if number % 2 else noise + 0.5, number % 2


def test_a_torch_dataset_trains_and_is_measured(tmp_path: Path) -> None:
    recipe = RECIPE.changed({"data.directory": str(tmp_path)})
    run = train(recipe, source=Squares(), out=tmp_path / "run")
    assert run.recipe.data.source == "python:Squares" and run.weights().class_names == ("bright", "dark")
    assert evaluate(run, source=Squares()).pictures == run.record.data.pictures["test"] > 0
    with pytest.raises(DataError, match="were handed over by a Python program: hand them over again"):
        evaluate(run)
    with pytest.raises(DataError, match="are not those that .* was trained with"):
        evaluate(run, source=Squares(seed=1))


def test_it_goes_on_to_the_bit_and_only_with_the_same_pictures(tmp_path: Path) -> None:
    recipe = RECIPE.changed({"data.directory": str(tmp_path)})
    whole = train(recipe, source=Squares(), out=tmp_path / "whole")
    half = stopped(recipe, tmp_path / "half", after=3, source=Squares())
    with pytest.raises(RecipeError, match="hand them over again, with source="):
        train(out=half, resume=True)
    with pytest.raises(RunError, match="are not those that .* was begun with"):
        train(out=half, resume=True, source=Squares(seed=1))
    assert train(out=half, resume=True, source=Squares()).record.weights == whole.record.weights


def test_the_same_pictures_are_the_same_set_however_they_are_handed_over() -> None:
    arrays = [
        ((Squares()[n][0] * 255).round().byte().permute(1, 2, 0).numpy(), "bright dark".split()[n % 2])
        for n in range(48)
    ]
    pillows = [(Image.fromarray(pixels), label) for pixels, label in arrays]
    by_hand = [open_python(pictures, Data()) for pictures in (Squares(), arrays, pillows)]
    for index in by_hand[1:]:
        assert index.class_names == by_hand[0].class_names and index.labels.tolist() == by_hand[0].labels.tolist()
        assert [index.storage.stamp(n) for n in range(48)] == [by_hand[0].storage.stamp(n) for n in range(48)]


def test_splits_may_be_given() -> None:
    index = open_python({"train": Squares(20), "validation": Squares(6, 1), "test": Squares(4, 2)}, Data())
    assert Counter(index.splits.tolist()) == {"train": 20, "validation": 6, "test": 4}
    assert index.samples[0] == "train/00"


class Broken:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("pictures", "answer"),
    [
        ([], "has no pictures"),
        (Broken(), "does not give picture 0 and its label .OSError: the disk is gone"),
        ([(np.zeros((4, 4), np.uint8), None)], "should all be whole numbers, or all words; they are NoneType"),
        ([(torch.zeros(4, 4), 0)], r"is a tensor of shape \(4, 4\): \(channels, height, width\) is read"),
        ([(torch.full((3, 4, 4), 7.0), 0)], "numbers outside 0 to 1"),
        ({"tran": [(np.zeros((4, 4), np.uint8), 0)]}, "There is no split tran"),
        ([("nowhere.png", 0)], "nowhere.png"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(pictures: Any, answer: str) -> None:
    with pytest.raises(DataError, match=answer):
        open_python(pictures, Data())


NOISE = """
def noise(images, random):
    return images + 9 * random(1)[:, :, None, None]

def cut(images, random):
    return images[:, :, 1:]

def wrong(images, random):
    return images / 0 + nothing
"""


def augmented(folder: Path, name: str, **settings: object) -> Recipe:
    (folder / "mine.py").write_text(NOISE)
    given = {"data.directory": str(folder), "data.augment.own": f"{folder}/mine.py:{name}"}
    return RECIPE.changed(given | settings)


def test_augmentation_of_ones_own_gets_its_random_numbers_from_us(tmp_path: Path) -> None:
    """The same numbers whoever asks: they follow from seed, epoch and sample."""
    from vitral.data.sources.python import open_python

    index = open_python(Squares(), Data())
    plain = prepared(RECIPE.changed({"data.directory": str(tmp_path)}), index=index).batches
    own = prepared(augmented(tmp_path, "noise"), index=index).batches
    for step in (1, 4):
        (_, one), (_, two), (_, again) = (next(some.starting_at(step)) for some in (plain, own, own))
        added = (two.images - one.images).flatten(1)
        assert torch.equal(two.images, again.images) and float(added.min()) > 0
        assert len(set(added.mean(dim=1).tolist())) == len(added)  # another number for each picture


def test_a_run_with_augmentation_of_ones_own_remembers_its_file(tmp_path: Path) -> None:
    run = train(augmented(tmp_path, "noise"), source=Squares(), out=tmp_path / "run")
    assert list(run.record.code or {}) == [f"{tmp_path}/mine.py:noise"]
    assert evaluate(run, source=Squares()).pictures  # the model itself needs no file
    half = stopped(augmented(tmp_path, "noise"), tmp_path / "half", after=3, source=Squares())
    with pytest.raises(RecipeError, match="is not run by itself"):
        train(out=half, resume=True, source=Squares())
    again = train(out=half, resume=True, source=Squares(), code=tmp_path / "mine.py")
    assert again.record.weights == run.record.weights


@pytest.mark.parametrize(("name", "answer"), [("cut", "a batch of .* was expected"), ("wrong", "fails on a batch")])
def test_augmentation_that_fails_is_a_sentence(name: str, answer: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=answer):
        train(augmented(tmp_path, name), source=Squares(), out=tmp_path / "run")


@pytest.mark.slow
def test_a_folder_is_opened_once_its_weights_are_loaded_once_and_its_pictures_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `vitral train FOLDER init.weights=…` to its report, which shows one of these as it is: up to three, where
    their shapes differ."""
    from vitral.cli import main
    from vitral.data import decode, sources
    from vitral.weights import pretrained

    for number in range(40):
        folder = (
            tmp_path / "pictures" / ("train" if number < 32 else "test") / ("bright" if number % 2 == 0 else "dark")
        )
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (Squares()[number][0] * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((64, 64)).save(folder / f"{number}.png")
    fixture = Path(__file__).parent / "fixtures" / "timm_vit"
    shutil.copytree(fixture, tmp_path / "weights")
    counts: Counter[str] = Counter()

    def counting(module: Any, name: str) -> None:
        before = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return before(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    counting(sources, "open_folder")
    counting(pretrained, "raw_weights_of")
    counting(decode, "_upright_8_bit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    main(["train", "pictures", "init.weights=weights", "train.epochs=1", "--out", "run"])
    assert (counts["open_folder"], counts["raw_weights_of"], counts["_upright_8_bit"]) == (1, 1, 40 + 1)
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "check.json").exists()
