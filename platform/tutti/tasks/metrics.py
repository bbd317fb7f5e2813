"""The metrics of tasks. For all of them, higher is better."""

from __future__ import annotations

from typing import get_args

import numpy as np

from tutti.config.study import ValueMetric
from tutti.errors import ConfigError, Fault

VALUE_METRICS: tuple[str, ...] = get_args(ValueMetric)


def is_regression(metric: str) -> bool:
    """Whether a task with this metric has numbers as labels."""
    return metric in VALUE_METRICS


def score(metric: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """Scores the most probable class of each row, or the values of a regression.

    ``macro_f1`` is the unweighted mean of F1 over the classes that occur in the labels or predictions, as in
    scikit-learn; ``f1`` is the F1 of class index 1 of two; ``matthews`` is the correlation coefficient of Matthews
    (1975).

    ``pearson`` and ``spearman`` are the correlation coefficients of values and of ranks (ties share their mean rank);
    ``pearson_spearman`` is the mean of both, GLUE's metric for STS-B. These three are 0.0 where the predictions or the
    labels are constant. ``neg_mse`` is the negated mean squared error. All four are NaN where a prediction is not
    finite.

    Args:
        metric: a ``tutti.config.study.Metric``.
        labels: ``(rows,)`` int64 class indices; any float type for a regression.
        predicted: ``(rows, classes)`` probabilities or ``(rows,)`` values, of any float type.

    Raises:
        ConfigError: where the metric is ``f1`` and the task does not have two classes.
    """
    decided = predicted if is_regression(metric) else predicted.argmax(axis=-1)
    return score_decided(metric, labels, decided, classes=predicted.shape[-1])


def is_correlation(metric: str) -> bool:
    """Whether it compares values with labels up to their scale, and so says nothing of it."""
    return metric in VALUE_METRICS and metric != "neg_mse"


def score_decided(metric: str, labels: np.ndarray, decided: np.ndarray, *, classes: int) -> float:
    """The same as ``score``, for class indices instead of probabilities.

    It is computed from counts instead of by scikit-learn, which is 20 times slower: estimates need thousands of scores.

    Args:
        labels: as for ``score``.
        decided: ``(rows,)`` int64 class indices, or values of any float type.
        classes: number of classes of the task; ignored for a regression.

    Raises:
        ConfigError: as ``score`` does.
    """
    if is_regression(metric):
        return _score_values(metric, labels.astype(np.float64), decided.astype(np.float64))
    labels = labels.astype(np.int64)
    label_counts, decided_counts, correct = (  # a confusion matrix of a thousand classes would have a million cells
        np.bincount(indices, minlength=classes).astype(np.float64)
        for indices in (labels, decided, labels[labels == decided])
    )
    match metric:
        case "macro_f1":
            totals = label_counts + decided_counts
            occurring = totals > 0
            return float((2 * correct[occurring] / totals[occurring]).mean()) if occurring.any() else float("nan")
        case "accuracy":
            return float(correct.sum() / len(labels)) if len(labels) else float("nan")
        case "matthews":
            return _matthews(correct.sum(), label_counts, decided_counts)
        case _:
            check_classes(metric, classes=classes, what="the metric")
            return float(2 * correct[1] / max(label_counts[1] + decided_counts[1], 1))


def _matthews(correct: float, label_counts: np.ndarray, decided_counts: np.ndarray) -> float:
    """The coefficient for any number of classes (Gorodkin 2004); 0 where all labels or all decisions are one class."""
    rows = label_counts.sum()
    spread = (rows**2 - decided_counts @ decided_counts) * (rows**2 - label_counts @ label_counts)
    return float((correct * rows - label_counts @ decided_counts) / np.sqrt(spread)) if spread else 0.0


def _score_values(metric: str, labels: np.ndarray, values: np.ndarray) -> float:
    if not np.isfinite(values).all():
        return float("nan")
    match metric:
        case "pearson":
            return _correlation(labels, values)
        case "spearman":
            return _correlation(_ranks(labels), _ranks(values))
        case "pearson_spearman":
            return (_correlation(labels, values) + _correlation(_ranks(labels), _ranks(values))) / 2
        case _:
            return -float(np.square(labels - values).mean())


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Pearson's coefficient, 0 for constant values. ``scipy.stats`` warns about these and returns NaN."""
    if not (np.ptp(left) and np.ptp(right)):
        return 0.0
    left, right = left - left.mean(), right - right.mean()
    norms = np.linalg.norm(left) * np.linalg.norm(right)
    return float(np.clip(left @ right / norms, -1, 1)) if norms else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, in float64; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def check_classes(metric: str, *, classes: int, what: str) -> None:
    """Refuses ``f1`` for any number of classes other than two.

    Raises:
        ConfigError: naming ``what``.
    """
    if metric == "f1" and classes != 2:
        rule, got = f"be a metric for {classes} classes", "'f1', which is for two"
        raise ConfigError(Fault(what, rule, got, "use macro_f1 instead"))
