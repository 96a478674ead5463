"""Files that are damaged at random are read, or refused with a sentence: tests/fuzz.py says how."""

import pytest

from fuzz import SECONDS, TARGETS, damaged, fuzz


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_damaged_files_are_read_or_refused(target: str) -> None:
    tally = fuzz(target, 8)
    assert tally.failures == [] and tally.read + tally.refused == 8 and tally.slowest < SECONDS


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", TARGETS)
def test_two_hundred_damaged_files_are_read_or_refused(target: str) -> None:
    tally = fuzz(target, 200, first=1_000)
    assert tally.failures == [] and tally.read + tally.refused == 200
    assert tally.refused or target == "request"  # the damage is real


def test_a_case_is_the_same_each_time() -> None:
    for target in TARGETS.values():
        assert damaged(target, 7) == damaged(target, 7) != target.files()
