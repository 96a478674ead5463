"""`vitral train FOLDER`: a recipe is chosen, a baseline is measured first, and the verdict is honest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import FIXTURES, Called, quick_digits
from vitral import Recipe, RecipeError, Run, RunError, Step, events, load_pretrained, train
from vitral.data.config import Data
from vitral.data.pack import Pack, pack
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_source
from vitral.evaluation.baseline import BaselineComparison, compare_with_baseline
from vitral.evaluation.evaluate import evaluate
from vitral.evaluation.paired import luck
from vitral.model import build
from vitral.progress import Progress, drain
from vitral.recipes import find_recipe, has_pictures
from vitral.recipes.choose import augment_for, choose
from vitral.run import Baseline
from vitral.training.baseline import baseline
from vitral.training.preparation import complete


def folder_of(tmp_path: Path, each: int, size: tuple[int, int], mode: str = "RGB", classes: int = 3) -> Path:
    """Pictures of noise, brighter from class to class."""
    random = np.random.default_rng(0)
    for label in range(classes):
        (tmp_path / f"class-{label}").mkdir(parents=True)
        for number in range(each):
            shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
            pixels = random.integers(0, 150, shape) + 50 * label
            Image.fromarray(pixels.astype(np.uint8), mode).save(tmp_path / f"class-{label}" / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize(
    ("size", "mode", "image_size", "patch_size"),
    [
        ((8, 8), "L", 8, 2),
        ((28, 28), "L", 28, 4),
        ((33, 45), "RGB", 32, 4),
        ((1, 1), "RGB", 8, 2),
        ((300, 200), "RGB", 64, 8),
        ((200, 100), "RGB", (64, 128), 8),  # wide: in a square all would be half as wide
        ((30, 200), "L", (88, 32), 4),  # higher than that is no longer looked at
    ],
)
def test_the_size_of_pictures_decides_what_the_model_looks_at(
    tmp_path: Path, size: tuple[int, int], mode: str, image_size: int | tuple[int, int], patch_size: int
) -> None:
    chosen = choose(str(folder_of(tmp_path / "pictures", 4, size, mode)))
    model = chosen.recipe.model
    assert (model.image_size, model.stride) == (image_size, patch_size)
    wide_high = f"{image_size} × {image_size}" if isinstance(image_size, int) else f"{image_size[1]} × {image_size[0]}"
    assert f"about {size[0]} × {size[1]} pixels: looked at in {wide_high}, patches of {patch_size}" in chosen.why[0]
    flips = {"L": "none", "RGB": "random" if min(size) > 50 else "alternating"}
    assert chosen.recipe.data.augment.flip == flips[mode]
    assert chosen.recipe.train.baseline


def test_what_large_photographs_cost_is_told(tmp_path: Path) -> None:
    for size, is_told in (((60, 90), False), ((1000, 1100), True)):
        source = str(folder_of(tmp_path / str(size[0]), 3, size, classes=2))
        assert any("data.jpeg=scaled" in reason for reason in choose(source).why) == is_told
        assert not any("data.jpeg=scaled" in reason for reason in choose(source, {"data.jpeg": "scaled"}).why)


def test_what_becomes_of_oblong_pictures_is_told(tmp_path: Path) -> None:
    for size, is_told in (((64, 64), False), ((90, 60), True)):
        source = str(folder_of(tmp_path / str(size[0]), 3, size, classes=2))
        assert any("All of each picture is seen" in reason for reason in choose(source).why) == is_told
        assert not any("All of each picture" in reason for reason in choose(source, {"data.resize": "crop"}).why)


@pytest.mark.parametrize("weights", ["none", "timm_vit", "hf_vit", "dinov2_reference"])
def test_pictures_are_prepared_as_every_library_can(tmp_path: Path, weights: str) -> None:
    """Of weights that were made with another resize, the share is kept: square pictures are seen as before."""
    begun = {} if weights == "none" else {"init.weights": str(FIXTURES / weights)}
    data = choose(str(folder_of(tmp_path / "pictures", 4, (90, 60))), begun).recipe.data
    assert (data.resize.kind, data.jpeg) == ("stretch", "full")
    if begun:
        theirs = load_pretrained(begun["init.weights"]).preprocess
        ours = theirs.model_copy(update={"resize": data.resize})
        square = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 70, 3), np.uint8))
        assert np.array_equal(ours.resized(square), theirs.resized(square))


def test_how_many_there_are_decides_the_time_and_the_batch(tmp_path: Path) -> None:
    few = choose(str(folder_of(tmp_path / "few", 4, (8, 8))))  # 12 pictures, of which some are held out
    assert few.recipe.train.budget == "30s" and few.recipe.train.batch_size == 2
    more = choose("digits")
    assert more.recipe.train.budget == "5m" and more.recipe.train.batch_size == 128
    assert "5m" in more.why[3] and "128 a step" in more.why[2]
    photographs = str(folder_of(tmp_path / "photographs", 250, (64, 64)))
    batches = {time: choose(photographs, {"train.budget": time}).recipe.train.batch_size for time in ("60s", "5m")}
    assert batches == {"60s": 64, "5m": 128}
    assert choose(photographs, {"train.epochs": 3}).recipe.train.batch_size == 128


def test_what_a_person_decides_is_not_chosen_and_not_explained(tmp_path: Path) -> None:
    settings = {"train.epochs": 3, "model.image_size": 16, "train.batch_size": 8}
    chosen = choose("digits", settings)
    assert (chosen.recipe.train.epochs, chosen.recipe.train.budget) == (3, "none")
    assert chosen.recipe.model.image_size == 16 and chosen.recipe.train.batch_size == 8
    assert len(chosen.why) == 1 and "turned and moved" in chosen.why[0]
    elsewhere = tmp_path / "elsewhere" / "food"
    folder_of(elsewhere / "train", 4, (8, 8))
    folder_of(elsewhere / "test", 4, (8, 8))
    assert choose("food", {"data.directory": str(tmp_path / "elsewhere")}).recipe.data.source == "food"


def test_a_time_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="train.budget is soon, and should be none, or such as 90s"):
        choose(str(folder_of(tmp_path, 8, (90, 70))), {"train.budget": "soon"})


def test_too_few_pictures_to_test_with_are_refused_before_anything_is_made(
    called: Callable[..., Called], tmp_path: Path
) -> None:
    pictures = folder_of(tmp_path / "pictures", 1, (8, 8))
    told = called("train", pictures, "--out", tmp_path / "run")
    assert told.returncode == 1 and "Give each class at least three." in told.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_there_is_told_as_such(called: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "flowers").mkdir()
    near = called("train", "flowrs", cwd=tmp_path)
    assert near.returncode != 0 and "no recipe or folder flowrs. Did you mean flowers?" in near.stderr
    assert "There is no folder or file ./flowrs." in called("train", "./flowrs", cwd=tmp_path).stderr


def test_what_has_pictures_is_told_from_recipes(tmp_path: Path) -> None:
    pictures = folder_of(tmp_path / "pictures", 2, (8, 8))
    (tmp_path / "mine.toml").write_text(quick_digits().to_toml())
    assert has_pictures(str(pictures)) and has_pictures("ants-bees")
    assert not has_pictures("digits") and not has_pictures("cifar10") and not has_pictures("no-such-name")
    assert not has_pictures(str(tmp_path / "mine.toml")) and not has_pictures("mine.py:flowers")
    assert find_recipe(str(pictures)) == choose(str(pictures)).recipe


def test_what_was_chosen_can_be_written_and_changed(called: Callable[..., Called], tmp_path: Path) -> None:
    pictures = folder_of(tmp_path / "pictures", 4, (8, 8))
    shown = called("show", pictures)
    assert shown.returncode == 0
    assert Recipe.from_toml(shown.stdout) == choose(str(pictures)).recipe


def packed(source: str, tmp_path: Path, side: int) -> Pack:
    preprocess = Preprocess(image_size=(side, side), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    return pack(open_source(Data(source=source)), preprocess, tmp_path / "packs")


@pytest.mark.parametrize("side", [8, 48])
def test_simple_methods_learn_what_is_simple(tmp_path: Path, side: int) -> None:
    pictures = packed(str(folder_of(tmp_path / "pictures", 20, (side, side))), tmp_path, side)
    found = drain(baseline(pictures))
    assert found.test_accuracy == 1.0 and found.validation_accuracy == 1.0  # brightness tells the classes apart
    assert sorted(found.right) == sorted(pictures.index.samples[number] for number in pictures.of("test"))
    assert found.method.endswith(f" on {min(side, 32)} × {min(side, 32)} pixels")
    assert drain(baseline(pictures)) == found  # the same each time


def test_simple_methods_on_digits_are_as_good_as_scikit_learn_says(tmp_path: Path) -> None:
    """Reference: nearest neighbours have about 98 % of these digits (scikit-learn's own examples: 0.97 to 0.99)."""
    preprocess = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    found = drain(baseline(pack(open_source(Data(source="digits")), preprocess, tmp_path)))
    assert found.method == "nearest neighbours on 8 × 8 pixels"
    assert found.test_accuracy is not None and 0.96 < found.test_accuracy <= 1.0


def test_a_rare_class_is_among_those_that_simple_methods_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitral.training.baseline.TRAIN", 2)
    pictures = packed(str(folder_of(tmp_path / "pictures", 20, (8, 8))), tmp_path, 8)
    assert drain(baseline(pictures)).test_accuracy == 1.0  # with one picture of each of three classes


def test_simple_methods_stop_when_their_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one iteration a round it would take many: out of time, one is enough."""
    monkeypatch.setattr("vitral.training.baseline.ITERATIONS", 1)
    pictures = packed(str(folder_of(tmp_path / "pictures", 20, (8, 8))), tmp_path, 8)
    long, short = list[Progress](), list[Progress]()
    drain(baseline(pictures), long.append)
    assert drain(baseline(pictures, most=0.0), short.append).test_accuracy is not None
    assert len(short) == 2 < len(long)


def beside_of(gained: int, lost: int, pictures: int = 200, accuracy: float = 0.5) -> BaselineComparison:
    by_luck = luck(np.repeat([1, -1], [gained, lost]))
    return BaselineComparison("logistic regression on 32 × 32 pixels", pictures, accuracy, gained, lost, by_luck)


def test_a_verdict_asks_whether_luck_explains_it() -> None:
    """Reference: McNemar's exact test, two-sided, from the binomial distribution with one half."""
    assert beside_of(10, 2).by_luck == pytest.approx(2 * sum((66, 12, 1)) / 2**12)
    assert beside_of(0, 0).by_luck == 1.0


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (beside_of(30, 5), "The model is better: where the two differ, the model is right 30 times and that 5 times."),
        (beside_of(12, 4), "may be better"),
        (beside_of(12, 4), "cannot be trusted yet"),
        (beside_of(10, 10), "is no better"),
        (beside_of(8, 10), "so it cannot be trusted"),
        (beside_of(5, 30), "is worse, and cannot be trusted"),
        (beside_of(0, 0, accuracy=1.0), "about as good; these pictures are easy"),
        (beside_of(20, 0, pictures=29), "On 29 pictures that says little: do not trust"),
        (beside_of(1, 0, pictures=1), "On 1 picture that says little: do not trust"),
    ],
)
def test_every_case_has_its_sentence(case: BaselineComparison, said: str) -> None:
    assert case.verdict.startswith("Logistic regression on 32 × 32 pixels has ")
    assert said in case.verdict


def test_right_and_wrong_are_paired_by_picture() -> None:
    right = {"a": True, "b": True, "c": False, "d": False}
    told = Baseline(method="nearest neighbours", validation_accuracy=None, test_accuracy=0.5, right=right)
    both = compare_with_baseline(told, ["e", "d", "c", "b", "a"], np.array([True, True, True, False, True]))
    assert (both.gained, both.lost, both.pictures) == (2, 1, 4)  # of those that the baseline was asked


def test_pictures_of_one_group_do_not_each_speak_for_the_model() -> None:
    """40 pictures of four patients, all right where the baseline is wrong: four coins that fell alike, p = 1/8."""
    names = [str(number) for number in range(40)]
    told = Baseline(method="x", validation_accuracy=None, test_accuracy=0.0, right=dict.fromkeys(names, False))
    right, patients = np.ones(40, dtype=bool), [f"patient {number % 4}" for number in range(40)]
    assert compare_with_baseline(told, names, right).kind == "better"
    grouped = compare_with_baseline(told, names, right, patients)
    assert grouped.by_luck == pytest.approx(1 / 8) and "that can be luck" in grouped.verdict


@pytest.mark.slow
def test_the_baseline_stands_beside_the_result(tmp_path: Path) -> None:
    run = train(quick_digits().changed({"train.baseline": True}), out=tmp_path / "run")
    told = run.baseline
    assert told is not None and told.validation_accuracy is not None and told.validation_accuracy > 0.9
    evaluation = evaluate(run)
    assert evaluation.baseline is not None and evaluation.baseline.pictures == evaluation.pictures
    gained, lost = evaluation.baseline.gained, evaluation.baseline.lost
    assert told.test_accuracy is not None
    difference = evaluation.accuracy - told.test_accuracy
    assert difference == pytest.approx((gained - lost) / evaluation.pictures)
    written = json.loads((run.folder / "evaluation.json").read_text())["baseline"]
    assert (written["gained"], written["lost"]) == (gained, lost)
    assert evaluate(train(quick_digits(), out=tmp_path / "plain")).baseline is None


def test_a_run_stopped_before_its_baseline_was_there_still_gets_one(tmp_path: Path) -> None:
    recipe = quick_digits().changed({"train.baseline": True})
    happening = events(recipe, out=tmp_path / "run")
    for event in happening:
        if isinstance(event, Step):
            break
    happening.close()
    first = (tmp_path / "run" / "baseline.json").read_bytes()
    (tmp_path / "run" / "baseline.json").unlink()
    train(out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "baseline.json").read_bytes() == first


def test_a_baseline_of_a_later_format_is_refused(tmp_path: Path) -> None:
    run = train(quick_digits().changed({"train.baseline": True}), out=tmp_path / "run")
    (run.folder / "baseline.json").write_text('{"format": 99}')
    with pytest.raises(RunError, match="99"):
        evaluate(run)


@pytest.mark.slow
def test_a_folder_of_twelve_pictures_is_trained_and_not_believed(called: Callable[..., Called], tmp_path: Path) -> None:
    pictures = folder_of(tmp_path / "pictures", 4, (40, 40))
    told = called("train", pictures, "train.budget=60steps", "--out", tmp_path / "run")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("There is no test set: ") and told.stdout.count("There is no test set: ") == 1
    assert "Pictures of about 40 × 40 pixels" in told.stdout
    assert f"vitral show {pictures} train.budget=60steps > mine.toml" in told.stdout
    assert "To compare with, " in told.stdout
    assert "do not trust the model before there are more" in " ".join(told.stdout.split())
    assert Run.load(tmp_path / "run").record.state == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ants-bees", "food", "imagenette-mini"])
def test_real_photographs_beat_the_baseline_or_are_not_trusted(
    name: str, tmp_path: Path, large_data: Callable[[str], Path]
) -> None:
    shutil.copytree(large_data(name), tmp_path / name)
    run = train(find_recipe(str(tmp_path / name)).changed({"train.budget": "40steps"}), out=tmp_path / "run")
    found = evaluate(run)
    assert found.baseline is not None
    print(f"{name}: {found.accuracy:.1%} of {found.pictures}. {found.baseline.verdict}")
    if "cannot be trusted" not in found.baseline.verdict:
        assert found.accuracy > found.baseline.accuracy
    assert found.accuracy > 1 / len(found.weights.class_names)


@pytest.mark.parametrize("kind", ["swin", "resnet"])
@pytest.mark.parametrize("size", [(300, 200), (33, 45), (8, 8)], ids=str)
def test_a_model_of_another_kind_is_chosen_as_small(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """With no more to be set: what cannot leave patches out sees all of them."""
    folder = str(folder_of(tmp_path / "pictures", 4, size))
    chosen, usual = choose(folder, {"model.kind": kind}), choose(folder).recipe
    recipe = chosen.recipe
    assert (recipe.model.kind, recipe.model.height_width) == (kind, usual.model.height_width)
    assert recipe == usual.changed({"model": recipe.model.write(), "train.patches": "fixed"})
    model = build(complete(recipe.model, chosen.index))
    assert sum(one.numel() for one in model.parameters()) < 400_000
    assert model(torch.zeros(1, 3, *recipe.model.height_width)).shape == (1, 3)


def test_what_is_seen_only_a_few_times_is_cropped_less() -> None:
    often, seldom = (augment_for(3, 224, passes)[0] for passes in (20, 4))
    assert often.crop < seldom.crop and often.brightness and not seldom.brightness
    assert augment_for(3, 32, passes=1) == augment_for(3, 32)  # small pictures are moved, not cropped
