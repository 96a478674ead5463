"""Packing beside the plain way, and a folder of a million.     python benchmarks/data.py [packing|index] [repeats]

The plain way is what most tutorials do: Pillow in the workers of a DataLoader, every epoch anew. Both sides do the same
work on the same files: decode, RGB, the centred square scaled by the bicubic filter, (pixel / 255 − mean) / std.
Runs are interleaved and their ratio is told, because these machines are shared.
"""

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitral import Preprocess
from vitral.data.batches import in_order
from vitral.data.config import Data
from vitral.data.pack import Pack, pack
from vitral.data.sources import open_source

BATCH = 64


class Plain(Dataset[Tensor]):
    """A picture is decoded whenever it is asked for."""

    def __init__(self, files: list[Path], size: int) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Tensor:
        with Image.open(self.files[number]) as image:
            colour = image.convert("RGB")
        short = min(colour.size)
        left, top = (colour.width - short) / 2, (colour.height - short) / 2
        box = (left, top, left + short, top + short)
        small = colour.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box)
        pixels = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)
        return (pixels.float() / 255 - 0.5) / 0.5


def plain_epoch(files: list[Path], size: int) -> float:
    began = time.perf_counter()
    for _ in DataLoader(Plain(files, size), batch_size=BATCH, num_workers=os.cpu_count() or 1):
        pass
    return time.perf_counter() - began


def our_pack(folder: Path, preprocess: Preprocess) -> tuple[float, Pack]:
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        made = pack(open_source(Data(source=str(folder))), preprocess, Path(directory))
        return time.perf_counter() - began, made


def our_epoch(made: Pack, preprocess: Preprocess) -> float:
    began = time.perf_counter()
    for split in ("train", "validation", "test"):
        for _ in in_order(made, made.of(split), preprocess, BATCH):
            pass
    return time.perf_counter() - began


def photographs(folder: Path, count: int, make: Callable[[Image.Image], Image.Image]) -> None:
    """Parts of scikit-learn's two photographs, each another one."""
    random = np.random.default_rng(0)
    whole = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    for number in range(count):
        left, top = int(random.integers(0, 240)), int(random.integers(0, 120))
        part = whole[number % 2].crop((left, top, left + 400, top + 300))
        path = folder / ("china", "flower")[number % 2] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        make(part).save(path, quality=90)


def packing(repeats: int) -> None:
    cases: list[tuple[str, int, int, Callable[[Image.Image], Image.Image]]] = [
        ("2,000-px JPEGs → 224", 48, 224, lambda part: part.resize((2000, 1500), Image.Resampling.BICUBIC)),
        ("256-px JPEGs → 64", 1200, 64, lambda part: part.resize((341, 256), Image.Resampling.BICUBIC)),
    ]
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {repeats} interleaved runs"
    )
    for name, count, size, make in cases:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            photographs(folder, count, make)
            files = sorted(folder.rglob("*.jpg"))
            for jpeg in ("scaled", "full"):
                compare(f"{name}, {jpeg} decoding", folder, files, size, jpeg, repeats)


def compare(name: str, folder: Path, files: list[Path], size: int, jpeg: Any, repeats: int) -> None:
    preprocess = Preprocess(image_size=(size, size), channels=3, jpeg=jpeg, mean=(0.5,) * 3, std=(0.5,) * 3)
    plain, packed, after = [], [], []
    for _ in range(repeats):
        plain.append(plain_epoch(files, size))
        seconds, made = our_pack(folder, preprocess)
        packed.append(seconds)
        after.append(our_epoch(made, preprocess))
    print(
        f"{name:36} plain {len(files) / statistics.median(plain):7.0f} img/s   "
        f"packing {_ratio(plain, packed)} times as fast   later epochs {_ratio(plain, after)}"
    )


def _ratio(plain: list[float], ours: list[float]) -> str:
    ratios = sorted(one / other for one, other in zip(plain, ours, strict=True))
    return f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"


def index(_: int) -> None:
    """Few files, many names: a folder of links, and a table."""
    seconds: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as place:
        for count in (100_000, 1_000_000):
            folder = Path(place) / str(count)
            _many(folder, count)
            began = time.perf_counter()
            found = open_source(Data(source=str(folder)))
            seconds[count] = time.perf_counter() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(f"folder of {len(found.samples):,}: {seconds[count]:.1f} s, at most {peak:.2f} GiB in all")
            del found
        table = Path(place) / "table.csv"
        with table.open("w") as file:
            file.write("path,label\n")
            for number in range(1_000_000):
                file.write(f"1000000/class-{number % 100:02}/{number:07}.png,class-{number % 100:02}\n")
        began = time.perf_counter()
        found = open_source(Data(source=str(table)))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"table of {len(found.samples):,}: {time.perf_counter() - began:.1f} s, at most {peak:.2f} GiB in all")
    small, large = seconds.values()
    print(f"exponent {np.log10(large / small):.2f} (1 is in proportion)")


def _many(folder: Path, count: int) -> None:
    """Hard links: a name each, and a file for each 10,000 of them."""
    for label in range(100):
        (folder / f"class-{label:02}").mkdir(parents=True)
    pixels: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    for number in range(count):
        path = folder / f"class-{number % 100:02}" / f"{number:07}.png"
        if number % 10_000 == 0:
            Image.fromarray(pixels).save(path)
            original = path
        else:
            os.link(original, path)


if __name__ == "__main__":
    what, repeats = (sys.argv[1:] + ["packing"])[0], int((sys.argv[2:] + ["5"])[0])
    {"packing": packing, "index": index}[what](repeats)
