"""From probabilities to classes: the argmax, optionally after adding an offset per class to the log-probabilities."""

from __future__ import annotations

import numpy as np

from tutti.tasks.kinds.probabilities import log_probabilities

_GRID = np.linspace(-2, 2, 41)  # candidate offsets of log-probabilities; 2 makes a class about 7 times as likely
_PASSES = 2
_SHRINKAGE = 0.6  # with 1, CoLA and EMOTION of benchmarks/auto_method.py gain more, but TNEWS loses
_BIAS = 0.5  # standard deviation of the prior of a class's bias, in log-probability


def decide(probabilities: np.ndarray, offsets: np.ndarray | None = None) -> np.ndarray:
    """The class of each row, ``(rows,)`` int64; ties go to the first class.

    Args:
        probabilities: ``(rows, classes)``.
        offsets: ``(classes,)``, added to the log-probabilities, or none.
    """
    return (probabilities if offsets is None else log_probabilities(probabilities) + offsets).argmax(axis=-1)


def tune_offsets(probabilities: np.ndarray, labels: np.ndarray, *, counted: int | None = None) -> np.ndarray:
    """Offsets ``(classes,)`` float64 that raise the expected macro-F1, by two passes of coordinate ascent.

    A rare class that is never the most likely one contributes 0 to macro-F1; a positive offset helps it. Macro-F1 is
    expected from calibrated probabilities, as if they were the shares of the labels (Ye et al. 2012, arXiv 1206.4625):
    the few labels of a rare class say less of it. Offsets are then taken at six tenths, since what is expected of rare
    classes is the least certain. An offset changes only for a better score, so ties leave it at 0.

    Args:
        probabilities: ``(rows, classes)``.
        labels: ``(rows,)`` class indices.
        counted: the one class whose F1 is tuned for instead of the mean over classes.
    """
    if not len(labels):
        return np.zeros(probabilities.shape[1])
    logs = log_probabilities(probabilities)
    offsets = _SHRINKAGE * _best_offsets(logs, _calibrated(logs, labels), counted)
    absent = np.bincount(labels, minlength=logs.shape[1]) == 0  # the first decision for such a class lowers the mean
    return np.where(absent, np.minimum(offsets, 0), offsets)


def _calibrated(logs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities ``(rows, classes)`` float64 at the temperature and with the bias of each class that fit the labels.

    This is bias-corrected temperature scaling (Alexandari et al. 2020, arXiv 1901.06852), with a normal prior of the
    biases that keeps those of classes with few rows small.
    """
    from scipy.optimize import minimize  # slow to import
    from scipy.special import softmax

    rows, classes = logs.shape
    label_counts, of_labels = np.bincount(labels, minlength=classes), logs[np.arange(rows), labels].sum()

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        inverse, biases = np.exp(-parameters[0]), parameters[1:]
        fitted = logs * inverse + biases
        highest = fitted.max(axis=1, keepdims=True)
        np.exp(np.subtract(fitted, highest, out=fitted), out=fitted)
        sums = fitted.sum(axis=1, keepdims=True)
        fitted /= sums
        normalizers = (np.log(sums) + highest).sum()
        by_bias = fitted.sum(axis=0) - label_counts + biases / _BIAS**2
        value = normalizers - of_labels * inverse - label_counts @ biases + (biases @ biases) / (2 * _BIAS**2)
        return float(value / rows), np.append(-inverse * (np.vdot(fitted, logs) - of_labels), by_bias) / rows

    bounds = [(-4, 4), *[(None, None)] * classes]  # of the logarithm of the temperature
    fitted = minimize(loss, np.zeros(classes + 1), jac=True, method="L-BFGS-B", bounds=bounds).x
    shares: np.ndarray = softmax(logs * np.exp(-fitted[0]) + fitted[1:], axis=1)
    return shares


def _best_offsets(logs: np.ndarray, shares: np.ndarray, counted: int | None = None) -> np.ndarray:
    """Offsets ``(classes,)`` of log-probabilities with the highest macro-F1 where ``shares`` are the rows' labels.

    Args:
        logs: ``(rows, classes)``.
        shares: ``(rows, classes)`` float64, which sum to 1.
    """
    classes = logs.shape[1]
    offsets, all_rows = np.zeros(classes), np.arange(len(logs))
    shifted = logs.copy()
    first, second = _two_best(shifted)
    label_sums = shares.sum(axis=0)
    smallest_first = np.argsort(np.abs(_GRID), kind="stable")  # ties go to the smallest offset
    for _ in range(_PASSES):
        for index in range(classes):
            runner_up = np.where(first == index, second, first)
            gap = shifted[all_rows, runner_up] - logs[:, index]
            scores = _f1_by_offset(runner_up, gap, index, shares, label_sums, counted)
            current = scores[np.argmin(np.abs(_GRID - offsets[index]))]
            best = smallest_first[scores[smallest_first].argmax()]
            if scores[best] > current + 1e-12:
                offsets[index] = _GRID[best]
                shifted[:, index] = logs[:, index] + offsets[index]
                first, second = _two_best(shifted)
    return offsets


def _two_best(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most likely class of each row and the next one, each ``(rows,)``; ties go to the first class."""
    first = logs.argmax(axis=1)
    others = logs.copy()
    others[np.arange(len(logs)), first] = -np.inf
    return first, others.argmax(axis=1)


def _f1_by_offset(
    runner_up: np.ndarray, gap: np.ndarray, index: int, shares: np.ndarray, label_sums: np.ndarray, counted: int | None
) -> np.ndarray:
    """Macro-F1, or the F1 of one class, for each offset of the grid for the class ``index``, ``(offsets,)``.

    Each row switches from its most likely other class to class ``index`` at one offset. Summing rows by that offset
    and then cumulatively gives all scores in one pass.

    Args:
        runner_up: ``(rows,)``, the most likely other class.
        gap: ``(rows,)``, the offset from which on ``index`` is as likely as that.
        shares: ``(rows, classes)``, how far each class is the row's label.
        label_sums: ``(classes,)``, their sums over rows.
    """
    rows, classes = shares.shape
    wins_ties = index < runner_up  # as in ``decide``
    switch = np.where(wins_ties, np.searchsorted(_GRID, gap), np.searchsorted(_GRID, gap, side="right"))
    of_runner_up = shares[np.arange(rows), runner_up]

    def switched(weights: np.ndarray | None) -> np.ndarray:
        """The rows that switch from each other class, by their weights, ``(offsets, classes)``."""
        flat = np.bincount(switch * classes + runner_up, weights=weights, minlength=(len(_GRID) + 1) * classes)
        return flat.reshape(-1, classes)[: len(_GRID)].cumsum(axis=0)

    predicted = np.bincount(runner_up, minlength=classes) - switched(None)
    right = np.bincount(runner_up, weights=of_runner_up, minlength=classes) - switched(of_runner_up)
    predicted[:, index] = switched(None).sum(axis=1)
    right[:, index] = switched(shares[:, index]).sum(axis=1)
    occurs = predicted + label_sums
    f1 = 2 * right / np.maximum(occurs, 1e-12)
    if counted is not None:
        return f1[:, counted]
    return f1.sum(axis=1) / np.maximum((occurs > 0).sum(axis=1), 1)  # as the metric: over the classes that occur
