"""Disagreement of members by row, which points to wrong labels and hard texts."""

from __future__ import annotations

import numpy as np

_LEAST = 1e-12


def disagreement(votes: np.ndarray) -> np.ndarray:
    """How much the members disagree on each row, ``(rows,)`` float64; 0 for identical votes.

    For probabilities it is the Jensen-Shannon divergence (Lin 1991) in nats: the entropy of the mean minus the mean
    entropy. For values it is the standard deviation.

    Args:
        votes: ``(members, rows, classes)`` probabilities, or ``(members, rows)`` values.
    """
    votes = votes.astype(np.float64)
    if votes.ndim == 2:
        return votes.std(axis=0)
    return np.maximum(_entropy(votes.mean(axis=0)) - _entropy(votes).mean(axis=0), 0.0)


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    return -(probabilities * np.log(np.maximum(probabilities, _LEAST))).sum(axis=-1)
