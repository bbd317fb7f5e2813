"""The metrics of tasks. Of their scores, higher is always better."""

from tutti.tasks.metrics.own import own_metric, ship
from tutti.tasks.metrics.registry import METRICS, Function, Metric, check_fits, fits, metrics_to_log

__all__ = [
    "METRICS",
    "Function",
    "Metric",
    "check_fits",
    "fits",
    "metrics_to_log",
    "own_metric",
    "ship",
]
