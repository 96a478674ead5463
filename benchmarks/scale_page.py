"""The tables and the figure of docs/scale.md, from what `scale.py` says.

    python benchmarks/scale_page.py --page docs/scale.md

Each table stands between two comments, `<!-- name -->` and `<!-- end -->`; what is between them is written anew.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from scale import BATCH, COUNTS, NAMES, SETS, Plan

from vitral.look.figures import figure, theme

WEEK = 7 * 24 * 3600.0
GIB = 2**30
SHARD = 1e9  # bytes of a file of pictures


def table(head: str, rows: Iterable[list[str]]) -> str:
    names = [name.strip() for name in head.split("|")]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}" if size > 0.1 * GIB else f"{size / GIB:.1g}" if size else "–"


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e9:.{1 if bytes_a_second < 1e10 else 0}f} GB/s"


def _time(seconds: float) -> str:
    units = ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
    unit, word = next((unit, word) for unit, word in units if seconds >= unit)
    return f"{seconds / unit:.3g} {word}"


def checked(measured: dict[str, Any]) -> str:
    return table(
        "model | parameters | way | foreseen | measured, quartiles | foreseen / measured",
        (
            [f"width {one['width']}, depth {one['depth']}", f"{one['parameters'] / 1e6:.1f} M", one["way"],
             f"{one['foreseen']:.3f} s",
             f"{one['measured']:.3f} s, {one['quartiles'][0]:.3f} to {one['quartiles'][1]:.3f}",
             f"{one['foreseen'] / one['measured']:.2f}"]
            for one in measured["checks"]
        ),
    )  # fmt: skip


def memory_table(known: dict[str, Any]) -> str:
    def rows() -> Iterator[list[str]]:
        for name in NAMES:
            for way, count in (("replicate", 64), *(("shard", count) for count in COUNTS)):
                plan = Plan(name, count, way)
                parts = plan.memory(known)
                again, muon = (
                    Plan(name, count, way, *more).memory(known) for more in (("adamw", True), ("muon", False))
                )
                yield [
                    name, f"{way}, any number" if way == "replicate" else f"{way}, {count}",
                    _gib(parts["weights"]), _gib(parts["gradients"]),
                    f"{_gib(parts['optimizer'])} ({_gib(muon['optimizer'])})", _gib(parts["blocks that are whole"]),
                    f"{plan.at_once:.0f}", _gib(parts["activations"]), _gib(again["activations"]),
                    f"{_gib(sum(parts.values()))} → {_gib(sum(again.values()))}",
                ]  # fmt: skip

    return table(
        "model | way | weights | gradients | AdamW (Muon) | whole blocks | pictures at once | activations | "
        "recomputed | in all",
        rows(),
    )


def step_table() -> str:
    def rows() -> Iterator[list[str]]:
        for name in NAMES:
            for count in COUNTS:
                ways = [Plan(name, count, way) for way in ("replicate", "shard")]
                yield [
                    name, str(count), f"{BATCH / count:.0f}", _time(ways[0].products),
                    " / ".join(_time(plan.update) for plan in ways),
                    " / ".join(_time(plan.wire) for plan in ways), " / ".join(_time(plan.step) for plan in ways),
                    " / ".join(f"{plan.efficiency:.0%}" for plan in ways), f"{ways[0].pictures_a_second:,.0f}",
                    *(f"{ways[0].days(some):.2g}" for some in SETS),
                ]  # fmt: skip

    sets = " | ".join(f"days of {some.name}" for some in SETS)
    return table(
        f"model | accelerators | pictures each | products | optimizer | wire | step | efficiency | pictures/s | {sets}",
        rows(),
    )


def data_table(decode: float) -> str:
    def rows() -> Iterator[list[str]]:
        for name in NAMES:
            for count in COUNTS:
                plan, some = Plan(name, count, "replicate"), SETS[0]
                rate = plan.pictures_a_second
                cores = rate * decode * some.size / count
                yield [
                    name, str(count), f"{rate:,.0f}", _rate(rate * some.size),
                    _rate(rate * 224 * 224 * 3), f"{cores:.1f}",
                    f"{min(1, plan.on.cores / cores):.0%}",
                ]  # fmt: skip

    return table(
        "model | accelerators | pictures/s | as JPEGs | as a pack | cores to decode, for one accelerator | "
        "speed with 16",
        rows(),
    )


def sets_table() -> str:
    return table(
        "set | pictures | as JPEGs | shards of 1 GB | for each of 8 / 64 / 512 processes | as a pack of 224 × 224",
        (
            [some.name, f"{some.count / 1e6:.1f} M", f"{some.count * some.size / 1e12:.1f} TB",
             f"{some.count * some.size / SHARD:,.0f}",
             " / ".join(f"{some.count * some.size / SHARD / count:,.0f}" for count in COUNTS),
             f"{some.count * 224 * 224 * 3 / 1e12:.1f} TB"]
            for some in SETS
        ),
    )  # fmt: skip


def failure_table() -> str:
    def rows() -> Iterator[list[str]]:
        for name in NAMES:
            for count in COUNTS:
                one, all_ = Plan(name, count, "replicate"), Plan(name, count, "shard")
                yield [
                    name, str(count), f"{WEEK / one.seconds_to_failure:.2g}", _time(one.seconds_to_failure),
                    f"{_gib(4 * one.shape.parameters + one.optimizer_bytes)} GiB",
                    f"{_time(one.pause)} / {_time(all_.pause)}",
                    f"{_time(one.interval)} / {_time(all_.interval)}",
                    f"{one.lost(one.interval):.2%} / {all_.lost(all_.interval):.2%}",
                    f"{one.lost(30):.2%}",
                ]  # fmt: skip

    return table(
        "model | accelerators | failures a week | time between two | checkpoint | pause | best interval | "
        "lost with it | lost with 30 s",
        rows(),
    )


def paper() -> str:
    """The paper's own training, by this count."""
    plan, jft = Plan("H/14", 8, "replicate"), SETS[1]
    operations = plan.shape.flops * jft.epochs * jft.count
    share = operations / (2_500 * 86_400 * 123e12 / 2)  # a chip of TPU v3 has two cores
    return (
        f"{operations / 1e18:,.0f} exaFLOPs by the same count, in 2,500 core-days of a TPU v3 with 61.5 TFLOP/s a "
        f"core:\n{share:.0%} of what these can."
    )


def draw(known: dict[str, Any], path: Path) -> None:
    colours = theme(dark=False)
    with figure(path, 10.2, 4.3, "", "") as canvas:
        left, right = canvas.subplots(1, 2, width_ratios=(1.05, 1))
        counts = [2**n for n in range(3, 13)]
        for name, colour in zip(NAMES, (colours.blue, colours.orange, colours.red), strict=True):
            for way, line in (("replicate", "-"), ("shard", "--")):
                values = [100 * Plan(name, count, way).efficiency for count in counts]
                left.plot(counts, values, line, color=colour, label=name if way == "replicate" else None)
        left.plot([], [], "-", color=colours.soft, label="replicate")
        left.plot([], [], "--", color=colours.soft, label="shard")
        left.set(
            title=f"Efficiency of a step of {BATCH:,} pictures (%)", xscale="log", xlabel="accelerators", ylim=(0, 102)
        )
        left.set_xticks(counts[::2], [f"{count:,}" for count in counts[::2]])
        left.minorticks_off()
        left.grid(axis="y")
        left.legend(frameon=False, loc="lower left", ncols=1)
        shades = dict(zip(
            ("weights", "gradients", "optimizer", "blocks that are whole", "activations"),
            (colours.blue, colours.green, colours.orange, colours.purple, colours.bar), strict=True,
        ))  # fmt: skip
        bars = [
            ("replicate", Plan("H/14", 64, "replicate")),
            ("… recomputed", Plan("H/14", 64, "replicate", recompute=True)),
            ("shard", Plan("H/14", 64, "shard")),
            ("… recomputed", Plan("H/14", 64, "shard", recompute=True)),
        ]
        for place, (_, plan) in enumerate(bars):
            start = 0.0
            for part, size in plan.memory(known).items():
                label = part if place == 0 else None
                right.barh(place, size / GIB, left=start / GIB, color=shades[part], label=label, height=0.62)
                start += size
            right.text(start / GIB + 0.8, place, f"{start / GIB:.1f}", va="center", color=colours.ink, fontsize=9)
        right.set_yticks(range(len(bars)), [name for name, _ in bars])
        right.invert_yaxis()
        right.set(title="Memory of H/14, 64 pictures at once (GiB)", xlim=(0, right.get_xlim()[1] * 1.12))
        right.tick_params(axis="y", length=0)
        right.legend(frameon=False, loc="lower right", fontsize=9)


def written(page: str, tables: dict[str, Callable[[], str]]) -> str:
    """The page, with each table between the two comments that have its name."""
    for name, make in tables.items():
        start, end = page.index(f"<!-- {name} -->\n"), page.index("<!-- end -->", page.index(f"<!-- {name} -->"))
        page = f"{page[:start]}<!-- {name} -->\n{make()}\n{page[end:]}"
    return page


def tables_of(folder: Path) -> dict[str, Callable[[], str]]:
    """By name, from what is measured in a folder."""
    measured, known = (json.loads((folder / f"{name}.json").read_text()) for name in ("measured", "memory"))
    return {
        "check": lambda: checked(measured), "memory": lambda: memory_table(known), "step": step_table,
        "data": lambda: data_table(measured["decode"]), "sets": sets_table, "failures": failure_table, "paper": paper,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, required=True)
    options = parser.parse_args()
    folder = options.page.with_suffix("")
    options.page.write_text(written(options.page.read_text(), tables_of(folder)))
    draw(json.loads((folder / "memory.json").read_text()), folder / "scale.png")


if __name__ == "__main__":
    main()
