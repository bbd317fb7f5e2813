"""The metrics that tasks are scored by."""

from __future__ import annotations

import numpy as np

from tutti.errors import ConfigError, Fault, nearest

METRICS = ("macro_f1", "accuracy", "matthews", "f1")


def score(metric: str, *, labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Scores the likeliest class of each row.

    ``macro_f1`` is the plain mean of F1 over all the task's classes, where a class that is neither predicted nor there
    counts 0; ``f1`` is the F1 of class index 1 of two; ``matthews`` is the correlation coefficient of Matthews (1975).

    Args:
        metric: one of ``METRICS``.
        labels: ``(rows,)`` int64 class indices.
        probabilities: ``(rows, classes)`` of any float type.

    Raises:
        ConfigError: where the metric is unknown, or is ``f1`` and the task has not two classes.
    """
    from sklearn import metrics  # slow to import

    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
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


def check_classes(metric: str, *, classes: int, what: str) -> None:
    """Refuses ``f1`` for any number of classes but two.

    Raises:
        ConfigError: naming ``what``.
    """
    if metric == "f1" and classes != 2:
        rule, got = f"be a metric for {classes} classes", "'f1', which is for two"
        raise ConfigError(Fault(what, rule, got, "use macro_f1 instead"))
