"""A refactor that changes the numbers is seen."""

import json
from pathlib import Path

import pytest

from golden.make import losses


def test_the_first_twenty_losses_have_not_moved(tmp_path: Path) -> None:
    """Golden: 20 steps of the digits recipe in float64, seed 0. Made again by `make golden`."""
    expected = json.loads((Path(__file__).parent / "golden" / "digits.json").read_text())
    found = losses(tmp_path / "run")
    assert len(found) == len(expected) == 20
    assert found == pytest.approx(expected, rel=1e-6)
