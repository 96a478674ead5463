"""Pictures a second of `vitral predict FOLDER`: one batch after another, a batch on each core, and the exported graph.

    python benchmarks/predict.py vit_tiny_patch16_224 ~/.cache/vitral/imagenette-mini/val
    python benchmarks/predict.py runs/cifar10 pictures --model cifar10.onnx

`one after another` is what was there before: 64 pictures are decoded, then the model works on them with all cores. The
ways take turns on the same pictures; what is compared is the ratio in each round, as others may use the machine.
Decoding is part of all of them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitral import Classifier
from vitral.data.sources.folder import picture_files


def one_after_another(classifier: Classifier, files: list[Path]) -> None:
    for start in range(0, len(files), 64):
        classifier.inference.answers(
            np.stack([classifier.preprocess.resized(path) for path in files[start : start + 64]])
        )


def on_each_core(classifier: Classifier, files: list[Path]) -> None:
    for _ in classifier.each(files):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", help="the same as an exported file")
    parser.add_argument("--pictures", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    files = picture_files(given.folder)
    files = [files[place] for place in np.linspace(0, len(files) - 1, given.pictures).astype(int)]
    run = Classifier.load(given.run)
    ways: dict[str, Callable[[], None]] = {
        "one after another": lambda: one_after_another(run, files),
        "a batch on each core": lambda: on_each_core(run, files),
    }
    if given.model:
        graph = Classifier.load(given.model)
        ways["the graph, one after another"] = lambda: one_after_another(graph, files)
        ways["the graph, a batch on each core"] = lambda: on_each_core(graph, files)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(given.rounds + 1):
        for way, ask in ways.items():
            started_at = time.perf_counter()
            ask()
            if number:  # the first round sets things up
                seconds[way].append(time.perf_counter() - started_at)
    first = seconds["one after another"]
    for way, each in seconds.items():
        speed = len(files) / statistics.median(each)
        ratios = [one / two for one, two in zip(first, each, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{way:32} {speed:7.1f} pictures/s   × {spread}")


if __name__ == "__main__":
    main()
