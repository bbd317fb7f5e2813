"""Metrics of decisions, computed from counts: scikit-learn is 20 times slower, and estimates need thousands of scores.

Labels and decisions are ``(rows,)`` class indices in tasks of classes. In tasks of several labels per row, labels are
``(rows, k)`` with 0, 1 or NaN where one is missing, and decisions ``(rows, k)`` with 0 or 1; a column without any label
is left out. Every function takes ``outputs``, the number of classes or labels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Average = Literal["macro", "micro", "weighted", "samples", "binary"]


def accuracy(labels: np.ndarray, decided: np.ndarray, *, outputs: int) -> float:
    return float((labels == decided).sum() / len(labels)) if len(labels) else float("nan")


def balanced_accuracy(labels: np.ndarray, decided: np.ndarray, *, outputs: int) -> float:
    """The mean recall of the classes that occur in the labels."""
    label_counts, _, correct = _counts(labels, decided, outputs)
    occurring = label_counts > 0
    return _mean(correct[occurring] / label_counts[occurring])


def matthews(labels: np.ndarray, decided: np.ndarray, *, outputs: int) -> float:
    """The coefficient of Matthews (1975) for any number of classes (Gorodkin 2004).

    0 where all labels or all decisions are one class.
    """
    label_counts, decided_counts, of_class = _counts(labels, decided, outputs)
    rows, correct = label_counts.sum(), of_class.sum()
    spread = (rows**2 - decided_counts @ decided_counts) * (rows**2 - label_counts @ label_counts)
    return float((correct * rows - label_counts @ decided_counts) / np.sqrt(spread)) if spread else 0.0


def kappa(labels: np.ndarray, decided: np.ndarray, *, outputs: int, power: int) -> float:
    """Cohen's kappa; 0 where all labels and all decisions are the same class.

    Args:
        power: of the distance between two classes by which a confusion weighs: 0 for any, 1 linear, 2 quadratic.
    """
    matrix = _matrix(labels, decided, outputs)
    if not matrix.sum():
        return float("nan")
    index = np.arange(outputs)
    distances = np.abs(index[:, None] - index)
    weights = (distances > 0).astype(np.float64) if power == 0 else distances.astype(np.float64) ** power
    expected = np.outer(matrix.sum(axis=1), matrix.sum(axis=0)) / matrix.sum()
    by_chance = (weights * expected).sum()
    return float(1 - (weights * matrix).sum() / by_chance) if by_chance else 0.0


def f_score(labels: np.ndarray, decided: np.ndarray, *, outputs: int, beta: float, average: Average) -> float:
    """F-beta: the harmonic mean of precision and recall, in which recall counts ``beta`` times as much.

    ``macro`` is the unweighted mean over the classes that occur in the labels or decisions, as in scikit-learn, or over
    all labels; ``weighted`` weighs each by its rows; ``micro`` pools all; ``samples`` is the mean over rows; ``binary``
    is that of class index 1 of two. It is 0 where something neither occurs nor is decided.
    """
    if labels.ndim == 1:
        label_counts, decided_counts, correct = _counts(labels, decided, outputs)
        if average == "binary":
            return float(_f(correct[1], label_counts[1], decided_counts[1], beta))
        counted = label_counts + decided_counts > 0
    else:
        known = ~np.isnan(labels)
        true, chosen = labels == 1, (decided == 1) & known
        axis = 1 if average == "samples" else 0
        correct, label_counts, decided_counts = ((true & chosen).sum(axis), true.sum(axis), chosen.sum(axis))
        counted = known.any(axis)
    if not counted.any():
        return float("nan")
    correct, label_counts, decided_counts = correct[counted], label_counts[counted], decided_counts[counted]
    if average == "micro":
        return float(_f(correct.sum(), label_counts.sum(), decided_counts.sum(), beta))
    scores = _f(correct, label_counts, decided_counts, beta)
    if average != "weighted":
        return float(scores.mean())
    return float(scores @ label_counts / max(label_counts.sum(), 1))


def subset_accuracy(labels: np.ndarray, decided: np.ndarray, *, outputs: int) -> float:
    """The share of rows whose known labels are all decided right."""
    known = ~np.isnan(labels)
    return _mean(((labels == decided) | ~known).all(axis=1)[known.any(axis=1)])


def hamming_loss(labels: np.ndarray, decided: np.ndarray, *, outputs: int) -> float:
    """The share of known labels that are decided wrong."""
    known = ~np.isnan(labels)
    return float(((labels != decided) & known).sum() / known.sum()) if known.any() else float("nan")


def _counts(labels: np.ndarray, decided: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(classes,)`` float64 counts of labels, of decisions and of right decisions.

    Without a confusion matrix, which for a thousand classes has a million cells.
    """
    labels = labels.astype(np.int64)
    counted = (labels, decided, labels[labels == decided])
    of_labels, of_decisions, right = (np.bincount(each, minlength=classes).astype(np.float64) for each in counted)
    return of_labels, of_decisions, right


def _matrix(labels: np.ndarray, decided: np.ndarray, classes: int) -> np.ndarray:
    """``(classes, classes)`` float64 counts; row: true class, column: decided class."""
    counts = np.bincount(labels.astype(np.int64) * classes + decided, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.float64)


def _f(correct: np.ndarray, label_counts: np.ndarray, decided_counts: np.ndarray, beta: float) -> np.ndarray:
    totals = beta**2 * label_counts + decided_counts
    scores: np.ndarray = (1 + beta**2) * correct / np.maximum(totals, 1e-9)  # 0 / 1e-9 where all are 0
    return scores


def _mean(scores: np.ndarray) -> float:
    return float(scores.mean()) if len(scores) else float("nan")
