"""The page on many machines says what its script computes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[ModuleType, ModuleType]]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import scale  # type: ignore[import-not-found, unused-ignore]
    import scale_page  # type: ignore[import-not-found, unused-ignore]

    yield scale, scale_page
    sys.path.remove(str(ROOT / "benchmarks"))


def test_the_tables_are_those_of_the_script(scripts: Any) -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert scripts[1].written(page, scripts[1].tables_of(ROOT / "docs" / "scale")) == page


def test_two_real_processes_take_what_was_foreseen(scripts: Any) -> None:
    scale, _ = scripts
    measured = json.loads((ROOT / "docs" / "scale" / "measured.json").read_text())
    here = scale.Here(**measured["here"])
    assert len(measured["checks"]) == 6
    for check in measured["checks"]:
        shape = scale.Shape.of(scale.small(check["width"], check["depth"]))
        foreseen = scale.step_here(shape, check["batch"], check["way"], here)
        assert foreseen == pytest.approx(check["foreseen"])
        assert 0.8 < foreseen / check["measured"] < 1.2


def test_no_interval_between_checkpoints_costs_less_than_the_best(scripts: Any) -> None:
    plan = scripts[0].Plan("H/14", 512, "replicate")
    assert plan.lost(plan.interval) < min(plan.lost(plan.interval * factor) for factor in (0.5, 0.9, 1.1, 2))


def test_nothing_is_faster_than_its_products(scripts: Any) -> None:
    scale, _ = scripts
    for name in scale.NAMES:
        for way in ("replicate", "shard"):
            efficiency = [scale.Plan(name, count, way).efficiency for count in (8, 64, 512, 4096)]
            assert 1 > efficiency[0] >= efficiency[1] >= efficiency[2] >= efficiency[3] > 0
