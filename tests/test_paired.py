"""Is A really better than B? The interval is that of scipy's bootstrap, and it holds the truth as often as it says."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from vitral.evaluation.paired import compare_paired


def test_the_interval_is_that_of_scipys_bootstrap() -> None:
    random = np.random.default_rng(0)
    right, other = (random.random(300) < 0.7).astype(float), (random.random(300) < 0.8).astype(float)
    found = compare_paired("a", "b", right, other)
    reference = bootstrap((other - right,), np.mean, method="percentile", n_resamples=5_000, rng=1).confidence_interval
    assert found.difference == pytest.approx((other - right).mean()) and found.pictures == 300
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.01)


@pytest.mark.slow
def test_two_models_that_are_alike_are_rarely_told_apart() -> None:
    """Property: of pairs that are equally good, about 5 % are told apart by luck."""
    random = np.random.default_rng(0)
    apart = 0
    for _ in range(200):
        shared = random.random(200)
        right, other = (shared + random.normal(0, 0.2, 200) < 0.7, shared + random.normal(0, 0.2, 200) < 0.7)
        apart += "it is better" in compare_paired("a", "b", right.astype(float), other.astype(float)).verdict
    assert apart <= 14  # 10 are meant; the exact test is on the careful side


def test_pairing_sees_what_two_accuracies_alone_would_not() -> None:
    """80 and 83 % of 200 pictures: the intervals overlap widely, and yet B is never wrong where A is right."""
    right = np.repeat([1.0, 0.0], [160, 40])
    other = np.repeat([1.0, 0.0], [168, 32])
    found = compare_paired("A", "B", right, other)
    assert found.verdict == (
        "B has 4.0 percentage points more of 200 test pictures right than A (95 % interval "
        f"{100 * found.low:.1f} to {100 * found.high:.1f}): it is better."
    )
    assert found.low > 0
    turned = compare_paired("B", "A", other, right)
    assert turned.verdict.startswith("B has 4.0 percentage points more") and turned.verdict.endswith("it is better.")


def test_what_can_be_luck_is_called_so() -> None:
    right, other = np.repeat([1.0, 0.0], [150, 50]), np.repeat([1.0, 0.0], [154, 46])
    found = compare_paired("A", "B", right, other)
    assert found.low > 0 and found.by_luck == 0.125  # the bootstrap alone would have believed it
    assert "which can be luck" in found.verdict and "they are not told apart" in found.verdict
    assert "equally many" in compare_paired("A", "B", right, right).verdict


def test_few_pictures_give_no_verdict() -> None:
    found = compare_paired("A", "B", np.zeros(1), np.ones(1))
    assert found.verdict == "B and A: 1 test picture is too few to tell which is better."
