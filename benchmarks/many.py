"""Two processes of one thread each beside one process of two threads: pictures a second in training.

    python benchmarks/many.py [--rounds 12] [--steps 4]

Both do what `vitral train` does between two events, with batches that are prepared ahead: of the recipe `cifar10` (a
whitened stem, Muon) and of a plain ViT with AdamW on the same pictures, in float32. They take turns, since machines are
shared: who waits computes nothing. A ratio is of one round; what is printed is their median and quartiles. Two
processes wait for each other at every step, so other work on the cores falls on them twice: go before it, as by
`chrt -r 1`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitral.recipe import Recipe
from vitral.recipes import find_recipe

PLAIN = {"image_size": 32, "patch_size": 4, "width": 192, "depth": 6, "heads": 3, "channels": 0, "classes": 0}
WARM = 2  # rounds that are not counted


def recipes() -> dict[str, Recipe]:
    cifar10 = find_recipe("cifar10").changed({"train.precision": "float32", "train.compile": "no"})
    plain = cifar10.model_copy(update={"model": Recipe.read({"model": PLAIN}).model})
    return {"cifar10": cifar10, "plain": plain.changed({"train.optimizer": "adamw", "train.batch_size": 128})}


def work(recipe: Recipe, place: Path, steps: int) -> None:
    """Take steps whenever a file asks for it, and write how many seconds they took."""
    from vitral.processes import join
    from vitral.progress import drain
    from vitral.training.preparation import prepare

    processes = join()
    plan = drain(prepare(recipe, processes=processes))
    stream = plan.batches.starting_at(1)
    for number in range(10**9):
        while not (place / f"go-{number}").exists():
            if (place / "end").exists():
                return
            time.sleep(0.01)
        processes.clock()
        started_at = time.perf_counter()
        for _ in range(steps):
            step, batch = next(stream)
            plan.learner.gradients(step, batch, progress=1.0)
            plan.learner.update(step, share=1.0)
        if processes.first:
            (place / f"part-{number}").write_text(str(time.perf_counter() - started_at))
            (place / f"part-{number}").rename(place / f"done-{number}")


@contextmanager
def workers(command: list[str], place: Path, threads: int) -> Iterator[None]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    process = subprocess.Popen(command, env=environment)
    try:
        yield
    finally:
        (place / "end").touch()
        process.wait()


def turn(place: Path, number: int) -> float:
    (place / f"go-{number}").touch()
    while not (place / f"done-{number}").exists():
        time.sleep(0.01)
    return float((place / f"done-{number}").read_text())


def compare(name: str, recipe: Recipe, rounds: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one"), Path(folder, "two")
        one.mkdir()
        two.mkdir()
        Path(folder, "recipe.json").write_text(json.dumps(recipe.write()))
        script = [__file__, f"--steps={steps}", "--work", f"{folder}/recipe.json"]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        with (
            workers([sys.executable, *script, str(one)], one, threads=2),
            workers([sys.executable, *launcher, *script, str(two)], two, threads=1),
        ):
            pairs = []
            for number in range(WARM + rounds):
                order = (one, two) if number % 2 else (two, one)
                taken = {place: turn(place, number) for place in order}
                pairs.append((taken[one], taken[two]))
        pairs = pairs[WARM:]
    pictures = steps * recipe.train.batch_size
    low, median, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    rates = [statistics.median(pictures / seconds for seconds in some) for some in zip(*pairs, strict=True)]
    print(
        f"{name}: two processes do {median:.2f} times the pictures of one (quartiles {low:.2f} to {high:.2f}, n="
        f"{rounds}); medians {rates[1]:,.0f} and {rates[0]:,.0f} pictures/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--work", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(Recipe.read(json.loads(asked.work[0].read_text())), asked.work[1], asked.steps)
        return
    for name, recipe in recipes().items():
        compare(name, recipe, asked.rounds, asked.steps)


if __name__ == "__main__":
    main()
