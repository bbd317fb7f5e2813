from __future__ import annotations

import numpy as np
import pytest

from tutti.errors import ConfigError
from tutti.tasks.metrics import METRICS, score


def one_hot(classes: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes]


@pytest.mark.parametrize("metric", METRICS)
def test_a_perfect_prediction_scores_one(metric: str) -> None:
    assert score(metric, labels=np.array([0, 1, 1, 0]), probabilities=one_hot([0, 1, 1, 0], 2)) == 1.0


def test_macro_f1_counts_a_class_that_no_row_has_as_zero() -> None:
    labels = np.array([0, 1])
    assert score("macro_f1", labels=labels, probabilities=one_hot([0, 1], 4)) == 0.5


def test_macro_f1_is_the_mean_of_the_f1_of_each_class() -> None:
    # class 0: precision 1/2, recall 1, F1 2/3; class 1: precision 1, recall 1/2, F1 2/3; class 2: 1
    value = score("macro_f1", labels=np.array([0, 1, 1, 2]), probabilities=one_hot([0, 0, 1, 2], 3))
    assert value == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_f1_is_that_of_class_one_alone() -> None:
    # class 1: one right of two predicted, one right of one there
    value = score("f1", labels=np.array([0, 0, 0, 1]), probabilities=one_hot([0, 0, 1, 1], 2))
    assert value == pytest.approx(2 / 3)


def test_accuracy_and_matthews_agree_with_their_definitions() -> None:
    labels, probabilities = np.array([0, 0, 0, 1]), one_hot([0, 0, 1, 1], 2)
    assert score("accuracy", labels=labels, probabilities=probabilities) == 0.75
    # tp 1, tn 2, fp 1, fn 0
    assert score("matthews", labels=labels, probabilities=probabilities) == pytest.approx(2 / np.sqrt(2 * 1 * 3 * 2))


def test_f1_is_refused_for_three_classes() -> None:
    with pytest.raises(ConfigError, match="be a metric for 3 classes; got 'f1', which is for two; use macro_f1"):
        score("f1", labels=np.array([0]), probabilities=one_hot([0], 3))


def test_an_unknown_metric_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'macro_f1'"):
        score("macrof1", labels=np.array([0]), probabilities=one_hot([0], 2))


def test_a_study_file_may_name_the_metrics_that_there_are_and_no_other() -> None:
    from typing import get_args

    from tutti.config.study import Metric

    assert get_args(Metric) == METRICS
