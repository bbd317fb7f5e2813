"""Metrics of probabilities, for all classes or labels at once.

Labels are ``(rows,)`` class indices and probabilities ``(rows, classes)``; in tasks of several labels per row, labels
are ``(rows, k)`` with 0, 1 or NaN where one is missing, and probabilities ``(rows, k)``. All functions compute in
float64, and are NaN where nothing is left to score. Every function takes ``outputs``, the number of classes or labels.
"""

from __future__ import annotations

import numpy as np


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
    errors = np.square(likely - truth)
    return _mean(errors.sum(axis=1)) if labels.ndim == 1 else _mean_of_columns(errors, ~np.isnan(truth))


def roc_auc(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The area under the ROC curve: of class index 1 of two, else the mean over classes (each against all others).

    Of several labels it is the mean over the columns. Columns without both a 0 and a 1 are left out.
    """
    return _mean(_areas(*_columns(labels, probabilities)))


def micro_roc_auc(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The area under the ROC curve of all classes or labels pooled into one column."""
    truth, likely = _columns(labels, probabilities)
    return _mean(_areas(truth.reshape(-1, 1), likely.reshape(-1, 1)))


def average_precision(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int) -> float:
    """The mean precision at the threshold of each true row, averaged over columns as ``roc_auc`` is."""
    truth, likely = _columns(labels, probabilities)
    (rows, columns), true = truth.shape, truth == 1
    scored = _has_both(truth)
    if not scored.any():
        return float("nan")
    likely = np.where(np.isnan(truth), -np.inf, likely)  # below all known ones, where they change nothing
    order = np.argsort(-likely, axis=0)
    likely, true = np.take_along_axis(likely, order, axis=0), np.take_along_axis(true, order, axis=0)
    precisions = np.cumsum(true, axis=0) / np.arange(1, rows + 1)[:, None]
    ends = np.full((rows, columns), rows - 1)  # rows of the same probability have the precision of their last one
    ends[:-1] = np.where(likely[:-1] != likely[1:], np.arange(rows - 1)[:, None], rows - 1)
    ends = np.minimum.accumulate(ends[::-1], axis=0)[::-1]
    sums = (np.take_along_axis(precisions, ends, axis=0) * true).sum(axis=0)
    return _mean(sums[scored] / true.sum(axis=0)[scored])


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


def top_k_accuracy(labels: np.ndarray, probabilities: np.ndarray, *, outputs: int, k: int) -> float:
    """The share of rows whose class is among the k most probable; of equally probable ones the first counts as more."""
    return _mean(_ranks_of_true(labels, probabilities) <= k)


def _columns(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Truth (0, 1 or NaN) and probabilities by column, float64; of two classes only the column of class index 1."""
    likely = probabilities.astype(np.float64)
    if labels.ndim == 2:
        return labels.astype(np.float64), likely
    if likely.shape[1] == 2:
        return (labels == 1).astype(np.float64)[:, None], likely[:, 1:]
    return (labels[:, None] == np.arange(likely.shape[1])).astype(np.float64), likely


def _has_both(truth: np.ndarray) -> np.ndarray:
    """``(columns,)`` bool: whether there is both a 0 and a 1."""
    both: np.ndarray = (truth == 1).any(axis=0) & (truth == 0).any(axis=0)
    return both


def _areas(truth: np.ndarray, likely: np.ndarray) -> np.ndarray:
    """The areas under the ROC curves of the columns with both a 0 and a 1, from the rank sums of Mann and Whitney."""
    from scipy.stats import rankdata  # slow to import

    scored = _has_both(truth)
    truth = truth[:, scored]
    unknown, true = np.isnan(truth).sum(axis=0), (truth == 1).sum(axis=0)
    likely = np.where(np.isnan(truth), -np.inf, likely[:, scored])  # the lowest ranks
    sums = (rankdata(likely, axis=0) * (truth == 1)).sum(axis=0)
    areas: np.ndarray = (sums - true * (unknown + (true + 1) / 2)) / (true * (len(truth) - unknown - true))
    return areas


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
