"""Labels that were flipped are found again, by a model that has not learnt from the picture."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Called, quick_digits
from vitral import train
from vitral.data.config import Data
from vitral.data.folds import OutOfFold, parts
from vitral.data.pack import Pack, pack
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_source
from vitral.evaluation.probe import out_of_fold as out_of_fold_by_probes
from vitral.evaluation.suspects import suspects, write_suspects
from vitral.progress import Progress, drain
from vitral.recipe import Recipe
from vitral.recipes import digits
from vitral.training.folds import TRAINING, out_of_fold


def digits_folder(folder: Path, each: int, flipped: float, seed: int = 0) -> set[str]:
    """Real digits as files; some of them lie in a wrong class's folder. Returns those."""
    index, random = open_source(Data(source="digits")), np.random.default_rng(seed)
    wrong = set()
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    for label in range(10):
        for number in np.flatnonzero(index.labels == label)[:each]:
            place = label
            if random.random() < flipped:
                place = int(random.choice([other for other in range(10) if other != label]))
                wrong.add(f"{place}/{number}.png")
            Image.fromarray(np.asarray(index.storage.read(int(number)))).save(folder / str(place) / f"{number}.png")
    return wrong


def result_of(recipe: Recipe, steps: int, folds: int = 5) -> tuple[list[Progress], OutOfFold]:
    stages: list[Progress] = []
    result = drain(out_of_fold(recipe, steps, folds), stages.append)
    return [progress for progress in stages if progress.doing == TRAINING], result


def test_every_picture_is_asked_about_once_by_a_model_that_has_not_seen_it(tmp_path: Path) -> None:
    digits_folder(tmp_path / "pictures", each=12, flipped=0.0)
    (tmp_path / "pictures" / "3" / "broken.png").write_bytes(b"no picture")
    stages, found = result_of(quick_digits().changed({"data.source": str(tmp_path / "pictures")}), steps=3, folds=4)
    assert stages == [Progress(done, 4 * 3, TRAINING) for done in range(4 * 3 + 1)]
    assert len(found.numbers) == 120 and found.probabilities.shape == (120, 10)
    assert np.allclose(found.probabilities.sum(axis=1), 1)
    again = result_of(quick_digits().changed({"data.source": str(tmp_path / "pictures")}), steps=3, folds=4)[1]
    assert np.array_equal(found.probabilities, again.probabilities)
    right = found.probabilities.argmax(axis=1) == found.pack.index.labels[found.numbers]
    assert found.accuracy == pytest.approx(np.mean(right))


def test_a_small_set_has_fewer_parts_and_a_group_is_in_one(tmp_path: Path) -> None:
    digits_folder(tmp_path / "pictures", each=3, flipped=0.0)
    asked = quick_digits().changed({"data.source": str(tmp_path / "pictures"), "train.batch_size": 8})
    stages, _ = result_of(asked, steps=1)
    assert stages[-1] == Progress(3, 3, TRAINING)
    preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    digits_folder(tmp_path / "more", each=40, flipped=0.0)
    grouped = Data(source=str(tmp_path / "more"), group_by="([0-9])[.]png")  # by the last digit of the name
    made = pack(open_source(grouped), preprocess, tmp_path / "packs")
    assert made.index.groups is not None
    part_of = parts(made, 5)
    assert set(part_of) == {0, 1, 2, 3, 4}
    assert all(len(set(part_of[np.array(made.index.groups) == group])) == 1 for group in set(made.index.groups))


@pytest.mark.slow
def test_the_command_tells_how_good_the_accusers_are(called: Callable[..., Called], tmp_path: Path) -> None:
    digits_folder(tmp_path / "pictures", each=6, flipped=0.0)
    asked = quick_digits().changed({"data.source": str(tmp_path / "pictures"), "train.budget": "4steps"})
    run = train(asked, out=tmp_path / "run")
    done = called("evaluate", run.folder, "--suspects")
    told = " ".join(done.stdout.split())
    assert "Training 5 times, each time without another part of the pictures; 2 steps." in told
    assert "of the pictures that it had not seen: so weak a model accuses many labels that are right." in told
    assert done.returncode == 0
    assert called("evaluate", run.folder, "--suspects", "--json").returncode == 2
    Image.new("L", (8, 8)).save(tmp_path / "pictures" / "3" / "new.png")
    done = called("evaluate", run.folder, "--suspects")
    assert done.returncode == 1 and "are not those that it was trained with" in " ".join(done.stderr.split())


def some_pack(tmp_path: Path) -> Pack:
    digits_folder(tmp_path / "pictures", each=4, flipped=0.0)
    preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    return pack(open_source(Data(source=str(tmp_path / "pictures"))), preprocess, tmp_path / "packs")


def test_who_is_accused_and_in_which_order(tmp_path: Path) -> None:
    made = some_pack(tmp_path)
    numbers = np.arange(40)
    probabilities = 0.01 + 0.9 * np.eye(10)[made.index.labels]
    assert suspects(OutOfFold(made, numbers, probabilities)) == []
    probabilities[3] = 0.01 + 0.9 * np.eye(10)[7]  # sure of something else
    probabilities[5] = 0.01 + 0.09 * np.eye(10)[7]  # something else is most probable, and it is not sure of it
    probabilities[9] = 0.01 + 0.95 * np.eye(10)[1]
    found = suspects(OutOfFold(made, numbers, probabilities))
    assert [one.number for one in found] == [9, 3]
    assert found[1].suggested == "7" and found[1].label == made.index.class_names[made.index.labels[3]]
    assert found[0].doubt == pytest.approx(0.95)
    write_suspects(found, made, tmp_path)
    rows = list(csv.DictReader((tmp_path / "suspects.csv").read_text().splitlines()))
    assert [row["sample"] for row in rows] == [made.index.samples[9], made.index.samples[3]]
    with Image.open(tmp_path / "suspects.png") as sheet:
        assert min(sheet.size) > 200


@pytest.mark.slow
def test_flipped_labels_are_found_again(tmp_path: Path) -> None:
    """5 % of 1,500 real labels flipped. Chance would find 5 % of them among as many; at least half must be."""
    wrong = digits_folder(tmp_path / "pictures", each=150, flipped=0.05)
    recipe = digits.changed({"data.source": str(tmp_path / "pictures")})
    _, found = result_of(recipe, steps=200)
    accused = [one.sample for one in suspects(found)]
    precision = len(wrong & set(accused[: len(wrong)])) / len(wrong)
    print(f"{len(wrong)} flipped, precision at that number {precision:.1%}")
    assert precision > 0.5


@pytest.mark.slow
def test_flipped_labels_of_photographs_are_found_by_probes(large_data: Callable[[str], Path], tmp_path: Path) -> None:
    """5 % of the labels of 400 real photographs flipped; the weights are those of a ViT-Ti/16."""
    random, wrong = np.random.default_rng(0), set()
    classes = sorted(path.name for path in (large_data("imagenette-mini") / "train").iterdir())
    for name in classes:
        (tmp_path / "pictures" / name).mkdir(parents=True)
    for name in classes:
        for file in sorted((large_data("imagenette-mini") / "train" / name).iterdir())[:40]:
            place = name
            if random.random() < 0.05:
                place = str(random.choice([other for other in classes if other != name]))
                wrong.add(f"{place}/{file.name}")
            shutil.copy(file, tmp_path / "pictures" / place)
    found = out_of_fold_by_probes(large_data("weights") / "vit_tiny_patch16_224", tmp_path / "pictures")
    accused = [one.sample for one in suspects(found)]
    precision = len(wrong & set(accused[: len(wrong)])) / len(wrong)
    print(f"{len(wrong)} flipped, precision at that number {precision:.1%}")
    assert precision > 0.6
