"""Soft voting: the weighted mean of the members' probabilities, or of their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def average(votes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted mean over members, accumulated in float64 one member at a time to limit memory.

    Args:
        votes: ``(members, rows, ...)`` float32 outputs of any kind.
        weights: ``(members,)``, finite; normalized by their sum, which is above 0. Votes of members with weight 0 are
            not read.

    Returns:
        ``(rows, ...)`` float32.
    """
    weights = weights / weights.sum()
    total = np.zeros(votes.shape[1:], dtype=np.float64)
    vote = np.empty_like(total)
    for member in np.flatnonzero(weights):
        np.multiply(votes[member], weights[member], out=vote)
        total += vote
    return total.astype(np.float32)


def mean_of(outputs: Sequence[np.ndarray]) -> np.ndarray:
    """The plain mean of several members' outputs, each ``(rows, ...)``, in float32."""
    return np.stack(outputs).mean(axis=0, dtype=np.float64).astype(np.float32)
