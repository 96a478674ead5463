"""Folders, tables and archives as people have them: each is indexed rightly, or refused in one readable sentence."""

import gzip
import io
import json
import os
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given
from numpy.typing import NDArray
from PIL import Image

from vitral import DataError, Preprocess, RecipeError
from vitral.data.config import Data
from vitral.data.pack import Pack, pack
from vitral.data.sources import Index, open_source
from vitral.data.sources.splits import complete_splits
from vitral.errors import printable
from vitral.recipes import digits

SMALL = Preprocess(image_size=(4, 4), channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)

NO_TEST = "There is no test set: 20 % of the pictures are held out, the same share of every class."
NO_VALIDATION = "To validate, 10 % of the training pictures are held out, the same share of every class."
VALIDATION_IS_TEST = "There is no test set: the validation set takes its place, and chooses nothing."
READS = "Vitral reads .jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff, .npy, .avif, .heic, .heif, .hif."
HELP = "Give each class a folder, or a CSV file with the columns path and label."


def content_of(name: str) -> bytes:
    """A picture of 4×4 pixels, another one for every name; or text, where the ending is of no picture."""
    key = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    if not name.lower().endswith((".png", ".jpg")):
        return f"text {key}".encode()
    pixels = np.random.default_rng(key).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG" if name.lower().endswith(".png") else "JPEG")
    return buffer.getvalue()


def plant(folder: Path, names: Iterable[str]) -> Path:
    """A folder with these files; a name that ends with / is an empty folder."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(content_of(name))
    return folder


def some(folder: str, count: int = 4) -> list[str]:
    return [f"{folder}/{number}.png" for number in range(count)]


def opened(source: Path, **settings: Any) -> Index:
    return open_source(Data(source=str(source), directory=str(source.parent / "cache"), **settings))


def packed(source: Path, **settings: Any) -> Pack:
    return pack(opened(source, **settings), SMALL, source.parent / "cache")


def counts(index: Index) -> dict[str, dict[str, int]]:
    """split → class → pictures."""
    found: dict[str, dict[str, int]] = {}
    for _, label, split in index.rows():
        found.setdefault(split, {}).setdefault(label, 0)
        found[split][label] += 1
    return found


def sides(index: Index) -> dict[str, str]:
    return {sample: split for sample, _, split in index.rows()}


def refusal(error: type[Exception], source: Path, **settings: Any) -> str:
    """The sentence with which a source is refused."""
    with pytest.raises(error) as caught:
        opened(source, **settings)
    return str(caught.value)


# Folders. Of four training pictures in a class, one is held out to validate; of five without a split, one to test too.

TRAIN, VAL, TEST = ([*some(f"{split}/cats"), *some(f"{split}/dogs")] for split in ("train", "val", "test"))
ALONE = [*some("cats", 5), *some("dogs", 5)]
THREE, FOUR, ONE = {"cats": 3, "dogs": 3}, {"cats": 4, "dogs": 4}, {"cats": 1, "dogs": 1}
GIVEN = {"train": FOUR, "validation": FOUR, "test": FOUR}
WITH_TEST = {"train": THREE, "validation": ONE, "test": FOUR}
MADE = {"train": THREE, "validation": ONE, "test": ONE}
MADE_OF_FOUR = {"train": {"cats": 2, "dogs": 2}, "validation": ONE, "test": ONE}
MADE_NOTES = [NO_TEST, NO_VALIDATION]


def renamed(names: Sequence[str], old: str, new: str) -> list[str]:
    return [name.replace(old, new, 1) for name in names]


UNDERSTOOD: dict[str, tuple[list[str], dict[str, dict[str, int]], list[str]]] = {
    "train, val and test": (TRAIN + VAL + TEST, GIVEN, []),
    "in capitals": (
        [*renamed(TRAIN, "train", "Train"), *renamed(VAL, "val", "Valid"), *renamed(TEST, "test", "TEST")],
        GIVEN,
        [],
    ),
    "validation": (TRAIN + renamed(VAL, "val", "validation") + TEST, GIVEN, []),
    "dev": (TRAIN + renamed(VAL, "val", "dev") + TEST, GIVEN, []),
    "training_set and test_set": (
        renamed(TRAIN, "train", "training_set") + renamed(TEST, "test", "test_set"),
        WITH_TEST,
        [NO_VALIDATION],
    ),
    "class folders alone": (ALONE, MADE, MADE_NOTES),
    "below a folder, as in a zip": ([f"pets/{name}" for name in ALONE], MADE, MADE_NOTES),
    "below two folders": ([f"pets/pets/{name}" for name in TRAIN + VAL + TEST], GIVEN, []),
    "below a folder that has a cover": (
        [f"pets/{name}" for name in TRAIN + TEST] + ["pets/cover.png", "logo.png"],
        WITH_TEST,
        ["2 pictures lie outside the class folders and have no class: logo.png, pets/cover.png.", NO_VALIDATION],
    ),
    "folders in a class": (
        [*some("cats/at home", 3), *some("cats/outside/at night", 2), *some("dogs", 5)],
        MADE,
        MADE_NOTES,
    ),
    "splits inside the classes": (
        [*some("cats/train"), *some("cats/val"), *some("cats/test")]
        + [*some("dogs/train"), *some("dogs/valid"), *some("dogs/test")],
        GIVEN,
        ["The splits are folders inside the class folders."],
    ),
    "train only": (TRAIN, MADE_OF_FOUR, MADE_NOTES),
    "train and val": (TRAIN + VAL, WITH_TEST, [VALIDATION_IS_TEST, NO_VALIDATION]),
    "train and test": (TRAIN + TEST, WITH_TEST, [NO_VALIDATION]),
    "Kaggle: test without class folders": (
        TRAIN + some("test", 9),
        MADE_OF_FOUR,
        ["test has 9 pictures and no class folders: without labels they are left aside.", *MADE_NOTES],
    ),
    "Kaggle: test with one folder that is no class": (
        TRAIN + some("test/unknown", 9),
        MADE_OF_FOUR,
        [
            "test has 9 pictures in one folder, unknown, that train has not: without labels they are left aside.",
            *MADE_NOTES,
        ],
    ),
    "every folder doubled by an unpacker": (
        renamed(TRAIN, "train", "train/train") + renamed(TEST, "test", "test/test"),
        WITH_TEST,
        [NO_VALIDATION],
    ),
    "loose pictures beside class folders": (
        ALONE + ["cover.png"],
        MADE,
        ["1 picture lies outside the class folders and has no class: cover.png.", *MADE_NOTES],
    ),
    "loose pictures beside class folders in train": (
        TRAIN + TEST + some("train"),
        WITH_TEST,
        [
            "4 pictures lie outside the class folders and have no class: "
            "train/0.png, train/1.png, train/2.png and 1 more.",
            NO_VALIDATION,
        ],
    ),
    "what programs leave behind": (
        ALONE
        + ["cats/.DS_Store", "cats/Thumbs.db", "__MACOSX/cats/._1.png", ".ipynb_checkpoints/1.png", "cats/._1.png"]
        + ["dogs/.ipynb_checkpoints/1.png", "desktop.ini"],
        MADE,
        MADE_NOTES,
    ),
    "notes and other files": (
        ALONE + ["README", "cats/a.txt", "cats/b.TXT", "dogs/c.jxl"],
        MADE,
        [
            "Files that are no pictures by their ending are passed over: 2 .txt, 1 without ending.",
            "1 picture is in a format that Vitral does not read, and passed over: dogs/c.jxl. Convert to JPEG or PNG.",
            *MADE_NOTES,
        ],
    ),
    "a class called test": (
        [*some("exam", 5), *some("test", 5)],
        {split: {"exam": n, "test": n} for split, n in (("train", 3), ("validation", 1), ("test", 1))},
        ["test is taken for a class, as the folders beside it.", *MADE_NOTES],
    ),
    "a class called train": (
        [*some("bus", 5), *some("train", 5)],
        {split: {"bus": n, "train": n} for split, n in (("train", 3), ("validation", 1), ("test", 1))},
        ["train is taken for a class, as the folders beside it.", *MADE_NOTES],
    ),
    "a class called train inside train": (
        [*some("train/bus"), *some("train/train"), *some("test/bus"), *some("test/train")],
        {"train": {"bus": 3, "train": 3}, "validation": {"bus": 1, "train": 1}, "test": {"bus": 4, "train": 4}},
        [NO_VALIDATION],
    ),
    "one class": (some("cats", 5), {"train": {"cats": 3}, "validation": {"cats": 1}, "test": {"cats": 1}}, MADE_NOTES),
    "a class that is missing in one split": (
        [*some("train/ants"), *TRAIN, *TEST],
        {"train": {"ants": 3, **THREE}, "validation": {"ants": 1, **ONE}, "test": FOUR},
        [NO_VALIDATION],
    ),
    "an accent as one sign and as two": (
        [*some(f"train/{unicodedata.normalize('NFC', 'pâté')}"), *some("train/tarte")]
        + [*some(f"test/{unicodedata.normalize('NFD', 'pâté')}"), *some("test/tarte")],
        {
            "train": {"pâté": 3, "tarte": 3},
            "validation": {"pâté": 1, "tarte": 1},
            "test": {"pâté": 4, "tarte": 4},
        },
        [NO_VALIDATION],
    ),
    "an empty class folder": (
        ALONE + ["birds/", "fish/.DS_Store"],
        MADE,
        ["Nothing is in birds/, fish/.", *MADE_NOTES],
    ),
    "an empty val folder": (TRAIN + TEST + ["val/"], WITH_TEST, ["Nothing is in val/.", NO_VALIDATION]),
    "other folders beside train and test": (
        TRAIN + TEST + some("drafts/cats"),
        WITH_TEST,
        ["Beside test and train, these folders are passed over: drafts.", NO_VALIDATION],
    ),
    "train/images/cats": (
        renamed(TRAIN, "train", "train/images") + renamed(TEST, "test", "test/images"),
        WITH_TEST,
        [NO_VALIDATION],
    ),
    "train/images/cats, and test/images without classes": (
        renamed(TRAIN, "train", "train/images") + some("test/images", 9),
        MADE_OF_FOUR,
        ["test has 9 pictures and no class folders: without labels they are left aside.", *MADE_NOTES],
    ),
}


@pytest.mark.parametrize("layout", UNDERSTOOD)
def test_a_common_layout_is_understood(tmp_path: Path, layout: str) -> None:
    names, expected, notes = UNDERSTOOD[layout]
    made = packed(plant(tmp_path / "set", names))
    index = made.index
    assert counts(index) == expected and made.left_out == {}
    assert list(index.notes) == notes
    assert list(index.class_names) == sorted({name for split in expected.values() for name in split})


REFUSED: dict[str, tuple[list[str], str]] = {
    "an empty folder": ([], f"There is no picture in SOURCE. {READS}"),
    "only empty folders": (["cats/", "dogs/"], f"There is no picture in SOURCE. {READS}"),
    "only files that are no pictures": (
        ["cats/1.jxl", "cats/2.JXL", "notes.txt"],
        f"There is no picture in SOURCE, and there are other files: 2 .jxl, 1 .txt. {READS}",
    ),
    "val and test without train": (VAL + TEST, "SOURCE has test and val and no train: there is nothing to learn from."),
    "test alone": (TEST, "SOURCE has test and no train: there is nothing to learn from."),
    "both val and valid": (
        TRAIN + VAL + renamed(VAL, "val", "valid"),
        "SOURCE has val and valid: which is validation? Take all but one of them out.",
    ),
    "loose pictures": (some("."), f"SOURCE has 4 pictures and no class folders. {HELP}"),
    "loose pictures in train": (
        some("train") + TEST,
        f"SOURCE: train has 4 pictures and no class folders. {HELP}",
    ),
    "pictures in one folder and a table": (
        [*some("images"), "labels.csv"],
        "SOURCE has pictures in one folder only, images. There is a table, labels.csv: give that as data.source.",
    ),
    "loose pictures and a table": (
        [*some("train"), "train.csv"],
        "SOURCE: train has 4 pictures and no class folders. There is a table, train.csv: give that as data.source.",
    ),
    "class folders beside test and in it": (
        ALONE + TEST,
        "SOURCE has cats, dogs beside test and in it. Put what is to be learnt from into a folder train.",
    ),
    "other capitals in test": (
        TRAIN + renamed(TEST, "cats", "Cats"),
        "SOURCE has Cats in test and cats in train. Give them one name.",
    ),
    "splits inside the classes, none to learn from": (
        [*some("cats/test"), *some("dogs/test")],
        "The class folders of SOURCE have no train folder in them: there is nothing to learn from.",
    ),
}


@pytest.mark.parametrize("layout", REFUSED)
def test_a_hopeless_layout_is_refused_in_a_sentence(tmp_path: Path, layout: str) -> None:
    names, sentence = REFUSED[layout]
    source = plant(tmp_path / "set", names)
    assert refusal(DataError, source) == sentence.replace("SOURCE", str(source))


def test_what_is_no_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    picture = plant(tmp_path, ["1.png"]) / "1.png"
    assert refusal(DataError, picture) == (
        f"{picture} is not a source of pictures: give a folder, a table (.csv, .tsv, .jsonl, .ndjson) "
        "or an archive (.zip, .tar, .tar.gz, .tgz, .tar.bz2, .tbz2, .tar.xz, .txz)."
    )
    for missing in (tmp_path / "cats", Path(f"/{'long' * 100}"), Path("/\0")):
        assert refusal(RecipeError, missing) == f"There is no folder or file {printable(str(missing))}."
    assert refusal(RecipeError, Path("dgits")) == ("There is no folder, file or named set dgits. Did you mean digits?")


def test_names_that_are_no_text_are_shown_and_read(tmp_path: Path) -> None:
    source = plant(tmp_path / "set", ALONE)
    broken = os.fsencode(source) + b"/cats/\xff.png"
    Path(os.fsdecode(broken)).write_bytes(content_of("x.png"))
    Path(os.fsdecode(broken.replace(b"\xff", b"\xfe"))).symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(source) + b"/\xfd.png")).write_bytes(content_of("x.png"))
    made = packed(source)
    assert r"cats/\xff.png" in made.index.samples
    assert list(made.left_out.values()) == [r"cats/\xfe.png is not there."]
    assert any(r"\xfd.png" in note for note in made.index.notes)
    "".join([*made.index.samples, *made.index.notes, *made.left_out.values()]).encode("utf-8")  # all of it is text


def test_the_labels_of_a_split_do_not_hang_on_the_other_classes_in_it(tmp_path: Path) -> None:
    names = [*some("train/a"), *some("train/b"), *some("train/c"), *some("test/c"), *some("test/a")]
    index = opened(plant(tmp_path / "set", names))
    for sample, label in zip(index.samples, index.labels, strict=True):
        assert sample.split("/")[1] == index.class_names[label]


def test_stray_bands_do_not_decide_about_the_channels(tmp_path: Path) -> None:
    source = plant(tmp_path / "set", ALONE)
    np.save(source / "cats" / "stray.npy", np.zeros((4, 4, 7), np.uint8))
    assert opened(source).channels == 3


# Who learns, who validates, who tests

HUNDRED = [*some("cats", 100), *some("dogs", 60)]


def test_a_fifth_is_tested_and_a_tenth_of_the_rest_validates_in_every_class(tmp_path: Path) -> None:
    found = counts(opened(plant(tmp_path / "set", HUNDRED)))
    assert found["test"] == {"cats": 20, "dogs": 12}
    assert found["validation"] == {"cats": 8, "dogs": 5}
    assert found["train"] == {"cats": 72, "dogs": 43}


def test_a_given_test_set_stands_and_a_tenth_of_train_validates(tmp_path: Path) -> None:
    names = [*some("train/a", 50), *some("train/b", 20), *some("test/a", 7), *some("test/b", 3)]
    found = counts(opened(plant(tmp_path / "set", names)))
    assert found["test"] == {"a": 7, "b": 3}
    assert found["validation"] == {"a": 5, "b": 2}


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, {"train": 1}), (2, {"train": 1, "test": 1}), (3, {"train": 1, "validation": 1, "test": 1})],
)
def test_of_a_small_class_one_picture_always_stays_to_be_learnt(
    tmp_path: Path, count: int, expected: dict[str, int]
) -> None:
    found = counts(opened(plant(tmp_path / "set", [*some("rare", count), *some("usual", 20)])))
    assert {split: classes["rare"] for split, classes in found.items() if "rare" in classes} == expected


def test_splits_hang_on_names_and_split_seed_alone(tmp_path: Path) -> None:
    first = plant(tmp_path / "first", HUNDRED)
    second = plant(tmp_path / "second", reversed(HUNDRED))  # the order in which a disk lists them
    wrapped = plant(tmp_path / "wrapped", [f"pets/{name}" for name in HUNDRED])
    expected = sides(opened(first))
    assert sides(opened(first)) == sides(opened(second)) == sides(opened(wrapped)) == expected
    other = sides(opened(first, split_seed=1))
    assert 20 < sum(other[name] != side for name, side in expected.items()) < 90
    recipes = [digits.changed({"data.source": str(first), "train.seed": seed}) for seed in (0, 1)]
    assert [sides(open_source(recipe.data)) for recipe in recipes] == [expected, expected]


def test_a_picture_that_is_added_moves_few_others(tmp_path: Path) -> None:
    source = plant(tmp_path / "set", HUNDRED)
    before = sides(opened(source))
    for number in range(10):
        plant(source, [f"cats/new {number}.png"])
        after = sides(opened(source))
        assert sum(after[name] != side for name, side in before.items()) <= 3
        before = after


def test_the_share_of_validation_is_a_setting(tmp_path: Path) -> None:
    source = plant(tmp_path / "set", [*some("train/a", 50), *some("train/b", 50), *TEST])
    assert "validation" not in counts(opened(source, validation=0.0))
    assert counts(opened(source, validation=0.3))["validation"] == {"a": 15, "b": 15}
    given = plant(tmp_path / "given", TRAIN + VAL + TEST)
    assert refusal(RecipeError, given, validation=0.3) == (
        "data.validation is 0.3, and the source has a validation set of its own. Leave it at auto."
    )


def test_an_official_set_is_cut_only_if_somebody_asks(tmp_path: Path) -> None:
    def idx(array: NDArray[np.uint8]) -> bytes:
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        return gzip.compress(head + array.tobytes())

    folder = tmp_path / "mnist"
    folder.mkdir()
    for half, count in (("train", 40), ("t10k", 10)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (folder / f"{half}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{half}-labels-idx1-ubyte.gz").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    index = open_source(Data(source="mnist", directory=str(tmp_path)))
    assert Counter(index.splits.tolist()) == {"train": 40, "test": 10} and index.notes == ()
    asked = open_source(Data(source="mnist", directory=str(tmp_path), validation=0.25))
    assert Counter(asked.splits.tolist()) == {"train": 30, "validation": 10, "test": 10}
    assert np.bincount(asked.labels[asked.of("validation")]).tolist() == [1] * 10


# Groups

PATIENTS = [f"{label}/patient{number:02} {view}.png" for label in "ab" for number in range(20) for view in "xyz"]


def test_a_group_by_pattern_stays_on_one_side(tmp_path: Path) -> None:
    source = plant(tmp_path / "set", PATIENTS)
    index = opened(source, group_by=r"patient(\d+)")
    where: dict[str, set[str]] = {}
    for sample, side in sides(index).items():
        where.setdefault(sample.split()[0][-2:], set()).add(side)
    assert len(where) == 20 and all(len(found) == 1 for found in where.values())
    assert {split: sum(classes.values()) for split, classes in counts(index).items()} == {
        "train": 84,
        "validation": 12,
        "test": 24,
    }
    assert index.notes[0] == (
        "There is no test set: 20 % of the pictures are held out, whole groups, about the same share of every class."
    )
    assert sides(opened(source, group_by=r"patient\d+")) != {}  # without brackets: all of the match
    assert sides(opened(source, group_by=r"patient(\d+)", split_seed=1)) != sides(index)


def test_a_group_by_column_stays_on_one_side(tmp_path: Path) -> None:
    plant(tmp_path, PATIENTS)
    lines = [f"{name},{name[0]},{name.split()[0][-2:]}" for name in PATIENTS]
    table = tmp_path / "list.csv"
    table.write_text("\n".join(["path,label,patient", *lines]))
    by_column = sides(opened(table, group_by="patient"))
    assert by_column == sides(opened(table, group_by=r"patient(\d+)"))
    assert len({(name.split()[0][-2:], side) for name, side in by_column.items()}) == 20


@given(
    pictures=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=120),
    seed=st.integers(0, 2**63 - 1),
    validation=st.sampled_from(["auto", 0.0, 0.3]),
)
def test_no_group_is_ever_on_two_sides(pictures: list[tuple[int, int]], seed: int, validation: Any) -> None:
    groups = [f"group {group}" for group, _ in pictures]
    labels = np.array([label for _, label in pictures])
    names = [str(number) for number in range(len(pictures))]
    try:
        made, _ = complete_splits([""] * len(pictures), labels, names, groups, validation=validation, seed=seed)
    except DataError as error:  # whatever is taken, a class ends: each group has all that is left of one
        assert "No group (data.group_by) can be held out" in str(error)
        return
    assert len(set(zip(groups, made.tolist(), strict=True))) == len(set(groups))
    assert set(labels[made == "train"]) == set(labels)  # every class can be learnt
    assert {"train", "test"} <= set(made.tolist()) <= {"train", "validation", "test"}
    assert ("validation" in made) == (validation != 0)


def test_groups_that_cannot_be_are_refused(tmp_path: Path) -> None:
    source = plant(tmp_path / "set", PATIENTS)
    assert refusal(RecipeError, source, group_by="patient(").startswith(
        "data.group_by is patient(, which is neither a column nor a pattern (missing ), unterminated subpattern"
    )
    assert refusal(DataError, source, group_by="person") == (
        "data.group_by is person, and finds nothing in a/patient00 x.png."
    )
    assert refusal(DataError, source, group_by="patient") == (
        "No group (data.group_by) can be held out for test without taking all pictures of a class, such as patient."
    )
    given = plant(tmp_path / "given", TRAIN + TEST)
    assert refusal(DataError, given, group_by=r"\d") == (
        "The group 0 (data.group_by) is in test and in train: "
        "a model would be tested on what it has learnt from. Move it to one side."
    )
    two = plant(tmp_path / "two", PATIENTS[:6])
    assert refusal(DataError, two, group_by=r"\d+") == (
        "No group (data.group_by) can be held out for validation without taking all pictures of a class, such as 01. "
        "Set data.validation=0."
    )
    assert set(sides(opened(two, group_by=r"\d+", validation=0.0)).values()) == {"train", "test"}


# Tables

LINES = [(name, name.split("/")[1], name.split("/")[0]) for name in TRAIN + VAL + TEST]


def write_table(path: Path, head: Sequence[str], lines: Iterable[Sequence[str]], separator: str = ",") -> Path:
    path.write_text("\n".join(separator.join(line) for line in [head, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return plant(tmp_path, TRAIN + VAL + TEST)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "BOM"])
@pytest.mark.parametrize(
    "head",
    [("path", "label", "split"), ("Filename", "Class", "Set"), (" image ", " category", "subset ")],
    ids=["plain", "other", "blanks"],
)
def test_a_table_is_read_however_it_was_written(pictures: Path, separator: str, mark: str, head: list[str]) -> None:
    table = write_table(pictures / "list.csv", (mark + head[0], *head[1:]), LINES, separator)
    index = opened(table)
    assert counts(index) == GIVEN and index.notes == ()
    assert list(index.samples) == [name for name, _, _ in LINES]
    assert packed(table).left_out == {}


def test_a_table_of_json_lines_is_the_same(pictures: Path) -> None:
    table = pictures / "list.jsonl"
    rows = [json.dumps({"file_name": name, "label": label, "split": split}) for name, label, split in LINES]
    table.write_text("\n\n".join(rows), encoding="utf-8")
    assert counts(opened(table)) == GIVEN
    table.write_text("\n".join(json.dumps({"path": name, "label": len(label) % 3}) for name, label, _ in LINES))
    assert opened(table).class_names == ("1",)  # numbers are names too


def test_a_table_without_splits_gets_them_and_an_empty_word_is_train(pictures: Path) -> None:
    table = write_table(pictures / "list.csv", ("path", "label"), ((name, label) for name, label, _ in LINES))
    assert set(counts(opened(table))) == {"train", "validation", "test"}
    words = {"train": "", "val": "Validation", "test": " TEST "}
    table = write_table(pictures / "w.csv", ("path", "label", "split"), ((n, c, words[s]) for n, c, s in LINES))
    assert counts(opened(table)) == GIVEN


def test_paths_may_be_absolute_and_names_may_be_strange(tmp_path: Path) -> None:
    strange = ['a "quoted", name.png', "two\nlines.png", "two\r\nmore.png", "größe 画像.png"]
    names = [f"{label}/{name}" for label in ("eins", "zwei, drei") for name in strange]
    plant(tmp_path / "far", names)
    (tmp_path / "near").mkdir()
    table = tmp_path / "near" / "list.csv"
    quoted = [[f'"{part.replace(chr(34), 2 * chr(34))}"' for part in (name, name.split("/")[0])] for name in names]
    relative = [[path.replace('"', '"../far/', 1), label] for path, label in quoted]
    absolute = [[path.replace('"', f'"{tmp_path}/far/', 1), label] for path, label in quoted]
    expected = [SMALL.resized(tmp_path / "far" / name) for name in names]
    for lines in (relative, absolute):
        made = packed(write_table(table, ("path", "label"), lines))
        assert made.left_out == {} and made.index.class_names == ("eins", "zwei, drei")
        assert np.array_equal(made.images, np.stack(expected))


def test_a_missing_file_is_left_out_and_named(pictures: Path) -> None:
    lines = [*LINES, ("train/cats/gone.png", "cats", "train")]
    made = packed(write_table(pictures / "list.csv", ("path", "label", "split"), lines))
    assert made.left_out == {24: "train/cats/gone.png is not there."}
    assert made.notes == ("1 of 25 pictures cannot be read and is left out: train/cats/gone.png is not there.",)


LIST, JSON = "list.csv", "list.jsonl"
EMPTY = "has no lines: a line for each picture is expected, with a path and a label."
PATH, LABEL = "path (or file, filename, image)", "label (or class, category, target)"
NAME_IT = "Say which one is to be learnt: data.target"
REFUSED_TABLES = [
    (LIST, b"", EMPTY),
    (LIST, b"path,label\n", EMPTY),
    (LIST, b"name,label\na,b\n", f"needs one column {PATH}, and has only name, label."),
    (LIST, b"path,file,label\na,a,b\n", f"needs one column {PATH}, and has path and file."),
    (LIST, b"path,tag\na,b\n", f"needs one column {LABEL}, and has only path, tag. {NAME_IT}=tag."),
    (LIST, b"path,split\na,train\n", f"needs one column {LABEL}, and has only path, split."),
    (LIST, b"path,label\na,b\nc,\n", "line 3: label is empty."),
    (LIST, b"path,label\na\n", "line 2: label is empty."),
    (LIST, b"path,label\n ,b\n", "line 2: path is empty."),
    (LIST, b"path,label\na,b,c\n", "line 2 has more columns than the first line names."),
    (LIST, b"path,label,split\na,b,x\n", "line 2: split is x, and should be train, validation (or val) or test."),
    (LIST, b"path,label\na,b\na,d\n", "line 3: a was named in line 2 already. Give each picture one line."),
    (LIST, b"path,label\n\xff,b\n", "is not text in UTF-8. Save it again in that encoding."),
    (JSON, b'{"path": "a", "label": "b"}\n\n{"path": \n', "line 3 is not JSON (Expecting value)."),
    (JSON, b'["a", "b"]\n', 'line 1 is not a table such as {"path": "a.jpg", "label": "cat"}.'),
    (JSON, b'{"path": "a", "label": null}\n', "line 1: label is empty."),
    (
        JSON,
        b'{"path": "a", "label": {"b": "c"}}\n',
        "line 1: label is neither a text, a number nor a list of labels.",
    ),
]


@pytest.mark.parametrize(("name", "content", "told"), REFUSED_TABLES)
def test_a_table_that_cannot_be_is_refused_with_its_line(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    table = tmp_path / name
    table.write_bytes(content)
    assert refusal(DataError, table) == f"{table}{', ' if told.startswith('line') else ' '}{told}"


def test_a_table_with_nothing_to_learn_from_is_refused(pictures: Path) -> None:
    table = write_table(
        pictures / "list.csv", ("path", "label", "split"), [line for line in LINES if line[2] == "test"]
    )
    sentence = "No picture is in train: there is nothing to learn from."
    assert refusal(DataError, table) == refusal(DataError, table, group_by=".*") == sentence


def test_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "list.jsonl"
    table.write_bytes(b"[" * 100_000)
    assert refusal(DataError, table).startswith(f"{table}, line 1 is not JSON (")


# Archives

PETS = [*some("a cat", 12), *some("a cat/again", 3), *some("a", 9), *some("a-b", 9), "notes.txt"]


def zipped(folder: Path, archive: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, f"{prefix}{path.relative_to(folder)}")
    return archive


def tarred(folder: Path, archive: Path, prefix: str) -> Path:
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".tbz2": "w:bz2"}.get(archive.suffix, "w")
    with tarfile.open(archive, mode) as file:  # type: ignore[call-overload]
        file.add(folder, prefix)
    return archive


@pytest.mark.parametrize("prefix", ["", "pets/"], ids=["bare", "with its folder"])
@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz", "x.tar.xz", "x.tbz2"])
def test_an_archive_is_the_same_as_its_folder(tmp_path: Path, name: str, prefix: str) -> None:
    folder = plant(tmp_path / "set", PETS)
    make = zipped if name.endswith(".zip") else tarred
    expected, found = packed(folder), packed(make(folder, tmp_path / name, prefix))
    assert list(found.index.rows()) == list(expected.index.rows())
    assert found.index.class_names == expected.index.class_names and found.index.notes == expected.index.notes
    assert np.array_equal(found.images, expected.images) and found.left_out == {}
    assert found.sha256 == expected.sha256


def tar_of(archive: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(archive, "w") as file:
        for member, content in members:
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return archive


def test_what_claims_to_lie_outside_of_an_archive_is_passed_over(tmp_path: Path) -> None:
    outside = ["../x.png", "/x.png", "a/../../y.png"]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name in [*ALONE, *outside, "..\\z.png"]:
            file.writestr(zipfile.ZipInfo(name), content_of(name))
    tar_of(tmp_path / "x.tar", ((tarfile.TarInfo(name), content_of(name)) for name in [*ALONE, *outside]))
    expected = "What claims to lie outside of the archive is passed over: ../x.png, "
    for name, rest in (("x.zip", "../z.png, /x.png and 1 more."), ("x.tar", "/x.png, a/../../y.png.")):
        index = opened(tmp_path / name)
        assert counts(index) == MADE and index.notes[0] == expected + rest


def test_links_and_devices_in_an_archive_are_passed_over(tmp_path: Path) -> None:
    members = [(tarfile.TarInfo(name), content_of(name)) for name in ALONE]
    for kind, name in [(tarfile.SYMTYPE, "sym"), (tarfile.LNKTYPE, "hard"), (tarfile.CHRTYPE, "zero")]:
        member = tarfile.TarInfo(f"cats/{name}.png")
        member.type, member.linkname, member.devmajor, member.devminor = kind, "/etc/passwd", 1, 5
        members.append((member, b""))
    index = opened(tar_of(tmp_path / "x.tar", members))
    note = "Links and devices in an archive are passed over: cats/hard.png, cats/sym.png, cats/zero.png."
    assert counts(index) == MADE and index.notes[0] == note
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name in ALONE:
            file.writestr(name, content_of(name))
        link = zipfile.ZipInfo("cats/sym.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
    index = opened(tmp_path / "x.zip")
    assert counts(index) == MADE
    assert index.notes[0] == "Links and devices in an archive are passed over: cats/sym.png."


def test_backslashes_and_dots_in_an_archive_are_folders(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name in ALONE:
            info = zipfile.ZipInfo()
            info.filename = ".\\" + name.replace("/", "\\")
            file.writestr(info, content_of(name))
    index = opened(tmp_path / "x.zip")
    assert sorted(index.samples) == sorted(ALONE) and counts(index) == MADE


def altered(archive: Path, change: Callable[[bytearray, zipfile.ZipInfo, int], None], name: str) -> Path:
    """A zip whose headers of one member, local and central, were written over."""
    with zipfile.ZipFile(archive) as file:
        info = file.getinfo(name)
    content = bytearray(archive.read_bytes())
    central = content.index(name.encode(), content.index(b"PK\x01\x02")) - 46
    change(content, info, central)
    archive.write_bytes(bytes(content))
    return archive


def test_an_encrypted_member_of_a_zip_is_left_out_and_named(tmp_path: Path) -> None:
    def encrypt(content: bytearray, info: zipfile.ZipInfo, central: int) -> None:
        content[info.header_offset + 6] |= 1
        content[central + 8] |= 1

    archive = zipped(plant(tmp_path / "set", PETS), tmp_path / "x.zip")
    made = packed(altered(archive, encrypt, "a/3.png"))
    assert list(made.left_out.values()) == ["a/3.png is encrypted in x.zip."]


@pytest.mark.parametrize("claimed", [5, 10**7, 10**9])
def test_a_member_of_a_zip_that_claims_a_wrong_size_is_read_rightly_or_named(tmp_path: Path, claimed: int) -> None:
    def claim(content: bytearray, info: zipfile.ZipInfo, central: int) -> None:
        struct.pack_into("<I", content, info.header_offset + 22, claimed)
        struct.pack_into("<I", content, central + 24, claimed)

    folder = plant(tmp_path / "set", PETS)
    made = packed(altered(zipped(folder, tmp_path / "x.zip"), claim, "a/3.png"))
    number = list(made.index.samples).index("a/3.png")
    if claimed == 10**9:
        assert made.left_out[number].startswith("a/3.png would grow from ")
    elif claimed == 5:
        assert made.left_out == {number: "a/3.png cannot be read from x.zip (Bad CRC-32 for file 'a/3.png')."}
    else:
        assert np.array_equal(made.images[number], SMALL.resized(folder / "a/3.png")) and made.left_out == {}


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    folder = plant(tmp_path / "set", PETS)
    whole = {name: zipped(folder, tmp_path / name).read_bytes() for name in ["x.zip"]}
    whole |= {name: tarred(folder, tmp_path / name, "").read_bytes() for name in ("x.tar", "x.tar.gz", "x.tar.xz")}
    plain = tar_of(tmp_path / "x.tar", ((tarfile.TarInfo(name), content_of(name)) for name in ALONE)).read_bytes()
    last = plain.index(b"dogs/4.png")  # where the last header begins
    damaged = [(name, content[: len(content) // 2]) for name, content in whole.items()]
    damaged += [(name, b"nonsense" * 200) for name in whole] + [(name, b"") for name in whole]
    damaged += [("x.tar", plain[:last] + b"\xff" + plain[last + 1 :]), ("x.tar", plain[:last])]
    damaged += [("x.tar.gz", whole["x.zip"])]
    for name, content in damaged:
        archive = tmp_path / name
        archive.write_bytes(content)
        sentence = refusal(DataError, archive)
        assert sentence.startswith(f"{archive} is damaged, or not the archive that its name says (")
        assert sentence.endswith(").") and "\n" not in sentence
    assert [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".part"] == []


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    place = tmp_path_factory.mktemp("archives")
    folder = plant(place / "set", ALONE)
    made = [zipped(folder, place / "x.zip"), tarred(folder, place / "x.tar", "")]
    return {archive.name: archive.read_bytes() for archive in made}


@example(name="x.zip", place=0.75, byte=1)  # the name of a folder in the table at the end: cat\x01
@given(name=st.sampled_from(["x.zip", "x.tar"]), place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_any_byte_of_an_archive_may_be_wrong(
    archives: dict[str, bytes], name: str, place: float, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(archives[name])
    content[int(place * len(content))] = byte
    archive = tmp_path_factory.getbasetemp() / name
    archive.write_bytes(content)
    try:
        index = opened(archive)
    except DataError as error:
        assert str(archive) in str(error)
        return
    for number, sample in enumerate(index.samples):
        try:
            index.storage.read(number)
        except DataError as error:
            assert str(error).startswith(printable(sample))  # a control character in a name is spelt out


def test_a_bomb_is_not_expanded(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    zeros = gzip.compress(bytes(2**20))
    archive.write_bytes(zeros * 64)  # 64 MiB in 65 kB
    assert refusal(DataError, archive) == (
        f"{archive} grows to more than 100 times its size: it is not expanded further."
    )
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) == 0


def test_a_bomb_among_the_pictures_of_a_zip_is_not_expanded(tmp_path: Path) -> None:
    archive = zipped(plant(tmp_path / "set", PETS), tmp_path / "x.zip")
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/bomb.png", bytes(80 * 2**20))
        file.writestr("a/plain.bmp", bytes(8 * 2**20))  # as a scan of a white sheet may be
    index = opened(archive)
    (bomb, plain) = (list(index.samples).index(name) for name in ("a/bomb.png", "a/plain.bmp"))
    with pytest.raises(DataError) as caught:
        index.storage.read(bomb)
    assert str(caught.value).endswith(" to 83,886,080 bytes, and no picture does that: it is not expanded.")
    assert len(index.storage.read(plain)) == 8 * 2**20


def test_an_archive_that_cannot_be_expanded_says_where(tmp_path: Path) -> None:
    archive = tarred(plant(tmp_path / "set", PETS), tmp_path / "x.tar.gz", "")
    (tmp_path / "cache").write_text("a file is in the way")
    assert refusal(DataError, archive) == (
        f"{archive} cannot be read, or not be expanded into {tmp_path / 'cache'} (Not a directory)."
    )


@pytest.mark.parametrize("name", ["x.zip", "x.tar"])
def test_eight_threads_read_the_right_bytes_at_once(tmp_path: Path, name: str) -> None:
    folder = plant(tmp_path / "set", PETS)
    index = opened(zipped(folder, tmp_path / name) if name == "x.zip" else tarred(folder, tmp_path / name, ""))
    numbers = list(range(len(index.samples))) * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(index.storage.read, numbers))
    expected = [(folder / sample).read_bytes() for sample in index.samples] * 20
    assert found == expected


def test_a_loose_picture_does_not_mix_the_splits_inside_classes(tmp_path: Path) -> None:
    files = [
        f"{name}/{split}/{number}.png" for name in ("cats", "dogs") for split in ("train", "test") for number in "012"
    ]
    index = opened(plant(tmp_path / "set", [*files, "cats/cover.png"]))
    assert {sample.split("/")[1] for sample, side in sides(index).items() if side == "test"} == {"test"}
    assert any("outside the class folders" in note for note in index.notes)
    mixed = [
        f"{year}/train/{name}/{number}.png" for year in ("2020", "2021") for name in ("cats", "dogs") for number in "01"
    ]
    assert "which are the classes?" in refusal(DataError, plant(tmp_path / "years", mixed))
    some = ["land/train/1.png", "land/bus/1.png", "water/ship/1.png", "water/boat/1.png"]  # a train is a vehicle
    assert opened(plant(tmp_path / "some", some), validation=0.0).class_names == ("land", "water")


def test_the_seed_moves_groups_and_no_class_is_lost(tmp_path: Path) -> None:
    groups = [f"p{group}" for group in range(60) for _ in range(group + 1)]
    labels = np.array([group % 2 for group in range(60) for _ in range(group + 1)])
    names = [str(number) for number in range(len(groups))]
    drawn = set()
    for seed in range(10):
        made, _ = complete_splits([""] * len(groups), labels, names, groups, validation="auto", seed=seed)
        drawn.add(tuple(made))
        assert 0.15 < np.mean(made == "test") < 0.25
    assert len(drawn) == 10
