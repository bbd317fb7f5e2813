"""Soft voting: the weighted mean of the members' probabilities, or of their values."""

from __future__ import annotations

import numpy as np

from tutti.errors import Fault


def average(votes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted mean over members, accumulated in float64 one member at a time to limit memory.

    Args:
        votes: ``(members, rows, classes)`` float32 probabilities, or ``(members, rows)`` float32 values.
        weights: ``(members,)``, finite, at least 0, not all 0; normalized by their sum. Votes of members with weight 0
            are not read.

    Returns:
        ``(rows, classes)`` or ``(rows,)`` float32.

    Raises:
        ValueError: if shapes or weights are not as above.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if votes.ndim not in (2, 3) or weights.shape != votes.shape[:1]:
        got = f"shapes {votes.shape} and {weights.shape}"
        rule = "have shapes (members, rows[, classes]) and (members,)"
        raise ValueError(str(Fault("votes and weights", rule, got, "give one weight for each member")))
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        rule = "be finite and at least 0, and not all be 0"
        raise ValueError(str(Fault("the weights of an ensemble", rule, f"{weights.tolist()}", "correct the weights")))
    weights = weights / weights.max()  # first by the largest: their sum might overflow
    weights /= weights.sum()
    total = np.zeros(votes.shape[1:], dtype=np.float64)
    vote = np.empty_like(total)
    for member in np.flatnonzero(weights):
        np.multiply(votes[member], weights[member], out=vote)
        total += vote
    return total.astype(np.float32)
