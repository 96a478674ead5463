"""Long work goes on where it was interrupted, and several processes give the answer of one, to the bit."""

import json
import math
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from PIL import Image

from conftest import FORMAT_1, Called
from many import run, torchrun
from vitral.progress import Progress
from vitral.rounds import Rounds, Rows, joined, place_of


def squares(rows: range) -> Rows:
    return {"number": np.array(rows), "square": np.array(rows) ** 2, "word": np.array([str(row) for row in rows])}


def test_rows_come_in_order_and_progress_tells_how_many() -> None:
    told: list[Progress] = []
    rows = joined(Rounds(tell=told.append).of(10, 4, squares, "squaring"))
    assert rows["square"].tolist() == [row**2 for row in range(10)] and rows["word"].tolist() == list("0123456789")
    assert told == [Progress(done, 10, "squaring") for done in (0, 4, 8, 10)]


def test_what_was_done_is_not_done_again_until_it_is_forgotten(tmp_path: Path) -> None:
    done: list[int] = []
    stopped_at = 8

    def work(rows: range) -> Rows:
        if rows.start == stopped_at:
            raise KeyboardInterrupt
        done.extend(rows)
        return squares(rows)

    rounds = Rounds(folder=tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        list(rounds.of(10, 4, work))
    assert done == list(range(8))
    stopped_at = 10
    assert joined(rounds.of(10, 4, work))["number"].tolist() == done == list(range(10))
    assert joined(rounds.of(10, 4, work))["number"].tolist() == done == list(range(10))
    rounds.forget()
    assert not (tmp_path / "work").exists()
    list(rounds.of(10, 4, work))
    assert done == [*range(10), *range(10)]


@pytest.mark.parametrize("damage", ["cut", "emptied", "changed"])
def test_damaged_files_are_not_believed(tmp_path: Path, damage: str) -> None:
    rounds = Rounds(folder=tmp_path)
    list(rounds.of(10, 4, squares))
    [path] = tmp_path.glob("*.npz")
    content = bytearray(path.read_bytes())
    if damage == "changed":
        content[content.index(b"descr") + 120] ^= 1  # among the numbers
    path.write_bytes(content[: {"cut": len(content) - 9, "emptied": 0, "changed": len(content)}[damage]])
    assert joined(rounds.of(10, 4, squares))["square"].tolist() == [row**2 for row in range(10)]


def test_a_place_that_cannot_be_written_does_not_end_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert len(joined(Rounds(folder=tmp_path / "file" / "work").of(10, 4, squares))["number"]) == 10


def test_other_work_has_another_place(tmp_path: Path) -> None:
    assert place_of(tmp_path, "predict", "a") == place_of(tmp_path, "predict", "a") != place_of(tmp_path, "check", "a")
    assert place_of(tmp_path, "predict", "a", "b") != place_of(tmp_path, "predict", "ab")


# Commands one after the other, in the same processes: torch is loaded once. What one of them has to say goes to a file.
COMMANDS = """
    import json, os, signal, sys
    from contextlib import redirect_stdout
    from pathlib import Path
    from vitral import classifier, rounds
    from vitral.cli import main
    from vitral.data import batches
    from vitral.evaluation import embed

    work = json.loads(Path(sys.argv[1]).read_text())
    embed.SHARD = batches.MOST_IN_ORDER = classifier.ROUND = 64  # so that there are several rounds
    rounds.EVERY = 0.0
    add, rows_done = rounds._Writer.add, 0

    def add_and_die(writer, rows):
        global rows_done
        add(writer, rows)
        rows_done += len(next(iter(rows.values())))
        if rows_done >= work["killed_after"]:
            os.kill(os.getpid(), signal.SIGKILL)

    rounds._Writer.add = add_and_die
    for name, arguments in work["commands"].items():
        with open(f"{work['out']}/{name}.txt" if os.environ.get("RANK", "0") == "0" else os.devnull, "w") as file:
            with redirect_stdout(file):
                try:
                    main(arguments)
                except SystemExit as end:
                    print("exit code", end.code)
    Path(work["out"], "rows").write_text(str(rows_done))
"""


def commands(folder: Path, pictures: Path, killed_after: float = math.inf, only: str = "") -> Path:
    """The file that says what the script shall do, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    weights = str(FORMAT_1 / "model.safetensors")
    each = {
        "predict": ["predict", weights, str(pictures), "--csv", f"{folder}/predictions.csv"],
        "embed": ["embed", weights, str(pictures), "--json", "--out", f"{folder}/embedded"],
        "evaluate": ["evaluate", weights, str(pictures), "--json"],
        "check": [
            "check",
            str(pictures),
            "--json",
            "--out",
            f"{folder}/check",
        ],  # the last: it ends with 1, as there is a broken one
    }
    chosen = {name: arguments for name, arguments in each.items() if only in name}
    work = {"out": str(folder), "killed_after": killed_after, "commands": chosen}
    (folder / "work.json").write_text(json.dumps(work))
    return folder / "work.json"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 pictures of digits in folders of classes, one that is broken and one that is there twice; and the script."""
    from sklearn.datasets import load_digits

    place = tmp_path_factory.mktemp("many")
    for number, (image, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        if number == 200:
            break
        path = place / "pictures" / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image.reshape(8, 8) * 15).astype(np.uint8)).save(path)
    (place / "pictures" / "3" / "broken.png").write_bytes(b"no picture")
    shutil.copy(place / "pictures" / "0" / "0000.png", place / "pictures" / "5" / "again.png")
    (place / "commands.py").write_text(dedent(COMMANDS))
    return place


def written(folder: Path) -> dict[str, bytes]:
    """All files in a folder, without its own name in them."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("work.json", ".lock", "rows"))
    return {str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"") for path in files}


@pytest.fixture(scope="module")
def alone(place: Path) -> Path:
    """What one process writes and says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAL_DATA", str(place / "data"))
        patch.chdir(place)
        done = run([sys.executable, str(place / "commands.py"), str(commands(place / "alone", place / "pictures"))])
        assert done.returncode == 0, done.stderr
    shutil.move(place / "evaluations", place / "alone")
    return place / "alone"


@pytest.mark.slow
def test_two_processes_predict_check_embed_and_evaluate_as_one_does(
    place: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    both = run(torchrun(place / "commands.py", commands(tmp_path / "both", place / "pictures")))
    assert both.returncode == 0, both.stderr
    shutil.move(tmp_path / "evaluations", tmp_path / "both")
    assert len(written(alone)) > 15
    assert written(tmp_path / "both") == written(alone)
    assert not any((tmp_path / "data" / "unfinished").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "check"])
def test_two_processes_are_killed_and_one_goes_on(
    place: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    folder, pictures = tmp_path / "killed", place / "pictures"
    assert run(torchrun(place / "commands.py", commands(folder, pictures, 1, command))).returncode != 0
    assert not (folder / "rows").exists()
    done = run([sys.executable, str(place / "commands.py"), str(commands(folder, pictures, only=command))])
    assert done.returncode == 0, done.stderr
    assert int((folder / "rows").read_text()) == 202 - 2 * 64
    assert (folder / f"{command}.txt").read_bytes().replace(str(folder).encode(), b"") == written(alone)[
        f"{command}.txt"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command, killed_after", [("embed", 128), ("check", 64)])  # embed: before the second is kept
def test_a_command_about_shards_that_was_killed_goes_on(
    called: Callable[..., Called],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    killed_after: int,
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    assert called("pack", place / "pictures", "shards", "--shards", "3", "data.validation=auto").returncode == 0
    work = commands(tmp_path / "killed", Path("shards:shards"), killed_after, command)
    killed = run([sys.executable, str(place / "commands.py"), str(work)])
    assert killed.returncode == -signal.SIGKILL
    arguments = json.loads(work.read_text())["commands"][command]
    again = called(*arguments)
    assert "looking at pictures: 64 of 201 were done before" in again.stderr
    whole = called(*(word.replace("killed", "whole") for word in arguments))
    assert (again.returncode, again.stdout.replace("killed", "whole")) == (whole.returncode, whole.stdout)
    assert len(written(tmp_path / "whole")) > 2
    assert without_answers(tmp_path / "killed") == written(tmp_path / "whole")


def without_answers(folder: Path) -> dict[str, bytes]:
    """What was written, without what the killed command had said."""
    return {name: content for name, content in written(folder).items() if name not in ("embed.txt", "check.txt")}
