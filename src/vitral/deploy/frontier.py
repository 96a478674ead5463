"""The candidates of `vitral export --fastest` as a picture: how fast each is, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitral.deploy.fastest import BATCHES, Candidate, Fastest
from vitral.look.figures import Theme, figure, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SPLIT = {"train": "training", "validation": "validation", "test": "test", "given": "given"}  # in words


def draw_frontier(fastest: Fastest, to: Path) -> None:
    """A row for each, the fastest on top. Filled dots are the frontier: none is faster and costs less."""
    rows, colours = fastest.tried, theme(dark=False)
    chosen_on, test = fastest.eager.chosen_on, fastest.eager.test
    assert chosen_on is not None and test is not None
    title = "What is fastest here, and what it costs"
    subtitle = (
        f"Filled: none is faster and costs less on {test.pictures:,} test pictures. Grey: on {chosen_on.pictures:,} "
        f"{SPLIT[fastest.chosen_on]} pictures it costs more than {fastest.loss:g} points, with its standard error."
    )
    with figure(to, 9, 1.9 + 0.42 * len(rows), title, subtitle) as canvas:
        speed, cost = canvas.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        for place, one in enumerate(rows):
            _row(speed, cost, len(rows) - place, one, fastest, colours)
        speed.set_yticks(range(len(rows), 0, -1), [one.way.name for one in rows])
        for label, one in zip(speed.get_yticklabels(), rows, strict=True):
            label.set_fontweight("bold" if one == fastest.best else "normal")
        speed.tick_params(axis="y", length=0)
        speed.set(
            xlabel=f"pictures a second, {BATCHES[-1]} at once (○ {BATCHES[0]} at once)", ylim=(0.4, len(rows) + 0.6)
        )
        speed.set_xlim(left=0, right=1.3 * max(max(rates) for one in rows for rates in one.rates.values()))
        speed.grid(axis="x")
        cost.axvline(0, color=colours.ink, linewidth=1)
        cost.axvline(fastest.loss, color=colours.red, linewidth=1.5, linestyle=":")
        cost.set(xlabel=f"points that it costs (dotted: {fastest.loss:g})")
        cost.tick_params(axis="y", length=0)
        cost.grid(axis="x")


def _row(speed: "Axes", cost: "Axes", height: int, one: Candidate, fastest: Fastest, colours: Theme) -> None:
    allowed = one.chosen_on is not None and one.chosen_on.surely_within(fastest.loss)
    colour = (colours.orange if one == fastest.best else colours.blue) if allowed else colours.grey
    face = colour if one in fastest.frontier else colours.ground
    rates, last = sorted(one.rates[BATCHES[-1]]), BATCHES[-1]
    speed.plot([0, one.rate(last)], [height] * 2, color=colours.grid, linewidth=5, solid_capstyle="butt", zorder=1)
    speed.plot([rates[0], rates[-1]], [height] * 2, color=colour, linewidth=1.5, zorder=2)
    speed.plot(one.rate(BATCHES[0]), height, "o", color=colour, markerfacecolor=colours.ground, markersize=4, zorder=3)
    speed.plot(one.rate(last), height, "o", color=colour, markerfacecolor=face, markersize=9, zorder=4)
    times = one.times(fastest.eager, last)[0]
    speed.annotate(
        f"{one.rate(last):,.0f}  ({times:.1f}×)",
        (max(rates[-1], one.rate(BATCHES[0])), height),
        xytext=(9, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )
    if one.test:
        low, high = one.test.interval
        cost.plot([low, high], [height] * 2, color=colour, linewidth=1.5, zorder=2)
        cost.plot(one.test.points, height, "o", color=colour, markerfacecolor=face, markersize=9, zorder=4)
