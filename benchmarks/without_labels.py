"""Learning without labels, measured: which method, how often it collapses, and what it is good for afterwards.

    python benchmarks/without_labels.py [--most 5] [--only collapse/] [--work FOLDER]     goes on where it stopped
    python benchmarks/without_labels.py --table                                           what is known so far

A queue of trainings of one thread each, in the order of what they tell. Each leaves a line in without_labels.jsonl
beside this file, and a training whose line is there is not repeated: a later day goes on. Two may run at a time (start
this twice); a lock says who does what. Weights are kept in --work, where later trainings begin from them; they are made
again where they are gone.

    digits/METHOD/SEED     1,078 digits without labels, 200 steps of 64, then the labels of 109 of them, 60 steps; what
                           that is worth on all 359 validation pictures. *-linear: behind a stem that learns;
                           supervised: 260 steps with the labels alone
    collapse/METHOD/SEED   4,500 pictures of CIFAR-10 (and 500 to watch), batches of 32, as many steps as two minutes
                           of a core have: does the alarm ring?
    alarm/METHOD/SEED      the same, made to collapse: it should
    learn/METHOD/SEED      45,000 pictures of CIFAR-10 without labels, eight minutes of a core; then kNN and a linear
                           probe, which learn from these pictures with all labels, on the 5,000 validation pictures;
                           beside it a network as it is made, and one that learnt from the labels for as long
    test/METHOD/SEED       the same weights on the test pictures, at the very end: these figures choose nothing

Minutes are numbers of steps, fixed once on an AMD EPYC (Zen 5), torch 2.13.0, float32: what another program does at the
same time changes seconds and no figure. CIFAR-10 is then learnt from in bfloat16.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from vitral import train
from vitral.data.config import Data
from vitral.data.sources import Index, open_source
from vitral.errors import RunError
from vitral.evaluation.probe import probe
from vitral.evaluation.probe_results import ProbeResult
from vitral.progress import drain
from vitral.recipe import Recipe
from vitral.recipes.choose import choose
from vitral.recipes.pretraining import choose_pretraining
from vitral.recipes.verdict import Trial
from vitral.training.preparation import prepare
from vitral.version import __version__
from vitral.weights.own import Weights

LINES = Path(__file__).with_suffix(".jsonl")
METHODS = ("mae", "lejepa", "dino")
ALIKE = {"train.precision": "float32", "train.compile": "no", "train.device": "cpu"}
SHORT = {**ALIKE, "train.precision": "bfloat16"}  # CIFAR-10: a step takes 0.46 to 0.69 of its time
# Steps in two minutes of a core, of 32 pictures: 65, 269 and 326 ms each.
TWO_MINUTES = {"mae": 1_850, "lejepa": 446, "dino": 368}
# Steps in eight minutes of a core, of 128 pictures: 243, 1,336, about 1,600 and 317 ms each.
EIGHT_MINUTES = {"mae": 1_970, "lejepa": 360, "dino": 300, "supervised": 1_510}
COLLAPSING: dict[str, dict[str, Any]] = {
    "dino": {"train.objective.teacher_temperature": 0.5, "train.objective.centre_momentum": 1.0},
    "lejepa": {"train.objective.balance": 0.0},
}


@dataclass(frozen=True)
class Job:
    kind: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.method}/{self.seed}"


def queue() -> Iterator[Job]:
    """All that should be measured, what tells most first."""
    for seed in range(3):
        yield from (Job("digits", method, seed) for method in ("supervised", *METHODS, "mae-linear", "lejepa-linear"))
    for seed in range(20):
        yield from (Job("alarm", method, seed) for method in COLLAPSING if seed < 5)
        yield from (Job("collapse", method, seed) for method in reversed(METHODS))
        yield from (Job("learn", method, seed) for method in ("random", *METHODS, "supervised") if seed < 3)
    for seed in range(3):
        yield from (Job("test", method, seed) for method in ("random", *METHODS, "supervised"))


# The trainings


def pretraining(method: str, seed: int, steps: int, **settings: Any) -> Recipe:
    asked = {"train.objective": method, "train.seed": seed, "train.budget": f"{steps}steps", **SHORT, **settings}
    return choose_pretraining("cifar10", asked).recipe


def collapse(job: Job, work: Path, made_to: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train until the end, or until the alarm rings."""
    recipe = pretraining(job.method, job.seed, TWO_MINUTES[job.method], **{"train.batch_size": 32}, **(made_to or {}))
    epochs: list[dict[str, Any]] = []
    alarm = ""
    try:
        train(recipe, source=small(), out=anew(work / job.name), listeners=[lambda event: note(event, epochs)])
    except RunError as error:
        alarm = str(error)
    return {"alarm": alarm, "last": epochs[-1], "epochs": len(epochs)}


def learn(job: Job, work: Path) -> dict[str, Any]:
    """Train, and look at what the features are worth, on validation pictures."""
    epochs: list[dict[str, Any]] = []
    weights = weights_of(job, work, epochs)
    return {**figures(probe(weights, validating())), "last": epochs[-1] if epochs else {}}


def test(job: Job, work: Path) -> dict[str, Any]:
    """The same weights on the test pictures."""
    return figures(probe(weights_of(Job("learn", job.method, job.seed), work, []), Data(source="cifar10")))


def weights_of(job: Job, work: Path, epochs: list[dict[str, Any]]) -> Any:
    """The weights that a training leaves: trained now, unless they are there."""
    if job.method == "random":
        plan = drain(prepare(pretraining("mae", job.seed, 1)), lambda progress: None)
        return Weights(plan.learner.model.eval(), plan.preprocess, (), {})
    if job.method == "supervised":
        asked = {"train.seed": job.seed, "data.validation": 0.1, "train.baseline": False, **SHORT}
        recipe = choose("cifar10", {**asked, "train.budget": f"{EIGHT_MINUTES['supervised']}steps"}).recipe
    else:
        recipe = pretraining(job.method, job.seed, EIGHT_MINUTES[job.method])
    return train(recipe, out=work / job.name, resume=True, listeners=[lambda event: note(event, epochs)]).folder


def digits(job: Job, work: Path) -> dict[str, Any]:
    """Learn without labels, then from a tenth of them; with settings that are chosen by nothing measured here."""
    few = {"data.labelled": 0.1, "train.seed": job.seed, "train.baseline": False, **ALIKE}
    alone = choose("digits", {**few, "train.budget": "260steps"}).recipe
    epochs: list[dict[str, Any]] = []
    if job.method == "supervised":
        train(alone, source=few_digits(), out=anew(work / job.name), listeners=[lambda event: note(event, epochs)])
        return {"last": epochs[-1], "accuracy": epochs[-1]["validation_accuracy"]}
    method, _, stem = job.method.partition("-")
    asked = {"train.objective": method, "train.seed": job.seed, "train.budget": "200steps", "train.batch_size": 64}
    recipe = choose_pretraining("digits", {**asked, **ALIKE, **({"model.stem": stem} if stem else {})}).recipe
    run = train(recipe, out=anew(work / job.name), listeners=[lambda event: note(event, epochs)])
    after: list[dict[str, Any]] = []
    trial = Trial(recipe, few_digits(), alone, few_digits(), "260steps", 0, ())
    train(
        trial.finetuned(run),
        source=few_digits(),
        out=anew(work / f"{job.name}-with"),
        listeners=[lambda event: note(event, after)],
    )
    return {"last": epochs[-1], "accuracy": after[-1]["validation_accuracy"]}


DOES: dict[str, Callable[[Job, Path], dict[str, Any]]] = {
    "digits": digits,
    "collapse": collapse,
    "alarm": lambda job, work: collapse(job, work, COLLAPSING[job.method]),
    "learn": learn,
    "test": test,
}


# Pictures


@cache
def few_digits() -> Index:
    """The digits with 109 labels to learn from, and all validation pictures: here they only measure."""
    index, few = (open_source(Data(source="digits", labelled=share)) for share in (1.0, 0.1))
    return index.only(np.flatnonzero(np.isin(index.samples, few.samples) | (index.splits == "validation")))


def small() -> Index:
    """4,500 of the pictures to learn from, and 500 to validate: some thousand are what people have."""
    index = open_source(Data(source="cifar10", validation=0.1))
    rows = np.random.default_rng(0).permutation(len(index.samples))
    return index.only(
        np.sort(np.concatenate([some(index, rows, "train", 4_500), some(index, rows, "validation", 500)]))
    )


def some(index: Index, rows: Any, split: str, count: int) -> Any:
    return rows[index.splits[rows] == split][:count]


@cache
def validating() -> Index:
    """CIFAR-10 without its test pictures: the validation pictures take their place."""
    index = open_source(Data(source="cifar10", validation=0.1))
    index = index.only(np.flatnonzero(index.splits != "test"))
    return replace(index, splits=np.where(index.splits == "validation", "test", "train"))


def figures(result: Any) -> dict[str, Any]:
    assert isinstance(result, ProbeResult)
    return {name: round(getattr(result, name).accuracy.value, 5) for name in ("knn", "linear")}


def note(event: object, epochs: list[dict[str, Any]]) -> None:
    if type(event).__name__ == "Epoch":
        epochs.append({name: round(value, 5) for name, value in vars(event).items() if value is not None})


def anew(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


# The queue


def lines() -> dict[str, dict[str, Any]]:
    rows = LINES.read_text().splitlines() if LINES.exists() else []
    return {line["job"]: line for line in map(json.loads, rows)}


def work_off(most: int, only: str, work: Path) -> None:
    for job in queue():
        if most <= 0:
            return
        if not job.name.startswith(only) or job.name in lines():
            continue
        lock = FileLock(work / f"{job.name.replace('/', '-')}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue  # another process is at it
        with lock:
            began, computed = time.perf_counter(), time.process_time()
            result = DOES[job.kind](job, work)
            line = {
                "job": job.name,
                **result,
                "cpu_seconds": round(time.process_time() - computed, 1),
                "seconds": round(time.perf_counter() - began, 1),
                "vitral": __version__,
                "torch": torch.__version__,
                "date": time.strftime("%Y-%m-%d"),
            }
            with LINES.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
        most -= 1


def table() -> None:
    """What is known so far, in Markdown."""
    known = lines()
    jobs = [
        (Job(kind, method, int(seed)), known[f"{kind}/{method}/{seed}"])
        for kind, method, seed in map(lambda name: name.split("/"), known)
    ]
    columns = ("what", "method", "n", "alarms", "right", "kNN", "linear probe", "rank", "spread")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for kind, method in dict.fromkeys((job.kind, job.method) for job, _ in jobs):
        of = [line for job, line in jobs if (job.kind, job.method) == (kind, method)]
        alarms = sum(bool(line.get("alarm")) for line in of) if kind in ("collapse", "alarm") else "–"
        shares = [
            [line.get(name, line.get("last", {}).get(f"validation_{name}_accuracy")) for line in of]
            for name in ("accuracy", "knn", "linear")
        ]
        cells = [words(share, 100, " %") for share in shares]
        cells += [words([line.get("last", {}).get(f"validation_{name}") for line in of]) for name in ("rank", "spread")]
        print(f"| {kind} | {method} | {len(of)} | {alarms} | {' | '.join(cells)} |")


def words(values: list[float | None], times: float = 1, unit: str = "") -> str:
    there = [times * value for value in values if value is not None]
    if not there:
        return "–"
    spread = f" ± {stdev(there):.2f}" if len(there) > 1 else ""
    return f"{fmean(there):.2f}{spread}{unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10**9, help="so many trainings, and no more")
    parser.add_argument("--only", default="", help="those whose name begins so")
    parser.add_argument("--work", type=Path, default=Path("runs/without-labels"))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        return table()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    work_off(given.most, given.only, given.work)


if __name__ == "__main__":
    main()
