"""Killed at any moment, also in the middle of writing a checkpoint, a run goes on to the same bits.

strace finds the moments: it kills a process as it is about to do one particular thing to the disk.
"""

import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from test_resume import assert_same, command, everything, signalled
from vitral import Run, RunError, Saved, events, train
from vitral.data.batches import Batch
from vitral.recipe import Recipe
from vitral.training.checkpoint import read_checkpoint
from vitral.training.learner import Learner
from vitral.training.loop import Corrected

SMALL = {"train.batch_size": 512}  # two steps an epoch, six in all
LOOKED_AT = 4  # the step after which strace looks: the second epoch is over, and the checkpoint of step 2 is removed

CALLS = "?mkdir,?mkdirat,openat,write,fsync,fdatasync,?rename,?renameat,?renameat2,?unlink,?unlinkat"


def small() -> Recipe:
    return everything().changed(SMALL)


@pytest.fixture(scope="module")
def small_whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Never stopped."""
    return train(small(), out=tmp_path_factory.mktemp("small") / "run")


@pytest.mark.slow
def test_five_kills_are_as_good_as_none(tmp_path: Path) -> None:
    """At moments that nobody chose; `make kill` has those of a clock."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # shown where the test fails
    chance = random.Random(seed)
    whole = train(everything(), out=tmp_path / "whole")
    for step in sorted(chance.sample(range(1, whole.record.steps), 5)):
        calls = chance.randrange(1000)
        print(f"step {step}, {calls} calls later")
        assert signalled(tmp_path / "run", signal.SIGKILL, step, calls).returncode == -signal.SIGKILL
    assert_same(train(everything(), out=tmp_path / "run", resume=True), whole)


# With strace


@dataclass(frozen=True)
class Call:
    """Something that was done to the run folder."""

    name: str  # of the system call
    number: int  # among those of its name, from 1
    about: str  # its arguments, with PID for the number of the process

    def __str__(self) -> str:
        return f"{self.name} {self.number}: {self.about[:200]}"


def traced(folder: Path, log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Train under strace, which sees only what is done to the files of the run that matter.

    The names of temporary files have the number of the process in them. So a small program puts its own number into the
    arguments and becomes strace, which with -D becomes the training and leaves the watching to another process.
    """
    become = "import os, sys; a = [x.replace('PID', str(os.getpid())) for x in sys.argv[1:]]; os.execvp(a[0], a)"
    temporary = [".run.json", ".recipe.toml", ".split.csv", ".model.safetensors"]
    temporary += [f"checkpoints/.step-{step:08}.safetensors" for step in range(1, 7)]
    old = [f"checkpoints/step-{step:08}.safetensors" for step in range(1, 7)]
    paths = [folder, folder / "checkpoints", folder / "metrics.jsonl", *(folder / name for name in old)]
    paths += [folder / f"{name}.PID.part" for name in temporary]
    strace = ["strace", "-D", "-f", "-y", "-o", str(log), "-e", f"trace={CALLS}", *options]
    strace += [option for path in paths for option in ("-P", str(path))]
    small_too = [f"{name}={value}" for name, value in SMALL.items()]
    training = command(folder, "--save-every", "0", *small_too)
    return subprocess.run([sys.executable, "-c", become, *strace, *training], capture_output=True, text=True)


def read_log(log: Path) -> Iterator[Call]:
    numbers: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        if found := re.match(r"(\d+) +(\w+)\((.*)", line):
            process, name, about = found.groups()
            numbers[name] += 1
            yield Call(name, numbers[name], re.sub(rf"\.{process}\.part", ".PID.part", about))


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """All that a run does to its folder."""
    place = tmp_path_factory.mktemp("traced")
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if subprocess.run(["strace", "-D", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace may not watch processes here")
    done = traced(place / "run", place / "log")
    assert done.returncode == 0, done.stderr
    return list(read_log(place / "log"))


def checkpoint_of(calls: list[Call], step: int) -> list[Call]:
    """What belongs to one checkpoint, from the metrics before it to the removal of the oldest."""
    name = f".step-{step:08}.safetensors.PID.part"
    first = next(place for place, call in enumerate(calls) if name in call.about)
    last = next(place for place, call in enumerate(calls) if place > first and call.name.startswith("unlink"))
    while "metrics.jsonl" in calls[first - 1].about or calls[first - 1].name.startswith("mkdir"):
        first -= 1
    return calls[first : last + 1]


@pytest.mark.slow
def test_a_file_is_on_the_disk_before_it_has_its_name(calls: list[Call]) -> None:
    """And its name is on the disk before anything else is begun."""
    renames = [place for place, call in enumerate(calls) if call.name.startswith("rename")]
    named = []
    for place in renames:
        temporary, path = re.findall(r'"([^"]+)"', calls[place].about)
        named.append(Path(path).name)
        before = [call.name for call in calls[:place] if temporary in call.about and call.name != "rename"]
        assert before[-1] in ("fsync", "fdatasync"), f"{path}: {before}"
        opened, flushed = calls[place + 1 : place + 3]
        assert opened.name == "openat" and f'"{Path(path).parent}"' in opened.about, f"{path}: {opened}"
        assert flushed.name == "fsync" and f"<{Path(path).parent}>" in flushed.about, f"{path}: {flushed}"
    assert named.count("run.json") == 3  # at the beginning, with the weights, and at the end
    assert [name for name in named if name == "model.safetensors"]
    assert {f"step-{step:08}.safetensors" for step in range(1, 7)} <= set(named)


@pytest.mark.slow
def test_killed_at_each_call_of_a_checkpoint_it_goes_on_to_the_same_bits(
    calls: list[Call], small_whole: Run, tmp_path: Path
) -> None:
    moments = checkpoint_of(calls, LOOKED_AT)
    kinds = {call.name for call in moments}
    assert {"openat", "write", "fsync"} <= kinds and len(moments) >= 10, [str(call) for call in moments]
    # And where a run begins and ends: as a file gets its name.
    others = re.compile(r"\.(run\.json|recipe\.toml|model\.safetensors)\.PID")
    moments += [call for call in calls if call.name.startswith("rename") and others.search(call.about)]
    print(f"{len(moments)} kills")

    def kill(number: int) -> int:
        call, folder = moments[number], tmp_path / f"run-{number}"
        inject = f"inject={call.name}:signal=KILL:when={call.number}"
        return traced(folder, tmp_path / f"log-{number}", "-e", inject).returncode

    with ThreadPoolExecutor(2) as two:
        codes = list(two.map(kill, range(len(moments))))
    for number, (code, call) in enumerate(zip(codes, moments, strict=True)):
        print(call)
        assert code == -9, f"was not killed at {call}"
        last = list(read_log(tmp_path / f"log-{number}"))[-1]
        assert (last.name, last.number) == (call.name, call.number)
        folder = tmp_path / f"run-{number}"
        found = read_checkpoint(folder / "checkpoints")
        assert found is None or found[2] == []  # no checkpoint is torn
        assert_same(train(small(), out=folder, resume=True), small_whole)
        assert list(folder.rglob("*.part")) == []


@pytest.mark.slow
def test_a_full_disk_ends_it_with_a_sentence_and_with_room_it_goes_on(
    calls: list[Call], small_whole: Run, tmp_path: Path
) -> None:
    """For a moment, or from then on."""
    during = checkpoint_of(calls, LOOKED_AT)
    checkpoint = {call.name: call.number for call in during if ".safetensors.PID.part" in call.about}
    metrics = next(call.number for call in during if call.name == "write" and "metrics.jsonl" in call.about)
    cases = [("write", checkpoint["write"]), ("fsync", checkpoint["fsync"]), ("write", metrics)]
    injected = [f"inject={name}:error=ENOSPC:when={number}{on}" for name, number in cases for on in ("", "+")]

    def fill(number: int) -> subprocess.CompletedProcess[str]:
        return traced(tmp_path / f"run-{number}", tmp_path / f"log-{number}", "-e", injected[number])

    with ThreadPoolExecutor(2) as two:
        done = list(two.map(fill, range(len(injected))))
    for number, (process, inject) in enumerate(zip(done, injected, strict=True)):
        print(inject, process.stderr)
        folder = tmp_path / f"run-{number}"
        assert process.returncode == 1
        assert "cannot be written" in process.stderr and "No space left on device" in process.stderr
        assert "Traceback" not in process.stderr
        assert list(folder.rglob("*.part")) == []
        found = read_checkpoint(folder / "checkpoints")
        assert found is not None and found[2] == []
        assert Run.load(folder).record.state == ("running" if inject.endswith("+") else "stopped")
        assert_same(train(small(), out=folder, resume=True), small_whole)


# What is remembered from one step to the next, and not a tensor


def killed_after(step: int, recipe: Recipe, folder: Path) -> Path:
    """A copy of the run as it was just after the checkpoint of this step."""
    happening = events(recipe, out=folder, save_every=0)
    assert any(isinstance(event, Saved) and event.step == step for event in happening)
    shutil.copytree(folder, f"{folder}-killed", ignore=shutil.ignore_patterns(".lock"))
    happening.close()
    return Path(f"{folder}-killed")


@pytest.mark.slow
def test_a_run_that_gave_up_does_not_go_on_after_a_kill(tmp_path: Path) -> None:
    still = {"kind": "sgd", "learning_rate": 1e-30}
    stuck = small().changed({"train.patience": 1, "train.optimizer": still, "train.ema": 0.0})
    whole = train(stuck, out=tmp_path / "whole")
    assert whole.record.steps == 4
    assert_same(train(out=killed_after(4, stuck, tmp_path / "run"), resume=True), whole)


@pytest.mark.slow
def test_a_step_that_was_left_out_is_told_after_a_kill_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = Learner.gradients

    def not_a_number(self: Learner, step: int, batch: Batch, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        loss, figures = gradients(self, step, batch, progress)
        return (loss * float("nan") if step == 3 else loss), figures

    monkeypatch.setattr(Learner, "gradients", not_a_number)
    skipping = small().changed({"train.not_finite": "skip"})
    whole = train(skipping, out=tmp_path / "whole")
    assert [line["step"] for line in whole.metrics if line["event"] == "skipped"] == [3]
    assert_same(train(out=killed_after(3, skipping, tmp_path / "run"), resume=True), whole)


@pytest.mark.slow
def test_an_epoch_is_judged_once_also_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = small().changed({"train.patience": 1})
    whole = train(impatient, out=tmp_path / "whole")
    assert whole.record.steps == 6  # it gets better each time
    append_metrics = Run.append_metrics

    def full(self: Run, lines: list[dict[str, Any]]) -> int:
        if any(line.get("epoch") == 2 for line in lines):
            raise RunError("No space left on device")
        return append_metrics(self, lines)

    monkeypatch.setattr(Run, "append_metrics", full)
    with pytest.raises(RunError, match="No space left"):
        train(impatient, out=tmp_path / "run", save_every=0)
    monkeypatch.undo()
    assert_same(train(out=tmp_path / "run", resume=True), whole)


@pytest.mark.usefixtures("ticking")
def test_a_plan_that_was_corrected_is_told_after_a_stop_too(tmp_path: Path) -> None:
    happening = events(everything().changed({"train.budget": "3s"}), out=tmp_path / "run")
    corrected = next(event for event in happening if isinstance(event, Corrected))
    happening.close()
    record = train(out=tmp_path / "run", resume=True).record
    assert record.corrections and record.corrections[0] == (corrected.step, corrected.steps)
