"""From probabilities to classes: the argmax, optionally after adding an offset per class to the log-probabilities."""

from __future__ import annotations

import numpy as np

from tutti.tasks.kinds.probabilities import in_blocks, log_probabilities

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


def calibrated(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities ``(rows, classes)`` that fit the labels at least as well: see ``_calibrated``."""
    return _calibrated(log_probabilities(probabilities), labels)


def _calibrated(logs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities ``(rows, classes)`` float64 at the temperature and with the bias of each class that fit the labels.

    This is bias-corrected temperature scaling (Alexandari et al. 2020, arXiv 1901.06852), with a normal prior of the
    biases that keeps those of classes with few rows small.
    """
    from scipy.optimize import minimize  # slow to import
    from scipy.special import softmax

    rows, classes = logs.shape
    label_counts, of_labels = np.bincount(labels, minlength=classes), logs[np.arange(rows), labels].sum()
    blocks = [(block, np.empty_like(block)) for block in in_blocks(logs)]

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        inverse, biases = np.exp(-parameters[0]), parameters[1:]
        normalizers, expected, by_logs = 0.0, np.zeros(classes), 0.0
        for block, fitted in blocks:
            np.add(np.multiply(block, inverse, out=fitted), biases, out=fitted)
            highest = fitted.max(axis=1, keepdims=True)
            np.exp(np.subtract(fitted, highest, out=fitted), out=fitted)
            sums = fitted.sum(axis=1, keepdims=True)
            np.divide(fitted, sums, out=fitted)
            normalizers += (np.log(sums) + highest).sum()
            expected += fitted.sum(axis=0)
            by_logs += np.vdot(fitted, block)
        by_bias = expected - label_counts + biases / _BIAS**2
        value = normalizers - of_labels * inverse - label_counts @ biases + (biases @ biases) / (2 * _BIAS**2)
        return float(value / rows), np.append(-inverse * (by_logs - of_labels), by_bias) / rows

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
    shifted, columns, share_columns = logs.copy(), np.ascontiguousarray(logs.T), np.ascontiguousarray(shares.T)
    label_sums = shares.sum(axis=0)
    scored = np.ones(classes) if counted is None else np.eye(classes)[counted]
    best_two = _two_best(shifted)
    best_logs, best_shares = shifted[all_rows, best_two], shares[all_rows, best_two]
    smallest_first = np.argsort(np.abs(_GRID), kind="stable")  # ties go to the smallest offset
    for _ in range(_PASSES):
        for index in range(classes):
            own = best_two[0] == index
            runner_up, of_runner_up = np.where(own, best_two[::-1], best_two)[0], np.where(own, *best_shares[::-1])
            gap = np.where(own, *best_logs[::-1]) - columns[index]
            scores = _f1_by_offset(runner_up, gap, index, of_runner_up, share_columns[index], label_sums, scored)
            if scores is None:
                continue
            current = scores[np.argmin(np.abs(_GRID - offsets[index]))]
            best = smallest_first[scores[smallest_first].argmax()]
            if scores[best] > current + 1e-12:
                offsets[index] = _GRID[best]
                shifted[:, index] = columns[index] + offsets[index]
                changed = np.flatnonzero((best_two == index).any(axis=0) | (shifted[:, index] >= best_logs[1]))
                best_two[:, changed] = _two_best(shifted[changed])
                best_logs[:, changed] = shifted[changed, best_two[:, changed]]
                best_shares[:, changed] = shares[changed, best_two[:, changed]]
    return offsets


def _two_best(logs: np.ndarray) -> np.ndarray:
    """The most likely class of each row and the next one, ``(2, rows)``; ties go to the first class."""
    first = logs.argmax(axis=1)
    others = logs.copy()
    others[np.arange(len(logs)), first] = -np.inf
    return np.stack([first, others.argmax(axis=1)])


def _f1_by_offset(
    runner_up: np.ndarray,
    gap: np.ndarray,
    index: int,
    of_runner_up: np.ndarray,
    of_index: np.ndarray,
    label_sums: np.ndarray,
    scored: np.ndarray,
) -> np.ndarray | None:
    """The mean F1 of the scored classes for each offset of the grid for the class ``index``, ``(offsets,)``.

    Each row switches from its most likely other class to class ``index`` at one offset. Summing rows by that offset
    and then cumulatively gives all scores in one pass, and only of the classes that lose rows: of a thousand, few do.

    Args:
        runner_up: ``(rows,)``, the most likely other class.
        gap: ``(rows,)``, the offset from which on ``index`` is as likely as that.
        of_runner_up, of_index: ``(rows,)``, how far that class and ``index`` are the row's label.
        label_sums: ``(classes,)``, the same of each class, summed over rows.
        scored: ``(classes,)``, 1 for the classes whose F1 counts, 0 for others.

    Returns:
        None where no row switches within the grid: all scores are equal.
    """
    near = np.flatnonzero(np.abs(gap) <= _GRID[-1])
    if not len(near):
        return None
    classes, from_class = len(label_sums), runner_up[near]
    wins_ties = index < from_class  # as in ``decide``
    switch = np.where(wins_ties, np.searchsorted(_GRID, gap[near]), np.searchsorted(_GRID, gap[near], side="right"))
    loses = np.zeros(classes, dtype=bool)
    loses[from_class] = True
    losers, place = np.flatnonzero(loses), (loses.cumsum() - 1)[from_class]

    def switched(weights: np.ndarray | None) -> np.ndarray:
        """The rows that have switched from each loser, by their weights, ``(offsets, losers)``."""
        flat = np.bincount(switch * len(losers) + place, weights=weights, minlength=(len(_GRID) + 1) * len(losers))
        return flat.reshape(-1, len(losers))[: len(_GRID)].cumsum(axis=0)

    always = gap < _GRID[0]
    decided, of_decided = np.where(always, index, runner_up), np.where(always, of_index, of_runner_up)
    predicted = np.bincount(decided, minlength=classes)
    right = np.bincount(decided, weights=of_decided, minlength=classes)
    lost, won = switched(None), switched(of_index[near]).sum(axis=1, keepdims=True)
    others = scored.copy()
    others[losers] = others[index] = 0
    parts = (
        _f1_sum(right, predicted + label_sums, others),
        _f1_sum(
            right[losers] - switched(of_runner_up[near]), predicted[losers] - lost + label_sums[losers], scored[losers]
        ),
        _f1_sum(
            right[index] + won, predicted[index] + lost.sum(axis=1, keepdims=True) + label_sums[index], scored[[index]]
        ),
    )
    f1, occurring = (sum(each) for each in zip(*parts, strict=True))
    return f1 / np.maximum(occurring, 1)  # as the metric: over the classes that occur


def _f1_sum(right: np.ndarray, occurs: np.ndarray, scored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of F1 over the last axis, the classes, and how many of them occur, each ``scored`` times."""
    return (2 * right / np.maximum(occurs, 1e-12)) @ scored, (occurs > 0) @ scored
