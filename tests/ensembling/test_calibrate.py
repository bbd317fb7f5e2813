from __future__ import annotations

import numpy as np
import pytest

from tutti.ensembling.calibrate import expected_calibration_error, fit_temperature, reliability, tempered


def calibrated(rows: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and labels drawn by them."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([0.5] * 4, rows)
    labels = (probabilities.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return probabilities.astype(np.float32), labels


@pytest.mark.parametrize("temperature", [0.1, 0.4, 1.0, 2.5])
def test_a_distorting_temperature_is_fitted_and_undone(temperature):
    truth, labels = calibrated()
    distorted = tempered(truth, 1 / temperature)
    fitted = fit_temperature(distorted, labels)
    assert fitted == pytest.approx(temperature, rel=0.05)
    assert expected_calibration_error(tempered(distorted, fitted), labels) < 0.02
    if temperature != 1:
        assert expected_calibration_error(distorted, labels) > 0.05


def test_tempering_keeps_the_argmax_and_rows_sum_to_one():
    probabilities, _ = calibrated(500)
    for temperature in (0.1, 3.0):
        result = tempered(probabilities, temperature)
        assert result.dtype == np.float64
        assert np.allclose(result.sum(axis=1), 1, atol=1e-6)
        assert np.array_equal(result.argmax(axis=1), probabilities.argmax(axis=1))
    assert tempered(probabilities, 0.1).max(axis=1).mean() > probabilities.max(axis=1).mean()
    assert tempered(probabilities, 1.0) is probabilities


def test_probabilities_of_0_and_1_and_no_rows_are_handled():
    certain = np.eye(3, dtype=np.float32)[[0, 1, 2]]
    assert np.isfinite(tempered(certain, fit_temperature(certain, np.array([0, 1, 0])))).all()
    assert fit_temperature(certain[:0], np.zeros(0, dtype=np.int64)) == 1
    assert tempered(certain[:0], 2.0).shape == (0, 3)


def test_confidence_stays_bounded_when_all_rows_are_right():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]] * 10, dtype=np.float32)
    fitted = fit_temperature(probabilities, probabilities.argmax(axis=1))
    assert fitted < 1
    assert tempered(probabilities, fitted).max(axis=1).mean() < 31 / 32
    assert tempered(probabilities, fitted).max() < 0.999


def test_the_calibration_error_is_the_distance_of_confidence_from_accuracy():
    probabilities = np.array([[0.9, 0.1]] * 10, dtype=np.float32)
    assert expected_calibration_error(probabilities, np.array([0] * 9 + [1])) == pytest.approx(0, abs=1e-6)
    assert expected_calibration_error(probabilities, np.array([0] * 5 + [1] * 5)) == pytest.approx(0.4, abs=1e-6)
    mixed = np.array([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 10, dtype=np.float32)
    assert expected_calibration_error(mixed, np.array([0] * 20)) == pytest.approx(0.1 / 2 + 0.6 / 2, abs=1e-6)


def test_reliability_groups_rows_by_confidence_with_their_accuracy():
    probabilities = np.array([[0.95, 0.05], [0.97, 0.03], [0.15, 0.85], [0.45, 0.55]], dtype=np.float32)
    low, middle, high = reliability(probabilities, np.array([0, 1, 1, 0]))
    assert (low.rows, low.accuracy, middle.rows, middle.accuracy, high.rows, high.accuracy) == (1, 0, 1, 1, 2, 0.5)
    assert (low.confidence, middle.confidence, high.confidence) == pytest.approx((0.55, 0.85, 0.96))


def test_of_rows_that_become_very_confident_the_more_confident_ones_stay_so():
    wrong = np.logspace(-6, -3, 50, dtype=np.float32)
    confidence = tempered(np.stack([1 - wrong, wrong], axis=1), 0.5).max(axis=1)
    assert np.unique(confidence.astype(np.float32)).size < 30
    assert (np.diff(confidence) < 0).all()


def test_one_row_that_is_certain_and_wrong_does_not_decide_the_temperature():
    truth, labels = calibrated(2000)
    truth[0] = np.roll(np.eye(4)[labels[0]], 1)
    assert fit_temperature(truth, labels) == pytest.approx(1, abs=0.1)


def test_a_confidence_of_1_belongs_to_the_highest_bin():
    (highest,) = reliability(np.array([[1.0, 0.0], [0.96, 0.04]]), np.array([0, 0]))
    assert highest.rows == 2


def test_candidates_that_a_row_does_not_have_do_not_change_its_temperature() -> None:
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(3), 4000)
    labels = (truth.cumsum(axis=1) > rng.random((4000, 1))).argmax(axis=1)
    sharper = truth**3 / (truth**3).sum(axis=1, keepdims=True)
    wider = np.pad(sharper, ((0, 0), (0, 20)))
    assert fit_temperature(wider, labels, own=True) == pytest.approx(fit_temperature(sharper, labels), abs=0.01)
