"""How votes are weighed. All weights are ``(members,)`` float64 and sum to 1."""

from __future__ import annotations

import numpy as np


def uniform(members: int) -> np.ndarray:
    """The same weight for each of at least one member."""
    return np.full(members, 1 / members)


def by_score(scores: np.ndarray) -> np.ndarray:
    """Weights in proportion to ``scores`` ``(members,)``, the validation scores.

    A score that is not above 0, or not finite, gets weight 0. Where that is so of all, the weights are uniform.
    """
    scores = np.asarray(scores, dtype=np.float64)
    votes = np.where(np.isfinite(scores) & (scores > 0), scores, 0.0)
    if not votes.any():
        return uniform(len(scores))
    votes = votes / votes.max()  # first by the largest, so that no sum overflows
    return votes / votes.sum()
