"""The metrics of tasks. Of their scores, higher is always better."""

from tutti.tasks.metrics.registry import METRICS, Function, Metric, check_fits, fits, metrics_to_log
from tutti.tasks.metrics.user_file import own_metric, ship

__all__ = ["METRICS", "Function", "Metric", "check_fits", "fits", "metrics_to_log", "own_metric", "ship"]
