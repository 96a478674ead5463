"""The command, as a person or a program calls it. Where a process of its own adds nothing, `called` saves the start."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from conftest import FORMAT_1, Called, quick_digits, slowly
from vitral import Recipe, Run
from vitral.cli import COMMANDS, main

VITRAL = [sys.executable, "-m", "vitral"]


def vitral(*args: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*VITRAL, *map(str, args)], capture_output=True, text=True, cwd=cwd, env=os.environ | env, timeout=120
    )


@pytest.mark.slow
def test_train_evaluate_ls_and_predict_work_together(tmp_path: Path, seven: NDArray[np.uint8]) -> None:
    (tmp_path / "mine.toml").write_text(quick_digits().to_toml())
    done = vitral("train", "mine.toml", "train.epochs=1", "train.seed=3", "--out", "runs/x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Device cpu, ") and "thread" in lines[0] and lines[0].endswith("precision float32.")
    assert any(line.split()[:1] == ["1"] for line in lines), "a line an epoch"
    assert "Test loss" in done.stdout and "test accuracy" in done.stdout and "runs/x" in done.stdout
    assert "\x1b" not in done.stdout  # plain where nobody looks
    run = Run.load(tmp_path / "runs" / "x")
    assert (run.recipe.train.epochs, run.recipe.train.seed) == (1, 3)
    assert len(list(run.folder.glob("*.png"))) == 6

    told = vitral("evaluate", "runs/x", "--json", cwd=tmp_path)
    assert json.loads(told.stdout)["pictures"] == 360
    listed = json.loads(vitral("ls", "--json", cwd=tmp_path).stdout)
    assert [found["run"] for found in listed["runs"]] == ["runs/x"] and "digits" in listed["recipes"]
    assert "runs/x" in vitral("ls", cwd=tmp_path).stdout
    shown = vitral("show", "runs/x", cwd=tmp_path).stdout
    assert Recipe.from_toml(shown) == run.recipe

    again = vitral("train", "mine.toml", "--out", "runs/x", cwd=tmp_path)
    assert again.returncode == 1 and "nothing is overwritten" in again.stderr


@pytest.fixture
def pictures(tmp_path: Path, seven: NDArray[np.uint8]) -> Path:
    folder = tmp_path / "pictures"
    (folder / "deeper").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("a.png", "deeper/B.PNG", "deeper/[bold] é,;\n\x1b.png", ".hidden/no.png"):
        Image.fromarray(seven).save(folder / name)
    shutil.copy(os.fsencode(folder / "a.png"), os.fsencode(folder) + b"/\xff.png")  # no text in any encoding
    (folder / "broken.jpg").write_text("not a picture")
    (folder / "notes.txt").write_text("not meant to be one")
    return folder


def test_predict_answers_for_a_folder_and_names_what_it_could_not_read(
    called: Callable[..., Called], trained: Run, pictures: Path
) -> None:
    table = pictures.parent / "out.csv"
    done = called("predict", trained.folder, pictures, "--csv", table, "--unsure", "1.0")
    assert done.returncode == 0, done.stderr
    assert "broken.jpg" in done.stdout and "5 files: 4 answered, 4 of them unsure (below 1), " in done.stdout
    assert "[bold] é,;\\n\\x1b.png" in done.stdout and "\x1b" not in done.stdout
    with table.open(newline="", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    by_name = {Path(row["path"]).name: row for row in rows}
    assert by_name["broken.jpg"]["label"] == "" and "is not a picture" in by_name["broken.jpg"]["error"]
    answered = [row for row in rows if row["label"]]
    assert all(row["unsure"] == "yes" for row in answered)
    ranked = [float(answered[0][name]) for name in ("probability", "probability_2", "probability_3")]
    assert ranked == sorted(ranked, reverse=True)
    again = called("predict", trained.folder, pictures / "a.png", pictures / "broken.jpg")
    assert again.returncode == 1 and "a.png" in again.stdout  # asked for by name, and not answered


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """What stands on standard input."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_predict_takes_a_picture_from_standard_input(
    called: Callable[..., Called], typed: Callable[[bytes], None], trained: Run, pictures: Path
) -> None:
    typed((pictures / "a.png").read_bytes())
    [answer] = json.loads(called("predict", trained.folder, "-", "--json").stdout)
    [expected] = json.loads(called("predict", trained.folder, pictures / "a.png", "--json").stdout)
    assert answer == expected | {"path": "-"}
    typed(b"no picture")
    done = called("predict", trained.folder, "-")
    assert done.returncode == 1 and done.stderr.startswith("Error: The picture is not a picture that Vitral reads")


def test_predict_takes_a_list_of_paths(
    called: Callable[..., Called], typed: Callable[[bytes], None], trained: Run, pictures: Path, tmp_path: Path
) -> None:
    """Answered in its order; what cannot be read is named, as in a folder."""
    lines = b"".join(os.fsencode(pictures / name) + b"\n" for name in ("broken.jpg", "a.png"))
    lines += os.fsencode(pictures) + b"/\xff.png\r\n\n"
    (tmp_path / "list.txt").write_bytes(lines)
    of_file = called("predict", trained.folder, "--list", tmp_path / "list.txt", "--json")
    typed(lines)
    of_stdin = called("predict", trained.folder, "--list", "-", "--json")
    assert of_file.stdout == of_stdin.stdout and of_file.returncode == 0
    broken, first, second = json.loads(of_file.stdout)
    assert "error" in broken and first["label"] == second["label"]
    (tmp_path / "list.txt").write_text("\n\n")
    empty = called("predict", trained.folder, "--list", tmp_path / "list.txt")
    assert empty.returncode == 1 and "The list is empty" in empty.stderr


def test_predict_gives_json_for_programs(called: Callable[..., Called], trained: Run, pictures: Path) -> None:
    done = called("predict", trained.folder / "model.safetensors", pictures / "a.png", "--json", "--unsure", "0")
    (answer,) = json.loads(done.stdout)
    assert answer["label"] == answer["probabilities"][0]["label"]
    assert answer["unsure"] is False
    line = called("predict", trained.folder, pictures / "a.png").stdout
    assert f"{answer['label']} {answer['probability']:.1%}" in line


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["predict", "RUN", "text.png"], 1, "text.png is not a picture that Vitral reads"),
        (["predict", "RUN", "missing.png"], 1, "missing.png is not there"),
        (["predict", "RUN", "empty"], 1, "There is no picture in empty"),
        (["predict", "RUN"], 2, "Missing argument 'PICTURE|FOLDER|-...', or --list FILE"),
        (["predict", "RUN", "-", "text.png"], 2, "Standard input, -, is one picture or one list, and stands alone"),
        (["predict", "RUN", "text.png", "--device", "gpu"], 2, "device is gpu, and torch finds none here"),
        (["predict", "text.onnx", "text.png"], 1, "There is no file text.onnx"),
        (["predict", "RUN", "text.png", "--unsure", "7"], 2, "7.0 is not in the range 0<=x<=1"),
        (["predict", "RUN", "empty", "--csv", "empty"], 2, "--csv empty is a folder, and a file was expected"),
        (["predict", "runs/none", "text.png"], 1, "There is no run and no file of weights runs/none"),
        (["predict", "empty", "text.png"], 1, "empty is no run, and has no model.safetensors"),
        (["evaluate", "text.png"], 1, "text.png is not a run"),
        (["evaluate", "CUT"], 1, "was altered or cut"),
        (["evaluate", "runs/none"], 1, "There is no run runs/none"),
        (["show", "runs/none"], 2, "There is no folder or file runs/none"),
        (["shapes", "B16"], 2, "There is no size, recipe or run B16. Did you mean B/16?"),
        (["train", "digits", "--epochs", "5"], 2, "Settings are written without dashes: name=value"),
        (["shapes", "B/15"], 2, "model.patch_size 15 does not divide model.image_size 224"),
        (["shapes", "B/16", "model.hedas=6"], 2, "There is no setting model.hedas. Did you mean model.heads?"),
        (
            ["shapes", "RUN", "model.heads=6"],
            2,
            "is a run, and its model is as it was trained. With settings: vitral shapes",
        ),
        (["shapes", "paper-b16-jft"], 2, "leaves the pictures to you, and with them how many classes there are"),
        (["train", "digits", "train.epochs=many"], 2, 'train.epochs is "many", and should be a whole number'),
        (["train", "digits", "train.epohcs=3"], 2, "Did you mean train.epochs?"),
        (["train", "digits", "data.source=cats"], 2, "There is no folder, file or named set cats"),
        (["train", "dgits"], 2, "There is no recipe or folder dgits. Did you mean digits?"),
        (["train", "mu"], 2, "There is no recipe or folder mu. Did you mean mu-cifar10?"),
        (["train", "SimpleViT"], 2, "`vitral ls tutorials` those of tutorials."),
        (["train", "empty"], 1, "There is no picture in empty."),
        (["train"], 2, "Missing argument 'RECIPE'"),
        (["trian", "digits"], 2, "There is no command trian. Did you mean train?"),
        (["train", "digits", "train.epochs=1", "--out", "text.png"], 1, "text.png cannot be written"),
    ],
)
def test_bad_input_answers_with_a_sentence_and_changes_nothing(
    called: Callable[..., Called], run_copy: Path, tmp_path: Path, args: list[str], code: int, sentence: str
) -> None:
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "empty").mkdir()
    cut = shutil.copytree(run_copy, tmp_path / "cut")
    content = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(content[: len(content) // 2])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = [{"RUN": str(run_copy), "CUT": str(cut)}.get(word, word) for word in args]
    done = called(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_shapes_knows_sizes_recipes_and_runs(called: Callable[..., Called], trained: Run) -> None:
    assert "86,567,656" in called("shapes", "B/16").stdout
    told = json.loads(called("shapes", trained.folder, "--json").stdout)
    assert told["parameters"] == sum(p.numel() for p in trained.weights().model.parameters())
    assert called("shapes", "digits").returncode == 0


def test_shapes_and_drawings_are_of_the_model_with_its_settings(called: Callable[..., Called], tmp_path: Path) -> None:
    told = called("shapes", "owen-cifar10", "model.patch_size=1", "model.depth=2", "--draw", tmp_path / "pixels.svg")
    assert "1025 tokens of width 48" in told.stdout
    drawn = (tmp_path / "pixels.svg").read_text()
    assert "owen-cifar10, model.patch_size=1, model.depth=2" in drawn and "Encoder × 2" in drawn


def test_doctor_shows_what_it_runs_on(called: Callable[..., Called]) -> None:
    found = json.loads(called("doctor", "--json").stdout)
    assert found["device"].startswith(("cpu", "cuda", "mps")) and found["torch"].startswith("2.")
    speed = found["training in float32"]
    assert speed["images_per_second"] > 1 and 0.02 < speed["share"] < 1.2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_its_one_line(called: Callable[..., Called], name: str) -> None:
    told = called(name, "--help")
    assert told.returncode == 0 and told.stdout.startswith(f"Usage: vitral {name}")
    assert name in called("--help").stdout


@pytest.mark.parametrize("args", [["ls"], ["show", "digits"], ["shapes", "B/16"]])
def test_a_closed_pipe_is_quiet(tmp_path: Path, args: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)  # nobody will ever read
    done = subprocess.run([*VITRAL, *args], stdout=writes, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*VITRAL, "show", "digits"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.slow
def test_names_that_look_like_markup_are_only_names(called: Callable[..., Called], run_copy: Path) -> None:
    odd = shutil.copytree(run_copy, run_copy.parent / "a[" / "b] [red]x")
    done = called("evaluate", odd)
    assert done.returncode == 0 and f"vitral predict {odd} PICTURE" in done.stdout
    assert str(odd) in called("ls", odd.parent).stdout


def walk(place: Path, every: int, until: str) -> list[dict[str, Any]]:
    """What became of copies of a training that were sent Ctrl-C before its first step."""
    arguments = [str(every), until, "train", "digits", "model.width=16", "model.heads=2", "train.epochs=1"]
    script = Path(__file__).parent / "interrupts.py"
    done = subprocess.run([sys.executable, str(script), *arguments], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    copies: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return copies


def assert_stopped(copy: dict[str, Any]) -> None:
    assert (copy["code"], copy["said"].strip()[-8:]) == (130, "Stopped."), copy
    assert "Traceback" not in copy["said"] and "Error" not in copy["said"], copy


def test_ctrl_c_is_answered_wherever_it_falls(tmp_path: Path) -> None:
    """From the first line of `main` on: in an import, and where a library would make another error of it."""
    copies = walk(tmp_path, every=0, until="preparation")
    assert {copy["place"] for copy in copies} == {"", "import", "serialiser", "import of torch", "preparation"}
    assert len(copies) > 20
    for copy in copies:
        assert_stopped(copy)


@pytest.mark.slow
def test_ctrl_c_is_answered_at_any_moment_before_the_first_step(tmp_path: Path) -> None:
    copies = walk(tmp_path, every=100_000, until="begin")
    assert len(copies) > 100
    for copy in copies:
        assert_stopped(copy)


# Each line is a command that gets Ctrl-C, and a library that makes something else of it.
LIBRARIES = {
    "another error": "try:\n    press()\nexcept BaseException:\n    raise ValueError('in a library') from None",
    "nothing, and then much work": "try:\n    press()\nexcept:\n    pass\nwhile True:\n    pass",
    "nothing, and then waiting": "try:\n    press()\nexcept:\n    pass\nthreading.Event().wait()",
    "nothing, just before the end": "try:\n    press()\nexcept:\n    pass",
    "a destructor": "Thing()\nwhile True:\n    pass",
    "an exit": "try:\n    press()\nexcept BaseException:\n    sys.exit(0)",
    "a second one": "try:\n    press()\nfinally:\n    press()",
    "C that runs Python": "ctypes.pythonapi.PyRun_String(b'press()', 258, *[ctypes.py_object(globals())] * 2)",
    "a sentence": "try:\n    press()\nfinally:\n    raise click.UsageError('in a library')",
}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_ctrl_c_is_answered_whatever_a_library_makes_of_it(library: str) -> None:
    code = f"""
import ctypes, signal, sys, threading
import click
from vitral.cli import main, vitral

def press():
    signal.raise_signal(signal.SIGINT)

class Thing:
    def __del__(self):
        press()

def work():
    {library.replace(chr(10), chr(10) + "    ")}

vitral.get_command = lambda ctx, name: click.Command("ls", callback=work)
sys.argv = ["vitral", "ls"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "Stopped.")


def test_ctrl_c_does_not_disturb_what_an_earlier_one_lets_be_saved(tmp_path: Path) -> None:
    """An interrupt that got lost is raised again after a moment; one that is on its way is not."""
    code = f"""
import signal, sys
import click
from pathlib import Path
from vitral.cli import interrupt, main, vitral

seen = []

def work():
    looks = interrupt._is_unwinding
    interrupt._is_unwinding = lambda error: seen.append(looks(error)) or seen[-1]
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        while len(seen) < 3:
            pass
        Path({str(tmp_path / "saved")!r}).write_text("whole")

interrupt.AGAIN = 0.01
vitral.get_command = lambda ctx, name: click.Command("ls", callback=work)
sys.argv = ["vitral", "ls"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (130, "Stopped.")
    assert (tmp_path / "saved").read_text() == "whole"


def test_a_caller_of_main_keeps_its_own_ctrl_c(called: Callable[..., Called]) -> None:
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    assert called("show", "digits").returncode == 0 and called("trian").returncode == 2
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before


def test_the_shell_completes_commands_recipes_and_settings() -> None:
    def completed(words: str, current: int) -> str:
        return vitral(_VITRAL_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(current)).stdout

    assert "train" in completed("vitral tr", 1)
    assert "digits" in completed("vitral train di", 2)
    assert "train.epochs=" in completed("vitral train digits train.ep", 3)
    assert completed("vitral shapes B", 2).split() == ["plain,B/16"]
    assert "train.epochs" not in completed("vitral train digits train.optimizer = ", 5)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_learnt(tmp_path: Path) -> None:
    endless = ["model.width=16", "model.heads=2", "train.epochs=100000", "train.compile=no"]
    command = [*VITRAL, "train", "digits", *endless, "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:1] == ["1"]:  # the line of the first epoch
            break
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate()
    assert process.returncode == 130
    assert "What it has learnt so far is in run" in told and "Traceback" not in errors
    run = Run.load(tmp_path / "run")
    epoch = next(line for line in run.metrics if line["event"] == "epoch")
    assert run.record.state == "stopped" and run.record.steps > epoch["step"]
    run.weights()


@pytest.mark.slow
def test_several_seeds_are_told_as_mean_and_spread(called: Callable[..., Called], tmp_path: Path) -> None:
    small = ["model.width=16", "model.depth=1", "model.heads=2", "train.epochs=1"]
    done = called("train", "digits", *small, "--seeds", "2", "--out", "both", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    accuracies = [Run.load(tmp_path / "both" / f"seed-{seed}").evaluation for seed in (0, 1)]
    assert all(accuracies)
    told = [f"{found['accuracy']:.2%}" for found in accuracies if found]
    assert f"(mean ± sd of 2 seeds: {', '.join(told)})" in done.stdout
    again = called("train", "digits", *small, "--seeds", "2", "--out", "both", "--resume", cwd=tmp_path)
    assert again.returncode == 0 and f"(mean ± sd of 2 seeds: {', '.join(told)})" in again.stdout


# A hostile terminal

ESCAPES = "\x1b]0;title\x07\x9b31m\u202e"  # a title for the window, red letters, from right to left


def steers(text: str) -> bool:
    """Whether a text has a sign that steers a terminal."""
    return not text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "words",
    [
        [ESCAPES],
        ["ls", f"--{ESCAPES}"],
        ["show", ESCAPES],
        ["train", f"{ESCAPES}/set"],
        ["train", "digits", f"train.{ESCAPES}=1"],
        ["train", "digits", f"train.epochs={ESCAPES}"],
        ["predict", ESCAPES, "a.png"],
        ["check", "set", "--out", "seen"],
        ["embed", ESCAPES, "set"],
        ["show", "mine.toml"],
        ["train", "mine.toml", "--dry-run"],
        ["ls", "runs"],
    ],
    ids=lambda words: words[0] if words[0] != ESCAPES else "no command",
)
def test_no_name_steers_the_terminal(called: Callable[..., Called], tmp_path: Path, words: list[str]) -> None:
    for label in ("a", f"b{ESCAPES}"):
        folder = tmp_path / "set" / label
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "1.png")
        (folder / f"no{ESCAPES}.png").write_text("no picture")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    recipe = quick_digits().to_toml().replace('source = "digits"', f"source = {json.dumps(ESCAPES)}")
    (tmp_path / "mine.toml").write_text(recipe)
    (tmp_path / "runs" / ESCAPES).mkdir(parents=True)
    (tmp_path / "runs" / ESCAPES / "run.json").write_text("{}")
    done = called(*words, cwd=tmp_path)
    assert done.stdout + done.stderr and not steers(done.stdout + done.stderr)


def test_a_terminal_without_letters_of_ours_spells_them_out() -> None:
    done = vitral("shapes", "digits", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.startswith("Image 8\\xd78, patches of 2")


@pytest.mark.parametrize("words", [["shapes", "digits"], *slowly(["doctor"], ["ls"])], ids=str)
def test_where_there_is_no_terminal_at_all_nothing_is_printed_and_nothing_fails(words: list[str]) -> None:
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.run([*closed, *VITRAL, *words], timeout=120).returncode == 0


def test_of_a_damaged_picture_one_sentence_is_printed(tmp_path: Path) -> None:
    """And not what the libraries think of it."""
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.tif", exif=Image.Exif())
    content = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(content[: len(content) - 40])
    done = vitral("predict", FORMAT_1, tmp_path / "a.tif")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_path_that_the_system_refuses_is_quoted_in_short(trained: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", str(trained.folder), "x" * 100_000])
    error = capsys.readouterr().err
    assert "could not be read or written (File name too long)." in error and len(error) < 1_100
