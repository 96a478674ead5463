"""How far long work is: one type, one way to drain it, one bar."""

from collections.abc import Generator

import pytest

from vitral.cli.terminal import LONG, ProgressBar
from vitral.progress import Progress, drain


def work() -> Generator[Progress, None, str]:
    yield Progress(0, LONG + 1, "packing", waiting=True)
    for done in (20, LONG, LONG + 1):
        yield Progress(done, LONG + 1, "packing")
    yield Progress(0, 3, "drawing [bold]")
    return "result"


def test_draining_gives_the_result_and_tells_every_step() -> None:
    steps: list[Progress] = []
    assert drain(work(), steps.append) == drain(work()) == "result"
    assert [step.done for step in steps] == [0, 20, LONG, LONG + 1, 0]


def test_a_log_gets_a_line_for_each_stage_that_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        assert drain(work(), bar) == "result"
        bar.print("A sentence.")
    output = capsys.readouterr()
    assert output.err.split("\n")[:2] == [
        f"waiting for another process: {LONG + 1:,} …",
        f"packing: {LONG + 1:,}, 20 of them done before …",
    ]
    assert output.err.count("\n") <= 4 and "drawing" not in output.err
    assert "A sentence." in output.out


def test_on_a_terminal_the_bar_is_on_stderr_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes anything for a terminal
    with ProgressBar() as bar:
        drain(work(), bar)
        bar.bar.refresh()
        bar.print("A sentence.")
    output = capsys.readouterr()
    assert "drawing [bold]" in output.err and "0/3" in output.err
    assert output.out.strip() == "A sentence."
