"""Scores of decisions, for tests of ensembles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.scorer import Scorer

Function = Callable[[np.ndarray, np.ndarray], float]


def of_classes(function: Function) -> Scorer:
    return Scorer(KINDS["classes"], function)


def of_values(function: Function) -> Scorer:
    return Scorer(KINDS["value"], function, scale_free=getattr(function, "__name__", "") == "pearson")
