"""From probabilities to classes: the argmax, optionally after adding an offset per class to the log-probabilities."""

from __future__ import annotations

import numpy as np

from tutti.ensembling.calibrate import log_probabilities

_GRID = np.linspace(-2, 2, 41)  # candidate offsets of log-probabilities; 2 makes a class about 7 times as likely
_PASSES = 2


def decide(probabilities: np.ndarray, offsets: np.ndarray | None = None) -> np.ndarray:
    """The class of each row, ``(rows,)`` int64; ties go to the first class.

    Args:
        probabilities: ``(rows, classes)``.
        offsets: ``(classes,)``, added to the log-probabilities, or none.
    """
    return (probabilities if offsets is None else log_probabilities(probabilities) + offsets).argmax(axis=1)


def tune_offsets(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Offsets ``(classes,)`` float64 that raise macro-F1 on these rows, by two passes of coordinate ascent.

    A rare class that is never the most likely one contributes 0 to macro-F1; a positive offset helps it. An offset
    changes only for a better score, so ties leave it at 0. Scores on the rows it was tuned on are optimistic.

    Args:
        probabilities: ``(rows, classes)``.
        labels: ``(rows,)`` class indices.
    """
    logs, classes = log_probabilities(probabilities), probabilities.shape[1]
    offsets, all_rows = np.zeros(classes), np.arange(len(labels))
    shifted = logs.copy()
    first, second = _two_best(shifted)
    label_counts = np.bincount(labels, minlength=classes)
    smallest_first = np.argsort(np.abs(_GRID), kind="stable")  # ties go to the smallest offset
    for _ in range(_PASSES):
        for index in range(classes):
            runner_up = np.where(first == index, second, first)
            gap = shifted[all_rows, runner_up] - logs[:, index]
            scores = _macro_f1_by_offset(runner_up, gap, index, labels, label_counts)
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


def _macro_f1_by_offset(
    runner_up: np.ndarray, gap: np.ndarray, index: int, labels: np.ndarray, label_counts: np.ndarray
) -> np.ndarray:
    """Macro-F1 for each offset of the grid for the class ``index``, ``(offsets,)``.

    Each row switches from its most likely other class to class ``index`` at one offset. Counting rows by that offset
    and summing cumulatively gives all scores in one pass.

    Args:
        runner_up: ``(rows,)``, the most likely other class.
        gap: ``(rows,)``, the offset from which on ``index`` is as likely as that.
    """
    classes = len(label_counts)
    wins_ties = index < runner_up  # as in ``decide``
    switch = np.where(wins_ties, np.searchsorted(_GRID, gap), np.searchsorted(_GRID, gap, side="right"))

    def switched(rows: np.ndarray) -> np.ndarray:
        """How many of the rows switch from each other class, ``(offsets, classes)``."""
        flat = np.bincount(switch[rows] * classes + runner_up[rows], minlength=(len(_GRID) + 1) * classes)
        return flat.reshape(-1, classes)[: len(_GRID)].cumsum(axis=0)

    all_rows, right_before = np.arange(len(labels)), np.flatnonzero(runner_up == labels)
    predicted = np.bincount(runner_up, minlength=classes) - switched(all_rows)
    right = np.bincount(runner_up[right_before], minlength=classes) - switched(right_before)
    predicted[:, index] = switched(all_rows).sum(axis=1)
    right[:, index] = switched(np.flatnonzero(labels == index)).sum(axis=1)
    occurs = predicted + label_counts
    f1 = 2 * right / np.maximum(occurs, 1)
    return f1.sum(axis=1) / np.maximum((occurs > 0).sum(axis=1), 1)  # as the metric: over the classes that occur
