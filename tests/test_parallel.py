"""Several processes learn together as one does: the same order of pictures, the same losses, one voice."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import quick_digits, stopped
from many import run, torchrun
from test_resume import assert_same, everything, timeless
from vitral import Run, Started, events
from vitral.model.cifar_resnet import CifarResNet
from vitral.processes import Processes
from vitral.training.checkpoint import read_checkpoint

STEPS = 50

# What a training is made of, a few at a time; whatever draws inside the model is off.
PLAIN: dict[str, Any] = {
    "train.budget": f"{STEPS}steps",
    "train.batch_size": 64,
    "train.precision": "float32",
    "train.compile": "no",
    "model.depth": 2,
}
ADAMW = PLAIN | {
    "train.optimizer": "adamw",
    "train.accumulate": 2,
    "train.clip": 0.5,
    "train.ema": 0.9,
    "train.choose": "loss",
    "data.augment.mixup": 0.8,
    "data.augment.cutmix": 1.0,
    "data.augment.erase": 0.5,
    "data.augment.repeats": 2,
    "data.sampling": "balanced",
}
MUON = PLAIN | {
    "model.stem": "whitened",
    "model.image_size": 16,
    "model.patch_size": 4,
    "train.class_weights": "balanced",
    "train.patches": "rising",
    "train.image_size": "rising",
    "train.patience": 2,
}
VIEWS = {
    "train.budget": "10steps",
    "train.optimizer": {"kind": "adamw", "learning_rate": 1e-4},
    "model.image_size": 16,
    "model.patch_size": 4,
    "model.head": "none",
    "data.augment.crop": 0.4,
    "data.augment.mixup": 0.0,
    "data.augment.cutmix": 0.0,
    "train.label_smoothing": 0.0,
}
SHARD = {"train.parallel": "shard"}
RECIPES = ("adamw", "muon", "taught", "own", "lejepa", "dino")
# Every recipe once, and the samples and images of the first steps, as a process gets them.
TRAIN = """
    import json, sys
    from pathlib import Path
    import numpy as np
    from vitral import Started, train
    from vitral.processes import join
    from vitral.recipe import Recipe

    processes, place = join(timeout=60), Path(sys.argv[1])

    def note(event):
        if isinstance(event, Started):
            stream = event.plan.batches.starting_at(1)
            batches = [next(stream)[1] for _ in range(20)]
            stream.close()
            rows = {"samples": [batch.samples for batch in batches]}
            rows["images"] = [batch.images.numpy() for batch in batches[:3]]
            rows["targets"] = [batch.targets.numpy() for batch in batches[:3]]
            np.savez(event.run.folder / f"rows-{processes.rank}.npz", **rows)

    for name, table in json.loads(Path(sys.argv[2]).read_text()).items():
        train(Recipe.read(table), out=place / name, processes=processes, listeners=[note])
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script and its recipes; a CNN that has learnt nothing, which teaches; a loss of somebody's own."""
    place = tmp_path_factory.mktemp("parallel")
    (place / "cnn").mkdir()
    save_file(CifarResNet(1, 10, (0.5,) * 3, (0.25,) * 3).state_dict(), place / "cnn" / "model.safetensors")
    (place / "cnn" / "about.json").write_text('{"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}')
    (place / "mine.py").write_text(
        "def focal(logits, targets):\n"
        "    share = logits.log_softmax(1).gather(1, targets[:, None])\n"
        "    weight = (1 - share.exp()) ** 2\n"
        "    return -(weight * share).sum() / weight.sum()\n"  # not a mean over pictures
    )
    taught = {"teacher.source": str(place / "cnn"), "teacher.kind": "map", "model.channels": 3, "model.width": 64}
    own = {"train.objective": f"{place}/mine.py:focal", "train.label_smoothing": 0.0, "data.augment.mixup": 0.0}
    recipes = {
        "adamw": ADAMW,
        "muon": MUON,
        "taught": PLAIN | taught | {"model.image_size": 16, "train.budget": "10steps"},
        "own": PLAIN | own | {"train.budget": "10steps"},
        "lejepa": PLAIN | VIEWS | {"train.objective": "lejepa"},
        "dino": PLAIN | VIEWS | {"train.objective": "dino"},
    }
    shared = {f"{name}, shared out": settings | SHARD for name, settings in recipes.items() if name != "dino"}
    for processes, some in ((1, recipes), (2, recipes | shared)):
        tables = {name: quick_digits().changed(settings).write() for name, settings in some.items()}
        (place / f"recipes-{processes}.json").write_text(json.dumps(tables))
    (place / "train.py").write_text(dedent(TRAIN))
    return place


def trained_by(place: Path, processes: int) -> Path:
    """All recipes, by so many processes."""
    words = [place / "train.py", place / f"by-{processes}", place / f"recipes-{processes}.json"]
    done = run(torchrun(*words) if processes > 1 else [sys.executable, *map(str, words)])
    assert done.returncode == 0, done.stderr
    return place / f"by-{processes}"


@pytest.fixture(scope="module")
def both(place: Path) -> tuple[Path, Path]:
    """What one process makes of the recipes, and what two make."""
    return trained_by(place, 1), trained_by(place, 2)


def losses(run: Run) -> list[float]:
    return [line["loss"] for line in timeless(run) if line["event"] == "step"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RECIPES, *(f"{name}, shared out" for name in RECIPES if name != "dino")])
def test_two_processes_learn_as_one_does(both: tuple[Path, Path], name: str) -> None:
    one, two = Run.load(both[0] / name.removesuffix(", shared out")), Run.load(both[1] / name)
    assert len(losses(one)) >= 10
    # DINO divides by 0.04: in one process, too, two halves of a batch have another mean by 4e-5 in float32.
    np.testing.assert_allclose(losses(two), losses(one), rtol=0, atol=5e-5 if name == "dino" else 1e-5)
    for ours, theirs in zip(timeless(two), timeless(one), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(ours[figure] == pytest.approx(theirs[figure], abs=2e-3) for figure in ours if figure != "event")
    way, made = "shard" if "shared" in name else "replicate", two.record.choices
    assert (one.record.choices.processes, made.processes, made.parallel) == (1, 2, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["", ", shared out"], ids=["replicate", "shard"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_order_of_pictures_is_the_same_to_the_bit(both: tuple[Path, Path], name: str, way: str) -> None:
    whole = np.load(both[0] / name / "rows-0.npz")
    parts = Run.load(both[0] / name).recipe.train.accumulate
    for rank in (0, 1):
        share, rows = np.load(both[1] / f"{name}{way}" / f"rows-{rank}.npz"), Processes(rank, 2).rows(64, parts)
        for kind in ("samples", "images", "targets"):
            np.testing.assert_array_equal(share[kind], whole[kind][:, rows])


# The gradients of one step, and all that it has changed; and a validation.
STEP = """
    import json, sys
    from pathlib import Path
    from safetensors.torch import save_file
    from vitral.processes import join
    from vitral.progress import drain
    from vitral.recipe import Recipe
    from vitral.training.parallel import whole
    from vitral.training.preparation import prepare

    processes, place = join(timeout=60), Path(sys.argv[1])
    place.mkdir(exist_ok=True)
    for name, table in json.loads(Path(sys.argv[2]).read_text()).items():
        plan = drain(prepare(Recipe.read(table), processes=processes))
        learner = plan.learner
        stream = plan.batches.starting_at(1)
        for progress in (0.0, 1.0):  # in between all that was frozen has thawed
            step, batch = next(stream)
            loss, figures = learner.gradients(step, batch, progress)
            every = {f"{progress} loss": loss, **{f"{progress} {name}": value for name, value in figures.items()}}
            for one, parameter in [*learner.model.named_parameters(), *learner.objective.named_parameters()]:
                if parameter.grad is not None:
                    every[f"{progress} {one}"] = whole(parameter.grad).clone()
            every |= {f"{progress} {one}": buffer.clone() for one, buffer in learner.model.named_buffers()}
            learner.optimizers.zero_grad()
            save_file(every, place / f"{name}-{progress}-{processes.rank}.safetensors")
        Path(place, f"{name}-{processes.rank}.json").write_text(json.dumps(plan.validate()))
"""


@pytest.mark.slow
def test_gradients_figures_and_norms_are_those_of_one_process(
    place: Path, trained: Run, pictures: Path, tmp_path: Path
) -> None:
    """Averaged and not added up, as FSDP2 once did on gloo (pytorch#162338): neither AdamW nor Muon would tell."""
    table, weights = tmp_path / "pictures.csv", {"init.weights": str(trained.folder)}
    rows = [f"{pictures}/{name}/{number}.png,{name},{number}" for name in ("dark", "bright") for number in range(24)]
    table.write_text("image,look,angle\n" + "\n".join(rows) + "\n")
    small = {"model.image_size": 32, "model.patch_size": 8, "train.batch_size": 8, "data.source": str(table)}
    cnn = {
        "teacher.source": str(place / "cnn"),
        "model.channels": 3,
        "model.tokens": "distilled",
        "model.image_size": 16,
    }
    cases: dict[str, dict[str, Any]] = {
        "weighted": {"train.class_weights": "balanced", "train.label_smoothing": 0.2, "model.stem": "whitened"},
        "in parts": {"train.class_weights": "balanced", "train.accumulate": 4, "model.stem": "whitened"},
        "hard": cnn | {"teacher.kind": "hard", "train.class_weights": "balanced"},
        "soft": cnn | {"teacher.kind": "soft", "teacher.sees": "picture"},
        "thawing": weights | {"init.freeze": 1, "init.thaw": 0.5},
        "recomputed": {"train.recompute": True, "model.depth": 2, "train.accumulate": 2},
        "probe": weights | {"init.mode": "probe", "data.augment": {}},
        "lora": weights | {"init.mode": "lora", "train.optimizer": "adamw"},
        "number": small | {"data.target": "angle", "data.augment.mixup": 1.0},
        "tasks": small | {"data.target": "look,angle", "train.class_weights": "balanced"},
        "own": {"train.objective": f"{place}/mine.py:focal", "train.label_smoothing": 0.0},
        "lejepa": VIEWS | {"train.objective": "lejepa", "train.accumulate": 2, "model.stem": "whitened"},
        "dino": VIEWS | {"train.objective": "dino", "model.stem": "whitened"},
    }
    small_model = PLAIN | {"model.depth": 1}
    alone = {name: quick_digits().changed(small_model | case).write() for name, case in cases.items()}
    shared = {f"shared {name}": quick_digits().changed(small_model | case | SHARD) for name, case in cases.items()}
    del shared["shared dino"]  # its teacher follows the whole model: refused
    (tmp_path / "step.py").write_text(dedent(STEP))
    for processes, recipes in ((1, alone), (2, alone | {name: recipe.write() for name, recipe in shared.items()})):
        (tmp_path / "recipes.json").write_text(json.dumps(recipes))
        words = [tmp_path / "step.py", tmp_path / f"by-{processes}", tmp_path / "recipes.json"]
        done = run(torchrun(*words) if processes > 1 else [sys.executable, *map(str, words)])
        assert done.returncode == 0, done.stderr
    whole = {path.name: path for path in (tmp_path / "by-1").iterdir()}
    assert len(whole) == 3 * len(cases) and len(list((tmp_path / "by-2").iterdir())) == 2 * 3 * (2 * len(cases) - 1)
    for path in (tmp_path / "by-2").iterdir():
        one = whole[path.with_stem(f"{path.stem.removeprefix('shared ')[:-1]}0").name]
        if path.suffix == ".json":
            assert json.loads(path.read_text()) == pytest.approx(json.loads(one.read_text()), rel=1e-5)
            continue
        ours, theirs = load_file(path), load_file(one)
        assert ours.keys() == theirs.keys(), path.name
        for name, tensor in ours.items():
            largest = float(theirs[name].abs().max()) if tensor.numel() else 0.0
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5 * max(1e-3, largest), msg=name)


# What is wrong is told once

APART = """
    import os, sys
    from vitral.cli import main

    os.chdir(f"{sys.argv[1]}/{os.environ['RANK']}")
    main(sys.argv[2:])
"""


def told(done: subprocess.CompletedProcess[str]) -> str:
    """The sentence of a command that fails, which is told once."""
    assert done.returncode != 0
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pictures"], "Process 1 of 2 ("),
        (["digits", "train.batch_size=63"], "Error: 2 processes cannot share out a batch of 63 pictures evenly. Set "),
        (["digits", "--out", "run"], "is another folder there than for the first process"),
    ],
    ids=["pictures", "batch", "folder"],
)
def test_what_is_wrong_with_one_is_told_once(tmp_path: Path, pictures: Path, words: list[str], sentence: str) -> None:
    """Each process stands in a folder of its own, as on a machine of its own."""
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
    shutil.copytree(pictures, tmp_path / "0" / "pictures")
    (tmp_path / "apart.py").write_text(dedent(APART))
    out = [] if "--out" in words else ["--out", tmp_path / "run"]
    done = run(torchrun(tmp_path / "apart.py", tmp_path, "train", *words, *out))
    assert sentence in told(done)
    assert not (tmp_path / "run").exists() and not (tmp_path / "0" / "run").exists()


@pytest.mark.slow
def test_a_port_that_is_in_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launcher that leaves the meeting to the processes; torchrun says so itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        done = run([sys.executable, "-m", "vitral", "train", "digits", "--out", str(tmp_path / "run")])
    assert f"at 127.0.0.1, port {port}" in told(done)


# Stopped, killed, and going on

# `vitral` with a fault: at a step of its first attempt a process sends a signal to itself or to its launcher. From then
# on steps are slow, so that what takes its way over the launcher comes in time. A run that is finished is not measured.
FAULTY = """
    import os, signal, sys, time
    from vitral.cli import display, main

    step, rank, name, whom = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    listen = display.TrainingDisplay.__call__

    def heard(display, event):
        if type(event).__name__ == "Step" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if event.step == step and os.environ["RANK"] == rank:
                os.kill(os.getppid() if whom == "launcher" else os.getpid(), getattr(signal, name))
            if event.step >= step:
                time.sleep(0.2)
        listen(display, event)
        if type(event).__name__ == "Finished":
            sys.stdout.flush()
            os._exit(0)

    display.TrainingDisplay.__call__ = heard
    main(sys.argv[5:])
"""
NEVER = (0, 0, "SIGKILL", "itself")


Training = Callable[..., list[object]]


def write_training(place: Path) -> Training:
    """The script, and a recipe with all that draws random numbers or remembers something; the words of the command with
    which processes begin or go on, and write a checkpoint after every step."""
    (place / "recipe.toml").write_text(everything().changed({"model.stem": "whitened"}).to_toml())
    (place / "faulty.py").write_text(dedent(FAULTY))

    def words(
        folder: Path, *fault: object, recipe: Path = place / "recipe.toml", way: str = "replicate"
    ) -> list[object]:
        vitral = ["train", recipe, f"train.parallel={way}", "--out", folder, "--resume", "--save-every", 0]
        return [place / "faulty.py", *(fault or NEVER), *vitral]

    return words


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return write_training(tmp_path_factory.mktemp("faulty"))


@pytest.fixture(scope="module")
def whole(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """By two processes that nothing happens to, which share the work in this way."""

    @cache
    def run_whole(way: str) -> Run:
        folder = tmp_path_factory.mktemp("whole") / "run"
        done = run(torchrun(*training(folder, way=way)))
        assert done.returncode == 0, done.stderr
        return Run.load(folder)

    return run_whole


WAYS = ["replicate", "shard"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_is_killed_and_all_start_again_to_the_same_bits(
    training: Training, whole: Callable[[str], Run], tmp_path: Path, rank: int, way: str
) -> None:
    """Rank 0 is the one that writes. All may begin anew, where the first attempt did not come as far as a step."""
    words = training(tmp_path / "run", 13, rank, "SIGKILL", "itself", way=way)
    done = run(torchrun(*words, options=("--max-restarts=1",)))
    assert done.returncode == 0, done.stderr
    assert_same(Run.load(tmp_path / "run"), whole(way))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_launcher_is_killed_and_the_next_start_waits_for_the_lock(
    training: Training, whole: Callable[[str], Run], tmp_path: Path, way: str
) -> None:
    killed = run(torchrun(*training(tmp_path / "run", 13, 0, "SIGKILL", "launcher", way=way)))
    assert killed.returncode == -signal.SIGKILL
    done = run(torchrun(*training(tmp_path / "run", way=way)))
    assert done.returncode == 0, done.stderr
    assert "Goes on after step" in done.stdout
    assert_same(Run.load(tmp_path / "run"), whole(way))


@pytest.mark.slow
def test_one_begins_two_go_on_in_either_way_until_sigterm_and_one_ends_it_all_in_the_middle_of_epochs(
    both: tuple[Path, Path], training: Training, tmp_path: Path
) -> None:
    """The same losses as of one process that nobody has stopped."""
    whole = Run.load(both[0] / "adamw")
    folder, recipe = stopped(whole.recipe, tmp_path / "run", after=7), both[0] / "adamw" / "recipe.toml"
    for way, step in (("shard", 15), ("replicate", 24), ("shard", 33)):
        done = run(torchrun(*training(folder, step, 1, "SIGTERM", "launcher", recipe=recipe, way=way)))
        assert done.returncode != 0 and f"vitral train --out {folder} --resume" in done.stdout, done.stderr
        before = Run.load(folder).record
        assert before.state == "stopped" and step <= before.steps < STEPS
        assert (before.choices.processes, before.choices.parallel) == (2, way)
    heard = list(events(out=folder, resume=True))
    started = next(event for event in heard if isinstance(event, Started))
    assert "the number of processes was 2 and is 1" in started.notes[0]
    assert len(losses(Run.load(folder))) == STEPS
    np.testing.assert_allclose(losses(Run.load(folder)), losses(whole), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_is_stopped_is_named(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The first process writes a checkpoint before it ends; where the model is shared out it cannot, and the last one
    stands."""
    monkeypatch.setenv("VITRAL_TIMEOUT", "8")
    words = training(tmp_path / "run", 13, 1, "SIGSTOP", "itself", way=way)
    done = run(torchrun(*words, options=("--shutdown-timeout=1",)))
    sentence = told(done)
    assert "Process 1 of 2 (" in sentence and "says nothing any more" in sentence and "wait 8 s" in sentence
    assert Run.load(tmp_path / "run").record.steps == 13
    progress, _, damaged = read_checkpoint(tmp_path / "run" / "checkpoints") or pytest.fail("there is none")
    assert (progress.step, damaged) == (12 if way == "shard" else 13, [])
