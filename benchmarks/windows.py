"""What a ViT and a Swin cost as pictures grow: a forward pass of ViT-Ti/16 and of Swin-T.

    python benchmarks/windows.py --out docs/limits/windows [--sizes 224,448,896] [--rounds 5]

Writes OUT.json and OUT.png; `--draw` makes the figure anew from what OUT.json says, and measures nothing.

Operations are counted as `vitral shapes` does. Seconds are those that one thread has computed for one picture, with
random weights, in float32; every round goes through all models and sizes, and what is kept are medians over the rounds.
An exponent is the slope of a logarithm over that of the number of pixels: 1, where twice as many pixels cost twice as
much, and 2, where they cost four times as much. It is told between neighbouring sizes, for in a ViT it grows.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitral.look.figures import figure, theme
from vitral.model import build
from vitral.model.config import ModelConfig, ViTConfig
from vitral.model.shapes import shapes
from vitral.model.swin_config import SwinConfig

NAMES = ("ViT-Ti/16", "Swin-T")


def config_of(name: str, size: int) -> ModelConfig:
    if name == "Swin-T":
        return SwinConfig.named("T", image_size=size)
    return ViTConfig.named("Ti/16", image_size=size)


def measure(sizes: list[int], rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    cases = [(name, size) for name in NAMES for size in sizes]
    models = {case: build(config_of(*case)).eval() for case in cases}
    images = {size: torch.randn(1, 3, size, size) for size in sizes}
    took: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for number in range(-1, rounds):  # one more, to get warm
        for name, size in cases:
            with torch.inference_mode():
                started_at = time.thread_time()
                models[name, size](images[size])
                if number >= 0:
                    took[name, size].append(time.thread_time() - started_at)
    rows = [
        {
            "model": name,
            "image_size": size,
            "operations": sum(row.flops * row.times for row in shapes(models[name, size].config)),
            "seconds": float(np.median(took[name, size])),
            "quartiles": [float(one) for one in np.quantile(took[name, size], (0.25, 0.75))],
        }
        for name, size in cases
    ]
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, 1 thread"
    return {"rounds": rounds, "machine": machine, "rows": rows}


def exponents(rows: list[dict[str, Any]], what: str) -> list[float]:
    """From each size to the next."""
    pixels, values = (np.log([row[name] for row in rows]) for name in ("image_size", what))
    return [float(one) for one in np.diff(values) / (2 * np.diff(pixels))]


def draw(found: dict[str, Any], path: Path) -> None:
    colours = theme(dark=False)
    panels = {"operations": ("Operations (GFLOPs)", 1e9), "seconds": ("Seconds of one core", 1.0)}
    with figure(path, 9.6, 4.1, "", "") as canvas:
        for axes, (what, (title, unit)) in zip(canvas.subplots(1, 2), panels.items(), strict=True):
            for name, colour in zip(NAMES, (colours.red, colours.blue), strict=True):
                rows = [row for row in found["rows"] if row["model"] == name]
                sizes, values = [row["image_size"] for row in rows], [row[what] / unit for row in rows]
                axes.plot(sizes, values, "-o", color=colour, markersize=4, label=name)
                powers, up = exponents(rows, what), name == "Swin-T"
                for place, power in enumerate(powers):
                    middle = (sizes[place] * sizes[place + 1]) ** 0.5, (values[place] * values[place + 1]) ** 0.5
                    axes.annotate(
                        f"{power:.2f}", middle, (-6, 7) if up else (6, -13), textcoords="offset points",
                        ha="right" if up else "left", color=colour, fontsize=9,
                    )  # fmt: skip
            axes.set(title=title, xscale="log", yscale="log", xlabel="pixels a side")
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.grid(axis="y")
            axes.legend(frameon=False, loc="upper left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="without the ending: .json and .png are written")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default="224,448,896")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    to_json = asked.out.with_suffix(".json")
    if not asked.draw:
        to_json.write_text(json.dumps(measure(asked.sizes, asked.rounds), indent=1) + "\n")
    found = json.loads(to_json.read_text())
    draw(found, asked.out.with_suffix(".png"))
    for name in NAMES:
        rows = [row for row in found["rows"] if row["model"] == name]
        for row in rows:
            print(f"{name} {row['image_size']}: {row['operations'] / 1e9:.1f} GFLOPs, {row['seconds']:.3f} s")
        for what in ("operations", "seconds"):
            print(f"{name}, {what}: exponents {', '.join(f'{one:.2f}' for one in exponents(rows, what))}")


if __name__ == "__main__":
    main()
