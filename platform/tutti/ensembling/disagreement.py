"""Disagreement of members by row, which points to wrong labels and hard texts."""

from __future__ import annotations

import numpy as np


def disagreement(votes: np.ndarray) -> np.ndarray:
    """How much the members disagree on each row, ``(rows,)`` float64; 0 for identical votes.

    For probabilities it is the Jensen-Shannon divergence (Lin 1991) in nats: the entropy of the mean minus the mean
    entropy. For values it is the standard deviation.

    Args:
        votes: ``(members, rows, classes)`` probabilities, or ``(members, rows)`` values.
    """
    from scipy.special import entr  # slow to import

    votes = votes.astype(np.float64)
    if votes.ndim == 2:
        return votes.std(axis=0)
    of_mean, of_members = entr(votes.mean(axis=0)).sum(axis=-1), entr(votes).sum(axis=-1)
    return np.maximum(of_mean - of_members.mean(axis=0), 0.0)
