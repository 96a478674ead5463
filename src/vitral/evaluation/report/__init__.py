"""Write `report.html`: all that is known about a run on one page, for a browser, for paper, for mail.

The page is one file: no network, no script, nothing beside it. `facts` gathers its text as plain values, `pictures`
its images, and report.html, a Jinja template that escapes all names, puts them in order.
"""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from vitral.evaluation.report.facts import facts
from vitral.evaluation.report.pictures import pictures
from vitral.files import write_whole
from vitral.look.page import render
from vitral.predictions import number_words
from vitral.progress import Tell, silent
from vitral.run import REPORT

if TYPE_CHECKING:
    from vitral.evaluation.evaluate import Evaluation


def write_report(evaluation: "Evaluation", tell: Tell = silent) -> Path:
    """Write the page beside evaluation.json; returns its path."""
    template = files(__package__).joinpath(REPORT).read_text(encoding="utf-8")
    page = render(
        template,
        {**facts(evaluation), "shown": pictures(evaluation, tell)},
        share=_share,
        number=_number,
        value=number_words,
    )
    path = evaluation.folder / REPORT
    with evaluation.run.writing():
        write_whole(path, page)
    return path


def _share(value: float) -> str:
    return f"{value:.1%}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
