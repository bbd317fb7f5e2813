"""Scorers of one kind, and scores by the name of a metric, without a task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task

Function = Callable[[np.ndarray, np.ndarray], float]


def of_classes(function: Function) -> Scorer:
    return Scorer(KINDS["classes"], function)


def of_values(function: Function) -> Scorer:
    return Scorer(KINDS["value"], function, scale_free=getattr(function, "__name__", "") == "pearson")


def score(metric: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """The score of ``(rows, classes)`` probabilities, or of ``(rows,)`` values."""
    kind = "classes" if "classes" in METRICS[metric].kinds else "value"
    names = tuple(map(str, range(predicted.shape[-1]))) if kind == "classes" else ()
    return Scorer.of(Task("scored", names, False, metric, "csv", kind)).score(labels, predicted)
