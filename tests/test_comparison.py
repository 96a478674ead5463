"""`vitral train FOLDER` with weights at hand: ways to learn are tried for a short time, and the best one goes on."""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from conftest import TINY
from test_choose import folder_of
from test_forecast import Usage
from vitral import DataError, Recipe, Run, ViT, Weights, train, write_weights
from vitral.cli.comparison import print_comparison
from vitral.cli.train import command
from vitral.data.preprocess import Preprocess
from vitral.data.sources import Index
from vitral.progress import Progress, drain
from vitral.recipes.choose import candidates, choose, is_open
from vitral.run import Comparison, Way
from vitral.training.budget import Pace
from vitral.training.comparison import FROM_NOTHING, GENTLE, PROBE, TRAINING, Stopwatch, Trials, compare
from vitral.training.preparation import Plan
from vitral.weights.pretrained import Pretrained

WEIGHTS = "vit_of_nobody"


@dataclass
class FixedTimes(Stopwatch):
    """A clock that goes by the steps that are done, of which each takes so long; those of a head take no time."""

    step: float = 0.5
    look: float = 0.001  # seconds a picture
    seconds: float = 0.0
    paced: bool = False

    def now(self) -> float:
        return self.seconds

    def seconds_a_picture(self, start: Pretrained) -> float:
        return self.look

    def pace(self, plan: Plan, most: float) -> Pace:
        self.paced = True
        return Pace(plan.learner, self.step, self.step)

    def __call__(self, progress: Progress) -> None:
        if self.paced and progress.doing.startswith(TRAINING) and progress.done:
            self.seconds += self.step


@pytest.fixture
def with_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory in which weights are at hand."""
    (tmp_path / "data" / "weights" / WEIGHTS).mkdir(parents=True)
    preprocess = Preprocess(image_size=(32, 32), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    weights = Weights(ViT(TINY), preprocess, tuple("abcdefghij"), {})
    write_weights(tmp_path / "data" / "weights" / WEIGHTS / "model.safetensors", weights)
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def photographs(tmp_path: Path, each: int = 16) -> str:
    return str(folder_of(tmp_path / "pictures", each, (64, 60)))


def compared(source: str, seconds: float = 60.0, watch: FixedTimes | None = None, **settings: Any) -> Comparison:
    given, watch = {"train.budget": f"{seconds}s", **settings}, watch or FixedTimes()
    choice = choose(source, given)
    return drain(compare(candidates(choice, given, watch=watch), choice.index, seconds, 0.0, watch=watch), watch)


@pytest.mark.slow
def test_each_way_is_tried_for_a_share_of_the_time(tmp_path: Path, with_weights: Path) -> None:
    watch = FixedTimes()
    comparison = compared(photographs(tmp_path), watch=watch)
    assert [way.name for way in comparison.ways] == [PROBE, FROM_NOTHING, GENTLE]
    assert comparison.weights == WEIGHTS and comparison.figure == "accuracy"
    assert all(way.value is not None and 0 <= way.value <= 1 for way in comparison.ways)
    assert watch.seconds <= 60 / 3 and comparison.seconds == watch.seconds
    nothing, gentle = comparison.ways[1:]
    assert nothing.steps == 12 and gentle.steps == 14 and nothing.planned == gentle.planned == int((58.8 - 20) / 0.5)


def test_they_are_validated_on_the_same_pictures_and_never_on_the_test_set(tmp_path: Path, with_weights: Path) -> None:
    """A quarter of the pictures to learn from and validate, of each class; the test pictures may be anything."""
    source = photographs(tmp_path)
    known = choose(source).index.splits != "test"
    comparison = compared(source, watch=FixedTimes(step=1.0))  # a head is tried, no more
    assert comparison.pictures == pytest.approx(known.sum() / 4, abs=2)
    for number, sample in enumerate(choose(source).index.samples):
        if not known[number]:
            (tmp_path / "pictures" / sample).write_bytes((tmp_path / "pictures" / "class-0" / "0.png").read_bytes())
    assert compared(source, watch=FixedTimes(step=1.0)).ways == comparison.ways


@pytest.mark.parametrize(
    ("watch", "seconds", "words"),
    [
        (
            FixedTimes(look=1.0),
            60.0,
            {PROBE: "to look at all pictures once would take 1 min", GENTLE: "only 1 step fits"},
        ),
        (FixedTimes(step=1.0), 60.0, {FROM_NOTHING: "only 38 steps fit", GENTLE: "only 38 steps fit"}),
    ],
)
def test_what_does_not_fit_is_not_tried_and_says_why(
    tmp_path: Path, with_weights: Path, watch: FixedTimes, seconds: float, words: dict[str, str]
) -> None:
    comparison = compared(photographs(tmp_path), seconds, watch)
    untried = {way.name: way for way in comparison.ways if way.value is None}
    assert untried.keys() == words.keys() and comparison.chosen not in untried
    assert all(words[name] in str(way.why_not) for name, way in untried.items())


def test_of_many_pictures_some_are_compared_on_and_nothing_of_them_stays(tmp_path: Path, with_weights: Path) -> None:
    comparison = compared(photographs(tmp_path), 60.0, FixedTimes(1.0, 0.4))  # 25 are looked at in 10 s
    assert comparison.pictures == pytest.approx(25 / 4, abs=2)
    assert sorted(path.name for path in with_weights.iterdir()) == ["weights"]


def test_a_head_goes_on_where_there_was_no_time_to_try_anything(
    tmp_path: Path, with_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs no more than a look at the pictures; a new model of a few steps knows nothing."""

    class Slow(FixedTimes):
        def __call__(self, progress: Progress) -> None:
            self.seconds += 2.0

    comparison = compared(photographs(tmp_path), 3.0, Slow())
    assert [way.value for way in comparison.ways] == [None] * 3
    assert "before the first step" in str(comparison.ways[0].why_not) and comparison.chosen == PROBE
    print_comparison(comparison)
    assert "Nothing could be tried in" in (printed := capsys.readouterr().out) and "held out" not in printed


def test_what_the_disk_has_no_room_for_is_not_tried(
    tmp_path: Path, with_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 pictures take 590,000 bytes at 64 × 64, and a quarter of that at 32 × 32."""
    source = photographs(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 0, 300_000))
    comparison = compared(source)
    assert [way.why_not for way in comparison.ways] == [None, "the disk has no room for its pictures", None]
    assert comparison.chosen != FROM_NOTHING
    shutil.rmtree(with_weights / "packs")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**6, 0, 1_000))
    with pytest.raises(DataError, match=r"take 0.1 MB, and 0.0 MB are free"):
        compared(source)


def trials(index: Index, pictures: int, figure: str = "accuracy") -> Trials:
    splits = np.array(["validation"] * pictures)
    return Trials(index, splits, {}, 0.0, index, (), FixedTimes(), figure)


def ways(*expected: float) -> Sequence[Way]:
    names = (PROBE, FROM_NOTHING, GENTLE)
    return [Way(name=name, value=0.0, expected=value) for name, value in zip(names, expected, strict=True)]


def test_what_may_be_luck_goes_to_the_cheaper() -> None:
    """Of 100 pictures, 80 and 84 right: the error of the difference is 5.4 of a hundred."""
    index = choose("digits").index
    assert trials(index, 100).choose(ways(0.8, 0.7, 0.84)) == PROBE
    assert trials(index, 1000).choose(ways(0.8, 0.7, 0.84)) == GENTLE
    assert trials(index, 100).choose(ways(0.5, 0.84, 0.85)) == FROM_NOTHING
    assert trials(index, 100, "loss").choose(ways(0.5, 0.3, 0.4)) == FROM_NOTHING  # the smaller, the better
    assert trials(index, 100).choose([Way(name=PROBE), Way(name=FROM_NOTHING)]) == FROM_NOTHING


def test_a_way_whose_loss_is_no_number_does_not_go_on() -> None:
    index = choose("digits").index
    assert trials(index, 100, "loss").choose(ways(float("nan"), 0.7, 0.9)) == FROM_NOTHING
    assert trials(index, 100, "loss").expect(0.0, 0.0, 3.0) == 0.0


def test_a_long_training_is_foreseen_by_two_short_ones() -> None:
    """The odds of a wrong answer fall as they did: from 1 to 1 in 2, so to 1 in 8 after two more doublings."""
    index = choose("digits").index
    assert trials(index, 10**6).expect(1 / 2, 2 / 3, 2.0) == pytest.approx(8 / 9, abs=1e-4)
    assert trials(index, 10**6).expect(0.1, 0.9, 1.0) == pytest.approx(18 / 19, abs=1e-4)  # no faster than to a half
    assert trials(index, 10**6).expect(0.7, 0.6, 3.0) == pytest.approx(0.6, abs=1e-4)  # nor does it get worse
    assert trials(index, 10**6, "loss").expect(2.0, 1.0, 2.0) == 0.25


@pytest.mark.parametrize(
    ("settings", "compares"),
    [
        ({}, True),
        ({"train.budget": "5m", "data.validation": 0.2}, True),
        ({"init.weights": WEIGHTS}, True),
        ({"init.weights": WEIGHTS, "init.mode": "probe"}, False),
        ({"init.weights": "none"}, False),
        ({"train.epochs": 3}, False),
        ({"train.budget": "80steps"}, False),
        ({"model.depth": 2}, False),
        ({"data.augment.flip": "none"}, False),
    ],
)
def test_what_a_person_decides_is_not_compared(
    tmp_path: Path, with_weights: Path, settings: dict[str, Any], compares: bool
) -> None:
    choice = choose(photographs(tmp_path, 4), settings)
    assert (choice.compared_with != "none") == compares == bool(compares and is_open(settings))
    assert choose(str(folder_of(tmp_path / "small", 4, (20, 20)))).compared_with == "none"


def test_without_weights_it_says_what_they_would_bring(tmp_path: Path, with_weights: Path) -> None:
    source = photographs(tmp_path, 4)
    assert not any("fetch" in reason for reason in choose(source).why)
    assert f"init.weights={WEIGHTS}" in choose(source, {"train.epochs": 3}).why[-1]
    (with_weights / "weights" / WEIGHTS / "model.safetensors").unlink()
    choice = choose(source)
    assert choice.compared_with == "none" and "`vitral fetch vit_tiny_patch16_224`" in choice.why[-1]


def test_a_chosen_way_is_a_plain_recipe(tmp_path: Path, with_weights: Path) -> None:
    """What is proposed for typing gives the same recipe, and compares nothing."""
    source = photographs(tmp_path, 4)
    for named in ({}, {"init.weights": WEIGHTS}):
        settings = {"train.budget": "60s", "train.seed": 3, **named}
        ways = candidates(choose(source, settings), settings, watch=FixedTimes(look=0.01))
        assert [way.recipe.init.mode for way in ways] == ["probe", "full", "gentle"]
        assert [way.recipe.init.weights for way in ways] == [WEIGHTS, "none", WEIGHTS]
        for way in ways:
            again = choose(source, way.settings)
            assert again.recipe == way.recipe == Recipe.from_toml(way.recipe.to_toml())
            assert again.compared_with == "none" and again.recipe.train.seed == 3


@pytest.mark.parametrize(("column", "cells"), [("labels", ("dark;small", "bright;small")), ("weight", ("1.5", "7.25"))])
def test_several_labels_and_a_number_are_compared_by_the_loss(
    tmp_path: Path, with_weights: Path, column: str, cells: tuple[str, str]
) -> None:
    folder = folder_of(tmp_path / "pictures", 15, (64, 60), classes=2)
    rows = [f"class-{label}/{number}.png,{cells[label]}" for label in (0, 1) for number in range(15)]
    (folder / "table.csv").write_text("\n".join([f"file,{column}", *rows]) + "\n")
    settings: dict[str, Any] = {} if column == "labels" else {"data.target": column}
    comparison = compared(str(folder / "table.csv"), watch=FixedTimes(step=1.0), **settings)
    assert comparison.figure == "loss" and comparison.chosen == PROBE


def test_a_head_of_several_labels_is_measured_in_the_epoch_that_goes_on(tmp_path: Path, with_weights: Path) -> None:
    """With labels by chance nothing can be learnt but by heart: the end is worse than an early epoch."""
    folder, chance = folder_of(tmp_path / "pictures", 40, (64, 60), classes=1), np.random.default_rng(0)
    cells = ["dark;small", "small", "dark", ""]
    rows = [f"class-0/{number}.png,{cells[chance.integers(4)]}" for number in range(40)]
    (folder / "table.csv").write_text("\n".join(["file,labels", *rows]) + "\n")
    choice, watch = choose(str(folder / "table.csv"), {}), FixedTimes()
    head = candidates(choice, {}, watch=watch)[0]
    assert head.recipe.train.choose == "loss" and any("least validation loss" in reason for reason in head.why)
    last = replace(head, recipe=head.recipe.changed({"train.choose": "last"}))
    best, end = (drain(compare([one], choice.index, 60.0, 0.0, watch=watch)).ways[0].value for one in (head, last))
    assert best is not None and end is not None and best < end
    one_class = choose(photographs(tmp_path / "classes", 4), {"init.weights": WEIGHTS, "init.mode": "probe"})
    assert one_class.recipe.train.choose == "last"


def test_where_time_is_short_all_of_a_model_sees_smaller_pictures(tmp_path: Path, with_weights: Path) -> None:
    settings = {"train.budget": "60s", "model.image_size": 192}
    source = photographs(tmp_path)
    short, long = (
        candidates(choose(source, {"train.budget": "60s"}), {"train.budget": "60s"}, watch=FixedTimes(look=look))
        for look in (1.0, 0.001)
    )
    assert [one[2].recipe.model.image_size for one in (short, long)] == [32, 32]  # 16 would be too small to see by
    assert not is_open(settings)


def typed(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@pytest.mark.slow
def test_the_command_tells_what_it_compared_and_the_run_remembers(
    tmp_path: Path, with_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = photographs(tmp_path), tmp_path / "run"
    monkeypatch.setattr("vitral.cli.train.STARTED_AT", time.perf_counter())  # else when the tests began
    done = typed(source, "train.budget=60s", "--out", out)
    assert done.exit_code == 0, done.output
    told = Run.load(out).record.comparison
    assert told is not None and f"Goes on: {told.chosen}." in done.stdout
    assert f"The weights {WEIGHTS} are here" in done.stdout and "a third of 60s" in done.stdout
    assert json.loads((out / "run.json").read_text())["comparison"]["chosen"] == told.chosen
    page = (out / "report.html").read_text()
    assert "Tried first" in page and f'<th scope="row">probe, {WEIGHTS}</th>' in page
    again = typed(source, "train.budget=60s", "--out", out, "--resume")
    assert "are here" not in again.stdout  # what was chosen stands


def test_a_stop_in_the_comparison_leaves_nothing_half_done(
    tmp_path: Path, with_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitral.training.comparison.train_steps", stop)
    done = typed(photographs(tmp_path), "train.budget=10h", "--out", tmp_path / "run")
    assert done.exit_code == 1 and "No run was begun yet" in done.stdout
    assert not (tmp_path / "run").exists()


def test_a_place_that_is_taken_is_told_before_anything_is_tried(tmp_path: Path, with_weights: Path) -> None:
    done = typed(photographs(tmp_path, 4), "--out", with_weights)
    assert "nothing is overwritten" in str(done.exception) and done.stdout == ""


def test_a_run_that_goes_on_keeps_its_comparison(tmp_path: Path, with_weights: Path) -> None:
    source, tried = photographs(tmp_path, 4), ways(0.8, 0.7, 0.84)
    comparison = Comparison(
        weights=WEIGHTS, figure="accuracy", pictures=9, seconds=1.0, ways=tuple(tried), chosen=PROBE
    )
    recipe = choose(source, {"init.weights": "none", "train.budget": "2steps", "train.baseline": False}).recipe
    run = train(recipe, out=tmp_path / "run", comparison=comparison)
    assert run.record.comparison == comparison
    longer = train(recipe.changed({"train.budget": "3steps"}), out=tmp_path / "run", resume=True)
    assert longer.record.comparison == comparison and longer.record.steps == 3
