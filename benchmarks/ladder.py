"""The most accuracy for a minute: each candidate's gain over today's recipe `cifar10` at equal time.

    python benchmarks/ladder.py [--most 5] [--only 2m/] [--work FOLDER] [--while FILE]   goes on where it stopped
    python benchmarks/ladder.py --plan                                            what is left, and how long it takes
    python benchmarks/ladder.py --table                                           the ladder so far, in Markdown

A queue of trainings of one thread each. Each leaves a line in ladder.jsonl beside this file, and a training whose line
is there is not repeated. Two may run at a time (start this twice); a lock says who does what.

    ratio/CANDIDATE        how long its steps take, as a share of the baseline's: one of each in turn, processor time,
                           at ten places of the schedule (patches rise from half to all), median of several rounds
    2m/CANDIDATE/SEED      as many steps as the baseline does in 2 minutes of two cores, 800, divided by that share: the
    10m/…, 30m/…           same processor time. 45,000 pictures of CIFAR-10 to learn from; accuracy and loss are of the
                           last (averaged) weights on the other 5,000 of train, without test-time augmentation
    test/RUNG/CANDIDATE/SEED   at the very end: all 50,000 to learn from, and the test pictures, which choose nothing

Candidates: ladder_candidates.py. Numbers are bfloat16 where the processor multiplies them itself, else float32: each
line says which, and a table is of one of them.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any

import torch
from filelock import FileLock, Timeout
from ladder_candidates import CANDIDATES, FINALISTS, LONGER

from vitral.training.folds import train_steps
from vitral.training.preparation import Plan, prepared
from vitral.training.speed import FASTER, bfloat16_speed
from vitral.version import __version__

LINES = Path(__file__).with_suffix(".jsonl")
RUNGS = {"2m": 800, "10m": 4_000, "30m": 12_000}  # steps of the baseline
SEEDS = {"2m": 3, "10m": 3, "30m": 2, "test": 5}
PLACES = [(n + 0.5) / 10 for n in range(10)]  # of the schedule, where steps are timed
ROUNDS = 5


@dataclass(frozen=True)
class Job:
    kind: str  # ratio, a rung, or test/ and a rung
    candidate: str
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.candidate}" + ("" if self.kind == "ratio" else f"/{self.seed}")

    @property
    def rung(self) -> str:
        return self.kind.removeprefix("test/")


def queue() -> Iterator[Job]:
    """All that should be measured, what tells most first."""
    yield from (Job("2m", "baseline", seed) for seed in range(SEEDS["2m"]))
    for seed in range(SEEDS["2m"]):
        for name in CANDIDATES:
            if seed == 0 and name != "baseline":
                yield Job("ratio", name)
            yield Job("2m", name, seed)
    for rung, names in LONGER.items():
        yield from (Job(rung, name, seed) for seed in range(SEEDS[rung]) for name in names)
    for rung in RUNGS:
        yield from (Job(f"test/{rung}", name, seed) for name in FINALISTS for seed in range(SEEDS["test"]))


# The trainings


def planned(candidate: str, seed: int = 0, validation: float = 0.1) -> Plan:
    """A candidate, ready to train in one thread, which also prepares the pictures."""
    asked = {"train.seed": seed, "data.validation": validation, "train.device": "cpu", "train.compile": "no"}
    plan = prepared(CANDIDATES[candidate].recipe(**asked))
    plan.learner.set_precision(precision(), compiled=False)
    if make := CANDIDATES[candidate].optimizers:
        plan.learner.optimizers = make(plan.learner)
        plan.learner.optimizers.set_precision(precision())
    return replace(plan, batches=replace(plan.batches, workers=0))


def precision() -> str:
    return "bfloat16" if bfloat16_speed(torch.device("cpu")) > FASTER else "float32"


def measure_ratio(candidate: str) -> dict[str, Any]:
    """How long its steps take, as a share of the baseline's, over the whole schedule."""
    clocks = [StepClock(planned(name)) for name in ("baseline", candidate)]
    rounds = []
    for number in range(ROUNDS + 1):
        seconds = [0.0, 0.0]
        for turn, place in enumerate(PLACES, start=number):
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds[which] += clocks[which].step(place)
        rounds.append(seconds)
    del rounds[0]  # the first step of each shape also sets things up
    ratios = [theirs / base for base, theirs in rounds]
    low, _, high = quantiles(ratios, n=4)
    return {
        "ratio": round(median(ratios), 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "rounds": ROUNDS,
        "baseline_step": round(median(base for base, _ in rounds) / len(PLACES), 5),
    }


class StepClock:
    """Times steps of a candidate, by processor time."""

    def __init__(self, plan: Plan) -> None:
        self.learner, self.batches = plan.learner, plan.batches.starting_at(1)

    def step(self, place: float) -> float:
        """Seconds of a step at this place of the schedule."""
        began = time.process_time()
        step, batch = next(self.batches)
        self.learner.gradients(step, batch, place)
        self.learner.update(step, 1 - place)
        return time.process_time() - began


def learn(job: Job, ratio: float) -> dict[str, Any]:
    """Train for as long as the baseline, and measure the last weights."""
    tests = job.kind.startswith("test/")
    plan, steps = planned(job.candidate, job.seed, validation=0.0 if tests else 0.1), round(RUNGS[job.rung] / ratio)
    began = time.process_time()
    for _ in train_steps(plan, steps):
        pass
    seconds = time.process_time() - began
    figures = plan.measure_test() if tests else plan.validate()
    return {
        "steps": steps,
        "ratio": ratio,
        "core_seconds": round(seconds, 1),
        "accuracy": round(figures["accuracy"], 5),
        "loss": round(figures["loss"], 5),
    }


# The queue


def lines() -> dict[str, dict[str, Any]]:
    rows = LINES.read_text().splitlines() if LINES.exists() else []
    return {line["job"]: line for line in map(json.loads, rows) if line["precision"] == precision()}


def ratio_of(candidate: str, known: dict[str, dict[str, Any]]) -> float | None:
    """The ratio that was fixed once; None: it has not been measured."""
    line = {"ratio": 1.0} if candidate == "baseline" else known.get(f"ratio/{candidate}")
    return line["ratio"] if line else None


def work_off(most: int, only: str, work: Path, while_there: Path | None) -> None:
    asked = [job for job in queue() if job.name.startswith(only)]
    timed = {Job("ratio", job.candidate) for job in asked}  # what they need first
    jobs = [job for job in queue() if job in asked or job in timed]
    while most > 0 and (while_there is None or while_there.exists()):
        if not any(do(job, work) for job in jobs):
            return
        most -= 1


def do(job: Job, work: Path) -> bool:
    """Do it, unless it is done, another process is at it, or its ratio is not known yet."""
    if job.name in lines() or (job.kind != "ratio" and ratio_of(job.candidate, lines()) is None):
        return False
    try:
        lock = FileLock(work / f"{job.name.replace('/', '-')}.lock").acquire(timeout=0)
    except Timeout:
        return False
    with lock:
        if job.name in lines():  # just now
            return False
        ratio = ratio_of(job.candidate, lines())
        result = measure_ratio(job.candidate) if ratio is None else learn(job, ratio)
        about = {"precision": precision(), "vitral": __version__, "torch": torch.__version__}
        line = {"job": job.name, **result, **about, "load": round(os.getloadavg()[0], 1), "date": time.strftime("%F")}
        with LINES.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
    return True


# What is known


def table() -> None:
    """The ladder so far: for each rung its candidates, the best first."""
    known = lines()
    for kind in (*RUNGS, *(f"test/{rung}" for rung in RUNGS)):
        rows = {name: seeds_of(kind, name, known) for name in CANDIDATES}
        base = {seed: 100 * line["accuracy"] for seed, line in rows["baseline"].items()}
        if not base:
            continue
        print(f"\n{kind}\n\n| candidate | steps | n | accuracy, % | loss | gain, points |\n|---|---|---|---|---|---|")
        for name, line in sorted(((name, of) for name, of in rows.items() if of), key=lambda row: -mean(row[1])):
            print(row(name, line, base))


def seeds_of(kind: str, candidate: str, known: dict[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    every = {seed: known.get(Job(kind, candidate, seed).name) for seed in range(max(SEEDS.values()))}
    return {seed: line for seed, line in every.items() if line}


def mean(seeds: dict[int, dict[str, Any]], figure: str = "accuracy") -> float:
    return fmean(line[figure] for line in seeds.values())


def row(name: str, seeds: dict[int, dict[str, Any]], base: dict[int, float]) -> str:
    accuracies = [100 * line["accuracy"] for line in seeds.values()]
    gains = [100 * line["accuracy"] - base[seed] for seed, line in seeds.items() if seed in base]
    error = f" ± {stdev(gains) / len(gains) ** 0.5:.2f}" if len(gains) > 1 else ""
    gain = "" if name == "baseline" or not gains else f"{fmean(gains):+.2f}{error}"
    spread = f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    steps = next(iter(seeds.values()))["steps"]
    cells = (name, f"{steps:,}", len(seeds), f"{fmean(accuracies):.2f}{spread}", f"{mean(seeds, 'loss'):.3f}", gain)
    return f"| {' | '.join(map(str, cells))} |"


def plan() -> None:
    """What is left, and how many minutes of a core it takes: any candidate's training takes as long as the
    baseline's."""
    known = lines()
    measured = [line["baseline_step"] for line in known.values() if "baseline_step" in line]
    step = median(measured) if measured else 0.2
    print(f"A step of the baseline takes {1000 * step:.0f} ms of a core ({len(measured)} measurements).")
    for kind in ("ratio", *RUNGS, *(f"test/{rung}" for rung in RUNGS)):
        jobs = [job for job in dict.fromkeys(queue()) if job.kind == kind and job.name not in known]
        steps = 2.2 * (ROUNDS + 1) * len(PLACES) if kind == "ratio" else RUNGS[jobs[0].rung] + 40 if jobs else 0
        print(f"{kind:10} {len(jobs):4} left, {len(jobs) * steps * step / 60:7.0f} minutes of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10**9, help="so many jobs, and no more")
    parser.add_argument("--only", default="", help="those whose name begins so, and the ratios that they need")
    parser.add_argument("--work", type=Path, default=Path("runs/ladder"), help="where locks are")
    parser.add_argument("--while", dest="while_there", type=Path, help="begin no other job when this file is gone")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plan", action="store_true")
    given = parser.parse_args()
    if given.table or given.plan:
        return table() if given.table else plan()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    work_off(given.most, given.only, given.work, given.while_there)


if __name__ == "__main__":
    main()
