"""Kill a training many times at random moments, let it go on each time, and compare: `make kill N=100`.

The number of threads that prepare batches is 0, 1 and 2 in turn. A run that comes to its end is compared with one that
was never killed, and the next one begins, until there were N kills.
"""

import argparse
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # as in conftest.py

from test_resume import assert_same, command, everything
from vitral import Run, train

WITH_WORKERS = """
from vitral.cli import main
from vitral.data.batches import Batches

*others, _ = Batches.__init__.__defaults__
Batches.__init__.__defaults__ = (*others, {workers})
main()
"""


def starting(folder: Path, workers: int) -> list[str]:
    """The command that begins the training or goes on with it, and writes a checkpoint after every step."""
    python, _, _, *arguments = command(folder, "--save-every", "0")
    return [python, "-c", WITH_WORKERS.format(workers=workers), *arguments]


def killed(arguments: list[str], chance: random.Random, at_once: float = 0.2) -> str:
    """Start, kill at a random moment, and say when; or "" where it was faster and came to its end.

    With the chance `at_once` the moment may be anywhere from the start of Python on. Else it is after the run has
    begun: that is where something can be lost.
    """
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if chance.random() < at_once:
        pause, since = chance.uniform(0, 6), "the process started"
    else:
        pause, since = chance.uniform(0, 0.5), "the training began"
        for line in child.stdout:
            if line.startswith("epoch "):
                break
    try:
        child.wait(pause)
    except subprocess.TimeoutExpired:
        child.kill()
    code = child.wait()
    child.stdout.close()
    if code >= 0:
        assert code == 0, f"{' '.join(arguments)} ended with {code}"
        return ""
    return f"{pause:.2f} s after {since}"


def newest(folder: Path) -> str:
    """Of the checkpoints."""
    names = sorted(path.stem for path in (folder / "checkpoints").glob("step-*"))
    return names[-1] if names else "no checkpoint"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"{asked.kills} kills, seed {asked.seed}", flush=True)
    chance, began = random.Random(asked.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        whole = train(everything(), out=Path(place) / "whole")
        kills, runs = 0, 0
        while kills < asked.kills:
            runs += 1
            folder = Path(place) / f"run-{runs}"
            while kills < asked.kills and not (Run.is_run(folder) and Run.load(folder).record.state == "finished"):
                workers = kills % 3
                if when := killed(starting(folder, workers), chance):
                    kills += 1
                    print(f"run {runs}, kill {kills}: {workers} workers, {when}, {newest(folder)}", flush=True)
            assert_same(train(everything(), out=folder, resume=True), whole)
            print(f"run {runs} came to the same end as if it had never been killed", flush=True)
    seconds = time.perf_counter() - began
    print(f"{kills} kills, {runs} runs, all the same to the bit; {seconds:.0f} s, {seconds / kills:.1f} s a kill")


if __name__ == "__main__":
    main()
