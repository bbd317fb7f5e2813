from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scorers import score

from tutti.config.metric_facts import names_for
from tutti.tasks.metrics import METRICS


def one_hot(classes: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes]


@pytest.mark.parametrize("metric", ["macro_f1", "accuracy", "matthews", "f1"])
def test_a_perfect_prediction_scores_one(metric: str) -> None:
    assert score(metric, labels=np.array([0, 1, 1, 0]), predicted=one_hot([0, 1, 1, 0], 2)) == 1.0


def test_macro_f1_leaves_out_classes_that_are_neither_there_nor_predicted() -> None:
    labels = np.array([0, 1])
    assert score("macro_f1", labels=labels, predicted=one_hot([0, 1], 4)) == 1
    assert score("macro_f1", labels=labels, predicted=one_hot([0, 3], 4)) == pytest.approx(1 / 3)


def test_macro_f1_is_the_mean_of_the_f1_of_each_class() -> None:
    # class 0: precision 1/2, recall 1, F1 2/3; class 1: precision 1, recall 1/2, F1 2/3; class 2: 1
    value = score("macro_f1", labels=np.array([0, 1, 1, 2]), predicted=one_hot([0, 0, 1, 2], 3))
    assert value == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_f1_is_that_of_class_one_alone() -> None:
    # class 1: precision 1/2, recall 1
    value = score("f1", labels=np.array([0, 0, 0, 1]), predicted=one_hot([0, 0, 1, 1], 2))
    assert value == pytest.approx(2 / 3)


def test_accuracy_and_matthews_agree_with_their_definitions() -> None:
    labels, probabilities = np.array([0, 0, 0, 1]), one_hot([0, 0, 1, 1], 2)
    assert score("accuracy", labels=labels, predicted=probabilities) == 0.75
    # tp 1, tn 2, fp 1, fn 0
    assert score("matthews", labels=labels, predicted=probabilities) == pytest.approx(2 / np.sqrt(2 * 1 * 3 * 2))


LABELS = np.array([0.0, 1.5, 1.5, 4.0, 5.0], dtype=np.float32)
CORRELATIONS = ("pearson", "spearman", "pearson_spearman")


@given(
    st.lists(st.tuples(st.integers(0, 20), st.floats(-1e6, 1e6, width=32)), min_size=3, max_size=40).filter(
        lambda rows: np.ptp([label for label, _ in rows]) > 0 and np.ptp([value for _, value in rows]) > 1e-3
    )
)
def test_correlations_are_those_of_scipy(rows: list[tuple[int, float]]) -> None:
    from scipy import stats

    labels = np.array([label / 4 for label, _ in rows], dtype=np.float32)
    values = np.array([value for _, value in rows], dtype=np.float32)
    pearson = stats.pearsonr(labels.astype(np.float64), values.astype(np.float64)).statistic
    spearman = stats.spearmanr(labels, values).statistic
    assert score("pearson", labels=labels, predicted=values) == pytest.approx(pearson, abs=1e-7)
    assert score("spearman", labels=labels, predicted=values) == pytest.approx(spearman, abs=1e-9)
    both = score("pearson_spearman", labels=labels, predicted=values)
    assert both == pytest.approx((pearson + spearman) / 2, abs=1e-7)


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


@given(st.integers(2, 5), st.integers(1, 60), st.integers(0, 10_000))
def test_scores_of_what_was_decided_are_those_of_scikit_learn(classes: int, rows: int, seed: int) -> None:
    import warnings

    from sklearn import metrics

    rng = np.random.default_rng(seed)
    labels, decided = rng.integers(classes, size=(2, rows))
    expected = {
        "macro_f1": metrics.f1_score(labels, decided, average="macro"),
        "accuracy": metrics.accuracy_score(labels, decided),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about labels of a single class
        expected["matthews"] = metrics.matthews_corrcoef(labels, decided)
    if classes == 2:
        expected["f1"] = metrics.f1_score(labels, decided, zero_division=0)
    for metric, value in expected.items():
        got = METRICS[metric].score(labels, decided, outputs=classes)
        assert got == pytest.approx(value, abs=1e-12)
        assert score(metric, labels=labels, predicted=one_hot(decided.tolist(), classes)) == got
