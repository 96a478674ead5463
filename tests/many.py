"""Several real processes, started by torchrun: what tests of them share."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def torchrun(*arguments: object, processes: int = 2, options: tuple[str, ...] = ()) -> list[str]:
    """The command that starts so many processes: of a module with `-m`, or of a script."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return [*launcher, f"--nproc-per-node={processes}", *options, *map(str, arguments)]


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have; a worker of torchrun has its own session."""
    children = [
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]


def end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started: none outlives its test."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def run(command: list[str], timeout: float = 300, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which comes with the timeout at the latest."""
    started = start(command, cwd)
    try:
        stdout, stderr = started.communicate(timeout=timeout)
    finally:
        end(started)
    return subprocess.CompletedProcess(command, started.returncode, stdout, stderr)


def start(command: list[str], cwd: Path | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
    )
