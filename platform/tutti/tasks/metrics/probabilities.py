"""Metrics of probabilities, for all classes or labels at once.

Labels are ``(rows,)`` class indices and probabilities ``(rows, classes)``; in tasks of several labels per row, labels
are ``(rows, k)`` with 0, 1 or NaN where one is missing, and probabilities ``(rows, k)``. All are NaN where nothing is
left to score. Every function takes ``outputs``, the number of classes or labels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Curve = Callable[[np.ndarray, np.ndarray], float]


def log_loss(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The mean negative logarithm of the probability of what is true; of several labels the mean over the columns.

    Probabilities are kept away from 0 by the spacing of float64 at 1, as in scikit-learn.
    """
    smallest = np.finfo(np.float64).eps
    if labels.ndim == 1:
        likelihoods = probabilities[np.arange(len(labels)), labels].astype(np.float64)
        return _mean(-np.log(likelihoods.clip(min=smallest)))
    likely = np.where(labels == 1, probabilities, 1 - probabilities.astype(np.float64))
    return _mean_of_columns(-np.log(likely.clip(min=smallest)), ~np.isnan(labels))


def brier(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The mean squared error of the probabilities: of class index 1 of two, or summed over more classes.

    Of several labels it is the mean over the columns.
    """
    truth, likely = _columns(labels, probabilities)
    errors = np.square(likely.astype(np.float64) - truth)
    return _mean(errors.sum(axis=1)) if labels.ndim == 1 else _mean_of_columns(errors, ~np.isnan(truth))


def roc_auc(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The area under the ROC curve: of class index 1 of two, else the mean over classes (each against all others).

    Of several labels it is the mean over the columns. Columns without both a 0 and a 1 are left out.
    """
    return _mean_of_curves(_area, *_columns(labels, probabilities))


def micro_roc_auc(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The area under the ROC curve of all classes or labels pooled into one column."""
    truth, likely = _columns(labels, probabilities)
    return _mean_of_curves(_area, truth.reshape(-1, 1), likely.reshape(-1, 1))


def average_precision(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The mean precision at the threshold of each true row, averaged over columns as ``roc_auc`` is."""
    return _mean_of_curves(_precision, *_columns(labels, probabilities))


def mean_average_precision_at(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int, k: int) -> float:
    """MAP@k: the mean over rows of the average precision of the k most probable classes or labels.

    With one true class this is 1 / rank, or 0 below rank k. Rows without a true label are left out. Of equally probable
    ones the first counts as the more probable.
    """
    if labels.ndim == 1:
        ranks = _ranks_of_true(labels, probabilities)
        return _mean(np.where(ranks <= k, 1 / ranks, 0))
    likely = np.where(np.isnan(labels), -np.inf, probabilities)
    order = np.argsort(-likely, axis=1, kind="stable")[:, :k]
    hits = np.take_along_axis(labels == 1, order, axis=1)
    precisions = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    true = (labels == 1).sum(axis=1)
    return _mean((precisions * hits).sum(axis=1)[true > 0] / np.minimum(true[true > 0], k))


def mean_reciprocal_rank(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The mean of 1 / rank of the true class; of equally probable ones the first counts as the more probable."""
    return _mean(1 / _ranks_of_true(labels, probabilities))


def top_k_accuracy(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int, k: int) -> float:
    """The share of rows whose class is among the k most probable; of equally probable ones the first counts as more."""
    return _mean(_ranks_of_true(labels, probabilities) <= k)


def _columns(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Truth (0, 1 or NaN, float32) and probabilities by column; of two classes only the column of class index 1."""
    if labels.ndim == 2:
        return labels, probabilities
    if probabilities.shape[1] == 2:
        return (labels == 1).astype(np.float32)[:, None], probabilities[:, 1:]
    return (labels[:, None] == np.arange(probabilities.shape[1])).astype(np.float32), probabilities


def _mean_of_curves(measure: Curve, truth: np.ndarray, likely: np.ndarray) -> float:
    """The mean of a measure over the columns that have both a 0 and a 1; NaN where a probability is not finite."""
    if not np.isfinite(likely).all():
        return float("nan")
    scores = []
    for column, falling in zip(truth.T, -likely.T, strict=True):
        known = ~np.isnan(column)
        true, falling = column[known] == 1, falling[known]
        if not true.any() or true.all():
            continue
        order = np.argsort(falling)
        falling = falling[order]
        ends = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))  # the last row of each probability
        scores.append(measure(np.cumsum(true[order], dtype=np.float64)[ends], ends + 1.0))
    return float(np.mean(scores)) if scores else float("nan")


def _area(true: np.ndarray, rows: np.ndarray) -> float:
    """The area under the ROC curve, by the trapezoidal rule.

    Args:
        true, rows: ``(thresholds,)`` the number of true and of all rows at or above each threshold.
    """
    false = rows - true
    before = np.append(0, true[:-1])
    return float(np.diff(false, prepend=0) @ (true + before) / (2 * true[-1] * false[-1]))


def _precision(true: np.ndarray, rows: np.ndarray) -> float:
    """The mean precision of the true rows; arguments as for ``_area``."""
    return float(np.diff(true, prepend=0) @ (true / rows) / true[-1])


def _ranks_of_true(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """``(rows,)`` the rank, from 1, of each row's true class."""
    rows = np.arange(len(labels))[:, None]
    own = probabilities[rows, labels[:, None]]
    before = np.arange(probabilities.shape[1]) < labels[:, None]
    ranks: np.ndarray = 1 + ((probabilities > own) | ((probabilities == own) & before)).sum(axis=1)
    return ranks


def _mean_of_columns(cells: np.ndarray, known: np.ndarray) -> float:
    """The mean over columns of the mean of their known cells; columns without any are left out."""
    counts = known.sum(axis=0)
    return _mean(np.where(known, cells, 0).sum(axis=0)[counts > 0] / counts[counts > 0])


def _mean(scores: np.ndarray) -> float:
    return float(scores.mean()) if len(scores) else float("nan")
