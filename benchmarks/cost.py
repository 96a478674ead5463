"""What a ViT costs as pictures grow: operations and seconds of attention, and of all else.

    python benchmarks/cost.py --out docs/limits/cost [--name Ti/16] [--sizes 64,96,…] [--rounds 7]

Writes OUT.json and OUT.png; `--draw` makes the figure anew from what OUT.json says, and measures nothing.

Operations are counted by `vitral shapes` on the meta device: a multiply and an add are two. Seconds are those that one
thread has computed for one picture (`time.thread_time`, which stands still while others have the core), with random
weights, all tokens to the end (`model.features`). Of every call of scaled_dot_product_attention the time is taken; the
rest is the whole less their sum. Every round goes through all sizes, so that a busy time of the machine falls on all
alike, and what is kept are medians over the rounds. An exponent is the slope of the logarithm of seconds over that of
tokens, fitted to the sizes from FITTED tokens on: below, calls of torch take longer than what they compute.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from vitral.look.figures import figure, theme
from vitral.model.config import ViTConfig
from vitral.model.shapes import shapes
from vitral.model.vit import ViT

SIZES = "64,96,128,160,224,320,448,640,896,1280"  # pixels a side
FITTED = 197  # tokens
ATTENTION = "blocks.*.attn"  # the step of `shapes` that is softmax(q kᵀ / √d) v; qkv and proj are steps of their own


class Clock(TorchFunctionMode):
    """Seconds of one thread within attention."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        started_at = time.thread_time()
        result = function(*args, **(kwargs or {}))
        self.seconds += time.thread_time() - started_at
        return result


def operations(config: ViTConfig) -> tuple[int, int]:
    """(attention, all else) for one picture."""
    rows = {row.name: row.flops * row.times for row in shapes(config)}
    attention = rows.pop(ATTENTION)
    return attention, sum(rows.values())


def seconds(model: ViT, images: torch.Tensor) -> tuple[float, float]:
    """(attention, all else) for one picture."""
    with torch.inference_mode(), Clock() as clock:
        started_at = time.thread_time()
        model.features(images)
        whole = time.thread_time() - started_at
    return clock.seconds, whole - clock.seconds


def measure(name: str, sizes: list[int], rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    models = [ViT(ViTConfig.named(name, image_size=size)).eval() for size in sizes]
    images = [torch.randn(1, 3, size, size) for size in sizes]
    took = np.empty((rounds, len(sizes), 2))
    for number in range(-1, rounds):  # one more, to get warm
        for place, size in enumerate(sizes):
            took[number, place] = seconds(models[place], images[place])
            print(f"\rround {number + 1} of {rounds}, {size} pixels  ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    counted = [operations(model.config) for model in models]
    rows = [
        {
            "image_size": size,
            "tokens": model.config.grid[0] * model.config.grid[1] + 1,
            "operations": {"attention": counts[0], "rest": counts[1]},
            "seconds": {"attention": float(median[0]), "rest": float(median[1])},
        }
        for size, model, counts, median in zip(sizes, models, counted, np.median(took, axis=0), strict=True)
    ]
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, 1 thread"
    return {"model": name, "width": models[0].config.width, "rounds": rounds, "machine": machine, "rows": rows}


def exponent(rows: list[dict[str, Any]], what: str, part: str) -> float:
    fitted = [row for row in rows if row["tokens"] >= FITTED]
    tokens, values = ([row["tokens"] for row in fitted], [row[what][part] for row in fitted])
    return float(np.polyfit(np.log(tokens), np.log(values), 1)[0])


def crossing(rows: list[dict[str, Any]], what: str) -> float | None:
    """The number of tokens from which attention costs more than all else, on straight lines between the sizes; None:
    not within them."""
    x = np.log([row["tokens"] for row in rows])
    more = np.log([row[what]["attention"] / row[what]["rest"] for row in rows])
    for place in np.flatnonzero((more[:-1] < 0) & (more[1:] >= 0)):
        return float(np.exp(np.interp(0, more[place : place + 2], x[place : place + 2])))
    return None


def draw(found: dict[str, Any], path: Path) -> None:
    colours, rows = theme(dark=False), found["rows"]
    tokens, sizes = [row["tokens"] for row in rows], [row["image_size"] for row in rows]
    panels = {"operations": ("Operations (GFLOPs)", 1e9), "seconds": ("Seconds of one core", 1.0)}
    with figure(path, 9.6, 4.1, "", "") as canvas:
        for axes, (what, (title, unit)) in zip(canvas.subplots(1, 2), panels.items(), strict=True):
            for part, colour, name in (("attention", colours.red, "attention"), ("rest", colours.blue, "all else")):
                values = [row[what][part] / unit for row in rows]
                label = f"{name}, exponent {exponent(rows, what, part):.2f}"
                axes.plot(tokens, values, "-o", color=colour, markersize=4, label=label)
            if (cross := crossing(rows, what)) is not None:
                axes.axvline(cross, color=colours.grey, linewidth=1, linestyle=":")
                style: Any = {"color": colours.soft, "fontsize": 9, "va": "bottom"}
                axes.text(
                    cross * 1.08, 0.02, f"equal at\n{cross:,.0f} tokens", transform=axes.get_xaxis_transform(), **style
                )
            axes.set(title=title, xscale="log", yscale="log", xlabel="tokens (pixels a side)")
            axes.set_xticks(
                tokens[::2], [f"{count:,}\n({size})" for count, size in zip(tokens, sizes, strict=True)][::2]
            )
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.grid(axis="y")
            axes.legend(frameon=False, loc="upper left")


def pixels(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="without the ending: .json and .png are written")
    parser.add_argument("--name", default="Ti/16")
    parser.add_argument("--sizes", type=pixels, default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    to_json = asked.out.with_suffix(".json")
    to_json.parent.mkdir(parents=True, exist_ok=True)
    if not asked.draw:
        to_json.write_text(json.dumps(measure(asked.name, asked.sizes, asked.rounds), indent=1) + "\n")
    found = json.loads(to_json.read_text())
    draw(found, asked.out.with_suffix(".png"))
    for what in ("operations", "seconds"):
        powers = ", ".join(f"{part} {exponent(found['rows'], what, part):.2f}" for part in ("attention", "rest"))
        cross = crossing(found["rows"], what)
        print(f"{what}: exponents {powers}; equal at {f'{cross:,.0f} tokens' if cross else 'none of these sizes'}")


if __name__ == "__main__":
    main()
