"""Scores by the name of a metric, for tasks of classes and of one value."""

from __future__ import annotations

import numpy as np

from tutti.config.metric_facts import classes_fault, names_for
from tutti.errors import ConfigError
from tutti.tasks.metrics.registry import METRICS

VALUE_METRICS: tuple[str, ...] = names_for("value")


def is_regression(metric: str) -> bool:
    """Whether a task with this metric has numbers as labels."""
    return metric in VALUE_METRICS


def is_correlation(metric: str) -> bool:
    """Whether it compares values with labels up to their scale, and so says nothing of it."""
    return metric in VALUE_METRICS and METRICS[metric].scale_free


def score(metric: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """The score of probabilities or values, of which a metric of decisions takes the most probable class of each row.

    Args:
        labels: ``(rows,)`` int64 class indices; any float type for a regression.
        predicted: ``(rows, classes)`` probabilities or ``(rows,)`` values, of any float type.

    Raises:
        ConfigError: where the metric is not for this number of classes.
    """
    classes = predicted.shape[-1]
    if METRICS[metric].needs != "probabilities":
        decided = predicted if is_regression(metric) else predicted.argmax(axis=-1)
        return score_decided(metric, labels, decided, classes=classes)
    check_classes(metric, classes=classes, what="the metric")
    return METRICS[metric].score(labels, predicted, outputs=classes)


def score_decided(metric: str, labels: np.ndarray, decided: np.ndarray, *, classes: int) -> float:
    """The same as ``score``, for class indices instead of probabilities.

    Args:
        labels: as for ``score``.
        decided: ``(rows,)`` int64 class indices, or values of any float type.
        classes: number of classes of the task; ignored for a regression.

    Raises:
        ConfigError: as ``score`` does.
    """
    if not is_regression(metric):
        check_classes(metric, classes=classes, what="the metric")
    return METRICS[metric].score(labels, decided, outputs=classes)


def check_classes(metric: str, *, classes: int, what: str) -> None:
    """Refuses a metric that is not for this number of classes, such as ``f1`` for any other than two.

    Raises:
        ConfigError: naming ``what``.
    """
    if fault := classes_fault(METRICS[metric], classes, what=what):
        raise ConfigError(fault)
