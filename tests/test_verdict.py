"""`vitral pretrain --verdict`: does it help to learn without labels first? In equal time, with an interval."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from vitral import DataError, RecipeError, Run, RunError
from vitral.cli import vitral
from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.evaluation.paired import PairedComparison
from vitral.evaluation.verdict import Asked, Verdict, Way
from vitral.recipes.verdict import choose_trial, part, rest
from vitral.training.objectives.make import objective_class


def test_few_labels_are_the_same_few_and_a_part_of_more() -> None:
    """As large a share of each class, in train and in validation; test pictures stay."""
    every, some, few = (open_source(Data(source="digits", labelled=share)) for share in (1.0, 0.2, 0.05))
    assert set(few.samples) < set(some.samples) < set(every.samples)
    assert len(few.of("test")) == len(every.of("test")) == 360
    for index, share in ((some, 0.2), (few, 0.05)):
        for split in ("train", "validation"):
            counts, whole = index.counts(index.of(split)), every.counts(every.of(split))
            assert np.abs(counts - share * whole).max() <= 0.5
    assert "Labels are known of 216 of 1,078" in some.notes[-1]
    assert set(open_source(Data(source="digits", labelled=0.2, split_seed=1)).samples) != set(some.samples)


def test_a_class_of_one_picture_keeps_its_label(tmp_path: Path) -> None:
    rows = ["path,label,split", *(f"{number}.png,{'rare' if number == 7 else 'often'},train" for number in range(40))]
    rows += [f"{number}.png,often,test" for number in range(40, 44)]
    for number in range(44):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    few = open_source(Data(source=str(tmp_path / "labels.csv"), labelled=0.1, validation=0.0))
    assert list(few.counts(few.of("train"))) == [4, 1]


def test_who_learns_without_labels_learns_from_all() -> None:
    data = Data(source="digits", labelled=0.1)
    assert len(open_source(data, unsorted=True).samples) == 1797 > len(open_source(data).samples)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """all/ has 200 pictures without classes; some/ has copies of 120 of them, sorted."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "all").mkdir()
    for number in range(200):
        picture = Image.fromarray(rng.integers(0, 256, (16, 16), np.uint8))
        picture.save(tmp_path / "all" / f"{number}.png")
        if number < 120:
            place = tmp_path / "some" / ("test" if number < 40 else "train") / ("odd" if number % 2 else "even")
            place.mkdir(parents=True, exist_ok=True)
            picture.save(place / f"photo-{number}.png")
    return tmp_path


def test_copies_of_test_pictures_are_not_learnt_from(folders: Path) -> None:
    """Whatever they are called in the other folder."""
    trial = choose_trial("all", {}, "some")
    assert trial.copies == 40
    assert {int(Path(trial.unlabelled.samples[row]).stem) for row in trial.unlabelled.of("test")} == set(range(40))
    assert len(trial.unlabelled.of("train")) + len(trial.unlabelled.of("validation")) == 160
    assert trial.labelled.class_names == ("even", "odd") and len(trial.labelled.of("test")) == 40


def test_both_ways_have_the_same_time() -> None:
    trial = choose_trial("digits", {"train.budget": "400steps", "model.width": 48}, share=0.5)
    assert trial.pretraining.train.budget == "200steps" and trial.supervised.train.budget == "400steps"
    assert trial.pretraining.model.write()["width"] == trial.supervised.model.write()["width"] == 48
    assert part("1h", 0.75) == "2700s" and rest("1h", 2700.04, 99) == "900s" and rest("90steps", 5.0, 60) == "30steps"


@pytest.mark.parametrize(
    ("source", "settings", "labelled", "sentence"),
    [
        ("all", {}, "", "no classes to measure by.*--labelled FOLDER"),
        ("some", {"data.labelled": 0.0}, "", "data.labelled is 0"),
        ("all", {}, "empty.csv", "line 2: label is empty"),
        ("all", {}, "names.csv", "needs one column label"),
        ("all", {}, "few.csv", "leaves 2 pictures to test on, and so few"),
        ("one", {}, "some", "leaves 1 picture to learn from"),
        ("digits", {"train.epochs": 3}, "", "set train.budget"),
        ("digits", {"init.weights": "x"}, "", "leave init.weights out"),
        ("digits", {"train.objective.mask_ratio": 1.0}, "", "mask_ratio is 1, .* some must be seen"),
        ("digits", {"train.objective": "lejepa", "model.patch_size": 4}, "", "smaller than the parts"),
    ],
)
def test_what_cannot_be_told_is_refused_before_anything_is_trained(
    folders: Path, source: str, settings: dict[str, object], labelled: str, sentence: str
) -> None:
    (folders / "one").mkdir()
    copyfile(folders / "all" / "0.png", folders / "one" / "0.png")
    paths = [f"all/{number}.png" for number in range(10)]
    (folders / "empty.csv").write_text("path,label\n" + "".join(f"{path},\n" for path in paths))
    (folders / "names.csv").write_text("path\n" + "".join(f"{path}\n" for path in paths))
    (folders / "few.csv").write_text("path,label\n" + "".join(f"{path},{i % 2}\n" for i, path in enumerate(paths)))
    with pytest.raises((DataError, RecipeError), match=sentence):
        trial = choose_trial(source, settings, labelled)
        objective_class(trial.pretraining.train, {}).check(trial.pretraining, trial.pretraining.model)


def verdict(difference: float, low: float, high: float, few: bool = False) -> Verdict:
    pair = PairedComparison("without", "with", 500, difference, low, high, 0.95, (3, 3), few)
    ways = tuple(Way(name, (0.5, 0.6), False) for name in "abcd")
    return Verdict(Path("x"), Asked(source="digits", seeds=2, share=0.5), pair, pair, ways, ())


def test_the_verdict_is_a_sentence_with_its_interval() -> None:
    assert verdict(0.041, 0.029, 0.053).sentence == "Pre-training helped by 4.1 points (2.9 to 5.3)."
    assert verdict(-0.02, -0.035, -0.005).sentence == "Pre-training did not help: it cost 2.0 points (0.5 to 3.5)."
    assert verdict(0.004, -0.008, 0.016).sentence == (
        "Pre-training did not help as far as can be told: +0.4 points, which can be luck (-0.8 to 1.6)."
    )
    assert "too few to tell" in verdict(0.3, 0.1, 0.5, few=True).sentence
    assert [verdict(0.1, low, 0.2).kind for low in (0.05, -0.05)] == ["helped", "luck"]


def test_its_options_go_together(folders: Path) -> None:
    def said(*words: str) -> str:
        return CliRunner().invoke(vitral, ["pretrain", *words]).output

    assert "go with --verdict" in said("all", "--labelled", "some")
    assert "there is no verdict to go on with" in said("--verdict", "--out", "x", "--resume")
    (folders / "taken").mkdir()
    (folders / "taken" / "note.txt").write_text("mine")
    result = CliRunner().invoke(vitral, ["pretrain", "all", "--verdict", "--labelled", "some", "--out", "taken"])
    assert isinstance(result.exception, RunError) and "is not empty, and nothing is overwritten" in str(
        result.exception
    )
    Asked(source="all", labelled="some", seeds=3, share=0.75).write(folders / "begun")
    result = CliRunner().invoke(vitral, ["pretrain", "all", "--out", "begun", "--resume", "--seeds", "2"])
    assert "was begun with other seeds (3, and now 2)" in str(result.exception)


def test_what_was_refused_may_be_asked_otherwise_in_the_same_place(folders: Path) -> None:
    for budget in ("1s", "2s"):
        words = ["pretrain", "all", "--verdict", "--labelled", "some", f"train.budget={budget}", "--out", "short"]
        assert "steps" in str(CliRunner().invoke(vitral, words).exception)
        assert json.loads((folders / "short" / "verdict.json").read_text())["settings"] == {"train.budget": budget}


SMALL = "train.budget=24steps model.width=16 model.depth=1 model.heads=2 train.batch_size=32 data.labelled=0.3".split()
COMMAND = [sys.executable, "-m", "vitral", "pretrain"]


def interrupted(folder: Path, words: list[str], line: str, how: signal.Signals) -> tuple[int, str]:
    """The exit code and output of a command that gets a signal after a line that begins so."""
    command = [*COMMAND, *words, "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    output, nowhere = "", subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=nowhere, text=True, env=environment) as process:
        assert process.stdout
        for text in process.stdout:
            output += text
            if text.startswith(line):
                process.send_signal(how)
                break
        output += process.stdout.read()
    return process.returncode, output


@pytest.mark.slow
def test_a_verdict_that_is_killed_and_interrupted_says_the_same_as_one_that_is_not(tmp_path: Path) -> None:
    asked = ["digits", "--verdict", "--seeds", "1", *SMALL]
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    code, _ = interrupted(broken, asked, "And then with labels", signal.SIGKILL)
    assert code == -signal.SIGKILL and not (broken / "report.html").exists()
    code, output = interrupted(broken, ["--resume"], "Device", signal.SIGINT)
    assert code == 130 and f"vitral pretrain --out {broken} --resume" in output
    for words, folder in ((["--resume"], broken), (asked, whole)):
        done = subprocess.run([*COMMAND, *words, "--out", str(folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    said, again = (json.loads((folder / "verdict.json").read_text())["result"] for folder in (whole, broken))
    assert said == again and said["pictures"] == 360 and len(said["ways"]) == 4
    runs = [Run.load(whole / "seed-0" / name) for name in ("pretrained", "with", "without")]
    assert [run.record.steps for run in runs] == [18, 6, 24]
    assert said["ways"][0]["accuracies"] == [runs[1].evaluation["accuracy"]]  # type: ignore[index]
    page = (whole / "report.html").read_text()
    assert said["sentence"] in done.stdout and said["sentence"] in page and (whole / "verdict.png").exists()
    assert "seed-0/with/report.html" in page
    repeated = subprocess.run([*COMMAND, "--out", str(whole), "--resume"], capture_output=True, text=True)
    assert said["sentence"] in repeated.stdout and "epoch" not in repeated.stdout
