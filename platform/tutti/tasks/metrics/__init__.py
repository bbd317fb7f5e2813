"""The metrics of tasks. Of their scores, higher is always better."""

from tutti.tasks.metrics.own import own_metric, ship
from tutti.tasks.metrics.registry import METRICS, Function, Metric, check_fits, fits, metrics_to_log
from tutti.tasks.metrics.shims import (
    VALUE_METRICS,
    check_classes,
    is_correlation,
    is_regression,
    score,
    score_decided,
)

__all__ = [
    "METRICS",
    "VALUE_METRICS",
    "Function",
    "Metric",
    "check_classes",
    "check_fits",
    "fits",
    "is_correlation",
    "is_regression",
    "metrics_to_log",
    "own_metric",
    "score",
    "score_decided",
    "ship",
]
