"""Metrics of values.

Labels and predictions are ``(rows,)``. For several numbers per row they are ``(rows, k)``, labels NaN where one is
missing, and a metric is the mean over the columns, without those that have no label. All metrics are NaN where a
prediction is not finite. Every function takes ``outputs``, the number of columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Column = Callable[[np.ndarray, np.ndarray], float]


def mean_over_columns(labels: np.ndarray, predicted: np.ndarray, *, outputs: int, column: Column) -> float:
    """The metric ``column``, which is of float64 labels and values of one column."""
    labels, predicted = labels.astype(np.float64), predicted.astype(np.float64)
    if not np.isfinite(predicted).all():
        return float("nan")
    if labels.ndim == 1:
        return column(labels, predicted)
    known = ~np.isnan(labels)
    scores = [column(labels[rows, n], predicted[rows, n]) for n, rows in enumerate(known.T) if rows.any()]
    return float(np.mean(scores)) if scores else float("nan")


def pearson(labels: np.ndarray, values: np.ndarray) -> float:
    """Pearson's correlation, 0 where labels or values are constant. ``scipy`` warns about these and returns NaN."""
    if not (np.ptp(labels) and np.ptp(values)):
        return 0.0
    left, right = labels - labels.mean(), values - values.mean()
    norms = np.linalg.norm(left) * np.linalg.norm(right)
    return float(np.clip(left @ right / norms, -1, 1)) if norms else 0.0


def spearman(labels: np.ndarray, values: np.ndarray) -> float:
    """The correlation of the ranks; 0 where labels or values are constant."""
    return pearson(_ranks(labels), _ranks(values))


def pearson_spearman(labels: np.ndarray, values: np.ndarray) -> float:
    """The mean of both, GLUE's metric of STS-B."""
    return (pearson(labels, values) + spearman(labels, values)) / 2


def kendall(labels: np.ndarray, values: np.ndarray) -> float:
    """Kendall's tau-b; 0 where labels or values are constant."""
    from scipy.stats import kendalltau  # slow to import

    return float(kendalltau(labels, values).statistic) if np.ptp(labels) and np.ptp(values) else 0.0


def rmse(labels: np.ndarray, values: np.ndarray) -> float:
    """The root of the mean squared error."""
    return float(np.sqrt(np.square(labels - values).mean()))


def mae(labels: np.ndarray, values: np.ndarray) -> float:
    """The mean absolute error."""
    return float(np.abs(labels - values).mean())


def neg_mse(labels: np.ndarray, values: np.ndarray) -> float:
    """The negated mean squared error."""
    return -float(np.square(labels - values).mean())


def r2(labels: np.ndarray, values: np.ndarray) -> float:
    """The share of the labels' variance that is explained; of constant labels 1 or 0, as in scikit-learn."""
    residual, total = np.square(labels - values).sum(), np.square(labels - labels.mean()).sum()
    if not total:
        return 0.0 if residual else 1.0
    return float(1 - residual / total)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, in float64; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
