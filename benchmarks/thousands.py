"""Many pictures in folders: how long check, packing and the first steps take, in how much memory.

    python benchmarks/thousands.py [--counts 25000,50000,100000] [--folder TEMP]

The pictures are those of CIFAR-10 (`vitral fetch cifar10`), under as many names as it takes: from the second time on
each is moved by a pixel or two, a little brighter or darker, and a JPEG in place of a PNG. Every command is a process
of its own, with one thread; what it prints are the seconds by the clock, those of the core, and the most memory that it
had: in all, and without files such as the pack, whose pages the system may take back. The folders are removed at the
end. Linux.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from vitral.data.config import Data
from vitral.data.decode import decode
from vitral.data.sources import Index, open_source

STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="25000,50000,100000")
    parser.add_argument("--folder", help="where the pictures are made: some 400 MB for 100,000")
    options = parser.parse_args()
    index = open_source(Data(source="cifar10"))
    print("| pictures | what | seconds | of one core | most memory, MB | without files |\n|---|---|---|---|---|---|")
    for count in map(int, options.counts.split(",")):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            made = make(index, Path(folder) / "made", count)
            packs = {**os.environ, "VITRAL_DATA": str(Path(folder) / "data"), "OMP_NUM_THREADS": "1"}
            train = ["train", made, f"train.budget={STEPS}steps", "--out", f"{folder}/run"]
            commands = {
                "list": ["-c", f"from vitral.data.sources import *; open_source(Data(source={made!r}))"],
                "check": ["-m", "vitral", "check", made],
                f"pack and {STEPS} steps": ["-m", "vitral", *train],
                f"{STEPS} steps again": ["-m", "vitral", *train[:-1], f"{folder}/again"],
            }
            for what, command in commands.items():
                print(f"| {count:,} | {what} | {measure(command, packs, folder)} |", flush=True)


def make(index: Index, folder: Path, count: int) -> str:
    """So many files, in a folder for each class."""
    for name in index.class_names:
        (folder / name).mkdir(parents=True)
    random, whole = np.random.default_rng(0), len(index.samples)
    for number in range(count):
        copy, place = divmod(number, whole)
        pixels = np.asarray(decode(index.storage.read(place)))
        path = folder / index.class_names[int(index.labels[place])] / f"{place:05}-{copy}"
        if copy == 0:
            Image.fromarray(pixels).save(path.with_suffix(".png"), compress_level=1)
        else:
            moved = np.roll(pixels, random.integers(-2, 3, 2), (0, 1)).astype(float) * random.uniform(0.8, 1.2)
            Image.fromarray(moved.clip(0, 255).astype(np.uint8)).save(path.with_suffix(".jpg"), quality=92)
    return str(folder)


def measure(command: list[str], environment: dict[str, str], folder: str) -> str:
    """Seconds, seconds of the core and the most memory of a process, in all and without files."""
    began, own = time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, *command], env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        status = Path(f"/proc/{process.pid}/status").read_text()
        own = max([own, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        time.sleep(0.1)
    _, code, usage = ended
    if os.waitstatus_to_exitcode(code) > 1:  # 1: vitral check has found something serious
        sys.exit(f"{command} failed.")
    seconds, of_core = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
    return f"{seconds:.0f} | {of_core:.0f} | {usage.ru_maxrss / 1024:.0f} | {own / 1024:.0f}"


if __name__ == "__main__":
    main()
