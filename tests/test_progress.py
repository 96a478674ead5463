"""How far long work is: one type, one way to drain it, one bar."""

import time
from collections.abc import Generator

import pytest

from vitral.cli import terminal
from vitral.cli.terminal import ProgressBar
from vitral.progress import OutOfTime, Progress, drain, tap, until


def work() -> Generator[Progress, None, str]:
    yield Progress(0, 101, "packing", waiting=True)
    for done in (20, 100, 101):
        yield Progress(done, 101, "packing")
    yield Progress(0, 3, "drawing [bold]")
    return "result"


def test_draining_gives_the_result_and_tells_every_step() -> None:
    steps: list[Progress] = []
    assert drain(work(), steps.append) == drain(work()) == "result"
    assert [step.done for step in steps] == [0, 20, 100, 101, 0]


def test_who_overhears_work_can_end_it() -> None:
    """The listener further on hears the same, and the work is closed."""
    both: list[Progress] = []
    assert drain(tap(work(), both.append), both.append) == "result"
    assert both[::2] == both[1::2] and len(both) == 10
    closed = []

    def endless() -> Generator[Progress, None, None]:
        try:
            while True:
                yield Progress(1, 2, "counting")
        finally:
            closed.append(True)

    with pytest.raises(OutOfTime):
        drain(tap(endless(), until(time.perf_counter() - 1)))
    assert closed


def test_work_that_is_done_is_never_out_of_time() -> None:
    until(time.perf_counter() - 1)(Progress(2, 2, "counting"))


def test_a_log_hears_of_work_that_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the work is at one place all the time; what is quick or done says nothing."""
    with ProgressBar() as bar:
        drain(work(), bar)
    assert capsys.readouterr().err == "packing: 20 of 101 were done before\n"
    monkeypatch.setattr(terminal, "WAIT", 0.01)
    with ProgressBar() as bar:
        bar(Progress(20, 101, "packing"))
        assert bar.log and bar.log.timer
        bar.log.timer.join()
        bar(Progress(101, 101, "packing"))
        bar(Progress(0, 1, "drawing"))
        bar.log.timer.join()
        bar.print("A sentence.")
    output = capsys.readouterr()
    assert output.err.splitlines() == [
        "packing: 20 of 101 were done before",
        "packing: 20 of 101, 1 s so far",
        "drawing: 1 s so far",
    ]
    assert output.out == "A sentence.\n"


def test_a_log_that_was_stopped_says_nothing_until_the_work_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = terminal.ProgressLog()
    log(Progress(0, 1, "drawing"))
    log.stop()
    log._say()  # as by a timer that ran out just then
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(terminal, "WAIT", 0.01)
    log(Progress(0, 1, "drawing"))
    assert log.timer
    log.timer.join()
    log.stop()
    assert capsys.readouterr().err == "drawing: 1 s so far\n"


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


def test_what_is_tracked_comes_through_one_by_one() -> None:
    assert list(terminal.track(iter("abc"), 3, "looking")) == ["a", "b", "c"]
