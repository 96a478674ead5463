"""How long `vitral --help` takes beside a Python that does nothing.     python benchmarks/start.py [rounds]

Medians; the two take turns, since machines are shared. Measured on two shared x86 cores,
Python 3.11: 14 ms and 57 ms.
"""

import subprocess
import sys
import time
from statistics import median

COMMANDS = {"python -c pass": ["-c", "pass"], "vitral --help": ["-m", "vitral", "--help"]}


def seconds(arguments: list[str]) -> float:
    started_at = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - started_at


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    took = [[seconds(arguments) for arguments in COMMANDS.values()] for _ in range(rounds)]
    medians = [median(column) for column in zip(*took, strict=True)]
    for name, middle in zip(COMMANDS, medians, strict=True):
        print(f"{name:16} {1000 * middle:6.0f} ms")
    print(f"{medians[1] / medians[0]:.1f} times as long")


if __name__ == "__main__":
    main()
