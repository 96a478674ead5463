"""Runs side by side: groups of seeds, the settings that differ, mean ± sd, the figure, and sentences for bad input."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import quick_digits
from vitral import Run, RunError, evaluate, train
from vitral.cli import main
from vitral.cli.compare import cell
from vitral.evaluation.compare import _names, compare, flat, mean_sd, place_for
from vitral.recipe import Recipe
from vitral.settings import names

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one recipe, both evaluated, and a run of another, which is not."""
    folder = tmp_path_factory.mktemp("compared") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitral.evaluation.figures.draw", lambda _: None)  # the numbers are enough
        for seed in (0, 1):
            evaluate(train(quick_digits().changed({"train.seed": seed}), out=folder / "base" / f"seed-{seed}"))
    train(quick_digits().changed({"train.label_smoothing": 0.0, "train.seed": 2}), out=folder / "plain")
    return folder


@pytest.fixture
def copied(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to be damaged; one stands in the folder that holds runs/."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(runs, tmp_path / "runs", ignore=shutil.ignore_patterns("checkpoints", "*.safetensors"))


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """The command in this process: exit code, what it printed, and what it complained of."""

    def called(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = 0
        try:
            main(["compare", *map(str, args)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capfd.readouterr()
        return code, told.out, told.err

    return called


def last_epoch(folder: Path) -> dict[str, Any]:
    return [line for line in Run.load(folder).metrics if line["event"] == "epoch"][-1]


def change(run: Path, settings: dict[str, Any]) -> None:
    (run / "recipe.toml").write_text(Run.load(run).recipe.changed(settings).to_toml())


@pytest.mark.parametrize("places", [["base", "plain"], ["base/seed-1", "base/seed-0", "plain"], ["."]])
def test_runs_that_differ_only_in_their_seed_are_one_group(runs: Path, places: list[str]) -> None:
    found = compare(runs / place for place in places)
    assert [group.name for group in found.groups] == ["base", "plain"]
    assert [[member.recipe.train.seed for member in group.members] for group in found.groups] == [[0, 1], [2]]


def test_a_run_named_twice_counts_once(runs: Path) -> None:
    found = compare([runs / "base", runs / "base" / "seed-0", runs / "plain", runs / "base" / ".." / "plain"])
    assert [len(group.members) for group in found.groups] == [2, 1]


def test_only_settings_that_differ_are_told_and_the_seed_is_none_of_them(runs: Path) -> None:
    found = compare([runs])
    assert found.settings == {"train.label_smoothing": [0.1, 0.0]}
    assert found.notes == ["Train losses are not of the same thing, since train.label_smoothing differs."]
    assert compare([runs / "base"]).settings == {} and compare([runs / "base"]).notes == []


def test_losses_of_other_objectives_are_not_of_the_same_thing(copied: Path) -> None:
    change(copied / "plain", {"train.label_smoothing": 0.1, "train.objective": "double-softmax"})
    assert compare([copied]).notes == ["Train losses are not of the same thing, since train.objective differs."]


def test_parts_of_another_kind_show_what_each_has(copied: Path) -> None:
    change(copied / "plain", {"train.label_smoothing": 0.1, "train.optimizer": "sgd"})
    settings = compare([copied]).settings
    assert settings["train.optimizer"] == ["muon", "sgd"]
    assert settings["train.optimizer.learning_rate"] == [0.005, 0.03]
    assert settings["train.optimizer.adamw_betas"] == [[0.9, 0.99], None]
    assert all(name.startswith("train.optimizer") for name in settings)


def test_every_name_is_one_that_the_command_line_takes() -> None:
    found = dict(flat(Recipe()))
    assert set(found) <= set(names(Recipe)) and len(found) > 50
    assert Recipe().changed({name: value for name, value in found.items() if "." in name}) == Recipe()


def test_mean_and_sd_are_numpys(runs: Path) -> None:
    base, plain = compare([runs]).write()["groups"]
    ends = [last_epoch(runs / "base" / f"seed-{seed}") for seed in (0, 1)]
    for measure in ("train_loss", "validation_loss", "validation_accuracy"):
        values = [end[measure] for end in ends]
        assert base[measure]["values"] == values and values[0] != values[1]
        assert base[measure]["mean"] == pytest.approx(np.mean(values), rel=1e-12)
        assert base[measure]["sd"] == pytest.approx(np.std(values, ddof=1), rel=1e-12)
    tested = [Run.load(runs / "base" / f"seed-{seed}").evaluation for seed in (0, 1)]
    assert base["test_accuracy"]["values"] == [one["accuracy"] for one in tested if one]
    assert base["steps"] == {"mean": 32.0, "sd": 0.0, "values": [32.0, 32.0]}
    assert (plain["n"], plain["train_loss"]["sd"], plain["test_accuracy"]["mean"]) == (1, None, None)
    assert mean_sd([0.5]) == (0.5, None)


def test_the_thick_line_is_the_mean_at_the_epochs_that_all_have(copied: Path) -> None:
    group = compare([copied]).groups[0]
    lines = [[line["train_loss"] for line in member.epochs] for member in group.members]
    assert list(group.curve("train_loss")) == [1, 2]
    assert list(group.curve("train_loss").values()) == pytest.approx(np.mean(lines, axis=0).tolist())
    metrics = copied / "base" / "seed-1" / "metrics.jsonl"
    metrics.write_text("\n".join(metrics.read_text().splitlines()[:-1]) + "\n")
    assert list(compare([copied]).groups[0].curve("train_loss")) == [1]


def test_the_command_prints_a_table_and_draws(copied: Path, call: Call) -> None:
    code, told, _ = call("runs/base", "runs/plain")
    rows = {line[:22].strip(): line[22:].split("  ") for line in told.splitlines() if line.strip()}
    rows = {name: [cell.strip() for cell in cells if cell.strip()] for name, cells in rows.items()}
    assert code == 0
    assert rows["train.label_smoothing"] == ["0.1", "0.0"] and rows["runs"] == ["2", "1"]
    losses = [last_epoch(copied / "base" / f"seed-{seed}")["train_loss"] for seed in (0, 1)]
    plain = last_epoch(copied / "plain")
    assert rows["train loss"] == [
        f"{np.mean(losses):.3f} ± {np.std(losses, ddof=1):.3f}",
        f"{plain['train_loss']:.3f}",
    ]
    assert rows["validation accuracy"][1] == f"{plain['validation_accuracy']:.1%}"
    assert rows["test accuracy"][1] == "not evaluated" and rows["steps"] == ["32", "32"]
    assert "Note: Train losses are not of the same thing" in told
    assert told.splitlines()[-1] == "Look at comparisons/base-plain/curves.png"
    pixels = np.asarray(Image.open("comparisons/base-plain/curves.png").convert("RGB")).reshape(-1, 3)
    for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)):  # both lines are there
        assert (pixels == colour).all(axis=1).sum() > 500


def test_one_run_has_the_interval_of_its_test_and_a_part_of_a_group_is_told(copied: Path) -> None:
    evaluation = Run.load(copied / "base" / "seed-0").evaluation
    assert evaluation
    low, high = evaluation["accuracy_interval"]
    alone = compare(["runs/base/seed-0", "runs/plain"]).groups[0]
    assert cell(alone, "test_accuracy") == f"{evaluation['accuracy']:.1%} ({low:.1%} to {high:.1%})"
    (copied / "base" / "seed-1" / "evaluation.json").unlink()
    assert cell(compare(["runs"]).groups[0], "test_accuracy") == f"{evaluation['accuracy']:.1%} (1 of 2)"


def test_json_says_the_same_and_where_the_figure_is(copied: Path, call: Call) -> None:
    code, told, _ = call("runs", "--json", "--out", "here/there")
    found = json.loads(told)
    assert code == 0 and found == compare(["runs"]).write() | {"figure": "here/there/curves.png"}
    assert found["settings"] == {"train.label_smoothing": {"base": 0.1, "plain": 0.0}}
    assert found["groups"][0]["runs"] == ["runs/base/seed-0", "runs/base/seed-1"]
    assert Path(found["figure"]).is_file()


def test_what_makes_numbers_unlike_is_noted(copied: Path) -> None:
    record = copied / "plain" / "run.json"
    values = json.loads(record.read_text())
    unlike = {"choices": values["choices"] | {"threads": 64}, "data": values["data"] | {"sha256": "0" * 64}}
    record.write_text(json.dumps(values | unlike | {"state": "stopped"}))
    change(copied / "plain", {"train.label_smoothing": 0.1, "train.seed": 1})
    evaluation = json.loads((copied / "base" / "seed-0" / "evaluation.json").read_text())
    (copied / "plain" / "evaluation.json").write_text(
        json.dumps(evaluation | {"predictions": evaluation["predictions"][:9]})
    )
    told = " ".join(compare([copied]).notes)
    assert "runs/plain is stopped, not finished" in told
    assert "has the same seed more than once" in told
    assert "were not trained with the same pictures" in told
    assert "Test accuracies are not of the same pictures" in told
    assert "Seconds are not of the same kind of machine" in told


def test_without_validation_the_train_accuracy_is_drawn(copied: Path, call: Call) -> None:
    for run in (copied / "base" / "seed-0", copied / "plain"):
        kept = [{k: v for k, v in line.items() if "validation" not in k} for line in Run.load(run).metrics]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    code, told, _ = call("runs/base/seed-0", "runs/plain", "--out", "drawn")
    assert code == 0 and "validation" not in told and Path("drawn/curves.png").is_file()


def test_nine_groups_are_told_and_eight_drawn(copied: Path, call: Call) -> None:
    for number in range(9):
        run = shutil.copytree(copied / "plain", Path(f"many/_$lr {number}$"))
        change(run, {"train.optimizer.learning_rate": 0.001 * (number + 1)})
    found = compare(["many"])
    assert len(found.groups) == 9 and len(place_for(found).name) < 100
    assert "_$lr 8$" in call("many")[1] and (place_for(found) / "curves.png").is_file()


@pytest.mark.parametrize(
    ("folders", "told"),
    [
        ([["/r/muon/seed-0", "/r/muon/seed-1"], ["/r/adamw/0", "/r/adamw/1"]], ["muon", "adamw"]),
        ([["/r/muon-seed-0", "/r/muon-seed-1"], ["/r/vit-16_0", "/r/vit-16_1"]], ["muon", "vit-16"]),
        ([["/r/digits", "/r/digits-2"], ["/r/digits-3"]], ["digits", "digits-3"]),
        ([["/a/x/seed-0"], ["/b/x/seed-0"], ["/b/y"]], ["a/x/seed-0", "b/x/seed-0", "y"]),
        ([["/r/a-0", "/r/a-1"], ["/r/a-2", "/r/a-3"]], ["a-0", "a-2"]),
    ],
)
def test_names_are_short_and_each_is_another(folders: list[list[str]], told: list[str]) -> None:
    assert _names([[Path(folder) for folder in group] for group in folders]) == told


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["runs/base/seed-0"], "One run alone cannot be compared: name two or more, or a folder that holds several."),
        (["runs/plain", "runs/plain"], "One run alone cannot be compared"),
        (["runs/none", "runs/plain"], "There is no run runs/none."),
        (["empty", "runs"], "empty is not a run and holds none."),
        (["text", "runs"], "text is not a run: it has no run.json."),
        (["runs", "silent"], "silent has no epoch in metrics.jsonl yet: there is nothing to compare."),
        (["runs", "cut"], "cut is damaged: metrics.jsonl or evaluation.json lacks numbers."),
        (["runs", "--out", "runs/plain"], "runs/plain is a run, and has its own curves.png."),
        (["runs", "--out", "text"], "text/curves.png cannot be written (File exists)."),
        (["runs", "--out", "text/deeper"], "text/deeper/curves.png cannot be written (Not a directory)."),
    ],
)
def test_bad_input_is_told_as_a_sentence(copied: Path, call: Call, args: list[str], sentence: str) -> None:
    Path("empty").mkdir()
    Path("text").write_text("no run")
    shutil.copytree(copied / "plain", "silent")
    Path("silent/metrics.jsonl").unlink()
    shutil.copytree(copied / "plain", "cut")
    Path("cut/evaluation.json").write_text('{"accuracy": 0.5}')
    code, told, complaint = call(*args)
    assert (code, told) == (1, "") and complaint.startswith("Error: ") and sentence in complaint


def test_no_run_at_all_is_a_wrong_call(call: Call) -> None:
    code, _, complaint = call()
    assert code == 2 and "Missing argument 'RUN…'" in complaint


def test_in_python_it_is_an_error_of_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run and holds none"):
        compare([tmp_path])


def all_right(run: Path) -> None:
    """As if a run had no test picture wrong."""
    stored = json.loads((run / "evaluation.json").read_text())
    for line in stored["predictions"]:
        line["predicted"] = line["label"]
    (run / "evaluation.json").write_text(json.dumps(stored))


def test_runs_on_the_same_test_pictures_are_compared_picture_by_picture(copied: Path, call: Call) -> None:
    for seed in (0, 1):
        other = shutil.copytree(copied / "base" / f"seed-{seed}", copied / "other" / f"seed-{seed}")
        change(other, {"train.batch_size": 32})
        all_right(other)
    (pair,) = compare([copied / "base", copied / "other"]).pairs
    right = [
        [one["label"] == one["predicted"] for one in json.loads(path.read_text())["predictions"]]
        for path in sorted((copied / "base").glob("seed-*/evaluation.json"))
    ]
    assert pair.pictures == 360 and pair.difference == pytest.approx(1 - np.mean(right)) and pair.runs == (2, 2)
    assert pair.low < pair.difference < pair.high and pair.level == 0.95
    code, out, _ = call(copied / "base", copied / "other")
    assert code == 0 and pair.verdict in out and "interval over seeds and pictures" in out
    assert compare([copied / "base", copied / "plain"]).pairs == []  # the second was not evaluated


def test_a_copy_of_a_run_is_no_second_seed(copied: Path) -> None:
    other = shutil.copytree(copied / "base" / "seed-0", copied / "other" / "a")
    change(other, {"train.batch_size": 32})
    shutil.copytree(other, copied / "other" / "b")
    (pair,) = compare([copied / "base", copied / "other"]).pairs
    assert pair.runs == (2, 1)


def test_of_several_pairs_each_has_a_wider_interval(copied: Path) -> None:
    for number, size in enumerate((16, 32)):
        change(shutil.copytree(copied / "base" / "seed-0", copied / f"other-{number}"), {"train.batch_size": size})
    pairs = compare([copied / "base", copied / "other-0", copied / "other-1"]).pairs
    (alone,) = compare([copied / "base", copied / "other-0"]).pairs
    assert [pair.level for pair in pairs] == [0.975, 0.975] and "97.5 % interval" in pairs[0].verdict
    assert pairs[0].low < alone.low < alone.high < pairs[0].high


def test_pictures_that_belong_together_are_one_witness(copied: Path) -> None:
    other = shutil.copytree(copied / "base" / "seed-0", copied / "other")
    change(other, {"train.batch_size": 32})
    all_right(other)
    (alone,) = compare([copied / "base", other]).pairs
    for run in (*(copied / "base").iterdir(), other):
        stored = json.loads((run / "evaluation.json").read_text())
        for number, line in enumerate(stored["predictions"]):
            line["group"] = f"sheet {number // 36}"
        (run / "evaluation.json").write_text(json.dumps(stored))
    (pair,) = compare([copied / "base", other]).pairs
    assert pair.difference == pytest.approx(alone.difference) and pair.low < alone.low
