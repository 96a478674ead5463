"""Every figure equals what scikit-learn or scipy gives, and says no more than the pictures allow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap
from sklearn import metrics as theirs
from sklearn.calibration import calibration_curve

from vitral import DataError
from vitral.evaluation.metrics import BINS, FEW, Figure, Floats, Ints, measure, share


def answers(n: int, classes: int, seed: int = 0, skill: float = 1.0) -> tuple[Ints, Floats]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)
    logits = random.normal(size=(n, classes)) + skill * np.eye(classes)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return labels, probabilities


def names(classes: int) -> tuple[str, ...]:
    return tuple(f"class {label}" for label in range(classes))


@settings(max_examples=30)
@given(n=st.integers(1, 60), classes=st.integers(2, 9), seed=st.integers(0, 10**6))
def test_figures_equal_scikit_learns(n: int, classes: int, seed: int) -> None:
    labels, probabilities = answers(n, classes, seed)
    found, said = measure(labels, probabilities, names(classes)), probabilities.argmax(axis=1)
    every = list(range(classes))
    assert found.pictures == n
    assert found.accuracy.value == pytest.approx(theirs.accuracy_score(labels, said))
    assert found.loss.value == pytest.approx(theirs.log_loss(labels, probabilities, labels=every))
    assert np.array_equal(found.confusion, theirs.confusion_matrix(labels, said, labels=every))
    recall = theirs.recall_score(labels, said, labels=np.unique(labels), average="macro", zero_division=0)
    assert found.figures["balanced_accuracy"].value == pytest.approx(recall)
    assert found.figures["macro_f1"].value == pytest.approx(
        theirs.f1_score(labels, said, average="macro", zero_division=0)
    )
    each = theirs.precision_recall_fscore_support(labels, said, labels=every, zero_division=0)
    for one, precision, recall, f1, count in zip(found.classes, *each, strict=True):
        assert one.pictures == count
        assert (one.recall is None) == (count == 0)
        assert (one.precision is None) == (not (said == every[names(classes).index(one.name)]).any())
        assert one.recall is None or one.recall.value == pytest.approx(recall)
        assert one.precision is None or one.precision.value == pytest.approx(precision)
        assert one.f1 is None or one.f1 == pytest.approx(f1)
    if classes > 5:
        top = theirs.top_k_accuracy_score(labels, probabilities, k=5, labels=every)
        assert found.figures["top_5"].value == pytest.approx(top)
    else:
        assert "top_5" not in found.figures


def test_balanced_accuracy_equals_scikit_learns_own() -> None:
    labels, probabilities = answers(500, 4)
    found = measure(labels, probabilities, names(4))
    own = theirs.balanced_accuracy_score(labels, probabilities.argmax(axis=1))
    assert found.figures["balanced_accuracy"].value == pytest.approx(own)


def test_the_reliability_curve_equals_scikit_learns() -> None:
    labels, probabilities = answers(2_000, 3, skill=2.0)
    found = measure(labels, probabilities, names(3))
    right, confidence = probabilities.argmax(axis=1) == labels, probabilities.max(axis=1)
    shares, means = calibration_curve(right, confidence, n_bins=BINS)
    assert [one.accuracy.value for one in found.reliability] == pytest.approx(shares.tolist())
    assert [one.confidence for one in found.reliability] == pytest.approx(means.tolist())
    assert sum(one.pictures for one in found.reliability) == 2_000
    apart = sum(one.pictures * abs(one.confidence - one.accuracy.value) for one in found.reliability)
    assert found.figures["calibration_error"].value == pytest.approx(apart / 2_000)


def test_certain_and_right_answers_are_perfectly_calibrated() -> None:
    labels = np.arange(100) % 4
    found = measure(labels, np.eye(4)[labels], names(4))
    assert found.figures["calibration_error"].value == 0.0 and found.loss.value == 0.0
    assert found.figures["macro_f1"] == Figure(1.0)  # not one mistake: what draws would say of those to come is nothing
    assert found.accuracy.low is not None and 0.95 < found.accuracy.low < 1


def test_answers_that_are_no_numbers_are_told() -> None:
    with pytest.raises(DataError, match="are no numbers"):
        measure(np.array([0]), np.array([[np.nan, np.nan]]), names(2))


def test_the_interval_of_the_calibration_error_reaches_down_to_what_is_true() -> None:
    """Property: for a model that is perfectly calibrated, where the error is above 0 by chance alone."""
    random, held = np.random.default_rng(0), 0
    for _ in range(20):
        sure = random.uniform(0.5, 1, 100)
        labels = (random.random(100) > sure).astype(np.int64)  # class 0 as often as it says
        found = measure(labels, np.stack([sure, 1 - sure], axis=1), names(2))
        error, low = found.figures["calibration_error"], found.figures["calibration_error"].low
        assert low is not None and error.high is not None and low <= error.value <= error.high
        assert found.by_chance["calibration_error"] == pytest.approx(error.value, abs=0.08)
        held += low < 0.005
    assert held >= 18


def test_pictures_of_one_group_are_not_so_many_witnesses() -> None:
    """Each of 20 patients is there 30 times, always right or always wrong: 20 witnesses, and not 600."""
    right = np.random.default_rng(0).random(20) < 0.7
    labels = np.zeros(600, np.int64)
    probabilities = np.where(np.repeat(right, 30)[:, None], [[0.9, 0.1]], [[0.2, 0.8]])
    groups = [f"patient {n}" for n in np.repeat(np.arange(20), 30)]
    alone, together = (measure(labels, probabilities, names(2), one).accuracy for one in (None, groups))
    assert alone.low is not None and together.low is not None and alone.high is not None and together.high is not None
    assert together.value == alone.value == right.mean()
    assert together.high - together.low > 3 * (alone.high - alone.low)


def test_an_impossible_label_costs_much_and_not_infinitely() -> None:
    found = measure(np.array([1]), np.array([[1.0, 0.0]]), names(2))
    assert 100 < found.loss.value < 1_000


def test_intervals_are_wilsons_and_the_bootstraps() -> None:
    """Reference: Wilson's own formula; scipy's percentile bootstrap of the same loss."""
    z, n, p = 1.959963984540054, 40, 0.75
    middle, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    assert share(30, 40).low == pytest.approx((middle - half) / (1 + z**2 / n))
    assert share(30, 40).high == pytest.approx((middle + half) / (1 + z**2 / n))
    labels, probabilities = answers(300, 3)
    losses = -np.log(probabilities[np.arange(300), labels])
    interval = bootstrap((losses,), np.mean, method="percentile", n_resamples=2_000, rng=0).confidence_interval
    found = measure(labels, probabilities, names(3)).loss
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=0.03)


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Property: of many test sets from one population, 95 % of the intervals hold the population's figure."""
    labels, probabilities = answers(20_000, 3)
    truth = measure(labels, probabilities, names(3))
    random, held = np.random.default_rng(1), 0
    for _ in range(60):
        some = random.integers(0, 20_000, 200)
        found = measure(labels[some], probabilities[some], names(3)).figures["balanced_accuracy"]
        assert found.low is not None and found.high is not None
        held += found.low <= truth.figures["balanced_accuracy"].value <= found.high
    assert held >= 50


def test_every_interval_holds_its_own_figure() -> None:
    for seed in range(20):
        labels, probabilities = answers(60, 3, seed, skill=2.0)
        found = measure(labels, probabilities, names(3))
        for figure in (
            found.loss,
            found.figures["balanced_accuracy"],
            found.figures["macro_f1"],
            found.figures["calibration_error"],
        ):
            assert figure.low is not None and figure.high is not None
            assert 0 <= figure.low <= figure.value <= figure.high


def test_few_pictures_get_no_bootstrap() -> None:
    found = measure(*answers(FEW - 1, 3), names(3))
    assert (found.loss.low, found.figures["macro_f1"].high, found.figures["balanced_accuracy"].low) == (
        None,
        None,
        None,
    )
    assert found.accuracy.low is not None
    assert measure(*answers(FEW, 3), names(3)).loss.low is not None


def test_the_same_answers_have_the_same_intervals() -> None:
    assert str(measure(*answers(100, 3), names(3))) == str(measure(*answers(100, 3), names(3)))


def test_no_pictures_are_refused() -> None:
    with pytest.raises(DataError, match="no pictures to measure on"):
        measure(np.zeros(0, np.int64), np.zeros((0, 3)), names(3))
