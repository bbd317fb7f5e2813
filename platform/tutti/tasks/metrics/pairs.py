"""Metrics of pairs of texts. Labels are ``(rows,)``, predictions ``(rows, 2)`` values, the better text's first."""

from __future__ import annotations

import numpy as np


def pairwise_accuracy(labels: np.ndarray, values: np.ndarray, *, outputs: int) -> float:
    """The share of pairs of which the better text has the higher value; equal values count half."""
    if not len(labels) or not np.isfinite(values).all():
        return float("nan")
    return float(np.mean((values[:, 0] > values[:, 1]) + 0.5 * (values[:, 0] == values[:, 1])))
