"""The memory of each process, with the whole model in it (replicate) and with a share of it (shard).

    python benchmarks/shared_model.py [--name B/16] [--processes 2] [--batch 8] [--optimizer adamw]

Real steps in float32, on random pictures: what the system has given a process (VmRSS) between two steps, and the most
that it had so far (VmHWM), in GiB. Python and torch, before there is a model, are told apart. The allocator is asked to
give back what is free (MALLOC_MMAP_THRESHOLD_), else its habits hide what is in use.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

STEPS = 3


def memory(kind: str) -> float:
    """VmRSS or VmHWM of this process, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 2**20


def work(way: str, name: str, batch: int, optimizer: str) -> None:
    """What each process does; the first one prints what all have."""
    import numpy as np
    import torch

    from vitral.data.batches import Batch
    from vitral.model import build
    from vitral.model.kinds import config_named
    from vitral.processes import join
    from vitral.recipe import Recipe
    from vitral.training.learner import Learner

    torch.set_num_threads(1)
    processes, config = join(), config_named(name)
    assert config is not None
    train = Recipe().changed({"train.batch_size": batch, "train.optimizer": optimizer}).train
    before = memory("VmRSS")
    model = build(config).train()
    learner = Learner(model, train, processes=processes, shards=way == "shard")
    count = batch // processes.world
    images, labels = torch.randn(count, config.channels, *config.height_width), torch.zeros(count, dtype=torch.int64)
    for step in range(1, STEPS + 1):
        learner.gradients(step, Batch(images, labels, np.arange(count), labels), progress=1.0)
        learner.update(step, share=1.0)
    each = processes.gather({"before": before, "between": memory("VmRSS"), "most": memory("VmHWM")})
    if processes.first:
        print(json.dumps(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="B/16")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--way", help="for the processes that this script starts")
    options = parser.parse_args()
    if options.way:
        return work(options.way, options.name, options.batch, options.optimizer)
    print(f"{options.name}, {options.batch} pictures, {options.optimizer}, {options.processes} processes; GiB in each")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    for way in ("replicate", "shard"):
        words = [__file__, *sys.argv[1:], "--way", way]
        command = [*launcher, f"--nproc-per-node={options.processes}", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        each = json.loads(done.stdout.splitlines()[-1])
        words = [" / ".join(f"{one[kind]:.2f}" for one in each) for kind in ("before", "between", "most")]
        print(f"{way}: before {words[0]}, between steps {words[1]}, at most {words[2]}", flush=True)


if __name__ == "__main__":
    main()
