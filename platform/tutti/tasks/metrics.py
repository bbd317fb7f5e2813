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

    ``macro_f1`` is the plain mean of F1 over the classes that are there or predicted, as scikit-learn has it; ``f1`` is
    the F1 of class index 1 of two; ``matthews`` is the correlation coefficient of Matthews (1975).

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
    classes = predicted.shape[-1]
    return score_decided(metric, labels=labels, decided=predicted.argmax(axis=-1), classes=classes)


def score_decided(metric: str, *, labels: np.ndarray, decided: np.ndarray, classes: int) -> float:
    """``score`` of what was decided for each row, whatever it was decided by.

    It counts instead of calling scikit-learn, which takes 20 times as long: an estimate asks for thousands of scores.

    Args:
        labels: as for ``score``.
        decided: ``(rows,)`` int64 class indices, or values of any float type.
        classes: how many classes the task has; of a regression it does not matter.

    Raises:
        ConfigError: as ``score`` does.
    """
    if is_regression(metric):
        return _score_values(metric, labels.astype(np.float64), decided.astype(np.float64))
    counts = np.bincount(labels.astype(np.int64) * classes + decided, minlength=classes * classes)
    matrix = counts.reshape(classes, classes).astype(np.float64)  # true classes down, decided ones across
    right, there, said = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    match metric:
        case "macro_f1":
            met = there + said > 0
            return float((2 * right[met] / (there + said)[met]).mean()) if met.any() else float("nan")
        case "accuracy":
            return float(right.sum() / matrix.sum()) if matrix.sum() else float("nan")
        case "matthews":
            return _matthews(right.sum(), there, said)
        case "f1":
            check_classes(metric, classes=classes, what="the metric")
            return float(2 * right[1] / max(there[1] + said[1], 1))
    remedy = nearest(metric, METRICS, otherwise="name one of these")
    raise ConfigError(Fault("the metric", f"be one of {', '.join(METRICS)}", repr(metric), remedy))


def _matthews(right: float, there: np.ndarray, said: np.ndarray) -> float:
    """The coefficient for any number of classes (Gorodkin 2004); 0 where all is one class, in the labels or decided."""
    rows = there.sum()
    spread = (rows**2 - said @ said) * (rows**2 - there @ there)
    return float((right * rows - there @ said) / np.sqrt(spread)) if spread else 0.0


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
