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


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_spoilt_the_confidence_is_found_and_undone(temperature):
    truth, labels = calibrated()
    spoilt = tempered(truth, 1 / temperature)
    found = fit_temperature(spoilt, labels)
    assert found == pytest.approx(temperature, rel=0.05)
    assert expected_calibration_error(tempered(spoilt, found), labels) < 0.02
    if temperature != 1:
        assert expected_calibration_error(spoilt, labels) > 0.05


def test_no_class_changes_its_place_and_rows_sum_to_one():
    probabilities, _ = calibrated(500)
    for temperature in (0.1, 3.0):
        said = tempered(probabilities, temperature)
        assert said.dtype == np.float32
        assert np.allclose(said.sum(axis=1), 1, atol=1e-6)
        assert np.array_equal(said.argmax(axis=1), probabilities.argmax(axis=1))
    assert tempered(probabilities, 0.1).max(axis=1).mean() > probabilities.max(axis=1).mean()
    assert tempered(probabilities, 1.0) is probabilities


def test_certainty_and_no_rows_at_all_are_no_obstacle():
    sure = np.eye(3, dtype=np.float32)[[0, 1, 2]]
    assert np.isfinite(tempered(sure, fit_temperature(sure, np.array([0, 1, 0])))).all()
    assert fit_temperature(sure[:0], np.zeros(0, dtype=np.int64)) == 1
    assert tempered(sure[:0], 2.0).shape == (0, 3)


def test_rows_that_are_all_right_make_nobody_surer_than_so_many_rows_can_tell():
    said = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]] * 10, dtype=np.float32)
    found = fit_temperature(said, said.argmax(axis=1))
    assert found < 1
    assert tempered(said, found).max(axis=1).mean() < 31 / 32
    assert tempered(said, found).max() < 0.999


def test_the_calibration_error_is_the_distance_of_confidence_from_accuracy():
    probabilities = np.array([[0.9, 0.1]] * 10, dtype=np.float32)
    assert expected_calibration_error(probabilities, np.array([0] * 9 + [1])) == pytest.approx(0, abs=1e-6)
    assert expected_calibration_error(probabilities, np.array([0] * 5 + [1] * 5)) == pytest.approx(0.4, abs=1e-6)
    mixed = np.array([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 10, dtype=np.float32)
    assert expected_calibration_error(mixed, np.array([0] * 20)) == pytest.approx(0.1 / 2 + 0.6 / 2, abs=1e-6)


def test_rows_are_grouped_by_confidence_and_each_group_says_how_right_it_is():
    said = np.array([[0.95, 0.05], [0.97, 0.03], [0.15, 0.85], [0.45, 0.55]], dtype=np.float32)
    low, middle, high = reliability(said, np.array([0, 1, 1, 0]), bins=10)
    assert (low.rows, low.accuracy, middle.rows, middle.accuracy, high.rows, high.accuracy) == (1, 0, 1, 1, 2, 0.5)
    assert (low.confidence, middle.confidence, high.confidence) == pytest.approx((0.55, 0.85, 0.96))
