"""Kill one of two processes that train together, or their launcher, many times, and compare: `make kill-many N=20`.

After a worker's end torchrun starts all of them again; after its own, the next command goes on. A run that comes to its
end is compared with one that was never killed, and the next one begins, until there were N kills: with the whole model
in each process, and with a share of it, in turn.
"""

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # as in conftest.py

from kill import newest
from many import descendants, end, start, torchrun
from test_parallel import NEVER, WAYS, write_training
from test_resume import assert_same
from vitral import Run

RESTARTS = 5


def killed(command: list[str], chance: random.Random) -> str:
    """Start, kill somebody at a random moment of the training, and say whom; or "" where it came to its end before."""
    launcher = start(command)
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if line.startswith("epoch "):
            break
    time.sleep(chance.uniform(0, 10))
    whom = chance.choice(["the launcher", "rank 0", "rank 1"])
    workers = sorted(descendants(launcher.pid))
    if launcher.poll() is not None or len(workers) < 2:
        return finish(launcher)
    with suppress(ProcessLookupError):  # it came to its end just now
        os.kill(launcher.pid if whom == "the launcher" else workers[int(whom[-1])], signal.SIGKILL)
    if whom == "the launcher":
        launcher.wait()  # its workers end by themselves: the next command waits for the lock of the first one
        return whom
    finish(launcher)
    return whom


def finish(launcher: subprocess.Popen[str]) -> str:
    """Wait until it has come to its end, which must be a good one."""
    try:
        _, stderr = launcher.communicate(timeout=600)
        assert launcher.returncode == 0, stderr
    finally:
        end(launcher)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"{asked.kills} kills, seed {asked.seed}", flush=True)
    chance, began = random.Random(asked.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        command = write_training(place)

        def begin(folder: Path, way: str) -> list[str]:
            return torchrun(*command(folder, *NEVER, way=way), options=(f"--max-restarts={RESTARTS}",))

        for way in WAYS:
            finish(start(begin(place / way, way)))
        kills, runs = 0, 0
        while kills < asked.kills:
            way, folder = WAYS[runs % len(WAYS)], place / f"run-{runs}"
            runs += 1
            while kills < asked.kills and not (Run.is_run(folder) and Run.load(folder).record.state == "finished"):
                if whom := killed(begin(folder, way), chance):
                    kills += 1
                    print(f"run {runs}, {way}, kill {kills}: {whom}, {newest(folder)}", flush=True)
            finish(start(begin(folder, way)))
            assert_same(Run.load(folder), Run.load(place / way))
            print(f"run {runs} came to the same end as if nobody had ever been killed", flush=True)
    seconds = time.perf_counter() - began
    print(f"{kills} kills, {runs} runs, all the same to the bit; {seconds:.0f} s, {seconds / kills:.1f} s a kill")


if __name__ == "__main__":
    main()
