"""From probabilities of labels to decisions: the least probability at which a label is given."""

from __future__ import annotations

import numpy as np

from tutti.tasks.kinds.probabilities import LEAST_PROBABILITY

_BIAS, _SCALE = 1.0, 10.0  # standard deviations of the priors of a label's bias, in logits, and of the scale around 1
_LEAST_SCALE = 0.05
_STEPS, _MOST, _CONVERGED = 30, 1.0, 1e-4  # of Newton's method: their number, the longest one, and the last one


def tune_thresholds(probabilities: np.ndarray, labels: np.ndarray, *, beta: float, together: bool) -> np.ndarray:
    """Thresholds ``(k,)`` float64 with the highest expected F-beta.

    The score is expected from calibrated probabilities, as if they were the shares of the labels (Ye et al. 2012, arXiv
    1206.4625): the few rows of a rare label say less of it. The best threshold is half of the best F1 (Lipton et al.
    2014, arXiv 1402.1892), and so far below 0.5 for a label that is hard to tell.

    Args:
        probabilities: ``(rows, k)``.
        labels: ``(rows, k)`` of 0, 1, or NaN where one is missing.
        together: whether all labels have one threshold, for metrics that pool them.
    """
    logits = _logits(probabilities)
    shares = _calibrated(logits, labels)
    if together:
        return np.full(labels.shape[1], _best_threshold(probabilities.ravel(), shares.ravel(), beta))
    pairs = zip(probabilities.T, shares.T, strict=True)
    return np.array([_best_threshold(of_label, share, beta) for of_label, share in pairs])


def _logits(probabilities: np.ndarray) -> np.ndarray:
    clipped = probabilities.astype(np.float64).clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return np.log(clipped) - np.log1p(-clipped)


def _calibrated(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities ``(rows, k)`` at the temperature and with the bias of each label that fit the labels.

    This is Platt's scaling with one scale for all labels and a normal prior of the biases, by Newton's method: the
    Hessian has entries only in its first row, first column and diagonal.
    """
    from scipy.special import expit  # slow to import

    known = ~np.isnan(labels)
    true = np.where(known, labels, 0.0)
    scale, biases = 1.0, np.zeros(logits.shape[1])
    shares = expit(logits)
    for _ in range(_STEPS):
        errors, curvature = (shares - true) * known, shares * (1 - shares) * known
        weighed = curvature * logits
        of_scale = np.vdot(errors, logits) + (scale - 1) / _SCALE**2
        of_biases = errors.sum(axis=0) + biases / _BIAS**2
        diagonal, side = curvature.sum(axis=0) + 1 / _BIAS**2, weighed.sum(axis=0)
        corner = np.vdot(weighed, logits) + 1 / _SCALE**2
        step = (of_scale - side @ (of_biases / diagonal)) / (corner - side @ (side / diagonal))
        by_biases = (of_biases - side * step) / diagonal
        scale = max(scale - float(np.clip(step, -_MOST, _MOST)), _LEAST_SCALE)
        biases = biases - by_biases.clip(-_MOST, _MOST)
        shares = expit(scale * logits + biases)
        if max(abs(step), np.abs(by_biases).max()) < _CONVERGED:
            break
    return shares


def _best_threshold(probabilities: np.ndarray, shares: np.ndarray, beta: float) -> float:
    """The threshold of ``(rows,)`` probabilities with the highest F-beta where ``shares`` are the rows' labels.

    Candidates lie between two rows, or below all of them: one row at least gets the label.
    """
    order = np.argsort(-probabilities, kind="stable")
    right, given = shares[order].cumsum(), np.arange(1, len(order) + 1)
    scores = (1 + beta**2) * right / (beta**2 * right[-1] + given)
    last = int(scores.argmax())
    lower = float(probabilities[order[last + 1]]) if last + 1 < len(order) else 0.0
    return (float(probabilities[order[last]]) + lower) / 2
