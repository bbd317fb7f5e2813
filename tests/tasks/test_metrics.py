from __future__ import annotations

import numpy as np
import pytest
from scorers import score

from tutti.config.metric_facts import names_for


def one_hot(classes: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes]


def test_macro_f1_leaves_out_classes_that_are_neither_there_nor_predicted() -> None:
    labels = np.array([0, 1])
    assert score("macro_f1", labels=labels, predicted=one_hot([0, 1], 4)) == 1
    assert score("macro_f1", labels=labels, predicted=one_hot([0, 3], 4)) == pytest.approx(1 / 3)


LABELS = np.array([0.0, 1.5, 1.5, 4.0, 5.0], dtype=np.float32)
CORRELATIONS = ("pearson", "spearman", "pearson_spearman")


def test_the_negated_squared_error_is_higher_where_values_are_nearer() -> None:
    assert score("neg_mse", labels=np.array([1.0, 2.0]), predicted=np.array([1.0, 5.0])) == -4.5
    assert score("neg_mse", labels=LABELS, predicted=LABELS) == 0
    near, far = LABELS + np.float32(0.1), LABELS - np.float32(0.2)
    assert score("neg_mse", labels=LABELS, predicted=near) > score("neg_mse", labels=LABELS, predicted=far)


@pytest.mark.parametrize("metric", CORRELATIONS)
def test_only_the_order_and_spacing_of_values_count_for_a_correlation(metric: str) -> None:
    assert score(metric, labels=LABELS, predicted=LABELS * 100 - 7) == pytest.approx(1)
    assert score(metric, labels=LABELS, predicted=-LABELS) == pytest.approx(-1)


def test_ranks_alone_count_for_spearman() -> None:
    assert score("spearman", labels=LABELS, predicted=np.exp(LABELS)) == pytest.approx(1)
    assert score("pearson", labels=LABELS, predicted=np.exp(LABELS)) < 0.95


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", CORRELATIONS)
def test_a_constant_prediction_and_constant_labels_correlate_with_nothing(metric: str) -> None:
    same = np.full(5, 2.3, dtype=np.float32)
    assert score(metric, labels=LABELS, predicted=same) == 0
    assert score(metric, labels=same, predicted=LABELS) == 0
    assert score(metric, labels=LABELS[:1], predicted=LABELS[:1]) == 0


@pytest.mark.parametrize("metric", names_for("value"))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_makes_the_score_none(metric: str, value: float) -> None:
    assert np.isnan(score(metric, labels=LABELS, predicted=np.array([1, 2, value, 4, 5])))
