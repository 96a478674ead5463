"""Write `report.html` and `verdict.png` of a verdict: did it help to learn without labels first?"""

from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vitral.errors import RunError, printable
from vitral.evaluation.compare import mean_sd
from vitral.evaluation.report.pretraining import OBJECTIVES, both_themes, write_pretraining_report
from vitral.evaluation.verdict import Verdict
from vitral.files import write_whole
from vitral.look.figures import Theme, figure, theme
from vitral.look.page import render
from vitral.run import REPORT, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = "verdict.png"
HEADS = {"helped": "good", "hurt": "bad", "luck": "doubtful", "few": "doubtful"}


def write_verdict_report(verdict: Verdict) -> Path:
    """Write the page, its figure, and a page of each run without labels; returns the path of the first."""
    for pretrained, _, _ in verdict.runs:
        write_pretraining_report(pretrained)
    first, finetuned, alone = verdict.runs[0]
    pictures = {"unlabelled": first.record.data.pictures, "labelled": alone.record.data.pictures}
    template = files(__package__).joinpath("verdict.html").read_text(encoding="utf-8")
    page = render(
        template,
        {
            "name": printable(verdict.folder.resolve().name),
            "head": HEADS[verdict.kind],
            "sentence": verdict.sentence,
            "basis": verdict.basis,
            "probe": verdict.probe_sentence,
            "advice": [(sentence, printable(command)) for sentence, command in verdict.advice],
            "pictures": pictures,
            "objective": OBJECTIVES.get(first.recipe.train.objective.kind, "It learnt without labels."),
            "drawn": both_themes(partial(_draw, verdict), least=70),
            "alt": f"{verdict.sentence} {verdict.probe_sentence}",
            "seeds": [_row(number, runs) for number, runs in enumerate(verdict.runs)],
            "recipes": [
                ("without labels", first.recipe.to_toml()),
                ("and then with labels", finetuned.recipe.to_toml()),
                ("with labels alone", alone.recipe.to_toml()),
            ],
        },
        number=lambda value: f"{value:,}",
    )
    try:
        with (verdict.folder / FIGURE).open("wb") as file:
            _draw(verdict, file, False)
        path = verdict.folder / REPORT
        write_whole(path, page)
    except OSError as error:
        raise RunError(f"{verdict.folder} cannot be written ({error.strerror}).") from None
    return path


def _row(number: int, runs: tuple[Run, Run, Run]) -> dict[str, Any]:
    names = ("pretrained", "with", "without")
    return {
        "number": number + 1,
        **{name: f"seed-{number}/{name}/{REPORT}" for name in names},
        **{f"{name}_took": _took(run) for name, run in zip(names, runs, strict=True)},
        **{f"{name}_right": _accuracy(run) for name, run in zip(names[1:], runs[1:], strict=True)},
    }


def _took(run: Run) -> str:
    """How long a run learnt."""
    seconds = run.record.seconds or 0.0
    time = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
    return f"{time}, {run.record.steps:,} steps"


def _accuracy(run: Run) -> str:
    return f"{(run.evaluation or {})['accuracy']:.1%}"


def _draw(verdict: Verdict, to: IO[bytes], dark: bool) -> None:
    """The ways, and below them the difference with its interval."""
    with figure(to, 7.4, 3.9, "", "", dark=dark) as canvas:
        above, below = canvas.subplots(2, 1, gridspec_kw={"height_ratios": [3.6, 1]})
        _draw_ways(above, verdict, theme(dark))
        _draw_difference(below, verdict, theme(dark))


def _draw_ways(axes: "Axes", verdict: Verdict, colours: Theme) -> None:
    """A row for each way: a dot for each seed, and their mean."""
    from matplotlib.ticker import PercentFormatter

    for row, way in enumerate(verdict.ways):
        colour = colours.blue if way.pretrained else colours.orange
        mean, most = mean_sd(way.accuracies)[0], max(way.accuracies)
        axes.plot([mean, mean], [row - 0.27, row + 0.27], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot(way.accuracies, [row] * len(way.accuracies), "o", color=colour, markersize=7, alpha=0.5, mew=0)
        weight = "bold" if row < 2 else "normal"  # the two that are compared
        place: Any = {"xytext": (10, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{mean:.1%}", (most, row), **place, color=colours.ink, fontweight=weight)
    axes.set_yticks(range(len(verdict.ways)), [way.name for way in verdict.ways])
    axes.set_ylim(len(verdict.ways) - 0.5, -0.5)
    axes.margins(x=0.16)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_title(f"Right of {verdict.pair.pictures:,} test pictures", fontsize=10)


def _draw_difference(axes: "Axes", verdict: Verdict, colours: Theme) -> None:
    """The interval of the difference, beside the line where there is none."""
    pair = verdict.pair
    low, middle, high = (100 * value for value in (pair.low, pair.difference, pair.high))
    colour = {"helped": colours.green, "hurt": colours.red}.get(verdict.kind, colours.grey)
    axes.axvline(0, color=colours.ink, linewidth=1)
    axes.plot([low, high], [0, 0], color=colour, linewidth=4, solid_capstyle="round")
    axes.plot([middle], [0], "o", color=colour, markersize=9)
    reach = 1.25 * max(abs(low), abs(high), 1.0)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    axes.set_title("What pre-training changes, in points", fontsize=10)
