"""The files of docs/many start the processes that they say they start, on two hosts: network namespaces of this one."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from conftest import FORMAT_1
from many import end, run, start
from vitral import Run

ROOT = Path(__file__).parents[1]
FILES = ROOT / "docs" / "many"
SCRIPTS = sorted(path.name for path in FILES.glob("*.sh"))


@dataclass(frozen=True)
class Host:
    """A network of its own on this machine."""

    name: str
    address: str
    card: str

    def typed(self, *command: object, **environment: object) -> list[str]:
        """A command as it is typed there."""
        here = ["ip", "netns", "exec", self.name, "unshare", "--uts", "bash", "-c", NAMED, self.name]
        words = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", **environment}
        return [*here, "env", *(f"{name}={value}" for name, value in words.items()), *map(str, command)]


NAMED = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'  # a host knows its name
PROGRAMS = Path(sys.executable).parent  # where torchrun is
NAMES = Path("/etc/netns")
PATIENCE = 600.0  # seconds, of a machine with much other work


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a cable between them."""
    one, other = (
        Host(f"vitral{os.getpid()}{side}", f"10.123.0.{side}", f"vt{os.getpid() % 10**6}{side}") for side in (1, 2)
    )
    try:
        if os.geteuid() or run(["ip", "netns", "add", one.name]).returncode:
            pytest.skip("only root can make network namespaces")
        setup = [f"ip netns add {other.name}", f"ip link add {one.card} type veth peer name {other.card}"]
        for host in (one, other):
            inside = f"ip -n {host.name}"
            setup += [
                f"ip link set {host.card} netns {host.name}",
                f"{inside} addr add {host.address}/24 dev {host.card}",
            ]
            setup += [f"{inside} link set {host.card} up", f"{inside} link set lo up"]
        for command in setup:
            subprocess.run(command.split(), check=True)
        names = "".join(f"{host.address} {host.name}\n" for host in (one, other))
        for host in (one, other):  # `ip netns exec` puts this in the place of /etc/hosts
            (NAMES / host.name).mkdir(parents=True)
            (NAMES / host.name / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        yield one, other
    finally:
        for host in (one, other):
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
            shutil.rmtree(NAMES / host.name, ignore_errors=True)


Way = Callable[
    [tuple[Host, Host], Path, list[str]], list[list[str]]
]  # hosts, a folder, what vitral is asked → commands


def machine(hosts: tuple[Host, Host], folder: Path, asked: list[str]) -> list[list[str]]:
    return [hosts[0].typed(FILES / "machine.sh", *asked, PROCESSES=2)]


def machines(hosts: tuple[Host, Host], folder: Path, asked: list[str]) -> list[list[str]]:
    return [host.typed(FILES / "machines.sh", *asked, FIRST=hosts[0].name, MACHINES=2, PROCESSES=1) for host in hosts]


def slurm(hosts: tuple[Host, Host], folder: Path, asked: list[str]) -> list[list[str]]:
    """With stand-ins for what SLURM has: the list of machines, and a task on each of them."""
    task = '"$@"'
    tasks = "".join(f"{shlex.join(host.typed())} {task} &\n" for host in hosts)
    programs = {"scontrol": f"echo {hosts[0].name}", "srun": f"shift\n{tasks}wait -n && wait -n"}
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{PROGRAMS}:{os.environ['PATH']}"
    job = {"SLURM_JOB_NODELIST": "some", "SLURM_JOB_NUM_NODES": 2, "SLURM_JOB_ID": 7, "SLURM_SUBMIT_DIR": FILES}
    words = [f"{name}={value}" for name, value in {**job, "PATH": path, "PROCESSES": 1}.items()]
    return [["env", *words, "bash", str(FILES / "slurm.sh"), *asked]]


def cloud(hosts: tuple[Host, Host], folder: Path, asked: list[str]) -> list[list[str]]:
    first = {"MASTER_ADDR": hosts[0].name, "MASTER_PORT": 29501, "WORLD_SIZE": 2, "PROCESSES": 1}
    return [host.typed(FILES / "cloud.sh", *asked, RANK=rank, **first) for rank, host in enumerate(hosts)]


def cloud_of_processes(hosts: tuple[Host, Host], folder: Path, asked: list[str]) -> list[list[str]]:
    """A launcher that starts each process itself."""
    first = {"MASTER_ADDR": hosts[0].name, "MASTER_PORT": 29502, "WORLD_SIZE": 2, "LOCAL_RANK": 0}
    return [host.typed("python", "-m", "vitral", *asked, RANK=rank, **first) for rank, host in enumerate(hosts)]


def trainjob(hosts: tuple[Host, Host], folder: Path, asked: list[str]) -> list[list[str]]:
    """What the containers run, with what Kubeflow Trainer sets in them."""
    command = yaml.safe_load((FILES / "trainjob.yaml").read_text())["spec"]["trainer"]["command"]
    set_by_trainer = {"PET_NNODES": 2, "PET_NPROC_PER_NODE": 1, "PET_MASTER_ADDR": hosts[0].name}
    return [
        host.typed(*command, *asked, **set_by_trainer, PET_MASTER_PORT=29503, PET_NODE_RANK=rank)
        for rank, host in enumerate(hosts)
    ]


WAYS: list[Way] = [machine, machines, slurm, cloud, cloud_of_processes, trainjob]


def together(commands: list[list[str]]) -> str:
    """What the commands print that are started at once; all must succeed."""
    started, printed = [start(command) for command in commands], ""
    try:
        for process in started:
            stdout, stderr = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, stderr
            printed += stdout
    finally:
        for process in started:
            end(process)
    return printed


@pytest.fixture(scope="module")
def asked(pictures: Path) -> list[str]:
    return ["predict", str(FORMAT_1), str(pictures), "--json"]


@pytest.fixture(scope="module")
def alone(asked: list[str]) -> Any:
    """What one process answers."""
    return json.loads(run([sys.executable, "-m", "vitral", *asked], timeout=PATIENCE).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_two_processes_predict_as_one_does(
    way: Way, hosts: tuple[Host, Host], asked: list[str], alone: Any, tmp_path: Path
) -> None:
    assert json.loads(together(way(hosts, tmp_path, asked))) == alone  # told once, and the same


@pytest.mark.slow
def test_two_hosts_train_one_run(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    asked = ["train", "digits", "train.epochs=2", "model.depth=1", "--out", str(tmp_path / "run"), "--resume"]
    together(machines(hosts, tmp_path, asked))
    trained = Run.load(tmp_path / "run")
    assert (trained.record.state, trained.record.choices.processes) == ("finished", 2)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_one(script: str) -> None:
    checked = run(["bash", "-n", str(FILES / script)])
    assert (checked.returncode, checked.stderr) == (0, "")
    assert os.access(FILES / script, os.X_OK)


def test_the_page_has_every_file_and_every_file_is_there() -> None:
    page = (ROOT / "docs" / "many.md").read_text()
    assert [path.name for path in FILES.iterdir() if f"(many/{path.name})" not in page] == []


def test_the_trainjob_is_one_for_kubeflow() -> None:
    """Its schema is in `pip install kubeflow-trainer-api`; what that does not know it would leave out."""
    models: Any = pytest.importorskip("kubeflow_trainer_api.models")
    job = yaml.safe_load((FILES / "trainjob.yaml").read_text())
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
