"""The metrics that tasks are scored by. Higher is better in all of them."""

from __future__ import annotations

import numpy as np

from tutti.errors import ConfigError, Fault, nearest

CLASS_METRICS = ("macro_f1", "accuracy", "matthews", "f1")
VALUE_METRICS = ("pearson", "spearman", "pearson_spearman", "neg_mse")
METRICS = (*CLASS_METRICS, *VALUE_METRICS)


def is_regression(metric: str) -> bool:
    """Whether a task with this metric has numbers as labels."""
    return metric in VALUE_METRICS


def score(metric: str, *, labels: np.ndarray, predicted: np.ndarray) -> float:
    """Scores the likeliest class of each row, or the values of a regression.

    ``macro_f1`` is the plain mean of F1 over all the task's classes, where a class that is neither predicted nor there
    counts 0; ``f1`` is the F1 of class index 1 of two; ``matthews`` is the correlation coefficient of Matthews (1975).

    ``pearson`` and ``spearman`` are the correlation coefficients of values and of ranks (equal values share their mean
    rank), ``pearson_spearman`` is the mean of both, which GLUE scores STS-B by. Where the predictions or the labels are
    constant these three are 0.0. ``neg_mse`` is the mean squared error times -1. All four are NaN where a prediction is
    not finite.

    Args:
        metric: one of ``METRICS``.
        labels: ``(rows,)`` int64 class indices; any float type for a regression.
        predicted: ``(rows, classes)`` probabilities or ``(rows,)`` values, of any float type.

    Raises:
        ConfigError: where the metric is unknown, or is ``f1`` and the task has not two classes.
        ValueError: where ``predicted`` has not the shape that the metric needs.
    """
    if metric in METRICS and predicted.ndim != (1 if is_regression(metric) else 2):
        rule = "have the shape (rows,)" if is_regression(metric) else "have the shape (rows, classes)"
        remedy = "give values to a metric of values, and probabilities to a metric of classes"
        raise ValueError(str(Fault(f"what is scored by {metric}", rule, str(predicted.shape), remedy)))
    if is_regression(metric):
        return _score_values(metric, labels.astype(np.float64), predicted.astype(np.float64))
    return _score_classes(metric, labels, predicted)


def _score_classes(metric: str, labels: np.ndarray, probabilities: np.ndarray) -> float:
    from sklearn import metrics  # slow to import

    classes = probabilities.shape[-1]
    predicted = probabilities.argmax(axis=-1)
    match metric:
        case "macro_f1":
            every = np.arange(classes)
            return float(metrics.f1_score(labels, predicted, labels=every, average="macro", zero_division=0))
        case "accuracy":
            return float(metrics.accuracy_score(labels, predicted))
        case "matthews":
            return float(metrics.matthews_corrcoef(labels, predicted))
        case "f1":
            check_classes(metric, classes=classes, what="the metric")
            return float(metrics.f1_score(labels, predicted, pos_label=1, zero_division=0))
    remedy = nearest(metric, METRICS, otherwise="name one of these")
    raise ConfigError(Fault("the metric", f"be one of {', '.join(METRICS)}", repr(metric), remedy))


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
    """Pearson's coefficient. Not ``scipy.stats``', which warns of constant values and gives NaN for them."""
    if not (np.ptp(left) and np.ptp(right)):
        return 0.0
    left, right = left - left.mean(), right - right.mean()
    norms = np.linalg.norm(left) * np.linalg.norm(right)
    return float(np.clip(left @ right / norms, -1, 1)) if norms else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, in float64; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def check_classes(metric: str, *, classes: int, what: str) -> None:
    """Refuses ``f1`` for any number of classes but two.

    Raises:
        ConfigError: naming ``what``.
    """
    if metric == "f1" and classes != 2:
        rule, got = f"be a metric for {classes} classes", "'f1', which is for two"
        raise ConfigError(Fault(what, rule, got, "use macro_f1 instead"))
