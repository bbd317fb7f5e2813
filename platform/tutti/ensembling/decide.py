"""From probabilities to classes: the likeliest, or the likeliest after each class was moved by an offset of its own."""

from __future__ import annotations

import numpy as np

from tutti.ensembling.calibrate import log_probabilities

_GRID = np.linspace(-2, 2, 41)  # offsets that are tried, of log-probabilities: a class may become 7 times as likely
_PASSES = 2


def decide(probabilities: np.ndarray, offsets: np.ndarray | None = None) -> np.ndarray:
    """The class of each row, ``(rows,)`` int64; of equals the first.

    Args:
        probabilities: ``(rows, classes)``.
        offsets: ``(classes,)``, added to the log-probabilities, or none.
    """
    return (probabilities if offsets is None else log_probabilities(probabilities) + offsets).argmax(axis=1)


def tune_offsets(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Offsets ``(classes,)`` float64 that raise macro-F1 on these rows, one class after the other, twice.

    Where rare classes are never the likeliest, macro-F1 counts them as nothing, and a lower hurdle for them helps. An
    offset stays 0 unless another one is better, so that equal scores change nothing. It flatters itself on the rows
    that it was tuned on.

    Args:
        probabilities: ``(rows, classes)``.
        labels: ``(rows,)`` class indices.
    """
    logs, classes = log_probabilities(probabilities), probabilities.shape[1]
    offsets = np.zeros(classes)
    there = np.bincount(labels, minlength=classes)
    first = np.argsort(np.abs(_GRID), kind="stable")  # of equals the smallest offset
    for _ in range(_PASSES):
        for index in range(classes):
            scores = _by_offset(logs + np.where(np.arange(classes) == index, 0, offsets), index, labels, there)
            now = scores[np.argmin(np.abs(_GRID - offsets[index]))]
            best = first[scores[first].argmax()]
            if scores[best] > now + 1e-12:
                offsets[index] = _GRID[best]
    return offsets


def _by_offset(logs: np.ndarray, index: int, labels: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Macro-F1 for each offset of the grid for one class, ``(offsets,)``.

    A row says the class from some offset on and its likeliest other class before, so the rows are counted once, by
    that offset, and added up.
    """
    classes = len(there)
    others = logs.copy()
    others[:, index] = -np.inf
    other = others.argmax(axis=1)
    step = np.searchsorted(_GRID, others.max(axis=1) - logs[:, index], side="right")  # the first offset that wins

    def moved(rows: np.ndarray) -> np.ndarray:
        """How many of the rows say the class instead of each other one, ``(offsets, classes)``."""
        flat = np.bincount(step[rows] * classes + other[rows], minlength=(len(_GRID) + 1) * classes)
        return flat.reshape(-1, classes)[: len(_GRID)].cumsum(axis=0)

    hit = np.flatnonzero(other == labels)
    said = np.bincount(other, minlength=classes) - moved(np.arange(len(labels)))
    right = np.bincount(other[hit], minlength=classes) - moved(hit)
    said[:, index] = moved(np.arange(len(labels))).sum(axis=1)
    right[:, index] = moved(np.flatnonzero(labels == index)).sum(axis=1)
    return (2 * right / np.maximum(said + there, 1)).mean(axis=1)
