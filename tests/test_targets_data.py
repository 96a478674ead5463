"""Several labels a picture, a number, several tasks: what a source says becomes what is to be learnt, or a sentence."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from vitral import Preprocess
from vitral.cli import vitral
from vitral.data.batches import Batches
from vitral.data.check import check
from vitral.data.config import Augment, Data
from vitral.data.findings import Finding
from vitral.data.folds import parts
from vitral.data.pack import Pack, pack
from vitral.data.sources import Index, open_source
from vitral.data.sources.python import open_python
from vitral.errors import DataError, RecipeError, VitralError
from vitral.look import check_sheets
from vitral.progress import drain
from vitral.recipe import parse_setting
from vitral.recipes.choose import choose
from vitral.run import Baseline
from vitral.training.baseline import baseline

SMALL = Preprocess(image_size=(4, 4), channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)
COUNT = 60  # pictures of a table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures 0.png, 1.png, …, each another one."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(COUNT):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def opened(folder: Path, columns: str, cells: Sequence[str], name: str = "list.csv", **settings: Any) -> Index:
    """A table with a line for each picture: its path, and these cells."""
    lines = [f"{number}.png,{words}" for number, words in enumerate(cells)]
    (folder / name).write_text("\n".join([f"path,{columns}", *lines]) + "\n")
    return open_source(Data(source=str(folder / name), **settings))


def refusal(error: type[VitralError], *args: Any, **settings: Any) -> str:
    with pytest.raises(error) as caught:
        opened(*args, **settings)
    return str(caught.value)


SEVERAL = ["beach;dog", "dog", "", "dog; sun", "beach"] * 12


def test_a_column_of_labels_is_found_and_said(folder: Path) -> None:
    index = opened(folder, "labels", SEVERAL)
    assert [(target.kind, target.names) for target in index.targets] == [("labels", ("beach", "dog", "sun"))]
    assert index.labels[:5].tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]]
    assert index.notes[:2] == (
        "The column labels has several labels per picture, separated by ;: each picture has any number of 3 labels.",
        "12 pictures have none of them.",
    )
    assert [row[1] for row in index.rows()][:4] == ["beach;dog", "dog", "", "dog;sun"]


def test_commas_part_labels_only_in_a_column_of_labels(folder: Path) -> None:
    cells = ['"beach, dog"', "dog", "beach"] * 20
    index = opened(folder, "labels", cells)
    assert index.class_names == ("beach", "dog") and "separated by ,: each" in index.notes[0]
    assert opened(folder, "label", cells).class_names == ("beach", "beach, dog", "dog")
    one = opened(folder, "labels", ["beach", "dog"] * 30)
    assert one.other_targets == () and one.notes[0] == "The column labels holds 2 classes: beach, dog."


def test_one_label_is_there_or_not(folder: Path) -> None:
    told = opened(folder, "labels", ["dog", ""] * 30).notes[0]
    assert told == "The column labels has several labels per picture: each picture has the label dog or none."
    told = opened(folder, "dog", ["1", "0"] * 30).notes[0]
    assert told == "The column dog holds 0 and 1: each picture has the label dog or none."


def test_a_path_that_windows_wrote_is_found(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    lines = [f"{folder.name}\\{number}.png,{number % 2}" for number in range(COUNT)]
    (tmp_path / folder.name).symlink_to(folder)
    table.write_text("\r\n".join(["path,label", *lines]))
    index = open_source(Data(source=str(table)))
    assert index.samples[7] == f"{folder.name}/7.png" and index.storage.read(7) == (folder / "7.png").read_bytes()


def test_columns_of_zeros_and_ones_are_labels_in_their_order(folder: Path) -> None:
    index = opened(folder, "sun,beach", ["1,0", "0,1", "1,1"] * 20)
    assert index.class_names == ("sun", "beach") and index.labels[:3].tolist() == [[1, 0], [0, 1], [1, 1]]
    told = refusal(DataError, folder, "sun,beach", ["1,0"] * 59 + ["2,1"])
    assert "line 61: sun is 2, and its other lines say 0 or 1" in told


def test_some_columns_of_zeros_and_ones_are_labels_where_they_are_named(folder: Path) -> None:
    cells = [f"{number % 2},{number},{number % 3 // 2},{number / 8}" for number in range(COUNT)]
    index = opened(folder, "sun,id,beach,x", cells, target="sun:labels,x,beach:labels")
    assert [(target.kind, target.names) for target in index.targets] == [
        ("labels", ("sun", "beach")),
        ("number", ("x",)),
    ]
    assert index.label_of(5) == "labels=sun;beach|x=0.625"


def test_a_number_is_learnt_from_the_column_that_is_asked_for(folder: Path) -> None:
    index = opened(folder, "weight", [str(number * 1.5) for number in range(COUNT)], target="weight")
    assert [(target.kind, target.name) for target in index.targets] == [("number", "weight")]
    assert index.labels.shape == (COUNT, 1) and index.labels[7, 0] == 10.5 and index.label_of(7) == "10.5"


def test_several_columns_stand_side_by_side(folder: Path) -> None:
    cells = [f"{number % 10},{int(number % 10 > 5)},{number / 8}" for number in range(COUNT)]
    index = opened(folder, "digit,high,x", cells, target="digit,high,x")
    assert [(target.kind, target.name, target.outputs) for target in index.targets] == [
        ("class", "digit", 10),
        ("class", "high", 2),
        ("number", "x", 1),
    ]
    assert index.labels[17].tolist() == [0] * 7 + [1, 0, 0, 0, 1, 17 / 8]
    assert index.label_of(17) == "digit=7|high=1|x=2.125"


def test_one_class_a_picture_is_what_it_was(folder: Path) -> None:
    for cells in (["cat", "dog"] * 30, ["1", "2.5", "none"] * 20, ["a;b", "c|d"] * 30):
        index = opened(folder, "label", cells)
        assert index.other_targets == () and index.labels.shape == (COUNT,)
        assert [row[1] for row in index.rows()] == cells
        assert len(index.notes) == 2  # of the splits


def test_a_word_among_numbers_is_told(folder: Path) -> None:
    index = opened(folder, "label", [*map(str, range(11))] * 5 + ["cat"] * 4 + ["n/a"])
    assert index.notes[0].startswith("The column label holds numbers, and here and there a word (cat, n/a): each is ")
    assert len(index.class_names) == 13
    index = opened(folder, "label", [*(str(number / 4) for number in range(40)), *["heavy", "?"] * 10])
    assert index.notes[0].startswith("The column label holds numbers and words (?, heavy): each is taken for a class.")


def test_a_table_without_a_label_says_which_columns_it_has(folder: Path) -> None:
    told = refusal(DataError, folder, "operator,weight", ["Eva,1.5", "Tom,2.5"] * 30)
    assert told.endswith("Say which one is to be learnt: data.target=operator or data.target=weight.")


def test_two_targets_of_one_name_are_refused(folder: Path) -> None:
    cells = [f"{n % 2},{'x;y' if n % 3 else 'y'}" for n in range(20)]
    with pytest.raises(DataError, match="Two targets are called labels: the columns of 0 and 1 go by that name"):
        opened(folder, "sun,labels", cells, target="sun:labels,labels")


def test_a_folder_has_no_other_columns() -> None:
    with pytest.raises(RecipeError, match="data.target is digit,high, and the set digits has one class for each"):
        open_source(Data(source="digits", target="digit,high"))


def test_a_program_hands_over_lists_floats_and_dicts() -> None:
    blank = np.zeros((4, 4), np.uint8)
    several = open_python([(blank + n, ["sun"] if n % 2 else ("sun", "beach")) for n in range(20)], Data())
    assert several.class_names == ("beach", "sun") and several.labels[:2].tolist() == [[1, 1], [0, 1]]
    number = open_python([(blank + n, n / 4) for n in range(20)], Data())
    assert number.targets[0].kind == "number" and number.labels[:3, 0].tolist() == [0, 0.25, 0.5]
    pictures = [(blank + n, {"digit": n % 5, "high": n % 5 > 2, "tags": {"a"} if n % 2 else set()}) for n in range(20)]
    tasks = open_python(pictures, Data())
    assert [(target.name, target.kind) for target in tasks.targets] == [
        ("digit", "class"),
        ("high", "class"),
        ("tags", "labels"),
    ]
    assert tasks.label_of(3) == "digit=3|high=1|tags=a"
    assert open_python(pictures, Data(target="high")).label_of(3) == "1"
    for kind in (np.array, torch.tensor):  # 0 and 1 for each label are not the labels "0" and "1"
        rows = [(blank + n, kind([0.0, 1.0, n % 2])) for n in range(20)]
        assert open_python(rows, Data()).class_names == ("0", "1", "2")
        assert open_python(rows, Data()).labels[:2].tolist() == [[0, 1, 0], [0, 1, 1]]
    with pytest.raises(DataError, match="Picture 0 of python:list has the labels .0, 1, 0., one of them twice. If"):
        open_python([(blank + n, [0, 1, n % 2]) for n in range(20)], Data())
    with pytest.raises(RecipeError, match="There is no column hihg. Did you mean high"):
        open_python(pictures, Data(target="hihg"))
    with pytest.raises(DataError, match="Picture 3 of python:list: label is nan"):
        open_python([(blank + n, float("nan") if n == 3 else 1.5 * n) for n in range(20)], Data())


def packed(index: Index, tmp_path: Path) -> Pack:
    return pack(index, SMALL, tmp_path)


def test_simple_methods_try_each_target(folder: Path, tmp_path: Path) -> None:
    """The pictures are noise, but for what is learnt: each label brightens a corner, the number all of the picture."""
    random = np.random.default_rng(0)
    pictures = []
    for _ in range(300):
        has, weight = random.random(2) < (0.5, 0.2), random.random()
        pixels = random.integers(0, 60, (4, 4)) + 100 * weight
        pixels[0] += 90 * has[0]
        pixels[3] += 90 * has[1]
        names = [name for name, there in zip(("top", "bottom"), has, strict=True) if there]
        pictures.append((pixels.astype(np.uint8), {"several": names, "number": weight, "top": int(has[0])}))
    found = drain(baseline(packed(open_python(pictures, Data()), tmp_path)))
    assert found.right == {} and found.test_accuracy is None
    several, number, top = found.targets
    assert (several.method, number.method) == (
        "one-vs-rest logistic regression on 4 × 4 pixels",
        "ridge regression on 4 × 4 pixels",
    )
    assert several.test is not None and several.guess is not None and several.test > 0.9 > several.guess
    assert number.test is not None and number.guess is not None and number.test < 0.1 < 0.2 < number.guess
    assert top.test is not None and top.test > 0.9
    assert 55 < len(number.said) == len(several.said) < 65 and {len(row) for row in several.said.values()} == {2}
    assert Baseline.model_validate(found.model_dump(mode="json")) == found


def test_where_nothing_can_be_seen_the_simple_method_looks_at_no_picture(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = [(random.integers(0, 256, (4, 4), np.uint8), float(random.random())) for _ in range(200)]
    [found] = drain(baseline(packed(open_python(noise, Data()), tmp_path))).targets
    assert found.method in ("always the mean", "always the median")
    assert found.test == pytest.approx(found.guess, rel=0.05)
    noise[0] = (noise[0][0], 1e6)  # in train: it draws the mean to itself
    index = open_python(noise, Data())
    [found] = drain(baseline(packed(index, tmp_path))).targets
    assert index.splits[0] == "train" and found.method == "always the median"


def test_simple_methods_do_without_validation_pictures(folder: Path, tmp_path: Path) -> None:
    cells = [f"{words},{number / 4}" for number, words in enumerate(SEVERAL)]
    index = opened(folder, "labels,weight", cells, target="labels,weight", validation=0)
    for one in drain(baseline(packed(index, tmp_path))).targets:
        assert one.validation is None and one.test is not None and "regression" in one.method


# Splits and parts


@pytest.mark.parametrize("seed", range(3))
def test_every_label_is_in_each_split_where_it_can_be(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    cells = [
        ";".join(name for name in "abcdefgh" if random.random() < 0.4 / (1 + "abcdefgh".index(name)))
        for _ in range(COUNT)
    ]
    index = opened(folder, "labels", cells, split_seed=seed)
    train, validation, test = (index.counts(index.of(split)) for split in ("train", "validation", "test"))
    for total, *each in zip(train + validation + test, train, validation, test, strict=True):
        assert all(each) or total < 4  # of three, one is in each or two are learnt from
        assert each[0] > 0
    assert abs(len(index.of("test")) - 12) <= 4
    again = opened(folder, "labels", cells, split_seed=seed)
    assert (again.splits == index.splits).all()
    assert (opened(folder, "labels", cells, split_seed=seed + 1).splits != index.splits).any()


def test_no_label_is_taken_out_of_train_by_what_rarer_ones_need(folder: Path) -> None:
    cells = ["a;c", "a", "b;c", "b"] + ["d"] * (COUNT - 4)  # c is where a is held out, and where b is
    for seed in range(12):
        index = opened(folder, "labels", cells, split_seed=seed)
        assert (index.counts(index.of("train")) > 0).all() and index.counts(index.of("test"))[[0, 1]].tolist() == [1, 1]


def test_small_and_large_numbers_are_in_each_split(folder: Path) -> None:
    index = opened(folder, "weight", [str(1.07**number) for number in range(COUNT)], target="weight")
    for split in ("validation", "test"):
        numbers = index.labels[index.of(split), 0]
        assert (numbers < 1.07**20).any() and (numbers > 1.07**40).any()
    assert index.notes[1].endswith("held out, the same share of low, middle and high weight.")


def test_groups_of_pictures_with_several_labels_stay_on_one_side(folder: Path) -> None:
    cells = [f"{words},{number // 4}" for number, words in enumerate(SEVERAL)]
    index = opened(folder, "labels,who", cells, group_by="who")
    assert all(len(set(index.splits[start : start + 4])) == 1 for start in range(0, COUNT, 4))
    assert set(index.splits) == {"train", "validation", "test"}


def test_parts_have_each_label_to_about_the_same_share(folder: Path, tmp_path: Path) -> None:
    made = packed(opened(folder, "labels", SEVERAL), tmp_path)
    part_of = parts(made, 4)
    assert set(part_of) == {0, 1, 2, 3}
    for part in range(4):
        assert abs(made.index.counts(np.flatnonzero(part_of == part)) - np.array([6, 9, 3])).max() <= 2


# Folders


def planted(folder: Path, places: dict[str, int]) -> Path:
    """A folder with the picture of this number at each of these places."""
    for place, number in places.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / place)
    return folder


PLACES = {f"{'beach' if number % 2 else 'sunset'}/{number}.png": number for number in range(20)}
PLACES |= {"sunset/1.png": 1, "sunset/other name.png": 3}


def test_a_picture_in_several_class_folders_has_several_labels_if_that_is_asked_for(tmp_path: Path) -> None:
    pictures = planted(tmp_path / "pictures", PLACES)
    index = open_source(Data(source=str(pictures), target="labels"))
    assert len(index.samples) == 20 and index.class_names == ("beach", "sunset")
    rows = {sample: label for sample, label, _ in index.rows()}
    assert rows["beach/1.png"] == rows["beach/3.png"] == "beach;sunset" and rows["beach/5.png"] == "beach"
    assert "sunset/1.png" not in rows
    assert index.notes[0] == (
        "2 of 20 pictures lie in several class folders (files with the same content): each picture has any number of 2 "
        "labels."
    )
    for number, sample in enumerate(index.samples):
        assert index.storage.read(number) == (pictures / sample).read_bytes()


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_so_it_is_in_an_archive(tmp_path: Path, ending: str) -> None:
    pictures = planted(tmp_path / "pictures", PLACES)
    archive = Path(shutil.make_archive(str(tmp_path / "pictures"), ending.removeprefix("."), pictures))
    index = open_source(Data(source=str(archive), target="labels"))
    assert index.samples == open_source(Data(source=str(pictures), target="labels")).samples
    assert index.label_of(index.samples.index("beach/1.png")) == "beach;sunset"
    assert index.storage.read(5) == (pictures / index.samples[5]).read_bytes()


def test_such_pictures_are_noted_where_nothing_was_asked_for(tmp_path: Path) -> None:
    index = open_source(Data(source=str(planted(tmp_path / "pictures", PLACES))))
    assert len(index.samples) == 22 and index.other_targets == ()
    assert index.notes[0] == (
        "Some pictures lie in several class folders, such as beach/1.png, sunset/1.png, and each copy counts for its "
        "own folder. With data.target=labels they are one picture with several labels."
    )
    twice = {place.replace(".png", "").replace("/", "/x") + ".png": number for place, number in PLACES.items()}
    names = {f"{place.partition('/')[0]}/{number // 2}.png": number for place, number in list(twice.items())[:20]}
    assert (
        len(open_source(Data(source=str(planted(tmp_path / "others", names)))).notes) == 2
    )  # one name, other pictures


# Batches


def batches(index: Index, tmp_path: Path, balanced: bool = False, **augment: Any) -> Batches:
    return Batches(packed(index, tmp_path), SMALL, Augment(**augment), 8, seed=0, balanced=balanced, workers=0)


def test_batches_hand_on_what_is_learnt(folder: Path, tmp_path: Path) -> None:
    index = opened(
        folder, "labels,weight", [f"{words},{n / 4}" for n, words in enumerate(SEVERAL)], target="labels,weight"
    )
    _, batch = next(batches(index, tmp_path).starting_at(1))
    assert batch.labels.shape == (8, 4) and batch.targets is batch.labels
    assert np.array_equal(batch.labels.numpy(), index.labels[batch.samples])


def test_mixup_mixes_labels_and_numbers(folder: Path, tmp_path: Path) -> None:
    index = opened(
        folder, "labels,weight", [f"{words},{n / 4}" for n, words in enumerate(SEVERAL)], target="labels,weight"
    )
    _, batch = next(batches(index, tmp_path, mixup=1.0).starting_at(1))
    ours, theirs = batch.labels, batch.labels.flip(0)
    share = (batch.targets - theirs)[:, 3] / (ours - theirs)[:, 3]
    assert ((share > 0) & (share < 1)).all()
    torch.testing.assert_close(batch.targets, ours * share[:, None] + theirs * (1 - share[:, None]))


def test_cutmix_is_refused_for_a_number(folder: Path, tmp_path: Path) -> None:
    index = opened(folder, "weight", [f"{number / 4}" for number in range(COUNT)], target="weight")
    with pytest.raises(RecipeError, match="nobody knows the weight of that"):
        batches(index, tmp_path, cutmix=1.0)
    with pytest.raises(RecipeError, match="every class equally often, and weight is a number"):
        batches(index, tmp_path, balanced=True)


def test_balanced_batches_show_a_rare_label_as_often_as_the_others(folder: Path, tmp_path: Path) -> None:
    cells = ["dog" if number % 2 else "owl" if number % 10 == 0 else "" for number in range(COUNT)]
    one = batches(opened(folder, "labels", ["dog;owl", *cells[1:]]), tmp_path, balanced=True)
    samples, copies = one._order(0)
    seen = one.pack.index.labels[samples]
    assert seen[:, 1].mean() > 0.3 > one.pack.index.labels[one.samples, 1].mean()
    assert len({*zip(samples.tolist(), copies.tolist(), strict=True)}) == len(samples)  # each copy is drawn anew


# Bad input

WEIGHT = {"target": "weight"}
REFUSED = [
    ("weight", ["1.5"] * 58 + ["heavy", ""], WEIGHT, "line 60: weight is heavy; {table}, line 61: weight is empty."),
    ("weight", ['"1,5"'] * 60, WEIGHT, "learnt as a number: write them with a point, as 12.5."),
    ("weight", ["1.5"] * 59 + ["nan"], WEIGHT, "line 61: weight is nan. Numbers are expected, such as 12.5"),
    ("weight", ["1,5".replace(",", "·")] * 60, {"target": "weight:number"}, "line 2: weight is 1·5;"),
    ("weight", ["inf"] + ["2"] * 59, {"target": "weight:number"}, "line 2: weight is inf."),
    ("weight", ["1"] * 60, {"target": "wieght"}, "There is no column wieght. Did you mean weight?"),
    ("label", ["cat"] * 59 + [""], {}, "line 61: label is empty."),
    ("labels", ["cat"] * 59 + [""], {"target": "class"}, "line 61: labels is empty."),
    ("labels", [""] * 60, {}, "labels is empty, there and for all pictures: there are no labels."),
    ("labels", ["a;b", "a|b"] * 30, {}, "parted by ; ({table}, line 2) and | ({table}, line 3). Use one of them"),
    ("a,b", ["1,0"] * 59 + ["1,yes"], {"target": "labels"}, "line 61: b is yes, and its other lines say 0 or 1"),
    ("a,a", ["1,0"] * 60, {"target": "a,a"}, "data.target is a,a, which names a twice."),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "cells", "settings", "told"), REFUSED)
def test_what_cannot_be_learnt_is_refused_in_a_sentence(
    folder: Path, columns: str, cells: list[str], settings: dict[str, Any], told: str
) -> None:
    assert told.replace("{table}", str(folder / "list.csv")) in refusal(VitralError, folder, columns, cells, **settings)


def test_a_label_in_a_list_has_no_separator(tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text('{"path": "0.png", "labels": ["a", "b;c"]}\n')
    with pytest.raises(DataError, match=r"line 1: labels has the label b;c, and ; and \| part labels"):
        open_source(Data(source=str(tmp_path / "list.jsonl")))


def test_what_is_the_same_for_all_pictures_is_not_learnt(folder: Path, tmp_path: Path) -> None:
    for columns, cells, target, told in (
        ("weight", ["2.5"] * COUNT, "weight", "weight is 2.5 for all training pictures of "),
        ("labels", ["a;b"] * COUNT, "auto", " have the label a, b: there is nothing to tell apart."),
    ):
        made = packed(opened(folder, columns, cells, target=target), tmp_path)
        with pytest.raises(DataError, match=told):
            made.check_classes(made.of("train"))
    made = packed(opened(folder, "labels", ["photo;dog", "photo"] * 30), tmp_path)
    made.check_classes(made.of("train"))  # one of them can be learnt
    assert made.index.notes[1] == "All pictures have the label photo: there is nothing to tell apart."


# vitral check


def found(index: Index) -> dict[str, Finding]:
    return {finding.kind: finding for finding in check(index).findings}


def test_labels_that_say_nothing_of_their_own_are_found(folder: Path) -> None:
    cells = ["photo;dog;pet", "photo", "photo;sun", "photo;dog;pet;sun"] * 15
    told = found(opened(folder, "labels", cells))
    assert told["together"].what == "Labels that always come together: dog and pet."
    assert told["everywhere"].what == "All training pictures have photo: there is nothing to tell apart."
    splits = ["train"] * 40 + ["test"] * 20
    cells = [f"{words},{split}" for words, split in zip(["dog", ""] * 20 + ["dog", "owl"] * 10, splits, strict=True)]
    told = found(opened(folder, "labels,split", cells))
    assert told["not-in-train"].serious
    assert told["not-in-train"].what == "owl is tested or validated, and there is no training picture of it."
    assert told["not-in-train"].advice == "Move some of its pictures to train, or take the label out."


def test_a_number_far_from_the_others_is_found(folder: Path) -> None:
    numbers = [str(number / 10) for number in range(COUNT - 1)] + ["5800"]
    index = opened(folder, "weight", numbers, target="weight")
    finding = found(index)["outliers"]
    assert finding.samples == [(59,)] and finding.what.startswith("1 picture is far from the others in weight: 5800.")
    report = check(index)
    assert report.write()["numbers"][0]["name"] == "weight" and report.write()["classes"] == []
    assert "59.png,5800.0," in report.as_csv()
    assert "outliers" not in found(opened(folder, "weight", numbers[:-1] + ["6"], target="weight"))
    assert found(opened(folder, "weight", ["2"] * COUNT, target="weight"))["constant"].serious


def test_a_copy_with_another_number_is_found(folder: Path, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.png").write_bytes((folder / f"{number // 2}.png").read_bytes())
    told = found(opened(tmp_path, "weight", [str(number / 4) for number in range(20)], target="weight"))["two-labels"]
    assert told.what == "10 pairs of pictures are exactly the same under two numbers."
    assert told.advice == "Decide for one number each, and remove the other copy."
    same = found(opened(tmp_path, "weight,split", [f"{n // 2 / 4},train" for n in range(20)], target="weight"))
    assert same["copies"].what.endswith("exactly the same, in one split and with one number.")


def test_sheets_have_a_shelf_for_each_label_and_for_small_to_large_numbers(folder: Path, tmp_path: Path) -> None:
    cells = [f"{words},{number}" for number, words in enumerate(SEVERAL)]
    index = opened(folder, "labels,weight", cells, target="labels,weight:number")
    assert [shelf.name for shelf in check_sheets.shelves(index)][:4] == [
        "labels beach",
        "labels dog",
        "labels sun",
        "weight 0 to 7",
    ]
    check_sheets.draw(check(index), tmp_path)
    assert len(list((tmp_path / "classes").iterdir())) == 3 + 8


def test_the_identity_of_a_set_is_that_of_its_labels(folder: Path, tmp_path: Path) -> None:
    same, other = ["beach;dog", "sun"] * 30, ["beach;dog", "sun"] * 29 + ["beach", "sun"]
    first, again, changed = (packed(opened(folder, "labels", cells), tmp_path) for cells in (same, same, other))
    assert first.sha256 == again.sha256 != changed.sha256
    first.check(again.sha256)
    turned = packed(opened(folder, "labels", ["dog; beach", "sun"] * 30), tmp_path)
    assert turned.sha256 == first.sha256  # the order in a cell says nothing


def test_what_would_change_a_number_is_told_with_the_settings_that_leave_it_out(folder: Path) -> None:
    opened(folder, "weight", [str(number / 4) for number in range(COUNT)], target="weight")
    settings = {"data.target": "weight", "init.weights": "none"}
    told = next(reason for reason in choose(str(folder / "list.csv"), settings).why if "how turned" in reason)
    words = told.partition("leave that out: ")[2].split()
    assert words
    left = dict(parse_setting(word) for word in words)
    augment = choose(str(folder / "list.csv"), settings | left).recipe.data.augment
    assert (augment.crop, augment.flip, augment.rotate, augment.zoom, augment.shear, augment.shift) == (
        0, "none", 0, 0, 0, 0,
    )  # fmt: skip


def test_what_a_table_was_taken_for_is_told_before_all_else(folder: Path) -> None:
    opened(folder, "labels", SEVERAL)
    printed = CliRunner().invoke(vitral, ["train", str(folder / "list.csv"), "train.budget=9steps", "--dry-run"]).stdout
    assert printed.startswith("The column labels has several labels per picture, separated by ;: ")
    assert printed.count("The column labels") == 1


def test_the_command_prints_labels_and_the_span_of_a_number(folder: Path, tmp_path: Path) -> None:
    opened(folder, "labels,weight", [f"{words},{number / 4}" for number, words in enumerate(SEVERAL)])
    words = ["check", str(folder / "list.csv"), "--out", str(tmp_path), "data.target=labels,weight"]
    printed = CliRunner().invoke(vitral, words).output
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    assert ["target", "train", "validation", "test"] in lines
    counts = next(line for line in lines if line[:2] == ["labels", "dog"])
    assert sum(map(int, counts[2:])) == 36
    spans = {line[1]: [float(word) for word in line[2:]] for line in lines if line[0] == "weight"}
    assert min(spans["least"]) == 0 and max(spans["most"]) == 14.75
